//! A snapshot of the pace that all replicas share; it seeds the local pace.

use super::Peers;
use crate::limit::{LimitSet, Mark, Refusal};
use crate::pace::LaneId;
use crate::store::Reserved;
use crate::time::Micros;

/// The pace that all replicas share, as last seen.
#[derive(Debug)]
pub(crate) struct SharedSnapshot {
    /// The number of replicas with a lease, which share the pace.
    replicas: u32,
    peers: Peers,
    /// The next free slot.
    next_slot: Micros,
    /// The last known usage of the limits of each lane.
    usage: Vec<Option<Usage>>,
}

#[derive(Clone, Debug)]
struct Usage {
    now: Micros,
    marks: Vec<Mark>,
    units: u64,
    /// The last slot of that grant, if any was granted.
    last: Option<Micros>,
    /// The first slot that was not granted, and the limit that determines it.
    refused: Option<Refusal>,
}

impl SharedSnapshot {
    /// Creates an empty snapshot for this number of lanes.
    pub(crate) fn new(lanes: usize) -> Self {
        Self { replicas: 1, peers: Peers::default(), next_slot: Micros(0), usage: vec![None; lanes] }
    }

    /// Returns the number of replicas that would share the pace if all had jobs.
    pub(crate) fn replicas(&self) -> u32 {
        self.replicas.max(self.peers.count())
    }

    /// Returns the number of replicas with a lease: those that have jobs, and those that know the others only from
    /// leases.
    pub(crate) const fn leases(&self) -> u32 {
        self.replicas
    }

    /// Whether the number of replicas is known without their leases.
    pub(super) fn knows_peers(&self) -> bool {
        self.peers.count() > 0
    }

    pub(super) fn set_peers(&mut self, peers: Peers) {
        self.peers = peers;
    }

    pub(crate) const fn set_replicas(&mut self, replicas: u32) {
        self.replicas = replicas;
    }

    pub(super) const fn next_slot(&self) -> Micros {
        self.next_slot
    }

    /// Returns the instant at which the limits of a lane were seen, their marks before that grant, and the units
    /// granted.
    pub(super) fn usage(&self, lane: LaneId) -> Option<(Micros, &[Mark], u64)> {
        let usage = self.usage.get(lane.set())?.as_ref()?;
        Some((usage.now, &usage.marks, usage.units))
    }

    /// Returns the limit that determines the next slot of a lane, by its index in `limits`, and that slot, as of the
    /// last answer.
    pub(crate) fn binding(&self, lane: LaneId, limits: &LimitSet) -> Option<(usize, Micros)> {
        let usage = self.usage.get(lane.set())?.as_ref()?;
        if let Some(Refusal { slot, limit }) = usage.refused {
            return Some((limit, slot));
        }
        let at = usage.last.unwrap_or(usage.now);
        let next = |(index, (limit, mark)): (usize, (&crate::limit::Limit, &Mark))| {
            let units = u32::try_from(usage.units).unwrap_or(u32::MAX).min(limit.max_cost());
            // The marks of sliding windows and logs do not show how much is left; a limit that is used up refuses.
            let state = limit.state_of(limit.mark_commit(*mark, at, units))?;
            Some((index, limit.earliest(&state, at, 1)))
        };
        limits.iter().zip(&usage.marks).enumerate().filter_map(next).max_by_key(|(_, slot)| *slot)
    }

    /// Records that slots of a lane were granted, for this number of units.
    pub(crate) fn on_granted(&mut self, lane: LaneId, reserved: &Reserved, units: u64) {
        self.next_slot = reserved.next;
        if let Some(usage) = self.usage.get_mut(lane.set()) {
            let (now, marks) = (reserved.stamp.now, reserved.charges.before.clone());
            let (last, refused) = (reserved.slots.last().copied(), reserved.refused);
            *usage = Some(Usage { now, marks, units, last, refused });
        }
    }

    /// Forgets the usage of windows, since the counts of the limits were reset to 0.
    pub(crate) fn forget_usage(&mut self) {
        self.usage.fill(None);
    }
}
