//! The permits of publishes, one set for each destination queue, and the queues that do not confirm.
//!
//! A queue without a leader keeps the permits of the publishes to it, and no others: a publish takes a permit for its
//! own queue, and keeps it until its outcome is known, whether or not anybody still waits for that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::{info, warn};

use super::channels::Pooled;
use crate::bounded_log::BoundedLog;
use crate::episode::Episode;
use crate::lock::lock;

/// How long a publish is outstanding before its queue counts as one that does not confirm.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a publish is outstanding at most: less than RabbitMQ's `consumer_timeout`, 30 minutes unless set. After
/// that time the broker takes back the message whose job waits for the publish.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// How often an outstanding publish is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The most queues that are named: producers choose the queues of replies.
const NAMED: usize = 20;

type Known = Arc<Mutex<BTreeMap<String, Weak<Target>>>>;

/// The queues that messages are being published to. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Targets {
    known: Known,
    log: Arc<BoundedLog>,
}

/// A queue that messages are being published to; it is forgotten with its last permit.
pub(super) struct Target {
    queue: String,
    permits: Arc<Semaphore>,
    /// The channel for the messages that must reach it in order.
    channel: Arc<tokio::sync::Mutex<Option<Pooled>>>,
    trouble: Mutex<Trouble>,
    targets: Targets,
}

#[derive(Debug, Default)]
struct Trouble {
    /// The publishes that have been outstanding for [`PATIENCE`].
    late: usize,
    episode: Episode,
}

/// The right to have one publish to a queue outstanding.
pub(super) struct Permit {
    target: Arc<Target>,
    is_late: bool,
    _permit: OwnedSemaphorePermit,
}

impl Default for Targets {
    fn default() -> Self {
        let log = BoundedLog::new(|summary| {
            let (lines, queues) = (summary.lines, &summary);
            warn!(lines, %queues, "queues that do not confirm, or do so again; too many to log each");
        });
        Self { known: Known::default(), log }
    }
}

impl Targets {
    /// Waits until fewer than `most` publishes to this queue are outstanding, in the order of the callers.
    ///
    /// Cancel safe.
    pub(super) async fn enter(&self, queue: &str, most: usize) -> Permit {
        let target = self.target(queue, most);
        // The semaphore is never closed, and one without permits would wait as well.
        let permit = Arc::clone(&target.permits).acquire_owned().await;
        match permit {
            Ok(permit) => Permit { target, is_late: false, _permit: permit },
            Err(_) => std::future::pending().await,
        }
    }

    /// As [`Targets::enter`], for messages that must reach the queue in order: callers have its channel one after
    /// another. They wait for the channel first, since several threads free permits at the same time, and then the
    /// waiting callers are not woken in order.
    ///
    /// Cancel safe.
    pub(super) async fn enter_in_order(
        &self,
        queue: &str,
        most: usize,
    ) -> (Permit, OwnedMutexGuard<Option<Pooled>>) {
        let target = self.target(queue, most);
        let channel = Arc::clone(&target.channel).lock_owned().await;
        (self.enter(queue, most).await, channel)
    }

    /// The queues that have had outstanding publishes for long, by name.
    pub(super) fn late(&self) -> Vec<String> {
        let known: Vec<_> = lock(&self.known).values().filter_map(Weak::upgrade).collect();
        let late = known.iter().filter(|target| lock(&target.trouble).late > 0);
        late.map(|target| target.queue.clone()).take(NAMED).collect()
    }

    fn target(&self, queue: &str, most: usize) -> Arc<Target> {
        let mut known = lock(&self.known);
        if let Some(target) = known.get(queue).and_then(Weak::upgrade) {
            return target;
        }
        let target = Arc::new(Target {
            queue: queue.to_owned(),
            permits: Arc::new(Semaphore::new(most)),
            channel: Arc::default(),
            trouble: Mutex::default(),
            targets: self.clone(),
        });
        known.insert(queue.to_owned(), Arc::downgrade(&target));
        target
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let mut known = lock(&self.targets.known);
        // Another one of this name may be known already.
        if known.get(&self.queue).is_some_and(|target| target.strong_count() == 0) {
            known.remove(&self.queue);
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Permit {
    /// Waits for the outcome of a publish for as long as its channel lives, and for [`LONGEST`] at most. `None`
    /// without an outcome; then the caller closes the channel before the permit is dropped.
    ///
    /// The state is `None` if the channel is gone, `Some(true)` while time counts against the queue, and `Some(false)` while the
    /// broker accepts nothing from anybody.
    pub(super) async fn outcome<T>(
        &mut self,
        outcome: impl Future<Output = T>,
        state: impl Fn() -> Option<bool>,
    ) -> Option<T> {
        let (mut outcome, mut waited) = (std::pin::pin!(outcome), Duration::ZERO);
        loop {
            match (timeout(POLL_INTERVAL, &mut outcome).await, state()) {
                (Ok(outcome), state) => {
                    self.ended(state.is_some());
                    return Some(outcome);
                }
                (Err(_), None) => return None,
                (Err(_), Some(counts)) if counts => waited += POLL_INTERVAL,
                (Err(_), Some(_)) => {}
            }
            if waited >= LONGEST {
                return None;
            }
            if waited >= PATIENCE {
                self.late();
            }
        }
    }

    fn late(&mut self) {
        let Target { queue, trouble, targets, .. } = &*self.target;
        let mut trouble = lock(trouble);
        trouble.late += usize::from(!std::mem::replace(&mut self.is_late, true));
        if trouble.episode.note(()) {
            targets.log.line("late", || {
                warn!(
                    queue,
                    "RabbitMQ does not confirm what is published to this queue, which may be without a leader: jobs that end \
                     there wait, others continue"
                );
            });
        }
    }

    /// Records that the publish is not outstanding any more; `confirms` where that shows that the queue confirms.
    fn ended(&mut self, confirms: bool) {
        let Target { queue, trouble, targets, .. } = &*self.target;
        let mut trouble = lock(trouble);
        trouble.late -= usize::from(std::mem::take(&mut self.is_late));
        if confirms && trouble.late == 0 && trouble.episode.end() {
            targets
                .log
                .line("over", || info!(queue, "RabbitMQ confirms what is published to this queue again"));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.ended(false);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    const MOST: usize = 3;

    /// A publish whose outcome comes when the other end is used; without a channel once that is dropped.
    async fn publish(targets: &Targets, queue: &str) -> (oneshot::Sender<()>, tokio::task::JoinHandle<bool>) {
        let mut permit = targets.enter(queue, MOST).await;
        let (done, outcome) = oneshot::channel::<()>();
        let publish = async move { permit.outcome(outcome, || Some(true)).await.is_some_and(|o| o.is_ok()) };
        (done, tokio::spawn(publish))
    }

    fn known(targets: &Targets) -> usize {
        lock(&targets.known).len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_does_not_confirm_holds_its_own_permits_alone() {
        let targets = Targets::default();
        let mut stuck = Vec::new();
        for _ in 0..MOST {
            stuck.push(publish(&targets, "stuck").await);
        }
        let mut waiting = Box::pin(targets.enter("stuck", MOST));
        for round in 0..1_000 {
            // Names that somebody invents are forgotten.
            let (done, outcome) = publish(&targets, &format!("other{round}")).await;
            done.send(()).unwrap();
            assert!(outcome.await.unwrap());
            assert!(known(&targets) <= 2, "{round}");
        }
        tokio::time::sleep(LONGEST - 2 * POLL_INTERVAL).await;
        assert!((&mut waiting).now_or_never().is_none(), "for as long as that lasts");
        assert_eq!(targets.late(), ["stuck"]);
        stuck.pop().unwrap().0.send(()).unwrap();
        drop(waiting.await);
        for (done, outcome) in stuck {
            done.send(()).unwrap();
            assert!(outcome.await.unwrap());
        }
        assert_eq!((known(&targets), targets.late()), (0, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn permits_come_in_order_and_those_who_give_up_lose_nobodys() {
        let targets = Targets::default();
        let mut held = Vec::new();
        for _ in 0..MOST {
            held.push(targets.enter("q", MOST).await);
        }
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(targets.enter("q", MOST))).collect();
        assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        drop(waiting.remove(0));
        held.pop();
        let first = waiting.remove(0).now_or_never();
        assert!(first.is_some() && waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        drop((held, first, waiting));
        assert_eq!(known(&targets), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_late_from_five_seconds_on_and_only_while_the_broker_accepts_anything() {
        for (counts, late) in [(true, vec!["q".to_owned()]), (false, vec![])] {
            let targets = Targets::default();
            let mut permit = targets.enter("q", MOST).await;
            let (done, outcome) = oneshot::channel::<()>();
            let publish = tokio::spawn(async move { permit.outcome(outcome, move || Some(counts)).await });
            tokio::time::sleep(PATIENCE - POLL_INTERVAL / 2).await;
            assert_eq!(targets.late(), [""; 0]);
            tokio::time::sleep(2 * POLL_INTERVAL).await;
            assert_eq!(targets.late(), late);
            done.send(()).unwrap();
            assert!(publish.await.unwrap().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_is_awaited_for_as_long_as_the_channel_lives() {
        let hours = 3 * Duration::from_secs(3600);
        for (lives, counts, waits) in
            [(hours, false, hours), (hours, true, LONGEST), (LONGEST / 2, true, LONGEST / 2)]
        {
            let targets = Targets::default();
            let mut permit = targets.enter("q", 1).await;
            let (_done, outcome) = oneshot::channel::<()>();
            let begun = tokio::time::Instant::now();
            let state = move || (begun.elapsed() < lives).then_some(counts);
            assert!(permit.outcome(outcome, state).await.is_none());
            assert_eq!(begun.elapsed().as_secs(), waits.as_secs());
            assert!(targets.enter("q", 1).now_or_never().is_none(), "until the channel is closed");
            drop(permit);
            assert!(targets.enter("q", 1).now_or_never().is_some() && targets.late().is_empty());
        }
    }
}
