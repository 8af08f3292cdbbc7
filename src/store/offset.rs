//! Maps instants of the store's clock to this process's clock, so that no slot is early.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::time::{Deadline, Micros, suspended};

/// What a sample said about the mapping so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Observed {
    /// It agrees: slots that were mapped before still stand.
    Consistent,
    /// The store's clock stepped back: the mapping starts anew from this sample. The store has moved
    /// what it granted back by no more than the step, so what it grants from now on comes after the
    /// slots that were mapped before: keep the local instants that they had.
    SteppedBack,
    /// The store's clock stepped forward, or it lost its state: the mapping starts anew from this
    /// sample. Slots that were reserved before belong to a clock that is no more; give them up.
    Stepped,
}

/// Bounds of the offset between the store's clock and the local one.
///
/// A call sent at `sent` and answered at `received`, both local, with the store's `now`, happened
/// somewhere between: the offset (local less store) lies in `[sent - now, received - now]`. The
/// smallest upper bound of the last 10 s maps a slot to a local instant at which the store's clock
/// has surely reached it, whatever the latencies were.
///
/// Local instants count the time for which this machine was suspended: the store's clock goes on
/// meanwhile, so a suspend is no step.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use paced::{store::{Observed, SlotClock}, time::Micros};
/// use std::time::Duration;
///
/// let (clock, sent) = (SlotClock::new(), tokio::time::Instant::now());
/// let received = sent + Duration::from_millis(2);
/// let _ = clock.observe(sent, Micros(1_000_000), Micros(7), received);
/// // The store's clock showed 1 s at `received` at the latest, so 3 s come 2 s after that.
/// assert_eq!(clock.deadline(Micros(3_000_000)), Some(received + Duration::from_secs(2)));
/// # });
/// ```
#[derive(Debug)]
pub struct SlotClock {
    anchor: Deadline,
    window: Mutex<Window>,
}

/// The window slides by whole buckets: 5 of 2 s.
const BUCKETS: usize = 5;
const BUCKET: i128 = 2_000_000_000;
/// How far two clocks may drift apart without a step: 1 ms a second, twice what NTP slews at most.
/// It has no bound in all: after an idle hour any clock has drifted far, and that is no step.
const DRIFT: i128 = 1000;
/// The store's `now` is a floor: its clock may have been almost 1 µs further.
const FLOOR: i128 = 1000;
/// Where slots lie that are further ahead than instants reach: 30 years.
const FAR: i128 = 30 * 365 * 86_400 * 1_000_000_000;
/// No call takes that long: suspends that lie closer together count as one.
const APART: Duration = Duration::from_secs(60);

/// All in ns: local instants since the anchor, offsets as local less store.
#[derive(Debug, Default)]
struct Window {
    epoch: Option<Micros>,
    /// How often the window was discarded.
    generation: u64,
    /// How often it was discarded because the store's clock had stepped forward.
    jumps: u64,
    /// When the newest sample was received.
    newest: i128,
    buckets: [Option<Bucket>; BUCKETS],
    suspends: Suspends,
}

/// What this clock knows of suspends of the machine.
#[derive(Debug, Default)]
struct Suspends {
    /// For how long it has been, as it was last read.
    known: Duration,
    /// The last one was noticed then, and before it had been this long.
    noticed: Option<(Instant, Duration)>,
}

/// Where a slot lies on the local clock, and under which window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// How often the window had been discarded before.
    pub(crate) generation: u64,
    /// How often of these because the store's clock had stepped forward.
    pub(crate) jumps: u64,
    /// As in [`SlotClock::hold`].
    pub(crate) deadline: Deadline,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    index: i128,
    low: i128,
    high: i128,
}

impl SlotClock {
    /// A clock that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let suspends = Suspends { known: suspended(), noticed: None };
        let window = Mutex::new(Window { suspends, ..Window::default() });
        Self { anchor: Deadline::now(), window }
    }

    /// Takes in one call: when it was sent and its answer received, and the store's `now` and
    /// `epoch` in the answer.
    pub fn observe(&self, sent: Instant, now: Micros, epoch: Micros, received: Instant) -> Observed {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, after) = window.suspends.around(sent, suspended(), Instant::now());
        let (sent, received) = (self.local(sent, before), self.local(received, after));
        let store = i128::from(now.0) * 1000;
        let sample =
            Bucket { index: received.div_euclid(BUCKET), low: sent - store - FLOOR, high: received - store };
        let known = window.epoch.replace(epoch);
        let step = window.step(&sample, received);
        if known.is_some_and(|known| known != epoch) || step.is_some() {
            window.generation += 1;
            window.jumps += u64::from(step == Some(Step::Forward));
            window.restart(sample, received);
            let is_same = known.is_none_or(|known| known == epoch);
            return if is_same && step == Some(Step::Back) {
                Observed::SteppedBack
            } else {
                Observed::Stepped
            };
        }
        window.add(sample, received);
        Observed::Consistent
    }

    /// The local instant by which the store's clock has surely reached `slot`; `None` before the
    /// first sample.
    ///
    /// A suspend of this machine that is yet to come brings it nearer: see [`SlotClock::hold`].
    #[must_use]
    pub fn deadline(&self, slot: Micros) -> Option<Instant> {
        self.hold(slot).map(Deadline::instant)
    }

    /// [`SlotClock::deadline`] for work that is held until then: it knows of suspends of this machine
    /// that come in between, and how late it is afterwards.
    #[must_use]
    pub fn hold(&self, slot: Micros) -> Option<Deadline> {
        self.mapping(slot).map(|mapping| mapping.deadline)
    }

    /// [`SlotClock::hold`], and what it rests on.
    pub(crate) fn mapping(&self, slot: Micros) -> Option<Mapping> {
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let local = i128::from(slot.0) * 1000 + window.high()?;
        let Window { generation, jumps, .. } = *window;
        drop(window);
        let deadline = self.anchor.plus_ns(local).or_else(|| {
            // Beyond what instants reach: before the machine was started it is past already.
            let bound = if local < 0 { 0 } else { FAR };
            self.anchor.plus_ns(bound)
        });
        Some(Mapping { generation, jumps, deadline: deadline.unwrap_or(self.anchor) })
    }

    /// The store's clock now, never ahead of it; `None` before the first sample.
    #[must_use]
    pub fn store_now(&self) -> Option<Micros> {
        let now = Deadline::now().ns_since(self.anchor);
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let store = (now - window.high()?).div_euclid(1000);
        Some(Micros(i64::try_from(store).unwrap_or(0)).clamp(Micros(0), Micros::MAX))
    }

    /// How long ago the newest sample was received, and its epoch.
    pub(crate) fn newest(&self) -> Option<(Duration, Micros)> {
        let now = Deadline::now().ns_since(self.anchor);
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let age = u64::try_from(now - window.newest).unwrap_or(0);
        Some((Duration::from_nanos(age), window.epoch?))
    }

    fn local(&self, at: Instant, suspended: Duration) -> i128 {
        Deadline::at_suspended(at, suspended).ns_since(self.anchor)
    }
}

impl Default for SlotClock {
    fn default() -> Self {
        Self::new()
    }
}

/// How the store's clock moved against the local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Forward,
    Back,
}

impl Suspends {
    /// How long the machine had been suspended when a call was sent, at least, and when its answer
    /// was received, at most; `read` is how long it has been until `now`.
    fn around(&mut self, sent: Instant, read: Duration, now: Instant) -> (Duration, Duration) {
        if read > self.known {
            let before = match self.noticed {
                Some((at, before)) if now.saturating_duration_since(at) < APART => before,
                _ => self.known,
            };
            self.noticed = Some((now, before));
            self.known = read;
        }
        // The call may have been sent before the suspend.
        let before = self.noticed.filter(|(at, _)| sent < *at).map_or(self.known, |(_, before)| before);
        (before, self.known)
    }
}

impl Window {
    /// The tightest upper bound.
    fn high(&self) -> Option<i128> {
        self.buckets.iter().flatten().map(|bucket| bucket.high).min()
    }

    /// Which step it takes to satisfy both the window and the sample, beyond what clocks drift.
    fn step(&self, sample: &Bucket, received: i128) -> Option<Step> {
        self.buckets.iter().flatten().find_map(|bucket| {
            let slack = (received - bucket.index * BUCKET).max(0) / DRIFT;
            if sample.low > bucket.high + slack {
                Some(Step::Back)
            } else {
                (sample.high + slack < bucket.low).then_some(Step::Forward)
            }
        })
    }

    fn add(&mut self, sample: Bucket, received: i128) {
        let oldest = sample.index - BUCKETS as i128;
        for slot in &mut self.buckets {
            // What is too old goes, and what has drifted out of the sample's bounds.
            let stale = |bucket: &Bucket| {
                bucket.index <= oldest || bucket.high < sample.low || bucket.low > sample.high
            };
            if slot.as_ref().is_some_and(stale) {
                *slot = None;
            }
        }
        let place = &mut self.buckets[sample.index.rem_euclid(BUCKETS as i128) as usize];
        match place {
            Some(bucket) if bucket.index == sample.index => {
                bucket.low = bucket.low.max(sample.low);
                bucket.high = bucket.high.min(sample.high);
            }
            // A late answer: its place belongs to newer samples already.
            Some(bucket) if bucket.index > sample.index => {}
            _ => *place = Some(sample),
        }
        self.newest = self.newest.max(received);
    }

    fn restart(&mut self, sample: Bucket, received: i128) {
        self.buckets = [None; BUCKETS];
        self.newest = received;
        self.add(sample, received);
    }
}

#[cfg(test)]
mod tests;
