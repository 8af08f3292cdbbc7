//! The lanes that exist, by the values of jobs, and those of them that no job has any more. It is pure.

use std::collections::HashMap;
use std::sync::Arc;

/// The number of lanes from which those without jobs are searched for and removed.
pub(super) const SWEEP: usize = 1024;

/// The lanes of each set and values.
#[derive(Debug)]
pub(super) struct KnownLanes {
    by_values: HashMap<(usize, Arc<[String]>), usize>,
    /// Rows of lanes that were removed, which new lanes may take.
    free: Vec<usize>,
    /// The number of lanes from which those without jobs are removed.
    sweep_at: usize,
    /// How many searches found no lane since the last removal.
    missed: usize,
    /// The values of jobs that have none.
    nothing: Arc<[String]>,
}

impl Default for KnownLanes {
    fn default() -> Self {
        let nothing = Arc::from([]);
        Self { by_values: HashMap::new(), free: Vec::new(), sweep_at: SWEEP, missed: 0, nothing }
    }
}

impl KnownLanes {
    pub(super) fn len(&self) -> usize {
        self.by_values.len()
    }

    /// The values of jobs that have none: a lane of these is never removed.
    pub(super) fn nothing(&self) -> Arc<[String]> {
        Arc::clone(&self.nothing)
    }

    /// All lanes with their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Arc<[String]>)> {
        self.by_values.iter().map(|((_, values), lane)| (*lane, values))
    }

    /// The same, as copies.
    pub(super) fn all(&self) -> Vec<(usize, Arc<[String]>)> {
        self.iter().map(|(lane, values)| (lane, Arc::clone(values))).collect()
    }

    /// Returns the lane with these values, if there is one.
    pub(super) fn get(&self, set: usize, values: &Arc<[String]>) -> Option<usize> {
        self.by_values.get(&(set, Arc::clone(values))).copied()
    }

    /// The values of a lane.
    pub(super) fn values(&self, lane: usize) -> Option<&Arc<[String]>> {
        self.iter().find(|(other, _)| *other == lane).map(|(_, values)| values)
    }

    /// Returns the lane with these values, which are replaced by its own.
    pub(super) fn find(&mut self, set: usize, values: &mut Arc<[String]>) -> Option<usize> {
        let Some(((_, own), &lane)) = self.by_values.get_key_value(&(set, Arc::clone(values))) else {
            self.missed += 1;
            return None;
        };
        *values = Arc::clone(own);
        Some(lane)
    }

    /// Adds a lane in a free row, or else in the row `end`.
    pub(super) fn add(&mut self, set: usize, values: &Arc<[String]>, end: usize) -> usize {
        let lane = self.free.pop().unwrap_or(end);
        self.by_values.insert((set, Arc::clone(values)), lane);
        lane
    }

    /// Whether it is time to remove lanes that no job has, where there may be `most`. The removal examines each lane
    /// once, after as many searches without a result.
    pub(super) fn is_to_sweep(&self, most: usize) -> bool {
        let len = self.by_values.len();
        len >= self.sweep_at || (len >= most && self.missed >= len)
    }

    /// Removes the lanes that no job has, except those that are `in_call`, and returns them.
    pub(super) fn sweep(&mut self, in_call: impl Fn(usize) -> bool) -> Vec<usize> {
        let Self { by_values, free, .. } = self;
        let before = free.len();
        by_values.retain(|(_, values), lane| {
            let stays = Arc::strong_count(values) > 1 || in_call(*lane);
            if !stays {
                free.push(*lane);
            }
            stays
        });
        (self.sweep_at, self.missed) = ((2 * self.by_values.len()).max(SWEEP), 0);
        self.free[before..].to_vec()
    }
}
