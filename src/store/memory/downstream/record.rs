//! The record of a downstream: pauses, a cool-down and terms, and their changes. `lua/record.lua` has the same rules.

use std::cmp::Ordering;
use std::time::Duration;

use super::Downstream;
use crate::store::{Change, CoolDown, CoolDownCall, Pause, Recall, RecordState, Status};
use crate::time::Micros;

/// The parts of a record besides its status. Redis has a key for each.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Attached {
    /// The terms of the status's generation.
    pub(super) terms: Option<String>,
    /// The note on an operator's pause, and the version of the pause.
    pub(super) note: Option<(u64, String)>,
    /// The cool-down as it was set; see [`CoolDown::current`].
    pub(super) cool_down: Option<CoolDown>,
}

impl Attached {
    /// The same instants on a clock that stepped back by `back` µs.
    pub(super) fn step_back(&mut self, back: i64) {
        if let Some(cool_down) = &mut self.cool_down {
            cool_down.step_back(back);
        }
    }

    fn cool_down(&self, now: Micros) -> Option<CoolDown> {
        self.cool_down.as_ref()?.current(now)
    }
}

impl Downstream {
    pub(in crate::store::memory) fn record(&self, now: Micros) -> RecordState {
        let Self { epoch, status, ref attached, .. } = *self;
        let note = attached.note.as_ref().filter(|(version, _)| *version == status.pause.version);
        let note = note.map(|(_, note)| note.clone());
        let (terms, cool_down) = (attached.terms.clone(), attached.cool_down(now));
        RecordState { now, epoch, status, terms, note, cool_down }
    }

    /// Makes a change, and returns whether it changed anything.
    pub(in crate::store::memory) fn update(&mut self, change: Change<'_>, now: Micros) -> bool {
        let (status, mut is_cooled) = (self.status, false);
        // At least the store's now, so that a change after a loss has a later version than any before it.
        let next = (status.pause.version + 1).max(u64::try_from(now.0).unwrap_or_default());
        match change {
            Change::Penalize(span) => self.status.penalty = status.penalty.max(now.plus(span)),
            Change::Pause { span, note } => {
                self.status.pause = Pause { until: end(span, now), version: next };
                self.attached.note = (!note.is_empty()).then(|| (next, note.to_owned()));
            }
            Change::Resume => {
                self.status.penalty = Micros(0);
                self.status.pause = Pause { until: Micros(0), version: next };
                (self.attached.note, self.attached.cool_down) = (None, None);
            }
            Change::Terms { of, text } => {
                if of == status.generation {
                    self.status.generation += 1;
                    self.attached.terms = Some(text.to_owned());
                }
            }
            Change::Reset { limits } => {
                let least = now.max(Micros(self.epoch.0 + 1));
                self.queue.forget_turns();
                self.status.reset = (status.reset + 1).max(u64::try_from(least.0).unwrap_or_default());
                for limit in limits {
                    let last = self.last(limit);
                    // A lease on disk may cover the new state too, and then the reset would be lost with the process.
                    self.replace(limit, "", limit.restarted(last.max(now)));
                }
            }
            Change::Recall(recall) => self.recall(recall, now),
            Change::CoolDown(call) => is_cooled = self.cool_down(call, now),
        }
        let paused = |status: &Status| (status.pause.version, status.generation);
        if paused(&self.status) != paused(&status) {
            // Turns that were booked behind the pause now begin too late, or have too few slots.
            self.queue.forget_turns();
        }
        let is_changed = self.status != status || is_cooled;
        if is_changed {
            self.write_record();
        }
        is_changed
    }

    /// Applies each part of a worker's memory that is newer.
    fn recall(&mut self, recall: Recall<'_>, now: Micros) {
        let (Recall { penalty, pause, version, generation, terms }, status) = (recall, self.status);
        if !penalty.is_zero() {
            self.status.penalty = status.penalty.max(now.plus(penalty));
        }
        if version > status.pause.version {
            let until = if pause == Some(Duration::ZERO) { Micros(0) } else { end(pause, now) };
            self.status.pause = Pause { until, version };
        }
        let is_newer = match generation.cmp(&status.generation) {
            Ordering::Equal => self.attached.terms.is_none(),
            ordering => ordering.is_gt(),
        };
        if let Some(known) = terms.filter(|_| is_newer) {
            self.status.generation = generation;
            self.attached.terms = Some(known.to_owned());
            self.queue.forget_turns();
        }
    }

    /// Changes the cool-down, and returns whether that changed anything.
    fn cool_down(&mut self, call: CoolDownCall<'_>, now: Micros) -> bool {
        let before = self.attached.cool_down(now);
        let after = call.apply(before.clone(), now);
        if after == before {
            return false;
        }
        if let (CoolDownCall::Refused { .. } | CoolDownCall::Again { .. }, Some(wait)) = (call, &after) {
            self.status.penalty = self.status.penalty.max(wait.at);
        }
        self.attached.cool_down = after;
        true
    }
}

/// The end of an operator's pause that begins at `now`.
fn end(span: Option<Duration>, now: Micros) -> Micros {
    span.map_or(Micros::MAX, |span| now.plus(span))
}
