//! Records and states as text, by which tests compare what two stores hold.

use super::turns::Queue;
use super::{GRACE, Status};
use crate::limit::{LimitSet, State};
use crate::time::Micros;

/// The record of a downstream.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) epoch: Micros,
    pub(super) high: Micros,
    pub(super) shift: i64,
    pub(super) status: Status,
    pub(super) queue: Queue,
}

/// A state, with the shift and the epoch of the record when it was written.
#[derive(Clone)]
pub(super) struct DumpedState {
    pub(super) state: State,
    pub(super) shift: i64,
    pub(super) epoch: Micros,
}

/// The texts for a downstream that was never used.
pub(super) fn unused(limits: &LimitSet) -> Vec<String> {
    vec!["none".to_owned(); 1 + limits.len()]
}

/// The text of the record, then that of each state. A state that has equalled absence for longer than [`GRACE`] counts
/// as absent, whether or not it is still stored.
pub(super) fn texts(limits: &LimitSet, record: Record, kept: Vec<Option<DumpedState>>) -> Vec<String> {
    let states = limits.iter().zip(kept).map(|(limit, kept)| {
        let present = kept.filter(|DumpedState { state, shift, .. }| {
            let back = (record.shift - shift).max(0);
            let state = match back {
                0 => limit.adopt(state.clone()),
                _ => limit.step_back(state.clone(), back),
            };
            limit.whole_at(&state).plus(GRACE) > record.high
        });
        present.map_or_else(
            || "none".to_owned(),
            |DumpedState { state, shift, epoch }| format!("{state:?} shift {shift} epoch {epoch}"),
        )
    });
    let Record { epoch, high, shift, status, queue } = record;
    std::iter::once(format!("epoch {epoch} high {high} shift {shift} {status:?} {queue:?}"))
        .chain(states)
        .collect()
}
