//! The live state of one downstream at this replica, which its dispatcher publishes for people and metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::arrivals::first_seen;
use super::failures::{Failure, Outage};
use super::totals::Totals;
use crate::limit::{Limit, LimitSet};
use crate::pace::{self, Hold, LaneWait, Paused, Settings, limit_delay};
use crate::rate::Rate;
use crate::time::Micros;

/// How often a changing state is published at most.
pub(super) const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// The most lanes in a [`Backlog`].
pub const MAX_LANES: usize = 10;

/// What keeps a downstream's jobs from being released faster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// No job waits.
    Idle,
    /// The limits in force are not known yet.
    Starting,
    /// The limit of this name.
    Limit {
        /// Its name.
        name: String,
        /// When it allows the next job, if that is known.
        next: Option<Instant>,
    },
    /// As many jobs are being sent as may be at once.
    Concurrency,
    /// An operator's pause.
    Paused {
        /// Its end; `None` if it lasts until somebody resumes.
        until: Option<Instant>,
    },
    /// A pause that the downstream asked for.
    Throttled {
        /// Its end.
        until: Option<Instant>,
    },
    /// All jobs that wait may only go later: they have a `paced-not-before`, or wait for another attempt.
    NotDue {
        /// When the first of them may go.
        until: Instant,
    },
    /// The store is away, or refuses calls.
    Store {
        /// Whether jobs are released nevertheless, by `on_unavailable`.
        releases: bool,
    },
    /// This replica cannot connect to the downstream.
    Unreachable,
    /// The downstream refuses this replica's credentials.
    Unauthorized,
    /// The limits in the store cannot be used here.
    Terms,
}

/// The number of jobs that this replica holds, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Those that wait for a slot.
    pub waiting: usize,
    /// Those that wait for their `paced-not-before`.
    pub delayed: usize,
    /// Those that wait for another attempt.
    pub retrying: usize,
    /// Those that hold a slot, and wait until it comes.
    pub held: usize,
    /// Those that are being sent.
    pub sending: usize,
    /// Those that are being parked.
    pub parking: usize,
}

/// The state of a downstream at this replica, at one instant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// What keeps its jobs from being released faster.
    pub binding: Binding,
    /// Since when that is so.
    pub since: Instant,
    /// The jobs that this replica holds.
    pub counts: Counts,
    /// When the first of the slots comes that jobs hold.
    pub next_slot: Option<Instant>,
    /// The jobs that wait for a slot.
    pub backlog: Backlog,
    /// The outage, while attempt after attempt fails.
    pub outage: Option<Outage>,
    /// The last kinds of failures, newest first.
    pub failures: Vec<Failure>,
    /// Why the last call to the store failed, while calls fail.
    pub store_error: Option<String>,
    /// The limits in force.
    pub terms: TermsInForce,
}

/// The jobs that wait for a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// When the oldest of them was first taken in, by the wall clock.
    pub oldest: Option<Micros>,
    /// The lanes in which the most of them wait, at most [`MAX_LANES`], the busiest first. Without `lanes.by` there are none.
    pub lanes: Vec<BusyLane>,
}

/// A lane, and the jobs that wait in it for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusyLane {
    /// The values of its parts, such as `endpoint=x&tenant=acme`.
    pub name: String,
    /// The number of its jobs.
    pub waiting: usize,
    /// When the oldest of them was first taken in, by the wall clock.
    pub oldest: Option<Micros>,
    /// What the next one waits for, if that is a limit of its lane or a pause of it alone; otherwise it waits for its turn.
    pub binding: Option<Binding>,
}

/// The limits in force.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TermsInForce {
    /// Their generation.
    pub generation: u64,
    /// The fingerprint of the file that they are from, as in [`Terms::fingerprint`](crate::terms::Terms::fingerprint);
    /// `None` while it is not known.
    pub fingerprint: Option<u64>,
    pub(super) settings: Arc<Settings>,
}

impl TermsInForce {
    /// Whether the downstream has lanes by keys.
    pub fn has_lanes(&self) -> bool {
        self.settings.of_jobs.lanes.is_some()
    }
}

/// A view of a dispatcher, which may outlive it.
#[derive(Clone, Debug)]
pub struct View {
    latest: watch::Receiver<Arc<Snapshot>>,
    totals: Arc<Totals>,
}

/// The dispatcher's end of its views.
#[derive(Debug)]
pub(super) struct Board {
    latest: watch::Sender<Arc<Snapshot>>,
    totals: Arc<Totals>,
}

impl Binding {
    /// The reason, as a label of metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Limit { .. } => "limit",
            Self::Concurrency => "concurrency",
            Self::Paused { .. } => "paused",
            Self::Throttled { .. } => "throttled",
            Self::NotDue { .. } => "not-due",
            Self::Store { .. } => "store",
            Self::Unreachable => "unreachable",
            Self::Unauthorized => "unauthorized",
            Self::Terms => "terms",
        }
    }

    /// The name of the limit that binds.
    pub fn limit(&self) -> Option<&str> {
        match self {
            Self::Limit { name, .. } => Some(name),
            _ => None,
        }
    }

    /// When this ends, as far as it is known.
    pub const fn until(&self) -> Option<Instant> {
        match self {
            Self::Limit { next: until, .. } | Self::Paused { until } | Self::Throttled { until } => *until,
            Self::NotDue { until } => Some(*until),
            _ => None,
        }
    }

    /// Whether both are the same thing, perhaps with another end.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.reason() == other.reason() && self.limit() == other.limit()
    }
}

impl From<Hold> for Binding {
    fn from(hold: Hold) -> Self {
        match hold {
            Hold::Nothing => Self::Idle,
            Hold::Unsettled => Self::Starting,
            Hold::Terms => Self::Terms,
            Hold::Store => Self::Store { releases: false },
            Hold::Fallback => Self::Store { releases: true },
            Hold::Paused(Paused::Operator, until) => Self::Paused { until },
            Hold::Paused(Paused::Downstream, until) => Self::Throttled { until },
            Hold::NotDue(until) => Self::NotDue { until },
            Hold::Concurrency => Self::Concurrency,
            Hold::Limit(name, next) => Self::Limit { name, next },
        }
    }
}

impl From<pace::BusyLane> for BusyLane {
    fn from(lane: pace::BusyLane) -> Self {
        let pace::BusyLane { name, waiting, oldest, wait } = lane;
        Self { name, waiting, oldest: oldest.map(first_seen), binding: lane_binding(wait) }
    }
}

/// What binds a lane besides the downstream's limits and its turn among others.
pub(super) fn lane_binding(wait: LaneWait) -> Option<Binding> {
    match wait {
        LaneWait::Turn => None,
        LaneWait::Limit(name, next) => Some(Binding::Limit { name, next }),
        LaneWait::Pause(until) => Some(Binding::Throttled { until: Some(until) }),
        LaneWait::Stop => Some(Binding::Paused { until: None }),
    }
}

impl Snapshot {
    /// The state before anything was taken in.
    pub(super) fn starting(settings: Arc<Settings>) -> Self {
        Self {
            binding: Binding::Starting,
            since: Instant::now(),
            counts: Counts::default(),
            next_slot: None,
            backlog: Backlog::default(),
            outage: None,
            failures: Vec::new(),
            store_error: None,
            terms: TermsInForce { generation: 0, fingerprint: None, settings },
        }
    }

    /// The limits in force: the downstream's own, and for each plan these again with those of the plan.
    pub fn limits(&self) -> impl Iterator<Item = (Option<&str>, &LimitSet)> {
        let plans = self.terms.settings.plans.iter().map(|plan| (Some(plan.name.as_str()), &plan.limits));
        std::iter::once((None, &self.terms.settings.limits)).chain(plans)
    }

    /// The pace of the downstream's own limits, in jobs a second; `None` where none spaces jobs out. A quota is no pace.
    pub fn pace(&self) -> Option<f64> {
        self.terms.settings.limits.pace().map(Rate::per_second)
    }

    /// How long the downstream's own limits take to release this many jobs after an idle period.
    pub fn delay(&self, jobs: u64) -> Duration {
        let limits: Vec<&Limit> = self.terms.settings.limits.iter().collect();
        limit_delay(&limits, jobs)
    }
}

impl View {
    /// The latest state.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.borrow())
    }

    /// Whether both are views of one dispatcher.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.totals, &other.totals)
    }

    /// What was counted since the dispatcher was made.
    pub const fn totals(&self) -> &Arc<Totals> {
        &self.totals
    }
}

impl Board {
    pub(super) fn new(settings: Settings) -> Self {
        let (latest, _) = watch::channel(Arc::new(Snapshot::starting(Arc::new(settings))));
        Self { latest, totals: Arc::default() }
    }

    pub(super) fn view(&self) -> View {
        View { latest: self.latest.subscribe(), totals: Arc::clone(&self.totals) }
    }

    pub(super) const fn totals(&self) -> &Arc<Totals> {
        &self.totals
    }

    pub(super) fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.borrow())
    }

    pub(super) fn publish(&self, snapshot: Snapshot) {
        self.latest.send_replace(Arc::new(snapshot));
    }
}
