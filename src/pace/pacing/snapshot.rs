//! What was last seen of the pace that all replicas share: it seeds a pace of one's own.

use crate::limit::Mark;
use crate::pace::LaneId;
use crate::store::Reserved;
use crate::time::Micros;

/// What was last seen of the pace that all replicas share.
#[derive(Debug)]
pub(crate) struct SharedSnapshot {
    /// How many replicas share it.
    replicas: u32,
    /// The next slot.
    next_slot: Micros,
    /// By lane: its limits as they were at an instant, and the units that were granted then.
    usage: Vec<Option<Usage>>,
}

#[derive(Clone, Debug)]
struct Usage {
    now: Micros,
    marks: Vec<Mark>,
    units: u64,
}

impl SharedSnapshot {
    /// Before anything was seen, with so many lanes.
    pub(crate) fn new(lanes: usize) -> Self {
        Self { replicas: 1, next_slot: Micros(0), usage: vec![None; lanes] }
    }

    pub(crate) const fn replicas(&self) -> u32 {
        self.replicas
    }

    pub(crate) const fn set_replicas(&mut self, replicas: u32) {
        self.replicas = replicas;
    }

    pub(super) const fn next_slot(&self) -> Micros {
        self.next_slot
    }

    /// When the limits of a lane were seen, how they were, and the units that were granted then.
    pub(super) fn usage(&self, lane: LaneId) -> Option<(Micros, &[Mark], u64)> {
        let usage = self.usage.get(lane.row())?.as_ref()?;
        Some((usage.now, &usage.marks, usage.units))
    }

    /// Slots of a lane were granted, for so many units.
    pub(crate) fn on_granted(&mut self, lane: LaneId, reserved: &Reserved, units: u64) {
        self.next_slot = reserved.next;
        if let Some(usage) = self.usage.get_mut(lane.row()) {
            *usage = Some(Usage { now: reserved.now, marks: reserved.before.clone(), units });
        }
    }

    /// The counts of the limits began at 0: what was used is free again.
    pub(crate) fn forget_usage(&mut self) {
        self.usage.fill(None);
    }
}
