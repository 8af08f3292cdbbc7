//! The kernel: every algorithm is two pure functions over a compact state, `earliest` and
//! `commit`. Neither reads a clock nor does I/O. The scripts in `store/redis/lua` compute the same.

pub mod calendar;
mod leaky_bucket;

use crate::rate::Rate;

use crate::time::Micros;

pub use leaky_bucket::{LeakyBucket, Tat};

/// The most jobs that one call reserves for.
pub const MAX_BATCH: usize = 1024;

/// A named limit. The name is the key of its state, so numbers may change and the state stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    name: String,
    algorithm: Algorithm,
}

/// The algorithm of a limit, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A shaper: slots T apart, the cost charged behind.
    LeakyBucket(LeakyBucket),
}

/// What a limit remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The GCRA family's theoretical arrival time.
    Tat(Tat),
}

/// Numbers that no exact arithmetic in 53 bits can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A burst of zero lets nothing through.
    #[error("a burst of 0 lets nothing through; use at least 1")]
    NoBurst,
    /// The burst and a full batch at this rate reach beyond what is exact.
    #[error("a burst of {burst} at {rate} is beyond exact time; use a smaller burst or a shorter period")]
    BeyondExact {
        /// The burst.
        burst: u32,
        /// The rate.
        rate: Rate,
    },
    /// Two limits of one name would share a state.
    #[error("two limits are called `{0}`; give each its own name")]
    SameName(String),
    /// A set without a limit.
    #[error("no limit; give at least one, such as rate = \"50/s\"")]
    Empty,
}

impl Limit {
    /// A leaky bucket: `burst` slots at once at most, else T apart.
    ///
    /// # Errors
    /// [`LimitError`] when the burst is 0 or the numbers are beyond exact time.
    pub fn leaky_bucket(name: impl Into<String>, rate: Rate, burst: u32) -> Result<Self, LimitError> {
        let algorithm = Algorithm::LeakyBucket(LeakyBucket::new(rate, burst)?);
        Ok(Self { name: name.into(), algorithm })
    }

    /// The name: the key of its state.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The algorithm and its numbers.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The state of a limit that was never used, or is whole again.
    #[must_use]
    pub const fn fresh(&self) -> State {
        match self.algorithm {
            Algorithm::LeakyBucket(_) => State::Tat(Tat::ZERO),
        }
    }

    /// The rate that the limit allows in the long run.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        match self.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.rate(),
        }
    }

    /// The first instant, `now` or later, at which `cost` fits.
    #[must_use]
    pub fn earliest(&self, state: &State, now: Micros, cost: u32) -> Micros {
        match (self.algorithm, state) {
            (Algorithm::LeakyBucket(bucket), State::Tat(tat)) => bucket.earliest(*tat, now, cost),
        }
    }

    /// The state once `cost` is taken at `at`.
    #[must_use]
    pub fn commit(&self, state: &State, at: Micros, cost: u32) -> State {
        match (self.algorithm, state) {
            (Algorithm::LeakyBucket(bucket), State::Tat(tat)) => State::Tat(bucket.commit(*tat, at, cost)),
        }
    }

    /// The latest slot at which `cost` can be taken exactly.
    #[must_use]
    pub fn latest(&self, cost: u32) -> Micros {
        match self.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.latest(cost),
        }
    }

    /// A stored state under these numbers: it may have been written under others.
    #[must_use]
    pub const fn adopt(&self, state: State) -> State {
        match (self.algorithm, state) {
            (Algorithm::LeakyBucket(bucket), State::Tat(tat)) => State::Tat(bucket.adopt(tat)),
        }
    }

    /// The highest cost of one job that is exact.
    #[must_use]
    pub const fn max_cost(&self) -> u32 {
        match self.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.max_cost(),
        }
    }
}

/// Limits that must all agree: the slot is the latest of their `earliest`, and all commit there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSet(Vec<Limit>);

impl LimitSet {
    /// The set of these limits.
    ///
    /// # Errors
    /// [`LimitError`] when there is none, or two have one name.
    pub fn new(limits: Vec<Limit>) -> Result<Self, LimitError> {
        if limits.is_empty() {
            return Err(LimitError::Empty);
        }
        for (index, limit) in limits.iter().enumerate() {
            if limits[..index].iter().any(|other| other.name == limit.name) {
                return Err(LimitError::SameName(limit.name.clone()));
            }
        }
        Ok(Self(limits))
    }

    /// The limits, in the order in which they were given.
    pub fn iter(&self) -> std::slice::Iter<'_, Limit> {
        self.0.iter()
    }

    /// How many there are: at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The states of limits that were never used.
    #[must_use]
    pub fn fresh(&self) -> Vec<State> {
        self.iter().map(Limit::fresh).collect()
    }

    /// The slot of a job: the first instant at which its cost fits every limit.
    #[must_use]
    pub fn earliest(&self, states: &[State], now: Micros, cost: u32) -> Micros {
        let each = self.iter().zip(states).map(|(limit, state)| limit.earliest(state, now, cost));
        each.max().unwrap_or(now)
    }

    /// Takes `cost` at `at` from every limit.
    pub fn commit(&self, states: &mut [State], at: Micros, cost: u32) {
        for (limit, state) in self.iter().zip(states) {
            *state = limit.commit(state, at, cost);
        }
    }

    /// The latest slot at which `cost` can be taken from every limit exactly.
    #[must_use]
    pub fn latest(&self, cost: u32) -> Micros {
        self.iter().map(|limit| limit.latest(cost)).min().unwrap_or(Micros::MAX)
    }

    /// Slots for the first jobs of `costs`, as far as `until`; and the first slot beyond it.
    /// `states` is left as after the last slot.
    pub fn plan(
        &self,
        states: &mut [State],
        now: Micros,
        costs: &[u32],
        until: Micros,
    ) -> (Vec<Micros>, Option<Micros>) {
        let mut slots = Vec::with_capacity(costs.len().min(MAX_BATCH));
        for &cost in costs.iter().take(MAX_BATCH) {
            let slot = self.earliest(states, now, cost);
            if slot > until {
                return (slots, Some(slot));
            }
            self.commit(states, slot, cost);
            slots.push(slot);
        }
        (slots, None)
    }

    /// The slowest rate of the set: what it releases in the long run, at cost 1.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let slowest = self.iter().map(Limit::rate).max_by_key(|rate| rate.interval());
        // The set is never empty.
        slowest.unwrap_or_else(|| self.0[0].rate())
    }

    /// The highest cost of one job that is exact in every limit.
    #[must_use]
    pub fn max_cost(&self) -> u32 {
        self.iter().map(Limit::max_cost).min().unwrap_or(1)
    }
}
