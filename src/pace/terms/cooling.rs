//! One replica's part in the cool-down of a downstream that throttles and names no time: nothing is sent for a while,
//! then one replica sends one waiter as a probe. It has no I/O.
//!
//! | state | what happens | next state | report to the store |
//! |---|---|---|---|
//! | off | the downstream throttles a waiter | waiting | refused |
//! | off | the store has a cool-down | waiting | |
//! | waiting | its time has come, and a probe could go | waiting | a probe is wanted |
//! | waiting | the store grants the probe | probing | |
//! | waiting | another replica has it | waiting, until that lease ends | |
//! | probing | a third of the lease has passed | probing | a probe is wanted, which renews the lease |
//! | probing | the downstream throttles the probe | waiting, twice as long | refused |
//! | probing | it answers otherwise | off | over |
//! | probing | there is no answer, or nothing to send | waiting, as long as before | again |
//! | waiting, probing | the store has none any more | off | |
//!
//! While the store is away, a replica decides for itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::CoolDownCall;

/// The first wait.
const FIRST: Duration = Duration::from_secs(1);

/// How long the lease on the probe lasts. If its holder stops, another replica probes after that.
const LEASE: Duration = Duration::from_secs(5);

/// How often the lease is renewed.
const RENEWED: Duration = Duration::from_millis(1700);

/// One replica's part in the cool-down.
#[derive(Debug)]
pub(crate) struct Cooling {
    replica: Arc<str>,
    state: State,
    /// The longest wait; `None` where cool-downs are not followed, since the ends of sends are not reported.
    longest: Option<Duration>,
    /// How often a probe was refused.
    level: u32,
    /// Whether the probe has been sent, and its end is not known yet.
    is_sent: bool,
    /// A send that began before this instant shows nothing: a cool-down has ended since.
    since: Option<Instant>,
    /// The report for the store, until the store has confirmed it.
    unconfirmed: Option<CoolingReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Off,
    /// Nothing is sent before this instant; from then on a probe may be.
    Waiting(Instant),
    /// This replica has held the probe since the first instant, and renews its lease at the second.
    Probing(Instant, Instant),
}

/// A report to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoolingReport {
    /// A request was refused.
    Refused,
    /// The probe showed nothing.
    Again,
    /// The probe succeeded.
    Over,
    /// The probe is wanted, or a renewal of its lease.
    Wanted,
}

/// The cool-down that the store has, on this process's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownCooling {
    pub(crate) level: u32,
    /// When the next probe may be sent.
    pub(crate) from: Instant,
    /// Whether this replica holds the probe.
    pub(crate) is_mine: bool,
    /// The end of another replica's lease on the probe.
    pub(crate) until: Option<Instant>,
}

/// How a send ended that may be the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeEnd {
    /// Nothing was sent.
    NotSent,
    /// There was no answer, or one that shows nothing for others.
    Unknown,
    /// The downstream answered, and did not throttle.
    Answered,
}

/// A change to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoolingChange {
    Begins,
    Ends,
}

impl Cooling {
    pub(crate) fn new(replica: Arc<str>) -> Self {
        let (state, longest, unconfirmed) = (State::Off, None, None);
        Self { replica, state, longest, level: 0, is_sent: false, since: None, unconfirmed }
    }

    /// Follows cool-downs, whose waits grow up to `longest`.
    pub(crate) fn enable(&mut self, longest: Duration) {
        self.longest = Some(longest.max(FIRST));
    }

    pub(crate) fn set_replica(&mut self, replica: Arc<str>) {
        self.replica = replica;
    }

    pub(crate) fn replica(&self) -> &Arc<str> {
        &self.replica
    }

    /// Whether nothing except a probe is sent.
    pub(crate) fn is_on(&self) -> bool {
        self.state != State::Off
    }

    /// When the next probe may be sent, or was sent.
    pub(crate) const fn probe_at(&self) -> Option<Instant> {
        match self.state {
            State::Off => None,
            State::Waiting(at) | State::Probing(at, _) => Some(at),
        }
    }

    /// Whether this replica holds the probe.
    pub(crate) const fn is_probing(&self) -> bool {
        matches!(self.state, State::Probing(..))
    }

    /// Whether the probe has been sent, and its end is not known yet.
    pub(crate) const fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Records that a waiter was sent, which is the probe if this replica holds it.
    pub(crate) const fn on_sent(&mut self) {
        self.is_sent = self.is_probing();
    }

    /// Records that the downstream throttled a waiter that was sent at `sent`, and named no time.
    pub(crate) fn refused(&mut self, sent: Instant, now: Instant) -> Option<CoolingChange> {
        self.longest?;
        match self.state {
            State::Off if self.since.is_some_and(|since| sent < since) => None,
            State::Off => {
                (self.level, self.unconfirmed) = (0, Some(CoolingReport::Refused));
                self.state = State::Waiting(now + FIRST);
                Some(CoolingChange::Begins)
            }
            State::Probing(since, _) if sent >= since => {
                self.level = self.level.saturating_add(1);
                self.wait_again(CoolingReport::Refused, now);
                None
            }
            // It was sent before.
            State::Waiting(_) | State::Probing(..) => None,
        }
    }

    /// Records the end of a send that began at `sent`. If the downstream throttled it, [`Cooling::refused`] is called
    /// before.
    pub(crate) fn ended(&mut self, sent: Instant, end: ProbeEnd, now: Instant) -> Option<CoolingChange> {
        match self.state {
            State::Probing(since, _) if sent >= since => self.is_sent = false,
            _ => return None,
        }
        match end {
            ProbeEnd::NotSent => {}
            ProbeEnd::Unknown => self.wait_again(CoolingReport::Again, now),
            ProbeEnd::Answered => {
                (self.state, self.unconfirmed) = (State::Off, Some(CoolingReport::Over));
                self.since = Some(sent);
                return Some(CoolingChange::Ends);
            }
        }
        None
    }

    /// Gives the probe back, since no waiter can be sent.
    pub(crate) fn give_back(&mut self, now: Instant) {
        if self.is_probing() {
            self.wait_again(CoolingReport::Again, now);
        }
    }

    fn wait_again(&mut self, report: CoolingReport, now: Instant) {
        let wait = FIRST.saturating_mul(2_u32.saturating_pow(self.level)).min(self.longest());
        (self.state, self.unconfirmed, self.is_sent) = (State::Waiting(now + wait), Some(report), false);
    }

    /// Follows the cool-down that the store has.
    pub(crate) fn follow(&mut self, known: Option<KnownCooling>, now: Instant) -> Option<CoolingChange> {
        // The store's cool-down is older than the report that it has not confirmed yet.
        if self.unconfirmed.is_some() || self.longest.is_none() {
            return None;
        }
        let was_on = self.is_on();
        let Some(KnownCooling { level, from, is_mine, until }) = known else {
            (self.state, self.is_sent) = (State::Off, false);
            self.since = if was_on { Some(now) } else { self.since };
            return was_on.then_some(CoolingChange::Ends);
        };
        self.level = level;
        self.state = match self.state {
            State::Probing(since, _) if is_mine => State::Probing(since, now + RENEWED),
            _ if is_mine => State::Probing(now, now + RENEWED),
            _ => State::Waiting(until.map_or(from, |until| until.max(from))),
        };
        (!was_on).then_some(CoolingChange::Begins)
    }

    /// Decides alone, while the store is away. A probe could go at `probe_from`.
    pub(crate) fn follow_alone(&mut self, now: Instant, probe_from: Option<Instant>) {
        self.unconfirmed = None;
        if let State::Waiting(_) = self.state
            && self.wake_at(probe_from).is_some_and(|at| at <= now)
        {
            self.state = State::Probing(now, now + RENEWED);
        }
    }

    /// The report for the store that is due now. A probe could be sent at `probe_from`.
    pub(crate) fn to_report(&self, now: Instant, probe_from: Option<Instant>) -> Option<CoolingReport> {
        self.unconfirmed.or_else(|| {
            let at = self.wake_at(probe_from)?;
            (at <= now).then_some(CoolingReport::Wanted)
        })
    }

    /// When the next report for the store is due.
    pub(crate) fn wake_at(&self, probe_from: Option<Instant>) -> Option<Instant> {
        match self.state {
            State::Off => None,
            State::Waiting(at) => probe_from.map(|from| from.max(at)),
            State::Probing(_, renewal) => Some(renewal),
        }
    }

    /// Whether there is a report for the store that cannot wait.
    pub(crate) const fn is_unconfirmed(&self) -> bool {
        self.unconfirmed.is_some()
    }

    /// Records that the store has confirmed this report.
    pub(crate) fn confirmed(&mut self, report: CoolingReport) {
        self.unconfirmed = self.unconfirmed.filter(|other| *other != report);
    }

    /// The longest wait.
    pub(crate) fn longest(&self) -> Duration {
        self.longest.unwrap_or(FIRST)
    }

    /// The report for the store at the end of this replica, if there is one.
    pub(crate) fn final_report(&self) -> Option<CoolingReport> {
        self.unconfirmed.or_else(|| self.is_probing().then_some(CoolingReport::Again))
    }
}

impl CoolingReport {
    /// The call that makes this report.
    pub(crate) const fn call(self, replica: &str, longest: Duration) -> CoolDownCall<'_> {
        match self {
            Self::Refused => CoolDownCall::Refused { replica, first: FIRST, most: longest },
            Self::Again => CoolDownCall::Again { replica, first: FIRST, most: longest },
            Self::Over => CoolDownCall::Over { replica },
            Self::Wanted => CoolDownCall::Probe { replica, ttl: LEASE },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = FIRST;
    const MS: Duration = Duration::from_millis(1);

    fn cooling() -> Cooling {
        let mut cooling = Cooling::new("me".into());
        cooling.enable(8 * S);
        cooling
    }

    fn known(level: u32, from: Instant, is_mine: bool) -> Option<KnownCooling> {
        Some(KnownCooling { level, from, is_mine, until: None })
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_doubles_while_probes_are_refused_and_ends_with_an_answer() {
        let (mut cooling, start) = (cooling(), Instant::now());
        assert_eq!(cooling.refused(start, start), Some(CoolingChange::Begins));
        assert_eq!(cooling.refused(start, start + MS), None, "it was sent before");
        let mut now = start;
        for (level, wait) in [1, 2, 4, 8, 8].into_iter().enumerate() {
            let level = u32::try_from(level).unwrap();
            assert_eq!(cooling.to_report(now, Some(now)), Some(CoolingReport::Refused));
            cooling.confirmed(CoolingReport::Refused);
            assert_eq!(cooling.follow(known(level, now + wait * S, false), now), None);
            assert_eq!(cooling.to_report(now + wait * S - MS, Some(now)), None);
            now += wait * S;
            assert_eq!(cooling.to_report(now, None), None, "nothing could go");
            assert_eq!(cooling.to_report(now, Some(now)), Some(CoolingReport::Wanted));
            assert_eq!(cooling.follow(known(level, now, true), now), None);
            assert!(cooling.is_probing());
            if level < 4 {
                assert_eq!(cooling.refused(now, now), None);
            }
        }
        assert_eq!(cooling.ended(now - MS, ProbeEnd::Answered, now), None, "it was sent before");
        assert_eq!(cooling.ended(now, ProbeEnd::Answered, now), Some(CoolingChange::Ends));
        assert_eq!((cooling.is_on(), cooling.to_report(now, Some(now))), (false, Some(CoolingReport::Over)));
        assert_eq!(cooling.follow(known(4, now, true), now), None, "the store does not know it yet");
        cooling.confirmed(CoolingReport::Over);
        assert_eq!(cooling.follow(None, now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_others_begin_is_followed() {
        let (mut cooling, now) = (cooling(), Instant::now());
        assert_eq!(cooling.follow(known(2, now + S, false), now), Some(CoolingChange::Begins));
        assert_eq!(cooling.probe_at(), Some(now + S));
        let held = KnownCooling { level: 2, from: now + S, is_mine: false, until: Some(now + 6 * S) };
        assert_eq!(cooling.follow(Some(held), now + S), None);
        assert_eq!(cooling.wake_at(Some(now)), Some(now + 6 * S), "another replica probes");
        assert_eq!(cooling.follow(None, now + 2 * S), Some(CoolingChange::Ends));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_without_an_answer_is_followed_by_another_one_after_the_same_wait() {
        let (mut cooling, now) = (cooling(), Instant::now());
        cooling.follow(known(2, now, true), now);
        assert_eq!(cooling.wake_at(Some(now)), Some(now + RENEWED), "its lease is renewed");
        assert_eq!(cooling.ended(now, ProbeEnd::Unknown, now + S), None);
        assert_eq!(cooling.to_report(now + S, Some(now)), Some(CoolingReport::Again));
        assert_eq!(cooling.probe_at(), Some(now + 5 * S));
        cooling.confirmed(CoolingReport::Again);
        cooling.follow(known(2, now, true), now);
        cooling.give_back(now);
        assert_eq!(cooling.to_report(now, Some(now)), Some(CoolingReport::Again));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_store_it_decides_alone() {
        let (mut cooling, now) = (cooling(), Instant::now());
        cooling.refused(now, now);
        cooling.follow_alone(now + S, None);
        assert!(!cooling.is_probing());
        cooling.follow_alone(now + S, Some(now));
        assert!(cooling.is_probing() && !cooling.is_unconfirmed());
        cooling.refused(now + S, now + S);
        assert_eq!(cooling.probe_at(), Some(now + 3 * S));
    }
}
