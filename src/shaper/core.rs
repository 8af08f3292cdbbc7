//! The state that all clones of a shaper and its reservations share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument as _;

use super::driver::Driver;
use super::known::Known;
use super::message::Message;
use super::task::Task;
use crate::home::Home;
use crate::pace::release::clock::ReleaseClock;
use crate::pace::{Answered, LaneId, Settings};
use crate::store::{Scope, Stamp, Store, StoreError};

/// The number of drivers that a request is sent to. A driver may end before its answer: by a panic of the store, or with
/// the runtime that was given.
pub(super) const TRIES: u32 = 3;

/// The longest time that a call to the store takes, whether it succeeds or fails.
pub(super) const LONGEST_CALL: Duration = Duration::from_secs(150);

/// The longest wait until the driver has taken in an answer of the store.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(1);

/// The state that all clones share.
#[derive(Debug)]
pub(super) struct Core {
    /// The settings with which the shaper was built.
    pub(super) given: Settings,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn ReleaseClock>,
    pub(super) max_wait: Duration,
    pub(super) per_key: bool,
    pub(super) known: Arc<Known>,
    driver: Task<Message>,
    /// The next place in the order of arrival.
    next_seq: AtomicU64,
    /// The units of the waiting callers of each lane.
    units: Box<[AtomicU64]>,
}

impl Core {
    pub(super) fn new(
        given: Settings,
        store: Arc<dyn Store>,
        clock: Arc<dyn ReleaseClock>,
        (max_wait, per_key): (Duration, bool),
        home: Home,
    ) -> Self {
        let lanes = given.plans.len() + 1;
        Self {
            known: Arc::new(Known::new(given.clone())),
            given,
            store,
            clock,
            max_wait,
            per_key,
            driver: Task::new(home),
            next_seq: AtomicU64::new(0),
            units: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the settings in force, as far as this process knows.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.known.settings()
    }

    /// Returns the key under which the store keeps the state of `key`.
    pub(super) fn key_of<'a>(&self, key: &'a str) -> &'a str {
        if self.per_key { key } else { "" }
    }

    pub(super) fn scope<'a>(&'a self, key: &'a str) -> Scope<'a> {
        Scope { downstream: &self.given.downstream, key }
    }

    /// Returns the units of the waiting callers of this lane.
    pub(super) fn units(&self, lane: LaneId) -> &AtomicU64 {
        &self.units[lane.set().min(self.units.len() - 1)]
    }

    /// Returns the units of all waiting callers.
    #[cfg(test)]
    pub(super) fn all_units(&self) -> u64 {
        self.units.iter().map(|units| units.load(Ordering::Relaxed)).sum()
    }

    /// The next place in the order of arrival.
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the runtime of its driver.
    pub(super) const fn home(&self) -> &Home {
        self.driver.home()
    }

    /// Makes a call to the store that the driver does not make. It is made on the driver's runtime, so that no caller holds
    /// up the store's connection.
    pub(super) async fn call<T, E, F>(&self, call: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        tokio::select! {
            biased;
            // Not within the timers' runtime, or it would be made on the caller's task.
            done = self.home().run(call) => done.map_err(StoreError::from)?,
            () = self.home().timed(async { sleep(LONGEST_CALL).await }) => {
                Err(StoreError::Invalid("the runtime that was given stands still".to_owned()).into())
            }
        }
    }

    /// Sends a message to the driver, and starts one if none runs. Returns false if the system has no thread left for it.
    pub(super) fn send(&self, message: Message) -> bool {
        self.driver.send(message, |inbox| {
            let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
            let driver =
                Driver::new(self.given.clone(), store, clock, self.max_wait, Arc::clone(&self.known));
            let span = driver.span();
            driver.run(inbox).instrument(span)
        })
    }

    /// Sends a message to the driver if one runs. None is started for messages that only matter to waiting callers.
    pub(super) fn send_if_running(&self, message: Message) -> bool {
        self.driver.send_if_running(message)
    }

    /// Returns for how long the downstream is paused, if a pause is known; `Some(None)` if until an operator resumes.
    pub(super) fn paused_for(&self) -> Option<Option<Duration>> {
        let end = self.known.gate.closed_until(&self.known.slots)?.deadline.left();
        let is_stopped = self.known.gate.is_closed_for_good();
        (is_stopped || !end.is_zero()).then(|| (!is_stopped).then_some(end))
    }

    /// Has the driver take in the store's answer to a call that it did not make itself.
    pub(super) async fn forward_answer(&self, sent: Instant, stamp: Stamp) {
        let answered = Answered { sent, received: Instant::now(), stamp };
        let (done, taken_in) = oneshot::channel();
        if self.send_if_running(Message::Answered(answered, done)) {
            // If the driver ends instead, the next one calls the store itself. The time-out is needed because the runtime
            // that was given may stand still.
            let timed = async { timeout(DRIVER_TIMEOUT, taken_in).await };
            let _ = self.home().timed(timed).await;
        }
    }

    /// Has the driver read the store's clock, unless that is known well enough. Waits for the answer until `deadline`
    /// at most, since slots must not wait for a store that hangs.
    pub(super) async fn refresh(&self, deadline: Instant) {
        let (done, refreshed) = oneshot::channel();
        if self.send_if_running(Message::Refresh(done)) {
            let timed = async { tokio::time::timeout_at(deadline, refreshed).await };
            let _ = self.home().timed(timed).await;
        }
    }
}
