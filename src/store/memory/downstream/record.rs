//! The record of a downstream: pauses and terms, and their changes. `lua/record.lua` has the same rules.

use std::cmp::Ordering;
use std::time::Duration;

use super::Downstream;
use crate::store::{Change, Pause, Recall, RecordState, Status};
use crate::time::Micros;

impl Downstream {
    pub(in crate::store::memory) fn record(&self, now: Micros) -> RecordState {
        let Self { epoch, status, .. } = *self;
        let note = self.note.as_ref().filter(|(version, _)| *version == status.pause.version);
        let note = note.map(|(_, note)| note.clone());
        RecordState { now, epoch, status, terms: self.terms.clone(), note }
    }

    /// Makes a change, and returns whether it changed anything.
    pub(in crate::store::memory) fn update(&mut self, change: Change<'_>, now: Micros) -> bool {
        let status = self.status;
        // Not below the store's now, so that a change after a loss has a later version than any before it.
        let next = (status.pause.version + 1).max(u64::try_from(now.0).unwrap_or_default());
        let pause = |span: Option<Duration>| span.map_or(Micros::MAX, |span| now.plus(span));
        match change {
            Change::Penalize(span) => self.status.penalty = status.penalty.max(now.plus(span)),
            Change::Pause { span, note } => {
                self.status.pause = Pause { until: pause(span), version: next };
                self.note = (!note.is_empty()).then(|| (next, note.to_owned()));
            }
            Change::Resume => {
                self.status.penalty = Micros(0);
                self.status.pause = Pause { until: Micros(0), version: next };
                self.note = None;
            }
            Change::Terms { of, text } => {
                if of == status.generation {
                    self.status.generation += 1;
                    self.terms = Some(text.to_owned());
                }
            }
            Change::Reset { limits } => {
                let least = now.max(Micros(self.epoch.0 + 1));
                self.queue.forget_turns();
                self.status.reset = (status.reset + 1).max(u64::try_from(least.0).unwrap_or_default());
                for limit in limits {
                    let last = self.last(limit);
                    self.write(limit, "", limit.restarted(last.max(now)));
                }
            }
            Change::Recall(Recall { penalty, pause: left, version, generation, terms: known }) => {
                if !penalty.is_zero() {
                    self.status.penalty = status.penalty.max(now.plus(penalty));
                }
                if version > status.pause.version {
                    let until = if left == Some(Duration::ZERO) { Micros(0) } else { pause(left) };
                    self.status.pause = Pause { until, version };
                }
                let newer = |generation: u64| match generation.cmp(&status.generation) {
                    Ordering::Equal => self.terms.is_none(),
                    ordering => ordering.is_gt(),
                };
                if let Some(known) = known.filter(|_| newer(generation)) {
                    self.status.generation = generation;
                    self.terms = Some(known.to_owned());
                    self.queue.forget_turns();
                }
            }
        }
        let paused = |status: &Status| (status.pause.version, status.generation);
        if paused(&self.status) != paused(&status) {
            // Turns that were booked behind the pause begin too late now, or have too few slots.
            self.queue.forget_turns();
        }
        self.status != status
    }
}
