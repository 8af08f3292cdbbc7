//! The configured meaning of a downstream's answers: data alone. `http::meaning` decides by it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Statuses;

/// The meaning of a downstream's answers. The order is: rules, `never`, throttling by the protocol,
/// `on_unauthorized`, `on`; any other answer except a success is final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPolicy {
    /// The first rule that matches an answer decides.
    pub rules: Arc<[AnswerRule]>,
    /// The answers after which a job is dead at once, also where they throttle.
    pub never: Statuses,
    /// The answers that may mean that the API refuses this replica's credentials, for every job.
    pub on_unauthorized: Statuses,
    /// The answers after which a job is tried again.
    pub on: Statuses,
    /// Whether a success that leaves no more requests, and says when there are more, pauses the downstream until then.
    pub heeds_remaining: bool,
}

/// What some answers mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerRule {
    /// The statuses; `None` stands for any.
    pub statuses: Option<Statuses>,
    /// A field that the answer must have.
    pub header: Option<HeaderMatch>,
    /// A value that its body must have.
    pub body: Option<BodyMatch>,
    /// What it means.
    pub is: Meaning,
    /// How long to wait, where it means [`Meaning::Throttled`] or [`Meaning::Retry`]. Without it, or if it is not
    /// found, the answer's own `Retry-After` or reset counts.
    pub wait: Option<RuleWait>,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The job is done.
    Delivered,
    /// The downstream asks all its callers to slow down.
    Throttled,
    /// This job may be tried again.
    Retry,
    /// This job must not be tried again.
    Dead,
    /// The downstream may refuse this replica's credentials.
    Unauthorized,
}

/// A field of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The name in lower case.
    pub name: String,
    /// The value; `None` stands for any.
    pub equals: Option<String>,
}

/// Where a rule finds how long to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleWait {
    /// The rule has the wait itself.
    Fixed(Duration),
    /// In the field of this name, in lower case.
    Header(String),
    /// In the body at this JSON pointer.
    Body(String),
}

/// A value in the JSON body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyMatch {
    pointer: String,
    any_of: Vec<Value>,
}

impl Default for AnswerPolicy {
    /// No rules; a 401 may be about the credentials, and 408, 425, 429 and 5xx are tried again.
    fn default() -> Self {
        Self {
            rules: Arc::default(),
            never: Statuses::NONE,
            on_unauthorized: Statuses::NONE.with(401, 401),
            on: Statuses::temporary(),
            heeds_remaining: false,
        }
    }
}

impl AnswerPolicy {
    /// The meaning of a status alone, if it is no success, no rule matches, and the answer does not throttle.
    #[must_use]
    pub fn of_status(&self, status: u16) -> Meaning {
        match status {
            _ if self.never.contains(status) => Meaning::Dead,
            _ if self.on_unauthorized.contains(status) => Meaning::Unauthorized,
            _ if self.on.contains(status) => Meaning::Retry,
            _ => Meaning::Dead,
        }
    }
}

impl Meaning {
    /// All, with the words of the configuration.
    pub const ALL: [(&'static str, Self); 5] = [
        ("delivered", Self::Delivered),
        ("throttled", Self::Throttled),
        ("retry", Self::Retry),
        ("dead", Self::Dead),
        ("unauthorized", Self::Unauthorized),
    ];

    /// The word of the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

impl BodyMatch {
    /// Any of these values at this JSON pointer (RFC 6901); see [`is_pointer`].
    #[must_use]
    pub fn new(pointer: &str, any_of: Vec<Value>) -> Self {
        Self { pointer: pointer.to_owned(), any_of }
    }

    /// Whether the body has one of the values in that place.
    #[must_use]
    pub fn is_in(&self, body: &Value) -> bool {
        body.pointer(&self.pointer).is_some_and(|found| self.any_of.iter().any(|value| is_same(found, value)))
    }
}

/// Whether the text is a JSON pointer, such as `/error/code`.
#[must_use]
pub fn is_pointer(text: &str) -> bool {
    let is_escaped = |rest: &str| rest.starts_with('0') || rest.starts_with('1');
    (text.is_empty() || text.starts_with('/')) && text.split('~').skip(1).all(is_escaped)
}

/// Whether both are the same; numbers are the same if their values are, in any notation.
fn is_same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| one.total_cmp(&other).is_eq())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_in_one_place_decides() {
        let is_in = |pointer: &str, value: Value, body: &str| {
            BodyMatch::new(pointer, vec!["other".into(), value]).is_in(&serde_json::from_str(body).unwrap())
        };
        let limited = |body| is_in("/error/code", "rate_limited".into(), body);
        assert!(limited(r#" {"error": {"code": "rate_limited", "more": [1]}} "#));
        assert!(limited(r#"{"error": {"code": "other"}}"#));
        for other in
            [r#"{"error": {"code": "Rate_limited"}}"#, r#"{"error": "rate_limited"}"#, r#"["rate_limited"]"#]
        {
            assert!(!limited(other), "{other}");
        }
        assert!(is_in("/a~1b/0", 429.into(), r#"{"a/b": [429.0]}"#));
        assert!(!is_in("/ok", false.into(), r#"{"ok": 0}"#));
        assert!(is_in("", "slow down".into(), r#""slow down""#), "the whole body");
    }

    #[test]
    fn pointers() {
        for right in ["", "/", "/error/code", "/a~0b~1c/0"] {
            assert!(is_pointer(right), "{right}");
        }
        for wrong in ["error", "error/code", "$.error", "/a~", "/a~2"] {
            assert!(!is_pointer(wrong), "{wrong}");
        }
    }

    #[test]
    fn the_word_of_each_meaning_is_its_own() {
        assert!(Meaning::ALL.iter().all(|(word, meaning)| meaning.word() == *word));
    }

    #[test]
    fn what_a_status_means() {
        let policy = AnswerPolicy { never: "501".parse().unwrap(), ..AnswerPolicy::default() };
        let all = [200, 302, 401, 404, 408, 500, 501].map(|status| policy.of_status(status));
        use Meaning::{Dead, Retry, Unauthorized};
        assert_eq!(all, [Dead, Dead, Unauthorized, Dead, Retry, Retry, Dead]);
    }
}
