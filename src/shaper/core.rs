//! What all clones of a shaper share, and its reservations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::ReserveError;
use super::driver::{Driver, Message};
use super::task::Task;
use crate::pace::release::clock::ReleaseClock;
use crate::pace::release::{PauseGate, Tolerance};
use crate::pace::{LaneId, Settings, Stamp};
use crate::store::{Scope, SlotClock, Status, Store};
use crate::time::Micros;

/// How often a driver may end before its answer, and another one is asked: one ends with the runtime that it was
/// started in.
pub(super) const TRIES: u32 = 3;

/// How long the driver is waited for to take in what the store told.
const PATIENCE: Duration = Duration::from_secs(1);

/// What all clones share.
#[derive(Debug)]
pub(super) struct Core {
    /// What the shaper was built with.
    pub(super) given: Settings,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn ReleaseClock>,
    pub(super) max_wait: Duration,
    pub(super) per_key: bool,
    pub(super) known: Arc<Known>,
    driver: Task<Message>,
    /// The next place in the order of arrival.
    next_seq: AtomicU64,
    /// How many units those who wait here take, by lane.
    units: Box<[AtomicU64]>,
}

/// What the driver knows, for those who look at it without asking.
#[derive(Debug)]
pub(super) struct Known {
    /// The settings in force, and how late a slot may be used under them.
    in_force: Mutex<(Arc<Settings>, Tolerance)>,
    /// Maps slots to this process's clock.
    pub(super) slots: Arc<SlotClock>,
    /// Closed for slots in a pause.
    pub(super) gate: Arc<PauseGate>,
    /// The store's clock stepped, or a pause began or ended.
    pub(super) recheck: Notify,
    /// Why the store gives no slots, since it last gave one.
    trouble: Mutex<Option<ReserveError>>,
    /// This shaper's name at the store, once a driver was started.
    pub(super) replica: OnceLock<Arc<str>>,
}

impl Known {
    pub(super) fn new(settings: Settings) -> Self {
        let tolerance = Tolerance::of(&settings);
        Self {
            in_force: Mutex::new((Arc::new(settings), tolerance)),
            slots: Arc::default(),
            gate: Arc::default(),
            recheck: Notify::new(),
            trouble: Mutex::default(),
            replica: OnceLock::new(),
        }
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&locked(&self.in_force).0)
    }

    /// These settings are in force from now on.
    pub(super) fn follow(&self, settings: Arc<Settings>) {
        let tolerance = Tolerance::of(&settings);
        *locked(&self.in_force) = (settings, tolerance);
    }

    /// How late a slot may be used.
    pub(super) fn tolerance(&self) -> Duration {
        locked(&self.in_force).1.at_handover
    }

    pub(super) fn trouble(&self) -> Option<ReserveError> {
        locked(&self.trouble).clone()
    }

    pub(super) fn set_trouble(&self, error: Option<ReserveError>) {
        *locked(&self.trouble) = error;
    }
}

/// Nothing panics while it holds one of these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(super) fn new(
        given: Settings,
        store: Arc<dyn Store>,
        clock: Arc<dyn ReleaseClock>,
        (max_wait, per_key): (Duration, bool),
    ) -> Self {
        let lanes = given.plans.len() + 1;
        Self {
            known: Arc::new(Known::new(given.clone())),
            given,
            store,
            clock,
            max_wait,
            per_key,
            driver: Task::default(),
            next_seq: AtomicU64::new(0),
            units: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The settings in force, as far as this process knows.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.known.settings()
    }

    /// The key under which the store keeps what `key` takes.
    pub(super) fn key_of<'a>(&self, key: &'a str) -> &'a str {
        if self.per_key { key } else { "" }
    }

    pub(super) fn scope<'a>(&'a self, key: &'a str) -> Scope<'a> {
        Scope { downstream: &self.given.downstream, key }
    }

    /// How many units those of this lane take who wait here.
    pub(super) fn units(&self, lane: LaneId) -> &AtomicU64 {
        &self.units[lane.row().min(self.units.len() - 1)]
    }

    /// How many units all take who wait here.
    #[cfg(test)]
    pub(super) fn all_units(&self) -> u64 {
        self.units.iter().map(|units| units.load(Ordering::Relaxed)).sum()
    }

    /// The next place in the order of arrival.
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells the driver, and starts one if there is none; false without a runtime that it could run on.
    pub(super) fn send(self: &Arc<Self>, message: Message) -> bool {
        self.driver.send(message, |inbox| Driver::new(self).run(inbox))
    }

    /// Tells the driver where there is one: it is not started for what matters only to those who wait for slots here.
    pub(super) fn tell(&self, message: Message) -> bool {
        self.driver.tell(message)
    }

    /// For how long the downstream is paused, where it is and that is known; none in it: until somebody resumes.
    pub(super) fn paused_for(&self) -> Option<Option<Duration>> {
        let end = self.known.gate.closed_until(&self.known.slots)?.deadline.left();
        let is_stopped = self.known.gate.is_closed_for_good();
        (is_stopped || !end.is_zero()).then(|| (!is_stopped).then_some(end))
    }

    /// Has the driver take in what the store told in answer to a call made here.
    pub(super) async fn heard(&self, sent: Instant, now: Micros, epoch: Micros, status: Status) {
        let stamp = Stamp { sent, received: Instant::now(), now, epoch, status };
        let (done, taken_in) = oneshot::channel();
        if self.tell(Message::Heard(stamp, done)) {
            // Where the driver ends instead, the next one asks the store itself; and its runtime may stand still.
            let _ = tokio::time::timeout(PATIENCE, taken_in).await;
        }
    }

    /// Has the store asked for its clock, unless that is known well enough. Waits for the answer until `deadline` at most:
    /// slots must not wait for a store that hangs.
    pub(super) async fn refresh(&self, deadline: Instant) {
        let (done, refreshed) = oneshot::channel();
        if self.tell(Message::Refresh(done)) {
            let _ = tokio::time::timeout_at(deadline, refreshed).await;
        }
    }
}
