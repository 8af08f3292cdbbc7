//! A granted slot.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Core;
use super::batch::submit;
use crate::store::{Cancel, Granted, Mapping, StoreError};
use crate::time::{Deadline, Micros, nap};

/// A slot that is yours. Dropped, it stays taken; [`Reservation::cancel`] gives it back.
#[derive(Debug)]
#[must_use = "the slot is taken; wait for it, or cancel it"]
pub struct Reservation {
    core: Arc<Core>,
    key: String,
    granted: Granted,
    /// Where the slot was put when it was granted.
    mapped: Mapping,
}

/// A long wait asks the store for its clock at least this often ...
const CHUNK: Duration = Duration::from_secs(600);
/// ... and this long before its end.
const LAST_LOOK: Duration = Duration::from_secs(1);

impl Reservation {
    pub(super) fn new(core: &Arc<Core>, key: &str, granted: Granted, mapped: Mapping) -> Self {
        Self { core: Arc::clone(core), key: key.to_owned(), granted, mapped }
    }

    /// The instant on the store's clock at which the work may start.
    #[must_use]
    pub const fn slot(&self) -> Micros {
        self.granted.slot
    }

    /// The slot on the local clock, never early: by then the store's clock has reached it.
    ///
    /// It may move by as much as the latest call to the store was faster, or slower, than the ones
    /// before. Once a clock has stepped it stays where it was. After a step back, that keeps the
    /// pace in real time, since the store's state follows. After a step forward it does not: the
    /// store goes on from its new now, and new slots lie between those granted before.
    /// [`Shaper::schedule`](super::Shaper::schedule) gives such slots up; who calls
    /// [`Reservation::wait`] accepts up to twice the pace for up to `max_wait` then.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.hold().instant()
    }

    /// [`Reservation::deadline`], suspends of this machine included.
    fn hold(&self) -> Deadline {
        match self.core.clock.mapping(self.granted.slot) {
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
        self.hold().late() > self.core.tolerance() || self.is_paused()
    }

    /// Whether the slot lies in a pause.
    fn is_paused(&self) -> bool {
        let until = self.core.pauses.until();
        match self.core.clock.mapping(until) {
            // The slot is an instant of a clock that is no more: they are compared here.
            Some(end) if end.generation != self.mapped.generation => self.mapped.deadline < end.deadline,
            _ => self.granted.slot < until,
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
                return;
            }
            if left <= 2 * LAST_LOOK {
                tokio::time::sleep_until(hold.instant()).await;
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
    }

    /// Waits until the slot; false when it was missed, or its clock is no more, or the downstream is paused.
    ///
    /// Cancel safe.
    pub(super) async fn due(&mut self) -> bool {
        let core = Arc::clone(&self.core);
        loop {
            // Before the look at the clock, so that no step goes unnoticed in between.
            let jumped = core.jumped.notified();
            if !self.follow() || self.is_paused() {
                return false;
            }
            tokio::select! {
                biased;
                () = jumped => {}
                () = self.wait() => return !self.is_missed(),
            }
        }
    }

    /// After a forward step of the store's clock the slot is the same instant there, and so earlier
    /// here. Says whether it still stands: it does not if it has passed by the step.
    fn follow(&mut self) -> bool {
        let Some(mapping) = self.core.clock.mapping(self.granted.slot) else { return true };
        if mapping.jumps == self.mapped.jumps {
            return true;
        }
        // Among several steps some may have been back: then the slot means another instant.
        let one_step = mapping.generation == self.mapped.generation + 1;
        self.mapped = mapping;
        one_step && !mapping.deadline.left().is_zero()
    }

    /// Gives the slot back if it lies ahead and nobody has taken a later one; says whether it did.
    ///
    /// Cancel safe: the slot is given back, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer: the slot may be taken still.
    pub async fn cancel(self) -> Result<bool, StoreError> {
        let call = Cancel {
            scope: self.core.scope(&self.key),
            limits: &self.core.stored,
            lane: None,
            slot: self.granted.slot,
            charged: &self.granted.charged,
            before: &self.granted.before,
            after: &self.granted.after,
        };
        self.core.store.cancel(call).await
    }
}

/// A reservation that gives itself back when it is dropped, until its caller has it for keeps.
#[derive(Debug)]
pub(super) struct Grant(Option<Reservation>);

impl Grant {
    pub(super) const fn new(reservation: Reservation) -> Self {
        Self(Some(reservation))
    }

    #[expect(clippy::expect_used, reason = "taken here and in drop alone, both of which end it")]
    pub(super) fn keep(mut self) -> Reservation {
        self.0.take().expect("a grant holds its reservation")
    }
}

impl Deref for Grant {
    type Target = Reservation;

    #[expect(clippy::expect_used, reason = "taken only where the grant ends")]
    fn deref(&self) -> &Reservation {
        self.0.as_ref().expect("a grant holds its reservation")
    }
}

impl DerefMut for Grant {
    #[expect(clippy::expect_used, reason = "taken only where the grant ends")]
    fn deref_mut(&mut self) -> &mut Reservation {
        self.0.as_mut().expect("a grant holds its reservation")
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(reservation) = self.0.take() {
            let (core, key) = (Arc::clone(&reservation.core), reservation.key.clone());
            submit(&core, &key, |lane| lane.returned.push(reservation));
        }
    }
}
