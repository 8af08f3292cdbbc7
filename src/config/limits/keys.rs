//! The keys of limits, and which algorithm has which.

use serde_json::{Value, json};

use super::word::{Anchor, Reset};
use crate::config::key::{Key, keys};
use crate::config::value;

pub(super) const RATE_HINT: &str = "give a downstream a limit, such as rate = \"50/s\"";
pub(super) const PLAN_HINT: &str = "give a plan its limits, such as limits = [{ rate = \"5/s\" }]";

/// The form of a rate.
const EVEN: &str = r"^\s*[0-9][0-9_]*(\s*/\s*|\s+per\s+)([0-9][0-9_]*)?\s*(us|ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)\s*$";
/// As [`EVEN`], with the periods of a calendar.
const QUOTA: &str = r"^\s*[0-9][0-9_]*(\s*/\s*|\s+per\s+)([0-9][0-9_]*)?\s*(us|ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?|months?)\s*$";

keys! {
    /// COUNT/UNIT or COUNT per N UNIT, such as 50/s or 1 per 3 seconds, evenly spaced: one leaky bucket with burst 1.
    /// No default.
    pub(super) RATE = "rate".required(RATE_HINT).otherwise("unless there are `limits`").matches(EVEN)
        .example("50/s").reload();
    /// Further limits, all of which must agree with `rate` (or instead of it).
    pub(super) LIMITS = "limits".reload().example(r#"[
    { algorithm = "leaky-bucket", rate = "1000/minute", burst = 10 },
    { algorithm = "gcra", rate = "10/s", burst = 20 },
    { algorithm = "token-bucket", rate = "100/minute", capacity = 100, cost = "header:tokens", default_cost = 10, max_cost = 50 },
    { algorithm = "fixed-window", rate = "1000/hour", anchor = "first-hit" },
    { algorithm = "sliding-window", rate = "1000/hour", buckets = 60 },
    { algorithm = "sliding-log", rate = "100/minute", name = "per-minute", margin = "50ms" },
    { algorithm = "quota", rate = "1_000_000/month", reset = "calendar", utc_offset = "+02:00" },
    { algorithm = "quota", rate = "50_000/day", time_zone = "America/Los_Angeles" },
]"#);
    /// The limits of jobs of this plan, in addition to those of their downstream. A plan may have any limits, as a
    /// downstream.
    pub(super) PLAN_LIMITS = "limits".required(PLAN_HINT).reload()
        .example("[{ rate = \"5/s\" }, { algorithm = \"quota\", rate = \"10_000/month\" }]");
    /// The limits that jobs keep besides those of their downstream: each lane for itself, or each value of the parts in
    /// `per`.
    pub(in crate::config) LANE_LIMITS = "limits".reload()
        .example("[{ rate = \"5/s\" }, { rate = \"100/min\", per = [\"tenant\"] }]");
}

keys! {
    /// How it counts (docs/algorithms.md). The cost of a job is at most its burst, capacity or count; a leaky bucket
    /// charges it afterwards.
    ///   leaky-bucket: slots evenly apart, and `burst` of them at once after a rest.
    ///   gcra: the same, but the whole cost of a job must fit the burst.
    ///   token-bucket: the same as gcra.
    ///   fixed-window: a count from one edge of the clock to the next; around an edge twice the count.
    ///   sliding-window: a count over the last period, estimated.
    ///   sliding-log: a count in any period, exactly; at most 10_000 units.
    ///   quota: a count per calendar day, week or month, or per period.
    pub(super) ALGORITHM = "algorithm".default("leaky-bucket");
    /// COUNT/UNIT or COUNT per N UNIT, such as 1000/5min; for a quota also per week and month.
    pub(super) LIMIT_RATE = "rate".required("write such as rate = \"1000/minute\"").matches(QUOTA);
    /// The name under which its state is kept, also when its numbers change. Unset: the algorithm and its place, such as
    /// gcra-2.
    pub(super) NAME = "name".up_to(63, value::NAME);
    /// leaky-bucket, gcra: the jobs that may go at once after a rest.
    pub(super) BURST = "burst".default("1").integers(1, u32::MAX as u64);
    /// token-bucket: its tokens. Unset: the count of the rate as written.
    pub(super) CAPACITY = "capacity".otherwise("the count of the rate").integers(1, u32::MAX as u64);
    /// fixed-window: from one edge of the clock to the next (epoch), or from the first job on (first-hit).
    pub(super) ANCHOR = "anchor".default("epoch");
    /// sliding-window: the number of parts of a period.
    pub(super) BUCKETS = "buckets".default("10").integers(1, 120);
    /// quota: from midnight on (calendar), in equal periods (fixed), or in a period from the first job on (rolling).
    /// Unset: calendar for days, weeks and months, otherwise fixed.
    pub(super) RESET = "reset".otherwise("`\"calendar\"` for days, weeks and months, else `\"fixed\"`");
    /// quota: the offset of midnight from UTC, such as +02:00.
    pub(super) UTC_OFFSET = "utc_offset".default("Z").matches("^(Z|[+-][0-9][0-9]:[0-5][0-9])$");
    /// quota, by the calendar: the time zone of midnight instead of utc_offset, by its IANA name, such as
    /// America/Los_Angeles. A day has 23 or 25 hours where summer time begins and ends.
    pub(super) TIME_ZONE = "time_zone".matches("^[A-Za-z]").example("America/Los_Angeles");
    /// By how much its period is longer than that of `rate`, because arrivals at the API jitter (docs/algorithms.md). A
    /// fixed-window of the clock and a quota begin this much later than their edge. It must be shorter than the period.
    pub(super) MARGIN = "margin".default("0s");
    /// The cost of each job for this limit, instead of its paced-cost: a number, or header:NAME for the number in a header of
    /// the message, such as header:tokens. A job may also set it with paced-cost-LIMIT.
    pub(super) COST = "cost".otherwise("the job's paced-cost").integers(1, u32::MAX as u64);
    /// With cost = "header:NAME": the cost of a job without that header. Unset: a message without it is dead-lettered
    /// (malformed-header), as is a message whose header is no whole number from 1 on.
    pub(super) DEFAULT_COST = "default_cost".integers(1, u32::MAX as u64);
    /// With `cost`: the highest cost of one job for this limit; a job that costs more is dead-lettered as `cost-too-large`.
    /// It is never more than the limit holds. Unset: the units that the limit releases in a minute, at least its burst.
    pub(super) OWN_MAX_COST = "max_cost".integers(1, u32::MAX as u64);
}

pub(in crate::config) const ALGORITHMS: [&str; 7] =
    ["leaky-bucket", "gcra", "token-bucket", "fixed-window", "sliding-window", "sliding-log", "quota"];

/// Every key of a limit but `algorithm`, `name` and `rate`, with the algorithms that have it.
pub(in crate::config) const KEYS: [(Key<'static>, &[&str]); 11] = [
    (BURST, &["leaky-bucket", "gcra"]),
    (CAPACITY, &["token-bucket"]),
    (ANCHOR, &["fixed-window"]),
    (BUCKETS, &["sliding-window"]),
    (RESET, &["quota"]),
    (UTC_OFFSET, &["quota"]),
    (TIME_ZONE, &["quota"]),
    (MARGIN, &ALGORITHMS),
    (COST, &ALGORITHMS),
    (DEFAULT_COST, &ALGORITHMS),
    (OWN_MAX_COST, &ALGORITHMS),
];

pub(super) const ANCHORS: [(&str, Anchor); 2] = [("epoch", Anchor::Epoch), ("first-hit", Anchor::FirstHit)];

pub(super) const RESETS: [(&str, Reset); 3] =
    [("calendar", Reset::Calendar), ("fixed", Reset::Fixed), ("rolling", Reset::Rolling)];

/// The schema of a limit, but for its keys. An array is replaced as a whole, so that an entry has all that it needs.
pub(super) fn schema() -> Value {
    json!({
        "type": "object",
        "description": "A limit. A job goes when all limits allow it.",
        "properties": {},
        "additionalProperties": false,
        "required": [LIMIT_RATE.name],
        "oneOf": ALGORITHMS.map(variant),
    })
}

/// The schema of the limits of one algorithm: no key of another one, and a rate that it can count by.
fn variant(algorithm: &str) -> Value {
    let others = KEYS.iter().filter(|(_, algorithms)| !algorithms.contains(&algorithm));
    let others: Vec<Value> = others.map(|(key, _)| json!({ "required": [key.name] })).collect();
    let rate = if algorithm == "quota" { QUOTA } else { EVEN };
    let mut variant = json!({
        "properties": { "algorithm": { "enum": [algorithm] }, "rate": { "pattern": rate } },
        "not": { "anyOf": others },
    });
    if ALGORITHM.default_text() != Some(algorithm) {
        variant["required"] = json!([ALGORITHM.name]);
    }
    variant
}
