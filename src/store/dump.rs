//! States as texts: how tests compare what stores keep.

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

/// A state, with what it was written under.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) state: State,
    pub(super) shift: i64,
    pub(super) epoch: Micros,
}

/// The texts of a downstream that was never used.
pub(super) fn nothing(limits: &LimitSet) -> Vec<String> {
    vec!["none".to_owned(); 1 + limits.len()]
}

/// The record, then each state. One that has equalled absence for long is none, kept or not.
pub(super) fn texts(limits: &LimitSet, record: Record, kept: Vec<Option<Kept>>) -> Vec<String> {
    let states = limits.iter().zip(kept).map(|(limit, kept)| {
        let present = kept.filter(|Kept { state, shift, .. }| {
            let back = (record.shift - shift).max(0);
            let state = match back {
                0 => limit.adopt(state.clone()),
                _ => limit.step_back(state.clone(), back),
            };
            limit.whole_at(&state).plus(GRACE) > record.high
        });
        present.map_or_else(
            || "none".to_owned(),
            |Kept { state, shift, epoch }| format!("{state:?} shift {shift} epoch {epoch}"),
        )
    });
    let Record { epoch, high, shift, status, queue } = record;
    std::iter::once(format!("epoch {epoch} high {high} shift {shift} {status:?} {queue:?}"))
        .chain(states)
        .collect()
}
