//! A granted slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::core::Core;
use super::driver::Message;
use super::far::Returned;
use crate::pace::release::clock::ring;
use crate::pace::{LaneId, Settings};
use crate::store::{Granted, Mapping, StoreError};
use crate::time::{Deadline, Micros, nap};

/// A slot that is yours. Dropped before it was used it is given back, if nobody has taken a later one. It was used once
/// [`Reservation::wait`] has returned, or the slot has come; see [`Reservation::keep`].
#[derive(Debug)]
#[must_use = "dropped, the slot is given back; wait for it"]
pub struct Reservation {
    core: Arc<Core>,
    slot: Micros,
    /// What giving the slot back needs.
    returned: Option<Returned>,
    /// Where the slot was put when it was granted.
    mapped: Mapping,
    is_used: AtomicBool,
}

/// A long wait asks the store for its clock at least this often.
const CHUNK: Duration = Duration::from_secs(600);
/// It asks once more this long before its end.
const LAST_LOOK: Duration = Duration::from_secs(1);

impl Reservation {
    /// The reservation of a slot that was granted; none where it is not known when that comes.
    pub(super) fn new(
        core: &Arc<Core>,
        (lane, key): (LaneId, &str),
        granted: Granted,
        settings: &Arc<Settings>,
    ) -> Option<Self> {
        let slot = granted.slot;
        let mapped = core.known.slots.mapping(slot)?;
        let (place, settings) = ((lane, key.to_owned()), Arc::clone(settings));
        let returned = Some(Returned { place, settings, granted });
        Some(Self { core: Arc::clone(core), slot, returned, mapped, is_used: AtomicBool::new(false) })
    }

    /// The instant on the store's clock at which the work may start.
    #[must_use]
    pub const fn slot(&self) -> Micros {
        self.slot
    }

    /// The slot on the local clock, never early: by then the store's clock has reached it.
    ///
    /// It may move by as much as the latest call to the store was faster, or slower, than the ones
    /// before. Once a clock has stepped it stays where it was. After a step back, that keeps the
    /// pace in real time, since the store's state follows. After a step forward it does not: the
    /// store goes on from its new now, and new slots lie between those granted before.
    /// [`Shaper::acquire`](super::Shaper::acquire) gives such slots up; who calls
    /// [`Reservation::wait`] accepts up to twice the pace for up to `max_wait` then.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.hold().instant()
    }

    /// [`Reservation::deadline`], suspends of this machine included.
    fn hold(&self) -> Deadline {
        match self.core.known.slots.mapping(self.slot) {
            Some(mapping) if mapping.generation == self.mapped.generation => mapping.deadline,
            _ => self.mapped.deadline,
        }
    }

    /// Whether the slot lies further back than can be excused: by more than max(min(T, 50 ms), T/10, 5 ms), where T is the
    /// emission interval of the slowest limit that lets no two go at once (where all do, of the slowest).
    /// Time for which this machine was suspended counts. So is a slot that lies before the end of a pause
    /// of the downstream, as far as this shaper knows of one ([`Shaper::penalize`](super::Shaper::penalize)).
    ///
    /// Ask after [`Reservation::wait`], just before the work. If this process stood still, many slots
    /// have passed by then, and work on all of them would be a burst: reserve again instead.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.hold().late() > self.core.known.tolerance() || self.is_paused()
    }

    /// Whether the slot lies in a pause.
    fn is_paused(&self) -> bool {
        let gate = &self.core.known.gate;
        match gate.closed_until(&self.core.known.slots) {
            // The slot is an instant of a clock that is no more: they are compared here.
            Some(end) if end.generation != self.mapped.generation => self.mapped.deadline < end.deadline,
            _ => gate.refuses(self.slot, self.mapped.deadline),
        }
    }

    /// Waits until the slot, however far it is. The store is asked for its clock now and then; a
    /// store that does not answer delays nothing.
    ///
    /// It returns late when the process stood still, and some time after the machine was suspended
    /// beyond the slot (at most a minute, or a 64th of the wait); see [`Reservation::is_missed`].
    ///
    /// Cancel safe: it can be called again.
    pub async fn wait(&self) {
        let mut look_in = CHUNK;
        loop {
            let hold = self.hold();
            let left = hold.left();
            if left.is_zero() {
                break;
            }
            if left <= 2 * LAST_LOOK {
                let mut alarm = self.core.clock.alarm();
                alarm.set(Some(hold.instant()));
                ring(&mut *alarm).await;
            } else {
                let span = nap(left).min(left - LAST_LOOK).min(look_in);
                tokio::time::sleep(span).await;
                look_in -= span;
                if look_in.is_zero() || span == left - LAST_LOOK {
                    look_in = CHUNK;
                    self.core.refresh(self.hold().instant()).await;
                }
            }
        }
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Waits until the slot; false when it was missed, or its clock is no more, or the downstream is paused.
    ///
    /// Cancel safe.
    pub(super) async fn due(&mut self) -> bool {
        let known = Arc::clone(&self.core.known);
        loop {
            // Before the look at the clock, so that no step goes unnoticed in between.
            let recheck = known.recheck.notified();
            if !self.follow() || self.is_paused() {
                return false;
            }
            tokio::select! {
                biased;
                () = recheck => {}
                () = self.wait() => return !self.is_missed(),
            }
        }
    }

    /// After a forward step of the store's clock the slot is the same instant there, and so earlier
    /// here. Says whether it still stands: it does not if it has passed by the step.
    fn follow(&mut self) -> bool {
        let Some(mapping) = self.core.known.slots.mapping(self.slot) else { return true };
        if mapping.jumps == self.mapped.jumps {
            return true;
        }
        // Among several steps some may have been back: then the slot means another instant.
        let one_step = mapping.generation == self.mapped.generation + 1;
        self.mapped = mapping;
        one_step && !mapping.deadline.left().is_zero()
    }

    /// Takes the slot for good, and tells which: for those who wait for it elsewhere, and know when it comes
    /// ([`Reservation::deadline`]).
    pub fn keep(mut self) -> Micros {
        self.returned = None;
        self.slot
    }

    /// What giving the slot back needs.
    pub(super) fn into_returned(mut self) -> Option<Returned> {
        self.returned.take()
    }

    /// Gives the slot back if it lies ahead and nobody has taken a later one; says whether it did. Dropping does the same,
    /// and does not say it.
    ///
    /// Cancel safe: the slot is given back, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer: the slot may be taken still.
    pub async fn cancel(mut self) -> Result<bool, StoreError> {
        let Some(returned) = self.returned.take() else { return Ok(false) };
        let given_back = returned.cancel(&*self.core.store).await?;
        if given_back {
            self.core.tell(Message::Reset);
        }
        Ok(given_back)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let is_used = self.is_used.load(Ordering::Relaxed) || self.hold().left().is_zero();
        if let Some(returned) = self.returned.take().filter(|_| !is_used) {
            // Without a driver there is nobody who could do it in time.
            self.core.tell(Message::Return(returned));
        }
    }
}
