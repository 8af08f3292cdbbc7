//! What a replica paces by, as the store is there or away: pure.
//!
//! | state | what happens | next state |
//! |---|---|---|
//! | `Shared` | a call fails: `on_unavailable = "hold"`, or nothing is known to pace by, or the store refuses the call | `Held` |
//! | `Shared`, `Held` | the store is away: `on_unavailable = "local"` | `Local` |
//! | `Shared`, `Held` | the store is away: `on_unavailable = "open"` | `Open` |
//! | `Held` | the store answers | `Shared` |
//! | `Local`, `Open` | the store answers a probe | `Rejoining` |
//! | `Local`, `Open`, `Rejoining` | the store refuses a call | `Held` |
//! | `Rejoining` | the store is away again | as before: `Local` or `Open` |
//! | `Rejoining` | the shared pace goes on, or all are back, or they were waited for long enough | `Shared` |
//! | `Local`, `Open`, `Rejoining` | other settings: hold, or `local` where nothing is known to pace by | `Held` |
//! | `Local`, `Open` | other settings: the other of the two | `Open`, `Local` |
//!
//! Slots are asked of the store in `Shared` and `Held` (there, each time that the back-off is over), and of this
//! replica's own pace in `Local` and in `Rejoining` from it. In `Open` nothing paces.

use std::time::Duration;

use tokio::time::Instant;

use super::LocalPace;

/// How long to wait for the others, once the store is there again.
const PATIENCE: Duration = Duration::from_secs(1);

/// After so long a pace that is in use is used by others, and is not one that begins behind a fence.
const FENCE_GRACE: Duration = Duration::from_millis(300);

/// How long to wait before the store is asked again after an error: at first, and at most. With a call that fails for
/// want of an answer and the fence of a store that lost its state, all goes on within 2 s.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What a replica paces by.
#[derive(Debug)]
pub(crate) enum State {
    /// By the pace that all replicas share.
    Shared,
    /// By nothing: nobody gets a slot. So many calls failed in a row since then.
    Held { failures: u32 },
    /// By its own share of the limits, since the store is away.
    Away(Fallback),
    /// Still by the fallback, since the store answered then; soon by the shared pace.
    Rejoining { since: Instant, fallback: Fallback },
}

/// What a replica paces by while the store is away.
#[derive(Debug)]
pub(crate) struct Fallback {
    /// Its own pace (`Local`); none (`Open`): everything is released.
    pub(crate) local: Option<LocalPace>,
    /// How many shared the pace when the store went away.
    pub(crate) replicas: u32,
}

/// What a probe tells of the shared pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probed {
    /// The replicas that are back, this one among them.
    pub(crate) replicas: Option<u32>,
    /// The shared pace began anew with a pause, or is in one.
    pub(crate) is_paused: bool,
    /// Slots are taken beyond now.
    pub(crate) is_in_use: bool,
}

impl State {
    /// The pace of this replica's own that slots are asked of.
    pub(crate) const fn local(&self) -> Option<&LocalPace> {
        match self {
            Self::Away(fallback) | Self::Rejoining { fallback, .. } => fallback.local.as_ref(),
            Self::Shared | Self::Held { .. } => None,
        }
    }

    /// Whether nothing paces.
    pub(crate) const fn is_open(&self) -> bool {
        match self {
            Self::Away(fallback) | Self::Rejoining { fallback, .. } => fallback.local.is_none(),
            Self::Shared | Self::Held { .. } => false,
        }
    }

    /// Whether the store is away, and was not heard again.
    pub(crate) const fn is_away(&self) -> bool {
        matches!(self, Self::Away(_))
    }

    /// Whether the replica goes by something else than the store's slots.
    pub(crate) const fn is_absent(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Rejoining { .. })
    }

    /// Whether the last call failed.
    pub(crate) const fn is_failing(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Away(_))
    }

    /// Takes what the replica goes by while the store is away, and holds instead.
    pub(crate) fn take_fallback(&mut self) -> Option<Fallback> {
        match std::mem::replace(self, Self::Held { failures: 0 }) {
            Self::Away(fallback) | Self::Rejoining { fallback, .. } => Some(fallback),
            before @ (Self::Shared | Self::Held { .. }) => {
                *self = before;
                None
            }
        }
    }

    /// The store answered a call for slots, or about the record; true where none succeeded before.
    pub(crate) fn on_answer(&mut self) -> bool {
        let was_held = matches!(self, Self::Held { .. });
        if was_held {
            *self = Self::Shared;
        }
        was_held
    }

    /// The store answered a probe at `now`; true where it was away until then.
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

    /// The store is away while this replica goes by its fallback; false where it has none.
    pub(crate) fn on_away_again(&mut self) -> bool {
        if let Some(fallback) = self.take_fallback() {
            *self = Self::Away(fallback);
            return true;
        }
        false
    }

    /// Goes back to the shared pace.
    pub(crate) fn rejoin(&mut self) {
        *self = Self::Shared;
    }

    /// Another pace of this replica's own counts from now on, or none.
    pub(crate) fn replace_local(&mut self, pace: Option<LocalPace>) {
        if let Self::Away(Fallback { local, .. }) | Self::Rejoining { fallback: Fallback { local, .. }, .. } =
            self
        {
            *local = pace;
        }
    }

    /// A call failed, and nothing is gone by meanwhile: returns how many failed before, and how long to wait at most.
    pub(crate) fn on_failure(&mut self) -> (u32, Duration) {
        let failures = match self {
            Self::Held { failures } => *failures,
            _ => 0,
        };
        *self = Self::Held { failures: failures.saturating_add(1) };
        (failures, BACKOFF.0.saturating_mul(2_u32.saturating_pow(failures)).min(BACKOFF.1))
    }

    /// Whether to go back to the shared pace at `now`, and whether that goes on already; none: not yet.
    pub(crate) fn rejoins(&self, now: Instant, probed: Probed) -> Option<bool> {
        let Self::Rejoining { since, fallback } = self else { return None };
        let waited = now - *since;
        let all_are_back = probed.replicas.is_some_and(|replicas| replicas >= fallback.replicas);
        // Somebody has begun with the shared pace, as the pause before it tells; or it never stood still. A record that
        // was lost seems to be in use too, for a moment.
        let goes_on = probed.is_paused || (probed.is_in_use && waited >= FENCE_GRACE);
        // All leases live on where it was this replica alone that did not reach it: the pace never stood still.
        let stands_still = all_are_back && !probed.is_in_use;
        let is_open = fallback.local.is_none();
        (stands_still || goes_on || is_open || waited >= PATIENCE).then_some(goes_on)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pace::testing;
    use crate::store::MemoryStore;

    const MS: Duration = Duration::from_millis(1);

    fn fallback(is_local: bool) -> Fallback {
        let settings = Arc::new(testing::settings("5/s"));
        let local = is_local.then(|| LocalPace { store: Arc::new(MemoryStore::new()), settings });
        Fallback { local, replicas: 4 }
    }

    fn away(is_local: bool) -> State {
        State::Away(fallback(is_local))
    }

    /// Its name, for the table.
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
        assert!(!state.on_away_again(), "it goes by nothing");
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
            assert_eq!(state.take_fallback().map(|fallback| fallback.replicas), Some(4));
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
            // The pace is in use: by others, or it begins behind a fence.
            (0, true, probed(4, false, true), None),
            (299, true, probed(1, false, true), None),
            (300, true, probed(1, false, true), Some(true)),
            (0, true, probed(1, true, false), Some(true)),
            (999, true, probed(3, false, false), None),
            (1000, true, probed(3, false, false), Some(false)),
            (0, false, probed(1, false, false), Some(false)),
        ] {
            let rejoins = state(is_local).rejoins(since + MS * after, probed);
            assert_eq!(rejoins, expected, "{after} ms, {is_local}, {probed:?}");
        }
        assert_eq!(away(true).rejoins(since, probed(4, true, false)), None, "the store is away");
    }
}
