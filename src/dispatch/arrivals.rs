//! The order of jobs, and the instants at which those that wait for a time may go.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::source::Stay;
use crate::time::Micros;

/// The most times that are remembered. Beyond them only the order of jobs for the same time is lost.
const MAX_DUES: usize = 4096;

/// Two instants for one time of the wall clock count as the same if they are no further apart than this. Otherwise a
/// clock was set, or the machine was suspended.
const SAME: Duration = Duration::from_millis(10);

/// The low bits of a position. They order jobs that were first taken in at the same time.
const COUNTER_BITS: u32 = 12;

/// Returns when the job with this position was first taken in, by the wall clock.
pub(super) fn first_seen(position: u64) -> Micros {
    Micros(i64::try_from(position >> COUNTER_BITS).unwrap_or(i64::MAX))
}

/// Gives jobs their positions in the order of their arrival.
///
/// A position is the time at which the job was first taken in, so that a job which was parked meanwhile comes before
/// those that arrived after it.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// When the latest job was first taken in.
    latest: Micros,
    count: u64,
    /// The instants of times by the wall clock, so that jobs for the same time have the same instant.
    dues: BTreeMap<Micros, Instant>,
}

impl Arrivals {
    /// Returns when a job was first taken in that arrives `now`, by the wall clock, and its position.
    pub(super) fn next(&mut self, stay: Option<&Stay>, now: Micros) -> (Micros, u64) {
        let first_seen = match stay {
            // A header may have any value.
            Some(stay) => stay.first_seen.min(now),
            None => {
                // No two jobs have the same time, also where the clock is set back.
                self.latest = now.max(Micros(self.latest.0 + 1));
                self.latest
            }
        };
        (first_seen, self.position(first_seen))
    }

    /// Returns the position behind all jobs that arrive within `span` from now, also where the clock was set back.
    pub(super) fn position_at(&mut self, now: Micros, span: Duration) -> u64 {
        self.position(now.max(self.latest).plus(span))
    }

    fn position(&mut self, first_seen: Micros) -> u64 {
        self.count += 1;
        let since = u64::try_from(first_seen.0).unwrap_or(0);
        (since << COUNTER_BITS) | (self.count & ((1 << COUNTER_BITS) - 1))
    }

    /// Returns the instant of the time `at`, which is ahead of `now`; `now` is one instant on both clocks.
    pub(super) fn due(&mut self, at: Micros, now: (Micros, Instant)) -> Instant {
        let fresh = now.1 + at.since(now.0);
        // Where the wall clock was set meanwhile, the remembered instant is obsolete.
        let known = self
            .dues
            .get(&at)
            .copied()
            .filter(|known| known.max(&fresh).saturating_duration_since(*known.min(&fresh)) <= SAME);
        let due = known.unwrap_or(fresh);
        self.dues = self.dues.split_off(&now.0);
        if self.dues.len() < MAX_DUES {
            self.dues.insert(at, due);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::ParkReason;

    fn parked(first_seen: Micros) -> Stay {
        Stay {
            until: Micros(0),
            reason: ParkReason::Limit,
            attempts: 0,
            throttled: 0,
            refused: 0,
            unreadable: 0,
            first_seen,
            assigned_id: None,
            versions: None,
        }
    }

    #[test]
    fn jobs_are_in_the_order_in_which_they_were_first_taken_in() {
        let (mut arrivals, now) = (Arrivals::default(), Micros(1_800_000_000_000_000));
        let first: Vec<_> = (0..5000).map(|_| arrivals.next(None, now)).collect();
        assert!(first.is_sorted(), "also at the same time");
        let back = arrivals.next(None, now.minus(Duration::from_secs(60)));
        assert!(back > first[4999], "and after the clock was set back");
        let (seen, place) = first[2500];
        assert_eq!(super::first_seen(place), seen);
        let later = now.plus(Duration::from_secs(60));
        let again = arrivals.next(Some(&parked(seen)), later);
        assert_eq!(again.0, seen);
        assert_eq!(arrivals.next(Some(&parked(Micros::MAX)), later).0, later, "a header may say anything");
        assert!(again.1 > first[2499].1 && again.1 < first[2501].1 && again.1 != place);
        let at_once = [(); 3].map(|()| arrivals.next(Some(&parked(Micros(7))), now).1);
        assert!(at_once.is_sorted_by(|one, next| one < next), "{at_once:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_for_the_same_time_have_the_same_instant() {
        let (mut arrivals, now, start) = (Arrivals::default(), Micros(5_000_000), Instant::now());
        let (ms, at) = (Duration::from_millis(1), Micros(6_000_000));
        let due = arrivals.due(at, (now, start));
        assert_eq!(due, start + 1000 * ms);
        assert_eq!(arrivals.due(at, (now.plus(3 * ms), start + 4 * ms)), due);
        let set_back = arrivals.due(at, (now.minus(500 * ms), start));
        assert_eq!(set_back, start + 1500 * ms, "the clock was set back");
        assert_eq!(arrivals.due(Micros(5_500_000), (now, start)), start + 500 * ms);
        for later in 0..10_000 {
            arrivals.due(at.plus(later * ms), (now, start));
        }
        assert_eq!(arrivals.dues.len(), MAX_DUES);
        arrivals.due(at.plus(20_000 * ms), (at.plus(10_000 * ms), start));
        assert_eq!(arrivals.dues.len(), 1, "times that have passed are forgotten");
    }
}
