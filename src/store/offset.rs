//! Maps instants of the store's clock to this process's clock, so that no slot is early.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;
use crate::time::{Deadline, Micros, suspended};

/// The effect of a sample on the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Observed {
    /// The sample agrees with the mapping: slots that were mapped before stay valid.
    Consistent,
    /// The store's clock stepped back: the mapping starts anew from this sample. The store has moved the slots that it
    /// granted back by no more than the step, so the slots that it grants from now on come after those mapped before:
    /// keep the local instants that they had.
    SteppedBack,
    /// The store's clock stepped forward, or it lost its state: the mapping starts anew from this sample. Slots that
    /// were reserved before belong to the clock before the step; give them up.
    Stepped,
}

/// Bounds of the offset between the store's clock and the local one.
///
/// A call sent at `sent` and answered at `received`, both local, with the store's `now`, happened
/// somewhere between: the offset (local less store) lies in `[sent - now, received - now]`. An
/// upper bound maps a slot to a local instant at which the store's clock has surely reached it, with any latencies.
///
/// The bound in use follows the smallest one of the last 10 s, but slowly: a busy process reads its answers late, and
/// then in time again, which must not bring slots closer together than the store granted them. It
///
/// - falls by at most 1 ms a second; but at once until 5 s and 10 answers after the first answer, after a step, and
///   after 10 s without an answer;
/// - rises by as much as the largest lower bound does, since that follows a clock which is slewed back, and by at most
///   0.1 ms a second besides, which is as fast as clocks drift apart that nobody slews.
///
/// Local instants count the time for which this machine was suspended: the store's clock continues
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

/// The window slides by whole buckets: 5 buckets of 2 s.
const BUCKETS: usize = 5;
const BUCKET: i128 = 2_000_000_000;
/// How far two clocks may drift apart without a step: 1 ms a second, which is twice what NTP slews at most. There is no
/// absolute bound: after an idle hour any clock has drifted far without a step.
const DRIFT: i128 = 1000;
/// How far they drift apart by the tolerances of their oscillators alone: 0.1 ms a second.
const TOLERANCE: i128 = 10_000;
/// For how long, and for how many answers, a smaller bound counts at once: the first calls of a process take long.
const SETTLING: (i128, u32) = (5_000_000_000, 10);
/// The store's `now` is rounded down: its clock may have been up to 1 µs further.
const FLOOR: i128 = 1000;
/// The deadline of slots that lie further ahead than instants can express: 30 years.
const FAR: i128 = 30 * 365 * 86_400 * 1_000_000_000;
/// No call takes this long, so suspends that lie closer together count as one.
const APART: Duration = Duration::from_secs(60);

/// The bounds of the offset, in ns: local instants count from the anchor, offsets are local less store.
#[derive(Debug, Default)]
struct Window {
    epoch: Option<Micros>,
    /// How often the window was discarded.
    generation: u64,
    /// How often it was discarded because the store's clock had stepped forward.
    jumps: u64,
    /// When the bound in use began to settle, and the answers since then.
    begun: (i128, u32),
    /// When the newest sample was received.
    newest: i128,
    /// The largest lower bound.
    low: i128,
    /// The upper bound in use.
    high: i128,
    buckets: [Option<Bucket>; BUCKETS],
    suspends: Suspends,
}

/// What this clock knows of suspends of the machine.
#[derive(Debug, Default)]
struct Suspends {
    /// The total time that the machine has been suspended, as last read.
    known: Duration,
    /// When the last suspend was noticed, and the total before it.
    noticed: Option<(Instant, Duration)>,
}

/// A slot on the local clock, and the window that it was mapped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// How often the window had been discarded when the slot was mapped.
    pub(crate) generation: u64,
    /// How often it had been discarded because the store's clock had stepped forward.
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
    /// A clock without samples.
    #[must_use]
    pub fn new() -> Self {
        let suspends = Suspends { known: suspended(), noticed: None };
        let window = Mutex::new(Window { suspends, ..Window::default() });
        Self { anchor: Deadline::now(), window }
    }

    /// Adds the sample of one call: when it was sent and its answer received, and the store's `now` and `epoch` in the
    /// answer.
    pub fn observe(&self, sent: Instant, now: Micros, epoch: Micros, received: Instant) -> Observed {
        let mut window = lock(&self.window);
        let (before, after) = window.suspends.around(sent, suspended(), Instant::now());
        let (sent, received) = (self.local(sent, before), self.local(received, after));
        let store = i128::from(now.0) * 1000;
        let sample =
            Bucket { index: received.div_euclid(BUCKET), low: sent - store - FLOOR, high: received - store };
        let Some(known) = window.epoch.replace(epoch) else {
            window.restart(sample, received);
            return Observed::Consistent;
        };
        let step = window.step(&sample, received);
        if known != epoch || step.is_some() {
            window.generation += 1;
            window.jumps += u64::from(step == Some(Step::Forward));
            window.restart(sample, received);
            return if known == epoch && step == Some(Step::Back) {
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
    /// A later suspend of this machine brings it nearer: see [`SlotClock::hold`].
    #[must_use]
    pub fn deadline(&self, slot: Micros) -> Option<Instant> {
        self.hold(slot).map(Deadline::instant)
    }

    /// [`SlotClock::deadline`] for work that is held until then: it accounts for suspends of this machine in between,
    /// and knows how late it is afterwards.
    #[must_use]
    pub fn hold(&self, slot: Micros) -> Option<Deadline> {
        self.mapping(slot).map(|mapping| mapping.deadline)
    }

    /// [`SlotClock::hold`], with the window that it was computed from.
    pub(crate) fn mapping(&self, slot: Micros) -> Option<Mapping> {
        let window = lock(&self.window);
        let local = i128::from(slot.0) * 1000 + window.high()?;
        let Window { generation, jumps, .. } = *window;
        drop(window);
        let deadline = self.anchor.plus_ns(local).or_else(|| {
            // The slot lies beyond the range of instants; one before the machine's start has passed already.
            let bound = if local < 0 { 0 } else { FAR };
            self.anchor.plus_ns(bound)
        });
        Some(Mapping { generation, jumps, deadline: deadline.unwrap_or(self.anchor) })
    }

    /// The store's clock now, rounded so that it is never ahead; `None` before the first sample.
    #[must_use]
    pub fn store_now(&self) -> Option<Micros> {
        let now = Deadline::now().ns_since(self.anchor);
        let window = lock(&self.window);
        let store = (now - window.high()?).div_euclid(1000);
        Some(Micros(i64::try_from(store).unwrap_or(0)).clamp(Micros(0), Micros::MAX))
    }

    /// The time since the newest sample was received, and its epoch.
    pub(crate) fn newest(&self) -> Option<(Duration, Micros)> {
        let now = Deadline::now().ns_since(self.anchor);
        let window = lock(&self.window);
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
    /// The least time that the machine had been suspended when a call was sent, and the most when its answer was
    /// received; `read` is the total until `now`.
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
    /// The upper bound in use; `None` before the first sample.
    fn high(&self) -> Option<i128> {
        self.epoch.map(|_| self.high)
    }

    /// Has the bound in use follow the smallest one.
    fn follow(&mut self, received: i128) {
        let known = || self.buckets.iter().flatten();
        let lows = known().map(|bucket| bucket.low);
        let (Some(low), Some(high)) = (lows.max(), known().map(|bucket| bucket.high).min()) else { return };
        let passed = (received - self.newest).max(0);
        if passed >= BUCKETS as i128 * BUCKET {
            self.begun = (received, 0);
        }
        self.begun.1 = self.begun.1.saturating_add(1);
        let is_settling = received - self.begun.0 < SETTLING.0 || self.begun.1 <= SETTLING.1;
        let fall = if is_settling { (self.high - high).max(0) } else { passed / DRIFT };
        let rise = (low - self.low).max(0) + passed / TOLERANCE;
        (self.low, self.high) = (low, high.clamp(self.high - fall, self.high + rise));
    }

    /// The step that explains the sample, if it contradicts the window by more than clocks drift.
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
            // Buckets that are too old or have drifted out of the sample's bounds are dropped.
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
            // A late answer: its bucket has been reused for newer samples.
            Some(bucket) if bucket.index > sample.index => {}
            _ => *place = Some(sample),
        }
        self.follow(received);
        self.newest = self.newest.max(received);
    }

    fn restart(&mut self, sample: Bucket, received: i128) {
        self.buckets = [None; BUCKETS];
        (self.begun, self.newest) = ((received, 0), received);
        (self.low, self.high) = (sample.low, sample.high);
        self.add(sample, received);
    }
}

#[cfg(test)]
mod tests;
