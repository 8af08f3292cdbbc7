//! Pauses of some lanes alone, because the downstream throttled one of their jobs. Each is a state that allows
//! nothing until the pause ends. In a cool-down the state allows one job, the probe, and nothing more until the
//! downstream has answered that job.

use std::time::Duration;

use tokio::time::Instant;

use super::{Name, Numbers, States};

/// The name of pauses, which no limit has.
const PAUSE: &str = "";

/// The first character of the keys of operators' pauses. Keys of other pauses begin with the name of a part.
const STOP: char = '!';

/// The length of an operator's pause as a state: its real end is a later change of the rules.
const FOREVER: Duration = Duration::from_secs(366 * 86_400);

/// The wait before the first probe of a cool-down.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// A pause that the downstream asked for. If the downstream asks again soon after the end, the jobs of the lanes are
/// released as fast as the downstream answered them in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    began: Instant,
    until: Instant,
    /// The number of jobs that were answered since it began.
    answered: u32,
    /// The time for one job between the pause before and this one, if that was shortly before.
    apart: Option<Duration>,
}

impl Pauses {
    /// Returns the pause of these times, which follows another one.
    fn after(before: Option<Self>, (now, until): (Instant, Instant)) -> Self {
        let before = before.filter(|before| before.counts_at(now));
        let apart = before.map(|before| (now - before.began) / before.answered.max(1));
        Self { began: now, until, answered: 0, apart }
    }

    /// Whether a pause that begins at `now` follows this one soon: within the length of this pause after its end.
    fn counts_at(&self, now: Instant) -> bool {
        now < self.until + (self.until - self.began)
    }
}

impl Numbers {
    /// The numbers of the state while there is no pause.
    pub(super) const UNLIMITED: Self = Self {
        per_call: u64::MAX,
        interval: Duration::ZERO,
        is_plain: false,
        weight: 0,
        paused_until: None,
        pauses: None,
    };

    /// The numbers of a cool-down whose probes are this far apart.
    const fn cooling(wait: Duration, until: Instant) -> Self {
        let paused_until = Some(until);
        Self { per_call: 1, interval: wait, is_plain: true, weight: 0, paused_until, pauses: None }
    }

    /// The time between the probes of a cool-down, if this is one.
    fn probes(&self) -> Option<Duration> {
        self.paused_until.and(self.is_plain.then_some(self.interval))
    }

    /// Whether the downstream throttles the lanes, or did so lately.
    pub(super) fn are_throttled(&self) -> bool {
        self.probes().is_some() || self.pauses.is_some()
    }
}

impl States {
    /// Adds a lane to the pauses with this key, and returns their state.
    pub(in crate::pace::schedule::lanes) fn join_pause(&mut self, key: String) -> usize {
        self.join_named(PAUSE, key)
    }

    /// Adds a lane to the pause of this value by an operator, and returns the state.
    pub(in crate::pace::schedule::lanes) fn join_stop(&mut self, value: &str) -> usize {
        let state = self.join_named(PAUSE, format!("{STOP}{value}"));
        if self.paused_until(state).is_none() {
            let now = Instant::now();
            self.pause(state, (now, now + FOREVER));
        }
        state
    }

    /// Whether this is the state of a pause by an operator.
    pub(in crate::pace::schedule::lanes) fn is_stop(&self, state: usize) -> bool {
        self.is_pause(state) && self.all[state].name.key.starts_with(STOP)
    }

    /// The state of the pauses with this key, if lanes have it.
    pub(in crate::pace::schedule::lanes) fn pause_of(&self, key: String) -> Option<usize> {
        self.by_name.get(&Name { limit: PAUSE.into(), key: key.into() }).copied()
    }

    /// Whether this is the state of pauses.
    pub(in crate::pace::schedule::lanes) fn is_pause(&self, state: usize) -> bool {
        &*self.all[state].name.limit == PAUSE
    }

    /// When the latest pause ends, or the wait before the next probe.
    pub(in crate::pace::schedule::lanes) fn paused_until(&self, state: usize) -> Option<Instant> {
        self.all[state].numbers.paused_until
    }

    /// Whether a pause, or the wait before the next probe, still lasts at this instant.
    pub(in crate::pace::schedule::lanes) fn is_paused(&self, state: usize, at: Instant) -> bool {
        self.paused_until(state).is_some_and(|until| at < until)
    }

    /// Whether a pause that the downstream caused, or the wait before the next probe, lasts at the last call.
    pub(in crate::pace::schedule::lanes) fn is_throttled_now(&self, state: usize) -> bool {
        self.seen.is_some_and(|(now, _)| self.is_paused(state, now)) && !self.is_stop(state)
    }

    /// Whether the downstream throttles any, or did so lately.
    pub(in crate::pace::schedule::lanes) const fn are_any_throttled(&self) -> bool {
        self.throttled > 0
    }

    /// The time between the jobs of a state that the downstream throttles: the time between the probes of a
    /// cool-down, or the time for each job between the last two pauses, if these followed each other.
    pub(in crate::pace::schedule::lanes) fn apart(&self, state: usize) -> Option<Duration> {
        let numbers = &self.all[state].numbers;
        let counts = |pauses: &Pauses| self.seen.is_none_or(|(now, _)| pauses.counts_at(now));
        numbers.probes().or_else(|| numbers.pauses.filter(counts)?.apart)
    }

    fn probes(&self, state: usize) -> Option<Duration> {
        self.all[state].numbers.probes()
    }

    fn set_numbers(&mut self, state: usize, numbers: Numbers) {
        let before = std::mem::replace(&mut self.all[state].numbers, numbers);
        self.throttled -= usize::from(before.are_throttled());
        self.throttled += usize::from(numbers.are_throttled());
    }

    /// Begins a pause, or prolongs it: returns whether it begins. It ends a cool-down, since the downstream now says
    /// how long to wait.
    pub(in crate::pace::schedule::lanes) fn pause(
        &mut self,
        state: usize,
        (now, until): (Instant, Instant),
    ) -> bool {
        let begins = !self.is_paused(state, now) && self.probes(state).is_none();
        let Numbers { paused_until, pauses, .. } = self.all[state].numbers;
        let until = paused_until.map_or(until, |before| before.max(until));
        let longer = pauses.filter(|_| !begins).map(|pauses| Pauses { until, ..pauses });
        let pauses = longer.unwrap_or_else(|| Pauses::after(pauses, (now, until)));
        let pauses = (!self.is_stop(state)).then_some(pauses);
        self.set_numbers(state, Numbers { paused_until: Some(until), pauses, ..Numbers::UNLIMITED });
        self.pause_until(state, until);
        begins
    }

    /// Begins a cool-down, or doubles its wait up to `longest`, because a job that was sent at `sent` was throttled.
    /// A job that was sent before the end of the last wait says nothing new. Returns whether it begins.
    pub(in crate::pace::schedule::lanes) fn cool_down(
        &mut self,
        state: usize,
        (sent, now): (Instant, Instant),
        longest: Duration,
    ) -> bool {
        if self.is_paused(state, sent) {
            return false;
        }
        let before = self.probes(state);
        let wait = before.map_or(FIRST_WAIT, |before| before * 2).min(longest);
        self.set_numbers(state, Numbers::cooling(wait, now + wait));
        self.pause_until(state, now + wait);
        before.is_none()
    }

    /// Ends a cool-down, since the downstream answered a job that was sent at `sent`. Returns whether that was the
    /// probe. Between pauses it counts the job.
    pub(in crate::pace::schedule::lanes) fn answered(&mut self, state: usize, sent: Instant) -> bool {
        let is_probe = self.probes(state).is_some() && !self.is_paused(state, sent);
        if is_probe {
            self.set_numbers(state, Numbers::UNLIMITED);
            self.end_sleep(state);
            return true;
        }
        let numbers = self.all[state].numbers;
        let pauses = numbers.pauses.filter(|pauses| pauses.counts_at(sent));
        let counted = |pauses: Pauses| Pauses { answered: pauses.answered.saturating_add(1), ..pauses };
        self.set_numbers(state, Numbers { pauses: pauses.map(counted), ..numbers });
        false
    }

    /// Makes sure that no slot is requested earlier: no limit of the store would hold it back.
    fn pause_until(&mut self, state: usize, until: Instant) {
        self.end_sleep(state);
        self.sleep(state, until, until);
    }
}
