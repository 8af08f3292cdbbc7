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
use super::entry::Entry;
use super::flight::{self, Event, Flight, Gear, Place};
use super::intake::{Intake, intake};
use super::meters::Meters;
use super::source::{DeadLetter, Delivery, Source, Ticket};
use super::{Dispatcher, Drained, window};
use crate::job::Rules;
use crate::pace::Settings;
use crate::pace::backlog::Backlog;
use crate::pace::release::clock::{Alarm, ring};
use crate::pace::release::{Due, Release};
use crate::pace::schedule::Schedule;
use crate::pace::terms::SharedTerms;
use crate::sink::Response;
use crate::store::{Changes, SlotClock, Store};
use crate::time::Deadline;

mod absence;
mod ask;
mod call;
mod drain;
mod halt;
mod hear;
mod record;
mod reload;

use absence::{Absence, Heard, Probe, probed};
use call::{Call, answer};
use halt::{Halt, Steps};

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
    backlog: Backlog<Entry>,
    release: Release<Entry>,
    /// Maps slots to this process's clock.
    slots: Arc<SlotClock>,
    /// Not to ask the store before.
    ask_at: Instant,
    /// What all replicas hold in common.
    terms: SharedTerms,
    /// Of the pace that all share.
    shared: Heard,
    absence: Option<Absence>,
    halt: Halt,
    /// Not to ask before whether the store is there.
    probe_at: Instant,
    /// The source is to hand out so many unsettled messages at most.
    resize: Option<u16>,
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
        let ears = Ears { stop, alarm, events, call: None, probe: None, steps: Steps::new(), changes, news };
        Self::new(parts, tell).listen(source, ears).await
    }

    fn new(parts: Dispatcher, tell: mpsc::UnboundedSender<Event>) -> Self {
        let Dispatcher { options, store, sink, .. } = parts;
        let given = options.settings();
        let settings = given.clone().policing();
        let shared = Heard::new(settings.lanes().count());
        let release = Release::new(&settings);
        let gear = Gear {
            downstream: settings.downstream.clone(),
            sink,
            retry: options.retry,
            max_pause: options.max_pause,
            gate: Arc::clone(release.gate()),
            tolerance: release.tolerance(),
            meters: Meters::new(&settings.downstream, settings.on_limit),
            letters: flight::letter_log(&settings.downstream),
            sending: Arc::default(),
        };
        gear.meters.rate_from(settings.limits.rate().per_second(), false);
        let schedule = Schedule::new(&settings);
        store.set_horizon(&settings.downstream, schedule.turns().farthest());
        let mut pacer = Self {
            schedule,
            release,
            backlog: Backlog::new(settings.plans.len()),
            settings: Arc::new(settings),
            rules: options.rules,
            prefetch: options.prefetch,
            drain_timeout: options.drain_timeout,
            store,
            abandon: CancellationToken::new(),
            gear: Arc::new(gear),
            slots: Arc::default(),
            ask_at: Instant::now(),
            terms: SharedTerms::new(given, Instant::now()),
            shared,
            absence: None,
            halt: Halt::default(),
            probe_at: Instant::now(),
            resize: None,
            batch_delay_until: None,
            failures: 0,
            replica: format!("{:016x}", fastrand::u64(..)).into(),
            lease_at: Instant::now(),
            flights: TaskTracker::new(),
            tell,
            next_seq: 0,
        };
        pacer.bound_costs();
        pacer
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
            let circumstances = self.circumstances(ears.call.is_some());
            self.terms.tick(now, circumstances, (&self.store, &self.settings.downstream));
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
            self.gear.meters.hands(self.backlog.len(), self.release.held(), self.release.sending());
            ears.alarm.set(self.release.wake_at());
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
                (purpose, reply) = self.terms.calls.reply() => self.on_record_reply(&purpose, reply),
                reply = probed(&mut ears.probe) => {
                    ears.probe = None;
                    self.found(reply);
                }
                Some(step) = ears.steps.next() => self.stepped(step),
                () = ears.changes.next() => self.on_change(),
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
        self.release.is_quiet() && self.backlog.is_empty() && self.halt.has_no_jobs()
    }

    /// When something else is to be done that no event tells of.
    fn wake(&self, ears: &Ears) -> Option<Instant> {
        let calling = ears.call.is_some();
        let from = self.ask_from();
        let since = self.batch_delay_until.map_or(from, |until| until.max(from));
        let asking = !calling && self.release.free() > 0 && self.may_ask();
        let ask = asking.then(|| self.schedule.wake_at(&self.backlog, since)).flatten();
        let ask = if self.halt.is_halted() { self.trial_wake(calling) } else { ask };
        let record = self.terms.wake_at(self.circumstances(calling));
        let probe = if ears.probe.is_some() { None } else { self.probe_due() };
        let rest = [
            self.backlog.next_due(self.schedule.turns().early()),
            self.terms.pauses.wake_at(),
            self.expire_due(),
        ];
        [ask, record, probe].into_iter().chain(rest).flatten().min()
    }

    /// Not to ask for slots before.
    fn ask_from(&self) -> Instant {
        self.terms.pauses.ask_from().map_or(self.ask_at, |from| from.max(self.ask_at))
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
        self.gear.meters.stale.increment(self.release.drop_stale() as u64);
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
                self.release.sent(landed.took);
                self.judge(landed);
            }
        }
    }

    /// Sends off the jobs whose slots have come.
    fn release(&mut self, now: Deadline) {
        while let Some(due) = self.release.pop_due(now) {
            match due {
                Due::Now(held) => {
                    let place = Place::new(self.tell.clone());
                    self.spawn(Flight::new(Arc::clone(&self.gear), place, held).fly());
                }
                Due::Missed(entry) => {
                    self.gear.meters.late.increment(1);
                    self.backlog.push(entry);
                }
            }
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.flights.spawn(self.abandon.clone().run_until_cancelled_owned(work));
    }
}
