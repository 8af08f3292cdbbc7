//! The parked jobs of a downstream, by what they wait for and until when.

use std::collections::BTreeMap;

use super::StoreError;
use super::error::ensure;
use super::fleet::MAX_PARKED;

/// The most groups of a downstream that a store keeps, and the most changes in one call. Jobs of further groups are in none.
pub const MAX_PARKED_GROUPS: usize = 1_000;

/// The parked jobs of a downstream that wait for the same, until the same hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParkedGroup {
    /// The hour until which they wait, counted since the Unix epoch.
    pub hour: i64,
    /// What they wait for: a number that is opaque to the store.
    pub kind: u8,
    /// The number of jobs. In a change it is the number that is added; a negative one is taken away.
    pub jobs: i64,
}

/// A call about parked jobs; see [`Store::parked_groups`](super::Store::parked_groups).
#[derive(Clone, Copy, Debug)]
pub struct ParkedGroups<'a> {
    /// The groups of earlier hours are forgotten.
    pub first_hour: i64,
    /// What has changed, at most [`MAX_PARKED_GROUPS`].
    pub changes: &'a [ParkedGroup],
}

/// The latest hour: the store in Redis has numbers up to 2^53.
const LATEST_HOUR: i64 = 1 << 40;

impl ParkedGroups<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] for too many changes, or an hour that no time has.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let changes = self.changes.len();
        ensure(changes <= MAX_PARKED_GROUPS, || {
            format!("{changes} changes of parked jobs; at most {MAX_PARKED_GROUPS} fit into a call")
        })?;
        let mut hours = self.changes.iter().map(|change| change.hour).chain([self.first_hour]);
        ensure(hours.all(|hour| (0..=LATEST_HOUR).contains(&hour)), || {
            "an hour before the Unix epoch, or too far away".to_owned()
        })
    }

    /// The groups after these changes to `former`, in their order. `lua/parked_groups.lua` has the same rules.
    pub(super) fn apply(&self, former: &[ParkedGroup]) -> Vec<ParkedGroup> {
        let mut groups = BTreeMap::<(i64, u8), i64>::new();
        for ParkedGroup { hour, kind, jobs } in former.iter().chain(self.changes).copied() {
            if let Some(known) = groups.get_mut(&(hour, kind)) {
                *known = known.saturating_add(jobs).clamp(0, MAX_PARKED);
            } else if jobs > 0 && hour >= self.first_hour && groups.len() < MAX_PARKED_GROUPS {
                groups.insert((hour, kind), jobs.min(MAX_PARKED));
            }
        }
        let groups = groups.into_iter().map(|((hour, kind), jobs)| ParkedGroup { hour, kind, jobs });
        groups.filter(|group| group.jobs > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(hour: i64, kind: u8, jobs: i64) -> ParkedGroup {
        ParkedGroup { hour, kind, jobs }
    }

    fn applied(first_hour: i64, changes: &[ParkedGroup], former: &[ParkedGroup]) -> Vec<ParkedGroup> {
        ParkedGroups { first_hour, changes }.apply(former)
    }

    #[test]
    fn changes_are_added_and_no_group_is_below_zero() {
        let changes = [group(8, 1, 2), group(7, 1, 3), group(7, 0, 1), group(7, 1, -1)];
        let groups = applied(7, &changes, &[]);
        assert_eq!(groups, [group(7, 0, 1), group(7, 1, 2), group(8, 1, 2)]);
        let changes = [group(7, 1, -9), group(8, 1, 1), group(9, 0, -1)];
        assert_eq!(applied(7, &changes, &groups), [group(7, 0, 1), group(8, 1, 3)]);
        assert_eq!(applied(8, &[], &groups), [group(8, 1, 2)], "those of earlier hours are forgotten");
        assert_eq!(applied(0, &[group(1, 0, i64::MAX)], &[group(1, 0, 5)]), [group(1, 0, MAX_PARKED)]);
    }

    #[test]
    fn there_are_so_many_groups_and_changes_at_most() {
        let most = i64::try_from(MAX_PARKED_GROUPS).unwrap();
        let all: Vec<ParkedGroup> = (0..most).map(|hour| group(hour, 0, 1)).collect();
        let groups = applied(0, &[group(0, 1, 1), group(5, 0, 1)], &all);
        assert_eq!((groups.len(), groups[5].jobs), (MAX_PARKED_GROUPS, 2), "a further one is not counted");
        let changes = [all.as_slice(), &[group(0, 1, 1)]].concat();
        let problem = |first_hour: i64, changes: &[ParkedGroup]| {
            let checked = ParkedGroups { first_hour, changes }.check();
            checked.map_or_else(|error| error.to_string(), |()| String::new())
        };
        assert_eq!(problem(0, all.as_slice()), "");
        assert!(problem(0, changes.as_slice()).contains("1001 changes of parked jobs"));
        for hour in [-1, LATEST_HOUR + 1] {
            assert!(problem(0, &[group(hour, 0, 1)]).contains("an hour before"), "{hour}");
            assert!(problem(hour, &[]).contains("an hour before"), "{hour}");
        }
    }
}
