//! Reads `[downstreams.NAME.retry]`: which jobs are tried again, when, and how often.

use std::sync::Arc;

use figment::value::Value;
use serde_json::json;

use super::answers::{self, answers};
use super::error::{ConfigError, Kind};
use super::key::{Key, keys};
use super::reader::{Found, Reader, Table, integer_of};
use crate::dispatch::{Backoff, RetryPolicy, StatusRetry};
use crate::sink::{AnswerPolicy, AnswerRule, Meaning, Statuses};

/// Statuses that are no success: one, a range or a class.
const STATUSES: &str = "^([345]xx|[345][0-9][0-9](-[345][0-9][0-9])?)$";

keys! {
    /// Which jobs are tried again, for how long, and what costs an attempt: docs/retries.md.
    RETRY = "retry".default("{}");
    /// Attempts in all, the first included.
    MAX_ATTEMPTS = "max_attempts".default("8").integers(1, 1000).reload();
    /// How often the API may throttle a job (docs/retries.md); max_attempts does not count that. The last time makes
    /// it a dead letter. Unset: until its deadline. A request that never reached the API (a refused connection, a name that
    /// is not found) is not counted, and is tried again.
    MAX_THROTTLED = "max_throttled".integers(1, u32::MAX as u64).example("20").reload();
    /// The age from which a job is not tried again: since its timestamp, or else since a replica first took it.
    MAX_AGE = "max_age".within("1s", "365d").example("1d").reload();
    /// The answers after which a job is tried again (docs/retries.md): statuses, ranges and classes from 300 to 599. So is
    /// a job after an answer that throttles. After any other answer it is a dead letter at once.
    ON = "on".default("[408, 425, \"5xx\"]").example("[500, \"502-504\"]").reload();
    /// Exceptions: after these a job is a dead letter at once, also if they throttle: such as [429, "501", "505-511"].
    NEVER = "never".default("[]").example("[500, \"502-504\"]").reload();
    /// The statuses (any of 401, 403, 407) that may mean that paced's own credentials are refused. A job with such an
    /// answer is a dead letter if others succeed. After 3 jobs in a row with such answers, the replica reads the files of headers,
    /// base URL and proxy again, takes no more jobs, and tries one at a time. This uses up no attempts.
    ON_UNAUTHORIZED = "on_unauthorized".default("[401]").example("[401, 403]").reload();
    /// The shortest wait before another attempt. A wait is random, from this to a bound that doubles each time up to
    /// max_backoff.
    MIN_BACKOFF = "min_backoff".default("1s").reload();
    /// The longest wait before another attempt.
    MAX_BACKOFF = "max_backoff".default("5m").reload();
    /// The longest that an answer of the API (Retry-After, a reset) may pause the downstream, or hold up one job.
    MAX_PAUSE = "max_pause".default("5m").reload();
    /// The longest wait between two probes if the API throttles and does not say for how long: all replicas together send
    /// one job at a time, after 1 s, 2 s, 4 s and so on, until one succeeds.
    MAX_COOLDOWN = "max_cooldown".default("30s").within("1s", "1h").reload();
    /// Whether a success that leaves no more requests (X-RateLimit-Remaining: 0 and similar fields), and names a reset,
    /// pauses the downstream until then.
    HEED_REMAINING = "heed_remaining".default("false").reload();
}

keys! {
    /// Other values for some answers, by status, range or class. A key that is left out has its value in `retry`.
    STATUS = "status".matches(STATUSES);
    /// What differs after these answers; without a key it is as in `retry`.
    ONE_STATUS = "S".default("{}");
}

const OWN_MAX_ATTEMPTS: Key<'static> = MAX_ATTEMPTS.or("`retry.max_attempts`", "20");
const OWN_MIN_BACKOFF: Key<'static> = MIN_BACKOFF.or("`retry.min_backoff`", "10s");
const OWN_MAX_BACKOFF: Key<'static> = MAX_BACKOFF.or("`retry.max_backoff`", "10m");

/// How `when` of earlier versions is written now.
const INSTEAD_OF_WHEN: &str = "write answers = [{ status = \"2xx\", body = { pointer = \"/error/code\", equals = \"rate_limited\" }, is = \"throttled\" }]";

/// What `[downstreams.NAME.retry]` says.
pub(super) fn retry<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<RetryPolicy> {
    let table = reader.section(downstream, &RETRY);
    let max_attempts = reader.integer(&table, &MAX_ATTEMPTS);
    let max_throttled = reader.integer(&table, &MAX_THROTTLED);
    let max_age = reader.duration(&table, &MAX_AGE);
    let max_pause = reader.duration(&table, &MAX_PAUSE);
    let rules = answers(reader, &table, max_pause);
    let statuses = retryable_statuses(reader, &table);
    let min_backoff = reader.duration(&table, &MIN_BACKOFF);
    let max_backoff = reader.duration(&table, &MAX_BACKOFF);
    let max_cooldown = reader.duration(&table, &MAX_COOLDOWN);
    let heeds_remaining = reader.boolean(&table, &HEED_REMAINING);
    reader.hint(&table, "when", INSTEAD_OF_WHEN.to_owned());
    let (min, max) = (min_backoff?, max_backoff?);
    if min > max {
        reject_backoffs(reader, &table, Backoff { min, max });
        return None;
    }
    let (on, never, on_unauthorized) = statuses?;
    // The mistakes of the overrides are reported too.
    let (is_right, rules) = (rules.is_some(), rules.unwrap_or_default());
    let answers = AnswerPolicy { rules, never, on_unauthorized, on, heeds_remaining: heeds_remaining? };
    let policy = RetryPolicy {
        max_attempts: max_attempts?,
        max_throttled,
        max_age,
        outlast: true,
        answers,
        backoff: Backoff { min, max },
        overrides: Arc::default(),
        max_pause: max_pause?,
        max_cooldown: max_cooldown?,
    };
    let overrides = overrides(reader, &table, &policy)?;
    is_right.then_some(RetryPolicy { overrides, ..policy })
}

/// Reads the answers after which a job is tried again, and those that may mean that the credentials are refused.
fn retryable_statuses<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
) -> Option<(Statuses, Statuses, Statuses)> {
    let (on, never) = (statuses(reader, table, &ON), statuses(reader, table, &NEVER));
    let unauthorized = on_unauthorized(reader, table)?;
    let (on, never) = (on?, never?);
    for (key, given) in [(ON, on), (NEVER, never)] {
        let Some(status) = given.and_then(|given| given.common(&unauthorized)) else { continue };
        if let Some(found) = reader.given(table, key.name) {
            let problem =
                format!("{status} is in on_unauthorized too; take it out, or set on_unauthorized without it");
            reader.wrong(&found, problem);
        }
        return None;
    }
    // A downstream that throttles takes the job later, so 429 is always one of them.
    let on = on.map_or_else(Statuses::temporary, |on| on.with(429, 429));
    let never = never.unwrap_or(Statuses::NONE);
    Some((on.without(never), never, unauthorized))
}

/// The statuses of an array such as `[500, "502-504", "5xx"]`; `Some(None)` where it is not given.
fn statuses<'v>(reader: &mut Reader<'v>, table: &Table<'v>, key: &Key) -> Option<Option<Statuses>> {
    let number = json!({ "type": "integer", "minimum": 300, "maximum": 599 });
    let item = || json!({ "anyOf": [number, { "type": "string", "pattern": STATUSES }] });
    let convert = |reader: &mut Reader<'v>, item: &Found<'v>| answers::status(reader, item, 300);
    let given = reader.list(table, key, "an array of statuses", item, convert)?;
    Some(given.map(|all| all.into_iter().fold(Statuses::NONE, |all, one| all.and(one))))
}

/// Reads the statuses that may mean that the credentials are refused.
fn on_unauthorized<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<Statuses> {
    let known: [u16; 3] = [401, 403, 407];
    let item = || json!({ "type": "integer", "minimum": 401, "maximum": 407, "enum": known });
    let convert = |reader: &mut Reader<'v>, item: &Found<'v>| {
        let given = if let Value::Num(_, number) = item.value { integer_of(number) } else { None };
        let Some(given) = given else {
            reader.wrong_type(item, "an integer", "such as 401");
            return None;
        };
        let status = known.into_iter().find(|status| i128::from(*status) == given);
        if status.is_none() {
            let problem = format!("no status that refuses credentials; use any of {known:?}");
            reader.wrong(item, problem);
        }
        status.map(|status| (status.to_string(), status))
    };
    let given = reader.list(table, &ON_UNAUTHORIZED, "an array of integers", item, convert)?;
    let all = given.unwrap_or_else(|| vec![401]);
    Some(all.into_iter().fold(Statuses::NONE, |all, status| all.with(status, status)))
}

/// Reads `[retry.status.503]` and the like: what differs from the policy after such an answer.
fn overrides<'v>(
    reader: &mut Reader<'v>,
    retry: &Table<'v>,
    policy: &RetryPolicy,
) -> Option<Arc<[StatusRetry]>> {
    let table = reader.names(retry, &STATUS, &[]);
    let (mut all, mut is_right): (Vec<StatusRetry>, bool) = (Vec::new(), true);
    for key in table.keys() {
        let statuses = match answers::from(&key, 300) {
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
        let own = reader.section(&table, &ONE_STATUS.under(&key));
        let max_attempts = reader.integer(&own, &OWN_MAX_ATTEMPTS);
        let min = reader.duration(&own, &OWN_MIN_BACKOFF);
        let max = reader.duration(&own, &OWN_MAX_BACKOFF);
        let backoff =
            Backoff { min: min.unwrap_or(policy.backoff.min), max: max.unwrap_or(policy.backoff.max) };
        if backoff.min > backoff.max {
            reject_backoffs(reader, &own, backoff);
            is_right = false;
        }
        if let Some(problem) = ineffective_reason(&statuses, policy, own.has(OWN_MAX_ATTEMPTS.name)) {
            reader.wrong_key(&table, &key, &problem);
            is_right = false;
        }
        let max_attempts = max_attempts.unwrap_or(policy.max_attempts);
        all.push(StatusRetry { statuses, max_attempts, backoff });
    }
    is_right.then(|| all.into())
}

/// The reason why an override would have no effect, if there is one.
fn ineffective_reason(statuses: &Statuses, policy: &RetryPolicy, has_attempts: bool) -> Option<String> {
    // These may throttle, also where `on` has them not.
    let throttling =
        Statuses::NONE.with(403, 403).with(429, 429).with(503, 503).without(policy.answers.never);
    let again = |rule: &&AnswerRule| matches!(rule.is, Meaning::Throttled | Meaning::Retry);
    let all = Statuses::NONE.with(200, 599);
    let by_rules = policy.answers.rules.iter().filter(again).map(|rule| rule.statuses.unwrap_or(all));
    let retryable = by_rules.fold(policy.answers.on.and(throttling), Statuses::and);
    if let Some(status) = statuses.without(retryable).common(&all) {
        return Some(format!("a job that is answered {status} is not tried again; add it to `retry.on`"));
    }
    let is_retry =
        |rule: &AnswerRule| rule.is == Meaning::Retry && rule.statuses.is_none_or(|all| all.contains(429));
    let throttles = has_attempts && statuses.contains(429) && !policy.answers.rules.iter().any(is_retry);
    throttles.then(|| "429 throttles, which max_attempts does not count; use retry.max_throttled".to_owned())
}

/// Points at the backoff that was given, or at the shortest if both were.
fn reject_backoffs<'v>(reader: &mut Reader<'v>, table: &Table<'v>, backoff: Backoff) {
    let Backoff { min, max } = backoff;
    let given: Option<Found<'v>> = reader.given(table, MIN_BACKOFF.name);
    let (found, problem) = match given {
        Some(found) => (found, format!("over max_backoff ({max:?}); use at most that, or raise max_backoff")),
        None => match reader.given(table, MAX_BACKOFF.name) {
            Some(found) => {
                (found, format!("under min_backoff ({min:?}); use at least that, or lower min_backoff"))
            }
            None => return,
        },
    };
    let error = ConfigError::new(reader.place(&found), found.path, problem);
    reader.errors.push(error.of(Kind::Absence));
}
