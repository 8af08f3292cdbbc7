//! The requests that wait for an answer of the store, in their order.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::cost::{BatchCosts, Cost};
use crate::limit::LimitSet;
use crate::store::MAX_BATCH;

/// A request that waits for an answer of the store.
#[derive(Debug)]
pub(super) struct Request<A> {
    pub(super) cost: Cost,
    pub(super) answer: oneshot::Sender<A>,
}

/// The waiting requests, in their order.
#[derive(Debug)]
pub(super) struct Queue<A>(VecDeque<Request<A>>);

impl<A> Queue<A> {
    pub(super) fn push(&mut self, request: Request<A>) {
        self.0.push_back(request);
    }

    /// Takes the requests of the next call, and drops those whose callers are gone.
    pub(super) fn take_batch(&mut self) -> Vec<Request<A>> {
        self.take(MAX_BATCH)
    }

    /// Takes this many requests at most, and drops those before them whose callers are gone.
    pub(super) fn take(&mut self, most: usize) -> Vec<Request<A>> {
        let mut batch = vec![];
        while batch.len() < most {
            match self.0.pop_front() {
                Some(request) if request.answer.is_closed() => {}
                Some(request) => batch.push(request),
                None => break,
            }
        }
        batch
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts requests back, before all others.
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

/// Returns the costs of the requests, in the form for the store.
pub(super) fn batch_costs<A>(limits: &LimitSet, requests: &[Request<A>]) -> BatchCosts {
    BatchCosts::of(limits, requests.iter().map(|request| &request.cost))
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
        let batch = queue.take_batch();
        join(&mut queue, 3);
        queue.put_back(batch);
        drop(waiters.remove(1));
        let costs: Vec<Cost> = queue.take_batch().into_iter().map(|request| request.cost).collect();
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
        assert_eq!(
            [queue.take_batch().len(), queue.take_batch().len(), queue.take_batch().len()],
            [MAX_BATCH, 1, 0]
        );
    }
}
