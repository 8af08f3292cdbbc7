//! The end of a dispatcher: jobs that were not handed over are given back, sends in progress may end in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Flights, Worker};
use crate::dispatch::Drained;
use crate::dispatch::entry::Entry;
use crate::dispatch::flight::Event;
use crate::dispatch::meters::Meters;
use crate::dispatch::source::{ParkReason, Source};
use crate::pace::Waiter;

/// How long the source may take to stop.
const CLOSING: Duration = Duration::from_secs(5);

/// How long before the end sends stop waiting for the rest of successful answers, so that their jobs can still be
/// settled.
const LAST_CALL: Duration = Duration::from_millis(500);

/// How long the store may take to take back slots and the turn.
const LEAVING: Duration = Duration::from_secs(1);

/// When sends in progress have to end.
struct Last {
    end: Instant,
    drain_timeout: Duration,
    /// Cancelled when the process is to end.
    stop: CancellationToken,
    /// Whether the process is to end, so that `end` counts from then.
    is_stopped: bool,
}

impl Last {
    fn new(stop: CancellationToken, flights: &Flights) -> Self {
        let (is_stopped, drain_timeout) = (stop.is_cancelled(), flights.drain_timeout);
        let within = if is_stopped { drain_timeout } else { flights.send_timeout };
        Self { end: Instant::now() + within, drain_timeout, stop, is_stopped }
    }

    fn stopped(&mut self) {
        self.is_stopped = true;
        self.end = self.end.min(Instant::now() + self.drain_timeout);
    }
}

impl Worker {
    pub(super) async fn drain(
        mut self: Box<Self>,
        mut source: impl Source,
        mut events: mpsc::UnboundedReceiver<Box<Event>>,
        stop: CancellationToken,
    ) -> Drained {
        let last = Last::new(stop, &self.flights);
        self.context.unsettled.closing().end_streams();
        let mut entries: Vec<Box<Entry>> = self.engine.drain();
        // The source is stopped first, or jobs that are given back would come straight back. Slots that the store
        // takes back help others only if they come back in time.
        let closing =
            timeout(CLOSING.min(self.flights.drain_timeout), close(&mut source, &self.context.meters));
        let leaving = timeout(LEAVING.min(self.flights.drain_timeout), self.engine.leave());
        let (closed, left) = tokio::join!(closing, leaving);
        if closed.is_err() {
            tracing::warn!(downstream = self.context.downstream, "the source did not close in time");
        }
        if left.is_err() {
            tracing::debug!(
                downstream = self.context.downstream,
                "the store has not taken back the unused slots"
            );
        }
        entries.extend(self.halt.take_if(|_| true));
        entries.extend(std::iter::from_fn(|| events.try_recv().ok()).filter_map(|event| event.into_entry()));
        entries.sort_by_key(Waiter::seq);
        entries.into_iter().for_each(|entry| self.give_back(entry));
        self.report_drain(self.engine.release().sending());

        let in_time = self.finish(&mut events, last).await;
        self.context.meters.set_in_flight(0, 0, 0);
        self.report_drain(0);
        let unfinished = if in_time { 0 } else { self.flights.tasks.len() };
        self.flights.abandon.cancel();
        self.flights.tasks.wait().await;
        while let Ok(event) = events.try_recv() {
            event.into_entry().into_iter().for_each(|entry| self.give_back(entry));
        }
        Drained { unfinished }
    }

    /// Lets the sends in progress end, up to this instant; returns whether all have.
    async fn finish(&mut self, events: &mut mpsc::UnboundedReceiver<Box<Event>>, mut last: Last) -> bool {
        self.flights.tasks.close();
        let flights = self.flights.tasks.clone();
        let before_end = LAST_CALL.min(self.flights.drain_timeout / 2);
        let unsettled = Arc::clone(&self.context.unsettled);
        let mut is_last_call = false;
        loop {
            tokio::select! {
                biased;
                // The last event of a flight comes before its end, and may begin another one, which parks the job.
                Some(event) = events.recv() => {
                    event.into_entry().into_iter().for_each(|entry| self.give_back(entry));
                }
                () = last.stop.cancelled(), if !last.is_stopped => last.stopped(),
                () = sleep_until(last.end - before_end), if !is_last_call => {
                    is_last_call = true;
                    unsettled.closing().end_answers();
                }
                ended = timeout_at(last.end, flights.wait()) => match (ended, events.try_recv()) {
                    (Ok(()), Ok(event)) => {
                        event.into_entry().into_iter().for_each(|entry| self.give_back(entry));
                    }
                    (Ok(()), Err(_)) if !flights.is_empty() => {}
                    (ended, event) => {
                        let entry = event.ok().and_then(|event| event.into_entry());
                        entry.into_iter().for_each(|entry| self.give_back(entry));
                        return ended.is_ok();
                    }
                }
            }
        }
    }

    /// Gives a job back to its broker. One that has been sent is parked until its next attempt is due, since a job
    /// that is given back loses the count of its attempts. One that waits for a limit comes to another replica at
    /// once, which learns when the limit changes.
    fn give_back(&mut self, entry: Box<Entry>) {
        if entry.attempts.sent > 0 && entry.can_park() && !self.flights.abandon.is_cancelled() {
            let is_limited = entry.hold.reason == ParkReason::Limit;
            let due = if is_limited { Instant::now() } else { entry.since() };
            return self.park(due, ParkReason::Restart, entry);
        }
        self.context.meters.settled.returned.increment(1);
        entry.ticket.give_back();
    }
}

/// Closes the source, and gives back what it still hands out.
async fn close(source: &mut impl Source, meters: &Meters) {
    source.close().await;
    while let Some(delivery) = source.next().await {
        meters.settled.returned.increment(1);
        if let Some(stay) = delivery.stay.as_ref().filter(|_| !delivery.ticket.is_redelivered()) {
            meters.home(stay);
        }
        delivery.ticket.give_back();
    }
}
