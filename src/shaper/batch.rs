//! Single flight: per key one call to the store at a time, carrying all who wait.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::cost::{Cost, Fares};
use crate::limit::LimitSet;
use crate::store::MAX_BATCH;

/// The keys for which the store is being asked. A lane exists as long as its driver runs.
#[derive(Debug)]
pub(super) struct Lanes<L>(Mutex<HashMap<String, L>>);

/// One that waits for an answer of the store.
#[derive(Debug)]
pub(super) struct Request<A> {
    pub(super) cost: Cost,
    pub(super) answer: oneshot::Sender<A>,
}

/// Those who wait, in their order.
#[derive(Debug)]
pub(super) struct Queue<A>(VecDeque<Request<A>>);

/// Asks the store on behalf of all who wait under a key.
pub(super) trait Carrier: fmt::Debug + Send + Sync + Sized + 'static {
    /// What waits under a key.
    type Lane: Default + Send;
    /// What is done in one go.
    type Load: Send;

    fn lanes(&self) -> &Lanes<Self::Lane>;

    /// What is next; `None` and the end of the lane when there is nothing.
    fn load(lane: &mut Self::Lane) -> Option<Self::Load>;

    fn carry(self: &Arc<Self>, key: &str, load: Self::Load) -> impl Future<Output = ()> + Send;
}

/// Adds to a lane, and has it driven.
pub(super) fn submit<C: Carrier>(carrier: &Arc<C>, key: &str, add: impl FnOnce(&mut C::Lane)) {
    let mut lanes = carrier.lanes().lock();
    if let Some(lane) = lanes.get_mut(key) {
        return add(lane);
    }
    // Without a runtime (a reservation dropped after it ended) nobody can ask the store.
    let Ok(runtime) = Handle::try_current() else { return };
    add(lanes.entry(key.to_owned()).or_default());
    drop(lanes);
    // In a task of its own: a caller that is dropped must not stall the others.
    let driver = Driver { carrier: Arc::clone(carrier), key: key.to_owned(), finished: false };
    runtime.spawn(driver.run());
}

/// Asks the store for one lane until nothing waits.
struct Driver<C: Carrier> {
    carrier: Arc<C>,
    key: String,
    finished: bool,
}

impl<C: Carrier> Driver<C> {
    async fn run(mut self) {
        while let Some(load) = self.next() {
            self.carrier.carry(&self.key, load).await;
        }
        self.finished = true;
    }

    fn next(&self) -> Option<C::Load> {
        let mut lanes = self.carrier.lanes().lock();
        let load = C::load(lanes.get_mut(&self.key)?);
        if load.is_none() {
            lanes.remove(&self.key);
        }
        load
    }
}

impl<C: Carrier> Drop for Driver<C> {
    fn drop(&mut self) {
        if !self.finished {
            // Broken off. Without the lane its callers learn of it, and the next one starts anew.
            let lane = self.carrier.lanes().lock().remove(&self.key);
            drop(lane);
        }
    }
}

impl<L> Lanes<L> {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, L>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L> Default for Lanes<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A> Queue<A> {
    pub(super) fn push(&mut self, request: Request<A>) {
        self.0.push_back(request);
    }

    /// Those that the next call carries; who is gone is left behind.
    pub(super) fn board(&mut self) -> Vec<Request<A>> {
        let mut boarded = vec![];
        while boarded.len() < MAX_BATCH {
            match self.0.pop_front() {
                Some(request) if request.answer.is_closed() => {}
                Some(request) => boarded.push(request),
                None => break,
            }
        }
        boarded
    }

    /// Takes them back, before all others.
    pub(super) fn put_back(&mut self, requests: Vec<Request<A>>) {
        for request in requests.into_iter().rev() {
            self.0.push_front(request);
        }
    }
}

impl<A> Default for Queue<A> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

/// What they cost, as the store is told.
pub(super) fn fares<A>(limits: &LimitSet, requests: &[Request<A>]) -> Fares {
    Fares::of(limits, requests.iter().map(|request| &request.cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_taken_back_goes_first_and_who_left_stays_behind() {
        let mut queue = Queue::<()>::default();
        let mut waiters = vec![];
        let mut join = |queue: &mut Queue<()>, cost| {
            let (answer, waiter) = oneshot::channel();
            waiters.push(waiter);
            queue.push(Request { cost: Cost::Each(cost), answer });
        };
        for cost in 0..3 {
            join(&mut queue, cost);
        }
        let boarded = queue.board();
        join(&mut queue, 3);
        queue.put_back(boarded);
        drop(waiters.remove(1));
        let costs: Vec<Cost> = queue.board().into_iter().map(|request| request.cost).collect();
        assert_eq!(costs, [0, 2, 3].map(Cost::Each));
    }

    #[test]
    fn a_call_carries_as_many_as_a_store_takes() {
        let mut queue = Queue::<()>::default();
        let mut waiters = vec![];
        for _ in 0..=MAX_BATCH {
            let (answer, waiter) = oneshot::channel();
            waiters.push(waiter);
            queue.push(Request { cost: Cost::Each(1), answer });
        }
        assert_eq!([queue.board().len(), queue.board().len(), queue.board().len()], [MAX_BATCH, 1, 0]);
    }
}
