//! The order in which thousands of dispatchers begin: first those in whose queues jobs wait, then the others, some at a time.
//!
//! Each one needs consumers at the broker and the terms from the store. If all began at once, the jobs of a few would wait
//! until all are consumed, and calls to the store would run into their time-outs.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

/// How many begin at a time. If there are no more than these, all begin at once.
pub(super) const AT_ONCE: usize = 64;

/// Those that wait for their turn to begin, and those that are beginning.
pub(super) struct Starts<T> {
    waiting: BTreeMap<String, T>,
    /// The names of those that begin before the others. Some may have begun already.
    first: VecDeque<String>,
    /// Brings the names of those that have jobs. Until it ends, only they begin.
    with_jobs: Option<mpsc::UnboundedReceiver<String>>,
    beginning: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl<T> Starts<T> {
    /// None wait.
    pub(super) fn none() -> Self {
        Self {
            waiting: BTreeMap::new(),
            first: VecDeque::new(),
            with_jobs: None,
            beginning: FuturesUnordered::new(),
        }
    }

    /// These wait; those begin first that `with_jobs` names.
    pub(super) fn of(waiting: BTreeMap<String, T>, with_jobs: mpsc::UnboundedReceiver<String>) -> Self {
        Self { waiting, with_jobs: Some(with_jobs), ..Self::none() }
    }

    /// Waits for the next one that may begin; forever if none waits. Cancel safe.
    pub(super) async fn next(&mut self) -> (String, T) {
        loop {
            if self.beginning.len() < AT_ONCE
                && let Some(next) = self.take()
            {
                return next;
            }
            let named = async {
                match &mut self.with_jobs {
                    Some(names) => names.recv().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Some(()) = self.beginning.next() => {}
                name = named => match name {
                    Some(name) => self.first.push_back(name),
                    None => self.with_jobs = None,
                },
            }
        }
    }

    fn take(&mut self) -> Option<(String, T)> {
        while let Some(name) = self.first.pop_front() {
            if let Some(next) = self.waiting.remove_entry(&name) {
                return Some(next);
            }
        }
        if self.with_jobs.is_some() { None } else { self.waiting.pop_first() }
    }

    /// Records that one is beginning until this future ends.
    pub(super) fn begun(&self, until: BoxFuture<'static, ()>) {
        self.beginning.push(until);
    }

    /// Lets one begin before the others, if it waits.
    pub(super) fn hasten(&mut self, name: &str) {
        self.first.push_front(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    /// The names of those that may begin now, each with the sender that ends its beginning.
    fn begin_all(starts: &mut Starts<usize>) -> Vec<(String, oneshot::Sender<()>)> {
        let mut all = Vec::new();
        while let Some((name, _)) = starts.next().now_or_never() {
            let (end, ended) = oneshot::channel();
            starts.begun(Box::pin(async move { drop(ended.await) }));
            all.push((name, end));
        }
        all
    }

    fn names(begun: &[(String, oneshot::Sender<()>)]) -> Vec<&str> {
        begun.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Outside a runtime: within one, a task that never waits is stopped after some steps.
    #[test]
    fn those_with_jobs_begin_first_and_only_some_at_a_time() {
        let waiting = (0..1_000).map(|n| (format!("d{n:03}"), n)).collect();
        let (found, with_jobs) = mpsc::unbounded_channel();
        let mut starts = Starts::of(waiting, with_jobs);
        assert!(begin_all(&mut starts).is_empty(), "nobody knows yet which have jobs");
        for name in ["d900", "d500", "d900", "unknown"] {
            found.send(name.to_owned()).unwrap();
        }
        let busy = begin_all(&mut starts);
        assert_eq!(names(&busy), ["d900", "d500"]);
        starts.hasten("d700");
        starts.hasten("d900");
        assert_eq!(names(&begin_all(&mut starts)), ["d700"]);
        drop(found);
        // The sender of d700 is gone, so that it counts as begun.
        let others = begin_all(&mut starts);
        assert_eq!((others.len(), names(&others)[0]), (AT_ONCE - busy.len(), "d000"));
        let (mut last, mut seen) = (others, busy.len() + 1);
        while !last.is_empty() {
            assert!(last.len() <= AT_ONCE - busy.len());
            seen += last.len();
            drop(last);
            last = begin_all(&mut starts);
        }
        assert_eq!(seen, 1_000);
        assert!(starts.next().now_or_never().is_none(), "none is left");
    }
}
