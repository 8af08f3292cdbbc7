//! How many jobs of a downstream are parked, by what they wait for and until when.

use paced::api::Millis;
use paced::api::state::ParkedBy;
use paced::dispatch::ParkReason;
use paced::store::ParkedGroup;
use paced::time::Micros;
use tokio::time::Instant;

/// The milliseconds in an hour.
const HOUR: Millis = 3_600_000;

/// For how many hours groups are kept after their own hour: the clock of a replica may be ahead, and must not remove
/// groups that other replicas still show.
const LATE_HOURS: i64 = 24;

/// The parked jobs of a downstream, as the store has counted them.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    /// When the store was asked.
    pub(super) at: Instant,
    /// The number of all.
    pub(super) jobs: i64,
    /// The jobs whose reason is known, in the order of their hours.
    groups: Vec<ParkedGroup>,
}

impl Counted {
    /// What the store has answered just now.
    pub(super) fn new(jobs: i64, groups: Vec<ParkedGroup>) -> Self {
        Self { at: Instant::now(), jobs, groups }
    }

    /// The answer of the store after `former`, whose groups stay if only the number is known.
    pub(super) fn after(former: Option<Self>, jobs: i64, groups: Option<Vec<ParkedGroup>>) -> Self {
        let groups = groups.or(former.map(|former| former.groups)).unwrap_or_default();
        Self::new(jobs, groups)
    }

    /// The jobs by the reason for which they wait, without those whose hour is over `at` this time: these have come
    /// home, or are late and may come at any time.
    pub(super) fn by_reason(&self, at: Millis) -> Vec<ParkedBy> {
        let by = |reason: ParkReason| {
            let is_ahead = |group: &&ParkedGroup| group.kind == reason.kind() && end(group.hour) > at;
            let mut groups = self.groups.iter().filter(is_ahead);
            let first = groups.next()?;
            let (jobs, last) =
                groups.fold((first.jobs, first), |(jobs, _), group| (jobs.saturating_add(group.jobs), group));
            Some(ParkedBy {
                reason: reason.as_str().to_owned(),
                jobs,
                first: end(first.hour),
                first_jobs: first.jobs,
                last: end(last.hour),
            })
        };
        ParkReason::ALL.into_iter().filter_map(by).collect()
    }
}

/// The end of an hour that is counted since the Unix epoch.
const fn end(hour: i64) -> Millis {
    hour.saturating_add(1).saturating_mul(HOUR)
}

/// The first hour whose groups are kept.
pub(super) fn first_hour(now: Micros) -> i64 {
    (now.0 / 1000 / HOUR - LATE_HOURS).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn jobs_are_shown_by_their_reason_with_the_first_hour_and_the_last() {
        let group = |hour, reason: ParkReason, jobs| ParkedGroup { hour, kind: reason.kind(), jobs };
        let counted = Counted::new(
            20,
            vec![
                group(7, ParkReason::Limit, 13),
                group(8, ParkReason::NotBefore, 2),
                group(30, ParkReason::NotBefore, 3),
                ParkedGroup { hour: 31, kind: 99, jobs: 1 },
            ],
        );
        let by = |reason: &str, jobs, (first, first_jobs), last| ParkedBy {
            reason: reason.to_owned(),
            jobs,
            first: first * HOUR,
            first_jobs,
            last: last * HOUR,
        };
        assert_eq!(counted.by_reason(0), [by("not-before", 5, (9, 2), 31), by("limit", 13, (8, 13), 8)]);
        // A group of a past hour may have a job left. It does not hide the groups of later hours.
        let later = [by("not-before", 3, (31, 3), 31)];
        for (at, shown) in [(9 * HOUR - 1, 5), (9 * HOUR, 3), (31 * HOUR - 1, 3)] {
            assert_eq!(counted.by_reason(at)[0].jobs, shown, "{at}");
        }
        assert_eq!(counted.by_reason(9 * HOUR), later);
        assert!(counted.by_reason(31 * HOUR).is_empty());
        assert!(Counted::new(20, Vec::new()).by_reason(0).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_fails_hides_no_groups() {
        let groups = vec![ParkedGroup { hour: 7, kind: ParkReason::Limit.kind(), jobs: 13 }];
        let first = Counted::after(None, 20, Some(groups));
        let jobs = |counted: &Counted| counted.by_reason(0).first().map(|by| by.jobs);
        let second = Counted::after(Some(first), 21, None);
        assert_eq!((second.jobs, jobs(&second)), (21, Some(13)));
        assert_eq!(jobs(&Counted::after(Some(second), 22, Some(Vec::new()))), None);
        assert_eq!(jobs(&Counted::after(None, 5, None)), None);
    }

    #[test]
    fn groups_are_kept_for_a_day_after_their_hour() {
        assert_eq!(first_hour(Micros(100 * HOUR * 1000)), 76);
        assert_eq!(first_hour(Micros(0)), 0);
    }
}
