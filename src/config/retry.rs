//! Reads `[downstreams.NAME.retry]`: which jobs are tried again, when, and how often.

use std::sync::Arc;
use std::time::Duration;

use figment::value::{Num, Value};

use super::document::quote;
use super::error::{ConfigError, Kind};
use super::reader::{Absent, Found, IN_QUOTES, Reader, Table};
use super::value;
use crate::dispatch::{Backoff, RefusalStatuses, RetryPolicy, StatusRetry, Statuses};
use crate::sink::BodyMatch;

/// What `[downstreams.NAME.retry]` says.
pub(super) struct Retry {
    pub policy: RetryPolicy,
    pub max_pause: Duration,
    pub throttled_when: Option<BodyMatch>,
}

/// The range of `max_attempts`.
const ATTEMPTS: std::ops::RangeInclusive<u64> = 1..=1000;

pub(super) fn retry<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<Retry> {
    let table = reader.table(downstream, "retry");
    let max_attempts = reader.integer(&table, "max_attempts", 8, 1..=1000);
    let max_throttled = reader.whole(&table, "max_throttled", 1..=u32::MAX.into());
    let max_age = |text: &str| value::duration_within(text, "1s", "365d");
    let max_age = reader.parsed(&table, "max_age", Absent::Unset, max_age);
    let statuses = tried_again(reader, &table);
    let min_backoff = reader.parsed(&table, "min_backoff", Absent::Default("1s"), value::duration);
    let max_backoff = reader.parsed(&table, "max_backoff", Absent::Default("5m"), value::duration);
    let max_pause = reader.parsed(&table, "max_pause", Absent::Default("5m"), value::duration);
    let throttled_when = when(reader, &table);
    let (min, max) = (min_backoff?, max_backoff?);
    if min > max {
        reject_backoffs(reader, &table, Backoff { min, max });
        return None;
    }
    let (statuses, on_unauthorized) = statuses?;
    let policy = RetryPolicy {
        max_attempts: max_attempts?,
        max_throttled: max_throttled.and_then(|most| u32::try_from(most).ok()),
        max_age,
        outlast: true,
        statuses,
        on_unauthorized,
        backoff: Backoff { min, max },
        overrides: Arc::default(),
    };
    let overrides = overrides(reader, &table, &policy)?;
    Some(Retry { policy: RetryPolicy { overrides, ..policy }, max_pause: max_pause?, throttled_when })
}

/// Reads the answers after which a job is tried again, and those that may mean that the credentials are refused.
fn tried_again<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<(Statuses, RefusalStatuses)> {
    let on = statuses(reader, table, "on", "[408, 425, \"5xx\"]");
    let never = statuses(reader, table, "never", "[]");
    let unauthorized = on_unauthorized(reader, table)?;
    let (on, never) = (on?, never?);
    for (key, given) in [("on", on), ("never", never)] {
        let both = |status: &u16| unauthorized.contains(*status);
        let Some(status) = given.and_then(|given| (300..600).find(|s| given.contains(*s) && both(s))) else {
            continue;
        };
        if let Some(found) = reader.given(table, key) {
            let problem =
                format!("{status} is in on_unauthorized too; take it out, or set on_unauthorized without it");
            reader.wrong(&found, problem);
        }
        return None;
    }
    // A downstream that throttles takes the job later, whatever its other answers mean.
    let on = on.map_or_else(Statuses::temporary, |on| on.with(429, 429));
    Some((on.without(never.unwrap_or(Statuses::NONE)), unauthorized))
}

/// The statuses of an array such as `[500, "502-504", "5xx"]`; `Some(None)` where it is not given, which is shown as
/// `default`.
fn statuses<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    key: &str,
    default: &str,
) -> Option<Option<Statuses>> {
    let Some(found) = reader.find(table, key) else {
        reader.note(table, key, default.to_owned(), None);
        return Some(None);
    };
    let (mut all, mut shown) = (Some(Statuses::NONE), Vec::new());
    for item in reader.items(&found, "an array of statuses", "[500, \"502-504\"]")? {
        let text = match item.value {
            Value::Num(_, number) => integer(number).map(|number| number.to_string()).unwrap_or_default(),
            _ => reader.text(&item, IN_QUOTES)?,
        };
        match failures(&text) {
            Ok(statuses) => all = all.map(|all| all.and(statuses)),
            Err(problem) => {
                reader.wrong(&item, problem);
                all = None;
            }
        }
        shown.push(if matches!(item.value, Value::Num(..)) { text } else { quote(&text) });
    }
    reader.note(table, key, format!("[{}]", shown.join(", ")), Some(&found));
    Some(Some(all?))
}

/// Parses statuses that are no success.
fn failures(text: &str) -> Result<Statuses, String> {
    let statuses: Statuses = text.parse()?;
    match statuses.common(&Statuses::NONE.with(100, 299)) {
        Some(status) => Err(format!("{status} is no failure; use statuses from 300 to 599")),
        None => Ok(statuses),
    }
}

/// Reads the statuses that may mean that the credentials are refused.
fn on_unauthorized<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<RefusalStatuses> {
    let known = RefusalStatuses::KNOWN;
    let is_known = |number: u64| match u16::try_from(number) {
        Ok(status) if known.contains(&status) => Ok(status),
        _ => Err(format!("no status that refuses credentials; use any of {known:?}")),
    };
    match reader.numbers(table, "on_unauthorized", "[401, 403]", "[401]", is_known)? {
        Some(statuses) => RefusalStatuses::new(&statuses),
        None => Some(RefusalStatuses::default()),
    }
}

/// Reads `[retry.status.503]` and the like: what differs from the policy after such an answer.
fn overrides<'v>(
    reader: &mut Reader<'v>,
    retry: &Table<'v>,
    policy: &RetryPolicy,
) -> Option<Arc<[StatusRetry]>> {
    let table = reader.table(retry, "status");
    let (mut all, mut is_right): (Vec<StatusRetry>, bool) = (Vec::new(), true);
    for key in table.keys() {
        let statuses = match failures(&key) {
            Ok(statuses) => statuses,
            Err(problem) => {
                reader.wrong_key(&table, &key, &problem);
                is_right = false;
                Statuses::NONE
            }
        };
        if let Some(status) = all.iter().find_map(|other| other.statuses.common(&statuses)) {
            reader.wrong_key(&table, &key, &format!("{status} is in another key too; let them not overlap"));
            is_right = false;
        }
        let own = reader.table(&table, &key);
        let max_attempts = reader.whole(&own, "max_attempts", ATTEMPTS);
        let min = reader.parsed(&own, "min_backoff", Absent::Unset, value::duration);
        let max = reader.parsed(&own, "max_backoff", Absent::Unset, value::duration);
        let backoff =
            Backoff { min: min.unwrap_or(policy.backoff.min), max: max.unwrap_or(policy.backoff.max) };
        if backoff.min > backoff.max {
            reject_backoffs(reader, &own, backoff);
            is_right = false;
        }
        if let Some(problem) = useless(&statuses, policy, own.has("max_attempts")) {
            reader.wrong_key(&table, &key, &problem);
            is_right = false;
        }
        let max_attempts = max_attempts.and_then(|most| u32::try_from(most).ok());
        let max_attempts = max_attempts.unwrap_or(policy.max_attempts);
        all.push(StatusRetry { statuses, max_attempts, backoff });
    }
    is_right.then(|| all.into())
}

/// The reason why an override would have no effect, if there is one.
fn useless(statuses: &Statuses, policy: &RetryPolicy, has_attempts: bool) -> Option<String> {
    if let Some(status) = (300..600).find(|s| statuses.contains(*s) && !policy.statuses.contains(*s)) {
        return Some(format!("a job that is answered {status} is not tried again; add it to `retry.on`"));
    }
    let throttles = has_attempts && statuses.contains(429);
    throttles.then(|| "429 throttles, which max_attempts does not count; use retry.max_throttled".to_owned())
}

/// Reads `when`: the answer of an API that throttles in the body of a success.
fn when<'v>(reader: &mut Reader<'v>, retry: &Table<'v>) -> Option<BodyMatch> {
    let table = reader.table(retry, "when");
    if !table.is_there() {
        return None;
    }
    let hint = Absent::Mistake("say which value, such as pointer = \"/error/code\"");
    let pointer = reader.parsed(&table, "pointer", hint, |text| {
        if BodyMatch::is_pointer(text) {
            return Ok(text.to_owned());
        }
        Err("no JSON pointer; write one such as \"/error/code\"")
    });
    let Some(found) = reader.find(&table, "equals") else {
        reader.missing(&table, "equals", "say which value, such as equals = \"rate_limited\"");
        return None;
    };
    let equals = match found.value {
        Value::String(_, text) => Some(serde_json::Value::from(text.as_str())),
        Value::Char(_, c) => Some(serde_json::Value::from(c.to_string())),
        Value::Bool(_, truth) => Some(serde_json::Value::from(*truth)),
        Value::Num(_, number) => integer(number)
            .and_then(|number| i64::try_from(number).ok())
            .map(serde_json::Value::from)
            .or_else(|| number.to_f64().filter(|number| number.is_finite()).map(serde_json::Value::from)),
        _ => None,
    };
    match &equals {
        Some(equals) => reader.note(&table, "equals", equals.to_string(), Some(&found)),
        None => reader.wrong_type(&found, "a string, a number or a boolean", "equals = \"rate_limited\""),
    }
    Some(BodyMatch::new(&pointer?, equals?))
}

fn integer(number: &Num) -> Option<i128> {
    number.to_i128().or_else(|| number.to_u128().and_then(|number| number.try_into().ok()))
}

/// Points at the backoff that was given, or at the shortest if both were.
fn reject_backoffs<'v>(reader: &mut Reader<'v>, table: &Table<'v>, backoff: Backoff) {
    let Backoff { min, max } = backoff;
    let given: Option<Found<'v>> = reader.given(table, "min_backoff");
    let (found, problem) = match given {
        Some(found) => (found, format!("over max_backoff ({max:?}); use at most that, or raise max_backoff")),
        None => match reader.given(table, "max_backoff") {
            Some(found) => {
                (found, format!("under min_backoff ({min:?}); use at least that, or lower min_backoff"))
            }
            None => return,
        },
    };
    let error = ConfigError::new(reader.place(&found), found.path, problem);
    reader.errors.push(error.of(Kind::Absence));
}
