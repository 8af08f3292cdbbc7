//! Replays recorded decisions against a store, and prints where it decides differently.
//!
//!     cargo run --release --features redis --example replay_vectors -- FILE --store memory:|redis://HOST
//!
//! FILE holds suites; the operations of a suite run in order on one fresh key, by a clock that is set to the
//! instant of each, also if that lies before the last one: nothing is corrected for a step. Times are ms and may have
//! fractions down to the µs. Strategies, with what is compared:
//!
//! - `gcra` {limit, periodMs, burst = limit}, `tokenBucket` {capacity, refillPerSec},
//!   `fixedWindow` {limit, windowMs}, `slidingWindow` {limit, windowMs, buckets = 10},
//!   `slidingWindowLog` {limit, windowMs}: `allowed`, `limit`, `remaining` rounded down, `resetAt` and
//!   `retryAfterMs` rounded up. What a denied `slidingWindow` expects of `retryAfterMs` is a lower bound.
//! - `leakyBucket` {ratePerSec, maxQueueMs}: `accepted`, and `delayMs`, rounded up: the wait, or when
//!   refused how far the wait exceeds the queue.
//!
//! A cost that can never fit is an error of the store's. A file may hold one: it counts as denied, and
//! how the limit stands is compared by a look that costs nothing; there is no `retryAfterMs` then.
//! A suite whose numbers are no limit (a window that does not divide into its buckets, say) is reported and
//! counts as one mismatch. Suites of other strategies are skipped and counted.
//!
//! Exit: 0 all alike, 1 mismatches, 2 usage.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use paced::Rate;
use paced::limit::{Costs, Decision, Limit, LimitSet};
use paced::store::{Check, MemoryStore, RedisOptions, RedisStore, Reserve, Scope, Store};
use paced::time::{ManualClock, Micros, wall_now};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

const KINDS: [&str; 6] =
    ["gcra", "tokenBucket", "fixedWindow", "slidingWindow", "slidingWindowLog", "leakyBucket"];

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
    let clock = Arc::new(ManualClock::new(Micros(0)));
    let store: Box<dyn Store> = match url.as_str() {
        "memory:" => Box::new(MemoryStore::replaying(clock.clone())),
        _ => {
            let patience = Duration::from_secs(30);
            let options = RedisOptions::default().with_timeouts(patience, patience);
            let store = RedisStore::connect(&url, options).await?;
            Box::new(store.replaying(clock.clone()))
        }
    };

    // Each run has its own name: every key is new, also after earlier runs.
    let run = wall_now();
    let (mut replayed, mut operations, mut wrong) = (0, 0, 0);
    let mut skipped = BTreeMap::<String, usize>::new();
    for (index, suite) in suites.iter().enumerate() {
        let name = suite["name"].as_str().unwrap_or("unnamed");
        let kind = suite["strategy"]["kind"].as_str().unwrap_or("unnamed");
        if !KINDS.contains(&kind) {
            *skipped.entry(kind.to_owned()).or_default() += 1;
            continue;
        }
        let downstream = format!("replay-{run}-{index}");
        let scope = Scope { downstream: &downstream, key: suite["key"].as_str().unwrap_or_default() };
        match replay((&*store, &clock), scope, name, kind, suite).await {
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
    let usage = "usage: replay_vectors FILE [--store memory:|redis://HOST]";
    let (mut file, mut store) = (None, "memory:".to_owned());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--store" => store = arguments.next().ok_or(usage)?,
            _ if file.is_none() && !argument.starts_with('-') => file = Some(argument),
            _ => return Err(usage.into()),
        }
    }
    Ok((file.ok_or(usage)?, store))
}

/// How many operations ran, and how many of them came out otherwise than expected.
async fn replay(
    (store, clock): (&dyn Store, &ManualClock),
    scope: Scope<'_>,
    name: &str,
    kind: &str,
    suite: &Value,
) -> Result<(usize, usize), Failure> {
    let options = &suite["strategy"]["options"];
    let limits = LimitSet::new(vec![limit(kind, options)?])?;
    let operations = suite["ops"].as_array().ok_or("no `ops`")?;
    let mut wrong = 0;
    for (index, operation) in operations.iter().enumerate() {
        let now = Micros(i64::try_from(micros(&operation["now"], "now")?)?);
        clock.set(now);
        let cost = match &operation["cost"] {
            Value::Null => 1,
            cost => cost.as_u64().ok_or_else(|| format!("`cost` is {cost}, not a count"))?,
        };
        let found = if kind == "leakyBucket" {
            let ahead = Duration::from_micros(micros(&options["maxQueueMs"], "maxQueueMs")?);
            shape(store, scope, &limits, now, u32::try_from(cost)?, ahead).await?
        } else {
            police(store, scope, &limits, now, cost).await?
        };
        let expect = &operation["expect"];
        let same = found.iter().all(|(field, found)| {
            let expected = &expect[*field];
            match (*field, found.as_f64(), expected.as_f64()) {
                ("retryAfterMs", Some(found), Some(bound)) if kind == "slidingWindow" => found >= bound,
                (_, Some(found), Some(expected)) => (found - expected).abs() < 0.5,
                _ => found == expected,
            }
        });
        if !same {
            wrong += 1;
            let list = |of: &dyn Fn(&str, &Value) -> String| {
                let texts: Vec<String> = found.iter().map(|(field, found)| of(field, found)).collect();
                texts.join(" ")
            };
            println!(
                "{name} operation {index} (now {} cost {cost}): {}, expected {}",
                operation["now"],
                list(&|field, found| format!("{field} {found}")),
                list(&|field, _| format!("{field} {}", expect[field])),
            );
        }
    }
    Ok((operations.len(), wrong))
}

/// What came of an operation, in the fields of the file.
type Found = Vec<(&'static str, Value)>;

async fn shape(
    store: &dyn Store,
    scope: Scope<'_>,
    limits: &LimitSet,
    now: Micros,
    cost: u32,
    ahead: Duration,
) -> Result<Found, Failure> {
    let costs = Costs::Each(&[cost]);
    let reserved = store.reserve(Reserve::new(scope, limits, costs, ahead)).await?;
    let delay = match (reserved.slots.first(), reserved.refused) {
        (Some(slot), _) => slot.since(now),
        (None, Some(refused)) => refused.slot.since(now.plus(ahead)),
        (None, None) => return Err("the store neither granted nor refused".into()),
    };
    Ok(vec![("accepted", json!(!reserved.slots.is_empty())), ("delayMs", json!(ms_up(delay.as_micros())))])
}

async fn police(
    store: &dyn Store,
    scope: Scope<'_>,
    limits: &LimitSet,
    now: Micros,
    cost: u64,
) -> Result<Found, Failure> {
    let fits = u32::try_from(cost).ok().filter(|cost| *cost <= limits.max_cost());
    let costs = Costs::Each(&[fits.unwrap_or(0)]);
    let mut checked = store.check(Check { scope, limits, costs, generation: 0 }).await?;
    let verdict = checked.verdicts.pop().ok_or("the store gave no verdict")?;
    let Decision { allowed, limit, remaining, reset_after, retry_after, .. } = limits.decision(now, verdict);
    let reset_at = ms_up(u128::try_from(now.plus(reset_after).0)?);
    let standing = [("limit", json!(limit)), ("remaining", json!(remaining)), ("resetAt", json!(reset_at))];
    let mut found = vec![("allowed", json!(allowed && fits.is_some()))];
    found.extend(standing);
    if fits.is_some() {
        found.push(("retryAfterMs", json!(ms_up(retry_after.as_micros()))));
    }
    Ok(found)
}

fn ms_up(micros: u128) -> u64 {
    u64::try_from(micros.div_ceil(1000)).unwrap_or(u64::MAX)
}

/// The limit that a strategy is. Its name does not depend on its numbers.
fn limit(kind: &str, options: &Value) -> Result<Limit, Failure> {
    let count = |name: &str| -> Result<u64, Failure> {
        let value = &options[name];
        let whole = value.as_f64().filter(|count| *count >= 0.0 && *count < 9e15 && count.fract() == 0.0);
        Ok(whole.ok_or_else(|| format!("`{name}` is {value}, not a count"))? as u64)
    };
    let small = |name: &str| Ok::<u32, Failure>(u32::try_from(count(name)?)?);
    let span = |name: &str| Ok::<Duration, Failure>(Duration::from_micros(micros(&options[name], name)?));
    Ok(match kind {
        "gcra" => {
            let burst = if options["burst"].is_null() { small("limit")? } else { small("burst")? };
            Limit::gcra("limit", Rate::new(count("limit")?, span("periodMs")?)?, burst)?
        }
        "tokenBucket" => {
            let refill = rate(&options["refillPerSec"], "refillPerSec")?;
            Limit::token_bucket("limit", refill, small("capacity")?)?
        }
        "fixedWindow" => Limit::fixed_window("limit", count("limit")?, span("windowMs")?)?,
        "slidingWindow" => {
            let buckets = if options["buckets"].is_null() { 10 } else { small("buckets")? };
            Limit::sliding_window("limit", count("limit")?, span("windowMs")?, buckets)?
        }
        "slidingWindowLog" => Limit::sliding_log("limit", count("limit")?, span("windowMs")?)?,
        "leakyBucket" => Limit::leaky_bucket("limit", rate(&options["ratePerSec"], "ratePerSec")?, 1)?,
        _ => return Err(format!("no strategy `{kind}`").into()),
    })
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

/// A rate per second, exactly as its decimal digits say; where they are too many to be a rate, such as those
/// of a third, the simplest fraction that is the same double.
fn rate(value: &Value, name: &str) -> Result<Rate, Failure> {
    let wrong = || format!("`{name}` is {value}, not a number above 0");
    let number = value.as_f64().filter(|number| *number > 0.0 && *number < 1e15).ok_or_else(wrong)?;
    let text = value.as_number().ok_or_else(wrong)?.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let as_written = || {
        let count = format!("{whole}{fraction}").parse::<u64>().ok()?;
        let seconds = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        Rate::new(count, Duration::from_secs(seconds)).ok()
    };
    if let Some(rate) = as_written() {
        return Ok(rate);
    }
    let (count, seconds) = simplest(number);
    Ok(Rate::new(count, Duration::from_secs(seconds))?)
}

/// The first convergent of a number's continued fraction that is the same double.
fn simplest(number: f64) -> (u64, u64) {
    let (mut before, mut last) = ((0_u64, 1_u64), (1_u64, 0_u64));
    let mut rest = number;
    loop {
        let whole = rest.floor();
        let next = |before: u64, last: u64| last.checked_mul(whole as u64)?.checked_add(before);
        let (Some(count), Some(seconds)) = (next(before.0, last.0), next(before.1, last.1)) else {
            return last;
        };
        (before, last) = (last, (count, seconds));
        if count as f64 / seconds as f64 == number || rest == whole {
            return last;
        }
        rest = 1.0 / (rest - whole);
    }
}
