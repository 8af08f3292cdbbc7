//! The pacer: owns the jobs that wait, reserves slots, and sends each job off when its slot comes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::control::News;
use super::cost::max_cost;
use super::entry::Entry;
use super::flight::{self, Event, Flight, Gear, Place};
use super::intake::{Intake, intake};
use super::meters::Meters;
use super::source::{DeadLetter, Delivery, Source, Ticket};
use super::{Dispatcher, Drained, OnLimit, Options, window};
use crate::job::Rules;
use crate::limit::LimitSet;
use crate::pace::Settings;
use crate::pace::backlog::Backlog;
use crate::pace::release::clock::{Alarm, ring};
use crate::pace::release::{Concurrency, HeldQueue, PauseGate};
use crate::pace::schedule::Schedule;
use crate::sink::Response;
use crate::store::{Changes, SlotClock, Store};
use crate::time::Deadline;

mod absence;
mod ask;
mod call;
mod drain;
mod halt;
mod hear;
mod pause;
mod reload;
mod tend;
mod terms;

use absence::{Absence, Heard, Probe, probed};
use call::{Call, answer};
use halt::{Halt, Steps};
use pause::Pauses;
use tend::{Tending, told};
use terms::Accord;

/// A store answers sooner, or the call fails.
const LONGEST_CALL: Duration = Duration::from_secs(2);

/// So many deliveries or events are taken in at once before slots are looked at again.
const GULP: usize = 32;

pub(super) struct Pacer {
    /// What it goes by.
    settings: Arc<Settings>,
    /// What a message must obey to be a job.
    rules: Rules,
    /// The most messages that the source is to hand out unsettled, where the limits do not release fewer.
    prefetch: u16,
    /// How long sends in flight may take to end once it is stopped.
    drain_timeout: Duration,
    store: Arc<dyn Store>,
    gear: Arc<Gear>,
    schedule: Schedule,
    concurrency: Concurrency,
    backlog: Backlog<Entry>,
    held: HeldQueue<Entry>,
    /// Maps slots to this process's clock.
    slots: Arc<SlotClock>,
    /// Not to ask the store before.
    ask_at: Instant,
    pauses: Pauses,
    accord: Accord,
    /// Of the pace that all share.
    shared: Heard,
    absence: Option<Absence>,
    halt: Halt,
    /// Not to ask before whether the store is there.
    probe_at: Instant,
    /// The source is to hand out so many unsettled messages at most.
    resize: Option<u16>,
    /// Somebody changed what holds for the downstream: look soon.
    look: bool,
    /// When it looked last.
    looked_at: Option<Instant>,
    /// Not to make such a call before.
    tend_at: Instant,
    /// When the store answered last.
    heard_at: Instant,
    /// Few places are free while more jobs wait: more may be free by then.
    batch_delay_until: Option<Instant>,
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
}

/// What the pacer listens to.
struct Ears {
    stop: CancellationToken,
    alarm: Box<dyn Alarm>,
    events: mpsc::UnboundedReceiver<Event>,
    call: Option<Call>,
    tending: Option<Tending>,
    probe: Option<Probe>,
    /// What is done while this replica takes no jobs.
    steps: Steps,
    changes: Changes,
    news: News,
}

impl Pacer {
    /// Runs a dispatcher's parts until the source ends and all is settled, or until `stop`.
    pub(super) async fn run(mut parts: Dispatcher, source: impl Source, stop: CancellationToken) -> Drained {
        let alarm = parts.clock.alarm();
        let news = std::mem::take(&mut parts.news);
        let (tell, events) = mpsc::unbounded_channel();
        let changes = parts.store.changes(&parts.options.downstream);
        let ears = Ears {
            stop,
            alarm,
            events,
            call: None,
            tending: None,
            probe: None,
            steps: Steps::new(),
            changes,
            news,
        };
        Self::new(parts, tell).listen(source, ears).await
    }

    fn new(parts: Dispatcher, tell: mpsc::UnboundedSender<Event>) -> Self {
        let Dispatcher { options, store, sink, .. } = parts;
        let accord = Accord::new(options.clone());
        let options = prepared(options);
        let settings = options.settings();
        let shared = Heard::new(settings.lanes().count());
        let (tolerance, opening) = lateness(&settings);
        let gear = Gear {
            downstream: settings.downstream.clone(),
            sink,
            retry: options.retry,
            max_pause: options.max_pause,
            gate: Arc::new(PauseGate::default()),
            tolerance,
            opening,
            meters: Meters::new(&settings.downstream, settings.on_limit),
            letters: flight::letter_log(&settings.downstream),
            sending: Arc::default(),
        };
        gear.meters.rate_from(settings.limits.rate().per_second(), false);
        let schedule = Schedule::new(&settings);
        store.set_horizon(&settings.downstream, schedule.turns().farthest());
        Self {
            schedule,
            concurrency: Concurrency::new(settings.concurrency),
            backlog: Backlog::new(settings.plans.len()),
            settings: Arc::new(settings),
            rules: options.rules,
            prefetch: options.prefetch,
            drain_timeout: options.drain_timeout,
            store,
            abandon: CancellationToken::new(),
            gear: Arc::new(gear),
            held: HeldQueue::default(),
            slots: Arc::default(),
            ask_at: Instant::now(),
            pauses: Pauses::default(),
            accord,
            shared,
            absence: None,
            halt: Halt::default(),
            probe_at: Instant::now(),
            resize: None,
            look: false,
            looked_at: None,
            tend_at: Instant::now(),
            heard_at: Instant::now(),
            batch_delay_until: None,
            failures: 0,
            replica: format!("{:016x}", fastrand::u64(..)).into(),
            lease_at: Instant::now(),
            flights: TaskTracker::new(),
            tell,
            next_seq: 0,
        }
    }

    async fn listen(mut self, mut source: impl Source, mut ears: Ears) -> Drained {
        let mut open = true;
        // Asking and retrying need no precision; the runtime's timer gathers them.
        let (mut timer, mut timed) = (pin!(sleep(Duration::ZERO)), None);
        loop {
            let now = Instant::now();
            self.backlog.promote(now, self.schedule.turns().early());
            self.lift();
            self.expire();
            self.go_open(now);
            self.release(Deadline::at(now));
            if ears.call.is_none() {
                ears.call = self.ask(now);
            }
            if ears.tending.is_none() {
                ears.tending = self.tend(now, ears.call.is_some());
            }
            if ears.probe.is_none() {
                ears.probe = self.probe(now);
            }
            if !open && ears.call.is_none() && self.is_idle() {
                break;
            }
            self.tend_halt(&mut source, &ears.steps, now);
            if let Some(window) = self.resize.take() {
                source.resize(window);
            }
            self.gear.meters.hands(self.backlog.len(), self.held.len(), self.concurrency.sending());
            ears.alarm.set(self.next_release());
            let wake = self.wake(&ears);
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
                    if let Some(call) = ears.call.take() {
                        self.hear(call, reply);
                    }
                }
                reply = told(&mut ears.tending) => {
                    if let Some(Tending { what, .. }) = ears.tending.take() {
                        self.tended(&what, reply);
                    }
                }
                reply = probed(&mut ears.probe) => {
                    ears.probe = None;
                    self.found(reply);
                }
                Some(step) = ears.steps.next() => self.stepped(step),
                () = ears.changes.next() => self.changed(),
                options = ears.news.next() => self.reload((*options).clone()),
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

    /// How many messages the source is to hand out unsettled.
    fn window(&self) -> u16 {
        window(self.prefetch, &self.settings.limits, self.settings.on_limit)
    }

    fn is_idle(&self) -> bool {
        self.concurrency.sending() == 0
            && self.held.len() == 0
            && self.backlog.is_empty()
            && self.halt.has_no_jobs()
    }

    /// When the next job is to be released.
    fn next_release(&self) -> Option<Instant> {
        let room = self.concurrency.sending() < self.settings.concurrency;
        self.held.next_due().filter(|_| room).map(Deadline::instant)
    }

    /// When something else is to be done that no event tells of.
    fn wake(&self, ears: &Ears) -> Option<Instant> {
        let calling = ears.call.is_some();
        let from = self.ask_from();
        let since = self.batch_delay_until.map_or(from, |until| until.max(from));
        let asking = !calling && self.free() > 0 && self.may_ask();
        let ask = asking.then(|| self.schedule.wake_at(&self.backlog, since)).flatten();
        let ask = if self.halt.is_halted() { self.trial_wake(calling) } else { ask };
        let tend = if ears.tending.is_some() { None } else { self.tend_due(calling) };
        let probe = if ears.probe.is_some() { None } else { self.probe_due() };
        let rest = [self.backlog.next_due(self.schedule.turns().early()), self.lift_due(), self.expire_due()];
        [ask, tend, probe].into_iter().chain(rest).flatten().min()
    }

    /// Not to ask for slots before.
    fn ask_from(&self) -> Instant {
        self.pauses.ask_from.map_or(self.ask_at, |from| from.max(self.ask_at))
    }

    /// How many more jobs would find a place at their slots.
    fn free(&self) -> usize {
        self.concurrency.free(&self.held)
    }

    fn take_in(&mut self, delivery: Delivery) {
        let meters = &self.gear.meters;
        meters.received.increment(1);
        meters.poison.increment(delivery.message.malformed.is_some().into());
        let seq = self.next_seq;
        self.next_seq += 1;
        match intake(delivery, &self.rules, seq) {
            Intake::Ready(entry) => {
                self.unless_sending(entry).into_iter().for_each(|entry| self.backlog.push(entry));
            }
            Intake::Later(due, entry) => {
                self.unless_sending(entry).into_iter().for_each(|entry| self.backlog.push_later(due, entry));
            }
            Intake::Expired(entry, letter) => {
                // A send that began in time is the outcome of its message, however late that comes again.
                if let Some(Entry { ticket, job, .. }) = self.unless_sending(entry) {
                    self.bury(ticket, letter, job.reply.is_some());
                }
            }
            Intake::Dead(ticket, letter, wants_reply) => self.bury(ticket, letter, wants_reply),
        }
        if self.backlog.is_crowded() {
            self.purge();
        }
    }

    /// The job, unless it is of a message that was delivered again and is still being sent.
    fn unless_sending(&self, entry: Entry) -> Option<Entry> {
        let id = entry.ticket.is_redelivered().then(|| entry.job.id.clone());
        let entry = self.gear.sending.hand_over(entry);
        if entry.is_none() {
            let downstream = &self.settings.downstream;
            tracing::debug!(
                downstream,
                id,
                "delivered again while it is being sent: waiting for that outcome"
            );
        }
        entry
    }

    /// Buries a job that needs no slot for it.
    fn bury(&self, ticket: Box<dyn Ticket>, letter: DeadLetter, wants_reply: bool) {
        self.spawn(flight::bury(Arc::clone(&self.gear), ticket, letter, wants_reply.then(Response::default)));
    }

    /// Forgets jobs whose connection is gone.
    fn purge(&mut self) {
        self.backlog.drop_stale();
        self.halt.drop_stale();
        self.gear.meters.stale.increment(self.held.drop_stale() as u64);
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Back(entry) | Event::Retry(_, entry) if !entry.ticket.is_live() => drop(entry),
            Event::Back(entry) => self.backlog.push(entry),
            Event::Retry(due, mut entry) => {
                if entry.tries.unreachable == 0 {
                    // The downstream answered, and refused no credentials: an earlier refusal says nothing now.
                    (entry.tries.suspicion, entry.tries.refused_since) = (None, None);
                }
                self.backlog.push_later(due, entry);
            }
            Event::Pause(end) => self.penalized(end),
            Event::Refused(refused) => self.refused(*refused),
            Event::Landed(landed) => {
                self.concurrency.landed(landed.took);
                self.judge(landed);
            }
        }
    }

    /// Sends off the jobs whose slots have come, as far as there are places. One that finds none
    /// waits for it as long as its slot is still now.
    fn release(&mut self, now: Deadline) {
        while self.concurrency.sending() < self.settings.concurrency {
            let Some(held) = self.held.pop_due(now) else { break };
            if now.since(held.deadline) > self.gear.tolerance {
                self.gear.meters.late.increment(1);
                self.backlog.push(held.waiter);
                continue;
            }
            let place = Place::new(self.tell.clone());
            self.concurrency.taken();
            self.spawn(Flight::new(Arc::clone(&self.gear), place, held).fly());
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.flights.spawn(self.abandon.clone().run_until_cancelled_owned(work));
    }
}

/// The options as they are gone by.
fn prepared(mut options: Options) -> Options {
    if options.on_limit == OnLimit::Reject {
        options.limits = options.limits.policing();
        options.plans = options.plans.into_iter().map(LimitSet::policing).collect();
    }
    bound_costs(&mut options);
    options
}

/// What a job may cost follows the limits in force.
fn bound_costs(options: &mut Options) {
    let Options { rules, limits, plans, .. } = options;
    let plans = rules.plans.iter_mut().map(|plan| &mut plan.max_cost).zip(plans);
    for (most, limits) in std::iter::once((&mut rules.max_cost, limits)).chain(plans) {
        *most = max_cost(limits, most.given);
    }
}

/// How late a job may be handed over; and how late while a connection is opened.
pub(super) fn lateness(settings: &Settings) -> (Duration, Duration) {
    match settings.on_limit {
        OnLimit::Wait => {
            let interval = settings.lanes().map(LimitSet::spacing).min().unwrap_or_default();
            let tolerance = interval.clamp(Duration::from_millis(5), Duration::from_millis(50));
            (tolerance, interval.max(tolerance))
        }
        // It was allowed, and is sent as soon as it can be: to ask once more would charge it twice.
        OnLimit::Reject => (LONGEST_CALL, Duration::MAX),
    }
}
