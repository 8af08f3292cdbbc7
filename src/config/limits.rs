//! Reads limits from the merged tree: each algorithm, its keys and their defaults.

use std::fmt::Display;
use std::time::Duration;

use super::key::{Absent, Key};
use super::reader::{Found, Reader, Table, inline};
use super::value;
use crate::limit::calendar::Midnight;
use crate::limit::{Algorithm, Calendar, Edges, Limit, LimitError, LimitSet, MAX_LIMITS, calendar};
use crate::rate::{Amount, Period, Rate, RateError};

mod cost;
mod keys;
mod word;

pub use cost::LimitCost;
use keys::{
    ALGORITHM, ANCHOR, ANCHORS, BUCKETS, BURST, CAPACITY, LIMIT_RATE, LIMITS, MARGIN, NAME, PLAN_HINT,
    PLAN_LIMITS, RATE, RATE_HINT, RESET, RESETS, TIME_ZONE, UTC_OFFSET,
};
pub(super) use keys::{ALGORITHMS, KEYS, LANE_LIMITS};

const DAY: Period = Period::Micros(86_400_000_000);

/// A limit, and the place for complaints about its name.
pub(super) struct NamedLimit<'v> {
    pub limit: Limit,
    pub at: Found<'v>,
    /// Its burst or capacity, if it is given.
    pub burst: Option<Found<'v>>,
    /// What jobs cost it, if that is not their paced-cost.
    pub cost: Option<LimitCost>,
    /// Where the file says so.
    pub cost_at: Option<Found<'v>>,
}

/// The limits of a downstream: `rate` first, then `limits`.
pub(super) fn of_downstream<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<Vec<NamedLimit<'v>>> {
    let mut limits = Vec::new();
    reader.declare(table, &RATE, || RATE.string());
    // Either of the two is needed.
    let key = if table.has(LIMITS.name) { Key { absent: Absent::Unset, ..RATE } } else { RATE };
    let rate = match is_without_unit(reader, table) {
        true => None,
        false => reader.parsed(table, &key, value::rate::<Rate>),
    };
    if let Some(at) = table.has(RATE.name).then(|| reader.given(table, RATE.name)).flatten() {
        let limit = rate.and_then(|rate| {
            let limit = Limit::leaky_bucket(format!("{}-0", ALGORITHMS[0]), rate, 1);
            or_wrong_rate(reader, table, limit)
        });
        limits.push(limit.map(|limit| NamedLimit { limit, at, burst: None, cost: None, cost_at: None }));
    }
    if let Some((array, more)) = list(reader, table, (&LIMITS, limits.len(), ""), |_, _| ()) {
        limits.extend(more);
        if limits.is_empty() && Reader::is_empty(&array) {
            reader.wrong(&array, format!("empty; {RATE_HINT}"));
        }
    }
    limits.into_iter().collect()
}

/// The limits of a plan.
pub(super) fn of_plan<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    name: &str,
) -> Option<Vec<NamedLimit<'v>>> {
    let (array, limits) = list(reader, table, (&PLAN_LIMITS, 0, &format!("plan.{name}.")), |_, _| ())?;
    if Reader::is_empty(&array) {
        reader.wrong(&array, format!("empty; {PLAN_HINT}"));
    }
    limits.into_iter().collect()
}

/// The limits of lanes, each with what `per` reads of its table; `None` where there is a mistake.
pub(super) fn of_lanes<'v, T>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    mut per: impl FnMut(&mut Reader<'v>, &Table<'v>) -> Option<T>,
) -> Option<Vec<(NamedLimit<'v>, T)>> {
    let mut pers = vec![];
    let read = list(reader, table, (&LANE_LIMITS, 0, "lane."), |reader, table| pers.push(per(reader, table)));
    if read.is_none() && table.has(LANE_LIMITS.name) {
        return None;
    }
    read.into_iter().flat_map(|(_, limits)| limits).zip(pers).map(|(one, per)| Some((one?, per?))).collect()
}

/// Limits that must all allow a job. A mistake of the set is reported at the first limit that is one too many.
pub(super) fn set<'v>(
    reader: &mut Reader<'v>,
    limits: &[&NamedLimit<'v>],
    police: bool,
    whose: &str,
) -> Option<LimitSet> {
    for (index, given) in limits.iter().enumerate() {
        let name = given.limit.name();
        let own = name.rsplit('.').next().unwrap_or_default();
        let differs = |other: &&&NamedLimit<'v>| other.limit.name() == name && other.limit != given.limit;
        if limits[..index].iter().any(|other| differs(&other)) {
            let problem =
                format!("another limit with other numbers is called `{own}`; give each its own name");
            reader.wrong(&given.at, problem);
            return None;
        }
        if limits[..index].iter().any(|other| other.limit.name() == name && other.cost != given.cost) {
            let problem =
                format!("another limit with another `cost` is called `{own}`; give each its own name");
            reader.wrong(given.cost_at.as_ref().unwrap_or(&given.at), problem);
            return None;
        }
        if index == MAX_LIMITS {
            let problem = format!("{} limits{whose}; use at most {MAX_LIMITS}", limits.len());
            reader.wrong(&given.at, problem);
            return None;
        }
    }
    let set = LimitSet::new(limits.iter().map(|given| given.limit.clone()).collect()).ok()?;
    let set = if police { set.policing() } else { set };
    if set.max_cost() == 0 {
        let unit = |given: &&&NamedLimit<'v>| {
            set.iter()
                .zip(set.unit())
                .any(|(limit, times)| limit.name() == given.limit.name() && limit.max_cost() < times)
        };
        if let Some(given) = limits.iter().rev().find(unit) {
            reader.wrong(&given.at, "the same limit more often than it holds units; give it once");
        }
        return None;
    }
    // All that are wrong are reported.
    let wrong = limits.iter().filter(|given| !cost::fits(reader, given, &set)).count();
    (wrong == 0).then_some(set)
}

type Limits<'v> = Vec<Option<NamedLimit<'v>>>;

/// The array under `key`, and its limits. Names start with `prefix`, ordinals at `first`; `more` reads further keys.
fn list<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    (key, first, prefix): (&Key, usize, &str),
    mut more: impl FnMut(&mut Reader<'v>, &Table<'v>),
) -> Option<(Found<'v>, Limits<'v>)> {
    let mark = reader.entries.len();
    let Some((array, tables)) = reader.tables(table, key, keys::schema) else {
        if !table.has(key.name) {
            reader.absent(table, key);
        }
        return None;
    };
    let (mut limits, mut shown) = (Vec::new(), Vec::new());
    for (at, one) in tables {
        let limit = limit(reader, &one, first + limits.len(), prefix);
        // It is read in any case, or else its keys would be reported as unknown.
        let cost = cost::cost(reader, &one, limit.as_ref().map_or("", Limit::name));
        let cost_at = cost.as_ref().and_then(|cost| reader.given(&one, cost.key()));
        more(reader, &one);
        let at = reader.given(&one, NAME.name).unwrap_or(at);
        let burst = limit.as_ref().map(|limit| match limit.algorithm() {
            Algorithm::TokenBucket(_) => CAPACITY.name,
            _ => BURST.name,
        });
        // It is looked up only where it is a key, or else it would not be reported as unknown.
        let burst = burst.filter(|key| one.has(key) && limit.as_ref().is_some_and(Limit::is_even));
        let burst = burst.and_then(|key| reader.given(&one, key));
        limits.push(limit.map(|limit| NamedLimit { limit, at, burst, cost, cost_at }));
        shown.push(inline(reader.entries.split_off(mark)));
    }
    reader.note(table, key, format!("[{}]", shown.join(", ")), Some(&array));
    Some((array, limits))
}

/// Reads a limit. Its name is the key of its state and never depends on its numbers, so that these may change.
fn limit<'v>(reader: &mut Reader<'v>, table: &Table<'v>, ordinal: usize, prefix: &str) -> Option<Limit> {
    let algorithm = reader.choice(table, &ALGORITHM, "no algorithm", &ALGORITHMS.map(|name| (name, name)));
    let name = reader.parsed(table, &NAME, word::limit_name);
    let Some(algorithm) = algorithm else {
        // Without the algorithm, no key counts as unknown.
        let keys = KEYS.map(|(key, _)| key).into_iter().chain([LIMIT_RATE]);
        keys.for_each(|key| drop(reader.given(table, key.name)));
        return None;
    };
    for (key, algorithms) in KEYS.iter().filter(|(_, algorithms)| !algorithms.contains(&algorithm)) {
        let hint = match (key.name, algorithm) {
            ("burst", "token-bucket") => "a token-bucket has `capacity` instead".to_owned(),
            ("capacity", "leaky-bucket" | "gcra") => format!("a {algorithm} has `burst` instead"),
            _ => format!("it is a key of {}; the algorithm here is {algorithm}", algorithms.join(" and ")),
        };
        reader.hint(table, key.name, hint);
    }
    if table.has(NAME.name) && name.is_none() {
        // The other mistakes are reported too.
        numbers(reader, table, algorithm, String::new());
        return None;
    }
    let name = name.unwrap_or_else(|| format!("{algorithm}-{ordinal}"));
    numbers(reader, table, algorithm, format!("{prefix}{name}"))
}

fn numbers<'v>(reader: &mut Reader<'v>, table: &Table<'v>, algorithm: &str, name: String) -> Option<Limit> {
    let written = as_written(reader, table, algorithm, name);
    let margin = reader.duration(table, &MARGIN);
    let limit = written?;
    let margin = margin?;
    built(reader, table, limit.and_then(|limit| limit.with_margin(margin)))
}

/// The limit without its margin.
fn as_written<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    algorithm: &str,
    name: String,
) -> Option<Result<Limit, LimitError>> {
    Some(match algorithm {
        "gcra" => {
            let (rate, burst) = (rate(reader, table), reader.integer(table, &BURST));
            Limit::gcra(name, rate?, burst?)
        }
        "token-bucket" => {
            let refill = amount(reader, table, word::amount);
            let count = refill.map(Amount::count);
            let capacity = if count.is_some_and(|count| count > u32::MAX.into()) {
                let hint = "the count of the rate is too high for one; write such as capacity = 1000";
                reader.integer(table, &CAPACITY.required(hint))
            } else {
                reader.integer_or(table, &CAPACITY, Some(count.unwrap_or(1)))
            };
            let refill = or_wrong_rate(reader, table, refill?.rate())?;
            Limit::token_bucket(name, refill, capacity?)
        }
        "fixed-window" => {
            let amount = amount(reader, table, word::amount);
            let anchor = reader.choice(table, &ANCHOR, "no anchor", &ANCHORS);
            let (count, period) = parts(amount?);
            match anchor? {
                word::Anchor::Epoch => Limit::fixed_window(name, count, period),
                word::Anchor::FirstHit => Limit::first_hit_window(name, count, period),
            }
        }
        "sliding-window" => {
            let amount = amount(reader, table, word::amount);
            let buckets = reader.integer(table, &BUCKETS);
            let (count, period) = parts(amount?);
            Limit::sliding_window(name, count, period, buckets?)
        }
        "sliding-log" => {
            let (count, period) = parts(amount(reader, table, word::amount)?);
            Limit::sliding_log(name, count, period)
        }
        "quota" => quota(reader, table, name)?,
        _ => {
            let (rate, burst) = (rate(reader, table), reader.integer(table, &BURST));
            Limit::leaky_bucket(name, rate?, burst?)
        }
    })
}

fn quota<'v>(reader: &mut Reader<'v>, table: &Table<'v>, name: String) -> Option<Result<Limit, LimitError>> {
    let amount = amount(reader, table, value::rate::<Amount>);
    let unit = amount.and_then(|amount| match amount.period() {
        DAY => Some(calendar::Unit::Day),
        Period::Week => Some(calendar::Unit::Week),
        Period::Month => Some(calendar::Unit::Month),
        Period::Micros(_) => None,
    });
    let default = if unit.is_some() || amount.is_none() { "calendar" } else { "fixed" };
    let reset = reader.choice(table, &RESET.default(default), "no reset", &RESETS);
    let midnight = midnight(reader, table, reset);
    let (amount, reset, midnight) = (amount?, reset?, midnight?);
    let (count, period) = parts(amount);
    let month = amount.period() == Period::Month;
    let edges = match (reset, unit) {
        (word::Reset::Calendar, Some(unit)) => {
            let calendar = match midnight {
                Midnight::Offset(offset) => Calendar::new(unit, offset),
                Midnight::Zone(zone) => Ok(Calendar::zoned(unit, zone)),
            };
            calendar.map(Edges::Calendar).map_err(LimitError::from)
        }
        (word::Reset::Calendar, None) => {
            let problem =
                "a calendar has no such period; use one day, one week or one month, or reset = \"fixed\"";
            return wrong(reader, table, &["reset", "rate"], problem);
        }
        (word::Reset::Fixed | word::Reset::Rolling, _) if month => {
            let problem = "months are not equally long; use reset = \"calendar\", or days, such as 1000/30d";
            return wrong(reader, table, &["reset", "rate"], problem);
        }
        // Local midnight is earlier than that of UTC by the offset.
        (word::Reset::Fixed, _) => {
            let micros = i64::try_from(period.as_micros()).unwrap_or(i64::MAX);
            let Midnight::Offset(offset) = midnight else { return None };
            Edges::aligned(period, (i64::from(offset) * -60_000_000).rem_euclid(micros))
        }
        (word::Reset::Rolling, _) => Edges::first_hit(period),
    };
    Some(edges.and_then(|edges| Limit::quota(name, count, edges)))
}

/// The midnight of a quota: a time zone's, or that of an offset.
fn midnight<'v>(reader: &mut Reader<'v>, table: &Table<'v>, reset: Option<word::Reset>) -> Option<Midnight> {
    match reset {
        Some(word::Reset::Rolling) => {
            let hint = "a rolling quota begins with the first unit taken";
            reader.hint(table, UTC_OFFSET.name, hint.to_owned());
            reader.hint(table, TIME_ZONE.name, hint.to_owned());
            return Some(Midnight::Offset(0));
        }
        Some(word::Reset::Fixed) => {
            // It is a key of quotas, so that it is read: the schema knows it too.
            if table.has(TIME_ZONE.name) && reader.parsed(table, &TIME_ZONE, word::time_zone).is_some() {
                let problem =
                    "fixed periods are equally long, and days of a time zone are not; use utc_offset";
                reader.wrong_value(table, TIME_ZONE.name, problem);
            }
        }
        Some(word::Reset::Calendar) | None => {
            let zone = reader.parsed(table, &TIME_ZONE, word::time_zone);
            if table.has(TIME_ZONE.name) {
                reader.hint(
                    table,
                    UTC_OFFSET.name,
                    "time_zone has its offset; give one of the two".to_owned(),
                );
                return zone.map(Midnight::Zone);
            }
        }
    }
    reader.parsed(table, &UTC_OFFSET, word::utc_offset).map(Midnight::Offset)
}

fn rate<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<Rate> {
    amount(reader, table, value::rate::<Rate>)
}

/// The `rate` of a limit, read by `parse`.
fn amount<'v, A>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    parse: impl Fn(&str) -> Result<A, RateError>,
) -> Option<A> {
    if is_without_unit(reader, table) {
        return None;
    }
    reader.parsed(table, &LIMIT_RATE, parse)
}

/// Whether `rate` is a number, which is reported: the unit is missing, and not the quotes alone.
fn is_without_unit<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> bool {
    let found = table.has(RATE.name).then(|| reader.given(table, RATE.name)).flatten();
    let Some((found, count)) = found.and_then(|found| found.value.to_i128().map(|count| (found, count)))
    else {
        return false;
    };
    let example = if (1..=1_000_000).contains(&count) { count } else { 50 };
    reader.wrong(
        &found,
        format!("an integer where a rate belongs; write its unit too, such as \"{example}/s\""),
    );
    true
}

/// The count, and the longest length of the period.
const fn parts(amount: Amount) -> (u64, Duration) {
    (amount.count(), amount.period().longest())
}

/// The limit; mistakes of its numbers are reported at the nearest key.
fn built<'v>(reader: &mut Reader<'v>, table: &Table<'v>, limit: Result<Limit, LimitError>) -> Option<Limit> {
    let Err(error) = limit else { return limit.ok() };
    let keys: &[&str] = match error {
        LimitError::BeyondExact { .. } => &["burst", "capacity", "rate"],
        LimitError::Uneven { .. } | LimitError::CoarseBuckets { .. } => &["buckets", "rate"],
        LimitError::Margin { .. } => &["margin"],
        LimitError::Calendar(_) | LimitError::Offset { .. } => &["utc_offset", "rate"],
        _ => &["rate"],
    };
    wrong(reader, table, keys, &error.to_string())
}

/// Returns what was read, or reports the error at the rate.
fn or_wrong_rate<'v, T, E: Display>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    read: Result<T, E>,
) -> Option<T> {
    read.map_or_else(|error| wrong(reader, table, &["rate"], &error.to_string()), Some)
}

/// Reports a mistake at the first of these keys that is present.
fn wrong<'v, T>(reader: &mut Reader<'v>, table: &Table<'v>, keys: &[&str], problem: &str) -> Option<T> {
    let key = keys.iter().find(|key| table.has(key))?;
    reader.wrong_value(table, key, problem);
    None
}
