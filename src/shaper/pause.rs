//! Pauses of the whole downstream, as far as this shaper knows of them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Core;
use crate::store::{Change, Pause, Recall, Status, StoreError, Tended};
use crate::time::Micros;

/// What the store's latest answer said.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    known: Mutex<Known>,
    watching: OnceLock<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    now: Micros,
    epoch: Micros,
    status: Status,
}

impl Pauses {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no work may start at this slot.
    pub(super) fn forbid(&self, slot: Micros) -> bool {
        slot < self.lock().status.paused_until()
    }
}

impl Core {
    /// Takes in what an answer says. What the store has lost is told it again.
    pub(super) fn heed(self: &Arc<Self>, now: Micros, epoch: Micros, status: Status) {
        let mut known = self.pauses.lock();
        if epoch == known.epoch && now < known.now && known.now.since(now) < OVERTAKEN {
            return;
        }
        let before = std::mem::replace(&mut *known, Known { now, epoch, status });
        drop(known);
        if before.status.paused_until() != status.paused_until() {
            self.jumped.notify_waiters();
        }
        let forgot = before.epoch != epoch && before.status.pause.version > status.pause.version;
        if forgot || (before.epoch != epoch && before.status.penalty > before.now.max(status.penalty)) {
            self.recall(before);
        }
    }

    /// In a task of its own: whoever asked the store must not wait for it.
    fn recall(self: &Arc<Self>, before: Known) {
        let Ok(runtime) = Handle::try_current() else { return };
        let core = Arc::clone(self);
        runtime.spawn(async move {
            let Known { now, status: Status { penalty, pause: Pause { until, version }, .. }, .. } = before;
            let pause = (until != Micros::MAX).then(|| until.since(now));
            // Counted from the last answer, so that it lasts no shorter than it was to.
            let recall = Recall { penalty: penalty.since(now), pause, version, ..Recall::default() };
            if let Err(error) = core.tend(Change::Recall(recall)).await {
                tracing::debug!(downstream = core.name, %error, "the store forgot a pause");
            }
        });
    }

    /// Changes the downstream's record, or looks at it.
    pub(super) async fn tend(self: &Arc<Self>, change: Change<'_>) -> Result<Tended, StoreError> {
        let sent = Instant::now();
        let tended = self.store.tend(&self.name, change).await?;
        self.observe(sent, tended.now, tended.epoch, tended.status);
        Ok(tended)
    }

    /// Has pauses noticed that others make, as long as there is this shaper.
    pub(super) fn watch(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        self.pauses.watching.get_or_init(|| {
            let mut changes = self.store.changes(&self.name);
            let (core, gone) = (Arc::downgrade(self), Arc::clone(&self.gone));
            runtime.spawn(async move {
                loop {
                    tokio::select! {
                        () = changes.next() => {}
                        () = gone.notified() => return,
                    }
                    let Some(core) = core.upgrade() else { return };
                    // Who waits looks for himself, now and then.
                    let _ = core.tend(Change::Look).await;
                }
            });
        });
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.gone.notify_one();
    }
}

/// Answers overtake each other by no more than this; a clock that is further behind has stepped back.
const OVERTAKEN: Duration = Duration::from_secs(1);
