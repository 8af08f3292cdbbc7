//! The dispatchers of this process: those that there are now. A reload adds some and removes others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use paced::dispatch::{Control, Dispatcher, Peers, View};
use paced::lock::lock;
use tokio_util::sync::CancellationToken;

/// A handle on a dispatcher.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) view: View,
    /// Takes how many replicas have its downstream.
    pub(crate) peers: Peers,
    pub(crate) control: Control,
    /// Cancelled once it is to end.
    pub(crate) end: CancellationToken,
}

impl Handle {
    /// A handle on this dispatcher, which is to run until `end`.
    pub(crate) fn of(dispatcher: &Dispatcher, end: CancellationToken) -> Self {
        Self { view: dispatcher.view(), peers: dispatcher.peers(), control: dispatcher.control(), end }
    }
}

/// The dispatchers of this process by downstream. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dispatchers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    all: Arc<BTreeMap<String, Handle>>,
    /// The downstreams that were served and are not any more.
    gone: BTreeSet<String>,
}

impl Dispatchers {
    /// All that run at present.
    pub(crate) fn all(&self) -> Arc<BTreeMap<String, Handle>> {
        Arc::clone(&lock(&self.0).all)
    }

    /// Adds a dispatcher, which replaces one of its name.
    pub(crate) fn insert(&self, downstream: String, handle: Handle) {
        let mut state = lock(&self.0);
        state.gone.remove(&downstream);
        Arc::make_mut(&mut state.all).insert(downstream, handle);
    }

    /// Removes a dispatcher that is to end, and cancels its token. Another one of its name may follow.
    pub(crate) fn end(&self, downstream: &str) {
        let mut state = lock(&self.0);
        if let Some(handle) = Arc::make_mut(&mut state.all).remove(downstream) {
            handle.end.cancel();
        }
    }

    /// Whether the dispatcher of this downstream, which was there, is to end.
    pub(crate) fn is_ending(&self, downstream: &str) -> bool {
        !lock(&self.0).all.contains_key(downstream)
    }

    /// Notes that a downstream is not served any more.
    pub(crate) fn forget(&self, downstream: &str) {
        self.end(downstream);
        lock(&self.0).gone.insert(downstream.to_owned());
    }

    /// The downstreams that were served and are not any more.
    pub(crate) fn gone(&self) -> BTreeSet<String> {
        lock(&self.0).gone.clone()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

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
    async fn one_that_ends_is_no_longer_there_and_may_be_followed_by_another() {
        let (all, end) = (Dispatchers::default(), CancellationToken::new());
        let seen = all.clone();
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), end.clone()));
        let before = seen.all();
        all.end("a");
        assert!(end.is_cancelled() && seen.all().is_empty() && seen.gone().is_empty());
        assert_eq!(before.len(), 1, "who looked before sees what there was");
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        assert!(!seen.all()["a"].view.is_same(&before["a"].view));
        all.forget("a");
        assert_eq!((seen.all().len(), seen.gone()), (0, ["a".to_owned()].into()));
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        assert!(seen.gone().is_empty(), "it is served again");
    }
}
