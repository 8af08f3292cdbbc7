//! Calls to the store by key: one at a time for each, on behalf of all who wait under it.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::store::BoxFuture;

/// What waits under each key, and the calls that are under way. A key is kept as long as something waits under it or
/// is asked for it.
pub(super) struct Calls<K, L, D> {
    keys: HashMap<K, Waiting<L>>,
    /// Those that no call is under way for.
    idle: VecDeque<K>,
    under_way: FuturesUnordered<BoxFuture<'static, (K, D)>>,
}

struct Waiting<L> {
    line: L,
    is_called: bool,
}

impl<K: Clone + Eq + Hash + Send + 'static, L: Default, D: Send + 'static> Calls<K, L, D> {
    pub(super) fn new() -> Self {
        Self { keys: HashMap::new(), idle: VecDeque::new(), under_way: FuturesUnordered::new() }
    }

    /// What waits under the key.
    pub(super) fn line(&mut self, key: K) -> &mut L {
        let idle = &mut self.idle;
        let waiting = self.keys.entry(key).or_insert_with_key(|key| {
            idle.push_back(key.clone());
            Waiting { line: L::default(), is_called: false }
        });
        &mut waiting.line
    }

    /// Takes what waits under each key that no call is under way for.
    pub(super) fn take_idle(&mut self) -> Vec<L> {
        let idle = std::mem::take(&mut self.idle);
        idle.into_iter().filter_map(|key| self.keys.remove(&key)).map(|waiting| waiting.line).collect()
    }

    /// Makes a call for each key that has none, where `call` has something to ask for.
    pub(super) fn start<F>(&mut self, mut call: impl FnMut(&K, &mut L) -> Option<F>)
    where
        F: Future<Output = D> + Send + 'static,
    {
        while let Some(key) = self.idle.pop_front() {
            let Some(waiting) = self.keys.get_mut(&key) else { continue };
            match call(&key, &mut waiting.line) {
                Some(call) => {
                    waiting.is_called = true;
                    self.under_way.push(Box::pin(async move { (key, call.await) }));
                }
                None => drop(self.keys.remove(&key)),
            }
        }
    }

    /// The key of the next call that ended, and how; never, while none is under way. Cancel safe.
    pub(super) async fn next(&mut self) -> (K, D) {
        let Some((key, done)) = self.under_way.next().await else { return std::future::pending().await };
        if let Some(waiting) = self.keys.get_mut(&key) {
            waiting.is_called = false;
            self.idle.push_back(key.clone());
        }
        (key, done)
    }

    /// Whether no call is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether nothing waits, and no call is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
