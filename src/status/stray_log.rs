//! Decides when the log names a replica whose file has other limits than those in force. It has no I/O but the log.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use paced::episode::Episode;
use paced::failpoint;
use tokio::time::Instant;

use super::summary::Identity;
use super::words;

/// How long a file differs before the log says so: while replicas are reloaded one after the other, some always do. It is
/// also how long a replica is missing before it counts as gone: after an absence of the store they return one by one.
const LASTING: Duration = Duration::from_secs(10);

/// The replicas that stray, by their ids.
#[derive(Debug, Default)]
pub(super) struct StrayLog {
    strays: BTreeMap<String, Stray>,
}

/// A replica whose file has other limits than those in force.
#[derive(Debug)]
struct Stray {
    host: String,
    /// Since when nothing was seen of it.
    missing_since: Option<Instant>,
    /// The downstreams whose limits differ.
    downstreams: BTreeMap<String, Episode>,
}

/// A line for the log about one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    replica: String,
    host: String,
    downstreams: Vec<String>,
    event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Its file has other limits than those in force.
    Differs,
    /// Its file has the limits in force again.
    Agrees,
    /// It has ended.
    IsGone,
}

impl StrayLog {
    /// Takes in which of these replicas stray from each downstream's limits in force. A downstream whose limits in force
    /// are not known is left out. Returns the lines that are due: one when a file has differed for [`LASTING`], and one
    /// when that is over.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        replicas: &[&Identity],
        strays: &BTreeMap<&str, HashSet<String>>,
    ) -> Vec<Line> {
        let mut lines = self.ended(now, replicas, strays);
        for replica in replicas {
            let names = strays.iter().filter(|(_, ids)| ids.contains(&replica.id)).map(|(name, _)| *name);
            let mut names = names.peekable();
            if names.peek().is_none() {
                continue;
            }
            let stray = self.strays.entry(replica.id.clone()).or_insert_with(|| Stray {
                host: replica.host.clone(),
                missing_since: None,
                downstreams: BTreeMap::new(),
            });
            let mut due = Vec::new();
            for name in names {
                let new = || Episode::after(failpoint::interval(LASTING));
                if stray.downstreams.entry(name.to_owned()).or_insert_with(new).note_at((), now) {
                    due.push(name.to_owned());
                }
            }
            lines.extend(line(&replica.id, stray, due, Event::Differs));
        }
        lines
    }

    /// How many replicas have strayed for [`LASTING`], so that the log has named them.
    pub(super) fn named(&self) -> usize {
        let is_named = |stray: &&Stray| stray.downstreams.values().any(Episode::is_named);
        self.strays.values().filter(is_named).count()
    }

    /// Forgets the differences that are over, and returns a line for each replica whose differences the log has
    /// named.
    fn ended(
        &mut self,
        now: Instant,
        replicas: &[&Identity],
        strays: &BTreeMap<&str, HashSet<String>>,
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        let here: HashSet<&str> = replicas.iter().map(|replica| replica.id.as_str()).collect();
        for (id, stray) in &mut self.strays {
            let is_here = here.contains(id.as_str());
            let missing_since = (!is_here).then(|| stray.missing_since.unwrap_or(now));
            stray.missing_since = missing_since;
            let is_gone = missing_since
                .is_some_and(|since| now.saturating_duration_since(since) >= failpoint::interval(LASTING));
            let agrees = |name: &str| is_here && strays.get(name).is_some_and(|ids| !ids.contains(id));
            let mut over = Vec::new();
            stray.downstreams.retain(|name, difference| {
                let is_over = is_gone || agrees(name);
                if is_over && difference.end() {
                    over.push(name.clone());
                }
                !is_over
            });
            let event = if is_gone { Event::IsGone } else { Event::Agrees };
            lines.extend(line(id, stray, over, event));
        }
        self.strays.retain(|_, stray| !stray.downstreams.is_empty());
        lines
    }
}

/// A line about this replica, if there is any downstream to name.
fn line(replica: &str, stray: &Stray, downstreams: Vec<String>, event: Event) -> Option<Line> {
    let (replica, host) = (replica.to_owned(), stray.host.clone());
    (!downstreams.is_empty()).then_some(Line { replica, host, downstreams, event })
}

impl Line {
    /// Writes the line.
    pub(super) fn log(&self) {
        let Self { replica, host, event, .. } = self;
        let downstreams = words::some_of(&self.downstreams);
        match event {
            Event::Differs => tracing::warn!(
                replica,
                host,
                downstreams,
                "a replica's file has other limits than those in force, and is not used; load the right file there"
            ),
            Event::Agrees => {
                tracing::info!(
                    replica,
                    host,
                    downstreams,
                    "the replica's file has the limits in force again"
                );
            }
            Event::IsGone => {
                tracing::info!(replica, host, downstreams, "the replica whose file had other limits is gone");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The replicas that stray from a downstream's limits.
    type Strays<'a> = (&'a str, &'a [&'a str]);

    /// A log over time.
    struct Bench {
        log: StrayLog,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { log: StrayLog::default(), start: Instant::now() }
        }

        /// Samples at this second. `strays` are the downstreams, each with the replicas that stray from it; returns the
        /// lines as replica, event and downstreams.
        fn at(
            &mut self,
            second: u64,
            replicas: &[&str],
            strays: &[Strays<'_>],
        ) -> Vec<(String, Event, String)> {
            let identity = |id: &&str| Identity { id: (*id).to_owned(), ..Identity::default() };
            let replicas: Vec<Identity> = replicas.iter().map(identity).collect();
            let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
            let strays = strays.iter().map(|(name, strays)| (*name, ids(strays))).collect();
            let now = self.start + Duration::from_secs(second);
            let lines = self.log.sample(now, &replicas.iter().collect::<Vec<_>>(), &strays);
            let parts = |line: Line| (line.replica, line.event, words::some_of(&line.downstreams));
            lines.into_iter().map(parts).collect()
        }
    }

    fn expected(replica: &str, event: Event, downstreams: &str) -> Vec<(String, Event, String)> {
        vec![(replica.to_owned(), event, downstreams.to_owned())]
    }

    #[test]
    fn a_file_that_differs_for_long_is_logged_once_and_its_end_once() {
        let mut bench = Bench::new();
        let both = ["a", "b"];
        let strays: [Strays<'_>; 3] = [("billing", &["b"]), ("crm", &["b"]), ("mail", &[])];
        for second in [0, 4, 8] {
            assert!(bench.at(second, &both, &strays).is_empty(), "{second}: a reload may be under way");
        }
        assert_eq!(bench.at(12, &both, &strays), expected("b", Event::Differs, "billing, crm"));
        for second in [16, 20, 3600] {
            assert!(bench.at(second, &both, &strays).is_empty(), "{second}: it is logged");
        }
        let rest: [Strays<'_>; 3] = [("billing", &[]), ("crm", &["b"]), ("mail", &[])];
        assert_eq!(bench.at(3604, &both, &rest), expected("b", Event::Agrees, "billing"));
        let none: [Strays<'_>; 3] = [("billing", &[]), ("crm", &[]), ("mail", &[])];
        assert_eq!(bench.at(3608, &both, &none), expected("b", Event::Agrees, "crm"));
        assert!(bench.at(3612, &both, &none).is_empty() && bench.log.strays.is_empty());
        // It differs once more.
        assert!(bench.at(4000, &both, &strays).is_empty());
        assert_eq!(bench.at(4010, &both, &strays), expected("b", Event::Differs, "billing, crm"));
    }

    #[test]
    fn a_file_that_differs_for_a_moment_is_not_logged() {
        let mut bench = Bench::new();
        let strays: [Strays<'_>; 1] = [("billing", &["a", "b"])];
        assert!(bench.at(0, &["a", "b"], &strays).is_empty());
        assert!(bench.at(9, &["a", "b"], &[("billing", &[])]).is_empty(), "neither was logged");
        assert!(bench.at(10, &["a", "b"], &strays).is_empty());
        assert!(bench.at(19, &["a", "b"], &strays).is_empty(), "the time begins again");
        assert_eq!(bench.at(20, &["a", "b"], &strays).len(), 2);
    }

    #[test]
    fn a_replica_is_gone_when_it_is_missing_for_long() {
        let mut bench = Bench::new();
        let strays: [Strays<'_>; 1] = [("billing", &["b"])];
        bench.at(0, &["a", "b"], &strays);
        assert_eq!(bench.at(10, &["a", "b"], &strays), expected("b", Event::Differs, "billing"));
        let without: [Strays<'_>; 1] = [("billing", &[])];
        assert!(bench.at(14, &["a"], &without).is_empty());
        assert!(bench.at(18, &["a", "b"], &strays).is_empty(), "it was missing for a moment");
        assert!(bench.at(22, &["a"], &without).is_empty());
        assert_eq!(bench.at(32, &["a"], &without), expected("b", Event::IsGone, "billing"));
        assert!(bench.at(36, &["a"], &without).is_empty());
    }

    #[test]
    fn while_the_limits_in_force_are_not_known_nothing_is_logged() {
        let mut bench = Bench::new();
        let strays: [Strays<'_>; 1] = [("billing", &["b"])];
        bench.at(0, &["b"], &strays);
        bench.at(10, &["b"], &strays);
        assert!(bench.at(14, &["b"], &[]).is_empty());
        assert!(bench.at(18, &["b"], &strays).is_empty(), "it is not logged again either");
        assert_eq!(bench.at(22, &["b"], &[("billing", &[])]), expected("b", Event::Agrees, "billing"));
    }

    #[test]
    fn a_line_names_some_of_many_downstreams() {
        let mut bench = Bench::new();
        let names: Vec<String> = (10..35).map(|number| format!("d{number}")).collect();
        let by: &[&str] = &["b"];
        let strays: Vec<Strays<'_>> = names.iter().map(|name| (name.as_str(), by)).collect();
        bench.at(0, &["b"], &strays);
        let downstreams = "d10, d11, d12, d13, d14, d15, d16, d17, d18, d19 and 15 more";
        assert_eq!(bench.at(10, &["b"], &strays), expected("b", Event::Differs, downstreams));
    }
}
