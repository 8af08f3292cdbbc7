//! Pauses of the whole downstream, as far as this shaper knows of them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Core;
use crate::store::{Change, Observed, Pause, Recall, RecordState, Status, StoreError};
use crate::time::Micros;

/// What is known of pauses.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    known: Mutex<Known>,
    watching: OnceLock<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The store's latest answer.
    said: Option<Said>,
    /// What the store has lost, and is not told again yet.
    lost: Option<Said>,
    /// It is being told.
    recalling: bool,
}

/// What an answer of the store said, and when it was heard.
#[derive(Clone, Copy, Debug)]
struct Said {
    now: Micros,
    epoch: Micros,
    status: Status,
    heard: Instant,
}

impl Said {
    /// How much is left of a pause until then.
    fn left(&self, until: Micros) -> Duration {
        until.since(self.now).saturating_sub(self.heard.elapsed())
    }

    /// Whether an answer of a new record says less than this one.
    fn knows_more(&self, status: &Status) -> bool {
        let Status { penalty, pause, .. } = self.status;
        pause.version > status.pause.version || (penalty > status.penalty && !self.left(penalty).is_zero())
    }

    fn recall(&self) -> Recall<'static> {
        let Status { penalty, pause: Pause { until, version }, .. } = self.status;
        let pause = (until != Micros::MAX).then(|| self.left(until));
        Recall { penalty: self.left(penalty), pause, version, ..Recall::default() }
    }
}

impl Pauses {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No work may start at a slot before it.
    pub(super) fn until(&self) -> Micros {
        self.lock().said.map_or(Micros(0), |said| said.status.paused_until())
    }
}

impl Core {
    /// Takes in what an answer says. What the store has lost is told it again.
    pub(super) fn heed(self: &Arc<Self>, now: Micros, epoch: Micros, status: Status, observed: Observed) {
        let mut known = self.pauses.lock();
        let before = known.said;
        let overtaken = |before: &Said| {
            // A clock that stepped back is not an answer that comes late.
            let is_late = observed == Observed::Consistent && before.epoch == epoch;
            is_late && now < before.now && before.now.since(now) < OVERTAKEN
        };
        if before.as_ref().is_some_and(overtaken) {
            return;
        }
        known.said = Some(Said { now, epoch, status, heard: Instant::now() });
        if let Some(before) = before.filter(|before| before.epoch != epoch && before.knows_more(&status)) {
            // The same loss may be found twice, and what was heard in between knows less.
            let older = known.lost.filter(|lost| lost.status.pause.version >= before.status.pause.version);
            known.lost = older.or(Some(before));
        }
        let recalled = known.lost.filter(|_| !known.recalling);
        known.recalling |= recalled.is_some();
        drop(known);
        if before.map_or(Micros(0), |before| before.status.paused_until()) != status.paused_until() {
            self.jumped.notify_waiters();
        }
        if let Some(lost) = recalled {
            self.recall(lost);
        }
    }

    /// In a task of its own: whoever asked the store must not wait for it. Where it fails, the next answer has
    /// it tried again.
    fn recall(self: &Arc<Self>, lost: Said) {
        let Ok(runtime) = Handle::try_current() else {
            self.pauses.lock().recalling = false;
            return;
        };
        let core = Arc::clone(self);
        runtime.spawn(async move {
            let told = core.update_record(Change::Recall(lost.recall())).await;
            let mut known = core.pauses.lock();
            known.recalling = false;
            match told {
                Ok(_) => known.lost = None,
                Err(error) => tracing::debug!(downstream = core.name, %error, "the store forgot a pause"),
            }
        });
    }

    /// Changes the downstream's record, or looks at it.
    pub(super) async fn update_record(
        self: &Arc<Self>,
        change: Change<'_>,
    ) -> Result<RecordState, StoreError> {
        let sent = Instant::now();
        let record = self.store.update_record(&self.name, change).await?;
        self.observe(sent, record.now, record.epoch, record.status);
        Ok(record)
    }

    /// Reads the downstream's record.
    pub(super) async fn read_record(self: &Arc<Self>) -> Result<RecordState, StoreError> {
        let sent = Instant::now();
        let record = self.store.read_record(&self.name).await?;
        self.observe(sent, record.now, record.epoch, record.status);
        Ok(record)
    }

    /// Has pauses noticed that others make, as long as there is this shaper.
    pub(super) fn watch(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        self.pauses.watching.get_or_init(|| {
            let mut changes = self.store.changes(&self.name);
            let (core, gone) = (Arc::downgrade(self), Arc::clone(&self.gone));
            runtime.spawn(async move {
                let mut wait = BACKOFF.0;
                loop {
                    tokio::select! {
                        () = changes.next() => {}
                        () = gone.notified() => return,
                    }
                    // Not at once: a server that refuses the call hangs up, and a new connection is a change.
                    while !look(&core).await {
                        tokio::select! {
                            () = tokio::time::sleep(wait.mul_f64(0.5 + 0.5 * fastrand::f64())) => {}
                            () = gone.notified() => return,
                        }
                        wait = (wait * 2).min(BACKOFF.1);
                    }
                    wait = BACKOFF.0;
                }
            });
        });
    }
}

/// What holds now; false where the store did not say.
async fn look(core: &Weak<Core>) -> bool {
    match core.upgrade() {
        Some(core) => core.read_record().await.is_ok(),
        None => true,
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.gone.notify_one();
    }
}

/// Answers overtake each other by no more than this; a clock that is further behind has stepped back.
const OVERTAKEN: Duration = Duration::from_secs(1);

/// Before a look that failed is tried again, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
