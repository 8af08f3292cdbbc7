//! The data that the tasks of an observer and the readers of the state share, and the state that the observer makes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paced::amqp::{CONSUMING, Depth, Depths};
use paced::api::Millis;
use paced::api::state::{Connection, Counts, Downstream, Fleet, ParkedWithin, Replica, State, Unclaimed};
use paced::dispatch::{Snapshot, View};
use paced::lock::lock;
use paced::store::Store;
use paced::terms::Terms;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::asks::Asks;
use super::dispatchers::{Dispatchers, Handle};
use super::known::Known;
use super::rates::{Steps, fleet_rate};
use super::summary::{Identity, Summary};
use super::{fleet, words};

/// How long a client counts as a reader after it has read the state.
pub(super) const LOOKING: Duration = Duration::from_secs(15);

/// The least time between two rounds of the exchange that readers of records request.
pub(super) const ROUND_SPACING: Duration = Duration::from_millis(100);

/// Lengths of queues that were seen longer ago are not shown: RabbitMQ may be away.
const DEPTH_AGE: Duration = Duration::from_secs(150);

/// The terms of this replica's file, for each downstream.
pub(crate) type OwnTerms = Arc<BTreeMap<String, Terms>>;

/// The parts of the daemon that are observed.
pub(crate) struct Parts {
    pub(crate) identity: Identity,
    /// The dispatchers, now and later.
    pub(crate) dispatchers: Dispatchers,
    pub(crate) broker: Broker,
    pub(crate) store: Arc<dyn Store>,
    /// `redis` or `memory`.
    pub(crate) store_kind: &'static str,
    /// The terms of this replica's file.
    pub(crate) terms: watch::Receiver<OwnTerms>,
    /// Whether changes are allowed, now and later.
    pub(crate) can_change: Arc<AtomicBool>,
    /// The questions of replicas to each other about jobs.
    pub(crate) asks: Asks,
}

/// The broker, as it is observed.
pub(crate) struct Broker {
    pub(crate) status: paced::amqp::Status,
    pub(crate) depths: Depths,
    /// The prefix of the queues.
    pub(crate) prefix: String,
}

/// What the parts of an observer share.
pub(super) struct Shared {
    pub(super) parts: Parts,
    /// The report of this replica.
    pub(super) own: Mutex<Summary>,
    /// The reports of the store and the other replicas.
    pub(super) known: Mutex<Known>,
    pub(super) history: Mutex<BTreeMap<String, Steps>>,
    /// When the last step of the history ended.
    pub(super) stepped_at: Mutex<Millis>,
    pub(super) watched: Mutex<Option<Watched>>,
    /// Wakes the exchange with the store when a reader comes.
    pub(super) looked: Notify,
    /// When another round of the exchange was last requested.
    pub(super) round_requested_at: Mutex<Option<Instant>>,
    pub(super) latest: watch::Sender<Arc<State>>,
}

/// A time in which there are readers, without a pause of [`LOOKING`].
#[derive(Clone, Copy)]
pub(super) struct Watched {
    pub(super) since: Instant,
    /// When a reader last read the state.
    pub(super) last: Instant,
}

impl Watched {
    /// Whether there is still a reader.
    pub(super) fn lasts(&self) -> bool {
        self.last.elapsed() < LOOKING
    }
}

impl Shared {
    /// Whether there is a reader.
    pub(super) fn is_watched(&self) -> bool {
        lock(&self.watched).is_some_and(|watched| watched.lasts())
    }

    /// Since when there is a reader, or there was one until lately; `None` if there never was one.
    pub(super) fn watched_since(&self) -> Option<Instant> {
        lock(&self.watched).map(|watched| watched.since)
    }

    /// Makes the exchange read at once what is not read yet, unless a round was requested just now: more waiting
    /// readers cause no more calls to the store.
    pub(super) fn request_round(&self) {
        let mut at = lock(&self.round_requested_at);
        if at.is_none_or(|at| at.elapsed() >= ROUND_SPACING) {
            *at = Some(Instant::now());
            self.looked.notify_one();
        }
    }

    /// Builds the state and publishes it to the readers.
    pub(super) fn publish(&self) {
        self.latest.send_replace(Arc::new(self.state()));
    }

    fn state(&self) -> State {
        let Parts { identity, broker: Broker { status, depths, .. }, can_change, .. } = &self.parts;
        let dispatchers = self.parts.dispatchers.all();
        let (own, known, history) = (lock(&self.own).clone(), lock(&self.known), lock(&self.history));
        let mut replicas: Vec<&Summary> = known.others.summaries.iter().chain([&own]).collect();
        replicas.sort_by(|one, other| one.replica.id.cmp(&other.replica.id));
        let lost = status.lost();
        // The lengths of queues come over the first of the connections that consume.
        let sees_queues = !lost.iter().any(|purpose| purpose == CONSUMING);
        let (all, known, now) = (replicas.as_slice(), &*known, own.at);
        let downstreams = dispatchers.iter().map(|(name, Handle { view, .. })| {
            let depth = depths.of(name).filter(|depth| sees_queues && depth.at.elapsed() < DEPTH_AGE);
            let common = history.get(name).and_then(Steps::rate);
            downstream((name, view), (all, known), (depth, common), now)
        });
        State {
            now: own.at,
            replica: identity.id.clone(),
            version: identity.version.clone(),
            can_change: can_change.load(Ordering::Relaxed),
            amqp: Connection {
                connected: lost.is_empty(),
                lost,
                unconfirmed: status.unconfirmed(),
                error: status.trouble(),
                ..Connection::default()
            },
            store: Connection {
                connected: known.store_error.is_none(),
                error: known.store_error.clone(),
                kind: Some(self.parts.store_kind.to_owned()),
                ..Connection::default()
            },
            unclaimed: Unclaimed {
                unroutable: depths.unroutable().filter(|_| sees_queues),
                orphans: known.orphans.clone(),
            },
            fleet: Fleet {
                replicas: replicas.iter().map(|summary| replica(summary, &identity.id)).collect(),
                silent: known.others.silent.clone(),
            },
            downstreams: downstreams.collect(),
        }
    }
}

/// The state of one downstream, from the replicas and the store. If they are known, it has the lengths of its queues and the
/// rate over a span common to all replicas.
fn downstream(
    (name, view): (&String, &View),
    (replicas, known): (&[&Summary], &Known),
    (depth, common): (Option<Depth>, Option<f64>),
    now: Millis,
) -> Downstream {
    let snapshot = view.snapshot();
    let mut downstream = Downstream { name: name.clone(), ..Downstream::default() };
    downstream.terms.rate_limit = snapshot.pace();
    fleet::merge(&mut downstream, replicas);
    // Each replica reports ten seconds of its own. If jobs move from one replica to another, the sum is the rate of
    // no common time.
    let sum = downstream.releases.rate;
    let rate = if downstream.parts.replicas.len() > 1 { common.unwrap_or(sum) } else { sum };
    downstream.releases.rate = fleet_rate(rate, downstream.terms.rate_limit);
    known.describe(&mut downstream, replicas, now);
    if let Some(depth) = depth {
        (downstream.queues.queued, downstream.queues.dead) = (Some(depth.ready), depth.dead);
        let waiting = depth.waiting();
        if waiting > 0 {
            // The store may have forgotten them.
            let parked = downstream.queues.parked.max(Some(waiting.into()));
            (downstream.queues.parked, downstream.queues.parked_for_limits) = (parked, Some(waiting));
            let within = depth.waits.iter().filter(|waiting| waiting.jobs > 0);
            let within =
                within.map(|waiting| ParkedWithin { seconds: waiting.within.as_secs(), jobs: waiting.jobs });
            downstream.queues.parked_for_limits_within = within.collect();
        }
    }
    downstream.releases.through_at = through_at(&downstream, &snapshot, now);
    downstream.binding.text = words::text(&downstream, now);
    downstream
}

fn replica(Summary { replica, at, amqp, store, .. }: &Summary, me: &str) -> Replica {
    let Identity { id, host, pid, version, started_at, .. } = replica.clone();
    let is_me = id == me;
    Replica { id, host, pid, version, started_at, seen_at: *at, is_me, amqp: *amqp, store: *store }
}

/// When all jobs have gone that wait here or in the broker, if none is added.
fn through_at(downstream: &Downstream, snapshot: &Snapshot, now: Millis) -> Option<Millis> {
    let Counts { waiting, held, .. } = downstream.counts;
    let jobs = waiting + held + u64::from(downstream.queues.queued?);
    if jobs > 0 { gone_at(downstream, snapshot, jobs, now) } else { None }
}

/// When this number of jobs have gone: by the limits, or by the present pace where something else binds.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "an estimate, and a cast of a float saturates"
)]
fn gone_at(downstream: &Downstream, snapshot: &Snapshot, jobs: u64, now: Millis) -> Option<Millis> {
    let span = match downstream.binding.reason.as_str() {
        "limit" | "idle" => snapshot.delay(jobs).as_secs_f64() * 1000.0,
        "concurrency" if downstream.releases.rate > 0.0 => jobs as f64 / downstream.releases.rate * 1000.0,
        _ => return None,
    };
    let from = downstream.binding.until.unwrap_or(now).max(now);
    Some(from.saturating_add(span as i64))
}
