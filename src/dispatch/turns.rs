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
use super::{OnLimit, Options};
use crate::limit::{Limit, LimitSet};
use crate::rate::Rate;

/// How early a plan asks for a slot that its own limits set, where nobody else waits. Below a round
/// trip to the store it would lose pace.
const LEAD: Duration = Duration::from_millis(20);

/// What is known of slots is known so exactly, over the way to the store and back.
const SLACK: Duration = Duration::from_millis(2);

/// The queues of a lane, and how each gets on.
#[derive(Debug)]
pub(super) struct Turns {
    /// The jobs without a plan, then each plan.
    queues: Vec<Turn>,
    /// Where on the clock of all queues the latest grant began.
    clock: u64,
    horizon: Duration,
    /// How far apart the slots of the downstream are at least.
    step: Duration,
    /// How far apart they are where there are many.
    pace: Duration,
    /// When the downstream has its next slot, as far as this replica knows.
    front: Instant,
}

#[derive(Debug)]
struct Turn {
    asking: Asking,
    /// Its slots lie further apart than the downstream's, as the last answer has it: before one, if its
    /// limits are slower.
    wide: bool,
    /// Its next slot, where its own limits set it.
    due: Option<Due>,
    /// Up to where it was granted units, on the clock of all queues.
    granted: u64,
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
}

impl Turn {
    fn new(limits: &LimitSet, options: &Options) -> Self {
        let asking = Asking::new(limits, options.horizon, options.concurrency);
        let police = options.on_limit == OnLimit::Reject;
        let asking = if police { asking.at_once() } else { asking };
        let wide = !police && limits.rate().interval() > options.limits.rate().interval();
        Self { asking, wide, due: None, granted: 0 }
    }
}

impl Turns {
    pub(super) fn new(options: &Options) -> Self {
        let even = options.limits.iter().filter(|limit| limit.burst() == 1);
        let step = even.map(Limit::rate).map(Rate::interval).max();
        Self {
            queues: options.sets().map(|limits| Turn::new(limits, options)).collect(),
            clock: 0,
            horizon: options.horizon,
            step: step.unwrap_or_default(),
            pace: step.unwrap_or_else(|| options.limits.rate().interval()),
            front: Instant::now(),
        }
    }

    /// Goes by other limits of the same queues from now on, each with what it was granted. What was learnt of
    /// slots is void.
    pub(super) fn follow(&mut self, options: &Options) {
        let new = Self::new(options);
        for (turn, new) in self.queues.iter_mut().zip(new.queues) {
            let replicas = turn.asking.replicas();
            *turn = Turn { granted: turn.granted, ..new };
            turn.asking.share(replicas);
        }
        (self.horizon, self.step, self.pace) = (new.horizon, new.step, new.pace);
        self.forget();
    }

    /// How to ask for the jobs of this queue.
    pub(super) fn asking(&self, queue: usize) -> &Asking {
        &self.queues[queue].asking
    }

    /// How many slots to ask for, of so many jobs and places.
    pub(super) fn batch(&self, next: Next, waiting: usize, places: usize) -> Batch {
        let turn = &self.queues[next.queue];
        // More of them would leave slots unused between each other.
        let one = next.contended && turn.wide && !turn.asking.is_open();
        turn.asking.batch(if one { waiting.min(1) } else { waiting }, places)
    }

    /// How long a lease is to last: as the slowest of them needs it.
    pub(super) fn lease(&self) -> Duration {
        self.queues.iter().map(|turn| turn.asking.lease()).max().unwrap_or_default()
    }

    /// So many replicas share the slots.
    pub(super) fn share(&mut self, replicas: u32) {
        self.queues.iter_mut().for_each(|turn| turn.asking.share(replicas));
    }

    /// The queue whose turn it is.
    pub(super) fn next(&self, lane: &Lane, now: Instant) -> Option<Next> {
        if let [_] = self.queues[..] {
            return lane.first(0).map(|_| Next {
                queue: 0,
                rank: u8::MAX,
                ahead: self.horizon,
                contended: false,
            });
        }
        let base = now.max(self.front);
        let ready = |turn: &Turn| turn.due.is_none_or(|due| due.slot <= base);
        let soon = |turn: &Turn| turn.due.is_none_or(|due| due.ask_at <= now);
        let (queue, rank, contended) = self
            .best(lane, ready)
            .map(|(queue, rank)| (queue, rank, rank.is_some()))
            .or_else(|| self.best(lane, soon).map(|(queue, rank)| (queue, rank, false)))?;
        let rank = rank.unwrap_or(u8::MAX);
        let ahead = self.ahead(lane, (queue, contended), now, base);
        Some(Next { queue, rank, ahead, contended })
    }

    /// The best queue among those that are `awake`, and the rank of the first job of the others.
    fn best(&self, lane: &Lane, awake: impl Fn(&Turn) -> bool) -> Option<(usize, Option<u8>)> {
        let all = || {
            self.queues.iter().enumerate().filter_map(|(queue, turn)| {
                let (rank, seq) = lane.first(queue)?;
                awake(turn).then(|| (rank, turn.granted.max(self.clock), seq, queue))
            })
        };
        let (.., queue) = all().min()?;
        Some((queue, all().filter(|(.., other)| *other != queue).map(|(rank, ..)| rank).min()))
    }

    /// How far ahead of now a queue may be granted a slot: not beyond what another one waits for, and
    /// where limits of its own may set it, hardly beyond what the downstream allows.
    fn ahead(&self, lane: &Lane, (queue, contended): (usize, bool), now: Instant, base: Instant) -> Duration {
        let own = match queue {
            0 => self.horizon,
            // The downstream sets its slots, so none is passed over.
            _ if !self.queues[queue].wide => self.horizon,
            _ if contended => base - now + SLACK,
            _ => base - now + self.lead(),
        };
        let others =
            self.queues.iter().enumerate().filter(|(other, _)| *other != queue && lane.ready(*other) > 0);
        let due = others.filter_map(|(_, turn)| turn.due.map(|due| due.slot)).filter(|due| *due > base).min();
        // A slot at that instant would push the other one on.
        let before = due.map_or(self.horizon, |due| (due - now).saturating_sub(Duration::from_micros(1)));
        own.min(self.horizon).min(before)
    }

    fn lead(&self) -> Duration {
        LEAD.min(self.horizon / 2)
    }

    /// When a queue that has jobs may ask, if none of them may before `since`.
    pub(super) fn wake(&self, lane: &Lane, since: Instant) -> Option<Instant> {
        let ready = self.queues.iter().enumerate().filter(|(queue, _)| lane.ready(*queue) > 0);
        let asleep = |turn: &Turn| turn.due.filter(|due| due.slot > self.front).map(|due| due.ask_at);
        ready.map(|(_, turn)| asleep(turn).map_or(since, |at| at.max(since))).min()
    }

    /// Units were granted to a queue, the latest at `slot`; the last job of them costs so many units.
    pub(super) fn granted(&mut self, queue: usize, units: u64, last: Option<(Instant, u32)>) {
        let turn = &mut self.queues[queue];
        if units > 0 {
            self.clock = turn.granted.max(self.clock);
            turn.granted = self.clock.saturating_add(units);
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
    pub(super) fn spaced(&mut self, queue: usize, apart: Option<Duration>, cost: Option<u32>) {
        let turn = &mut self.queues[queue];
        if let (Some(apart), Some(cost)) = (apart, cost) {
            turn.wide = apart > self.pace.saturating_mul(cost);
        }
        turn.asking.spaced(apart);
    }

    /// A queue has its next slot then, as its own limits have it.
    pub(super) fn sleep(&mut self, queue: usize, slot: Instant) {
        let lead = self.lead();
        let turn = &mut self.queues[queue];
        let ask_at = slot.checked_sub(lead).unwrap_or(slot) + turn.asking.jitter(lead / 2);
        turn.due = Some(Due { slot, ask_at });
    }

    /// The store's clock stepped, or lost what it knew: what was learnt of its slots is void.
    pub(super) fn forget(&mut self) {
        self.front = Instant::now();
        self.queues.iter_mut().for_each(|turn| turn.due = None);
    }
}
