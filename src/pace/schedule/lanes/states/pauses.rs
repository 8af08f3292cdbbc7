//! Pauses of some lanes alone, since the downstream throttled a job of theirs. Each is a state: until a pause ends it allows
//! nothing. In a cool-down it allows a job at a time, the probe, and nothing more until the downstream answers that.

use std::time::Duration;

use tokio::time::Instant;

use super::{Name, Numbers, States};

/// The name of pauses, which no limit has.
const PAUSE: &str = "";

/// What the keys of operators' pauses begin with; those of other pauses begin with the name of a part.
const STOP: char = '!';

/// As long as an operator's pause lasts for this replica: its end is another change of the rules.
const FOREVER: Duration = Duration::from_secs(366 * 86_400);

/// The wait before the first probe of a cool-down.
const FIRST_WAIT: Duration = Duration::from_secs(1);

impl Numbers {
    /// Those of a pause, while there is none.
    pub(super) const UNLIMITED: Self =
        Self { per_call: u64::MAX, interval: Duration::ZERO, is_plain: false, weight: 0, paused_until: None };

    /// Those of a cool-down whose probes are so long apart.
    const fn cooling(wait: Duration, until: Instant) -> Self {
        Self { per_call: 1, interval: wait, is_plain: true, weight: 0, paused_until: Some(until) }
    }

    /// The time between the probes of a cool-down, if this is one.
    pub(super) fn probes(&self) -> Option<Duration> {
        self.paused_until.and(self.is_plain.then_some(self.interval))
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

    /// Whether a pause, or the wait before the next probe, is to last at this instant.
    pub(in crate::pace::schedule::lanes) fn is_paused(&self, state: usize, at: Instant) -> bool {
        self.paused_until(state).is_some_and(|until| at < until)
    }

    /// Whether a pause that the downstream caused, or the wait before the next probe, lasts at the last call.
    pub(in crate::pace::schedule::lanes) fn is_throttled_now(&self, state: usize) -> bool {
        self.seen.is_some_and(|(now, _)| self.is_paused(state, now)) && !self.is_stop(state)
    }

    /// Whether there is any cool-down.
    pub(in crate::pace::schedule::lanes) const fn are_any_cooling(&self) -> bool {
        self.cooling > 0
    }

    /// The time between the probes of a cool-down, if there is one.
    pub(in crate::pace::schedule::lanes) fn probes(&self, state: usize) -> Option<Duration> {
        self.all[state].numbers.probes()
    }

    /// Begins a pause, or prolongs it: returns whether it begins. It ends a cool-down, since the downstream says by now how long to
    /// wait.
    pub(in crate::pace::schedule::lanes) fn pause(
        &mut self,
        state: usize,
        (now, until): (Instant, Instant),
    ) -> bool {
        let begins = !self.is_paused(state, now) && self.probes(state).is_none();
        self.cooling -= usize::from(self.probes(state).is_some());
        let numbers = &mut self.all[state].numbers;
        let until = numbers.paused_until.map_or(until, |before| before.max(until));
        *numbers = Numbers { paused_until: Some(until), ..Numbers::UNLIMITED };
        self.pause_until(state, until);
        begins
    }

    /// Begins a cool-down, or doubles its wait up to `longest`: a job that was sent at `sent` was throttled. One that was sent
    /// before says nothing new. Returns whether it begins.
    pub(in crate::pace::schedule::lanes) fn cool_down(
        &mut self,
        state: usize,
        (sent, now): (Instant, Instant),
        longest: Duration,
    ) -> bool {
        if self.is_paused(state, sent) {
            return false;
        }
        let numbers = &mut self.all[state].numbers;
        let before = numbers.probes();
        let wait = before.map_or(FIRST_WAIT, |before| before * 2).min(longest);
        *numbers = Numbers::cooling(wait, now + wait);
        self.cooling += usize::from(before.is_none());
        self.pause_until(state, now + wait);
        before.is_none()
    }

    /// Ends a cool-down, since a job was answered that was sent at `sent`. Returns whether it was its probe.
    pub(in crate::pace::schedule::lanes) fn answered(&mut self, state: usize, sent: Instant) -> bool {
        let is_probe = self.probes(state).is_some() && !self.is_paused(state, sent);
        if is_probe {
            self.cooling -= 1;
            self.all[state].numbers = Numbers::UNLIMITED;
            self.end_sleep(state);
        }
        is_probe
    }

    /// Nothing is asked for earlier: no limit of the store would hold that back.
    fn pause_until(&mut self, state: usize, until: Instant) {
        self.end_sleep(state);
        self.sleep(state, until, until);
    }
}
