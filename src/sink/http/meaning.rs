//! What an answer means: a pure function of the policy and the answer.

use std::cell::OnceCell;
use std::fmt;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{DATE, HeaderMap};
use serde_json::Value;

use super::throttling::{self, Throttling};
use crate::retry_after::{millis, reset_after};
use crate::sink::{AnswerPolicy, AnswerRule, Meaning, RuleWait};

/// The shortest wait that an answer may ask for. A wait of 0 counts as none.
const LEAST: Duration = Duration::from_millis(10);

/// The answers that say that the job is under way, where an earlier attempt at it ended without an answer.
const UNDER_WAY: [u16; 3] = [409, 423, 425];

/// The parts of an answer that decide its meaning.
pub struct Answered<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    body: Option<&'a [u8]>,
    /// The body as JSON, parsed at its first use; `None` if it is no JSON.
    json: OnceCell<Option<Value>>,
    /// Whether an earlier attempt at the job ended without an answer, so that this may be one to its repetition.
    repeats_unanswered: bool,
}

/// What an answer means, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What it means.
    pub is: Meaning,
    /// How long to wait, if the answer or its rule says so: this job for [`Meaning::Retry`], and otherwise all jobs.
    pub wait: Option<Duration>,
    /// Why.
    pub by: By,
}

/// Why an answer means what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The rule of this number matches, counted from 1.
    Rule(usize),
    /// Its status is in `never`.
    Never,
    /// It is a success.
    Success,
    /// It throttles, as the protocol has it.
    Throttling,
    /// An earlier attempt may still be under way.
    UnderWay,
    /// Its status is in `on_unauthorized`.
    OnUnauthorized,
    /// Its status is in `on`.
    On,
    /// Nothing else says what it means.
    Nothing,
}

impl<'a> Answered<'a> {
    /// An answer with this status, these fields, and this body, as far as it is known.
    #[must_use]
    pub const fn new(status: StatusCode, headers: &'a HeaderMap, body: Option<&'a [u8]>) -> Self {
        Self { status, headers, body, json: OnceCell::new(), repeats_unanswered: false }
    }

    /// Sets whether an earlier attempt at the job ended without an answer.
    #[must_use]
    pub const fn repeating(mut self, repeats_unanswered: bool) -> Self {
        self.repeats_unanswered = repeats_unanswered;
        self
    }

    /// The value in the body at a JSON pointer.
    fn value(&self, pointer: &str) -> Option<&Value> {
        self.json()?.pointer(pointer)
    }

    fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| serde_json::from_slice(self.body?).ok()).as_ref()
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether the rule matches, apart from the body.
    fn head_matches(&self, rule: &AnswerRule) -> bool {
        rule.statuses.is_none_or(|statuses| statuses.contains(self.status.as_u16()))
            && rule.header.as_ref().is_none_or(|header| {
                let has = |value: &hyper::header::HeaderValue| {
                    header.equals.as_ref().is_none_or(|text| value.as_bytes() == text.as_bytes())
                };
                self.headers.get_all(&header.name).iter().any(has)
            })
    }

    fn matches(&self, rule: &AnswerRule) -> bool {
        let body_matches = || match &rule.body {
            Some(body) => self.json().is_some_and(|json| body.is_in(json)),
            None => true,
        };
        self.head_matches(rule) && body_matches()
    }

    /// The wait of the rule, if it has one: fixed, or from the place in the answer that it names.
    fn wait(&self, rule: &AnswerRule) -> Option<Duration> {
        let date = self.text(DATE.as_str());
        match rule.wait.as_ref()? {
            RuleWait::Fixed(wait) => Some(*wait),
            RuleWait::Header(name) if name.ends_with("-ms") => millis(self.text(name)?),
            RuleWait::Header(name) => reset_after(self.text(name)?, date),
            RuleWait::Body(pointer) => match self.value(pointer)? {
                Value::String(text) => reset_after(text, date),
                Value::Number(number) => reset_after(&number.to_string(), date),
                _ => None,
            },
        }
    }
}

/// Whether a body is needed to judge an answer with this status and these fields.
#[must_use]
pub fn needs_body(policy: &AnswerPolicy, status: StatusCode, headers: &HeaderMap) -> bool {
    let answer = Answered::new(status, headers, None);
    let reads = |rule: &AnswerRule| rule.body.is_some() || matches!(rule.wait, Some(RuleWait::Body(_)));
    // The first rule whose head matches either ends the search, or needs the body for that.
    policy.rules.iter().find(|rule| answer.head_matches(rule)).is_some_and(reads)
}

/// Decides what an answer means.
#[must_use]
pub fn decide(policy: &AnswerPolicy, answer: &Answered<'_>) -> Decision {
    let Answered { status, headers, .. } = *answer;
    let code = status.as_u16();
    let asked = || throttling::asked(headers).and_then(least);
    if let Some((place, rule)) = policy.rules.iter().enumerate().find(|(_, rule)| answer.matches(rule)) {
        let waits = matches!(rule.is, Meaning::Throttled | Meaning::Retry);
        let wait = || answer.wait(rule).or_else(|| throttling::any(headers)).and_then(least);
        return Decision { is: rule.is, wait: if waits { wait() } else { None }, by: By::Rule(place + 1) };
    }
    let decision = |is, wait, by| Decision { is, wait, by };
    if policy.never.contains(code) {
        // The job is dead, but the other jobs must wait.
        let wait = throttling::read(status, headers).and_then(|Throttling { after }| least(after?));
        return decision(Meaning::Dead, wait, By::Never);
    }
    if status.is_success() {
        let wait = if policy.heeds_remaining { throttling::used_up(headers).and_then(least) } else { None };
        return decision(Meaning::Delivered, wait, By::Success);
    }
    if let Some(Throttling { after }) = throttling::read(status, headers) {
        return decision(Meaning::Throttled, after.and_then(least), By::Throttling);
    }
    if answer.repeats_unanswered && UNDER_WAY.contains(&code) {
        return decision(Meaning::Retry, asked(), By::UnderWay);
    }
    match policy.of_status(code) {
        is @ Meaning::Unauthorized => decision(is, None, By::OnUnauthorized),
        is @ Meaning::Retry => decision(is, asked(), By::On),
        is => decision(is, None, By::Nothing),
    }
}

/// The wait, at least [`LEAST`]; `None` if it is 0.
fn least(wait: Duration) -> Option<Duration> {
    (!wait.is_zero()).then(|| wait.max(LEAST))
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(number) => write!(f, "rule {number} of retry.answers"),
            Self::Never => f.write_str("retry.never has its status"),
            Self::Success => f.write_str("it is a success"),
            Self::Throttling => f.write_str("it says so itself (docs/retries.md, Throttling)"),
            Self::UnderWay => f.write_str("an earlier attempt that was not answered may be under way"),
            Self::OnUnauthorized => f.write_str("retry.on_unauthorized has its status"),
            Self::On => f.write_str("retry.on has its status"),
            Self::Nothing => f.write_str("no rule, and no other key of retry, has it"),
        }
    }
}

#[cfg(test)]
mod tests;
