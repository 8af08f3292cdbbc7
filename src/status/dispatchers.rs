//! The present dispatchers of this process. A reload adds and removes some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paced::dispatch::{Control, Dispatcher, ParkedChange, Peers, Totals, View};
use paced::lock::lock;
use tokio_util::sync::CancellationToken;

/// A handle on a dispatcher.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) view: View,
    /// Receives the number of replicas that have its downstream.
    pub(crate) peers: Peers,
    pub(crate) control: Control,
    /// Cancelled when the dispatcher must end.
    pub(crate) end: CancellationToken,
    /// How long it takes at most to end.
    pub(crate) longest_drain: Duration,
    /// Whether it runs, or has run. At the start of many, most wait for their turn.
    has_begun: Arc<AtomicBool>,
}

impl Handle {
    /// A handle on this dispatcher, which runs until `end`.
    pub(crate) fn of(dispatcher: &Dispatcher, end: CancellationToken) -> Self {
        let (view, peers, control) = (dispatcher.view(), dispatcher.peers(), dispatcher.control());
        let (longest_drain, has_begun) = (dispatcher.longest_drain(), Arc::new(AtomicBool::new(true)));
        Self { view, peers, control, end, longest_drain, has_begun }
    }

    /// Sets whether it runs. One that waits for its turn to begin is not stuck.
    pub(crate) fn set_begun(&self, has_begun: bool) {
        self.has_begun.store(has_begun, Ordering::Relaxed);
    }

    /// Waits for a turn of its loop, unless it has not begun yet. Cancel safe.
    pub(crate) async fn turn(&self) {
        if self.has_begun.load(Ordering::Relaxed) {
            self.control.turn().await;
        }
    }
}

/// The dispatchers of this process by downstream. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dispatchers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    all: Arc<BTreeMap<String, Handle>>,
    /// The downstreams whose dispatchers end, and are not replaced.
    leaving: BTreeSet<String>,
    /// The downstreams that were served and are not any more, with their totals.
    gone: BTreeMap<String, Arc<Totals>>,
}

impl Dispatchers {
    /// All that run at present, also those that end and still finish their sends.
    pub(crate) fn all(&self) -> Arc<BTreeMap<String, Handle>> {
        Arc::clone(&lock(&self.0).all)
    }

    /// Adds a dispatcher, which replaces one of its name that has ended.
    pub(crate) fn insert(&self, downstream: String, handle: Handle) {
        let mut state = lock(&self.0);
        state.leaving.remove(&downstream);
        let gone = state.gone.remove(&downstream);
        let totals = Arc::clone(handle.view.totals());
        let before = Arc::make_mut(&mut state.all).insert(downstream, handle);
        let before = before.map(|before| Arc::clone(before.view.totals())).or(gone);
        // The jobs that the former dispatcher parked while it ended, and whose number the store does not have yet.
        before.into_iter().for_each(|before| totals.put_back_parked(&before.take_parked()));
    }

    /// Makes a dispatcher end, and returns its handle. Another dispatcher of the same name may follow.
    pub(crate) fn end(&self, downstream: &str) -> Option<Handle> {
        let handle = lock(&self.0).all.get(downstream).cloned()?;
        handle.end.cancel();
        Some(handle)
    }

    /// Whether the dispatcher of this downstream is ending.
    pub(crate) fn is_ending(&self, downstream: &str) -> bool {
        lock(&self.0).all.get(downstream).is_some_and(|handle| handle.end.is_cancelled())
    }

    /// Records whether the downstream is to be served no more, once its dispatcher has ended.
    pub(crate) fn set_leaving(&self, downstream: &str, is_leaving: bool) {
        let mut state = lock(&self.0);
        if is_leaving && state.all.contains_key(downstream) {
            state.leaving.insert(downstream.to_owned());
        } else {
            state.leaving.remove(downstream);
        }
    }

    /// Whether the dispatcher of this downstream is ending, and none follows.
    pub(crate) fn is_leaving(&self, downstream: &str) -> bool {
        lock(&self.0).leaving.contains(downstream)
    }

    /// Records that the dispatcher of a downstream has ended and none follows, so that this process no longer serves
    /// it.
    pub(crate) fn forget(&self, downstream: &str) {
        let mut state = lock(&self.0);
        state.leaving.remove(downstream);
        if let Some(handle) = Arc::make_mut(&mut state.all).remove(downstream) {
            state.gone.insert(downstream.to_owned(), Arc::clone(handle.view.totals()));
        }
    }

    /// The downstreams that were served and are not any more.
    pub(crate) fn gone(&self) -> BTreeSet<String> {
        lock(&self.0).gone.keys().cloned().collect()
    }

    /// Takes what has changed among parked jobs, by downstream, also of those that are gone.
    pub(crate) fn take_parked(&self) -> BTreeMap<String, ParkedChange> {
        let state = lock(&self.0);
        let all = state.all.iter().map(|(name, handle)| (name, handle.view.totals())).chain(&state.gone);
        let taken = all.map(|(name, totals)| (name, totals.take_parked()));
        let changed = taken.filter(|(_, change)| !change.is_empty());
        changed.map(|(name, change)| (name.clone(), change)).collect()
    }

    /// The totals of one downstream, also of one that is gone.
    pub(crate) fn totals_of(&self, downstream: &str) -> Option<Arc<Totals>> {
        let state = lock(&self.0);
        let handle = state.all.get(downstream).map(|handle| handle.view.totals());
        handle.or_else(|| state.gone.get(downstream)).cloned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use paced::dispatch::{OnLimit, OnUnavailable, Options, RetryPolicy, TokioClock, max_cost};
    use paced::job::{JobLanes, ReplyRules, Rules};
    use paced::limit::{Limit, LimitSet};
    use paced::sink::http::{HttpOptions, HttpSink};
    use paced::store::MemoryStore;

    use super::*;

    /// A dispatcher that does nothing, since it is never run.
    pub(in crate::status) fn dispatcher(downstream: &str) -> Dispatcher {
        let limit = Limit::leaky_bucket("leaky-bucket-0", "1/s".parse().unwrap(), 1).unwrap();
        let limits = LimitSet::new(vec![limit]).unwrap();
        let rules = Rules {
            max_body: 1,
            allow_headers: Vec::new(),
            methods: vec!["POST".to_owned()],
            encoded_slash: false,
            max_cost: max_cost(&limits, None),
            costs: Vec::new(),
            plans: Vec::new(),
            lanes: JobLanes::default(),
            reply: ReplyRules::default(),
        };
        let options = Options {
            downstream: downstream.to_owned(),
            limits,
            plans: Vec::new(),
            lanes: None,
            on_limit: OnLimit::Wait,
            horizon: Duration::from_millis(100),
            concurrency: 1,
            retry: RetryPolicy::default(),
            max_wait: None,
            hold_max: Duration::from_secs(60),
            on_unavailable: OnUnavailable::Hold,
            revision: None,
            proposes_limits: true,
            prefetch: 1,
            rules,
            linger: Duration::ZERO,
            drain_timeout: Duration::from_secs(1),
        };
        let sink = HttpSink::new(HttpOptions::new("http://127.0.0.1:1/")).unwrap();
        Dispatcher::new(options, Arc::new(MemoryStore::new()), Arc::new(sink), Arc::new(TokioClock))
    }

    #[tokio::test]
    async fn one_that_ends_is_there_until_it_has_ended_and_may_be_followed_by_another() {
        let (all, end) = (Dispatchers::default(), CancellationToken::new());
        let seen = all.clone();
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), end.clone()));
        let before = seen.all();
        assert!(!seen.is_ending("a") && !seen.is_ending("b"));
        assert!(all.end("a").is_some() && all.end("b").is_none());
        assert!(end.is_cancelled() && seen.is_ending("a") && seen.gone().is_empty());
        assert_eq!(seen.all().len(), 1, "it may still send");
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        assert!(!seen.all()["a"].view.is_same(&before["a"].view) && !seen.is_ending("a"));
        all.forget("a");
        assert_eq!((seen.all().len(), seen.gone()), (0, ["a".to_owned()].into()));
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        assert!(seen.gone().is_empty(), "it is served again");
    }

    #[tokio::test]
    async fn one_that_is_to_be_followed_does_not_leave() {
        let all = Dispatchers::default();
        let insert = || all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        insert();
        all.end("a");
        assert!(all.is_ending("a") && !all.is_leaving("a"), "it restarts");
        insert();
        all.set_leaving("a", true);
        all.end("a");
        assert!(all.is_leaving("a"));
        all.set_leaving("a", false);
        assert!(!all.is_leaving("a"), "it was added again");
        all.set_leaving("a", true);
        insert();
        assert!(!all.is_leaving("a"), "another one has begun");
        all.set_leaving("a", true);
        all.forget("a");
        all.set_leaving("a", true);
        assert!(!all.is_leaving("a"), "it is gone");
    }

    /// Jobs that a dispatcher parks while it ends are counted, whether another one follows or not.
    #[tokio::test]
    async fn what_was_parked_and_not_passed_on_outlives_its_dispatcher() {
        let all = Dispatchers::default();
        let insert = || all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        let parked = |jobs| ParkedChange { jobs, groups: Vec::new() };
        let put = |jobs| all.totals_of("a").unwrap().put_back_parked(&parked(jobs));
        insert();
        put(5);
        all.end("a");
        put(2);
        insert();
        put(1);
        assert_eq!(all.take_parked(), [("a".to_owned(), parked(8))].into());
        put(3);
        all.forget("a");
        put(1);
        assert_eq!(all.take_parked(), [("a".to_owned(), parked(4))].into(), "nobody serves it");
        put(6);
        insert();
        assert_eq!(all.take_parked(), [("a".to_owned(), parked(6))].into());
        assert!(all.take_parked().is_empty());
        assert!(all.totals_of("b").is_none());
    }
}
