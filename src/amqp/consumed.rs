//! The downstreams that are consumed, or may be. Some come and go while the process runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Downstream;
use super::budget::{Account, Budget};
use super::error::Error;
use super::gate::Gate;
use super::source::{Slot, flush_among};
use super::status::Attachments;
use crate::lock::lock;

/// A downstream that is consumed, or may be.
#[derive(Debug)]
pub(super) struct Consumed {
    pub(super) downstream: Downstream,
    /// Its index among all, which decides over which connection it is consumed.
    pub(super) index: usize,
    /// Whether it is consumed.
    pub(super) attached: watch::Sender<bool>,
    /// The account of the bytes that it holds.
    pub(super) account: Arc<Account>,
    /// The tasks that consume it, once it has a source.
    pub(super) running: Option<Running>,
}

/// The tasks that consume a downstream.
#[derive(Debug)]
pub(super) struct Running {
    /// The last subscriptions of its queues.
    pub(super) slots: [Slot; 2],
    /// Ends the tasks.
    pub(super) closing: CancellationToken,
    pub(super) subscribers: [JoinHandle<()>; 2],
    pub(super) unparker: JoinHandle<()>,
}

impl Running {
    /// Ends the tasks. Returns whether the broker has processed all settlements; `gate` bounds how many downstreams
    /// wait for that at a time.
    pub(super) async fn end(self, gate: &Gate) -> bool {
        let Self { slots, closing, subscribers, unparker } = self;
        closing.cancel();
        // The runtime reports a panic.
        for subscriber in subscribers {
            let _ = subscriber.await;
        }
        let mut flushed = true;
        {
            let mut permit = gate.enter().await;
            for slot in &slots {
                flushed &= flush_among(slot).await;
                if !flushed {
                    // A broker that does not answer must not keep others from their queues.
                    permit = None;
                }
            }
            drop(permit);
        }
        let _ = unparker.await;
        flushed
    }
}

/// All downstreams of a process.
#[derive(Debug)]
pub(super) struct Consumers {
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// Whether each is consumed.
    pub(super) attached: Attachments,
}

#[derive(Debug, Default)]
struct State {
    all: BTreeMap<String, Consumed>,
    /// The indices that were in use and are free again. They are used first, so that the process opens no more
    /// connections than the largest number of downstreams at one time needs.
    free: BTreeSet<usize>,
    /// The first index that was never in use.
    unused: usize,
}

impl State {
    fn index(&mut self) -> usize {
        self.free.pop_first().unwrap_or_else(|| {
            self.unused += 1;
            self.unused - 1
        })
    }
}

impl Consumers {
    /// These downstreams, out of `window` bytes in all.
    pub(super) fn new(window: u64, downstreams: &[Downstream]) -> Self {
        let (state, attached) = (Mutex::default(), Attachments::default());
        let consumers = Self { budget: Budget::new(window), state, attached };
        consumers.open(&mut lock(&consumers.state), downstreams);
        consumers
    }

    /// Adds downstreams, all at once or none.
    ///
    /// # Errors
    /// There is a downstream of one of these names already.
    pub(super) fn add(&self, downstreams: &[Downstream]) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let known = downstreams.iter().find(|downstream| state.all.contains_key(&downstream.name));
        if let Some(Downstream { name, .. }) = known {
            return Err(Error::Consumed(name.clone()));
        }
        self.open(&mut state, downstreams);
        Ok(())
    }

    fn open(&self, state: &mut State, downstreams: &[Downstream]) {
        let most: Vec<u64> = downstreams.iter().map(|downstream| downstream.prefetch_bytes).collect();
        let accounts = self.budget.open(&most);
        let mut attachments = lock(&self.attached);
        for (downstream, account) in downstreams.iter().cloned().zip(accounts) {
            let (name, index, attached) = (downstream.name.clone(), state.index(), watch::Sender::new(false));
            attachments.insert(name.clone(), attached.subscribe());
            state.all.insert(name, Consumed { downstream, index, attached, account, running: None });
        }
    }

    /// Starts the tasks that consume a downstream.
    ///
    /// # Errors
    /// There is none of this name, or it is consumed already.
    pub(super) fn start<T>(
        &self,
        name: &str,
        start: impl FnOnce(&Consumed) -> (Running, T),
    ) -> Result<T, Error> {
        let mut state = lock(&self.state);
        let unknown = || Error::UnknownDownstream(name.to_owned());
        let consumed = state.all.get_mut(name).ok_or_else(unknown)?;
        if consumed.running.is_some() {
            return Err(Error::Consumed(name.to_owned()));
        }
        let (running, started) = start(consumed);
        consumed.running = Some(running);
        Ok(started)
    }

    /// Removes a downstream. Its index stays in use until [`Consumers::release`].
    pub(super) fn take(&self, name: &str) -> Option<Consumed> {
        let consumed = lock(&self.state).all.remove(name)?;
        lock(&self.attached).remove(name);
        self.budget.close(&consumed.account);
        Some(consumed)
    }

    /// Lets another downstream use this index.
    pub(super) fn release(&self, index: usize) {
        lock(&self.state).free.insert(index);
    }

    /// Waits until this downstream is consumed, or there is none of this name. Cancel safe.
    pub(super) async fn attached(&self, downstream: &str) {
        let attached = lock(&self.attached).get(downstream).cloned();
        if let Some(mut attached) = attached {
            // The sender is gone once the downstream is removed.
            let _ = attached.wait_for(|attached| *attached).await;
        }
    }

    /// Waits until every downstream is consumed. Cancel safe.
    pub(super) async fn ready(&self) {
        while !self.is_ready() {
            let all: Vec<_> = lock(&self.attached).values().cloned().collect();
            for mut attached in all {
                // The sender is gone once the downstream is removed.
                let _ = attached.wait_for(|attached| *attached).await;
            }
        }
    }

    pub(super) fn is_attached(&self, downstream: &str) -> bool {
        lock(&self.attached).get(downstream).is_some_and(|attached| *attached.borrow())
    }

    pub(super) fn is_ready(&self) -> bool {
        lock(&self.attached).values().all(|attached| *attached.borrow())
    }

    /// The slots of all queues.
    pub(super) fn slots(&self) -> Vec<Slot> {
        let state = lock(&self.state);
        let running = state.all.values().filter_map(|consumed| consumed.running.as_ref());
        running.flat_map(|running| running.slots.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn downstream(name: &str) -> Downstream {
        Downstream { name: name.to_owned(), queue: None, max_length: None, prefetch: 1, prefetch_bytes: 64 }
    }

    #[test]
    fn indices_that_are_free_again_are_taken_first() {
        let consumers = Consumers::new(256, &["a", "b", "c"].map(downstream));
        let take = |name: &str| consumers.take(name).map(|consumed| consumed.index);
        let add = |name: &str| consumers.add(&[downstream(name)]).is_ok();
        assert_eq!((take("b"), take("b"), add("a")), (Some(1), None, false));
        assert!(add("d"));
        assert_eq!(take("d"), Some(3), "the index of one that ends is not free yet");
        consumers.release(3);
        consumers.release(1);
        assert!(add("e") && add("f") && add("g"));
        assert_eq!((take("e"), take("f"), take("g")), (Some(1), Some(3), Some(4)));
        let names: Vec<String> = lock(&consumers.attached).keys().cloned().collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn the_share_of_one_that_goes_is_for_the_others() {
        let consumers = Consumers::new(100, &["a", "b"].map(downstream));
        let account = |name: &str| Arc::clone(&lock(&consumers.state).all[name].account);
        let (a, b) = (account("a"), account("b"));
        let held = a.charge(64, 0);
        // Of the 50 bytes that are not divided, 39 are in use.
        assert_eq!(b.allowance(), 36);
        consumers.take("a");
        drop(held);
        assert_eq!(b.allowance(), 64);
    }
}
