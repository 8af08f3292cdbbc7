//! The callers that wait for their slots in this process, in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::ReserveError;
use super::core::{Core, TRIES};
use super::message::{Message, WaitOutcome, Waiting};
use crate::limit::{Combine, Limit};
use crate::pace::{LaneId, Settings, SlotRequest, Unused};

/// The time by which the answer may be later than a slot within `max_wait`.
const GRACE: Duration = Duration::from_millis(5);

/// A place in the queue of waiting callers, which is given up when it is dropped.
pub(super) struct QueuePlace<'a> {
    core: &'a Arc<Core>,
    request: SlotRequest,
    /// The receiver of the driver's answer; `None` while the driver does not know of this place.
    outcome: Option<oneshot::Receiver<WaitOutcome>>,
}

impl<'a> QueuePlace<'a> {
    /// Takes the last place.
    ///
    /// # Errors
    /// [`ReserveError::QueueFull`] if the queue is so long that no slot can lie within `max_wait`.
    pub(super) fn join(core: &'a Arc<Core>, lane: LaneId, cost: u32) -> Result<Self, ReserveError> {
        let settings = core.settings();
        if let Some((limit, excess)) = full(core, &settings, lane) {
            let retry_after = span(limit, excess);
            return Err(ReserveError::QueueFull { retry_after, limit: limit.name().to_owned() });
        }
        core.units(lane).fetch_add(cost.into(), Ordering::Relaxed);
        let (seq, since) = (core.next_seq(), Instant::now());
        Ok(Self {
            core,
            request: SlotRequest {
                lane,
                priority: 0,
                cost: cost.into(),
                seq,
                since,
                end: None,
                is_quiet: false,
            },
            outcome: None,
        })
    }

    /// Waits until the slot has come.
    pub(super) async fn acquire(mut self) -> Result<(), ReserveError> {
        let until = self.request.since.checked_add(self.core.max_wait.saturating_add(GRACE));
        let (mut tries, mut missed) = (TRIES, None);
        loop {
            let (answer, outcome) = oneshot::channel();
            let waiting = Waiting { request: self.request, answer };
            if !self.core.send(Message::Wait { waiting, missed }) {
                return Err(ReserveError::Stopped);
            }
            let outcome = self.outcome.insert(outcome);
            let outcome = match until {
                Some(until) => {
                    match self.core.home().timed(async { timeout_at(until, outcome).await }).await {
                        Ok(outcome) => outcome,
                        Err(_) => return Err(self.too_late()),
                    }
                }
                None => outcome.await,
            };
            self.outcome = None;
            match outcome {
                Ok(WaitOutcome::Come(slot)) if self.may_use(slot) => return Ok(()),
                Ok(WaitOutcome::Come(slot)) => missed = Some(slot),
                Ok(WaitOutcome::Refused(error)) => return Err(error),
                // The driver ended. The next one does not know the slots of this one.
                Err(_) => {
                    (tries, missed) = (tries - 1, None);
                    if tries == 0 {
                        return Err(ReserveError::Stopped);
                    }
                }
            }
        }
    }

    /// Whether work may start now, since this process may have been stopped since the slot came.
    fn may_use(&self, Unused { slot, deadline, .. }: Unused) -> bool {
        let known = &self.core.known;
        deadline.late() <= known.tolerance() && !known.gate.refuses(slot, deadline)
    }

    /// Returns the reason why there was no slot within `max_wait`.
    fn too_late(&self) -> ReserveError {
        if let Some(left) = self.core.paused_for() {
            let retry_after = left.map(|left| left.saturating_sub(self.core.max_wait));
            return ReserveError::Paused { retry_after };
        }
        if let Some(error) = self.core.known.trouble() {
            return error;
        }
        let (settings, units) =
            (self.core.settings(), self.core.units(self.request.lane).load(Ordering::Relaxed));
        let limits = settings.limits_of(self.request.lane).iter();
        let slowest = limits
            .min_by_key(|limit| limit.rate().units_in(self.core.max_wait).saturating_add(limit.burst()));
        ReserveError::QueueFull {
            retry_after: slowest.map_or(Duration::ZERO, |limit| span(limit, units)),
            limit: slowest.map(|limit| limit.name().to_owned()).unwrap_or_default(),
        }
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let SlotRequest { lane, cost, seq, .. } = self.request;
        self.core.units(lane).fetch_sub(cost.default_cost().into(), Ordering::Relaxed);
        let Some(mut outcome) = self.outcome.take() else { return };
        outcome.close();
        match outcome.try_recv() {
            // The slot came, and is not used.
            Ok(WaitOutcome::Come(slot)) => self.core.send_if_running(Message::Unused(slot)),
            Ok(WaitOutcome::Refused(_)) => true,
            Err(_) => self.core.send_if_running(Message::Withdraw(lane, seq)),
        };
    }
}

/// Returns a limit by which another waiter of this lane can certainly have no slot within `max_wait`, and the units in
/// excess of it.
fn full<'a>(core: &Core, settings: &'a Settings, lane: LaneId) -> Option<(&'a Limit, u64)> {
    let limits = settings.limits_of(lane);
    if limits.combine() != Combine::All {
        return None;
    }
    let units = core.units(lane).load(Ordering::Relaxed);
    // The cost beyond the first unit may be charged behind the slot, and in a window cheaper waiters may go first.
    let excess = |limit: &'a Limit| {
        let most = limit.rate().units_in(core.max_wait).saturating_add(limit.burst());
        let excess = (units + 1).saturating_sub(most);
        (excess > 0).then_some((limit, excess))
    };
    limits.iter().filter(|limit| limit.is_even()).find_map(excess)
}

/// Returns how long the limit takes for this number of units.
fn span(limit: &Limit, units: u64) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "it is shown to people, and to callers who try again")]
    Duration::try_from_secs_f64(units as f64 / limit.rate().per_second()).unwrap_or(Duration::MAX)
}
