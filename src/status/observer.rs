//! The observer: it starts what samples the dispatchers and what talks with the store, and serves those who look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paced::store::RecordState;
use paced::time::wall_now;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::exchange::Exchange;
use super::model::{self, History, State};
use super::rates::Steps;
use super::sampler::{STEP, Sampler};
use super::shared::{HURRY, LOOKING, Parts, Shared, lock};
use super::summary::Summary;

/// How long somebody who looks waits for a fresh state.
const FRESH_TIMEOUT: Duration = Duration::from_millis(1500);

/// A running observer.
pub(crate) struct Observer {
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
    stop: CancellationToken,
}

/// A handle for those who look.
#[derive(Clone)]
pub(crate) struct Watch(Arc<Shared>);

impl Observer {
    /// Starts to observe. Must be called on a tokio runtime.
    pub(crate) fn start(parts: Parts) -> Self {
        let own = Summary::new(parts.identity.clone(), wall_now().0 / 1000);
        let shared = Arc::new(Shared {
            parts,
            own: Mutex::new(own),
            known: Mutex::default(),
            history: Mutex::default(),
            stepped_at: Mutex::default(),
            looked_at: Mutex::default(),
            looked: Notify::new(),
            hurried_at: Mutex::default(),
            latest: watch::channel(Arc::default()).0,
        });
        let stop = CancellationToken::new();
        let sampling = Sampler::new(Arc::clone(&shared)).run();
        let exchange = Exchange::new(Arc::clone(&shared)).run(stop.clone());
        let sampling = {
            let stop = stop.clone();
            async move { stop.run_until_cancelled(sampling).await.unwrap_or_default() }
        };
        Self { shared, tasks: [tokio::spawn(sampling), tokio::spawn(exchange)], stop }
    }

    /// A handle for those who look.
    pub(crate) fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.shared))
    }

    /// Ends the observation, and takes back what this replica has left in the store.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        for task in self.tasks {
            // The runtime reports a panic in it.
            let _ = task.await;
        }
    }
}

impl Watch {
    /// The state, as fresh as it can be had at once. Cancel safe.
    pub(crate) async fn state(&self) -> Arc<State> {
        let mut latest = self.0.latest.subscribe();
        let was_looking = self.look();
        // Somebody else looks, so that it is at most a second old.
        if !was_looking || latest.borrow().replica.is_empty() {
            let _ = timeout(FRESH_TIMEOUT, latest.changed()).await;
        }
        Arc::clone(&*latest.borrow_and_update())
    }

    /// The record of each downstream, from memory: what it shows is up to a minute old, but that it was changed here or
    /// that its limits or pauses changed is noticed within seconds. Records that are not known are waited for, for a
    /// short time, and are missing then. Cancel safe.
    pub(crate) async fn records(&self) -> BTreeMap<String, RecordState> {
        let mut latest = self.0.latest.subscribe();
        let end = Instant::now() + FRESH_TIMEOUT;
        self.look();
        loop {
            let records = lock(&self.0.known).fresh_records();
            let is_whole = self.0.parts.views.keys().all(|name| records.contains_key(name));
            if is_whole || Instant::now() >= end {
                return records;
            }
            self.0.hurry();
            // The sender lives as long as this handle.
            let _ = timeout(HURRY, latest.changed()).await;
        }
    }

    /// Why the store does not answer, if it does not.
    pub(crate) fn store_error(&self) -> Option<String> {
        lock(&self.0.known).store_error.clone()
    }

    /// The states from now on, about one a second, as long as [`Watch::look`] is called now and then.
    pub(crate) fn states(&self) -> watch::Receiver<Arc<State>> {
        self.look();
        self.0.latest.subscribe()
    }

    /// Has the state be kept up to date for some seconds. Returns whether it was.
    pub(crate) fn look(&self) -> bool {
        let before = lock(&self.0.looked_at).replace(Instant::now());
        let was_looking = before.is_some_and(|at| at.elapsed() < LOOKING);
        if !was_looking {
            self.0.looked.notify_one();
        }
        was_looking
    }

    /// Has the record of this downstream be read anew, since it was changed.
    pub(crate) fn changed(&self, downstream: &str) {
        lock(&self.0.known).forget_record(downstream);
        self.0.looked.notify_one();
    }

    /// What was released in the last quarter of an hour.
    pub(crate) fn history(&self) -> History {
        let until = *lock(&self.0.stepped_at);
        let steps = |(name, steps): (&String, &Steps)| {
            (name.clone(), model::Steps { until, released: steps.released() })
        };
        let downstreams = lock(&self.0.history).iter().map(steps).collect();
        History { now: wall_now().0 / 1000, step_ms: STEP.unsigned_abs(), downstreams }
    }
}
