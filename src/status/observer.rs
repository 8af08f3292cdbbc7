//! The observer: it starts the tasks that sample the dispatchers and exchange summaries with the store, and serves
//! readers of the state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paced::api::Pause;
use paced::api::state::{self, History, State};
use paced::dispatch::Question;
use paced::failpoint;
use paced::lock::lock;
use paced::store::RecordState;
use paced::time::wall_now;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::asks::answers;
use super::exchange::Exchange;
use super::rates::Steps;
use super::reporting::report;
use super::sampler::{STEP, Sampler};
use super::shared::{Parts, ROUND_SPACING, Shared, Watched};
use super::summary::{Answer, Identity, Summary};

/// How long a reader waits for a fresh state.
const FRESH_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long the other replicas may take to answer a question, and how often their answers are read meanwhile. A
/// replica without readers of its state reads questions every four seconds.
const ANSWERS: Duration = Duration::from_secs(6);
const ASKED_EVERY: Duration = Duration::from_millis(500);

/// The first version of terms in which something is set for values of lanes.
const WITH_VALUES: u64 = 4;

/// How long this replica may take to report its end to the others.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long the store may take to write its state at the end.
const CLOSING: Duration = Duration::from_secs(10);

/// A running observer.
pub(crate) struct Observer {
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
    stop: CancellationToken,
}

/// A handle for readers of the state.
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
            watched: Mutex::default(),
            looked: Notify::new(),
            round_requested_at: Mutex::default(),
            latest: watch::channel(Arc::default()).0,
        });
        let stop = CancellationToken::new();
        let sampling = Sampler::new(Arc::clone(&shared)).run();
        let exchange = Exchange::new(Arc::clone(&shared), stop.clone()).run();
        let sampling = {
            let stop = stop.clone();
            async move { stop.run_until_cancelled(sampling).await.unwrap_or_default() }
        };
        Self { shared, tasks: [tokio::spawn(sampling), tokio::spawn(exchange)], stop }
    }

    /// A handle for readers of the state.
    pub(crate) fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.shared))
    }

    /// The longest time that [`Observer::stop`] takes.
    pub(crate) const STOP: Duration = GOODBYE.saturating_add(CLOSING);

    /// Ends the observation, removes this replica's summary from the store, and closes the store, which nobody else
    /// uses by then. A store that does not answer does not delay the end of the process.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        // The runtime reports a panic in a task; those that do not end in time end with the process.
        let _ = timeout(GOODBYE, futures_util::future::join_all(self.tasks)).await;
        match timeout(CLOSING, self.shared.parts.store.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the store was not closed in order: what was leased of the limits is lost");
            }
            Err(_) => tracing::warn!(
                within = ?CLOSING,
                "the store was not closed in time: what was leased of the limits may be lost"
            ),
        }
    }
}

impl Watch {
    /// The state, as fresh as it can be had at once. Cancel safe.
    pub(crate) async fn state(&self) -> Arc<State> {
        let mut latest = self.0.latest.subscribe();
        let was_looking = self.look();
        // Another reader is there, so the state is at most a second old.
        if !was_looking || latest.borrow().replica.is_empty() {
            let _ = timeout(FRESH_TIMEOUT, latest.changed()).await;
        }
        Arc::clone(&*latest.borrow_and_update())
    }

    /// The record of each downstream, from memory. While there are readers, the observer reads the records every few
    /// seconds, and at once after a change that was made here. If there was no reader before, only records count that
    /// are read from now on. This waits a short time for records that are unknown or do not count; those that do not
    /// come are missing. Cancel safe.
    pub(crate) async fn records(&self) -> BTreeMap<String, RecordState> {
        let mut latest = self.0.latest.subscribe();
        let end = Instant::now() + FRESH_TIMEOUT;
        self.look();
        let since = self.0.watched_since();
        loop {
            let records = lock(&self.0.known).fresh_records(since);
            let is_whole = self.0.parts.dispatchers.all().keys().all(|name| records.contains_key(name));
            if is_whole || Instant::now() >= end {
                return records;
            }
            self.0.request_round();
            // The sender lives as long as this handle.
            let _ = timeout(ROUND_SPACING, latest.changed()).await;
        }
    }

    /// Asks all other replicas that have this downstream where jobs are, for some seconds; one question at a time. Returns the
    /// answers by the ids of the replicas. Cancel safe: the question is taken back.
    pub(crate) async fn ask_others(&self, downstream: &str, question: &Question) -> BTreeMap<String, Answer> {
        let Parts { identity, asks, .. } = &self.0.parts;
        let asking = asks.ask(downstream, question);
        report(&self.0).await;
        let end = Instant::now() + failpoint::interval(ANSWERS);
        loop {
            let (answers, is_whole) =
                answers(&lock(&self.0.known).others.summaries, (&identity.id, asking.number), downstream);
            if is_whole || Instant::now() >= end {
                return answers;
            }
            self.look();
            self.0.request_round();
            sleep(failpoint::interval(ASKED_EVERY)).await;
        }
    }

    /// Whether this downstream has lanes by keys; `None` if it is not served here.
    pub(crate) fn has_lanes(&self, downstream: &str) -> Option<bool> {
        let all = self.0.parts.dispatchers.all();
        all.get(downstream).map(|handle| handle.view.snapshot().terms.has_lanes())
    }

    /// The other replicas of a downstream that cannot read terms in which something is set for values of lanes.
    pub(crate) fn without_values(&self, downstream: &str) -> Vec<String> {
        let known = lock(&self.0.known);
        let others = known.others.summaries.iter().filter(|other| other.downstreams.contains_key(downstream));
        let older = others.map(|other| &other.replica).filter(|replica| replica.terms < WITH_VALUES);
        older.map(|Identity { id, host, version, .. }| format!("{id} on {host} (paced {version})")).collect()
    }

    /// Why the store does not answer, if it does not.
    pub(crate) fn store_error(&self) -> Option<String> {
        lock(&self.0.known).store_error.clone()
    }

    /// The states from now on, about one a second, as long as the caller calls [`Watch::look`] every few seconds.
    pub(crate) fn states(&self) -> watch::Receiver<Arc<State>> {
        self.look();
        self.0.latest.subscribe()
    }

    /// Keeps the state up to date for some seconds. Returns whether it was up to date before.
    pub(crate) fn look(&self) -> bool {
        let last = Instant::now();
        let was_looking = {
            let mut watched = lock(&self.0.watched);
            let before = watched.filter(Watched::lasts);
            *watched = Some(Watched { since: before.map_or(last, |before| before.since), last });
            before.is_some()
        };
        if !was_looking {
            self.0.looked.notify_one();
        }
        was_looking
    }

    /// Makes the exchange read the record of this downstream again, since it was changed. Until then the state shows
    /// `pause`, if the caller knows it.
    pub(crate) fn changed(&self, downstream: &str, pause: Option<Option<Pause>>) {
        lock(&self.0.known).forget_record(downstream, pause);
        if self.0.is_watched() {
            self.0.publish();
        }
        self.0.looked.notify_one();
    }

    /// Makes the number of dead letters of this downstream unknown until it is read again, since some were moved or
    /// deleted.
    pub(crate) fn letters_changed(&self, downstream: &str) {
        self.0.parts.broker.depths.forget_dead(downstream);
        self.0.looked.notify_one();
    }

    /// What was released in the last quarter of an hour.
    pub(crate) fn history(&self) -> History {
        let until = *lock(&self.0.stepped_at);
        let steps = |(name, steps): (&String, &Steps)| {
            (name.clone(), state::Steps { until, released: steps.released(), failed: steps.failed() })
        };
        let downstreams = lock(&self.0.history).iter().map(steps).collect();
        History { now: wall_now().0 / 1000, step_ms: STEP.unsigned_abs(), downstreams }
    }
}

#[cfg(test)]
mod tests {
    use paced::store::{MemoryStore, Served, Store};
    use tokio::time::advance;

    use super::super::asks::Asks;
    use super::super::dispatchers::tests::dispatcher;
    use super::super::dispatchers::{Dispatchers, Handle};
    use super::super::known::Record;
    use super::super::shared::{Broker, LOOKING};
    use super::*;

    /// Each replica that reports itself counts for the downstreams that it has.
    #[tokio::test(start_paused = true)]
    async fn dispatchers_know_how_many_replicas_have_their_downstream() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for (id, has) in [("one", "billing"), ("two", "billing"), ("three", "mail")] {
            let identity = Identity { id: id.to_owned(), ..Identity::default() };
            let mut summary = Summary::new(identity, 0);
            summary.downstreams.insert(has.to_owned(), super::super::summary::Own::default());
            store.leave_summary(id, &summary.text(), Duration::from_secs(60)).await.unwrap();
        }
        let (dispatchers, dispatcher) = (Dispatchers::default(), dispatcher("billing"));
        let handle = Handle::of(&dispatcher, CancellationToken::new());
        let peers = handle.peers.clone();
        dispatchers.insert("billing".to_owned(), handle);
        let observer = Observer::start(Parts { dispatchers, ..parts(&store) });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(peers.count(), 3, "with this one, in the first round");
        observer.stop().await;
    }

    /// They would send nothing while something is set.
    #[tokio::test(start_paused = true)]
    async fn replicas_that_cannot_read_what_is_set_for_values_are_named() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for (id, has, terms) in [("one", "billing", 4), ("two", "billing", 0), ("three", "mail", 3)] {
            let (host, version) = ("h".to_owned(), "0.1.0".to_owned());
            let identity = Identity { id: id.to_owned(), host, version, terms, ..Identity::default() };
            let mut summary = Summary::new(identity, 0);
            summary.downstreams.insert(has.to_owned(), super::super::summary::Own::default());
            store.leave_summary(id, &summary.text(), Duration::from_secs(60)).await.unwrap();
        }
        let observer = Observer::start(parts(&store));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let watch = observer.watch();
        assert_eq!(watch.without_values("billing"), ["two on h (paced 0.1.0)"]);
        assert_eq!(watch.without_values("other"), [""; 0]);
        observer.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_goodbye_is_tried_also_where_the_store_has_just_not_answered() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let observer = Observer::start(parts(&store));
        let states = async || {
            let texts = store.summaries().await.unwrap();
            let read = texts.iter().map(|text| Summary::read(text).unwrap());
            read.map(|summary| (summary.says_goodbye, summary.has_ended)).collect::<Vec<_>>()
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(states().await, [(true, false)]);
        lock(&observer.shared.known).store_error = Some("no answer within 1s".to_owned());
        observer.stop().await;
        assert_eq!(states().await, [(true, true)]);
    }

    /// A downstream that a replica with another file serves is no orphan; within a minute after that replica has
    /// ended it is one.
    #[tokio::test(start_paused = true)]
    async fn a_downstream_that_nobody_serves_is_named_within_a_minute() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let observer = Observer::start(parts(&store));
        let watch = observer.watch();
        let orphans = || {
            let orphans = lock(&watch.0.known).orphans.clone();
            orphans.into_iter().map(|orphan| orphan.name).collect::<Vec<_>>()
        };
        let serve = async |prefix, names: &[&str]| {
            let call = Served { prefix, names, ..Served::default() };
            store.served(call).await.unwrap();
        };
        for _ in 0..30 {
            serve("paced", &["old"]).await;
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert!(orphans().is_empty());
        }
        serve("other", &["theirs"]).await;
        let ended = Instant::now();
        while orphans().is_empty() {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(ended.elapsed() < Duration::from_secs(56), "it was noted 4 s before");
        }
        assert!(ended.elapsed() >= Duration::from_secs(30), "{:?}", ended.elapsed());
        assert_eq!(orphans(), ["old"], "with another prefix they have other queues");
        serve("paced", &["old"]).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(orphans().is_empty(), "it is served again");
        observer.stop().await;
    }

    fn parts(store: &Arc<dyn Store>) -> Parts {
        Parts {
            identity: Identity { id: "me".to_owned(), ..Identity::default() },
            dispatchers: Dispatchers::default(),
            broker: Broker {
                status: paced::amqp::Status::default(),
                depths: paced::amqp::Depths::default(),
                prefix: "paced".to_owned(),
            },
            store: Arc::clone(store),
            store_kind: "memory",
            terms: watch::channel(Arc::default()).1,
            can_change: Arc::default(),
            asks: Asks::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_nobody_looked_only_records_count_that_are_read_from_then_on() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let observer = Observer::start(parts(&store));
        let watch = observer.watch();
        let read = async || {
            let record = Record::new(Instant::now(), store.read_record("billing").await.unwrap());
            lock(&watch.0.known).on_record("billing".to_owned(), 0, record);
        };
        let is_read = async || watch.records().await.contains_key("billing");
        assert!(!watch.look(), "nobody looked");
        read().await;
        assert!(is_read().await);
        advance(LOOKING - Duration::from_secs(1)).await;
        assert!(is_read().await, "somebody looks all the time");
        advance(LOOKING).await;
        assert!(!is_read().await, "it is what the last one who looked would have seen");
        assert!(!is_read().await, "nor does a second reader get it");
        read().await;
        assert!(is_read().await);
        observer.stop().await;
    }
}
