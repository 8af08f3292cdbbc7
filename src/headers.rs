//! HTTP header fields that report to callers how their limits stand, from a [`Decision`].
//!
//! There are two families. Fields are pairs of a name (in lower case, as HTTP/2 requires and HTTP/1.1 accepts it) and a
//! value, for any HTTP library:
//!
//! - `ratelimit-policy` and `ratelimit`, of draft-ietf-httpapi-ratelimit-headers-11: structured fields
//!   (RFC 9651), one item per limit.
//! - `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset`, of the binding limit alone. No standard
//!   specifies them, but they are widely used.
//!
//! A denial has `retry-after` (RFC 9110) too. All times are whole seconds, rounded up, so that a caller that waits for
//! as long is never early.
//!
//! ```
//! use paced::headers::{Headers, Reset};
//! use paced::{Limit, Limiter};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::builder("api").limit(Limit::gcra("burst", "10/s".parse()?, 20)?).build()?;
//! let headers = Headers::new(limiter.limits())?;
//! let fields = headers.all(&limiter.check("tenant-42").await?, Reset::InSeconds);
//! assert_eq!(fields[0], ("ratelimit-policy", r#""burst";q=20;w=2"#.to_owned()));
//! assert_eq!(fields[1], ("ratelimit", r#""burst";r=19;t=1"#.to_owned()));
//! # Ok(()) }
//! ```

use std::time::Duration;

use sfv::{Integer, ListSerializer, StringRef, key_ref};

use crate::limit::{Decision, Limit, LimitSet};
use crate::time::Micros;

/// A header field: its name and its value.
pub type Field = (&'static str, String);

/// Writes the header fields of one set of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The limits' names, in the order of the set.
    names: Vec<String>,
    policy: String,
}

/// The form of `x-ratelimit-reset`. Both forms are in use, so callers must know which one it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reset {
    /// The number of seconds until then, which needs no common clock with the caller.
    #[default]
    InSeconds,
    /// The second since the Unix epoch, on the store's clock.
    AtEpoch,
}

/// The reason why a set of limits has no header fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name of a limit is not a string of structured fields, by which the draft names limits.
    #[error("the limit `{}` cannot be named in a header; use printable ASCII", .0.escape_debug())]
    Name(String),
}

/// One second in µs.
const SECOND: u64 = 1_000_000;

impl Headers {
    /// Creates the writer for decisions on `limits`; those of a limiter are
    /// [`Limiter::limits`](crate::Limiter::limits).
    ///
    /// # Errors
    /// [`HeaderError`] when the name of a limit is not printable ASCII. Quotes and backslashes are allowed, and
    /// escaped.
    pub fn new(limits: &LimitSet) -> Result<Self, HeaderError> {
        let mut policy = ListSerializer::new();
        for limit in limits.iter() {
            let (quota, window) = quota(limit);
            // The parameters are written as they are added.
            let _ = policy
                .bare_item(name(limit.name())?)
                .parameter(const { key_ref("q") }, quota)
                .parameter(const { key_ref("w") }, window);
        }
        let names = limits.iter().map(|limit| limit.name().to_owned()).collect();
        // A list without members would be `None`, but a set is never empty.
        Ok(Self { names, policy: policy.finish().unwrap_or_default() })
    }

    /// Returns `ratelimit-policy`: the limits, which are the same with every answer.
    ///
    /// `q` is a limit's burst, or its N, and `w` is the number of seconds in which as many units return: the period of
    /// N, or the longest of a calendar. A quantity that returns in less than a second is stated per second.
    #[must_use]
    pub fn policy(&self) -> Field {
        ("ratelimit-policy", self.policy.clone())
    }

    /// Returns `ratelimit`: how the limits stand, the binding one first.
    ///
    /// `r` is the number of units that fit now, and `t` is for how long there may be no more: until the limit is full
    /// again, or until `retry-after` for one that denies.
    #[must_use]
    pub fn rate_limit(&self, decision: &Decision) -> Field {
        let mut list = ListSerializer::new();
        let binding = decision.binding;
        let order = std::iter::once(binding).chain((0..self.names.len()).filter(|place| *place != binding));
        for place in order {
            let (Some(limit), Some(standing)) = (self.names.get(place), decision.standings.get(place)) else {
                continue;
            };
            // The name was checked in `new`.
            let Ok(limit) = name(limit) else { continue };
            let denies = place == binding && !decision.allowed;
            let window = if denies { retry_after(decision) } else { seconds(standing.reset_after) };
            let _ = list
                .bare_item(limit)
                .parameter(const { key_ref("r") }, integer(standing.remaining))
                .parameter(const { key_ref("t") }, integer(window));
        }
        ("ratelimit", list.finish().unwrap_or_default())
    }

    /// Returns `x-ratelimit-limit`, `-remaining` and `-reset`, of the binding limit: its burst or N, the units of it
    /// that fit now, and when it is full again.
    #[must_use]
    pub fn x_rate_limit(decision: &Decision, reset: Reset) -> [Field; 3] {
        let at = match reset {
            Reset::InSeconds => seconds(decision.reset_after),
            Reset::AtEpoch => seconds(decision.now.plus(decision.reset_after).since(Micros(0))),
        };
        [
            ("x-ratelimit-limit", decision.limit.to_string()),
            ("x-ratelimit-remaining", decision.remaining.to_string()),
            ("x-ratelimit-reset", at.to_string()),
        ]
    }

    /// Returns `retry-after`: the number of seconds until a denied request is allowed, at least 1; `None` if it was
    /// allowed.
    #[must_use]
    pub fn retry_after(decision: &Decision) -> Option<Field> {
        (!decision.allowed).then(|| ("retry-after", retry_after(decision).to_string()))
    }

    /// Returns all of the fields, for both 200 and 429.
    #[must_use]
    pub fn all(&self, decision: &Decision, reset: Reset) -> Vec<Field> {
        let draft = [self.policy(), self.rate_limit(decision)];
        draft
            .into_iter()
            .chain(Self::x_rate_limit(decision, reset))
            .chain(Self::retry_after(decision))
            .collect()
    }
}

fn name(limit: &str) -> Result<&StringRef, HeaderError> {
    StringRef::from_str(limit).map_err(|_| HeaderError::Name(limit.to_owned()))
}

/// Returns a quantity and a number of seconds: the burst, and the time in which it returns, rounded up.
///
/// A window is whole seconds. Ten units that return in 100 ms would be stated as 10 in a second, a tenth of what is
/// allowed. So below a second it is the quantity that returns in one.
fn quota(limit: &Limit) -> (Integer, Integer) {
    let (rate, burst) = (limit.rate(), u128::from(limit.burst()));
    let (count, period) = (u128::from(rate.count()), u128::from(rate.period_micros()));
    let second = u128::from(SECOND);
    let back = burst * period;
    let (quota, window) = if back < count * second {
        (count * second / period, 1)
    } else {
        (burst, back.div_ceil(count * second))
    };
    let whole = |number: u128| integer(u64::try_from(number).unwrap_or(u64::MAX));
    (whole(quota), whole(window))
}

/// Returns the seconds of a span, rounded up.
fn seconds(span: Duration) -> u64 {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    micros.div_ceil(SECOND)
}

fn retry_after(decision: &Decision) -> u64 {
    seconds(decision.retry_after).max(1)
}

/// Converts a number to an integer of structured fields, which has 15 digits at most; higher numbers saturate.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests;
