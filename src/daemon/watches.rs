//! Files that may be replaced while the daemon runs, and are read again then.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use paced::lock::lock;
use paced::{failpoint, metric};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

/// The interval at which the files are checked for changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a file system does not answer before its files count as not usable.
const LONGEST: Duration = Duration::from_secs(10);

/// Files that belong together, such as those of one setting.
pub(super) trait Refresh: Send + Sync {
    /// Reads the files again if one has changed; the result is logged. It may take as long as the file system takes.
    fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()>;

    /// Whether they cannot be used, so that what was read before stays in use; the log has a line for that.
    fn is_failing(&self) -> bool;
}

/// The files of all settings, which a reload may replace by others. Clones share them.
#[derive(Clone)]
pub(super) struct Watches(watch::Sender<Arc<[Arc<dyn Refresh>]>>);

impl FromIterator<Arc<dyn Refresh>> for Watches {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Refresh>>>(all: I) -> Self {
        Self(watch::Sender::new(all.into_iter().collect()))
    }
}

impl Watches {
    /// Watches these files from now on, and no others. It still watches those that were among them before.
    pub(super) fn replace(&self, all: impl IntoIterator<Item = Arc<dyn Refresh>>) {
        self.0.send_replace(all.into_iter().collect());
    }

    /// Refreshes all files once, side by side.
    ///
    /// Cancel safe: a read that has begun continues.
    pub(super) async fn refresh(&self) {
        let all = Arc::clone(&*self.0.borrow());
        join_all(all.iter().map(|files| Arc::clone(files).refresh())).await;
    }

    /// Refreshes all files each second, and never returns. The files of each setting have a task of their own, so that a
    /// file system that does not answer delays no other.
    pub(super) async fn watch(self) -> Infallible {
        let (mut tasks, mut changes) = (Tasks::default(), self.0.subscribe());
        changes.mark_changed();
        let mut ticks = ticks();
        loop {
            tokio::select! {
                biased;
                // The sender is a field of `self`.
                _ = changes.changed() => {
                    let all = Arc::clone(&*changes.borrow_and_update());
                    tasks.follow(&all);
                }
                now = ticks.tick() => {
                    let failing = tasks.0.values().filter(|(watched, _)| watched.is_failing(now)).count();
                    let failing = u32::try_from(failing).unwrap_or(u32::MAX);
                    metrics::gauge!(metric::UNREADABLE_FILES.name).set(f64::from(failing));
                }
            }
        }
    }
}

/// The tasks that watch files, by the addresses of these.
#[derive(Default)]
struct Tasks(HashMap<usize, (Watched, AbortOnDropHandle<()>)>);

impl Tasks {
    /// Watches these files, and ends the tasks of others.
    fn follow(&mut self, all: &[Arc<dyn Refresh>]) {
        let mut before = std::mem::take(&mut self.0);
        for files in all {
            // Nothing else is there while the map has it.
            let address = Arc::as_ptr(files).cast::<()>().addr();
            let task = before.remove(&address).unwrap_or_else(|| Watched::start(files));
            self.0.insert(address, task);
        }
    }
}

fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(failpoint::interval(INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The files of one setting that are watched.
#[derive(Clone)]
struct Watched {
    files: Arc<dyn Refresh>,
    /// When the refresh in progress began.
    begun: Arc<Mutex<Option<Instant>>>,
}

impl Watched {
    fn new(files: Arc<dyn Refresh>) -> Self {
        Self { files, begun: Arc::default() }
    }

    /// Starts a task that refreshes these files each second.
    fn start(files: &Arc<dyn Refresh>) -> (Self, AbortOnDropHandle<()>) {
        let watched = Self::new(Arc::clone(files));
        let Self { files, begun } = watched.clone();
        let task = tokio::spawn(async move {
            let mut ticks = ticks();
            loop {
                ticks.tick().await;
                *lock(&begun) = Some(Instant::now());
                Arc::clone(&files).refresh().await;
                *lock(&begun) = None;
            }
        });
        (watched, AbortOnDropHandle::new(task))
    }

    /// Whether the files cannot be used, or the file system has not answered for [`LONGEST`].
    fn is_failing(&self, now: Instant) -> bool {
        let hangs = |begun: Instant| now.saturating_duration_since(begun) >= LONGEST;
        self.files.is_failing() || lock(&self.begun).is_some_and(hangs)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Files that answer once the gate is open.
    struct Gated {
        refreshes: AtomicUsize,
        gate: Arc<tokio::sync::Semaphore>,
    }

    impl Gated {
        fn new(gate: &Arc<tokio::sync::Semaphore>) -> Arc<Self> {
            Arc::new(Self { refreshes: AtomicUsize::new(0), gate: Arc::clone(gate) })
        }

        fn refreshes(&self) -> usize {
            self.refreshes.load(Ordering::SeqCst)
        }
    }

    impl Refresh for Gated {
        fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()> {
            Box::pin(async move {
                self.refreshes.fetch_add(1, Ordering::SeqCst);
                let _open = self.gate.acquire().await;
            })
        }

        fn is_failing(&self) -> bool {
            self.gate.available_permits() == 0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_hangs_delays_no_other() {
        let (open, shut) =
            (Arc::new(tokio::sync::Semaphore::new(1)), Arc::new(tokio::sync::Semaphore::new(0)));
        let (hung, good) = (Gated::new(&shut), Gated::new(&open));
        let watches: Watches = [hung.clone() as Arc<dyn Refresh>, good.clone()].into_iter().collect();
        let _watch = AbortOnDropHandle::new(tokio::spawn(watches.clone().watch()));
        tokio::time::sleep(INTERVAL * 5 / 2).await;
        assert_eq!((hung.refreshes(), good.refreshes()), (1, 3), "at 0, 1 and 2 s");
        // A reload waits for both.
        let refresh = watches.refresh();
        assert!(tokio::time::timeout(INTERVAL / 4, refresh).await.is_err());
        assert_eq!((hung.refreshes(), good.refreshes()), (2, 4));
        shut.add_permits(2);
        tokio::time::sleep(INTERVAL).await;
        assert_eq!((hung.refreshes(), good.refreshes()), (3, 5), "the missed ticks are not caught up");
        watches.refresh().await;
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_a_reload_replaces_are_watched_no_more_and_the_others_as_before() {
        let open = Arc::new(tokio::sync::Semaphore::new(1));
        let (old, kept, new) = (Gated::new(&open), Gated::new(&open), Gated::new(&open));
        let kept_as: Arc<dyn Refresh> = kept.clone();
        let watches: Watches = [old.clone() as Arc<dyn Refresh>, Arc::clone(&kept_as)].into_iter().collect();
        let _watch = AbortOnDropHandle::new(tokio::spawn(watches.clone().watch()));
        tokio::time::sleep(INTERVAL * 3 / 2).await;
        watches.replace([kept_as, new.clone()]);
        tokio::time::sleep(INTERVAL * 3 / 4).await;
        let refreshes = [old.refreshes(), kept.refreshes(), new.refreshes()];
        assert_eq!(refreshes, [2, 3, 1], "at 0 and 1 s, at 0, 1 and 2 s, and at 1.5 s");
        drop(watches);
        assert_eq!(Arc::strong_count(&old), 1, "nothing has them any more");
    }

    #[tokio::test(start_paused = true)]
    async fn files_of_a_file_system_that_does_not_answer_count_as_failing() {
        struct Hung;
        impl Refresh for Hung {
            fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()> {
                Box::pin(std::future::pending())
            }

            fn is_failing(&self) -> bool {
                false
            }
        }
        let (watched, start) = (Watched::new(Arc::new(Hung)), Instant::now());
        assert!(!watched.is_failing(start + LONGEST), "nothing is under way");
        *lock(&watched.begun) = Some(start);
        assert!(!watched.is_failing(start + LONGEST - Duration::from_secs(1)));
        assert!(watched.is_failing(start + LONGEST));
    }
}
