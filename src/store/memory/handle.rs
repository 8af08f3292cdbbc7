//! Decisions in this process without a future: nothing is awaited, and no name is looked up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Downstream, MemoryStore};
use crate::limit::{Costs, Limit, LimitSet, Refusal};
use crate::lock::lock;
use crate::store::{Scope, StoreError};
use crate::time::{Clock, Micros};

/// The limits of one downstream in a [`MemoryStore`], for callers that must not await.
///
/// It shares its states with all others that use the same store, name and limits. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use paced::{Limit, LimitSet, MemoryStore};
///
/// let limits = LimitSet::new(vec![Limit::gcra("burst", "10/m".parse()?, 2)?])?;
/// let gate = MemoryStore::new().handle("api", limits)?;
/// assert!(gate.take("tenant-42", 1).is_ok());
/// assert!(gate.take("tenant-42", 1).is_ok());
/// assert!(gate.take("tenant-42", 1).is_err(), "the burst is used up");
/// // A slot within the next ten seconds, where the caller waits for it by itself.
/// let slot = gate.reserve("tenant-42", 1, Duration::from_secs(10));
/// assert!(slot.is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryHandle {
    clock: Arc<dyn Clock>,
    downstream: Arc<Mutex<Downstream>>,
    limits: Arc<LimitSet>,
    /// The latest slot at which a cost of 1 is exact.
    latest: Micros,
    /// The limit of a set that has only one, and the index of its states: the fast path.
    single: Option<(Limit, usize)>,
    /// Whether instants may come in the wrong order, which is harmless for the GCRA family, as it has no frontier.
    unordered: bool,
}

impl MemoryStore {
    /// A handle on the limits of one downstream.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the name cannot be a downstream's.
    pub fn handle(&self, downstream: &str, limits: LimitSet) -> Result<MemoryHandle, StoreError> {
        Scope { downstream, key: "" }.check()?;
        let downstream = self.open(downstream, || self.clock.now());
        let single = limits.single().map(|limit| (limit.clone(), lock(&downstream).index_of(limit)));
        let (clock, latest, unordered) = (Arc::clone(&self.clock), limits.latest(1), limits.is_tat());
        Ok(MemoryHandle { clock, downstream, limits: Arc::new(limits), latest, single, unordered })
    }
}

impl MemoryHandle {
    /// Takes `cost` from every limit if it fits now. With an empty key the limits are the whole
    /// downstream's. A refusal takes nothing.
    ///
    /// The limits are used as they are: a leaky bucket charges behind. A policer needs its meter; see
    /// [`LimitSet::policing`].
    ///
    /// # Errors
    /// [`Refusal`]: when it would fit ([`Micros::MAX`] for never), and by which limit.
    pub fn take(&self, key: &str, cost: u32) -> Result<Micros, Refusal> {
        self.reserve(key, cost, Duration::ZERO)
    }

    /// Reserves the first slot for `cost` that is at most `ahead` from now.
    ///
    /// # Errors
    /// As [`MemoryHandle::take`].
    pub fn reserve(&self, key: &str, cost: u32, ahead: Duration) -> Result<Micros, Refusal> {
        // The clock is read before the lock is taken, so that the wait for the lock is not part of the instant. Two
        // threads may then see their instants in the wrong order; a thread that waited long for the lock must read the
        // clock again, or the clock would seem to have stepped back. For windows the clock is read under the lock:
        // nothing fits before a slot that another thread has just taken.
        let early = self.unordered.then(|| self.clock.now());
        let mut downstream = lock(&self.downstream);
        let now = match early {
            Some(now) if !downstream.has_stepped(now) => now,
            _ => self.clock.now(),
        };
        downstream.follow(now);
        let latest = if cost == 1 { self.latest } else { self.limits.latest(cost) };
        let until = if ahead.is_zero() { now } else { now.plus(ahead) }.min(latest);
        if downstream.status.is_stopped() {
            return Err(Refusal { slot: Micros::MAX, limit: 0 });
        }
        if let Some((limit, index)) = &self.single {
            let taken = downstream.take((limit, *index), key, (now, until), cost);
            return taken.map_err(|slot| Refusal { slot, limit: 0 });
        }
        let mut states: Vec<_> = self.limits.iter().map(|limit| downstream.read(limit, key, now)).collect();
        let plan = self.limits.plan(&mut states, now, Costs::Each(&[cost]), until);
        let taken = plan.taken();
        for (index, (limit, state)) in self.limits.iter().zip(states).enumerate() {
            if taken.has(index) {
                downstream.write(limit, key, state);
            }
        }
        match (plan.slots.first(), plan.refused) {
            (Some(&slot), _) => Ok(slot),
            (None, refused) => Err(refused.unwrap_or(Refusal { slot: Micros::MAX, limit: 0 })),
        }
    }

    /// The present time of the clock that decides.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.clock.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::ManualClock;

    const START: Micros = Micros(1_760_000_000_000_000);

    fn gate(limits: Vec<Limit>) -> (Arc<ManualClock>, MemoryStore, MemoryHandle) {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::with_clock(clock.clone());
        let gate = store.handle("api", LimitSet::new(limits).unwrap()).unwrap();
        (clock, store, gate)
    }

    fn limit(name: &str, rate: &str, burst: u32) -> Limit {
        Limit::gcra(name, rate.parse().unwrap(), burst).unwrap()
    }

    #[test]
    fn one_limit_and_several_keep_their_states_by_key() {
        let ms = Duration::from_millis;
        for limits in [vec![limit("a", "10/s", 2)], vec![limit("a", "10/s", 2), limit("b", "100/s", 5)]] {
            let (clock, _, gate) = gate(limits);
            for key in ["", "x", "y"] {
                assert_eq!([gate.take(key, 1), gate.take(key, 1)], [Ok(START); 2], "{key}");
                let refused = Refusal { slot: START.plus(ms(100)), limit: 0 };
                assert_eq!(gate.take(key, 1), Err(refused), "{key}");
                assert_eq!(gate.take(key, 3).unwrap_err().slot, Micros::MAX, "more than ever fits");
                assert_eq!(gate.reserve(key, 1, ms(150)), Ok(START.plus(ms(100))));
                assert_eq!(gate.reserve(key, 1, ms(150)).unwrap_err().slot, START.plus(ms(200)));
            }
            clock.set(START.plus(Duration::from_secs(3600)));
            assert_eq!(gate.take("x", 2), Ok(clock.now()), "whole again");
        }
    }

    /// A clock that stands still, and records whether the downstream was locked when it was read.
    #[derive(Debug, Default)]
    struct Witness {
        watched: std::sync::OnceLock<Arc<Mutex<Downstream>>>,
        locked: std::sync::atomic::AtomicBool,
    }

    impl Clock for Witness {
        fn now(&self) -> Micros {
            let locked = self.watched.get().is_some_and(|watched| watched.try_lock().is_err());
            self.locked.store(locked, std::sync::atomic::Ordering::SeqCst);
            START
        }
    }

    /// A window would otherwise refuse what fits: an instant before another thread's slot is behind its frontier.
    #[test]
    fn instants_at_a_window_are_in_order() {
        let window = Limit::sliding_log("w", 5, Duration::from_secs(1)).unwrap();
        for (limits, ordered) in [
            (vec![limit("a", "10/s", 1)], false),
            (vec![window.clone()], true),
            (vec![limit("a", "10/s", 1), window], true),
        ] {
            let clock = Arc::<Witness>::default();
            let store = MemoryStore::with_clock(clock.clone());
            let gate = store.handle("api", LimitSet::new(limits).unwrap()).unwrap();
            clock.watched.set(Arc::clone(&gate.downstream)).unwrap();
            assert!(gate.take("", 1).is_ok());
            assert_eq!(clock.locked.load(std::sync::atomic::Ordering::SeqCst), ordered);
        }
    }

    #[test]
    fn it_shares_its_states_with_others_and_follows_a_clock_that_steps_back() {
        let (clock, store, gate) = gate(vec![limit("a", "10/s", 1)]);
        let other = store.handle("api", LimitSet::new(vec![limit("a", "10/s", 1)]).unwrap()).unwrap();
        assert!(gate.take("x", 1).is_ok() && other.take("x", 1).is_err());
        clock.set(START.minus(Duration::from_secs(3600)));
        let again = START.minus(Duration::from_secs(3600)).plus(Duration::from_millis(100));
        assert_eq!(other.take("x", 1).unwrap_err().slot, again, "corrected for the hour");
        clock.set(again);
        assert!(gate.take("x", 1).is_ok());
        assert!(store.handle("a{b", LimitSet::new(vec![limit("a", "10/s", 1)]).unwrap()).is_err());
    }
}
