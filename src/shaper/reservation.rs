//! A granted slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::core::Core;
use super::grant::{Grant, ReserveResult, Taken};
use super::message::Message;
use crate::pace::release::clock::ring;
use crate::store::{Mapping, StoreError};
use crate::time::{Deadline, Micros, nap};

/// A granted slot, held by its caller. If it is dropped before it was used, it is given back unless a later one was
/// taken. It counts as used once [`Reservation::wait`] has returned, or the slot has come; see [`Reservation::keep`].
#[derive(Debug)]
#[must_use = "dropped, the slot is given back; wait for it"]
pub struct Reservation {
    core: Arc<Core>,
    slot: Micros,
    /// The data to give the slot back.
    taken: Option<Taken>,
    /// The mapping of the slot to this process's clock, as it was last followed.
    mapped: Mapping,
    is_used: AtomicBool,
}

/// The longest interval at which a long wait reads the store's clock.
const CHUNK: Duration = Duration::from_secs(600);
/// How long before its end a long wait reads the store's clock once more.
const FINAL_REFRESH: Duration = Duration::from_secs(1);

impl Reservation {
    pub(super) fn new(core: &Arc<Core>, Grant { taken, mapped }: Grant) -> Self {
        let (core, slot) = (Arc::clone(core), taken.granted.slot);
        Self { core, slot, taken: Some(taken), mapped, is_used: AtomicBool::new(false) }
    }

    /// Returns the instant on the store's clock at which the work may start.
    #[must_use]
    pub const fn slot(&self) -> Micros {
        self.slot
    }

    /// Returns the slot on the local clock, which is never early: by then the store's clock has reached it.
    ///
    /// It may move while it is held, as [`SlotClock`](crate::store::SlotClock) follows the store's clock. Once a
    /// clock has stepped, the local slot stays where it was. After a step back, that keeps the pace in real time,
    /// since the store's state follows. After a step forward it does not: the store continues from its new now, and
    /// new slots lie between those granted before. [`Shaper::acquire`](super::Shaper::acquire) gives such slots up; a
    /// caller of [`Reservation::wait`] accepts up to twice the pace for up to `max_wait` then.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.hold().instant()
    }

    /// Returns the deadline, which accounts for suspends of this machine.
    fn hold(&self) -> Deadline {
        match self.core.known.slots.mapping(self.slot) {
            Some(mapping) if mapping.generation == self.mapped.generation => mapping.deadline,
            _ => self.mapped.deadline,
        }
    }

    /// Whether the slot is past by more than the tolerance: max(min(T, 50 ms), T/10, 5 ms) less 1 ms. T is the emission
    /// interval of the slowest limit without a burst; if all have one, of the slowest limit. Time for which this
    /// machine was suspended counts. A slot before the end of a known pause of the downstream
    /// ([`Shaper::penalize`](super::Shaper::penalize)) is missed too.
    ///
    /// Check this after [`Reservation::wait`], just before the work. If this process was stopped, many slots have
    /// passed by then, and work on all of them would be a burst: reserve again instead.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.hold().late() > self.core.known.tolerance() || self.is_paused()
    }

    /// Whether the slot lies in a pause.
    fn is_paused(&self) -> bool {
        let gate = &self.core.known.gate;
        match gate.closed_until(&self.core.known.slots) {
            // The slot is an instant on the clock before a step, so that the two are compared on the local clock.
            Some(end) if end.generation != self.mapped.generation => self.mapped.deadline < end.deadline,
            _ => gate.refuses(self.slot, self.mapped.deadline),
        }
    }

    /// Waits until the slot, however far it is. Now and then it reads the store's clock; a store that does not answer
    /// delays nothing.
    ///
    /// It returns late if the process was stopped, and some time after the machine was suspended beyond the slot (at
    /// most a minute, or a 64th of the wait); see [`Reservation::is_missed`].
    ///
    /// Cancel safe: it can be called again.
    pub async fn wait(&self) {
        self.core.home().timed(self.wait_here()).await;
    }

    async fn wait_here(&self) {
        let mut refresh_in = CHUNK;
        loop {
            let hold = self.hold();
            let left = hold.left();
            if left.is_zero() {
                break;
            }
            if left <= 2 * FINAL_REFRESH {
                let mut alarm = self.core.clock.alarm();
                alarm.set(Some(hold.instant()));
                ring(&mut *alarm).await;
            } else {
                let span = nap(left).min(left - FINAL_REFRESH).min(refresh_in);
                tokio::time::sleep(span).await;
                refresh_in -= span;
                if refresh_in.is_zero() || span == left - FINAL_REFRESH {
                    refresh_in = CHUNK;
                    self.core.refresh(self.hold().instant()).await;
                }
            }
        }
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Waits until the slot. Returns false if it was missed, became void by a step of the store's clock, or lies in a
    /// pause.
    ///
    /// Cancel safe.
    pub(super) async fn due(&mut self) -> bool {
        let known = Arc::clone(&self.core.known);
        loop {
            // The notification is requested before the clock is read, so that no step goes unnoticed in between.
            let recheck = known.recheck.notified();
            if !self.follow() || self.is_paused() {
                return false;
            }
            tokio::select! {
                biased;
                () = recheck => {}
                // The wait may have spun, so that a notification went unseen.
                () = self.wait() => return self.follow() && !self.is_paused() && !self.is_missed(),
            }
        }
    }

    /// Adjusts the mapping to a forward step of the store's clock, after which the slot is earlier on the local clock.
    /// Returns whether the slot is still valid: it is not if it has passed by the step.
    fn follow(&mut self) -> bool {
        let Some(mapping) = self.core.known.slots.mapping(self.slot) else { return true };
        if mapping.jumps == self.mapped.jumps {
            return true;
        }
        // Some of several steps may have been backward; then the slot means another instant.
        let one_step = mapping.generation == self.mapped.generation + 1;
        self.mapped = mapping;
        one_step && !mapping.deadline.left().is_zero()
    }

    /// Keeps the slot for good, and returns it. It is meant for callers that wait for the slot by other means, given
    /// its instant ([`Reservation::deadline`]).
    pub fn keep(mut self) -> Micros {
        self.taken = None;
        self.slot
    }

    /// Gives the slot back if it lies ahead and no later one was taken. Returns whether it did. Dropping the
    /// reservation does the same without a result.
    ///
    /// Cancel safe: the slot is given back, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer; the slot may still be taken.
    pub async fn cancel(mut self) -> Result<bool, StoreError> {
        let Some(taken) = self.taken.take() else { return Ok(false) };
        let core = Arc::clone(&self.core);
        let given_back = self.core.call(async move { taken.cancel(&*core.store).await }).await?;
        if given_back {
            self.core.send_if_running(Message::Reset);
        }
        Ok(given_back)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let is_used = self.is_used.load(Ordering::Relaxed) || self.hold().left().is_zero();
        if let Some(taken) = self.taken.take().filter(|_| !is_used) {
            // Without a driver the slot could not be given back in time.
            self.core.send_if_running(Message::Return(taken));
        }
    }
}

/// The answer that a caller who reserves waits for. A slot in an answer that nobody takes is given back.
pub(super) struct PendingGrant<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) answer: oneshot::Receiver<ReserveResult>,
}

impl Drop for PendingGrant<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(grant)) = self.answer.try_recv() {
            drop(Reservation::new(self.core, grant));
        }
    }
}
