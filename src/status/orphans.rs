//! Finds the downstreams that nobody serves any more, and decides when the log names them. It has no I/O but the log.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::api::state::Orphan;
use paced::failpoint;
use paced::store::Unserved;
use paced::time::Micros;
use tokio::time::Instant;

use super::words;

/// A replica reports every eight seconds which downstreams it serves. A downstream that nobody reported for this long
/// is not served.
pub(crate) const UNSERVED: Duration = Duration::from_secs(20);

/// How long this replica must see that before the downstream is an orphan: a replica that is restarted, or that has lost the
/// store, is back by then. So an orphan is named within a minute.
const LASTING: Duration = Duration::from_secs(20);

/// The downstreams that nobody serves, as this replica sees them.
#[derive(Debug, Default)]
pub(super) struct Orphans(BTreeMap<String, Watched>);

/// A downstream that nobody serves.
#[derive(Clone, Copy, Debug)]
struct Watched {
    served_at: Micros,
    /// Since when this replica has seen that nobody serves it.
    since: Instant,
    /// Whether that has lasted, so that the log has named it.
    is_orphan: bool,
}

/// The lines that are due, each about these downstreams.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// This replica has seen for [`LASTING`] that nobody serves them.
    begun: Vec<String>,
    /// They are served again, or were deleted.
    ended: Vec<String>,
}

impl Orphans {
    /// Records which downstreams nobody serves now, as the store reports.
    pub(super) fn sample(&mut self, now: Instant, unserved: Vec<Unserved>) -> News {
        let mut before = std::mem::take(&mut self.0);
        let mut news = News::default();
        for Unserved { name, served_at } in unserved {
            let known = before.remove(&name);
            let since = known.map_or(now, |known| known.since);
            let was_orphan = known.is_some_and(|known| known.is_orphan);
            let is_orphan =
                was_orphan || now.saturating_duration_since(since) >= failpoint::interval(LASTING);
            if is_orphan && !was_orphan {
                news.begun.push(name.clone());
            }
            self.0.insert(name, Watched { served_at, since, is_orphan });
        }
        news.ended = before.into_iter().filter(|(_, known)| known.is_orphan).map(|(name, _)| name).collect();
        news
    }

    /// Records that the store has not answered. Other replicas may not have reached it either, so the time begins
    /// again.
    pub(super) fn interrupted(&mut self, now: Instant) {
        self.0.values_mut().for_each(|known| known.since = now);
    }

    /// The downstreams to report again to a store that has lost its state: no replica serves them, so no replica
    /// reports them.
    pub(super) fn recalled(&self) -> Vec<Unserved> {
        let unserved =
            |(name, known): (&String, &Watched)| Unserved { name: name.clone(), served_at: known.served_at };
        self.0.iter().map(unserved).collect()
    }

    /// The orphans, by name.
    pub(super) fn list(&self) -> Vec<Orphan> {
        let orphans = self.0.iter().filter(|(_, known)| known.is_orphan);
        let orphan = |(name, known): (&String, &Watched)| Orphan {
            name: name.clone(),
            since: (known.served_at > Micros(0)).then_some(known.served_at.0 / 1000),
        };
        orphans.map(orphan).collect()
    }
}

impl News {
    /// Writes the lines.
    pub(super) fn log(&self) {
        if !self.begun.is_empty() {
            tracing::warn!(
                downstreams = words::some_of(&self.begun),
                "no replica serves these downstreams any more, and their queues still take jobs: `paced downstream \
                 drain NAME --to OTHER` moves the jobs, `paced downstream delete NAME` deletes the queues"
            );
        }
        if !self.ended.is_empty() {
            let downstreams = words::some_of(&self.ended);
            tracing::info!(downstreams, "these downstreams are served again, or were deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The orphans over time.
    struct Bench {
        orphans: Orphans,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { orphans: Orphans::default(), start: Instant::now() }
        }

        fn after(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        /// Samples at this second; returns the downstreams of both lines.
        fn at(&mut self, second: u64, unserved: &[&str]) -> (String, String) {
            let unserved =
                unserved.iter().map(|name| Unserved { name: (*name).to_owned(), served_at: Micros(7_000) });
            let (now, unserved) = (self.after(second), unserved.collect());
            let News { begun, ended } = self.orphans.sample(now, unserved);
            (begun.join(" "), ended.join(" "))
        }

        fn names(&self) -> Vec<String> {
            self.orphans.list().into_iter().map(|orphan| orphan.name).collect()
        }
    }

    fn lines(begun: &str, ended: &str) -> (String, String) {
        (begun.to_owned(), ended.to_owned())
    }

    #[test]
    fn what_nobody_serves_for_long_is_named_once_and_so_is_its_end() {
        let mut bench = Bench::new();
        for second in [0, 4, 19] {
            assert_eq!(bench.at(second, &["old"]), lines("", ""), "{second}: a replica may be restarted");
            assert!(bench.names().is_empty());
        }
        assert_eq!(bench.at(20, &["old", "older"]), lines("old", ""));
        assert_eq!(bench.at(24, &["old", "older"]), lines("", ""), "it is named once");
        assert_eq!(bench.names(), ["old"]);
        assert_eq!(bench.orphans.list()[0].since, Some(7));
        assert_eq!(bench.at(40, &["old", "older"]), lines("older", ""));
        assert_eq!(bench.at(44, &["older"]), lines("", "old"));
        assert_eq!(bench.at(48, &[]), lines("", "older"));
        assert!(bench.names().is_empty());
        assert_eq!(bench.at(52, &["old"]), lines("", ""));
        assert_eq!(bench.at(72, &["old"]), lines("old", ""), "it is one once more");
    }

    #[test]
    fn what_is_soon_served_again_is_not_named() {
        let mut bench = Bench::new();
        bench.at(0, &["old"]);
        assert_eq!(bench.at(19, &[]), lines("", ""));
        assert_eq!(bench.at(20, &["old"]), lines("", ""), "the time begins again");
        assert_eq!(bench.at(39, &["old"]), lines("", ""));
        assert_eq!(bench.at(40, &["old"]), lines("old", ""));
    }

    #[test]
    fn an_absence_of_the_store_counts_for_nothing() {
        let mut bench = Bench::new();
        bench.at(0, &["old"]);
        let back = bench.after(600);
        bench.orphans.interrupted(back);
        assert_eq!(bench.at(604, &["old"]), lines("", ""), "who serves it may not be back yet");
        assert_eq!(bench.at(620, &["old"]), lines("old", ""));
        let back = bench.after(900);
        bench.orphans.interrupted(back);
        assert_eq!((bench.at(904, &["old"]), bench.names()), (lines("", ""), vec!["old".to_owned()]));
    }

    #[test]
    fn all_orphans_that_were_seen_are_reported_again_to_a_store() {
        let mut bench = Bench::new();
        bench.at(0, &["old"]);
        bench.at(20, &["new", "old"]);
        let names = |all: Vec<Unserved>| all.into_iter().map(|unserved| unserved.name).collect::<Vec<_>>();
        assert_eq!(names(bench.orphans.recalled()), ["new", "old"]);
        let since = |served_at| {
            let mut orphans = Orphans::default();
            let unserved = || vec![Unserved { name: "old".to_owned(), served_at }];
            orphans.sample(bench.start, unserved());
            orphans.sample(bench.after(20), unserved());
            orphans.list()[0].since
        };
        assert_eq!((since(Micros(0)), since(Micros(2_500))), (None, Some(2)));
    }
}
