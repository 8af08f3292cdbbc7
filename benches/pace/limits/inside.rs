//! The time that one call takes inside of Redis, as Redis counts it.

use std::time::Duration;

use futures_util::future::try_join_all;
use paced::limit::{Calendar, Costs, Edges, calendar};
use paced::store::{Asker, Lane, Lanes, Reserve, Scope};
use paced::{Limit, LimitSet, RedisOptions, RedisStore, Store as _};

use super::remote::connect;
use super::{RATE, figure};
use crate::figures::{Bound, Figure, Section, Unit, median};
use crate::stage::Stage;
use crate::support::unique;

const BARE: Figure = figure("bare GCRA script, in Redis", Unit::Micros);
const ONE: Figure = figure("one limit, in Redis", Unit::Micros);
const TURNS: Figure = figure("one limit and a turn, in Redis", Unit::Micros);
const QUOTA: Figure = figure("a pace and a monthly quota, in Redis", Unit::Micros);
const LANES: Figure = figure("64 jobs of 64 lanes, in Redis", Unit::Micros);
const FULL_LANES: Figure = figure("1 024 jobs of 1 024 lanes, in Redis", Unit::Millis);
const SHARED: Figure = figure("1 024 lanes of one tenant, in Redis", Unit::Millis);
const FULL: Figure = figure("1 024 jobs, the slowest set, in Redis", Unit::Millis);

/// As a downstream has them: far ahead of what is asked for.
const AHEAD: Duration = Duration::from_secs(3600);
const CALLS: usize = 2000;
/// The number of calls that are in flight at once. A server that is idle between two calls is slow for a while after.
const TOGETHER: usize = 8;
const MOST: usize = 1024;

/// Each is measured by itself, on one connection with nothing else on the server, which is kept awake.
pub async fn measure(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let column = "8 in flight";
    section.note(column, BARE, bare(stage).await?);
    let one = set(vec![pace()?])?;
    section.note(column, ONE, micros(stage, &one, None, 1, CALLS).await?);
    let asker = Asker {
        turn: None,
        reach: Duration::from_millis(100),
        waiting: 1000,
        own: 1,
        interval: Duration::from_micros(1),
        goes_on: false,
    };
    section.note(column, TURNS, micros(stage, &one, Some(asker), 1, CALLS).await?);
    let quota = set(vec![pace()?, quota()?])?;
    section.judge(column, QUOTA, micros(stage, &quota, None, 1, CALLS).await?, Bound::AtMost(35.0));
    let lanes = in_lanes(stage, &one, (64, false), CALLS / 4).await?;
    section.judge(column, LANES, lanes, Bound::AtMost(500.0));
    for (figure, is_shared) in [(FULL_LANES, false), (SHARED, true)] {
        let full = in_lanes(stage, &one, (MOST, is_shared), 20).await?.map(|micros| micros / 1000.0);
        section.judge(column, figure, full, Bound::AtMost(20.0));
    }
    let mut slowest = Some(0.0);
    for limits in every()? {
        let took = micros(stage, &limits, None, MOST, 20).await?;
        slowest = slowest.zip(took).map(|(slowest, took): (f64, f64)| slowest.max(took));
    }
    section.judge(column, FULL, slowest.map(|micros| micros / 1000.0), Bound::AtMost(20.0));
    Ok(())
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn set(limits: Vec<Limit>) -> Result<LimitSet, String> {
    LimitSet::new(limits).map_err(said)
}

fn pace() -> Result<Limit, String> {
    let rate = format!("{RATE}/s").parse().map_err(said)?;
    Limit::leaky_bucket("pace", rate, 1).map_err(said)
}

fn quota() -> Result<Limit, String> {
    let month = Calendar::new(calendar::Unit::Month, 0).map_err(said)?;
    Limit::quota("quota", 1_000_000_000, Edges::Calendar(month)).map_err(said)
}

/// Sets of every algorithm, alone and together, whose states grow with what is taken.
fn every() -> Result<Vec<LimitSet>, String> {
    let second = Duration::from_secs(1);
    let window = || Limit::fixed_window("window", 1000, second).map_err(said);
    let buckets = || Limit::sliding_window("buckets", 1000, 120 * second, 120).map_err(said);
    let log = || Limit::sliding_log("log", 10_000, 60 * second).map_err(said);
    let tight = || Limit::sliding_log("tight", 1, second / 100).map_err(said);
    Ok(vec![
        set(vec![window()?])?,
        set(vec![buckets()?])?,
        set(vec![log()?])?,
        set(vec![quota()?])?,
        set(vec![pace()?, window()?, buckets()?, log()?, quota()?, tight()?])?,
    ])
}

/// The median of three runs of so many calls, each with so many jobs.
async fn micros(
    stage: &Stage,
    limits: &LimitSet,
    asker: Option<Asker>,
    jobs: usize,
    calls: usize,
) -> Result<Option<f64>, String> {
    let mut runs = Vec::new();
    for _ in 0..3 {
        let options = RedisOptions { key_prefix: unique(super::NAME), ..RedisOptions::default() };
        let store = RedisStore::connect(&stage.redis.url(), options).await.map_err(said)?;
        let scope = Scope { downstream: "inside", key: "" };
        let costs = vec![1; jobs];
        let call = Reserve { asker, ..Reserve::new(scope, limits, Costs::Each(&costs), AHEAD) };
        // It connects, and loads the scripts.
        store.reserve(call).await.map_err(said)?;
        runs.push(timed(stage, &store, call, calls).await?);
    }
    Ok(median(&runs))
}

/// The µs that each of so many calls takes.
async fn timed(stage: &Stage, store: &RedisStore, call: Reserve<'_>, calls: usize) -> Result<f64, String> {
    let before = spent(stage).await?;
    for _ in 0..calls.div_ceil(TOGETHER) {
        try_join_all((0..TOGETHER).map(|_| store.reserve(call))).await.map_err(said)?;
    }
    Ok(per_call(before, spent(stage).await?))
}

/// As [`micros`], for jobs each of a lane of its own; all of them may share the limit of one tenant.
async fn in_lanes(
    stage: &Stage,
    limits: &LimitSet,
    (jobs, is_shared): (usize, bool),
    calls: usize,
) -> Result<Option<f64>, String> {
    let leaky =
        |name: &str, rate: &str| Limit::leaky_bucket(name, rate.parse().map_err(said)?, 1).map_err(said);
    let mut mine = vec![leaky("lane", "1000000/s")?];
    mine.extend(is_shared.then(|| leaky("tenant", "100000/s")).transpose()?);
    let lane = set(mine)?;
    let keys: Vec<[String; 2]> = (0..jobs).map(|lane| [format!("lane-{lane}"), "acme".to_owned()]).collect();
    let keys: Vec<[&str; 2]> = keys.iter().map(|keys| keys.each_ref().map(String::as_str)).collect();
    let all: Vec<Lane<'_>> =
        keys.iter().map(|keys| Lane { limits: &lane, keys: &keys[..lane.len()] }).collect();
    let of: Vec<Option<u16>> = (0..jobs).map(|lane| u16::try_from(lane).ok()).collect();
    let lanes = Some(Lanes { all: &all, of: &of, lead: AHEAD });
    let costs = vec![1; jobs];
    let mut runs = Vec::new();
    for _ in 0..3 {
        let options = RedisOptions { key_prefix: unique(super::NAME), ..RedisOptions::default() };
        let store = RedisStore::connect(&stage.redis.url(), options).await.map_err(said)?;
        let scope = Scope { downstream: "inside", key: "" };
        let call = Reserve { lanes, ..Reserve::new(scope, limits, Costs::Each(&costs), AHEAD) };
        let first = store.reserve(call).await.map_err(said)?;
        if first.slots.len() != jobs && !is_shared {
            return Err(format!("{} of {jobs} jobs of lanes have a slot", first.slots.len()));
        }
        runs.push(timed(stage, &store, call, calls).await?);
    }
    Ok(median(&runs))
}

async fn bare(stage: &Stage) -> Result<Option<f64>, String> {
    let connection = connect(&stage.redis.url()).await?;
    let script = &redis::Script::new(include_str!("../loops/gcra.lua"));
    let key = &unique(super::NAME);
    let mut runs = Vec::new();
    for _ in 0..3 {
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
            try_join_all((0..TOGETHER).map(|_| call())).await.map_err(said)?;
        }
        runs.push(per_call(before, spent(stage).await?));
    }
    Ok(median(&runs))
}

/// Calls of scripts so far, and the µs that they took.
async fn spent(stage: &Stage) -> Result<(f64, f64), String> {
    let stats = stage.redis.cli(&["INFO", "commandstats"]).await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let field = |name: &str| {
        let value = line.split([':', ',']).find_map(|pair| pair.strip_prefix(name))?;
        value.strip_prefix('=')?.trim().parse::<f64>().ok()
    };
    Ok((field("calls").unwrap_or(0.0), field("usec").unwrap_or(0.0)))
}

fn per_call(before: (f64, f64), after: (f64, f64)) -> f64 {
    (after.1 - before.1) / (after.0 - before.0).max(1.0)
}
