//! The part of a state that is on disk, in a store in a file: it is ahead of the grants.

use crate::limit::{Limit, State};
use crate::store::journal::Place;
use crate::time::Micros;

#[cfg(test)]
mod tests;

/// The written part of a state.
///
/// On disk is `held` or, once the writer has it, `next`. While `held` is `None`, any earlier state may be on disk,
/// until `next` is. Every answer must be covered by all states that may be on disk at that time. So a call must wait
/// unless `held` and `next`, if there is one, both cover the state that the call leaves. And a submitted state covers
/// the state of its time, which contains everything that was answered before and not given back.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    /// The state that is on disk.
    held: Option<State>,
    /// The state that replaces it, and where that was submitted.
    next: Option<(State, Place)>,
    /// As in `StoredState`. On a clock that has stepped since, none of it counts.
    pub(super) shift: i64,
    /// An instant from which all states that may be on disk equal absence.
    pub(super) whole: Micros,
    /// The number of the charge that made the state in memory.
    pub(super) revision: u64,
}

impl Lease {
    /// Nothing is known of what is on disk.
    const fn unknown(shift: i64) -> Self {
        Self { held: None, next: None, shift, whole: Micros(0), revision: 0 }
    }

    /// The written part of a state on the clock of this shift, as far as it is known, once all batches up to this one
    /// are written.
    pub(super) fn settled(known: Option<Box<Self>>, shift: i64, written: u64) -> Box<Self> {
        let known = known.filter(|lease| lease.shift == shift);
        let mut lease = known.unwrap_or_else(|| Box::new(Self::unknown(shift)));
        if let Some((next, _)) = lease.next.take_if(|(_, place)| place.batch <= written) {
            lease.held = Some(next);
        }
        lease
    }

    /// The state that was submitted last.
    pub(super) fn latest(&self) -> Option<&State> {
        self.next.as_ref().map(|(state, _)| state).or(self.held.as_ref())
    }

    /// The state for a new file, which contains all that was submitted up to this batch. A state of a later batch is
    /// left out while that batch may still replace it: otherwise the disk would have neither `held` nor `next`.
    pub(super) fn kept_in(&self, batch: u64) -> Option<&State> {
        let is_due = |(_, place): &&(State, Place)| place.batch <= batch || self.held.is_none();
        self.next.as_ref().filter(is_due).map(|(state, _)| state).or(self.held.as_ref())
    }

    /// Where the state was submitted that replaces the one on disk, if there is one.
    pub(super) fn place(&self) -> Option<Place> {
        self.next.as_ref().map(|(_, place)| *place)
    }

    /// Records a state that was submitted.
    pub(super) fn follow(&mut self, next: State, place: Place, whole: Micros) {
        // Nobody knows whether a state of another batch is on disk by now.
        if self.place().is_some_and(|before| before.batch != place.batch) {
            self.held = None;
        }
        (self.next, self.whole) = (Some((next, place)), whole.max(self.whole));
    }

    /// The batch from which all states that may be on disk cover this state: 0 if they do already, and `None` if no
    /// submitted batch achieves that.
    pub(super) fn covers(&self, limit: &Limit, state: &State) -> Option<u64> {
        let is_held = self.held.as_ref().is_some_and(|held| limit.covers(held, state));
        match &self.next {
            None => is_held.then_some(0),
            Some((next, place)) => limit.covers(next, state).then_some(if is_held { 0 } else { place.batch }),
        }
    }
}
