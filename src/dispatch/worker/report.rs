//! Publishes what a dispatcher is doing, and writes the lines of a downstream that fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Worker;
use crate::dispatch::arrivals::first_seen;
use crate::dispatch::failures::{Ending, Failures, Line};
use crate::dispatch::health::Reason;
use crate::dispatch::unnamed::{Notice, Unnamed};
use crate::dispatch::view::{
    Backlog, Binding, Board, BusyLane, Counts, MAX_LANES, PUBLISH_INTERVAL, Snapshot, TermsInForce,
};
use crate::pace::{EngineView, LanesView};
use crate::store::StoreError;

/// From this number of lanes on, they are examined only once in [`LANES_INTERVAL`], since that takes the loop a
/// while.
const MANY_LANES: usize = 1024;
const LANES_INTERVAL: Duration = Duration::from_secs(1);

/// The schedule by which the lanes are examined for the report.
#[derive(Debug)]
struct LanesDue {
    /// The earliest instant of the next time.
    next_at: Instant,
    /// Whether the last report used the results of an earlier examination.
    are_stale: bool,
}

impl LanesDue {
    /// Whether this number of lanes is examined now.
    fn take(&mut self, now: Instant, lanes: usize) -> bool {
        self.are_stale = now < self.next_at;
        if !self.are_stale && lanes > MANY_LANES {
            self.next_at = now + LANES_INTERVAL;
        }
        !self.are_stale
    }
}

/// The state of the reports.
#[derive(Debug)]
pub(super) struct Reporting {
    board: Board,
    /// The earliest instant of the next publication.
    next_at: Instant,
    /// Whether the loop has made a turn since the last publication.
    is_stale: bool,
    failures: Failures,
    store_error: Option<String>,
    unnamed: Unnamed,
    lanes: LanesDue,
}

impl Reporting {
    pub(super) fn new(board: Board) -> Self {
        Self {
            board,
            next_at: Instant::now(),
            is_stale: false,
            failures: Failures::default(),
            store_error: None,
            unnamed: Unnamed::default(),
            lanes: LanesDue { next_at: Instant::now(), are_stale: false },
        }
    }

    /// Records that a call to the store failed.
    pub(super) fn on_store_error(&mut self, error: &StoreError) {
        self.store_error = Some(error.to_string());
    }
}

impl Worker {
    /// Publishes the state, unless that was done just before, and writes the lines that are due.
    pub(super) fn report(&mut self, now: Instant) {
        let release = self.engine.release();
        self.context.meters.set_in_flight(self.engine.waiting(), release.held(), release.sending());
        if let Some(line) = self.reporting.failures.tick(now) {
            self.log(&line);
        }
        self.reporting.is_stale = now < self.reporting.next_at;
        if !self.reporting.is_stale {
            self.reporting.next_at = now + PUBLISH_INTERVAL;
            let snapshot = self.snapshot(now);
            self.reporting.board.publish(snapshot);
        }
    }

    /// Returns the instant at which there is something to report, if the loop makes no turn before.
    pub(super) fn report_wake_at(&self) -> Option<Instant> {
        let Reporting { next_at, is_stale, failures, lanes, .. } = &self.reporting;
        let lanes_at = lanes.are_stale.then_some(lanes.next_at);
        is_stale.then_some(*next_at).into_iter().chain(lanes_at).chain(failures.wake_at()).min()
    }

    /// Publishes that no job waits here any more, since all were given back; some are still being sent.
    pub(super) fn report_drain(&self, sending: usize) {
        let settings = Arc::clone(self.engine.settings());
        let counts = Counts { sending, ..Counts::default() };
        let snapshot = Snapshot { binding: Binding::Idle, counts, ..Snapshot::starting(settings) };
        self.reporting.board.publish(snapshot);
    }

    /// The kind of the last failure, which names its host, and its error.
    pub(super) fn last_failure(&self) -> Option<(&str, &str)> {
        self.reporting.failures.recent().next().map(|failure| (&*failure.kind, &*failure.detail))
    }

    /// Records the end of an attempt.
    pub(super) fn on_attempt(&mut self, ending: Ending) {
        if matches!(ending, Ending::Failed(_) | Ending::Refused(_)) {
            self.reporting.board.totals().on_failed();
        }
        let line = self.reporting.failures.ended(ending, Instant::now());
        line.iter().for_each(|line| self.log(line));
    }

    /// Writes a line about the downstream. While the log says that it fails, it need not name each job.
    fn log(&self, line: &Line) {
        self.context.is_failing.store(self.reporting.failures.is_logged(), Ordering::Relaxed);
        let downstream = &self.context.downstream;
        let since = |at: Instant| Duration::from_secs(at.elapsed().as_secs());
        match line {
            Line::Begins(outage) => {
                let (kinds, detail) = (outage.kinds(), &outage.detail);
                tracing::warn!(downstream, kinds, detail, "the downstream fails, attempt after attempt");
            }
            Line::GoesOn(outage) => {
                let (kinds, detail, attempts) = (outage.kinds(), &outage.detail, outage.attempts);
                let lasts = since(outage.since);
                tracing::warn!(downstream, kinds, detail, attempts, ?lasts, "the downstream still fails");
            }
            Line::IsOver(outage) => {
                let (kinds, attempts, lasted) = (outage.kinds(), outage.attempts, since(outage.since));
                tracing::info!(downstream, failed = attempts, kinds, ?lasted, "the downstream works again");
            }
        }
    }

    /// Returns the busiest lanes; those of the last examination if the lanes are not examined now. Warns if many jobs
    /// share as one, since they do not have the part by which lanes share.
    fn lanes(&mut self, now: Instant) -> Vec<BusyLane> {
        if !self.reporting.lanes.take(now, self.engine.known_lanes()) {
            return self.reporting.board.latest().backlog.lanes.clone();
        }
        let LanesView { busiest, waiting, unnamed } = self.engine.lanes_view(MAX_LANES);
        let (downstream, jobs) = (&self.context.downstream, unnamed);
        let rules = self.engine.settings().of_jobs.lanes.as_ref();
        let part = rules.and_then(|rules| rules.parts.get(rules.fair_by)).map(String::as_str);
        match self.reporting.unnamed.note(unnamed, waiting, now) {
            Some(Notice::AreMany) => tracing::warn!(
                downstream,
                part,
                jobs,
                waiting,
                "many of the jobs that wait do not have the part by which lanes share: they share as one"
            ),
            Some(Notice::AreFew) => {
                tracing::info!(
                    downstream,
                    part,
                    "nearly all jobs that wait have the part by which lanes share again"
                );
            }
            None => {}
        }
        busiest.into_iter().map(BusyLane::from).collect()
    }

    fn snapshot(&mut self, now: Instant) -> Snapshot {
        let EngineView { hold, waiting, later, held, next_slot, sending, oldest, .. } = self.engine.view();
        let retrying =
            if later > 0 { self.engine.count_later(|entry| entry.attempts.has_begun()) } else { 0 };
        if !self.engine.is_failing() {
            self.reporting.store_error = None;
        }
        let binding = match self.halt.reason() {
            Some(Reason::Unauthorized) => Binding::Unauthorized,
            Some(Reason::Unreachable) => Binding::Unreachable,
            None => hold.into(),
        };
        let latest = self.reporting.board.latest();
        let since = if latest.binding.is_same(&binding) { latest.since } else { now };
        let counts = Counts {
            waiting: waiting + self.halt.jobs(),
            delayed: later - retrying,
            retrying,
            held,
            sending,
            parking: self.parking.in_progress,
        };
        let lanes = self.lanes(now);
        let failures = &self.reporting.failures;
        Snapshot {
            binding,
            since,
            counts,
            next_slot,
            backlog: Backlog { oldest: oldest.map(first_seen), lanes },
            outage: failures.outage().cloned(),
            failures: failures.recent().cloned().collect(),
            store_error: self.reporting.store_error.clone(),
            terms: TermsInForce {
                generation: self.engine.generation().unwrap_or(latest.terms.generation),
                fingerprint: self.engine.fingerprint(),
                settings: Arc::clone(self.engine.settings()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_lanes_are_examined_once_a_second_and_again_after_the_last_change() {
        let start = Instant::now();
        for (lanes, expected) in [(MANY_LANES, 40), (MANY_LANES + 1, 10)] {
            let mut due = LanesDue { next_at: start, are_stale: false };
            let turns = (0..40).map(|turn| start + PUBLISH_INTERVAL * turn);
            assert_eq!(turns.filter(|turn| due.take(*turn, lanes)).count(), expected, "in ten seconds");
            let is_stale = lanes > MANY_LANES;
            assert_eq!(due.are_stale, is_stale, "the loop wakes for the rest");
            assert!(due.take(start + 10 * LANES_INTERVAL, lanes) && !due.are_stale);
        }
    }
}
