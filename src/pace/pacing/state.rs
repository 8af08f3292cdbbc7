//! The pacing state of a replica, as the store is available or not. It is a pure state machine.
//!
//! | state | event | next state |
//! |---|---|---|
//! | `Shared` | a call fails: `on_unavailable = "hold"`, or nothing is known of the shared pace, or the store refuses the call | `Held` |
//! | `Shared`, `Held` | the store is unavailable: `on_unavailable = "local"` | `Local` |
//! | `Shared`, `Held` | the store is unavailable: `on_unavailable = "open"` | `Open` |
//! | `Held` | the store answers | `Shared` |
//! | `Local`, `Open` | the store answers a probe | `Rejoining` |
//! | `Local`, `Open`, `Rejoining` | the store refuses a call | `Held` |
//! | `Rejoining` | the store is unavailable again | the fallback as before: `Local` or `Open` |
//! | `Rejoining` | releases were not limited (`Open`); or the shared pace is in use; or it is not, and all replicas are back; or the wait for them timed out | `Shared` |
//! | `Local`, `Open`, `Rejoining` | other settings: hold, or `local` while nothing is known of the shared pace | `Held` |
//! | `Local`, `Open` | other settings: the other of the two | `Open`, `Local` |
//!
//! Slots are requested from the store in `Shared` and `Held` (in `Held` each time that the back-off is over), and
//! from the local pace in `Local`, and in `Rejoining` after `Local`. In `Open`, releases are not limited.

use std::time::Duration;

use tokio::time::Instant;

use super::LocalPace;

/// The longest wait for the other replicas once the store is available again. Each has probed it by then: one whose probe
/// has just begun may wait for two time-outs of half a second, and then for the longest wait between probes.
const REJOIN_TIMEOUT: Duration = Duration::from_millis(1500);

/// After this time a shared pace that seems in use is used by other replicas; before, it may only begin behind a fence.
const FENCE_GRACE: Duration = Duration::from_millis(300);

/// The back-off after an error: the first one, and the longest. Together with a call that times out and the fence of a
/// store that lost its state, releases resume within 2 s.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The pacing state of a replica.
#[derive(Debug)]
pub(crate) enum State {
    /// The replica follows the pace that all replicas share.
    Shared,
    /// No slots are granted. `failures` counts the calls that failed in a row.
    Held { failures: u32 },
    /// The replica follows its fallback, since the store is unavailable.
    Away(Fallback),
    /// The store answered at `since`; the replica still follows its fallback, and will soon return to the shared pace.
    Rejoining { since: Instant, fallback: Fallback },
}

/// The pacing of a replica while the store is unavailable.
#[derive(Debug)]
pub(crate) struct Fallback {
    /// The local pace (`Local`), or `None` (`Open`): everything is released.
    pub(crate) local: Option<LocalPace>,
    /// The number of replicas that had a lease when the store became unavailable.
    pub(crate) leases: u32,
}

/// The state of the shared pace, as a probe reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probed {
    /// The number of replicas that are back, this one included.
    pub(crate) replicas: Option<u32>,
    /// Whether the shared pace started again with a pause, or is paused.
    pub(crate) is_paused: bool,
    /// Whether slots beyond now are taken.
    pub(crate) is_in_use: bool,
}

impl State {
    /// Returns the local pace from which slots are requested.
    pub(crate) const fn local(&self) -> Option<&LocalPace> {
        match self {
            Self::Away(fallback) | Self::Rejoining { fallback, .. } => fallback.local.as_ref(),
            Self::Shared | Self::Held { .. } => None,
        }
    }

    /// Whether releases are not limited.
    pub(crate) const fn is_open(&self) -> bool {
        match self {
            Self::Away(fallback) | Self::Rejoining { fallback, .. } => fallback.local.is_none(),
            Self::Shared | Self::Held { .. } => false,
        }
    }

    /// Whether the store is unavailable, and has not answered since.
    pub(crate) const fn is_away(&self) -> bool {
        matches!(self, Self::Away(_))
    }

    /// Whether the replica follows its fallback instead of the shared pace.
    pub(crate) const fn is_absent(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Rejoining { .. })
    }

    /// Whether the last call failed.
    pub(crate) const fn is_failing(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Away(_))
    }

    /// Ends the fallback, and holds instead.
    pub(crate) fn take_fallback(&mut self) -> Option<Fallback> {
        match std::mem::replace(self, Self::Held { failures: 0 }) {
            Self::Away(fallback) | Self::Rejoining { fallback, .. } => Some(fallback),
            before @ (Self::Shared | Self::Held { .. }) => {
                *self = before;
                None
            }
        }
    }

    /// Records that the store answered a reserve call, or one about the record. Returns whether calls had
    /// failed while there was no fallback (`Held`).
    pub(crate) fn on_answer(&mut self) -> bool {
        let was_held = matches!(self, Self::Held { .. });
        if was_held {
            *self = Self::Shared;
        }
        was_held
    }

    /// Records that the store answered a probe at `now`. Returns whether it was unavailable until then.
    pub(crate) fn on_probe_answer(&mut self, now: Instant) -> bool {
        match std::mem::replace(self, Self::Shared) {
            Self::Away(fallback) => {
                *self = Self::Rejoining { since: now, fallback };
                true
            }
            Self::Held { .. } => true,
            before => {
                *self = before;
                false
            }
        }
    }

    /// Records that the store is unavailable while this replica uses its fallback. Returns false if it has none.
    pub(crate) fn on_away_again(&mut self) -> bool {
        if let Some(fallback) = self.take_fallback() {
            *self = Self::Away(fallback);
            return true;
        }
        false
    }

    /// Returns to the shared pace.
    pub(crate) fn rejoin(&mut self) {
        *self = Self::Shared;
    }

    /// Replaces the local pace by another one, or by none.
    pub(crate) fn replace_local(&mut self, pace: Option<LocalPace>) {
        if let Self::Away(Fallback { local, .. }) | Self::Rejoining { fallback: Fallback { local, .. }, .. } =
            self
        {
            *local = pace;
        }
    }

    /// Records that a call failed while there is no fallback. Returns how many failed before, and the longest back-off.
    pub(crate) fn on_failure(&mut self) -> (u32, Duration) {
        let failures = match self {
            Self::Held { failures } => *failures,
            _ => 0,
        };
        *self = Self::Held { failures: failures.saturating_add(1) };
        (failures, BACKOFF.0.saturating_mul(2_u32.saturating_pow(failures)).min(BACKOFF.1))
    }

    /// Decides whether to return to the shared pace at `now`. Returns whether that pace is already in use, or `None` to
    /// wait longer.
    pub(crate) fn rejoins(&self, now: Instant, probed: Probed) -> Option<bool> {
        let Self::Rejoining { since, fallback } = self else { return None };
        let waited = now - *since;
        let all_are_back = probed.replicas.is_some_and(|replicas| replicas >= fallback.leases);
        // Another replica has resumed the shared pace, as its initial pause shows, or the pace was never interrupted.
        // For a moment a lost record seems to be in use too.
        let is_in_use = probed.is_paused || (probed.is_in_use && waited >= FENCE_GRACE);
        // If this replica alone did not reach the store, all leases are still alive, but the pace was never
        // interrupted.
        let stands_still = all_are_back && !probed.is_in_use;
        let is_open = fallback.local.is_none();
        (stands_still || is_in_use || is_open || waited >= REJOIN_TIMEOUT).then_some(is_in_use)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pace::tests;
    use crate::store::MemoryStore;

    const MS: Duration = Duration::from_millis(1);

    fn fallback(is_local: bool) -> Fallback {
        let settings = Arc::new(tests::settings("5/s"));
        let local = is_local.then(|| LocalPace { store: Arc::new(MemoryStore::new()), settings });
        Fallback { local, leases: 4 }
    }

    fn away(is_local: bool) -> State {
        State::Away(fallback(is_local))
    }

    /// Returns the name of the state in the table.
    fn name(state: &State) -> &'static str {
        match state {
            State::Shared => "Shared",
            State::Held { .. } => "Held",
            State::Away(Fallback { local: Some(_), .. }) => "Local",
            State::Away(_) => "Open",
            State::Rejoining { .. } => "Rejoining",
        }
    }

    #[test]
    fn shared_to_held_and_back() {
        let mut state = State::Shared;
        assert!(!state.on_answer() && !state.is_failing());
        let waits: Vec<(u32, u128)> =
            (0..6).map(|_| state.on_failure()).map(|(before, wait)| (before, wait.as_millis())).collect();
        assert_eq!(waits, [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1000), (5, 1000)]);
        assert!(state.is_failing() && !state.is_absent() && state.local().is_none());
        assert!(!state.on_away_again(), "it has no fallback");
        assert!(state.on_answer());
        assert_eq!(name(&state), "Shared");
        assert_eq!(state.on_failure().0, 0, "counted anew");
        assert!(state.on_probe_answer(Instant::now()));
        assert_eq!(name(&state), "Shared");
    }

    #[test]
    fn local_and_open_to_rejoining_and_back() {
        for (is_local, expected) in [(true, "Local"), (false, "Open")] {
            let mut state = away(is_local);
            assert_eq!(
                (name(&state), state.is_open(), state.local().is_some()),
                (expected, !is_local, is_local)
            );
            assert!(state.is_away() && state.is_failing() && !state.on_answer(), "a late answer");
            assert!(state.on_probe_answer(Instant::now()));
            assert_eq!((name(&state), state.is_open(), state.is_away()), ("Rejoining", !is_local, false));
            assert!(!state.on_probe_answer(Instant::now() + MS), "the first one counts");
            assert!(state.on_away_again());
            assert_eq!(name(&state), expected);
        }
    }

    #[test]
    fn what_was_gone_by_is_given_up_for_held() {
        let rejoining = State::Rejoining { since: Instant::now(), fallback: fallback(true) };
        for mut state in [away(true), away(false), rejoining] {
            assert_eq!(state.take_fallback().map(|fallback| fallback.leases), Some(4));
            assert_eq!((name(&state), state.on_failure().0), ("Held", 0));
        }
        for mut state in [State::Shared, State::Held { failures: 3 }] {
            let before = name(&state);
            assert!(state.take_fallback().is_none());
            assert_eq!(name(&state), before);
        }
    }

    #[test]
    fn when_it_rejoins() {
        let since = Instant::now();
        let state = |is_local| State::Rejoining { since, fallback: fallback(is_local) };
        let probed =
            |replicas, is_paused, is_in_use| Probed { replicas: Some(replicas), is_paused, is_in_use };
        for (after, is_local, probed, expected) in [
            (0, true, probed(1, false, false), None),
            (0, true, probed(4, false, false), Some(false)),
            // The pace is in use by others, or it begins behind a fence.
            (0, true, probed(4, false, true), None),
            (299, true, probed(1, false, true), None),
            (300, true, probed(1, false, true), Some(true)),
            (0, true, probed(1, true, false), Some(true)),
            (1499, true, probed(3, false, false), None),
            (1500, true, probed(3, false, false), Some(false)),
            (0, false, probed(1, false, false), Some(false)),
        ] {
            let rejoins = state(is_local).rejoins(since + MS * after, probed);
            assert_eq!(rejoins, expected, "{after} ms, {is_local}, {probed:?}");
        }
        assert_eq!(away(true).rejoins(since, probed(4, true, false)), None, "the store is away");
    }
}
