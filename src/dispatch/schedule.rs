//! Whose turn it is among the plans of a downstream: pure.
//!
//! The highest priority goes first. Among equals the plan that was granted least goes first (start-time
//! fair queuing), so that plans share what the downstream allows evenly, whatever each call brings.
//!
//! A plan that its own limits refuse sleeps until they allow more, and the others go on. It is asked for
//! again once the slots of the downstream have come as far as its own; or shortly before its own, if
//! there is nobody else. So neither loses a slot: granted earlier, the downstream would be spoken for
//! until then; granted later, the plan would fall behind.

use std::time::Duration;

use tokio::time::Instant;

use super::asking::{Asking, Batch};
use super::lane::Lane;
use super::queueing::Queueing;
use super::{OnLimit, Options};
use crate::limit::{Limit, LimitSet};
use crate::rate::Rate;
use crate::store::{Asker, Turn};

/// How early a plan asks for a slot that its own limits set, where nobody else waits. Below a round
/// trip to the store it would lose pace.
const LEAD: Duration = Duration::from_millis(20);

/// What is known of slots is known so exactly, over the way to the store and back.
const SLACK: Duration = Duration::from_millis(2);

/// The queues of a lane, and how each gets on.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The jobs without a plan, then each plan.
    queues: Vec<Queue>,
    /// Where on the clock of all queues the latest grant began.
    clock: u64,
    /// This replica's place among those who ask.
    pub(super) queueing: Queueing,
    /// How far apart the slots of the downstream are at least.
    step: Duration,
    /// How far apart they are where there are many.
    pace: Duration,
    /// When the downstream has its next slot, as far as this replica knows.
    front: Instant,
    /// The bars were lifted, and the jobs that were put aside may go again.
    freed: bool,
}

#[derive(Debug)]
struct Queue {
    asking: Asking,
    /// Its slots lie further apart than the downstream's, as the last answer has it: before one, if its
    /// limits are slower.
    wide: bool,
    /// Its next slot, where its own limits set it.
    due: Option<Due>,
    /// Up to where it was granted units, on the clock of all queues.
    granted: u64,
    /// Jobs that cost as much or more have no slot before a window ends: the cost, and when it ends.
    barred: Option<(u32, Instant)>,
}

/// A slot that limits of a plan's own set.
#[derive(Clone, Copy, Debug)]
struct Due {
    slot: Instant,
    /// When to ask for it, if nobody else waits.
    ask_at: Instant,
}

/// A queue whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) queue: usize,
    /// Jobs behind the first of another queue wait: those of a rank above its.
    pub(super) rank: u8,
    /// How far ahead of now a slot may lie.
    pub(super) ahead: Duration,
    /// Others wait for slots that this one would only pass over.
    contended: bool,
    /// The turn that it is for.
    turn: Option<Turn>,
    /// How many units it takes at most.
    most: u32,
    /// Other queues go on at the same turn.
    goes_on: bool,
}

impl Queue {
    fn new(limits: &LimitSet, options: &Options) -> Self {
        let asking = Asking::new(limits, options.horizon, options.concurrency);
        let police = options.on_limit == OnLimit::Reject;
        let asking = if police { asking.at_once() } else { asking };
        let wide = !police && limits.rate().interval() > options.limits.rate().interval();
        Self { asking, wide, due: None, granted: 0, barred: None }
    }
}

impl Schedule {
    pub(super) fn new(options: &Options) -> Self {
        let even = options.limits.iter().filter(|limit| limit.burst() == 1);
        let step = even.map(Limit::rate).map(Rate::interval).max();
        Self {
            queues: options.sets().map(|limits| Queue::new(limits, options)).collect(),
            clock: 0,
            queueing: Queueing::new(options.horizon),
            step: step.unwrap_or_default(),
            pace: step.unwrap_or_else(|| options.limits.rate().interval()),
            front: Instant::now(),
            freed: false,
        }
    }

    /// Goes by other limits of the same queues from now on, each with what it was granted. What was learnt of
    /// slots is void.
    pub(super) fn follow(&mut self, options: &Options) {
        let new = Self::new(options);
        for (queue, new) in self.queues.iter_mut().zip(new.queues) {
            let replicas = queue.asking.replicas();
            *queue = Queue { granted: queue.granted, ..new };
            queue.asking.share(replicas);
        }
        (self.step, self.pace) = (new.step, new.pace);
        self.queueing.follow(options.horizon);
        self.forget();
    }

    /// How to ask for the jobs of this queue.
    pub(super) fn asking(&self, queue: usize) -> &Asking {
        &self.queues[queue].asking
    }

    /// How many slots to ask for, of so many jobs and places.
    pub(super) fn batch(&self, next: Next, waiting: usize, places: usize) -> Batch {
        let queue = &self.queues[next.queue];
        // More of them would leave slots unused between each other.
        let one = next.contended && queue.wide && !queue.asking.is_open();
        queue.asking.batch(if one { waiting.min(1) } else { waiting }, places, next.most)
    }

    /// How long a lease is to last: as the slowest of them needs it.
    pub(super) fn lease(&self) -> Duration {
        self.queues.iter().map(|queue| queue.asking.lease()).max().unwrap_or_default()
    }

    /// So many replicas share the slots.
    pub(super) fn share(&mut self, replicas: u32) {
        self.queues.iter_mut().for_each(|queue| queue.asking.share(replicas));
    }

    /// The queue whose turn it is.
    pub(super) fn next(&self, lane: &Lane, now: Instant) -> Option<Next> {
        if let [_] = self.queues[..] {
            let (turn, most, ahead) = self.most(0, now);
            let next = Next { queue: 0, rank: u8::MAX, ahead, contended: false, turn, most, goes_on: false };
            return lane.first(0).map(|_| next);
        }
        let base = now.max(self.front);
        let ready = |queue: &Queue| queue.due.is_none_or(|due| due.slot <= base);
        let soon = |queue: &Queue| queue.due.is_none_or(|due| due.ask_at <= now);
        let (queue, rank, contended) = self
            .best(lane, ready)
            .map(|(queue, rank)| (queue, rank, rank.is_some()))
            .or_else(|| self.best(lane, soon).map(|(queue, rank)| (queue, rank, false)))?;
        let rank = rank.unwrap_or(u8::MAX);
        let (turn, most, reach) = self.most(queue, now);
        let ahead = self.ahead(lane, (queue, contended), (now, base), reach);
        let goes_on = self.has_others(queue, lane);
        Some(Next { queue, rank, ahead, contended, turn, most, goes_on })
    }

    /// The turn that a call at `now` for the jobs of a queue is for, how many units it takes, and how far ahead.
    fn most(&self, queue: usize, now: Instant) -> (Option<Turn>, u32, Duration) {
        let turn = self.queueing.turn(now);
        let (most, ahead) = self.queueing.most(turn, self.queues[queue].asking.spacing());
        (turn, most, ahead)
    }

    /// How this replica asks for jobs that cost so many units in all, where so many others wait for the same turn.
    pub(super) fn asker(&self, next: Next, units: u64, others: u64, limits: &LimitSet) -> Asker {
        self.queueing.asker(next.turn, units.saturating_add(others), limits, next.goes_on)
    }

    /// Whether jobs of other queues than this one wait.
    pub(super) fn has_others(&self, queue: usize, lane: &Lane) -> bool {
        (0..self.queues.len()).any(|other| other != queue && lane.ready(other) > 0)
    }

    /// How many jobs wait that may have a slot as soon as the downstream has one.
    pub(super) fn waiting(&self, lane: &Lane, now: Instant) -> u64 {
        let base = now.max(self.front);
        let awake = |queue: &Queue| queue.due.is_none_or(|due| due.slot <= base);
        let queues = self.queues.iter().enumerate().filter(|(_, queue)| awake(queue));
        queues.map(|(queue, _)| lane.ready(queue) as u64).sum()
    }

    /// The best queue among those that are `awake`, and the rank of the first job of the others.
    fn best(&self, lane: &Lane, awake: impl Fn(&Queue) -> bool) -> Option<(usize, Option<u8>)> {
        let all = || {
            self.queues.iter().enumerate().filter_map(|(place, queue)| {
                let (rank, seq) = lane.first(place)?;
                awake(queue).then(|| (rank, queue.granted.max(self.clock), seq, place))
            })
        };
        let (.., queue) = all().min()?;
        Some((queue, all().filter(|(.., other)| *other != queue).map(|(rank, ..)| rank).min()))
    }

    /// How far ahead of now a queue may be granted a slot: not beyond what another one waits for, and
    /// where limits of its own may set it, hardly beyond what the downstream allows.
    fn ahead(
        &self,
        lane: &Lane,
        (queue, contended): (usize, bool),
        (now, base): (Instant, Instant),
        reach: Duration,
    ) -> Duration {
        let own = match queue {
            0 => reach,
            // The downstream sets its slots, so none is passed over.
            _ if !self.queues[queue].wide => reach,
            _ if contended => base - now + SLACK,
            _ => base - now + self.lead(),
        };
        let others =
            self.queues.iter().enumerate().filter(|(other, _)| *other != queue && lane.ready(*other) > 0);
        let due =
            others.filter_map(|(_, queue)| queue.due.map(|due| due.slot)).filter(|due| *due > base).min();
        // A slot at that instant would push the other one on.
        let before = due.map_or(reach, |due| (due - now).saturating_sub(Duration::from_micros(1)));
        own.min(reach).min(before)
    }

    fn lead(&self) -> Duration {
        LEAD.min(self.queueing.horizon() / 2)
    }

    /// When a queue that has jobs may ask, if none of them may before `since`.
    pub(super) fn wake(&self, lane: &Lane, since: Instant) -> Option<Instant> {
        let ready = self.queues.iter().enumerate().filter(|(queue, _)| lane.ready(*queue) > 0);
        let asleep = |queue: &Queue| queue.due.filter(|due| due.slot > self.front).map(|due| due.ask_at);
        ready.map(|(_, queue)| asleep(queue).map_or(since, |at| at.max(since))).min()
    }

    /// Units were granted to a queue, the latest at `slot`; the last job of them costs so many units.
    pub(super) fn granted(&mut self, queue: usize, units: u64, last: Option<(Instant, u32)>) {
        let queue = &mut self.queues[queue];
        if units > 0 {
            self.clock = queue.granted.max(self.clock);
            queue.granted = self.clock.saturating_add(units);
        }
        if let Some((slot, cost)) = last {
            self.front = self.front.max(slot + self.step.saturating_mul(cost));
        }
    }

    /// Whether this is the next slot that the downstream itself has after one with a job of this cost.
    pub(super) fn is_next(&self, (last, cost): (Instant, u32), slot: Instant) -> bool {
        slot <= last + self.step.saturating_mul(cost)
    }

    /// The downstream has its next slot then. `queue` was told so.
    pub(super) fn reached(&mut self, queue: usize, slot: Instant) {
        self.front = self.front.max(slot);
        self.queues[queue].due = None;
    }

    /// How far apart the slots of a queue are, the last of which went to a job of this cost; see
    /// [`Asking::spaced`].
    pub(super) fn spaced(
        &mut self,
        queue: usize,
        apart: Option<Duration>,
        cost: Option<u32>,
        spacing: Option<Duration>,
    ) {
        let queue = &mut self.queues[queue];
        if let (Some(apart), Some(cost)) = (apart, cost) {
            queue.wide = apart > self.pace.saturating_mul(cost);
        }
        queue.asking.spaced(apart, spacing);
    }

    /// A queue has its next slot then, as its own limits have it.
    pub(super) fn sleep(&mut self, queue: usize, slot: Instant) {
        let lead = self.lead();
        let queue = &mut self.queues[queue];
        let ask_at = slot.checked_sub(lead).unwrap_or(slot) + queue.asking.jitter(lead / 2);
        queue.due = Some(Due { slot, ask_at });
    }

    /// The store's clock stepped, or lost what it knew: what was learnt of its slots is void.
    pub(super) fn forget(&mut self) {
        self.front = Instant::now();
        self.queueing.forget();
        self.queues.iter_mut().for_each(|queue| (queue.due, queue.barred) = (None, None));
        self.freed = true;
    }

    /// Whether the bars were lifted since the last time that this was asked.
    pub(super) fn is_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Jobs of this queue that cost as much or more wait for the end of a window, which is then.
    pub(super) fn bar(&mut self, queue: usize, cost: u32, ends: Instant) {
        self.queues[queue].barred = Some((cost, ends));
    }

    /// When the window ends that a job of this cost waits for, if it lies beyond what a call reaches.
    pub(super) fn barred(&self, queue: usize, cost: u32, reaches: Instant) -> Option<Instant> {
        let barred = self.queues[queue].barred.filter(|(least, ends)| cost >= *least && *ends > reaches);
        barred.map(|(_, ends)| ends)
    }
}
