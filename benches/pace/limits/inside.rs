//! The time that one call takes inside of Redis, as Redis counts it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use paced::limit::{Calendar, Costs, Edges, calendar};
use paced::store::{Asker, Lane, Lanes, Reserve, Scope, TombstoneCall};
use paced::{Limit, LimitSet, RedisOptions, RedisStore, Store as _};
use redis::aio::MultiplexedConnection;

use super::remote::connect;
use super::{RATE, figure};
use crate::figures::{Bound, Figure, Section, Unit, median};
use crate::stage::Stage;
use crate::support::unique;

const BARE: Figure = figure("bare GCRA script, in Redis", Unit::Micros);
const ONE: Row = row("one limit, in Redis", "one limit / bare", 2, None);
const TURNS: Row = row("one limit and a turn, in Redis", "one limit and a turn / bare", 2, None);
const QUOTA: Row =
    row("a pace and a monthly quota, in Redis", "a pace and a monthly quota / bare", 1, Some([35.0, 7.0]));
const LANES: Row =
    row("64 jobs of 64 lanes, in Redis", "64 jobs of 64 lanes / bare", 0, Some([500.0, 100.0]));
const FULL_LANES: Row =
    row("1 024 jobs of 1 024 lanes, in Redis", "1 024 jobs of 1 024 lanes / bare", 0, LONGEST);
const SHARED: Row =
    row("1 024 lanes of one tenant, in Redis", "1 024 lanes of one tenant / bare", 0, LONGEST);
const FULL: Row =
    row("1 024 jobs, the slowest set, in Redis", "1 024 jobs, the slowest set / bare", 0, LONGEST);

const NO_ROOM: Row = row("1 024 lanes without room, in Redis", "1 024 lanes without room / bare", 0, LONGEST);
const CANCELLED: Row = row("1 000 jobs cancelled, in Redis", "1 000 jobs cancelled / bare", 0, LONGEST);

/// The bound is 20 ms: a call must end long before a client stops waiting for it.
const LONGEST: Option<[f64; 2]> = Some([20_000.0, 4000.0]);

/// The measurements of a call: its time, and the ratio to that of the bare script.
#[derive(Clone, Copy)]
struct Row {
    time: Figure,
    ratio: Figure,
    /// The bounds of both. The ratio is also judged on a machine that is slow as a whole: it equals the time's bound
    /// where a bare script takes 5 µs.
    most: Option<[f64; 2]>,
}

const fn row(time: &'static str, ratio: &'static str, decimals: usize, most: Option<[f64; 2]>) -> Row {
    Row { time: figure(time, Unit::Micros), ratio: figure(ratio, Unit::Plain(decimals)), most }
}

/// The horizon, which is far beyond the slots that are asked for.
const AHEAD: Duration = Duration::from_secs(3600);
const CALLS: usize = 2000;
/// The number of calls that are in flight at once. A server that is idle between two calls is slow for a while after.
const TOGETHER: usize = 8;
const MOST: usize = 1024;
const COLUMN: &str = "8 in flight";

/// Each call is measured by itself and then the bare script, with nothing else on the server, which is kept busy.
pub async fn measure(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let mut bare =
        Bare { connection: connect(&stage.redis.url()).await?, key: unique(super::NAME), took: Vec::new() };
    let one = set(vec![pace()?])?;
    note(section, ONE, micros(stage, &mut bare, &one, None, 1, CALLS).await?);
    let asker = Asker {
        turn: None,
        reach: Duration::from_millis(100),
        waiting: 1000,
        own: 1,
        interval: Duration::from_micros(1),
        goes_on: false,
        farthest: Duration::from_secs(300),
    };
    note(section, TURNS, micros(stage, &mut bare, &one, Some(asker), 1, CALLS).await?);
    let quota = set(vec![pace()?, quota()?])?;
    note(section, QUOTA, micros(stage, &mut bare, &quota, None, 1, CALLS).await?);
    let lanes = in_lanes(stage, &mut bare, &one, (64, false), CALLS / 4).await?;
    note(section, LANES, lanes);
    for (row, is_shared) in [(FULL_LANES, false), (SHARED, true)] {
        let full = in_lanes(stage, &mut bare, &one, (MOST, is_shared), 20).await?;
        note(section, row, full);
    }
    let mut slowest = Beside::default();
    for limits in every()? {
        let took = micros(stage, &mut bare, &limits, None, MOST, 20).await?;
        if took.ratio > slowest.ratio {
            slowest = took;
        }
    }
    note(section, FULL, slowest);
    note(section, NO_ROOM, without_room(stage, &mut bare).await?);
    note(section, CANCELLED, cancelled(stage, &mut bare).await?);
    section.note(COLUMN, BARE, median(&bare.took));
    Ok(())
}

/// The µs of a call, and its ratio to the bare script: the median of the runs' ratios.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    micros: f64,
    ratio: f64,
}

impl Beside {
    fn of(runs: &[[f64; 2]]) -> Result<Self, String> {
        let micros = super::over(runs, |run| run[0]).ok_or("nothing was measured")?;
        let ratio = super::over(runs, |run| run[0] / run[1]).ok_or("nothing was measured")?;
        Ok(Self { micros, ratio })
    }
}

fn note(section: &mut Section, row: Row, took: Beside) {
    let [time, ratio] = row.most.map_or([None; 2], |most| most.map(Some));
    for (figure, value, most) in [(row.time, took.micros, time), (row.ratio, took.ratio, ratio)] {
        match most {
            Some(most) => section.judge(COLUMN, figure, value, Bound::AtMost(most)),
            None => section.note(COLUMN, figure, value),
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn set(limits: Vec<Limit>) -> Result<LimitSet, String> {
    LimitSet::new(limits).map_err(text)
}

fn pace() -> Result<Limit, String> {
    let rate = format!("{RATE}/s").parse().map_err(text)?;
    Limit::leaky_bucket("pace", rate, 1).map_err(text)
}

fn quota() -> Result<Limit, String> {
    let month = Calendar::new(calendar::Unit::Month, 0).map_err(text)?;
    Limit::quota("quota", 1_000_000_000, Edges::Calendar(month)).map_err(text)
}

/// Sets of every algorithm, alone and together, whose states grow with the units taken.
fn every() -> Result<Vec<LimitSet>, String> {
    let second = Duration::from_secs(1);
    let window = || Limit::fixed_window("window", 1000, second).map_err(text);
    let buckets = || Limit::sliding_window("buckets", 1000, 120 * second, 120).map_err(text);
    let log = || Limit::sliding_log("log", 10_000, 60 * second).map_err(text);
    let tight = || Limit::sliding_log("tight", 1, second / 100).map_err(text);
    Ok(vec![
        set(vec![window()?])?,
        set(vec![buckets()?])?,
        set(vec![log()?])?,
        set(vec![quota()?])?,
        set(vec![pace()?, window()?, buckets()?, log()?, quota()?, tight()?])?,
    ])
}

/// The median of three runs of this many calls, each with this many jobs.
async fn micros(
    stage: &Stage,
    bare: &mut Bare,
    limits: &LimitSet,
    asker: Option<Asker>,
    jobs: usize,
    calls: usize,
) -> Result<Beside, String> {
    let mut runs = Vec::new();
    for _ in 0..3 {
        let options = RedisOptions::default().with_key_prefix(unique(super::NAME));
        let store = RedisStore::connect(&stage.redis.url(), options).await.map_err(text)?;
        let scope = Scope { downstream: "inside", key: "" };
        let costs = vec![1; jobs];
        let call = Reserve { asker, ..Reserve::new(scope, limits, Costs::Each(&costs), AHEAD) };
        // The first call connects, and loads the scripts.
        store.reserve(call).await.map_err(text)?;
        runs.push([timed(stage, &store, call, calls).await?, bare.timed(stage).await?]);
    }
    Beside::of(&runs)
}

/// The µs of each of this many calls.
async fn timed(stage: &Stage, store: &RedisStore, call: Reserve<'_>, calls: usize) -> Result<f64, String> {
    let before = spent(stage).await?;
    for _ in 0..calls.div_ceil(TOGETHER) {
        try_join_all((0..TOGETHER).map(|_| store.reserve(call))).await.map_err(text)?;
    }
    Ok(per_call(before, spent(stage).await?))
}

/// As [`micros`], for jobs that are each of a lane of its own; all of them may share the limit of one tenant.
async fn in_lanes(
    stage: &Stage,
    bare: &mut Bare,
    limits: &LimitSet,
    (jobs, is_shared): (usize, bool),
    calls: usize,
) -> Result<Beside, String> {
    let leaky =
        |name: &str, rate: &str| Limit::leaky_bucket(name, rate.parse().map_err(text)?, 1).map_err(text);
    let mut mine = vec![leaky("lane", "1000000/s")?];
    mine.extend(is_shared.then(|| leaky("tenant", "100000/s")).transpose()?);
    let lane = set(mine)?;
    let keys: Vec<[String; 2]> = (0..jobs).map(|lane| [format!("lane-{lane}"), "acme".to_owned()]).collect();
    let keys: Vec<[&str; 2]> = keys.iter().map(|keys| keys.each_ref().map(String::as_str)).collect();
    let all: Vec<Lane<'_>> =
        keys.iter().map(|keys| Lane { limits: &lane, keys: &keys[..lane.len()] }).collect();
    let of: Vec<Option<u16>> = (0..jobs).map(|lane| u16::try_from(lane).ok()).collect();
    let lanes = Some(Lanes { all: &all, of: &of, lead: AHEAD, most: u32::MAX });
    let costs = vec![1; jobs];
    let mut runs = Vec::new();
    for _ in 0..3 {
        let options = RedisOptions::default().with_key_prefix(unique(super::NAME));
        let store = RedisStore::connect(&stage.redis.url(), options).await.map_err(text)?;
        let scope = Scope { downstream: "inside", key: "" };
        let call = Reserve { lanes, ..Reserve::new(scope, limits, Costs::Each(&costs), AHEAD) };
        let first = store.reserve(call).await.map_err(text)?;
        if first.slots.len() != jobs && !is_shared {
            return Err(format!("{} of {jobs} jobs of lanes have a slot", first.slots.len()));
        }
        runs.push([timed(stage, &store, call, calls).await?, bare.timed(stage).await?]);
    }
    Beside::of(&runs)
}

/// Calls that take nothing, for jobs of lanes of their own: a log or a window is full. The slower one counts.
async fn without_room(stage: &Stage, bare: &mut Bare) -> Result<Beside, String> {
    let lane = set(vec![pace()?])?;
    let keys: Vec<[String; 1]> = (0..MOST).map(|lane| [format!("lane-{lane}")]).collect();
    let keys: Vec<[&str; 1]> = keys.iter().map(|keys| keys.each_ref().map(String::as_str)).collect();
    let all: Vec<Lane<'_>> = keys.iter().map(|keys| Lane { limits: &lane, keys }).collect();
    let of: Vec<Option<u16>> = (0..MOST).map(|lane| u16::try_from(lane).ok()).collect();
    let lanes = Some(Lanes { all: &all, of: &of, lead: AHEAD, most: u32::MAX });
    let slow = || Limit::leaky_bucket("pace", "100/s".parse().map_err(text)?, 1).map_err(text);
    let scope = Scope { downstream: "inside", key: "" };
    let mut slowest = Beside::default();
    for full in [
        Limit::sliding_log("log", 10_000, AHEAD).map_err(text)?,
        Limit::sliding_window("buckets", 10_000, Duration::from_secs(120), 120).map_err(text)?,
    ] {
        let limits = set(vec![slow()?, full])?;
        let options = RedisOptions::default().with_key_prefix(unique(super::NAME));
        let store = RedisStore::connect(&stage.redis.url(), options).await.map_err(text)?;
        for _ in 0..10 {
            store
                .reserve(Reserve::new(scope, &limits, Costs::Each(&[1; 1000]), AHEAD))
                .await
                .map_err(text)?;
        }
        let costs = vec![5000; MOST];
        let call = Reserve { lanes, ..Reserve::new(scope, &limits, Costs::Each(&costs), Duration::ZERO) };
        let mut runs = Vec::new();
        for _ in 0..3 {
            runs.push([timed(stage, &store, call, 20).await?, bare.timed(stage).await?]);
        }
        let took = Beside::of(&runs)?;
        if took.ratio > slowest.ratio {
            slowest = took;
        }
    }
    Ok(slowest)
}

/// Calls that cancel 1 000 jobs each, where up to 60 000 are cancelled.
async fn cancelled(stage: &Stage, bare: &mut Bare) -> Result<Beside, String> {
    let options = RedisOptions::default().with_key_prefix(unique(super::NAME));
    let store = RedisStore::connect(&stage.redis.url(), options).await.map_err(text)?;
    let mut runs = Vec::new();
    for run in 0..3 {
        let before = spent(stage).await?;
        for call in 0..20 {
            let first = 1000 * (20 * run + call);
            let ids: Vec<Arc<str>> = (first..first + 1000).map(|id| format!("job-{id}").into()).collect();
            let call = TombstoneCall::Cancel { ids: &ids, span: AHEAD };
            store.tombstones("inside", call).await.map_err(text)?;
        }
        runs.push([per_call(before, spent(stage).await?), bare.timed(stage).await?]);
    }
    Beside::of(&runs)
}

/// The bare script, and the µs that it took in each run.
struct Bare {
    connection: MultiplexedConnection,
    key: String,
    took: Vec<f64>,
}

impl Bare {
    /// The µs of a call in one run.
    async fn timed(&mut self, stage: &Stage) -> Result<f64, String> {
        let script = &redis::Script::new(include_str!("../loops/gcra.lua"));
        let (key, connection) = (&self.key, &self.connection);
        let before = spent(stage).await?;
        for _ in 0..CALLS / TOGETHER {
            let call = || {
                let mut connection = connection.clone();
                async move {
                    let mut call = script.key(&**key);
                    call.arg(1).arg(1_000_000_000).arg(1);
                    call.invoke_async::<(i64, i64)>(&mut connection).await
                }
            };
            try_join_all((0..TOGETHER).map(|_| call())).await.map_err(text)?;
        }
        let took = per_call(before, spent(stage).await?);
        self.took.push(took);
        Ok(took)
    }
}

/// The number of script calls so far, and the µs that they took.
async fn spent(stage: &Stage) -> Result<(f64, f64), String> {
    let stats = stage.redis.cli(&["INFO", "commandstats"]).await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let field = |name: &str| {
        let value = line.split([':', ',']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let number = value.and_then(|value| value.trim().parse::<f64>().ok());
        number.ok_or_else(|| format!("INFO commandstats has no `{name}` of EVALSHA"))
    };
    Ok((field("calls")?, field("usec")?))
}

fn per_call(before: (f64, f64), after: (f64, f64)) -> f64 {
    (after.1 - before.1) / (after.0 - before.0).max(1.0)
}
