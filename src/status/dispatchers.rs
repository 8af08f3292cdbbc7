//! The dispatchers of this process.

use std::collections::BTreeMap;
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
}

impl Dispatchers {
    /// All that run at present.
    pub(crate) fn all(&self) -> Arc<BTreeMap<String, Handle>> {
        Arc::clone(&lock(&self.0).all)
    }

    /// Adds a dispatcher, which replaces one of its name.
    pub(crate) fn insert(&self, downstream: String, handle: Handle) {
        Arc::make_mut(&mut lock(&self.0).all).insert(downstream, handle);
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
            prefetch: 1,
            rules,
            linger: Duration::ZERO,
            drain_timeout: Duration::from_secs(1),
        };
        let sink = HttpSink::new(HttpOptions::new("http://127.0.0.1:1/")).unwrap();
        Dispatcher::new(options, Arc::new(MemoryStore::new()), Arc::new(sink), Arc::new(TokioClock))
    }

    #[tokio::test]
    async fn who_has_looked_before_sees_what_there_was() {
        let all = Dispatchers::default();
        let before = all.clone().all();
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        let first = all.all();
        assert_eq!((before.len(), first.len()), (0, 1));
        all.insert("a".to_owned(), Handle::of(&dispatcher("a"), CancellationToken::new()));
        assert!(!all.all()["a"].view.is_same(&first["a"].view), "it is another one");
    }
}
