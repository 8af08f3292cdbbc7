//! The pacer: owns the lane, reserves slots, and sends each job off on its flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::asking::Asking;
use super::flight::{self, Event, Flight, Gear, Place};
use super::intake::{Intake, expired, intake};
use super::lane::{Entry, Lane};
use super::meters::Meters;
use super::source::{DeadLetter, Delivery, Report, Source, Ticket};
use super::{Dispatcher, Drained, Options};
use crate::limit::LimitSet;
use crate::sink::Response;
use crate::store::{BoxFuture, Observed, Reserve, Reserved, Scope, SlotClock, Store, StoreError};
use crate::time::{Micros, wall_now};

/// How long to wait before the store is asked again after an error: at first, and at most.
const STORE_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How long the source may take to stop.
const CLOSING: Duration = Duration::from_secs(5);

/// Below this many jobs nothing stale is looked for.
const CROWDED: usize = 1024;

pub(super) struct Pacer {
    options: Arc<Options>,
    store: Arc<dyn Store>,
    /// Tells this pacer to stop.
    stop: CancellationToken,
    gear: Arc<Gear>,
    asking: Asking,
    lane: Lane,
    /// Maps slots to this process's clock.
    slots: SlotClock,
    /// Not to ask the store before.
    ask_at: Instant,
    /// The store's last answers were errors, so many.
    failures: u32,
    /// Jobs that hold a slot or are being sent.
    flying: usize,
    flights: TaskTracker,
    /// Ends the flights that have not ended in time.
    abandon: CancellationToken,
    events: mpsc::UnboundedReceiver<Event>,
    tell: mpsc::UnboundedSender<Event>,
    next_seq: u64,
    /// So many jobs in the lane that stale ones are looked for.
    crowded: usize,
}

/// A call to the store, and the jobs that it asks for.
struct Call {
    batch: VecDeque<Entry>,
    reply: BoxFuture<'static, Reply>,
}

struct Reply {
    sent: Instant,
    received: Instant,
    costs: Vec<u32>,
    answer: Result<Reserved, StoreError>,
}

impl Pacer {
    pub(super) fn new(parts: Dispatcher, stop: CancellationToken) -> Self {
        let Dispatcher { options, store, sink, clock } = parts;
        let interval = options.limits.rate().interval();
        let gear = Gear {
            downstream: options.downstream.clone(),
            sink,
            clock,
            retry: options.retry,
            tolerance: interval.clamp(Duration::from_millis(5), Duration::from_millis(50)),
            era: AtomicU64::new(0),
            stop: CancellationToken::new(),
            meters: Meters::new(&options.downstream),
        };
        let (tell, events) = mpsc::unbounded_channel();
        Self {
            // How many replicas live is not known yet: each asks as if it were alone.
            asking: Asking::new(&options.limits, options.horizon, options.concurrency, 1),
            options: Arc::new(options),
            store,
            stop,
            abandon: CancellationToken::new(),
            gear: Arc::new(gear),
            lane: Lane::default(),
            slots: SlotClock::new(),
            ask_at: Instant::now(),
            failures: 0,
            flying: 0,
            flights: TaskTracker::new(),
            events,
            tell,
            next_seq: 0,
            crowded: CROWDED,
        }
    }

    pub(super) async fn run(mut self, mut source: impl Source) -> Drained {
        let stop = self.stop.clone();
        let mut open = true;
        let mut call: Option<Call> = None;
        loop {
            self.lane.promote(Instant::now());
            if call.is_none() {
                call = self.ask();
            }
            if !open && call.is_none() && self.flying == 0 && self.lane.is_empty() {
                break;
            }
            let wake = self.wake(call.is_some());
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(event) = self.events.recv() => self.note(event),
                reply = answer(&mut call) => {
                    if let Some(Call { batch, .. }) = call.take() {
                        self.assign(batch, reply);
                    }
                }
                delivery = source.next(), if open => match delivery {
                    Some(delivery) => self.take_in(delivery),
                    None => {
                        open = false;
                        self.purge();
                    }
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        }
        self.drain(source, call).await
    }

    /// When something is to be done that no event tells of.
    fn wake(&self, calling: bool) -> Option<Instant> {
        let ask = (!calling && self.lane.ready() > 0 && self.places() > 0).then_some(self.ask_at);
        [ask, self.lane.next_due()].into_iter().flatten().min()
    }

    fn places(&self) -> usize {
        self.options.concurrency.saturating_sub(self.flying)
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
        self.crowded = (2 * self.lane.len()).max(CROWDED);
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Back(entry) | Event::Retry(_, entry) if !entry.ticket.is_live() => drop(entry),
            Event::Back(entry) => self.lane.push(entry),
            Event::Retry(due, entry) => self.lane.push_later(due, entry),
            Event::Landed => self.flying -= 1,
        }
    }

    /// Asks for slots for the jobs whose turn it is, unless it is too early.
    fn ask(&mut self) -> Option<Call> {
        let want = self.asking.batch(self.lane.ready(), self.places());
        let now = Instant::now();
        if want.count == 0 || now < self.ask_at {
            return None;
        }
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
        let reply = reserve(Arc::clone(&self.store), Arc::clone(&self.options), costs);
        if want.scarce {
            self.ask_at = now + self.asking.gathering();
        }
        Some(Call { batch, reply: Box::pin(reply) })
    }

    /// Sends the jobs that were granted a slot on their flights; the others go back to the lane.
    fn assign(&mut self, mut batch: VecDeque<Entry>, reply: Reply) {
        match reply.answer {
            Ok(ref answer) => {
                self.heard(&reply, answer);
                for &slot in &answer.slots {
                    let Some(entry) = batch.pop_front() else { break };
                    self.launch(entry, slot);
                }
            }
            Err(error) => self.failed(&error),
        }
        for entry in batch {
            self.lane.push(entry);
        }
    }

    fn launch(&mut self, entry: Entry, slot: Micros) {
        let deadline = self.slots.deadline(slot).unwrap_or_else(Instant::now);
        let era = self.gear.era.load(Ordering::Acquire);
        let place = Place::new(self.tell.clone());
        let flight = Flight { gear: Arc::clone(&self.gear), place, entry, slot, deadline, era };
        self.flying += 1;
        self.spawn(flight.fly());
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.flights.spawn(self.abandon.clone().run_until_cancelled_owned(work));
    }

    /// Learns from an answer what time it is at the store, and when to ask again.
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
        let observed = self.slots.observe(reply.sent, answer.now, answer.epoch, reply.received);
        if observed == Observed::Stepped {
            tracing::warn!(
                downstream = self.options.downstream,
                "the store's clock stepped or its state was lost: held slots are given up and reserved anew"
            );
            self.gear.era.fetch_add(1, Ordering::AcqRel);
        }
        let next = next_slot(&self.options.limits, answer, &reply.costs);
        let pause = self.asking.pause(answer.now, next);
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
        self.ask_at = Instant::now() + ceiling.mul_f64(0.5 + 0.5 * fastrand::f64());
    }

    /// After the stop: what was not handed over goes back at once, what was may end in time.
    async fn drain(mut self, mut source: impl Source, call: Option<Call>) -> Drained {
        let end = Instant::now() + self.options.drain_timeout;
        self.gear.stop.cancel();
        // First no more may come, or what is given back would come straight back here.
        let closing = timeout(CLOSING.min(self.options.drain_timeout), async {
            source.close().await;
            while let Some(delivery) = source.next().await {
                self.gear.meters.returned.increment(1);
                delivery.ticket.give_back();
            }
        });
        if closing.await.is_err() {
            tracing::warn!(downstream = self.options.downstream, "the source did not close in time");
        }
        let mut entries: Vec<Entry> = self.lane.drain().collect();
        entries.extend(call.into_iter().flat_map(|call| call.batch));
        entries.extend(std::iter::from_fn(|| self.events.try_recv().ok()).filter_map(Event::into_entry));
        entries.sort_by_key(|entry| entry.seq);
        entries.into_iter().for_each(|entry| self.give_back(entry));

        self.flights.close();
        let flights = self.flights.clone();
        let mut landed = std::pin::pin!(timeout_at(end, flights.wait()));
        let in_time = loop {
            tokio::select! {
                ended = &mut landed => break ended.is_ok(),
                Some(event) = self.events.recv() => {
                    event.into_entry().into_iter().for_each(|entry| self.give_back(entry));
                }
            }
        };
        let unfinished = if in_time { 0 } else { flights.len() };
        self.abandon.cancel();
        flights.wait().await;
        while let Ok(event) = self.events.try_recv() {
            event.into_entry().into_iter().for_each(|entry| self.give_back(entry));
        }
        Drained { unfinished }
    }

    fn give_back(&self, entry: Entry) {
        self.gear.meters.returned.increment(1);
        entry.ticket.give_back();
    }
}

/// The answer of the call under way; never, when there is none. Cancel safe.
async fn answer(call: &mut Option<Call>) -> Reply {
    match call {
        Some(call) => call.reply.as_mut().await,
        None => std::future::pending().await,
    }
}

async fn reserve(store: Arc<dyn Store>, options: Arc<Options>, costs: Vec<u32>) -> Reply {
    let scope = Scope { downstream: &options.downstream, key: "" };
    let sent = Instant::now();
    let call = Reserve {
        scope,
        limits: &options.limits,
        costs: &costs,
        ahead: options.horizon,
        now: None,
        lease: None,
    };
    let answer = store.reserve(call).await;
    Reply { sent, received: Instant::now(), costs, answer }
}

/// The first slot that is free after an answer, as far as it tells.
fn next_slot(limits: &LimitSet, answer: &Reserved, costs: &[u32]) -> Micros {
    if let Some(refused) = answer.refused {
        return refused;
    }
    let mut states = answer.before.clone();
    for (&slot, &cost) in answer.slots.iter().zip(costs) {
        limits.commit(&mut states, slot, cost);
    }
    limits.earliest(&states, answer.now, 1)
}
