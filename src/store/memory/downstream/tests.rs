//! What is kept of a downstream as text, by which tests compare two stores.

use super::{ClockHistory, Downstream};
use crate::limit::{Limit, LimitSet};
use crate::store::tests::{DumpedState, Record, texts};

impl Downstream {
    /// The record and the states of the limits, as text.
    pub(in crate::store::memory) fn dump(&mut self, key: &str, limits: &LimitSet) -> Vec<String> {
        let (epoch, ClockHistory { high, shift, .. }) = (self.epoch, self.clock);
        let kept = |limit: &Limit| {
            let held = self.states.get(limit, key)?;
            Some(DumpedState { state: held.state.clone(), shift: held.shift, epoch })
        };
        let kept = limits.iter().map(kept).collect();
        texts(limits, Record { epoch, high, shift, status: self.status, queue: self.queue }, kept)
    }
}
