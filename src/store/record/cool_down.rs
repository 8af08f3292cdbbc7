//! The cool-down of a downstream that refuses requests and names no time. `lua/cool_down.lua` has the same rules.

use std::time::Duration;

use crate::store::{GRACE, StoreError};
use crate::time::Micros;

/// The cool-down of a downstream: after a refusal all replicas wait, then one of them sends a single job as a probe. The
/// wait doubles with every probe that is refused, and the first success ends the cool-down.
///
/// It ends by itself a minute after both `at` and `until`: if nobody asks for a probe for so long, nobody has jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoolDown {
    /// How often a probe was refused.
    pub level: u32,
    /// The instant from which on a probe may go.
    pub at: Micros,
    /// The replica that probes.
    pub holder: Option<String>,
    /// The end of the holder's lease on the probe; 0 without a holder.
    pub until: Micros,
}

/// A change to the cool-down of a downstream. Each names the replica that makes it: 1 to 128 bytes without a colon or a
/// line break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoolDownCall<'a> {
    /// A request was refused. This begins a cool-down that waits for `first`. If the replica holds the probe, also under
    /// a lease that has ended, the wait doubles and the probe is given back. Otherwise nothing changes.
    ///
    /// No slot lies within a wait that this begins: [`Status::penalty`](crate::store::Status::penalty) is then at least
    /// [`CoolDown::at`].
    Refused {
        /// The replica that was refused.
        replica: &'a str,
        /// The wait before the first probe, 1 ms to 1 h.
        first: Duration,
        /// The longest wait, `first` to 1 h.
        most: Duration,
    },
    /// Asks for the probe. It is granted once [`CoolDown::at`] has passed, unless another replica holds a lease that has
    /// not ended: then [`CoolDown::holder`] is the caller in the answer. The holder's lease is renewed.
    Probe {
        /// The replica that asks.
        replica: &'a str,
        /// How long the lease lasts from the store's now on, 100 ms to 10 min.
        ttl: Duration,
    },
    /// The holder gives the probe back without a result: the next one may go after the same wait. The penalty is as
    /// with [`CoolDownCall::Refused`].
    Again {
        /// The holder.
        replica: &'a str,
        /// As in [`CoolDownCall::Refused`].
        first: Duration,
        /// As in [`CoolDownCall::Refused`].
        most: Duration,
    },
    /// The holder's probe succeeded: the cool-down is over.
    Over {
        /// The holder.
        replica: &'a str,
    },
}

/// The longest name of a replica, in bytes.
const LONGEST_REPLICA: usize = 128;
/// The shortest wait.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// The shortest lease on the probe.
const SHORTEST_PROBE: Duration = Duration::from_millis(100);
/// The longest lease on the probe.
const LONGEST_PROBE: Duration = Duration::from_secs(600);

impl CoolDown {
    /// This cool-down as it counts at `now`; `None` once it has ended by itself. No instant lies further ahead than any
    /// call sets it, also if the clock has stepped.
    pub(in crate::store) fn current(&self, now: Micros) -> Option<Self> {
        let at = self.at.min(now.plus(LONGEST_WAIT));
        let until = self.until.min(now.plus(LONGEST_PROBE));
        (at.max(until).plus(GRACE) > now).then(|| Self { at, until, ..self.clone() })
    }

    /// The same instants on a clock that stepped back by `back` µs; forward where that is negative. 0 stays what it stands
    /// for.
    pub(in crate::store) fn step_back(&mut self, back: i64) {
        let earlier = |at: Micros| if at == Micros(0) { at } else { Micros((at.0 - back).max(0)) };
        (self.at, self.until) = (earlier(self.at), earlier(self.until));
    }

    fn is_held_by(&self, replica: &str) -> bool {
        self.holder.as_deref() == Some(replica)
    }

    /// Whether a replica that does not hold the probe may take it.
    fn is_free(&self, now: Micros) -> bool {
        self.at <= now && self.until <= now
    }

    /// A wait from `now` on, without a holder.
    fn waiting(level: u32, now: Micros, first: Duration, most: Duration) -> Self {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let doubled = 1_u64.checked_shl(level).and_then(|times| micros(first).checked_mul(times));
        let wait = Duration::from_micros(doubled.unwrap_or(u64::MAX).min(micros(most)));
        Self { level, at: now.plus(wait), holder: None, until: Micros(0) }
    }
}

impl CoolDownCall<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] for a name that is no replica's, a wait or a lease that is too short or too long, or a
    /// first wait that is longer than the longest.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let (Self::Refused { replica, .. }
        | Self::Probe { replica, .. }
        | Self::Again { replica, .. }
        | Self::Over { replica }) = *self;
        if !(1..=LONGEST_REPLICA).contains(&replica.len()) || replica.contains([':', '\n']) {
            let text =
                format!("the replica's name {replica:?}; use 1 to 128 bytes without `:` or a line break");
            return Err(StoreError::Invalid(text));
        }
        match *self {
            Self::Refused { first, most, .. } | Self::Again { first, most, .. }
                if first < SHORTEST_WAIT || most > LONGEST_WAIT || first > most =>
            {
                let text =
                    format!("a cool-down of {first:?} up to {most:?}; use 1ms to 1h, the shorter first");
                Err(StoreError::Invalid(text))
            }
            Self::Probe { ttl, .. } if !(SHORTEST_PROBE..=LONGEST_PROBE).contains(&ttl) => {
                Err(StoreError::Invalid(format!("a lease of {ttl:?} on a probe; use 100ms to 10m")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the cool-down after this call at `now`. `before` is the current one.
    pub(in crate::store) fn apply(&self, before: Option<CoolDown>, now: Micros) -> Option<CoolDown> {
        let Some(before) = before else {
            return match *self {
                Self::Refused { first, most, .. } => Some(CoolDown::waiting(0, now, first, most)),
                _ => None,
            };
        };
        match *self {
            Self::Refused { replica, first, most } if before.is_held_by(replica) => {
                Some(CoolDown::waiting(before.level.saturating_add(1), now, first, most))
            }
            Self::Again { replica, first, most } if before.is_held_by(replica) => {
                Some(CoolDown::waiting(before.level, now, first, most))
            }
            Self::Over { replica } if before.is_held_by(replica) => None,
            Self::Probe { replica, ttl } if before.is_held_by(replica) || before.is_free(now) => {
                Some(CoolDown { holder: Some(replica.to_owned()), until: now.plus(ttl), ..before })
            }
            _ => Some(before),
        }
    }
}

#[cfg(test)]
mod tests;
