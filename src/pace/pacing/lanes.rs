//! The lanes of the waiters of one call, where lanes are made by keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::{JobCost, LimitSet};
use crate::pace::{LaneId, Settings};
use crate::store::{Lane, Lanes};

/// The lanes of the waiters of one call, with the keys of the states of their limits.
#[derive(Debug)]
pub(crate) struct InLanes {
    /// The lane of each waiter.
    pub(super) ids: Vec<LaneId>,
    /// For each waiter the index of its lane among those with limits of their own, if it is one of them.
    pub(super) of: Vec<Option<u16>>,
    /// How far ahead of now a slot may lie that a lane's limits determine.
    pub(super) lead: Duration,
    /// The most slots that the call is granted.
    pub(super) most: u32,
    limited: Vec<(LaneId, Vec<Arc<str>>)>,
}

impl InLanes {
    /// Lists the lanes of waiters of a call that is granted at most this many slots. `keys` are those of the states of a
    /// lane's own limits.
    pub(crate) fn new(
        of: impl Iterator<Item = LaneId>,
        (lead, most): (Duration, u32),
        keys: impl Fn(LaneId) -> Vec<Arc<str>>,
    ) -> Self {
        let mut indices = HashMap::new();
        let mut lanes = Self { ids: vec![], of: vec![], lead, most, limited: vec![] };
        for lane in of {
            let index = *indices.entry(lane).or_insert_with(|| {
                let keys = keys(lane);
                let index = u16::try_from(lanes.limited.len()).ok().filter(|_| !keys.is_empty())?;
                lanes.limited.push((lane, keys));
                Some(index)
            });
            lanes.ids.push(lane);
            lanes.of.push(index);
        }
        lanes
    }

    /// The cost of each waiter to every limit. Where there are lanes, no limit has costs of its own, since the store
    /// decides on one cost for each job.
    pub(super) fn costs(&self, costs: &[JobCost]) -> Vec<u32> {
        costs.iter().map(JobCost::default_cost).collect()
    }

    /// The limits of each set that one of the lanes has.
    pub(super) fn sets(&self, settings: &Settings) -> HashMap<usize, LimitSet> {
        let mut sets = HashMap::new();
        for (lane, _) in &self.limited {
            if let (false, Some(set)) = (sets.contains_key(&lane.set()), settings.own_set(*lane)) {
                sets.insert(lane.set(), set);
            }
        }
        sets
    }

    /// The keys of each lane.
    pub(super) fn keys(&self) -> Vec<Vec<&str>> {
        self.limited.iter().map(|(_, keys)| keys.iter().map(AsRef::as_ref).collect()).collect()
    }

    /// The keys of the states of this lane's limits.
    pub(super) fn keys_of(&self, lane: LaneId) -> Vec<&str> {
        let found = self.limited.iter().find(|(other, _)| *other == lane);
        found.map(|(_, keys)| keys.iter().map(AsRef::as_ref).collect()).unwrap_or_default()
    }

    /// The lanes as a call names them.
    pub(super) fn lanes<'a>(
        &self,
        sets: &'a HashMap<usize, LimitSet>,
        keys: &'a [Vec<&'a str>],
    ) -> Vec<Lane<'a>> {
        let lanes = self.limited.iter().zip(keys);
        let all: Vec<_> = lanes
            .filter_map(|((lane, _), keys)| Some(Lane { limits: sets.get(&lane.set())?, keys }))
            .collect();
        debug_assert_eq!(all.len(), self.limited.len(), "a lane that has keys has limits");
        all
    }

    /// Whether the call was granted the most slots that it may have.
    pub(crate) fn is_full(&self, granted: usize) -> bool {
        u32::try_from(granted).is_ok_and(|granted| granted >= self.most)
    }

    /// The lanes of the waiters of a call.
    pub(super) fn of_call<'a>(&'a self, all: &'a [Lane<'a>]) -> Lanes<'a> {
        Lanes { all, of: &self.of, lead: self.lead, most: self.most }
    }
}
