//! What a worker remembers of each downstream, by which losses of the store's state are detected and repaired.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::request::{KnownRecord, KnownWindow, KnownWindows};
use crate::limit::{Level, Limit, Mark, Window};
use crate::store::swept::Swept;
use crate::store::{LONGEST_PAUSE, Stamp};
use crate::time::Micros;

/// The number of keys of one downstream whose windows are remembered. After a loss the windows of further keys begin
/// anew.
const MOST_KEYS: usize = 65_536;

/// What a worker remembers of one downstream.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The last epoch seen, by which a store that lost its state is detected.
    epoch: Micros,
    /// The store's clock in the last answer, by which a store that lost its latest writes is detected.
    answered_at: Micros,
    reach: Reach,
    /// The farthest slot of the downstream's own limits that was granted in this epoch.
    farthest: Micros,
    /// As in [`Status::reset`].
    reset: u64,
    /// The last known windows of the downstream's own limits.
    windows: KnownWindows,
    /// The last known windows of keyed limits, by key.
    keyed: Swept<KnownWindows>,
}

/// How far ahead slots are granted.
#[derive(Debug, Default)]
struct Reach {
    /// As configured.
    horizon: Duration,
    /// The farthest horizon of recent calls.
    ahead: Duration,
    /// When a call last had that horizon: slots that far ahead have passed once as much time has gone by.
    ahead_at: Option<Instant>,
    /// The latest slot, on the local clock, of calls with a shared horizon, whose reach is known only from their
    /// answers.
    reserved_until: Option<Instant>,
}

/// The memory of all downstreams, by name.
pub(super) type Histories = HashMap<String, History>;

impl History {
    pub(super) const fn set_horizon(&mut self, horizon: Duration) {
        self.reach.horizon = horizon;
    }

    /// The knowledge that is sent with a call to the given process of the server.
    pub(super) fn known_record(&self, run: i64) -> KnownRecord {
        KnownRecord {
            epoch: self.epoch,
            horizon: self.reach.horizon(),
            farthest: self.farthest,
            answered_at: self.answered_at,
            run,
        }
    }

    /// Records the horizon of a call, and the farthest slot that it was granted.
    pub(super) fn record_call(&mut self, ahead: Duration, farthest: Option<Micros>) {
        let reach = &mut self.reach;
        if ahead >= reach.ahead || reach.ahead_at.is_none_or(|at| at.elapsed() > reach.ahead) {
            (reach.ahead, reach.ahead_at) = (ahead, Some(Instant::now()));
        }
        self.farthest = farthest.map_or(self.farthest, |slot| slot.max(self.farthest));
    }

    /// Records the reach of a call with a shared horizon, and the farthest slot that it was granted.
    pub(super) fn record_shared_call(&mut self, ahead: Duration, farthest: Option<Micros>) {
        // Instants have a limited range.
        let until = Instant::now() + ahead.min(LONGEST_PAUSE);
        self.reach.reserved_until = self.reach.reserved_until.max(Some(until));
        self.farthest = farthest.map_or(self.farthest, |slot| slot.max(self.farthest));
    }

    /// Records an answer. Returns false if it is obsolete: it was given before a loss or a reset that is known already.
    pub(super) fn record_answer(&mut self, Stamp { now, epoch, status }: Stamp) -> bool {
        // Answers may overtake each other; epochs only rise, and within an epoch so do resets.
        let is_newer = (epoch, status.reset) >= (self.epoch, self.reset);
        if is_newer {
            if status.reset > self.reset {
                // Windows from before the reset are obsolete: they must not be restored after a loss.
                self.windows.clear();
            }
            if epoch > self.epoch {
                self.farthest = Micros(0);
            }
            (self.epoch, self.reset, self.answered_at) = (epoch, status.reset, now);
        }
        is_newer
    }

    /// The last known windows of the downstream's own limits, or those of a key.
    pub(super) fn windows(&self, key: &str) -> KnownWindows {
        let known = if key.is_empty() { Some(&self.windows) } else { self.keyed.get(key) };
        known.cloned().unwrap_or_default()
    }

    /// The last known window of a limit under a key.
    pub(super) fn window(&self, limit: &Limit, key: &str) -> Option<KnownWindow> {
        let known = if key.is_empty() { Some(&self.windows) } else { self.keyed.get(key) };
        known?.get(limit.name()).copied()
    }

    /// Records the windows of limits at `now`.
    pub(super) fn record_windows<'a>(
        &mut self,
        when: (Micros, Micros),
        limits: impl Iterator<Item = (&'a Limit, &'a str)> + Clone,
        marks: impl FnOnce() -> Vec<Mark>,
    ) {
        let is_window = |limit: &Limit| matches!(limit.fresh().level, Level::Window(_));
        if !limits.clone().any(|(limit, _)| is_window(limit)) {
            return;
        }
        for ((limit, key), mark) in limits.zip(marks()) {
            if let Mark::Window { window, .. } = mark {
                self.record_window(when, (limit, key), window);
            }
        }
    }

    fn record_window(
        &mut self,
        (epoch, now): (Micros, Micros),
        (limit, key): (&Limit, &str),
        window: Window,
    ) {
        let known = if key.is_empty() {
            &mut self.windows
        } else if let Some(place) = self.keyed.index(key) {
            self.keyed.at(place)
        } else {
            self.keyed.sweep(|windows| windows.values().all(|(_, window)| window.end <= now));
            if self.keyed.len() >= MOST_KEYS {
                return;
            }
            let place = self.keyed.insert(key);
            self.keyed.at(place)
        };
        let is_overtaken = known.get(limit.name()).is_some_and(|(known_epoch, _)| *known_epoch > epoch);
        if !is_overtaken {
            known.insert(limit.name().to_owned(), (epoch, window));
        }
    }
}

impl Reach {
    /// How far ahead a slot may lie that was granted, or may be granted now.
    fn horizon(&self) -> Duration {
        let reserved = self.reserved_until.map(|until| until.saturating_duration_since(Instant::now()));
        self.horizon.max(self.ahead).max(reserved.unwrap_or_default())
    }
}
