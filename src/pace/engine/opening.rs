//! Connections that are opened before the first slots of an idle downstream are requested. Otherwise jobs would miss
//! their slots until connections are open, and the downstream would have to open them while the first jobs arrive.

use std::time::Duration;

use tokio::time::Instant;

use super::{Effect, Engine};
use crate::pace::schedule::Next;
use crate::pace::{OnLimit, Waiter};

/// How long connections count as open after the last job was sent. A sink may keep them for longer.
const WARM: Duration = Duration::from_secs(3);

/// The longest time without requests for slots while connections are being opened.
const LONGEST_OPENING: Duration = Duration::from_secs(1);

/// The known state of a downstream's connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connections {
    /// Whether the driver opens connections on demand.
    on_demand: bool,
    /// When some were last in use, or had been opened.
    warm_at: Option<Instant>,
    /// Until when the engine waits for those that are being opened.
    opening_until: Option<Instant>,
}

impl Connections {
    /// Records that jobs are sent over connections at `now`.
    pub(super) const fn on_release(&mut self, now: Instant) {
        self.warm_at = Some(now);
    }

    /// Returns until when the engine waits for connections that are being opened.
    pub(super) const fn waits_until(&self) -> Option<Instant> {
        self.opening_until
    }
}

impl<W: Waiter> Engine<W> {
    /// Makes the driver open connections before the first slots are requested: it calls [`Engine::on_opened`].
    pub(crate) const fn opening_connections(mut self) -> Self {
        self.driver.connections.on_demand = true;
        self
    }

    /// Records that the requested connections are open, or could not be opened.
    pub(crate) fn on_opened(&mut self) {
        // A connection that opens after the wait changes nothing.
        if self.driver.connections.opening_until.take().is_some() {
            self.driver.connections.warm_at = Some(Instant::now());
        }
    }

    /// Whether connections for these waiters are opened first, and their slots requested later. A call that has a
    /// turn does not wait: its slots lie ahead.
    pub(super) fn opens_first(&mut self, next: Next, waiters: usize, now: Instant) -> bool {
        if let Some(until) = self.driver.connections.opening_until {
            if now < until {
                return true;
            }
            self.on_opened();
        }
        let Connections { on_demand, warm_at, .. } = self.driver.connections;
        let is_warm = warm_at.is_some_and(|at| now.saturating_duration_since(at) < WARM);
        let is_at_rest = self.release.held() == 0 && self.release.sending() == 0;
        // Where slots lie further apart, a job may be as late as the time that connecting takes.
        let is_fast = self.settings.limits_of(next.lane).spacing() < self.settings.horizon;
        if !on_demand
            || is_warm
            || !is_at_rest
            || !is_fast
            || next.has_turn()
            || self.settings.on_limit == OnLimit::Reject
        {
            return false;
        }
        self.driver.connections.opening_until = Some(now + LONGEST_OPENING);
        let spacing = self.schedule.batching(next.lane).spacing();
        let (jobs, at_once) = (self.release.slots(waiters), self.release.connections(waiters, spacing));
        self.driver.effects.push(Effect::Prepare { jobs, at_once, is_awaited: true });
        true
    }
}
