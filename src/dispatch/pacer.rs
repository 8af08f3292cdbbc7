//! The pacer: owns the jobs that wait, reserves slots, and sends each job off when its slot comes.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::asking::Asking;
use super::clock::{Alarm, ring};
use super::flight::{self, Event, Flight, Gear, Place};
use super::held::{self, Held};
use super::intake::{Intake, expired, intake};
use super::lane::{Entry, Lane};
use super::meters::Meters;
use super::places::Places;
use super::source::{DeadLetter, Delivery, Report, Source, Ticket};
use super::{Dispatcher, Drained, Options};
use crate::sink::Response;
use crate::store::{Observed, Reserved, SlotClock, Store, StoreError};
use crate::time::{Deadline, wall_now};

mod call;
mod drain;

use call::{Call, Reply, answer, reserve};

/// How long to wait before the store is asked again after an error: at first, and at most.
const STORE_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A store answers sooner, or the call fails.
const LONGEST_CALL: Duration = Duration::from_secs(2);

/// Below this many jobs nothing stale is looked for.
const CROWDED: usize = 1024;

/// So many deliveries or events are taken in at once before slots are looked at again.
const GULP: usize = 32;

pub(super) struct Pacer {
    options: Arc<Options>,
    store: Arc<dyn Store>,
    gear: Arc<Gear>,
    asking: Asking,
    places: Places,
    lane: Lane,
    held: held::Queue,
    /// Maps slots to this process's clock.
    slots: SlotClock,
    /// Not to ask the store before.
    ask_at: Instant,
    /// Few places are free while more jobs wait: more may be free by then.
    gather_until: Option<Instant>,
    /// The store's last answers were errors, so many.
    failures: u32,
    /// Tells this replica's lease from others.
    replica: Arc<str>,
    /// Not to renew the lease before.
    lease_at: Instant,
    flights: TaskTracker,
    /// Ends the flights that have not ended in time.
    abandon: CancellationToken,
    tell: mpsc::UnboundedSender<Event>,
    next_seq: u64,
    /// So many jobs in the lane that stale ones are looked for.
    crowded: usize,
}

/// What the pacer listens to.
struct Ears {
    stop: CancellationToken,
    alarm: Box<dyn Alarm>,
    events: mpsc::UnboundedReceiver<Event>,
    call: Option<Call>,
}

impl Pacer {
    /// Runs a dispatcher's parts until the source ends and all is settled, or until `stop`.
    pub(super) async fn run(parts: Dispatcher, source: impl Source, stop: CancellationToken) -> Drained {
        let alarm = parts.clock.alarm();
        let (tell, events) = mpsc::unbounded_channel();
        Self::new(parts, tell).listen(source, Ears { stop, alarm, events, call: None }).await
    }

    fn new(parts: Dispatcher, tell: mpsc::UnboundedSender<Event>) -> Self {
        let Dispatcher { options, store, sink, .. } = parts;
        let interval = options.limits.rate().interval();
        let tolerance = interval.clamp(Duration::from_millis(5), Duration::from_millis(50));
        let gear = Gear {
            downstream: options.downstream.clone(),
            sink,
            retry: options.retry,
            tolerance,
            opening: interval.max(tolerance),
            meters: Meters::new(&options.downstream),
        };
        gear.meters.rate("config", options.limits.rate().per_second());
        Self {
            asking: Asking::new(&options.limits, options.horizon, options.concurrency),
            places: Places::new(options.concurrency),
            options: Arc::new(options),
            store,
            abandon: CancellationToken::new(),
            gear: Arc::new(gear),
            lane: Lane::default(),
            held: held::Queue::default(),
            slots: SlotClock::new(),
            ask_at: Instant::now(),
            gather_until: None,
            failures: 0,
            replica: format!("{:016x}", fastrand::u64(..)).into(),
            lease_at: Instant::now(),
            flights: TaskTracker::new(),
            tell,
            next_seq: 0,
            crowded: CROWDED,
        }
    }

    async fn listen(mut self, mut source: impl Source, mut ears: Ears) -> Drained {
        let mut open = true;
        // Asking and retrying need no precision; the runtime's timer gathers them.
        let (mut timer, mut timed) = (pin!(sleep(Duration::ZERO)), None);
        loop {
            let now = Instant::now();
            self.lane.promote(now);
            self.release(Deadline::at(now));
            if ears.call.is_none() {
                ears.call = self.ask(now);
            }
            if !open && ears.call.is_none() && self.is_idle() {
                break;
            }
            self.gear.meters.hands(self.lane.len(), self.held.len(), self.places.sending());
            ears.alarm.set(self.next_release());
            let wake = self.wake(ears.call.is_some());
            if let Some(at) = wake.filter(|_| wake != timed) {
                timer.as_mut().reset(at);
            }
            timed = wake;
            tokio::select! {
                biased;
                () = ears.stop.cancelled() => break,
                () = ring(&mut *ears.alarm) => {}
                Some(event) = ears.events.recv() => {
                    self.note(event);
                    std::iter::from_fn(|| ears.events.try_recv().ok()).take(GULP).for_each(|event| self.note(event));
                }
                reply = answer(&mut ears.call) => {
                    if let Some(Call { batch, .. }) = ears.call.take() {
                        self.assign(batch, reply);
                    }
                }
                () = &mut timer, if timed.is_some() => timed = None,
                delivery = source.next(), if open => {
                    let more = std::iter::from_fn(|| source.next().now_or_never().flatten());
                    let none = delivery.is_none();
                    delivery.into_iter().chain(more.take(GULP)).for_each(|delivery| self.take_in(delivery));
                    if none {
                        open = false;
                        self.purge();
                    }
                }
            }
        }
        self.drain(source, ears).await
    }

    fn is_idle(&self) -> bool {
        self.places.sending() == 0 && self.held.len() == 0 && self.lane.is_empty()
    }

    /// When the next job is to be released.
    fn next_release(&self) -> Option<Instant> {
        let room = self.places.sending() < self.options.concurrency;
        self.held.next_due().filter(|_| room).map(Deadline::instant)
    }

    /// When something else is to be done that no event tells of.
    fn wake(&self, calling: bool) -> Option<Instant> {
        let ask = (!calling && self.lane.ready() > 0 && self.free() > 0)
            .then(|| self.gather_until.map_or(self.ask_at, |until| until.max(self.ask_at)));
        [ask, self.lane.next_due()].into_iter().flatten().min()
    }

    /// How many more jobs would find a place at their slots.
    fn free(&self) -> usize {
        self.places.free(&self.held)
    }

    fn take_in(&mut self, delivery: Delivery) {
        self.gear.meters.received.increment(1);
        let seq = self.next_seq;
        self.next_seq += 1;
        match intake(delivery, &self.options.rules, seq) {
            Intake::Ready(entry) => self.lane.push(entry),
            Intake::Later(due, entry) => self.lane.push_later(due, entry),
            Intake::Dead(ticket, letter, wants_reply) => self.bury(ticket, letter, wants_reply),
        }
        if self.lane.len() >= self.crowded {
            self.purge();
        }
    }

    /// Buries a job that needs no slot for it.
    fn bury(&self, ticket: Box<dyn Ticket>, letter: DeadLetter, wants_reply: bool) {
        self.spawn(flight::bury(Arc::clone(&self.gear), ticket, letter, wants_reply.then(Response::default)));
    }

    /// Forgets jobs whose connection is gone.
    fn purge(&mut self) {
        self.lane.drop_stale();
        self.gear.meters.stale.increment(self.held.drop_stale() as u64);
        self.crowded = (2 * self.lane.len()).max(CROWDED);
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Back(entry) | Event::Retry(_, entry) if !entry.ticket.is_live() => drop(entry),
            Event::Back(entry) => self.lane.push(entry),
            Event::Retry(due, entry) => self.lane.push_later(due, entry),
            Event::Landed(took) => self.places.landed(took),
        }
    }

    /// Asks for slots for the jobs whose turn it is, unless it is too early.
    fn ask(&mut self, now: Instant) -> Option<Call> {
        if now < self.ask_at || self.lane.ready() == 0 {
            self.gather_until = None;
            return None;
        }
        let want = self.asking.batch(self.lane.ready(), self.free());
        if want.count == 0 {
            self.gather_until = None;
            return None;
        }
        if want.scarce && now < *self.gather_until.get_or_insert(now + self.asking.gathering()) {
            return None;
        }
        self.gather_until = None;
        let mut batch = VecDeque::with_capacity(want.count);
        let wall = wall_now();
        while batch.len() < want.count {
            let Some(entry) = self.lane.pop() else { break };
            if !entry.ticket.is_live() {
                // The connection is gone, and with it this and, likely, many others.
                drop(entry);
                self.purge();
            } else if let Some(deadline) = entry.job.deadline.filter(|deadline| *deadline < wall) {
                // Here already: a slot would be wasted on it.
                let report = Report { attempts: entry.attempts, ..Report::UNSENT };
                self.bury(entry.ticket, expired(deadline, report), entry.job.reply.is_some());
            } else {
                batch.push_back(entry);
            }
        }
        if batch.is_empty() {
            return None;
        }
        let costs = batch.iter().map(|entry| entry.job.cost).collect();
        // A connection takes as long to open as the call and the hold take together, or longer.
        self.gear.sink.warm();
        let lease = self.lease(now);
        let reply = reserve(Arc::clone(&self.store), Arc::clone(&self.options), costs, lease);
        Some(Call { batch, reply: Box::pin(reply) })
    }

    /// The lease to renew with the next call, four times as often as it needs.
    fn lease(&mut self, now: Instant) -> Option<(Arc<str>, Duration)> {
        let due = now >= self.lease_at;
        due.then(|| {
            let ttl = self.asking.lease();
            self.lease_at = now + ttl / 4;
            (Arc::clone(&self.replica), ttl)
        })
    }

    /// Holds the jobs that were granted a slot until then; the others go back to the lane.
    fn assign(&mut self, mut batch: VecDeque<Entry>, reply: Reply) {
        match reply.answer {
            Ok(ref answer) => {
                self.heard(&reply, answer);
                if reply.received - reply.sent > LONGEST_CALL {
                    // The process stood still meanwhile: when the slots come, or came, cannot be told.
                    self.gear.meters.late.increment(answer.slots.len() as u64);
                    return batch.into_iter().for_each(|entry| self.lane.push(entry));
                }
                let now = Deadline::at(reply.received);
                for &slot in &answer.slots {
                    let Some(entry) = batch.pop_front() else { break };
                    let deadline = self.slots.hold(slot).unwrap_or_else(Deadline::now);
                    self.gear
                        .meters
                        .granted(reply.sent.saturating_duration_since(entry.since), deadline.since(now));
                    self.held.push(Held { entry, slot, deadline });
                }
            }
            Err(error) => self.failed(&error),
        }
        for entry in batch {
            self.lane.push(entry);
        }
    }

    /// Sends off the jobs whose slots have come, as far as there are places. One that finds none
    /// waits for it as long as its slot is still now.
    fn release(&mut self, now: Deadline) {
        while self.places.sending() < self.options.concurrency {
            let Some(held) = self.held.pop_due(now) else { break };
            if now.since(held.deadline) > self.gear.tolerance {
                self.gear.meters.late.increment(1);
                self.lane.push(held.entry);
                continue;
            }
            let place = Place::new(self.tell.clone());
            self.places.taken();
            self.spawn(Flight::new(Arc::clone(&self.gear), place, held).fly());
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.flights.spawn(self.abandon.clone().run_until_cancelled_owned(work));
    }

    /// Learns from an answer what time it is at the store, how many replicas there are, and when to
    /// ask again.
    fn heard(&mut self, reply: &Reply, answer: &Reserved) {
        let meters = &self.gear.meters;
        meters.roundtrip.record((reply.received - reply.sent).as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "a histogram of at most 1024")]
        meters.batch.record(answer.slots.len() as f64);
        meters.slots.increment(answer.slots.len() as u64);
        meters.store_connected.set(1.0);
        if self.failures > 0 {
            tracing::info!(downstream = self.options.downstream, "the store answers again");
            self.failures = 0;
        }
        if let Some(replicas) = answer.replicas {
            self.asking.share(replicas);
        }
        let observed = self.slots.observe(reply.sent, answer.now, answer.epoch, reply.received);
        if observed == Observed::Stepped {
            tracing::warn!(
                downstream = self.options.downstream,
                "the store's clock stepped or its state was lost: held slots are given up and reserved anew"
            );
            meters.stepped.increment(self.held.len() as u64);
            self.held.drain().for_each(|entry| self.lane.push(entry));
        }
        let pause = self.asking.pause(answer.now, answer.next);
        // From when it was sent: counted from the answer, a replica far from the store would always come
        // too late, after a nearer one took every slot.
        self.ask_at = self.ask_at.max(reply.sent + pause);
    }

    fn failed(&mut self, error: &StoreError) {
        let downstream = &self.options.downstream;
        self.gear.meters.store_errors.increment(1);
        self.gear.meters.store_connected.set(0.0);
        let (first, most) = STORE_BACKOFF;
        let ceiling = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(most);
        if self.failures == 0 {
            tracing::warn!(downstream, %error, "no slots while the store is away; jobs are held");
        } else {
            tracing::debug!(downstream, %error, "the store is still away");
        }
        self.failures += 1;
        let now = Instant::now();
        self.lease_at = now;
        self.ask_at = now + ceiling.mul_f64(0.5 + 0.5 * fastrand::f64());
    }
}
