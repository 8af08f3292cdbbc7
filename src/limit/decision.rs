//! The answer of a policer.

use std::time::Duration;

use crate::time::Micros;

/// How one limit stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// The units that may go at once after an idle period: the burst, or N.
    pub limit: u64,
    /// The units that would fit now.
    pub remaining: u64,
    /// The time until the limit is full again, if nothing more is taken: for windows until the window ends, for a log
    /// until its oldest entry leaves.
    pub reset_after: Duration,
}

/// Whether a request may go now, and how the limits stand then.
///
/// `limit`, `remaining` and `reset_after` are those of the binding limit: of several that must all agree, when denied
/// the one that allows it last, when allowed the one with the fewest units remaining; of alternatives, when denied the
/// one that allows it first, when allowed the one with the most remaining of those that were charged (of all, if
/// nothing was).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it says whether the request may go"]
#[non_exhaustive]
pub struct Decision {
    /// Whether the request may go now. If not, nothing was taken.
    pub allowed: bool,
    /// The units of the binding limit.
    pub limit: u64,
    /// The units of the binding limit that would fit now, after this decision.
    pub remaining: u64,
    /// The time until the binding limit is full again.
    pub reset_after: Duration,
    /// The time until the request would be allowed, if nothing more is taken; zero if it was allowed.
    pub retry_after: Duration,
    /// Whether the store could not be reached, so that a limiter decided without it; see
    /// [`LimiterBuilder::on_unavailable`](crate::LimiterBuilder::on_unavailable).
    pub is_fallback: bool,
    /// The store's clock at the decision.
    pub(crate) now: Micros,
    /// The place of the binding limit in the set.
    pub binding: usize,
    /// How each limit of the set stands, after this decision.
    pub standings: Vec<Standing>,
}
