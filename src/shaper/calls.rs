//! Calls to the store by key: one at a time for each key, for all requests under it.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

/// The queue of each key, and the calls in flight. A key is kept as long as its queue is not empty or it has a call in
/// flight.
pub(super) struct Calls<K, L, D> {
    keys: HashMap<K, Waiting<L>>,
    /// The keys without a call in flight.
    idle: VecDeque<K>,
    under_way: FuturesUnordered<BoxFuture<'static, (K, D)>>,
}

struct Waiting<L> {
    queue: L,
    is_called: bool,
}

impl<K: Clone + Eq + Hash + Send + 'static, L: Default, D: Send + 'static> Calls<K, L, D> {
    pub(super) fn new() -> Self {
        Self { keys: HashMap::new(), idle: VecDeque::new(), under_way: FuturesUnordered::new() }
    }

    /// Returns the queue of the key.
    pub(super) fn queue(&mut self, key: K) -> &mut L {
        let idle = &mut self.idle;
        let waiting = self.keys.entry(key).or_insert_with_key(|key| {
            idle.push_back(key.clone());
            Waiting { queue: L::default(), is_called: false }
        });
        &mut waiting.queue
    }

    /// Whether there is any key without a call in flight.
    pub(super) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Takes the queues of all keys without a call in flight.
    pub(super) fn take_idle(&mut self) -> Vec<L> {
        let idle = std::mem::take(&mut self.idle);
        idle.into_iter().filter_map(|key| self.keys.remove(&key)).map(|waiting| waiting.queue).collect()
    }

    /// Starts a call for each key without one, if `call` returns one for the key's queue.
    pub(super) fn start<F>(&mut self, mut call: impl FnMut(&K, &mut L) -> Option<F>)
    where
        F: Future<Output = D> + Send + 'static,
    {
        while let Some(key) = self.idle.pop_front() {
            let Some(waiting) = self.keys.get_mut(&key) else { continue };
            match call(&key, &mut waiting.queue) {
                Some(call) => {
                    waiting.is_called = true;
                    self.under_way.push(Box::pin(async move { (key, call.await) }));
                }
                None => drop(self.keys.remove(&key)),
            }
        }
    }

    /// Waits for the next call that ends: its key and its result. It waits forever if no call is in flight. Cancel
    /// safe.
    pub(super) async fn next(&mut self) -> (K, D) {
        let Some((key, done)) = self.under_way.next().await else { return std::future::pending().await };
        if let Some(waiting) = self.keys.get_mut(&key) {
            waiting.is_called = false;
            self.idle.push_back(key.clone());
        }
        (key, done)
    }

    /// Whether no call is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether all queues are empty, and no call is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
