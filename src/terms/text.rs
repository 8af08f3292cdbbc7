//! The JSON form of terms. A version that is written is read by every program that knows it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Origin, Replica, Terms, TermsError};
use crate::limit::calendar::{Midnight, Zone};
use crate::limit::{Algorithm, Calendar, Combine, Edges, Limit, LimitError, LimitSet, calendar};
use crate::rate::Rate;
use crate::time::Micros;
use overrides::{Over, ValuesText, over, over_text, values, values_text};

mod overrides;

/// The newest version, in which weights and pauses of values may be set.
pub(super) const VERSION: u64 = 4;

/// The version in which limits have margins, and quotas time zones.
const WITH_MARGINS: u64 = 3;

/// The version in which terms say where they come from. Terms are written in the lowest version that has what they say, so
/// that replicas of an older paced read them, and texts stay the same.
const WITH_ORIGINS: u64 = 2;

#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    limits: Set,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    plans: BTreeMap<String, Set>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    overrides: BTreeMap<String, Over>,
    #[serde(default, skip_serializing_if = "ValuesText::is_empty")]
    values: ValuesText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loaded: Option<OriginText>,
    /// The limits by the origin of their numbers, which most of them share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    since: Vec<Since>,
}

/// An [`Origin`]. People are shown it and nothing is decided by it, so that a later version may say more.
#[derive(Serialize, Deserialize)]
struct OriginText {
    at: i64,
    replica: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host: String,
}

/// The limits whose numbers have one origin.
#[derive(Serialize, Deserialize)]
struct Since {
    origin: OriginText,
    limits: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    combine: How,
    limits: Vec<One>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum How {
    All,
    Any,
    OneOf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    name: String,
    algorithm: String,
    /// The numbers of the algorithm, without the margin: one of the structs below.
    numbers: Value,
    /// µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    margin: Option<u64>,
}

/// The numbers of the GCRA family. Periods are in µs here and below.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pace {
    count: u64,
    period: u64,
    /// The burst, or the capacity of a token bucket.
    burst: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Windows {
    count: u64,
    edges: Ends,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Ends {
    Aligned { period: u64, offset: i64 },
    FirstHit { period: u64 },
    Calendar { unit: Unit, offset_minutes: i16 },
    Zone { unit: Unit, name: String },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Unit {
    Day,
    Week,
    Month,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sliding {
    count: u64,
    period: u64,
    buckets: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Logged {
    count: u64,
    period: u64,
}

pub(super) fn write(terms: &Terms) -> String {
    let has_origins = terms.loaded.is_some()
        || !terms.since.is_empty()
        || terms.overrides.values().any(|one| one.by.is_some());
    let version = match (terms.all().into_iter().any(is_new), has_origins) {
        _ if !terms.values.is_empty() => VERSION,
        (true, _) => WITH_MARGINS,
        (false, true) => WITH_ORIGINS,
        (false, false) => 1,
    };
    let text = Text {
        version,
        revision: terms.revision,
        limits: set(&terms.limits),
        plans: terms.plans.iter().map(|(name, limits)| (name.clone(), set(limits))).collect(),
        overrides: terms.overrides.iter().map(|(name, one)| (name.clone(), over_text(one))).collect(),
        values: values_text(&terms.values),
        loaded: terms.loaded.as_ref().map(origin_text),
        since: since(&terms.since),
    };
    // Maps have text keys and numbers are finite, so this is always valid JSON.
    serde_json::to_string(&text).unwrap_or_default()
}

/// Whether the limit has what only versions from [`WITH_MARGINS`] on say.
fn is_new(limit: &Limit) -> bool {
    let is_zoned = match limit.algorithm() {
        Algorithm::Quota(window) => {
            matches!(window.edges(), Edges::Calendar(calendar) if matches!(calendar.midnight(), Midnight::Zone(_)))
        }
        _ => false,
    };
    is_zoned || !limit.margin().is_zero()
}

fn origin_text(Origin { at, replica: Replica { id, host } }: &Origin) -> OriginText {
    OriginText { at: at.0, replica: id.clone(), host: host.clone() }
}

fn since(origins: &BTreeMap<String, Origin>) -> Vec<Since> {
    let mut limits: BTreeMap<&Origin, Vec<String>> = BTreeMap::new();
    for (name, origin) in origins {
        limits.entry(origin).or_default().push(name.clone());
    }
    limits.into_iter().map(|(origin, limits)| Since { origin: origin_text(origin), limits }).collect()
}

fn set(limits: &LimitSet) -> Set {
    let combine = match limits.combine() {
        Combine::All => How::All,
        Combine::Any => How::Any,
        Combine::OneOf => How::OneOf,
    };
    Set { combine, limits: limits.listed().map(one).collect() }
}

/// The name of a limit's algorithm, as configurations have it.
pub const fn algorithm(limit: &Limit) -> &'static str {
    match limit.algorithm() {
        Algorithm::LeakyBucket(_) => "leaky-bucket",
        Algorithm::Gcra(_) => "gcra",
        Algorithm::TokenBucket(_) => "token-bucket",
        Algorithm::FixedWindow(_) => "fixed-window",
        Algorithm::SlidingWindow(_) => "sliding-window",
        Algorithm::SlidingLog(_) => "sliding-log",
        Algorithm::Quota(_) => "quota",
    }
}

fn one(limit: &Limit) -> One {
    let numbers = match limit.without_margin() {
        Algorithm::LeakyBucket(bucket) => pace(bucket.rate(), bucket.burst()),
        Algorithm::Gcra(gcra) => pace(gcra.rate(), gcra.burst()),
        Algorithm::TokenBucket(bucket) => pace(bucket.refill(), bucket.capacity()),
        Algorithm::FixedWindow(window) | Algorithm::Quota(window) => windows(window.count(), window.edges()),
        Algorithm::SlidingWindow(window) => {
            let (count, buckets) = (window.count(), window.buckets());
            let period = window.width().unsigned_abs() * u64::from(buckets);
            json(&Sliding { count, period, buckets })
        }
        Algorithm::SlidingLog(log) => {
            json(&Logged { count: log.count(), period: log.period().unsigned_abs() })
        }
    };
    let margin = limit.margin_micros();
    One { name: limit.name().to_owned(), algorithm: algorithm(limit).to_owned(), numbers, margin }
}

fn pace(rate: Rate, burst: u32) -> Value {
    let (count, period) = rate.written();
    json(&Pace { count, period: u64::try_from(period.as_micros()).unwrap_or(u64::MAX), burst })
}

fn windows(count: u64, edges: Edges) -> Value {
    let edges = match edges {
        Edges::Aligned { period, offset } => Ends::Aligned { period: period.unsigned_abs(), offset },
        Edges::FirstHit { period } => Ends::FirstHit { period: period.unsigned_abs() },
        Edges::Calendar(calendar) => {
            let unit = match calendar.unit() {
                calendar::Unit::Day => Unit::Day,
                calendar::Unit::Week => Unit::Week,
                calendar::Unit::Month => Unit::Month,
            };
            match calendar.midnight() {
                Midnight::Offset(offset_minutes) => Ends::Calendar { unit, offset_minutes },
                Midnight::Zone(zone) => Ends::Zone { unit, name: zone.name().to_owned() },
            }
        }
    };
    json(&Windows { count, edges })
}

fn json(numbers: &impl Serialize) -> Value {
    // As in `write`, this cannot fail.
    serde_json::to_value(numbers).unwrap_or_default()
}

/// The version of a text; `None` if it has none that can be read.
pub(super) fn version(text: &str) -> Option<u64> {
    serde_json::from_str(text).ok().map(|Versioned { version }| version)
}

pub(super) fn read(text: &str) -> Result<Terms, TermsError> {
    let Versioned { version } = serde_json::from_str(text).map_err(malformed)?;
    if !(1..=VERSION).contains(&version) {
        return Err(TermsError::Version { found: version, known: VERSION });
    }
    let text: Text = serde_json::from_str(text).map_err(malformed)?;
    let Text { revision, limits, plans, overrides, values: of_values, loaded, since, .. } = text;
    let plans = plans.into_iter().map(|(name, limits)| Ok((name, as_set(limits)?)));
    let overrides = overrides.into_iter().map(|(name, one)| Ok((name, over(one)?)));
    Ok(Terms {
        revision,
        limits: as_set(limits)?,
        plans: plans.collect::<Result<_, TermsError>>()?,
        overrides: overrides.collect::<Result<_, TermsError>>()?,
        values: values(of_values),
        loaded: loaded.map(origin),
        since: since.into_iter().flat_map(origins).collect(),
    })
}

fn malformed(problem: impl ToString) -> TermsError {
    TermsError::Malformed(problem.to_string())
}

fn origin(OriginText { at, replica: id, host }: OriginText) -> Origin {
    Origin { at: Micros(at), replica: Replica { id, host } }
}

fn origins(Since { origin: text, limits }: Since) -> impl Iterator<Item = (String, Origin)> {
    let origin = origin(text);
    limits.into_iter().map(move |name| (name, origin.clone()))
}

fn as_set(set: Set) -> Result<LimitSet, TermsError> {
    let combine = match set.combine {
        How::All => Combine::All,
        How::Any => Combine::Any,
        How::OneOf => Combine::OneOf,
    };
    let limits = set.limits.into_iter().map(as_limit).collect::<Result<_, _>>()?;
    LimitSet::combined(combine, limits).map_err(malformed)
}

fn as_limit(One { name, algorithm, numbers, margin }: One) -> Result<Limit, TermsError> {
    let limit = match algorithm.as_str() {
        "leaky-bucket" => {
            let (rate, burst) = as_pace(numbers)?;
            Limit::leaky_bucket(name, rate, burst)
        }
        "gcra" => {
            let (rate, burst) = as_pace(numbers)?;
            Limit::gcra(name, rate, burst)
        }
        "token-bucket" => {
            let (rate, capacity) = as_pace(numbers)?;
            Limit::token_bucket(name, rate, capacity)
        }
        "fixed-window" => {
            let Windows { count, edges } = of(numbers)?;
            match edges {
                Ends::Aligned { period, offset: 0 } => Limit::fixed_window(name, count, micros(period)),
                Ends::FirstHit { period } => Limit::first_hit_window(name, count, micros(period)),
                _ => return Err(malformed("edges that a fixed window does not have")),
            }
        }
        "quota" => {
            let Windows { count, edges } = of(numbers)?;
            as_edges(edges).and_then(|edges| Limit::quota(name, count, edges))
        }
        "sliding-window" => {
            let Sliding { count, period, buckets } = of(numbers)?;
            Limit::sliding_window(name, count, micros(period), buckets)
        }
        "sliding-log" => {
            let Logged { count, period } = of(numbers)?;
            Limit::sliding_log(name, count, micros(period))
        }
        _ => return Err(TermsError::Algorithm { limit: name, algorithm }),
    };
    limit.and_then(|limit| limit.with_margin(micros(margin.unwrap_or(0)))).map_err(malformed)
}

fn of<T: DeserializeOwned>(numbers: Value) -> Result<T, TermsError> {
    serde_json::from_value(numbers).map_err(malformed)
}

fn as_pace(numbers: Value) -> Result<(Rate, u32), TermsError> {
    let Pace { count, period, burst } = of(numbers)?;
    Ok((Rate::new(count, micros(period)).map_err(malformed)?, burst))
}

const fn micros(period: u64) -> Duration {
    Duration::from_micros(period)
}

fn as_edges(edges: Ends) -> Result<Edges, LimitError> {
    Ok(match edges {
        Ends::Aligned { period, offset } => Edges::aligned(micros(period), offset)?,
        Ends::FirstHit { period } => Edges::first_hit(micros(period))?,
        Ends::Calendar { unit, offset_minutes } => {
            Edges::Calendar(Calendar::new(as_unit(unit), offset_minutes)?)
        }
        Ends::Zone { unit, name } => Edges::Calendar(Calendar::zoned(as_unit(unit), Zone::named(&name)?)),
    })
}

const fn as_unit(unit: Unit) -> calendar::Unit {
    match unit {
        Unit::Day => calendar::Unit::Day,
        Unit::Week => calendar::Unit::Week,
        Unit::Month => calendar::Unit::Month,
    }
}
