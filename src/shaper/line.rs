//! Those who wait for their slots here, in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::ReserveError;
use super::core::{Core, TRIES};
use super::driver::Message;
use crate::limit::{Combine, Limit};
use crate::pace::{LaneId, Settings, Unused, Waiter};

/// One who waits for a slot.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) lane: LaneId,
    pub(super) cost: u32,
    pub(super) seq: u64,
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<Told>,
}

/// What one who waits is told.
#[derive(Debug)]
pub(super) enum Told {
    /// Its slot has come.
    Come(Unused),
    /// It gets none.
    Refused(ReserveError),
}

impl Waiter for Waiting {
    fn lane(&self) -> LaneId {
        self.lane
    }

    fn priority(&self) -> u8 {
        0
    }

    fn cost(&self) -> u32 {
        self.cost
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn may_go_from(&mut self, due: Instant) {
        self.since = due;
    }

    fn is_live(&self) -> bool {
        !self.answer.is_closed()
    }
}

/// A slot that lies within `max_wait` may be told a little later.
const GRACE: Duration = Duration::from_millis(5);

/// A place among those who wait here. Dropped, it is left.
pub(super) struct InLine<'a> {
    core: &'a Arc<Core>,
    lane: LaneId,
    cost: u32,
    seq: u64,
    since: Instant,
    /// What the driver tells; none while it does not know of this place.
    told: Option<oneshot::Receiver<Told>>,
}

impl<'a> InLine<'a> {
    /// Takes the last place.
    ///
    /// # Errors
    /// [`ReserveError::QueueFull`] where so many wait that it cannot have a slot within `max_wait`.
    pub(super) fn join(core: &'a Arc<Core>, lane: LaneId, cost: u32) -> Result<Self, ReserveError> {
        let settings = core.settings();
        if let Some((limit, excess)) = full(core, &settings, lane) {
            let retry_after = span(limit, excess);
            return Err(ReserveError::QueueFull { retry_after, limit: limit.name().to_owned() });
        }
        core.units(lane).fetch_add(cost.into(), Ordering::Relaxed);
        Ok(Self { core, lane, cost, seq: core.next_seq(), since: Instant::now(), told: None })
    }

    /// Waits until the slot has come.
    pub(super) async fn acquire(mut self) -> Result<(), ReserveError> {
        let until = self.since.checked_add(self.core.max_wait.saturating_add(GRACE));
        let (mut tries, mut missed) = (TRIES, None);
        loop {
            let (answer, told) = oneshot::channel();
            let Self { lane, cost, seq, since, .. } = self;
            let waiting = Waiting { lane, cost, seq, since, answer };
            if !self.core.send(Message::Wait { waiting, missed }) {
                return Err(ReserveError::Stopped);
            }
            let told = self.told.insert(told);
            let told = match until {
                Some(until) => match timeout_at(until, told).await {
                    Ok(told) => told,
                    Err(_) => return Err(self.too_late()),
                },
                None => told.await,
            };
            self.told = None;
            match told {
                Ok(Told::Come(slot)) if self.may_use(slot) => return Ok(()),
                Ok(Told::Come(slot)) => missed = Some(slot),
                Ok(Told::Refused(error)) => return Err(error),
                // The driver ended with its runtime. The next one does not know of the slots of this one.
                Err(_) => {
                    (tries, missed) = (tries - 1, None);
                    if tries == 0 {
                        return Err(ReserveError::Stopped);
                    }
                }
            }
        }
    }

    /// Whether work may start now: this process may have stood still since the slot came.
    fn may_use(&self, Unused { slot, deadline, .. }: Unused) -> bool {
        let known = &self.core.known;
        deadline.late() <= known.tolerance() && !known.gate.refuses(slot, deadline)
    }

    /// Why there was no slot within `max_wait`.
    fn too_late(&self) -> ReserveError {
        if let Some(left) = self.core.paused_for() {
            let retry_after = left.map(|left| left.saturating_sub(self.core.max_wait));
            return ReserveError::Paused { retry_after };
        }
        if let Some(error) = self.core.known.trouble() {
            return error;
        }
        let (settings, units) = (self.core.settings(), self.core.units(self.lane).load(Ordering::Relaxed));
        let limits = settings.limits_of(self.lane).iter();
        let slowest = limits
            .min_by_key(|limit| limit.rate().units_in(self.core.max_wait).saturating_add(limit.burst()));
        ReserveError::QueueFull {
            retry_after: slowest.map_or(Duration::ZERO, |limit| span(limit, units)),
            limit: slowest.map(|limit| limit.name().to_owned()).unwrap_or_default(),
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.core.units(self.lane).fetch_sub(self.cost.into(), Ordering::Relaxed);
        let Some(mut told) = self.told.take() else { return };
        told.close();
        match told.try_recv() {
            // It came, and nobody uses it.
            Ok(Told::Come(slot)) => self.core.tell(Message::Unused(slot)),
            Ok(Told::Refused(_)) => true,
            Err(_) => self.core.tell(Message::Leave(self.lane, self.seq)),
        };
    }
}

/// A limit by which one more of this lane can surely not have a slot within `max_wait`, and by how many units more than it
/// then has wait here.
fn full<'a>(core: &Core, settings: &'a Settings, lane: LaneId) -> Option<(&'a Limit, u64)> {
    let limits = settings.limits_of(lane);
    if limits.combine() != Combine::All {
        return None;
    }
    let units = core.units(lane).load(Ordering::Relaxed);
    // What one costs beyond its first unit may come behind its slot; and in a window others may go before those that cost
    // more.
    let excess = |limit: &'a Limit| {
        let most = limit.rate().units_in(core.max_wait).saturating_add(limit.burst());
        let excess = (units + 1).saturating_sub(most);
        (excess > 0).then_some((limit, excess))
    };
    limits.iter().filter(|limit| limit.is_even()).find_map(excess)
}

/// How long the limit takes for so many units.
fn span(limit: &Limit, units: u64) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "it is told to people, and to those who try again")]
    Duration::try_from_secs_f64(units as f64 / limit.rate().per_second()).unwrap_or(Duration::MAX)
}
