//! What a policer answers.

use std::time::Duration;

use crate::time::Micros;

/// How one limit stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// Units that may go at once after a rest: the burst, or N.
    pub limit: u64,
    /// Units that would fit now.
    pub remaining: u64,
    /// When it is whole again, if nothing more is taken: for the windows when the window ends, for a
    /// log when its oldest entry leaves.
    pub reset_at: Micros,
}

/// Whether something may go now, and how the limits stand then.
///
/// `limit`, `remaining` and `reset_at` are those of the binding limit: of several that must all
/// agree, when denied the one that allows it last, when allowed the one with the fewest units
/// remaining; of alternatives, when denied the one that allows it first, when allowed the one with
/// the most remaining of those that were charged (of all, where nothing was).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether it may go now. If not, nothing was taken.
    pub allowed: bool,
    /// The binding limit's units.
    pub limit: u64,
    /// Units of it that would fit now, after this decision.
    pub remaining: u64,
    /// When it is whole again, on the store's clock.
    pub reset_at: Micros,
    /// How long until it would be allowed, if nothing more is taken; zero when it was allowed.
    pub retry_after: Duration,
    /// The store's clock when it decided.
    pub now: Micros,
    /// Which limit is binding: its place in the set.
    pub binding: usize,
    /// How each limit of the set stands, after this decision.
    pub standings: Vec<Standing>,
}
