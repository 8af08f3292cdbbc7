//! A granted slot.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Core;
use crate::limit::State;
use crate::store::{Cancel, StoreError};
use crate::time::Micros;

/// A slot that is yours. Dropped, it stays taken; [`Reservation::cancel`] gives it back.
#[derive(Debug)]
#[must_use = "the slot is taken; wait for it, or cancel it"]
pub struct Reservation {
    core: Arc<Core>,
    key: String,
    slot: Micros,
    /// The mapping that the slot was granted under, and where it put the slot then.
    generation: u64,
    deadline: Instant,
    before: Vec<State>,
    after: Vec<State>,
}

/// A long wait looks at the mapping again at least this often ...
const CHUNK: Duration = Duration::from_secs(3600);
/// ... and this long before its end.
const LAST_LOOK: Duration = Duration::from_secs(1);

impl Reservation {
    pub(super) fn new(
        core: &Arc<Core>,
        key: &str,
        slot: Micros,
        (generation, deadline): (u64, Instant),
        before: Vec<State>,
        after: Vec<State>,
    ) -> Self {
        Self { core: Arc::clone(core), key: key.to_owned(), slot, generation, deadline, before, after }
    }

    /// The instant on the store's clock at which the work may start.
    #[must_use]
    pub const fn slot(&self) -> Micros {
        self.slot
    }

    /// The slot on the local clock, never early: by then the store's clock has reached it.
    ///
    /// It may move by as much as the latest call to the store was faster, or slower, than the ones
    /// before. Once a clock has stepped it stays where it was: the pace is kept in real time.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        match self.core.clock.mapping(self.slot) {
            Some((generation, deadline)) if generation == self.generation => deadline,
            _ => self.deadline,
        }
    }

    /// Waits until the slot, however far it is. The store is asked for its clock now and then.
    ///
    /// Cancel safe: it can be called again.
    pub async fn wait(&self) {
        loop {
            let (now, deadline) = (Instant::now(), self.deadline());
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                return;
            }
            if left <= 2 * LAST_LOOK {
                tokio::time::sleep_until(deadline).await;
            } else {
                tokio::time::sleep((left - LAST_LOOK).min(CHUNK)).await;
                self.core.refresh().await;
            }
        }
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
            limits: &self.core.limits,
            slot: self.slot,
            before: &self.before,
            after: &self.after,
            now: None,
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

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(reservation) = self.0.take() {
            let (core, key) = (Arc::clone(&reservation.core), reservation.key.clone());
            core.submit(&key, |lane| lane.returned.push(reservation));
        }
    }
}
