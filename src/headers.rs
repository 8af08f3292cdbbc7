//! HTTP header fields that tell callers how their limits stand, from a [`Decision`].
//!
//! Two families, as pairs of a name (in lower case, as HTTP/2 needs it and HTTP/1.1 takes it) and a
//! value, for whatever HTTP library there is:
//!
//! - `ratelimit-policy` and `ratelimit`, of draft-ietf-httpapi-ratelimit-headers-11: structured fields
//!   (RFC 9651), one item per limit.
//! - `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset`, which nobody has specified and
//!   everybody knows: of the binding limit alone.
//!
//! And `retry-after` (RFC 9110) with a denial. All are whole seconds, rounded up: who comes back then is
//! never early.
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

use sfv::{Integer, ListSerializer, StringRef, key_ref};

use crate::limit::{Decision, Limit, LimitSet, Standing};
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

/// What `x-ratelimit-reset` says: both are in use, and callers must be told which it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reset {
    /// In how many seconds: needs no clock in common with the caller.
    #[default]
    InSeconds,
    /// At which second since the Unix epoch, on the store's clock.
    AtEpoch,
}

/// Why there are no header fields of a set of limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The draft names limits by structured fields' strings.
    #[error("the limit `{}` cannot be named in a header; use printable ASCII", .0.escape_debug())]
    Name(String),
}

/// µs.
const SECOND: u64 = 1_000_000;

impl Headers {
    /// For decisions on `limits`; of a limiter [`Limiter::limits`](crate::Limiter::limits).
    ///
    /// # Errors
    /// [`HeaderError`] when the name of a limit is not printable ASCII. Quotes and backslashes are: they
    /// are escaped.
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
        // Without members it would be none; a set is never empty.
        Ok(Self { names, policy: policy.finish().unwrap_or_default() })
    }

    /// `ratelimit-policy`: what the limits are, the same with every answer.
    ///
    /// `q` is a limit's burst, or its N, and `w` is in how many seconds as many come back: N's period, a
    /// calendar's longest. What comes back within less than a second is told per second.
    #[must_use]
    pub fn policy(&self) -> Field {
        ("ratelimit-policy", self.policy.clone())
    }

    /// `ratelimit`: how the limits stand, the binding one first.
    ///
    /// `r` are the units that fit now, and `t` says for how long there may be no more: until the limit is
    /// whole, or until `retry-after` for one that denies.
    #[must_use]
    pub fn rate_limit(&self, decision: &Decision) -> Field {
        let mut list = ListSerializer::new();
        let binding = decision.binding;
        let order = std::iter::once(binding).chain((0..self.names.len()).filter(|place| *place != binding));
        for place in order {
            let (Some(limit), Some(standing)) = (self.names.get(place), decision.standings.get(place)) else {
                continue;
            };
            // Checked when it was built.
            let Ok(limit) = name(limit) else { continue };
            let denies = place == binding && !decision.allowed;
            let window = if denies { retry_after(decision) } else { until_whole(standing, decision.now) };
            let _ = list
                .bare_item(limit)
                .parameter(const { key_ref("r") }, integer(standing.remaining))
                .parameter(const { key_ref("t") }, integer(window));
        }
        ("ratelimit", list.finish().unwrap_or_default())
    }

    /// `x-ratelimit-limit`, `-remaining` and `-reset`, of the binding limit: its burst or N, the units of it
    /// that fit now, and when it is whole.
    #[must_use]
    pub fn x_rate_limit(decision: &Decision, reset: Reset) -> [Field; 3] {
        let at = match reset {
            Reset::InSeconds => seconds(decision.reset_at.0 - decision.now.0),
            Reset::AtEpoch => seconds(decision.reset_at.0),
        };
        [
            ("x-ratelimit-limit", decision.limit.to_string()),
            ("x-ratelimit-remaining", decision.remaining.to_string()),
            ("x-ratelimit-reset", at.to_string()),
        ]
    }

    /// `retry-after`: in how many seconds what was denied is allowed, at least 1; none when it was allowed.
    #[must_use]
    pub fn retry_after(decision: &Decision) -> Option<Field> {
        (!decision.allowed).then(|| ("retry-after", retry_after(decision).to_string()))
    }

    /// All of them: for both 200 and 429.
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

/// How much in how many seconds: the burst in the time in which it comes back, rounded up.
///
/// A window is whole seconds. Ten units that come back in 100 ms would be told as 10 in a second, a tenth
/// of what is allowed: below a second it is what comes back in one.
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

/// Seconds, rounded up; 0 for what has passed.
fn seconds(micros: i64) -> u64 {
    micros.max(0).unsigned_abs().div_ceil(SECOND)
}

fn until_whole(standing: &Standing, now: Micros) -> u64 {
    seconds(standing.reset_at.0 - now.0)
}

fn retry_after(decision: &Decision) -> u64 {
    let micros = u64::try_from(decision.retry_after.as_micros()).unwrap_or(u64::MAX);
    micros.div_ceil(SECOND).max(1)
}

/// A structured field's integer has 15 digits; more are as good as those.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests;
