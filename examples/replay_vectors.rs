//! Replays recorded decisions against a store, and prints where it decides differently.
//!
//!     cargo run --release --example replay_vectors -- FILE --store memory:|redis://HOST
//!
//! FILE holds suites; the operations of a suite run in order on one fresh key, at explicit
//! instants. Times are ms. Of the suites' strategies this version knows:
//!
//! - `leakyBucket` {ratePerSec, maxQueueMs}: `accepted`, and `delayMs`, rounded up: the wait, or when
//!   refused how far the wait exceeds the queue.
//!
//! Suites of other strategies are skipped and counted. Exit: 0 all alike, 1 mismatches, 2 usage.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use paced::Rate;
use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{MemoryStore, RedisOptions, RedisStore, Reserve, Scope, Store};
use paced::time::{Micros, wall_now};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// How many operations, or whole suites, did not come out as expected.
async fn run() -> Result<usize, Failure> {
    let (file, url) = arguments()?;
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let vectors: Value = serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
    let suites = vectors["suites"].as_array().ok_or_else(|| format!("{file}: no `suites`"))?;
    let store: Box<dyn Store> = match url.as_str() {
        "memory:" => Box::new(MemoryStore::new()),
        _ => Box::new(RedisStore::connect(&url, RedisOptions::default()).await?),
    };

    // A name of its own for each run: every key is fresh, whatever ran before.
    let downstream = format!("replay-{}", wall_now());
    let (mut replayed, mut operations, mut wrong) = (0, 0, 0);
    let mut skipped = BTreeMap::<String, usize>::new();
    for (index, suite) in suites.iter().enumerate() {
        let name = suite["name"].as_str().unwrap_or("unnamed");
        let kind = suite["strategy"]["kind"].as_str().unwrap_or("unnamed");
        if kind != "leakyBucket" {
            *skipped.entry(kind.to_owned()).or_default() += 1;
            continue;
        }
        let key = format!("{index}/{}", suite["key"].as_str().unwrap_or_default());
        match replay(&*store, Scope { downstream: &downstream, key: &key }, name, suite).await {
            Ok((ran, differ)) => (operations, wrong) = (operations + ran, wrong + differ),
            Err(error) => {
                println!("{name}: {error}");
                wrong += 1;
            }
        }
        replayed += 1;
    }
    println!("{replayed} suites, {operations} operations, {wrong} mismatches");
    for (kind, count) in &skipped {
        println!("skipped {count} suites of {kind}: not in this version");
    }
    Ok(wrong)
}

fn arguments() -> Result<(String, String), Failure> {
    let usage = "usage: replay_vectors FILE --store memory:|redis://HOST";
    let (mut file, mut store) = (None, "memory:".to_owned());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--store" => store = args.next().ok_or(usage)?,
            flag if flag.starts_with("--") => return Err(usage.into()),
            _ if file.is_none() => file = Some(arg),
            _ => return Err(usage.into()),
        }
    }
    Ok((file.ok_or(usage)?, store))
}

/// How many operations ran, and how many of them came out otherwise than expected.
async fn replay(
    store: &dyn Store,
    scope: Scope<'_>,
    name: &str,
    suite: &Value,
) -> Result<(usize, usize), Failure> {
    let options = &suite["strategy"]["options"];
    let limit = Limit::leaky_bucket("leaky-bucket-1", rate(&options["ratePerSec"])?, 1)?;
    let limits = LimitSet::new(vec![limit])?;
    let ahead = Duration::from_micros(micros(&options["maxQueueMs"], "maxQueueMs")?);
    let operations = suite["ops"].as_array().ok_or("no `ops`")?;
    let mut wrong = 0;
    for (index, operation) in operations.iter().enumerate() {
        let now = Micros(i64::try_from(micros(&operation["now"], "now")?)?);
        let cost = match &operation["cost"] {
            Value::Null => 1,
            cost => u32::try_from(cost.as_u64().ok_or("`cost` is no count")?)?,
        };
        let call = Reserve {
            scope,
            limits: &limits,
            costs: Costs::Each(&[cost]),
            ahead,
            now: Some(now),
            lease: None,
        };
        let reserved = store.reserve(call).await?;
        let delay = match (reserved.slots.first(), reserved.refused) {
            (Some(slot), _) => slot.since(now),
            (None, Some(refused)) => refused.slot.since(now.plus(ahead)),
            (None, None) => return Err("the store neither granted nor refused".into()),
        };
        let (accepted, delay) = (!reserved.slots.is_empty(), delay.as_micros().div_ceil(1000));
        let expect = &operation["expect"];
        let same = expect["accepted"].as_bool() == Some(accepted)
            && expect["delayMs"].as_f64() == Some(delay as f64);
        if !same {
            wrong += 1;
            println!(
                "{name} operation {index} (now {} cost {cost}): accepted {accepted} delayMs {delay}, \
                 expected accepted {} delayMs {}",
                operation["now"], expect["accepted"], expect["delayMs"]
            );
        }
    }
    Ok((operations.len(), wrong))
}

/// Whole µs of a number of ms.
fn micros(value: &Value, name: &str) -> Result<u64, Failure> {
    let ms = value.as_f64().filter(|ms| *ms >= 0.0 && *ms <= 9e12);
    let micros = ms.ok_or_else(|| format!("`{name}` is {value}, not a number of ms"))? * 1000.0;
    if (micros - micros.round()).abs() > 1e-3 {
        return Err(format!("`{name}` is {value} ms, not whole µs").into());
    }
    Ok(micros.round() as u64)
}

/// A rate per second, exactly as its decimal digits say.
fn rate(value: &Value) -> Result<Rate, Failure> {
    let wrong = || format!("`ratePerSec` is {value}, not a decimal number");
    let text = value.as_number().ok_or_else(wrong)?.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let count = format!("{whole}{fraction}").parse::<u64>().map_err(|_| wrong())?;
    let seconds = 10_u64.checked_pow(u32::try_from(fraction.len())?).ok_or_else(wrong)?;
    Ok(Rate::new(count, Duration::from_secs(seconds))?)
}
