//! Maps instants of the store's clock to this process's clock, so that no slot is early.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::time::Micros;

/// What a sample said about the mapping so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Observed {
    /// It agrees: slots that were mapped before still stand.
    Consistent,
    /// A clock stepped, or the store lost its state: the mapping starts anew from this sample.
    /// Slots that were reserved before belong to a clock that is no more; give them up.
    Stepped,
}

/// Bounds of the offset between the store's clock and the local one.
///
/// A call sent at `sent` and answered at `received`, both local, with the store's `now`, happened
/// somewhere between: the offset (local less store) lies in `[sent - now, received - now]`. The
/// smallest upper bound of the last 10 s maps a slot to a local instant at which the store's clock
/// has surely reached it, whatever the latencies were.
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
    anchor: Instant,
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
}

/// Where a slot lies on the local clock, and under which window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// How often the window had been discarded before.
    pub(crate) generation: u64,
    /// How often of these because the store's clock had stepped forward.
    pub(crate) jumps: u64,
    /// As in [`SlotClock::deadline`].
    pub(crate) deadline: Instant,
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
        Self { anchor: Instant::now(), window: Mutex::default() }
    }

    /// Takes in one call: when it was sent and its answer received, and the store's `now` and
    /// `epoch` in the answer.
    pub fn observe(&self, sent: Instant, now: Micros, epoch: Micros, received: Instant) -> Observed {
        let (sent, received) = (self.local(sent), self.local(received));
        let store = i128::from(now.0) * 1000;
        let sample =
            Bucket { index: received.div_euclid(BUCKET), low: sent - store - FLOOR, high: received - store };
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let known = window.epoch.replace(epoch);
        let step = window.step(&sample, received);
        if known.is_some_and(|known| known != epoch) || step.is_some() {
            window.generation += 1;
            window.jumps += u64::from(step == Some(Step::Forward));
            window.restart(sample, received);
            return Observed::Stepped;
        }
        window.add(sample, received);
        Observed::Consistent
    }

    /// The local instant by which the store's clock has surely reached `slot`; `None` before the
    /// first sample.
    #[must_use]
    pub fn deadline(&self, slot: Micros) -> Option<Instant> {
        self.mapping(slot).map(|mapping| mapping.deadline)
    }

    /// [`SlotClock::deadline`], and what it rests on.
    pub(crate) fn mapping(&self, slot: Micros) -> Option<Mapping> {
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let high = window.high()?;
        let local = i128::from(slot.0) * 1000 + high;
        let deadline = match u64::try_from(local) {
            Ok(ns) => self.anchor.checked_add(Duration::from_nanos(ns)),
            // Before this clock began: it is past already.
            Err(_) if local < 0 => Some(self.anchor),
            Err(_) => None,
        };
        let far = || self.anchor + Duration::from_secs(30 * 365 * 86_400);
        let Window { generation, jumps, .. } = *window;
        Some(Mapping { generation, jumps, deadline: deadline.unwrap_or_else(far) })
    }

    /// The store's clock now, never ahead of it; `None` before the first sample.
    #[must_use]
    pub fn store_now(&self) -> Option<Micros> {
        let now = self.local(Instant::now());
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let store = (now - window.high()?).div_euclid(1000);
        Some(Micros(i64::try_from(store).unwrap_or(0)).clamp(Micros(0), Micros::MAX))
    }

    /// How long ago the newest sample was received, and its epoch.
    pub(crate) fn newest(&self) -> Option<(Duration, Micros)> {
        let now = self.local(Instant::now());
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let age = u64::try_from(now - window.newest).unwrap_or(0);
        Some((Duration::from_nanos(age), window.epoch?))
    }

    fn local(&self, at: Instant) -> i128 {
        // At most 584 years of ns: far inside an i128.
        match at.checked_duration_since(self.anchor) {
            Some(since) => since.as_nanos() as i128,
            None => -(self.anchor.duration_since(at).as_nanos() as i128),
        }
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
