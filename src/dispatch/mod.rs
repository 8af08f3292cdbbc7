//! The processing of jobs, by one dispatcher per downstream and replica:
//!
//! ```text
//! source ─▶ intake ─▶ engine ─────────────────▶ flight ─▶ settle
//!           decode    backlog, reserve a slot,  sink      ack / retry /
//!           validate  hold until the slot                 park / dead-letter
//! ```
//!
//! The engine (`src/pace`) owns the jobs that wait, reserves slots and holds each job until its slot; a flight takes
//! one job from its slot to its settlement. Read `flight.rs` first, then `worker.rs`. Where limits police
//! ([`OnLimit::Reject`]), the engine asks whether jobs may go now, and those that may not are dead-lettered.

mod arrivals;
mod control;
mod cost;
mod discard;
mod entry;
mod failures;
mod find;
mod flight;
mod health;
mod intake;
mod job_log;
mod meters;
mod preflight;
mod retry;
mod source;
mod totals;
mod unnamed;
mod unsettled;
mod view;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::job::Rules;
use crate::limit::LimitSet;
use crate::pace::{JobSettings, PlanLimits, Prefetch, Settings};
use crate::sink::Sink;
use crate::store::Store;
use crate::terms::Terms;
use control::ControlEnd;
use view::Board;

pub use crate::pace::release::clock::{Alarm, Precision, ReleaseClock, ThreadClock, TokioClock, ring};
pub use crate::pace::{LaneRules, OnLimit, OnUnavailable, Peers, window};
pub use control::Control;
pub use cost::{max_cost, max_cost_of, max_cost_without};
pub use failures::{Failure, KindCount, Outage};
pub use find::{Found, FoundJob, JobPlace, ParkedJob, Question, Turn};
pub use intake::{job_cost, too_far};
pub use job_log::TARGET as JOB_LOG;
pub use retry::{Backoff, RetryPolicy, StatusRetry};
pub use source::{
    DeadLetter, Delivery, Liveness, ParkReason, Parked, Report, Source, Stay, Ticket, Unburied,
};
pub use totals::{LATENCY_BOUNDS, LATENESS_BOUNDS, ParkedChange, Totals};
pub use view::{Backlog, Binding, BusyLane, Counts, MAX_LANES, Snapshot, TermsInForce, View};

/// The options of one downstream's dispatcher.
#[derive(Clone, Debug)]
pub struct Options {
    /// The downstream's name.
    pub downstream: String,
    /// The limits, all of which must allow a job.
    pub limits: LimitSet,
    /// For each of [`Rules::plans`], in their order, the limits again and then those of the plan. All of them must
    /// allow a job.
    pub plans: Vec<LimitSet>,
    /// The lanes, made by the parts of [`Rules::lanes`]. Then the limits in `plans` beyond the downstream's are those of
    /// lanes.
    pub lanes: Option<LaneRules>,
    /// The policy for a job that the limits do not allow at once.
    pub on_limit: OnLimit,
    /// How far ahead of now a slot may be granted.
    pub horizon: Duration,
    /// The most jobs that are sent at once.
    pub concurrency: usize,
    /// When a failed job is tried again.
    pub retry: RetryPolicy,
    /// The age at which a job that has not been tried is dead-lettered instead of released: since it was made, by its
    /// `timestamp`, or else first taken in, but not before its `paced-not-before`. `None` stands for no bound.
    pub max_wait: Option<Duration>,
    /// How long a job that cannot go yet is held here; one that must wait for longer is parked, if its source can. Where few
    /// places are left in the window, it is parked sooner.
    pub hold_max: Duration,
    /// The policy while the store cannot be reached.
    pub on_unavailable: OnUnavailable,
    /// The revision of the file that the limits come from: a lower one never replaces a higher one.
    pub revision: Option<u64>,
    /// Whether the dispatcher, as a replica does, puts its limits in force for all replicas when it starts. Otherwise
    /// it follows the limits in force, and uses its own only where the store has none.
    pub proposes_limits: bool,
    /// The most messages that the source hands out unsettled; fewer where the limits do not release as many
    /// soon, see [`window`].
    pub prefetch: u16,
    /// The rules for messages.
    pub rules: Rules,
    /// How long after a stop jobs are still sent when their slots come: nobody else could use such slots in time.
    pub linger: Duration,
    /// How long sends in flight may take to end once the dispatcher is stopped.
    pub drain_timeout: Duration,
}

/// Releases the jobs of one downstream, each at its slot.
#[derive(Debug)]
pub struct Dispatcher {
    options: Options,
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    clock: Arc<dyn ReleaseClock>,
    control: ControlEnd,
    board: Board,
    peers: Peers,
    /// How long sends may take to end while the process still runs, if that is longer than the drain time-out.
    send_timeout: Duration,
}

/// The result of a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Sends that had not ended within the drain time-out; their jobs will be delivered again.
    pub unfinished: usize,
}

/// What ends a dispatcher.
#[derive(Debug)]
struct Ends {
    /// Ends this one.
    end: CancellationToken,
    /// Ends all of the process.
    stop: CancellationToken,
}

impl Options {
    /// The settings of the engine.
    fn settings(&self) -> Settings {
        let names = self.rules.plans.iter().map(|plan| &plan.name);
        Settings {
            downstream: self.downstream.clone(),
            limits: self.limits.clone(),
            plans: names
                .zip(&self.plans)
                .map(|(name, limits)| PlanLimits { name: name.clone(), limits: limits.clone() })
                .collect(),
            on_limit: self.on_limit,
            on_unavailable: self.on_unavailable,
            horizon: self.horizon,
            concurrency: self.concurrency,
            of_jobs: JobSettings {
                prefetch: Some(Prefetch { most: self.prefetch, hold_max: self.hold_max }),
                lanes: self.lanes.clone().map(Arc::new),
            },
            revision: self.revision,
        }
    }

    /// The options as terms, which all replicas share: the limits, those of each plan by its name, the revision.
    pub fn terms(&self) -> Terms {
        self.settings().terms()
    }
}

impl Dispatcher {
    /// A dispatcher of these parts. It does nothing before [`Dispatcher::run`].
    pub fn new(
        options: Options,
        store: Arc<dyn Store>,
        sink: Arc<dyn Sink>,
        clock: Arc<dyn ReleaseClock>,
    ) -> Self {
        let board = Board::new(options.settings());
        let (control, peers) = (ControlEnd::default(), Peers::default());
        Self { options, store, sink, clock, control, board, peers, send_timeout: Duration::ZERO }
    }

    /// Sets how long a send takes at most, with its settlement: one that is in flight has this long to end where the dispatcher
    /// ends alone ([`Dispatcher::run_among`]), even if the drain time-out is shorter.
    #[must_use]
    pub fn with_send_timeout(self, send_timeout: Duration) -> Self {
        Self { send_timeout, ..self }
    }

    /// A view of what the dispatcher does. Once the dispatcher has ended, the view shows its last state.
    pub fn view(&self) -> View {
        self.board.view()
    }

    /// Returns a handle that sets the number of replicas that have this downstream. As long as nobody sets it, an idle
    /// replica with `on_unavailable = "local"` keeps a lease in the store, by which the others count it.
    pub fn peers(&self) -> Peers {
        self.peers.clone()
    }

    /// A handle that changes the options while the dispatcher runs.
    pub fn control(&self) -> Control {
        self.control.control()
    }

    /// How long the drain takes at most where the dispatcher ends alone; a call to the store or the broker may take some seconds more.
    pub fn longest_drain(&self) -> Duration {
        self.send_timeout.max(self.options.drain_timeout)
    }

    /// Runs until the source ends and all of its jobs are settled, or until `stop`: then jobs whose slots come soon
    /// ([`Options::linger`]) are still handed to the sink, others go back to the source, and sends in flight have the drain
    /// time-out to end.
    ///
    /// Not cancel safe: a dropped future leaves its jobs unsettled, which loses none of them, but
    /// those just being sent will be sent again.
    pub async fn run(self, source: impl Source, stop: CancellationToken) -> Drained {
        self.run_among(source, stop.clone(), stop).await
    }

    /// As [`Dispatcher::run`] until `end`, among others of a process that runs until `stop`. While the process runs,
    /// nothing ends sends early ([`Dispatcher::with_send_timeout`]); from `stop` on they have the drain time-out.
    ///
    /// Not cancel safe, as [`Dispatcher::run`].
    pub fn run_among(
        self,
        source: impl Source,
        end: CancellationToken,
        stop: CancellationToken,
    ) -> impl Future<Output = Drained> {
        worker::Worker::run(self, source, Ends { end, stop })
    }
}

#[cfg(test)]
mod tests;
