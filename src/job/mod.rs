//! A job, its headers, and the decoding of messages into jobs. It has no I/O.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::text::is_unsafe;
use crate::time::Micros;

mod cost;
pub mod csv;
mod decode;
mod header;
mod instant;
pub mod ndjson;
mod nearest;
mod path;
mod reply;
pub mod template;
mod value;

pub use cost::{Cost, CostBound, CostRule, CostSource, MaxCost};
pub use decode::{KNOWN as PRODUCER_HEADERS, METHODS, STRIPPED as OWN_HEADERS, cost_of, decode, name_costs};
pub use header::NEVER as FORBIDDEN_HEADERS;
#[cfg(any(feature = "config", feature = "http"))]
pub(crate) use header::is_never_a_jobs;
#[cfg(feature = "dispatch")]
pub(crate) use instant::shown as shown_instant;
#[cfg(feature = "config")]
pub(crate) use nearest::nearest;
pub use reply::ReplyRules;

/// A message as it was delivered, without properties that concern only its broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The routing key that it was published with.
    pub routing_key: String,
    /// The body.
    pub content: Content,
    /// The producer's id.
    pub message_id: Option<String>,
    /// AMQP priority.
    pub priority: Option<u8>,
    /// The id that is returned with the reply.
    pub correlation_id: Option<String>,
    /// The queue for the reply.
    pub reply_to: Option<String>,
    /// When the producer made it, in seconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// The headers that start with `paced-` or `http-` or are `traceparent` or `tracestate`, and those that limits
    /// count by.
    pub headers: Vec<(String, Value)>,
    /// What is wrong with the message as its broker delivered it. It is no job then, and parts that could not be read
    /// are missing here.
    pub malformed: Option<String>,
}

/// A body, and what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The body, opaque.
    pub body: Bytes,
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Encoding of the body: the text of a message as it is, or the content codings of a job.
    pub content_encoding: Option<String>,
}

impl Content {
    /// Says that the body is `application/json`, if it is a JSON object or array and nothing says what it is.
    pub fn name_json(&mut self) {
        let begins = matches!(self.body.trim_ascii_start().first(), Some(b'{' | b'['));
        if begins && self.content_type.is_none() && self.content_encoding.is_none() {
            let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&self.body).is_ok();
            self.content_type = is_json.then(|| "application/json".to_owned());
        }
    }
}

impl From<Bytes> for Content {
    fn from(body: Bytes) -> Self {
        Self { body, ..Self::default() }
    }
}

/// The value of a header, of a type that jobs use.
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
    /// AMQP's type for instants, in seconds since 1970.
    Timestamp(u64),
    /// A type that no header of a job has, by name (`table`, `array`, `void`).
    Other(&'static str),
}

/// One job, ready to be released.
#[derive(Clone, Debug)]
pub struct Job {
    /// Job id: the `Idempotency-Key`.
    pub id: String,
    /// Its lane.
    pub lane: JobLane,
    /// What it takes of the limits.
    pub cost: Cost,
    /// The plan whose limits it obeys too, as an index into [`Rules::plans`].
    pub plan: Option<usize>,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// When it was made, and may be released.
    pub times: Times,
    /// The request that it becomes, apart from the body.
    pub request: Request,
    /// The body of the request.
    pub content: Content,
    /// The queue that the outcome is published to, and the id to return.
    pub reply: Option<ReplyTo>,
}

/// The lane of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobLane {
    /// What `paced-lane` says; "" when absent.
    pub name: String,
    /// The values of its key, in the order of [`JobLanes::parts`].
    pub parts: Arc<[String]>,
}

/// The times of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When its producer made it, by the producer's clock, if the message says so.
    pub made_at: Option<Micros>,
    /// The job is not released before this instant, by the wall clock.
    pub not_before: Option<Micros>,
    /// The job is dead-lettered as expired after this instant, by the wall clock.
    pub deadline: Option<Micros>,
}

/// The request that a job becomes, apart from the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// HTTP method, in upper case.
    pub method: &'static str,
    /// The path appended to the base URL; checked, and without a leading slash.
    pub path: String,
    /// Allowed request headers, names in lower case.
    pub headers: Vec<(String, String)>,
}

/// The queue in which a producer waits for the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The queue.
    pub queue: String,
    /// The id, which is returned as it came.
    pub correlation_id: Option<String>,
}

/// The rules that a downstream has for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The longest body, in bytes.
    pub max_body: usize,
    /// Request headers that a job may set, in lower case, without the `http-`;
    /// [`Rules::ANY_HEADER`] among them allows all that a job may ever set.
    pub allow_headers: Vec<String>,
    /// The methods that a job may have: some of [`METHODS`].
    pub methods: Vec<String>,
    /// Whether a path may have `%2f`.
    pub encoded_slash: bool,
    /// The highest cost of a job without a plan.
    pub max_cost: MaxCost,
    /// What jobs cost limits, where that is not their `paced-cost`.
    pub costs: Vec<CostRule>,
    /// The plans.
    pub plans: Vec<PlanRules>,
    /// The lanes of jobs.
    pub lanes: JobLanes,
    /// The queues that a reply may go to.
    pub reply: ReplyRules,
}

/// What the lane of a job is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobLanes {
    /// The parts of its key, in the order of [`JobLane::parts`]; none where the downstream has no lanes.
    pub parts: Vec<LanePart>,
    /// The plan of a job that names none, as an index into [`Rules::plans`].
    pub default_plan: Option<usize>,
}

/// One part of the key of a job's lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LanePart {
    /// The header `paced-lane`.
    Lane,
    /// The word of the routing key in this place, counted from 0.
    Word(usize),
    /// The name of the job's plan.
    Plan,
}

/// The rules of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRules {
    /// Its name.
    pub name: String,
    /// The highest cost of a job.
    pub max_cost: MaxCost,
}

impl PlanRules {
    /// The name that the limits of lanes have among the plans, for jobs without a plan. No job may name it.
    pub const LANES: &'static str = "lanes.limits";
}

impl Rules {
    /// Stands for every header in [`Rules::allow_headers`].
    pub const ANY_HEADER: &'static str = "*";

    /// Whether [`Rules::allow_headers`] has this request header, in lower case.
    pub fn allows_header(&self, name: &str) -> bool {
        self.allow_headers.iter().any(|allowed| allowed == name || allowed == Self::ANY_HEADER)
    }

    /// Checks that a job of this plan may have this cost; the error is a text for its producer.
    #[cfg(feature = "dispatch")]
    pub(crate) fn fits(&self, plan: Option<usize>, cost: &Cost) -> Result<(), String> {
        let row = plan.and_then(|plan| self.plans.get(plan));
        let most = row.map_or(&self.max_cost, |plan| &plan.max_cost);
        decode::fitting("paced-cost", cost.units.into(), most, "`max_cost`")?;
        for (limit, units) in &cost.own {
            let rule = self.costs.iter().find(|rule| rule.limit == *limit && rule.applies_to(plan));
            if let Some(rule) = rule {
                rule.fitting((*units).into())?;
            }
        }
        Ok(())
    }
}

/// The reasons why a job is dead, as in `paced-reason`.
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
    /// The body is longer than `http.max_body`.
    BodyTooLarge,
    /// A message id that is no idempotency key.
    BadId,
    /// A cost that the limits cannot hold.
    CostTooLarge,
    /// The deadline has passed.
    Expired,
    /// The job has waited, or would wait, longer than `max_wait`.
    QueueFull,
    /// The limits police, and the job did not fit when it arrived.
    Rejected,
    /// The downstream's answer is final.
    Status,
    /// Every attempt failed.
    AttemptsExhausted,
}

impl Reason {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::MalformedHeader,
        Self::UnknownHeader,
        Self::HeaderNotAllowed,
        Self::ForbiddenPath,
        Self::BodyTooLarge,
        Self::BadId,
        Self::CostTooLarge,
        Self::Expired,
        Self::QueueFull,
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
            Self::QueueFull => "queue-full",
            Self::Rejected => "rejected",
            Self::Status => "status",
            Self::AttemptsExhausted => "attempts-exhausted",
        }
    }

    /// Whether [`decode`] gives this reason: the message never was a job.
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
            Self::Expired | Self::QueueFull | Self::Rejected | Self::Status | Self::AttemptsExhausted => {
                false
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason why a message is no job: it is dead-lettered, never released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejection {
    /// The kind.
    pub reason: Reason,
    /// What is wrong, and what would be right, without any secret.
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

/// Foreign text for people: control characters are escaped, and it has at most `max` characters.
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
