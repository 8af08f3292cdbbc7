//! A job, its headers, and how a message becomes one: pure.

use std::fmt;

use bytes::Bytes;

use crate::text::is_unsafe;
use crate::time::Micros;

mod decode;
mod header;
pub mod ndjson;
mod nearest;
mod path;
mod reply;
mod value;

pub use decode::decode;
#[cfg(any(feature = "config", feature = "http"))]
pub(crate) use header::is_never_a_jobs;
#[cfg(feature = "config")]
pub(crate) use nearest::nearest;
pub use reply::ReplyRules;

/// A message as it came, without what only its broker understands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The key it was published with.
    pub routing_key: String,
    /// The body, opaque.
    pub body: Bytes,
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Encoding of the body.
    pub content_encoding: Option<String>,
    /// The producer's id.
    pub message_id: Option<String>,
    /// AMQP priority.
    pub priority: Option<u8>,
    /// Given back with the reply.
    pub correlation_id: Option<String>,
    /// The queue for the reply.
    pub reply_to: Option<String>,
    /// The headers that start with `paced-` or `http-` or are `traceparent` or `tracestate`.
    pub headers: Vec<(String, Value)>,
    /// What is wrong with the message as its broker delivered it: then it is no job, and what could not
    /// be read of it is missing here.
    pub malformed: Option<String>,
}

/// The value of a header, as far as jobs use any.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any AMQP integer width.
    Integer(i128),
    /// Float or double.
    Float(f64),
    /// A string; AMQP does not promise that it is UTF-8.
    Text(Bytes),
    /// true or false.
    Bool(bool),
    /// A type that no header of a job has, by name (`table`, `array`, `void`).
    Other(&'static str),
}

/// One job, ready to be released.
#[derive(Clone, Debug)]
pub struct Job {
    /// Job id: the `Idempotency-Key`.
    pub id: String,
    /// The lane's key; "" when absent.
    pub lane: String,
    /// Cost in units of the downstream's limits.
    pub cost: u32,
    /// The plan whose limits it keeps too, by its place in [`Rules::plans`].
    pub plan: Option<usize>,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// Not released before, by the wall clock.
    pub not_before: Option<Micros>,
    /// Dead-lettered as expired after, by the wall clock.
    pub deadline: Option<Micros>,
    /// HTTP method, in upper case.
    pub method: &'static str,
    /// Appended to the base URL; checked; without a leading slash.
    pub path: String,
    /// Allowed request headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Encoding of the body.
    pub content_encoding: Option<String>,
    /// The body, opaque.
    pub body: Bytes,
    /// Where the outcome is published, and the id to give back.
    pub reply: Option<ReplyTo>,
}

/// Where a producer waits for the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The queue.
    pub queue: String,
    /// Given back as it came.
    pub correlation_id: Option<String>,
}

/// What a downstream accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The longest body, in bytes.
    pub max_body: usize,
    /// Request headers that a job may set, in lower case, without the `http-`;
    /// [`Rules::ANY_HEADER`] among them allows all that a job may ever set.
    pub allow_headers: Vec<String>,
    /// The highest cost of a job without a plan.
    pub max_cost: MaxCost,
    /// The plans that there are.
    pub plans: Vec<PlanRules>,
    /// The plan of a job that names none, by its place in `plans`.
    pub default_plan: Option<usize>,
    /// Where a reply may go.
    pub reply: ReplyRules,
}

/// What a plan accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRules {
    /// Its name.
    pub name: String,
    /// The highest cost of a job.
    pub max_cost: MaxCost,
}

/// The highest cost of one job, and what sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxCost {
    /// Units; at least 1.
    pub units: u32,
    /// What sets it.
    pub bound: CostBound,
    /// What the configuration says, whether or not the limits hold as much.
    pub given: Option<u32>,
}

/// What sets the highest cost of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostBound {
    /// The configuration.
    Given,
    /// What the limit of this name releases in a minute, or at once.
    Minute(String),
    /// What the limit of this name can hold at all.
    Held(String),
}

impl fmt::Display for MaxCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.units;
        match &self.bound {
            CostBound::Given => write!(f, "{units}"),
            CostBound::Minute(limit) => write!(f, "{units}, what the limit `{limit}` releases in a minute"),
            CostBound::Held(limit) => write!(f, "{units}, what the limit `{limit}` holds"),
        }
    }
}

impl Rules {
    /// Stands for every header in [`Rules::allow_headers`].
    pub const ANY_HEADER: &'static str = "*";

    /// Whether a job of this plan may cost so much; what to tell whoever sent it if it may not.
    #[cfg(feature = "dispatch")]
    pub(crate) fn fits(&self, plan: Option<usize>, cost: u32) -> Result<(), String> {
        let plan = plan.and_then(|plan| self.plans.get(plan));
        decode::fitting(cost.into(), plan.map_or(&self.max_cost, |plan| &plan.max_cost)).map(drop)
    }
}

/// Why a job is dead, as `paced-reason` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A header of the wrong type or form.
    MalformedHeader,
    /// A `paced-` header that does not exist.
    UnknownHeader,
    /// An `http-` header that is not on the allow list.
    HeaderNotAllowed,
    /// A path that could leave the base URL.
    ForbiddenPath,
    /// Over `http.max_body`.
    BodyTooLarge,
    /// A message id that is no idempotency key.
    BadId,
    /// A cost that the limits cannot hold.
    CostTooLarge,
    /// The deadline has passed.
    Expired,
    /// The limits police, and it did not fit when it came.
    Rejected,
    /// The downstream's answer is final.
    Status,
    /// Every attempt failed.
    AttemptsExhausted,
}

impl Reason {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Self; 11] = [
        Self::MalformedHeader,
        Self::UnknownHeader,
        Self::HeaderNotAllowed,
        Self::ForbiddenPath,
        Self::BodyTooLarge,
        Self::BadId,
        Self::CostTooLarge,
        Self::Expired,
        Self::Rejected,
        Self::Status,
        Self::AttemptsExhausted,
    ];

    /// The text of `paced-reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MalformedHeader => "malformed-header",
            Self::UnknownHeader => "unknown-header",
            Self::HeaderNotAllowed => "header-not-allowed",
            Self::ForbiddenPath => "forbidden-path",
            Self::BodyTooLarge => "body-too-large",
            Self::BadId => "bad-id",
            Self::CostTooLarge => "cost-too-large",
            Self::Expired => "expired",
            Self::Rejected => "rejected",
            Self::Status => "status",
            Self::AttemptsExhausted => "attempts-exhausted",
        }
    }

    /// Whether [`decode`] gives it: the message never was a job.
    #[must_use]
    pub const fn is_rejection(self) -> bool {
        match self {
            Self::MalformedHeader
            | Self::UnknownHeader
            | Self::HeaderNotAllowed
            | Self::ForbiddenPath
            | Self::BodyTooLarge
            | Self::BadId
            | Self::CostTooLarge => true,
            Self::Expired | Self::Rejected | Self::Status | Self::AttemptsExhausted => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a message is no job: dead-lettered, never released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejection {
    /// The kind.
    pub reason: Reason,
    /// What is wrong, and what would be right; no secret in it.
    pub detail: String,
}

impl Rejection {
    fn new(reason: Reason, detail: impl AsRef<str>) -> Self {
        Self { reason, detail: shown(detail.as_ref().as_bytes(), MAX_DETAIL) }
    }

    fn malformed(detail: impl AsRef<str>) -> Self {
        Self::new(Reason::MalformedHeader, detail)
    }
}

/// The longest detail, in characters: it becomes a header of a dead letter.
const MAX_DETAIL: usize = 300;

/// Foreign text for a person's eye: what steers a terminal escaped, at most `max` characters.
pub(crate) fn shown(text: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let mut out = String::with_capacity(text.len().min(max));
    for (index, c) in text.chars().enumerate() {
        if index == max {
            out.push('…');
            break;
        }
        if is_unsafe(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}
