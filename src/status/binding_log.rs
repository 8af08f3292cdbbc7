//! Counts the time that each reason holds jobs back, and logs a reason that lasts. It has no I/O but the log.

use std::time::Duration;

use metrics::counter;
use paced::dispatch::{Binding, Snapshot};
use paced::{failpoint, metric};
use tokio::time::Instant;

/// How long a reason lasts before it is logged.
const LASTING: Duration = Duration::from_secs(10);

/// The reasons that other code logs at once.
const LOGGED_ELSEWHERE: [&str; 5] = ["paused", "throttled", "store", "unreachable", "unauthorized"];

/// The reasons of a downstream that waits for its turn to begin, or is not consumed. It has nothing to release. What the broker
/// refuses is logged elsewhere.
const NOT_CONSUMED: [&str; 2] = ["starting", "broker"];

/// Every reason.
pub(super) const REASONS: [&str; 12] = [
    "idle",
    "starting",
    "limit",
    "concurrency",
    "paused",
    "throttled",
    "not-due",
    "store",
    "broker",
    "unreachable",
    "unauthorized",
    "terms",
];

/// The reason that holds back the jobs of one downstream at this replica, over time.
#[derive(Debug)]
pub(super) struct BindingLog {
    downstream: String,
    /// The reason and the limit that were seen last, and since when.
    current: Bound,
    since: Instant,
    /// The reason and the limit that were logged last.
    logged: Bound,
    /// The time up to which the seconds are counted.
    counted: Instant,
}

/// A reason, and the name of the limit where that is the reason.
type Bound = (&'static str, Option<String>);

/// Whether the queue of a downstream is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// It is, or need not be any more, since the downstream was removed.
    Consumed,
    /// It is not until the dispatcher, which ends, has been followed by another one.
    Restarting,
    /// It is not.
    Missing,
}

/// The reason that binds. It also considers the broker.
pub(super) fn reason(snapshot: &Snapshot, source: Source) -> &'static str {
    match (&snapshot.binding, source) {
        (Binding::Idle | Binding::NotDue { .. }, Source::Restarting) => "starting",
        (Binding::Idle | Binding::NotDue { .. }, Source::Missing) => "broker",
        (binding, _) => binding.reason(),
    }
}

impl BindingLog {
    /// Creates the series of this downstream, at 0, for these limits too.
    pub(super) fn new<'l>(downstream: &str, limits: impl Iterator<Item = &'l str>, now: Instant) -> Self {
        let log = Self {
            downstream: downstream.to_owned(),
            current: ("starting", None),
            since: now,
            logged: ("idle", None),
            counted: now,
        };
        REASONS.iter().filter(|reason| **reason != "limit").for_each(|reason| log.count(&(reason, None), 0));
        limits.for_each(|limit| log.count(&("limit", Some(limit.to_owned())), 0));
        log
    }

    /// Records the reason that binds at `now`. Returns whether to log it.
    pub(super) fn sample(&mut self, reason: &'static str, limit: Option<&str>, now: Instant) -> bool {
        if self.current.0 != reason || self.current.1.as_deref() != limit {
            (self.current, self.since) = ((reason, limit.map(str::to_owned)), now);
        }
        self.count_until(now);
        if now.saturating_duration_since(self.since) < failpoint::interval(LASTING)
            || self.logged == self.current
            || NOT_CONSUMED.contains(&reason)
        {
            return false;
        }
        self.logged = self.current.clone();
        !LOGGED_ELSEWHERE.contains(&reason)
    }

    /// Counts the whole seconds up to `now` for what was seen last.
    pub(super) fn count_until(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.counted).as_secs();
        self.counted += Duration::from_secs(seconds);
        self.count(&self.current, seconds);
    }

    /// Whether the log has nothing to say as long as the same is seen.
    pub(super) fn is_settled(&self) -> bool {
        self.logged == self.current
    }

    fn count(&self, (reason, limit): &Bound, seconds: u64) {
        let (name, downstream) = (metric::BINDING_SECONDS.name, self.downstream.clone());
        let counter = match limit {
            Some(limit) => {
                counter!(name, "downstream" => downstream, "reason" => *reason, "limit" => limit.clone())
            }
            None => counter!(name, "downstream" => downstream, "reason" => *reason),
        };
        counter.increment(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds at which the log says something.
    fn lines(samples: impl Iterator<Item = (&'static str, Option<&'static str>)>) -> Vec<u32> {
        let start = Instant::now();
        let mut log = BindingLog::new("billing", ["pace"].into_iter(), start);
        let samples = samples
            .zip(0..)
            .filter(|((reason, limit), second)| log.sample(reason, *limit, start + *second * SECOND));
        samples.map(|(_, second)| second).collect()
    }

    #[test]
    fn what_binds_for_long_is_logged_once() {
        let idle = std::iter::repeat_n(("idle", None), 30);
        let limit = std::iter::repeat_n(("limit", Some("pace")), 30);
        let other = std::iter::repeat_n(("limit", Some("quota")), 12);
        assert!(lines(idle.clone()).is_empty(), "nothing to do is no news at the start");
        assert_eq!(lines(limit.clone()), [10]);
        assert_eq!(lines(limit.clone().chain(other).chain(idle.clone())), [10, 40, 52]);
        let away = std::iter::repeat_n(("broker", None), 30);
        assert!(lines(away.clone().chain(idle.clone())).is_empty(), "nothing was held back");
        assert_eq!(lines(limit.chain(away).chain(idle)), [10, 70]);
    }

    #[test]
    fn what_changes_by_turns_is_not_logged() {
        let turns =
            (0..60).map(|second| if second % 9 < 8 { ("limit", Some("pace")) } else { ("idle", None) });
        assert!(lines(turns).is_empty());
        assert!(lines(std::iter::repeat_n(("paused", None), 30)).is_empty(), "it has a line of its own");
    }

    #[test]
    fn every_second_is_counted_once() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let start = Instant::now();
            let mut log = BindingLog::new("billing", ["pace"].into_iter(), start);
            for step in 0..=25 {
                log.sample("limit", Some("pace"), start + step * Duration::from_millis(400));
            }
            log.sample("idle", None, start + Duration::from_millis(12_900));
            assert!(!log.is_settled(), "it is to say that nothing waits any more");
            log.count_until(start + 30 * SECOND);
            log.sample("paused", None, start + 30 * SECOND);
        });
        let text = handle.render();
        let has = |line: &str| assert!(text.lines().any(|other| other == line), "{line} in {text}");
        has("paced_binding_seconds_total{downstream=\"billing\",reason=\"limit\",limit=\"pace\"} 10");
        has("paced_binding_seconds_total{downstream=\"billing\",reason=\"idle\"} 20");
        has("paced_binding_seconds_total{downstream=\"billing\",reason=\"broker\"} 0");
    }
}
