//! What a worker remembers of the downstreams that it works on: how losses of the store are found out and made good.

use std::collections::HashMap;
use std::time::Duration;

use indexmap::IndexMap;
use tokio::time::Instant;

use super::tell::{Heard, Seen, Windows};
use crate::limit::{Level, Limit, Mark, Window};
use crate::store::{LONGEST_PAUSE, Status};
use crate::time::Micros;

/// The number of keys of one downstream whose windows are remembered. After a loss the windows of further keys begin
/// anew.
const MOST_KEYS: usize = 65_536;

/// The number of other keys that are examined with each new key, to forget those whose windows have ended.
const LOOKED_AT: usize = 4;

/// What was seen of a downstream.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The last epoch: how a store that lost its state is found out.
    epoch: Micros,
    /// The store's clock in the last answer: how one is found out that lost what it wrote last.
    heard: Micros,
    /// How far ahead slots are granted, as its configuration has it.
    horizon: Duration,
    /// How far ahead slots were asked for at most, of late.
    ahead: Duration,
    /// When so far ahead was asked for last: such slots have passed once it is as long ago.
    asked: Option<Instant>,
    /// Up to when slots were granted in calls with a shared horizon, which reach as far as it happens.
    reserved_until: Option<Instant>,
    /// The farthest slot of the downstream's own limits that was granted in this epoch.
    farthest: Micros,
    /// As in [`Status::reset`].
    reset: u64,
    /// The windows of the downstream's own limits, as they were last heard of.
    windows: Windows,
    /// Those of limits that each key has for itself.
    keyed: IndexMap<Box<str>, Windows>,
    /// The place among them up to where it was looked which may be forgotten.
    swept: usize,
}

/// All downstreams.
pub(super) type All = HashMap<String, Known>;

impl Known {
    pub(super) const fn set_horizon(&mut self, horizon: Duration) {
        self.horizon = horizon;
    }

    /// What is told of it with a call to this process of the server.
    pub(super) fn seen(&self, run: i64) -> Seen {
        let reserved = self.reserved_until.map(|until| until.saturating_duration_since(Instant::now()));
        let horizon = self.horizon.max(self.ahead).max(reserved.unwrap_or_default());
        Seen { epoch: self.epoch, horizon, farthest: self.farthest, heard: self.heard, run }
    }

    /// Slots were asked for so far ahead, and granted up to this one.
    pub(super) fn asked(&mut self, ahead: Duration, farthest: Option<Micros>) {
        if ahead >= self.ahead || self.asked.is_none_or(|asked| asked.elapsed() > self.ahead) {
            (self.ahead, self.asked) = (ahead, Some(Instant::now()));
        }
        self.farthest = farthest.map_or(self.farthest, |slot| slot.max(self.farthest));
    }

    /// Slots were granted so far ahead, up to this one, in a call with a shared horizon.
    pub(super) fn reserved(&mut self, ahead: Duration, farthest: Option<Micros>) {
        // Instants do not reach without end.
        let until = Instant::now() + ahead.min(LONGEST_PAUSE);
        self.reserved_until = self.reserved_until.max(Some(until));
        self.farthest = farthest.map_or(self.farthest, |slot| slot.max(self.farthest));
    }

    /// Takes in an answer; false where it was overtaken: given before a loss or a reset that is known.
    pub(super) fn remember(&mut self, (epoch, now): (Micros, Micros), status: &Status) -> bool {
        // Answers may overtake each other; epochs only rise, and within one so do resets.
        let is_newer = (epoch, status.reset) >= (self.epoch, self.reset);
        if is_newer {
            if status.reset > self.reset {
                // What was in use is so no more: a store that loses its state must not be told it again.
                self.windows.clear();
            }
            if epoch > self.epoch {
                self.farthest = Micros(0);
            }
            (self.epoch, self.reset, self.heard) = (epoch, status.reset, now);
        }
        is_newer
    }

    /// The windows of the downstream's own limits, or those of a key.
    pub(super) fn windows(&self, key: &str) -> Windows {
        let known = if key.is_empty() { Some(&self.windows) } else { self.keyed.get(key) };
        known.cloned().unwrap_or_default()
    }

    /// The window of a limit under a key.
    pub(super) fn window(&self, limit: &Limit, key: &str) -> Option<Heard> {
        let known = if key.is_empty() { Some(&self.windows) } else { self.keyed.get(key) };
        known?.get(limit.name()).copied()
    }

    /// Takes in how windows stand at `now`.
    pub(super) fn remember_windows<'a>(
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
                self.remember_window(when, (limit, key), window);
            }
        }
    }

    fn remember_window(
        &mut self,
        (epoch, now): (Micros, Micros),
        (limit, key): (&Limit, &str),
        window: Window,
    ) {
        let known = if key.is_empty() {
            &mut self.windows
        } else if let Some(place) = self.keyed.get_index_of(key) {
            &mut self.keyed[place]
        } else {
            self.sweep(now);
            if self.keyed.len() >= MOST_KEYS {
                return;
            }
            self.keyed.entry(key.into()).or_default()
        };
        let is_overtaken = known.get(limit.name()).is_some_and(|(heard, _)| *heard > epoch);
        if !is_overtaken {
            known.insert(limit.name().to_owned(), (epoch, window));
        }
    }

    /// Forgets some of the keys whose windows have ended.
    fn sweep(&mut self, now: Micros) {
        for _ in 0..LOOKED_AT {
            match self.keyed.get_index(self.swept) {
                Some((_, windows)) if windows.values().all(|(_, window)| window.end <= now) => {
                    self.keyed.swap_remove_index(self.swept);
                }
                Some(_) => self.swept += 1,
                None => self.swept = 0,
            }
        }
    }
}
