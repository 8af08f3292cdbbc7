//! Judges a run by the log of the API.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use paced::Rate;

use crate::rig::REPLICA;
use crate::support::api::Arrival;
use crate::support::count::{self, Tally, busiest, effective_rate, span, windows};
use crate::support::site::compare;
use crate::watch::nanos;

/// The lengths of the windows in which requests are counted.
pub(crate) const WINDOWS: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(100)];

/// The longest transit of a request while the machine does not stall.
const ON_ITS_WAY: Duration = Duration::from_millis(10);

/// A run that has ended.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    jobs: usize,
    /// The highest limit of the run.
    rate: Rate,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) stamps: Vec<u64>,
    /// When replicas handed jobs over. Those of a replica's last moments are missing where it was killed.
    pub(crate) handed_over: Vec<u64>,
    /// How late each of these was by its replica's last look at the clock, by when it was handed over.
    late: HashMap<u64, Duration>,
    tally: Tally,
    /// When the machine itself stood still.
    stalls: Vec<Range<u64>>,
    /// The warnings of the replicas.
    log: String,
}

/// A job that was handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOver {
    /// When the replica read the clock for the last time, on the clock of the arrivals.
    pub(crate) at: u64,
    /// How late it was by that look: an interval at most.
    pub(crate) late: Duration,
}

/// An expected excess of requests during a period.
#[derive(Clone, Debug)]
pub(crate) struct Excuse {
    pub(crate) at: Range<u64>,
    pub(crate) extra: usize,
}

/// The fullest window, and how many requests it might have held.
#[derive(Clone, Copy, Debug, Default)]
struct Busiest {
    count: usize,
    most: usize,
}

/// The most requests that a window may hold: its slots, those handed over late within their tolerance, and
/// one that the network held up for as long as an interval (202 a second and 22 in 100 ms at 200/s).
pub(crate) fn most(rate: Rate, window: Duration) -> usize {
    count::allowed(rate, window) + 1
}

impl Run {
    pub(crate) fn new(
        (name, jobs, rate): (&'static str, usize, Rate),
        (arrivals, hand_overs): (Vec<Arrival>, Vec<HandOver>),
        stalls: Vec<Range<u64>>,
        log: String,
    ) -> Self {
        let stamps = arrivals.iter().map(|arrival| arrival.at).collect();
        let tally = compare("job", jobs, &arrivals);
        let late = hand_overs.iter().map(|hand_over| (hand_over.at, hand_over.late)).collect();
        let mut handed_over: Vec<u64> = hand_overs.iter().map(|hand_over| hand_over.at).collect();
        handed_over.sort_unstable();
        Self { name, jobs, rate, arrivals, stamps, handed_over, late, tally, stalls, log }
    }

    /// Asserts that every job came exactly once.
    #[track_caller]
    pub(crate) fn assert_once(&self) {
        let Tally { lost, doubled, strange } = &self.tally;
        assert!(lost.is_empty() && strange.is_empty(), "lost {lost:?}, strange {strange:?}; {self}");
        assert!(doubled.is_empty(), "doubled {doubled:?}; {self}");
    }

    /// Asserts that every job came, and at most this many twice.
    #[track_caller]
    pub(crate) fn assert_none_lost(&self, most_doubled: usize) {
        let Tally { lost, doubled, strange } = &self.tally;
        assert!(lost.is_empty() && strange.is_empty(), "lost {lost:?}, strange {strange:?}; {self}");
        assert!(doubled.len() <= most_doubled, "doubled {doubled:?}, at most {most_doubled}; {self}");
    }

    /// Counts only the requests that were served, for jobs that are tried more than once.
    pub(crate) fn count_served(&mut self, served: &[String]) {
        let published: Vec<String> = (0..self.jobs).map(|n| format!("job-{n}")).collect();
        self.tally = count::tally(published.iter().map(String::as_str), served.iter().map(String::as_str));
    }

    /// Asserts that no window holds more than is allowed: hand-overs, which paced alone decides on (201 a second and 21 in
    /// 100 ms at 200/s), and requests, which the way to the API moves (see [`most`]).
    #[track_caller]
    pub(crate) fn assert_paced(&self) {
        self.judge(0, &[]);
    }

    /// [`Run::assert_paced`], from this time on.
    #[track_caller]
    pub(crate) fn assert_paced_since(&self, from: u64) {
        self.judge(from, &[]);
    }

    /// [`Run::assert_paced`]; a window that reaches over an excuse may hold that many more.
    #[track_caller]
    pub(crate) fn assert_paced_but(&self, excuses: &[Excuse]) {
        self.judge(0, excuses);
    }

    /// Checks the windows. Where the first request of one was held up, since a processor of this machine was not available
    /// for longer than an interval, it may hold as many more as come in for that long: see [`Run::held_up`].
    #[track_caller]
    fn judge(&self, from: u64, excuses: &[Excuse]) {
        assert!(
            self.handed_over.len() >= self.stamps.len() * 95 / 100,
            "{} are logged",
            self.handed_over.len()
        );
        let since = |all: &[u64]| all.partition_point(|at| *at < from);
        let requests = &self.stamps[since(&self.stamps)..];
        let handed_over = &self.handed_over[since(&self.handed_over)..];
        for window in WINDOWS {
            for held in windows(handed_over, window) {
                // A replica may lose its processor within its last look, which reads two clocks. By one of them a job may be
                // late by nearly an interval, so that a shorter stall is enough for one more.
                let late = self.late.get(&held[0]).copied().unwrap_or_default();
                let most = count::allowed(self.rate, window) + self.held_up(held[0], late);
                self.assert_within(held, most, excuses, || "handed over".to_owned());
            }
            for held in windows(requests, window) {
                let most = most(self.rate, window) + self.held_up(held[0], Duration::ZERO);
                self.assert_within(held, most, excuses, || self.described(held[0]));
            }
        }
    }

    /// Asserts that a window holds at most this many, and what is excused.
    #[track_caller]
    fn assert_within(&self, held: &[u64], most: usize, excuses: &[Excuse], what: impl Fn() -> String) {
        let (first, last) = (held[0], held[held.len() - 1]);
        let excused = excuses.iter().filter(|excuse| excuse.at.start <= last && first <= excuse.at.end);
        let extra: usize = excused.map(|excuse| excuse.extra).sum();
        assert!(
            held.len() <= most + extra,
            "{} in {:?} from {:?} on ({}), at most {most} + {extra}; {self}",
            held.len(),
            Duration::from_nanos(last - first),
            Duration::from_nanos(first.saturating_sub(self.stamps[0])),
            what(),
        );
    }

    /// Asserts that no request came later after the one before than this, plus the stalls of the machine meanwhile.
    #[track_caller]
    pub(crate) fn assert_no_gap_over(&self, longest: Duration) {
        for pair in self.stamps.windows(2) {
            let gap = Duration::from_nanos(pair[1] - pair[0]);
            let room = longest + self.stood_still(pair[0]..pair[1]);
            assert!(gap <= room, "a gap of {gap:?}, at most {room:?}; {self}");
        }
    }

    /// The longest time between two requests, the later of which came in this period.
    pub(crate) fn longest_gap(&self, during: Range<u64>) -> Duration {
        let gaps = self.stamps.windows(2).filter(|pair| during.contains(&pair[1]));
        Duration::from_nanos(gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or(0))
    }

    /// The time from `since` to the first request after it.
    pub(crate) fn resumed_after(&self, since: u64) -> Duration {
        let first = self.stamps.iter().find(|at| **at >= since).expect("a request");
        Duration::from_nanos(first - since)
    }

    /// The number of requests in this period.
    pub(crate) fn count(&self, during: Range<u64>) -> usize {
        self.stamps.iter().filter(|at| during.contains(at)).count()
    }

    /// The instants of one replica's requests.
    pub(crate) fn of(&self, replica: usize) -> impl Iterator<Item = u64> {
        let name = replica.to_string();
        let own = self.arrivals.iter().filter(move |arrival| arrival.header(REPLICA) == Some(&name));
        own.map(|arrival| arrival.at)
    }

    /// How many intervals the request that came at this time was held up by this machine, beside what it was late by: in
    /// transit it needs a processor in the replica, and one in the API. Requests that are on time close up to it.
    fn held_up(&self, at: u64, late: Duration) -> usize {
        let still = self.still(at - nanos(ON_ITS_WAY)..at);
        if still.is_zero() { 0 } else { self.intervals(still + late) }
    }

    /// How many slots of this period may have been missed since no processor was available.
    pub(crate) fn missed(&self, during: Range<u64>) -> usize {
        self.intervals(self.still(during))
    }

    fn intervals(&self, span: Duration) -> usize {
        usize::try_from(span.as_nanos() / self.rate.interval().as_nanos()).unwrap()
    }

    /// For how long no processor was available around this period, in all.
    fn still(&self, during: Range<u64>) -> Duration {
        Duration::from_nanos(self.met(during).map(|stall| stall.end - stall.start).sum())
    }

    /// What is known of the request that came at this time: the first one of a connection had to be accepted first.
    fn described(&self, at: u64) -> String {
        let Some(found) = self.arrivals.iter().position(|arrival| arrival.at == at) else {
            return String::new();
        };
        let (replica, connection) = (self.arrivals[found].header(REPLICA), self.arrivals[found].connection);
        let before = self.arrivals[..found].iter().filter(|arrival| arrival.connection == connection).count();
        let since = at - found.checked_sub(1).map_or(at, |before| self.arrivals[before].at);
        format!(
            "from replica {}, after {before} others on its connection, {:?} after the one before",
            replica.unwrap_or("?"),
            Duration::from_nanos(since)
        )
    }

    fn met(&self, during: Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        self.stalls.iter().filter(move |stall| stall.start <= during.end && during.start <= stall.end)
    }

    /// How long no processor was available in this period.
    fn stood_still(&self, at: Range<u64>) -> Duration {
        Duration::from_nanos(self.met(at).map(|stall| stall.end - stall.start).max().unwrap_or(0))
    }

    fn busiest(&self, window: Duration) -> Busiest {
        let fullest = windows(&self.stamps, window).max_by_key(|held| held.len());
        fullest.map_or_else(Busiest::default, |held| Busiest {
            count: held.len(),
            most: most(self.rate, window) + self.held_up(held[0], Duration::ZERO),
        })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [second, tenth] = WINDOWS.map(|window| self.busiest(window));
        let [released, shortly] = WINDOWS.map(|window| busiest(&self.handed_over, window));
        let gap = self.longest_gap(0..u64::MAX).as_millis();
        let still = self.stalls.iter().map(|stall| stall.end - stall.start).max().unwrap_or(0);
        let Tally { lost, doubled, .. } = &self.tally;
        write!(
            f,
            "{}: {} requests in {:.2} s ({:.1}/s); busiest 1 s {} (of {}), 100 ms {} (of {}); handed over {released} and {shortly}; \
             longest gap {gap} ms; \
             {} lost, {} doubled; the machine stood still for {:.1} ms at most",
            self.name,
            self.stamps.len(),
            span(&self.stamps).as_secs_f64(),
            effective_rate(&self.stamps),
            second.count,
            second.most,
            tenth.count,
            tenth.most,
            lost.len(),
            doubled.len(),
            Duration::from_nanos(still).as_secs_f64() * 1e3,
        )
    }
}

impl Drop for Run {
    /// Prints the figures, also of a run that failed, and then the warnings of the replicas too.
    fn drop(&mut self) {
        eprintln!("{self}");
        if std::thread::panicking() {
            eprintln!("{}", self.log);
        }
    }
}
