//! The readiness of the daemon. Each part that must be ready is one check.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use paced::amqp::Status;
use paced::dispatch::Binding;
use paced::lock::lock;
use paced::store::{BoxFuture, Store};
use paced::{StoreError, failpoint, metric};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::status::Dispatchers;

/// The time-out for an answer of the store, below the second that Kubernetes gives a probe by default.
const STORE_TIMEOUT: Duration = Duration::from_millis(750);

/// How long an answer of the store is reused: any number of requests causes one call in that time.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(1);

/// The reason why a downstream is not ready if this version cannot use its limits in the store.
const UNUSABLE_TERMS: &str =
    "this replica cannot use the limits in the store, so that its jobs are held; see `paced terms show`";

/// How long a queue is not consumed before the daemon is ready without it, if others are: a replica that starts, or that
/// has lost the broker, has all of them again by then.
const MISSING_FOR: Duration = Duration::from_secs(30);

/// After this time without a request the observation starts again, since nobody saw the queues meanwhile.
const UNASKED: Duration = Duration::from_secs(150);

/// The text about a queue without which the daemon is ready.
const MISSING: &str = "its queue is not consumed; others are, and the daemon is ready without it";

/// One condition of readiness, and the reason why it does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) verdict: Result<(), String>,
    /// Whether the daemon is not ready if it does not hold.
    pub(crate) is_required: bool,
}

impl Check {
    pub(crate) fn new(name: impl Into<String>, verdict: Result<(), String>) -> Self {
        Self { name: name.into(), verdict, is_required: true }
    }
}

/// The names of the dispatchers whose loops have not run for a while. Clones share them. Each change sets a gauge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stuck(Arc<StdMutex<BTreeSet<String>>>);

impl Stuck {
    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// Returns whether it is new.
    pub(crate) fn insert(&self, downstream: &str) -> bool {
        self.change(|all| all.insert(downstream.to_owned()))
    }

    /// Returns whether it was one of them.
    pub(crate) fn remove(&self, downstream: &str) -> bool {
        self.change(|all| all.remove(downstream))
    }

    pub(crate) fn retain(&self, is_there: impl FnMut(&String) -> bool) {
        self.change(|all| all.retain(is_there));
    }

    pub(crate) fn clear(&self) {
        self.change(BTreeSet::clear);
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        let mut all = lock(&self.0);
        let output = change(&mut all);
        // The gauge is set under the lock, so that an older value cannot be the last.
        metrics::gauge!(metric::STUCK_DISPATCHERS.name)
            .set(f64::from(u32::try_from(all.len()).unwrap_or(u32::MAX)));
        output
    }
}

/// The queues of downstreams that are not consumed.
#[derive(Debug, Default)]
pub(crate) struct Missing(StdMutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    /// Since when each is not consumed.
    since: BTreeMap<String, Instant>,
    /// Those that were there at the start, or were consumed since.
    expected: BTreeSet<String>,
    /// When the last request came.
    asked_at: Option<Instant>,
}

impl Missing {
    /// Records which queues are consumed at `now`. Returns those that have been missing for [`MISSING_FOR`] while
    /// others are consumed, and those that were added since the start and never consumed: one queue that is gone, or
    /// a new file that names none, must not keep all replicas from being ready.
    fn lasting<'a>(&self, queues: impl Iterator<Item = (&'a str, bool)>, now: Instant) -> BTreeSet<&'a str> {
        let Queues { since, expected, asked_at } = &mut *lock(&self.0);
        let before = asked_at.replace(now);
        if before.is_some_and(|before| now.saturating_duration_since(before) > UNASKED) {
            since.clear();
        }
        let queues: BTreeMap<&str, bool> = queues.collect();
        if before.is_none() {
            expected.extend(queues.keys().map(|name| (*name).to_owned()));
        }
        // A downstream that is removed, and added again later, starts again.
        since.retain(|name, _| queues.contains_key(name.as_str()));
        expected.retain(|name| queues.contains_key(name.as_str()));
        let (mut lasting, mut is_any_consumed) = (BTreeSet::new(), false);
        for (name, is_consumed) in queues {
            if is_consumed {
                is_any_consumed = true;
                since.remove(name);
                expected.insert(name.to_owned());
                continue;
            }
            let begun = *since.entry(name.to_owned()).or_insert(now);
            let is_late = now.saturating_duration_since(begun) >= failpoint::interval(MISSING_FOR);
            if is_late || !expected.contains(name) {
                lasting.insert(name);
            }
        }
        if is_any_consumed { lasting } else { BTreeSet::new() }
    }
}

/// Reports whether the daemon is ready.
pub(crate) trait Checks: Send + Sync + 'static {
    /// Checks all conditions now. Cancel safe.
    fn run_checks(&self) -> BoxFuture<'_, Vec<Check>>;

    /// Whether all dispatchers run, also if their jobs fail.
    fn is_alive(&self) -> bool;
}

/// The daemon's checks.
pub(crate) struct Readiness {
    pub(crate) amqp: Status,
    pub(crate) store: Arc<StoreProbe>,
    /// The dispatcher of each downstream, now and later.
    pub(crate) dispatchers: Dispatchers,
    pub(crate) missing: Missing,
    pub(crate) stuck: Stuck,
    /// Cancelled when the daemon stops.
    pub(crate) draining: CancellationToken,
}

impl Checks for Readiness {
    fn run_checks(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async move {
            let amqp = self.amqp.trouble().map_or(Ok(()), Err);
            let mut checks = vec![Check::new("amqp", amqp), Check::new("store", self.store.check().await)];
            let mut queues = self.amqp.downstreams();
            // A downstream that was removed consumes nothing any more. One that restarts consumes again soon.
            queues.retain(|(name, _)| !self.dispatchers.is_leaving(name));
            let queues = || queues.iter().map(|(name, attached)| (name.as_str(), *attached));
            let (missing, dispatchers) =
                (self.missing.lasting(queues(), Instant::now()), self.dispatchers.all());
            checks.extend(queues().map(|(name, attached)| {
                let has_terms = dispatchers
                    .get(name)
                    .is_none_or(|dispatcher| dispatcher.view.snapshot().binding != Binding::Terms);
                let verdict = match (attached, has_terms) {
                    (false, _) if missing.contains(name) => Err(MISSING.to_owned()),
                    (false, _) => Err("its queue is not consumed".to_owned()),
                    (true, false) => Err(UNUSABLE_TERMS.to_owned()),
                    (true, true) => Ok(()),
                };
                let is_required = !missing.contains(name);
                Check { is_required, ..Check::new(format!("downstream/{name}"), verdict) }
            }));
            let draining = self.draining.is_cancelled();
            let verdict = if draining { Err("the daemon is stopping".to_owned()) } else { Ok(()) };
            checks.push(Check::new("draining", verdict));
            checks
        })
    }

    fn is_alive(&self) -> bool {
        !self.stuck.is_any()
    }
}

/// Reports whether the store is reachable.
pub(crate) trait Ping: Send + Sync {
    /// Asks the store. Cancel safe.
    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The hosts and ports of its servers.
    fn address(&self) -> Option<&str>;
}

impl Ping for Arc<dyn Store> {
    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Store::ping(self).await.map(drop) })
    }

    fn address(&self) -> Option<&str> {
        Store::address(self)
    }
}

/// The error of the last call that a replica makes to the store every two seconds, if it failed.
pub(crate) type LastError = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Asks the store whether it is reachable, at most once a second and only on request: an idle replica causes no load on
/// the store. A store that answers may still refuse what replicas ask for: its memory is full, or a right is missing.
pub(crate) struct StoreProbe {
    store: Box<dyn Ping>,
    last_error: LastError,
    dispatchers: Dispatchers,
    last: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl StoreProbe {
    /// The answers set `paced_store_connected` of the downstreams that are served.
    pub(crate) fn new(store: impl Ping + 'static, last_error: LastError, dispatchers: Dispatchers) -> Self {
        Self { store: Box::new(store), last_error, dispatchers, last: Mutex::default() }
    }

    /// Whether the store answers and refuses nothing; the error says why not. Requests at the same time share one call.
    ///
    /// It takes [`STORE_TIMEOUT`] at most. Cancel safe.
    pub(crate) async fn check(&self) -> Result<(), String> {
        let mut last = self.last.lock().await;
        if let Some((at, verdict)) = &*last
            && at.elapsed() < MAX_ANSWER_AGE
        {
            return verdict.clone();
        }
        let answer = timeout(STORE_TIMEOUT, self.store.ping()).await;
        let answer =
            answer.unwrap_or_else(|_| Err(StoreError::no_answer(self.store.address(), STORE_TIMEOUT)));
        let verdict = answer.map_err(|error| error.to_string());
        let verdict = verdict.and_then(|()| (self.last_error)().map_or(Ok(()), Err));
        let was_there = last.as_ref().is_some_and(|(_, verdict)| verdict.is_ok());
        // A store that answers may still refuse a downstream's calls, so the gauge then keeps the value that these set.
        if verdict.is_err() || !was_there {
            for name in self.dispatchers.all().keys() {
                let gauge = metrics::gauge!(metric::STORE_CONNECTED.name, "downstream" => name.clone());
                gauge.set(if verdict.is_ok() { 1.0 } else { 0.0 });
            }
        }
        *last = Some((Instant::now(), verdict.clone()));
        verdict
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    /// Answers pings after a delay, or with an error.
    #[derive(Debug)]
    struct Pinged {
        after: Duration,
        error: Option<StoreError>,
        count: AtomicU32,
    }

    impl Ping for Arc<Pinged> {
        fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
            Box::pin(async {
                self.count.fetch_add(1, Ordering::Relaxed);
                sleep(self.after).await;
                self.error.clone().map_or(Ok(()), Err)
            })
        }

        fn address(&self) -> Option<&str> {
            Some("store.example:6379")
        }
    }

    fn probe(after: u64, error: Option<StoreError>) -> (Arc<Pinged>, StoreProbe) {
        let after = Duration::from_millis(after);
        let store = Arc::new(Pinged { after, error, count: AtomicU32::new(0) });
        (Arc::clone(&store), StoreProbe::new(store, Box::new(|| None), Dispatchers::default()))
    }

    #[test]
    fn one_queue_that_is_missing_for_long_does_not_count_while_others_are_consumed() {
        let (missing, start) = (Missing::default(), Instant::now());
        let lasting = |queues: &[(&'static str, bool)], second| {
            let now = start + Duration::from_secs(second);
            missing.lasting(queues.iter().copied(), now).into_iter().collect::<Vec<_>>()
        };
        assert!(lasting(&[("a", true), ("b", false)], 0).is_empty());
        assert!(lasting(&[("a", true), ("b", false)], 29).is_empty(), "it may be about to be consumed");
        assert_eq!(lasting(&[("a", true), ("b", false)], 30), ["b"]);
        assert!(lasting(&[("a", false), ("b", false)], 31).is_empty(), "nothing is consumed");
        assert_eq!(lasting(&[("a", true), ("b", false)], 32), ["b"]);
        assert!(lasting(&[("a", true), ("b", true)], 33).is_empty());
        assert!(lasting(&[("a", true), ("b", false)], 34).is_empty(), "the time begins again");
        assert!(lasting(&[("a", true), ("b", false)], 600).is_empty(), "nobody has asked for long");
        assert!(lasting(&[("a", true)], 620).is_empty(), "it is removed");
        assert_eq!(lasting(&[("a", true), ("b", false)], 640), ["b"], "and comes again");
    }

    #[test]
    fn one_that_is_added_does_not_count_before_it_was_consumed() {
        let (missing, start) = (Missing::default(), Instant::now());
        let lasting = |queues: &[(&'static str, bool)], second| {
            let now = start + Duration::from_secs(second);
            missing.lasting(queues.iter().copied(), now).into_iter().collect::<Vec<_>>()
        };
        assert!(lasting(&[("a", true), ("b", false)], 0).is_empty(), "it was there at the start");
        assert_eq!(lasting(&[("a", true), ("b", true), ("c", false)], 1), ["c"]);
        assert!(lasting(&[("a", false), ("b", false), ("c", false)], 2).is_empty(), "nothing is consumed");
        assert_eq!(lasting(&[("a", false), ("b", true), ("c", false)], 3), ["c"]);
        assert!(lasting(&[("a", true), ("b", true), ("c", true)], 4).is_empty());
        assert!(lasting(&[("a", true), ("b", true), ("c", false)], 5).is_empty(), "it was consumed");
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_ask_the_store_is_asked_once_a_second() {
        let (store, probe) = probe(100, None);
        assert_eq!(tokio::join!(probe.check(), probe.check(), probe.check()), (Ok(()), Ok(()), Ok(())));
        assert_eq!(store.count.load(Ordering::Relaxed), 1);
        advance(MAX_ANSWER_AGE - Duration::from_millis(1)).await;
        assert_eq!(probe.check().await, Ok(()));
        assert_eq!(store.count.load(Ordering::Relaxed), 1);
        advance(Duration::from_millis(1)).await;
        assert_eq!(probe.check().await, Ok(()));
        assert_eq!(store.count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_or_fails_is_reported_in_time() {
        let start = Instant::now();
        let (_, hanging) = probe(60_000, None);
        let late = "the store at store.example:6379 is not reachable: no answer within 750ms; is it running, and its URL right?";
        assert_eq!(hanging.check().await, Err(late.to_owned()));
        assert_eq!(start.elapsed(), STORE_TIMEOUT);
        let (_, failing) = probe(0, Some(StoreError::Invalid("no".to_owned())));
        assert_eq!(failing.check().await, Err("no".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_answers_and_refuses_calls_is_reported_until_it_does_not() {
        let error = Arc::new(StdMutex::new(Some("a right is missing".to_owned())));
        let last = Arc::clone(&error);
        let store = Arc::new(Pinged { after: Duration::ZERO, error: None, count: AtomicU32::new(0) });
        let probe = StoreProbe::new(store, Box::new(move || lock(&last).clone()), Dispatchers::default());
        assert_eq!(probe.check().await, Err("a right is missing".to_owned()));
        *lock(&error) = None;
        advance(MAX_ANSWER_AGE).await;
        assert_eq!(probe.check().await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waiting_leaves_the_question_to_the_next() {
        let (store, probe) = probe(100, None);
        assert!(timeout(Duration::from_millis(50), probe.check()).await.is_err());
        assert_eq!(probe.check().await, Ok(()));
        assert_eq!(store.count.load(Ordering::Relaxed), 2);
    }
}
