//! Whether an answer asks all callers to slow down, and for how long.
//!
//! | status | it throttles | until |
//! |---|---|---|
//! | 403, 429, 503 with `Retry-After`, or the same in milliseconds | yes | that has passed |
//! | 403, 429 where no more requests are left | yes | the reset, if it is given |
//! | 429 that does not say how many are left | yes | the reset, if it is given |
//! | 429 where some are left | yes | the answer does not say |
//! | others | no | |

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

use crate::retry_after::{millis, reset_after, retry_after};

/// Fields with the wait in milliseconds, which is more exact than `Retry-After`.
const MILLIS: [HeaderName; 2] =
    [HeaderName::from_static("retry-after-ms"), HeaderName::from_static("x-ms-retry-after-ms")];

/// An answer that asks all callers to slow down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Throttling {
    /// How long nothing is to be sent, if the answer says so.
    pub(super) after: Option<Duration>,
}

/// Returns what an answer with this status and these fields asks of all callers; `None` if it asks nothing.
pub(super) fn read(status: StatusCode, headers: &HeaderMap) -> Option<Throttling> {
    let can_throttle = matches!(
        status,
        StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    let after = asked(headers).filter(|_| can_throttle);
    if after.is_some() {
        return Some(Throttling { after });
    }
    let is_429 = status == StatusCode::TOO_MANY_REQUESTS;
    if !is_429 && status != StatusCode::FORBIDDEN {
        return None;
    }
    let Quota { is_used_up, has_rest, reset } = Quota::read(headers);
    match is_used_up || is_429 && !has_rest {
        true => Some(Throttling { after: reset }),
        false => is_429.then_some(Throttling { after: None }),
    }
}

/// Returns how long the answer asks its caller to wait; `None` if it does not, names no time at all, or one that has passed.
pub(super) fn asked(headers: &HeaderMap) -> Option<Duration> {
    let in_millis = MILLIS.iter().find_map(|name| millis(text(headers, name)?));
    let asked = in_millis.or_else(|| retry_after(text(headers, &RETRY_AFTER)?, text(headers, &DATE)));
    asked.filter(|wait| !wait.is_zero())
}

/// Returns how long the answer asks its callers to wait in any of these ways, with any status; `None` if it does not.
pub(super) fn any(headers: &HeaderMap) -> Option<Duration> {
    asked(headers).or_else(|| {
        let quota = Quota::read(headers);
        quota.reset.filter(|_| quota.is_used_up || !quota.has_rest)
    })
}

/// Returns when there are more requests, where none is left; `None` if some are, or the answer does not say.
pub(super) fn used_up(headers: &HeaderMap) -> Option<Duration> {
    let quota = Quota::read(headers);
    quota.reset.filter(|_| quota.is_used_up)
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// What the fields of an answer say of the requests that are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Quota {
    /// Whether none is left, of one kind at least.
    is_used_up: bool,
    /// Whether some are left, of one kind at least.
    has_rest: bool,
    /// When there are more: of the kinds that are used up the latest, or of all where none says what is left.
    reset: Option<Duration>,
}

impl Quota {
    /// Reads the fields of all families. One is `RateLimit` of the draft of the IETF, as a list and as a dictionary. The
    /// others are all fields whose names contain a rate limit and `remaining`, such as `X-RateLimit-Remaining`,
    /// `x-ratelimit-remaining-requests` or `anthropic-ratelimit-tokens-remaining`. The reset is in the field of the same name
    /// with `reset` in place of `remaining`, or with `-after` behind that.
    fn read(headers: &HeaderMap) -> Self {
        let date = text(headers, &DATE);
        let reset_of = |name: &str| {
            let field = |name: &str| reset_after(headers.get(name)?.to_str().ok()?, date);
            // The field with `-after` is more exact.
            field(&format!("{name}-after")).or_else(|| field(name))
        };
        let (mut quota, mut resets) = (Self::default(), None);
        for (name, value) in headers {
            let (name, Ok(value)) = (name.as_str(), value.to_str()) else { continue };
            if name == "ratelimit" {
                for (remaining, reset) in members(value) {
                    resets = resets.max(reset);
                    remaining.into_iter().for_each(|remaining| quota.add(remaining, reset));
                }
            } else if is_of_limit(name) && name.contains("remaining") {
                quota.add(value, reset_of(&name.replacen("remaining", "reset", 1)));
            } else if is_of_limit(name) && name.contains("reset") {
                resets = resets.max(reset_of(name.strip_suffix("-after").unwrap_or(name)));
            }
        }
        // Some APIs have one reset for all kinds.
        if quota.is_used_up && quota.reset.is_none() || !quota.is_used_up && !quota.has_rest {
            quota.reset = resets;
        }
        quota
    }

    /// Adds what is left of one kind, and when there is more.
    fn add(&mut self, remaining: &str, reset: Option<Duration>) {
        // The drafts allow parameters, such as a window.
        let count = remaining.split(';').next().unwrap_or_default();
        match count.trim().parse::<f64>() {
            // Less than one request means that none is left. Some write a negative number where there is no bound.
            Ok(left) if (0.0..1.0).contains(&left) => {
                self.is_used_up = true;
                self.reset = self.reset.max(reset);
            }
            Ok(left) if left >= 1.0 => self.has_rest = true,
            Ok(_) | Err(_) => {}
        }
    }
}

fn is_of_limit(name: &str) -> bool {
    name.contains("ratelimit") || name.contains("rate-limit")
}

/// The remaining count and the reset of each member of `RateLimit`: `"default";r=0;t=5`, or as a dictionary, as in older
/// drafts, `limit=10, remaining=0, reset=5`, which is one member.
fn members(value: &str) -> impl Iterator<Item = (Option<&str>, Option<Duration>)> {
    let is_dictionary = ["remaining", "reset"].iter().any(|name| value.contains(name));
    value.split(if is_dictionary { '\0' } else { ',' }).map(|member| {
        let of = |names| member.split([';', ',']).find_map(|part| parameter(part, names));
        (of(["r", "remaining"]), of(["t", "reset"]).and_then(|reset| reset_after(reset, None)))
    })
}

/// The value of a parameter such as `r=0`, if it has one of these names.
fn parameter<'v>(part: &'v str, names: [&str; 2]) -> Option<&'v str> {
    let (name, value) = part.trim().split_once('=')?;
    names.contains(&name.trim()).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn headers(fields: &str) -> HeaderMap {
        let fields = fields.split('|').filter_map(|field| field.split_once(": "));
        fields
            .map(|(name, value)| (name.trim().parse::<HeaderName>().unwrap(), value.trim().parse().unwrap()))
            .collect()
    }

    /// The wait in ms; `None` if the answer does not throttle, and 0 if it does not say for how long.
    fn wait(status: u16, fields: &str) -> Option<u128> {
        let fields = format!("date: Sun, 06 Nov 1994 08:49:37 GMT | {fields}");
        let throttling = read(StatusCode::from_u16(status).unwrap(), &headers(&fields))?;
        Some(throttling.after.map_or(0, |after| after.as_millis()))
    }

    #[test]
    fn a_retry_after_throttles_on_three_statuses() {
        for status in [403, 429, 503] {
            assert_eq!(wait(status, "retry-after: 7"), Some(7000), "{status}");
            assert_eq!(wait(status, "retry-after: 2.0"), Some(2000), "{status}");
            assert_eq!(wait(status, "retry-after: Sun, 06 Nov 1994 08:50:00 GMT"), Some(23_000), "{status}");
            assert_eq!(wait(status, "retry-after: 7 | retry-after-ms: 6789"), Some(6789), "{status}");
            assert_eq!(wait(status, "x-ms-retry-after-ms: 20"), Some(20), "{status}");
            assert_eq!(wait(status, "retry-after: 7 | retry-after-ms: soon"), Some(7000), "{status}");
        }
        for status in [400, 404, 408, 409, 425, 500, 502, 504] {
            assert_eq!(
                wait(status, "retry-after: 7 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 5"),
                None,
                "{status}"
            );
        }
        assert_eq!([wait(503, ""), wait(403, ""), wait(429, "")], [None, None, Some(0)]);
        assert_eq!([wait(503, "retry-after: soon"), wait(429, "retry-after: soon")], [None, Some(0)]);
    }

    #[test]
    fn what_is_left_and_when_there_is_more() {
        for (fields, on_403, on_429) in [
            ("x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111800", Some(23_000), Some(23_000)),
            ("x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111000", Some(0), Some(0)),
            ("x-ratelimit-remaining: 12 | x-ratelimit-reset: 784111800", None, Some(0)),
            ("x-ratelimit-reset: 784111800", None, Some(23_000)),
            ("x-ratelimit-remaining: 0", Some(0), Some(0)),
            ("x-rate-limit-remaining: 0 | x-rate-limit-reset: 784111800250", Some(23_250), Some(23_250)),
            (
                "ratelimit-limit: 10 | ratelimit-remaining: 0 | ratelimit-reset: 50",
                Some(50_000),
                Some(50_000),
            ),
            ("ratelimit: limit=10, remaining=0, reset=50", Some(50_000), Some(50_000)),
            ("ratelimit: limit=10, remaining=9, reset=50", None, Some(0)),
            (r#"ratelimit: "default";r=0;t=50"#, Some(50_000), Some(50_000)),
            (r#"ratelimit: "day";r=100;t=9000, "second";r=0;t=1"#, Some(1000), Some(1000)),
            (r#"ratelimit: "day";r=100;t=9000, "second";r=5;t=1"#, None, Some(0)),
            (
                "x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111800.5 | x-ratelimit-reset-after: 1.25",
                Some(1250),
                Some(1250),
            ),
            (
                "x-ratelimit-remaining-requests: 59 | x-ratelimit-reset-requests: 1s \
                 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 6m0s",
                Some(360_000),
                Some(360_000),
            ),
            (
                "anthropic-ratelimit-requests-remaining: 0 | anthropic-ratelimit-requests-reset: 1994-11-06T08:50:00Z \
                 | anthropic-ratelimit-tokens-remaining: 0 | anthropic-ratelimit-tokens-reset: 1994-11-06T08:49:40Z",
                Some(23_000),
                Some(23_000),
            ),
            ("x-ratelimit-remaining: none | x-ratelimit-reset: 5", None, Some(5000)),
            ("x-ratelimit-remaining: 0.5 | x-ratelimit-reset: 5", Some(5000), Some(5000)),
            ("x-remaining: 0 | x-reset: 5", None, Some(0)),
            ("x-ratelimit-remaining: -1 | x-ratelimit-reset: 5", None, Some(5000)),
            ("x-ratelimit-remaining: -1", None, Some(0)),
            ("x-ratelimit-reset: 784111778 | x-ratelimit-reset-after: 0.3", None, Some(300)),
            ("x-ratelimit-remaining: 0 | x-ratelimit-reset-after: 6m0s", Some(360_000), Some(360_000)),
            ("ratelimit: limit=10;w=60, remaining=0, reset=50", Some(50_000), Some(50_000)),
            ("ratelimit: reset=50", None, Some(50_000)),
        ] {
            assert_eq!((wait(403, fields), wait(429, fields)), (on_403, on_429), "{fields}");
        }
    }

    proptest! {
        /// Any answer of a server is read without a panic, and no wait is over a day.
        #[test]
        fn any_answer_has_a_meaning(
            status in 300_u16..600,
            fields in proptest::collection::vec(
                (prop_oneof!["retry-after(-ms)?", "(x-)?rate-?limit(-remaining|-reset|-reset-after)?", "date"], "[ -~]{0,30}|[0-9]{1,20}(\\.[0-9]{0,9})?|[0-9hms.]{0,12}"),
                0..6,
            ),
        ) {
            let headers = fields.into_iter().filter_map(|(name, value)| {
                Some((name.parse::<HeaderName>().ok()?, value.parse().ok()?))
            });
            let headers: HeaderMap = headers.collect();
            let throttling = read(StatusCode::from_u16(status).unwrap(), &headers);
            prop_assert!(throttling.and_then(|throttling| throttling.after).is_none_or(|after| after <= 86_400 * S));
            prop_assert!(throttling.is_some() || status != 429);
        }
    }
}
