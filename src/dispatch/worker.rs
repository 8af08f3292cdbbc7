//! The loop of a dispatcher: it takes jobs in, has the engine reserve their slots, starts a flight when a slot comes,
//! and learns from the outcomes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::control::{ControlEnd, Given};
use super::entry::Entry;
use super::flight::{self, Doomed, Event, Flight, FlightContext, FlightGuard};
use super::intake::{Intake, Taken};
use super::meters::Meters;
use super::preflight::{JobAdmission, Preflight};
use super::source::{DeadLetter, Delivery, ParkReason, Source};
use super::{Dispatcher, Drained, Ends, Options};
use crate::failpoint;
use crate::job::LanePart;
use crate::pace::{Effect, Engine, Wakeups};
use crate::sink::{Response, Soon};

mod again;
mod cancel;
mod drain;
mod find;
mod halt;
mod park;
mod refuse;
mod reload;
mod report;

use halt::Halt;
use park::Parking;
use report::Reporting;

/// The most deliveries or events that are handled in a row before due slots are handled.
const MAX_INPUTS_PER_TURN: usize = 32;

/// A running dispatcher.
pub(super) struct Worker {
    engine: Engine<Box<Entry>>,
    /// A buffer for effects, which is empty between calls.
    effects: Vec<Effect<Box<Entry>>>,
    context: Arc<FlightContext>,
    intake: Intake,
    halt: Halt,
    flights: Flights,
    parking: Parking,
    /// Ends once connections are open for which the engine waits.
    opened: Option<BoxFuture<'static, ()>>,
    reporting: Reporting,
}

/// The jobs that are being sent or settled.
struct Flights {
    tasks: TaskTracker,
    /// Ends flights that have not ended in time.
    abandon: CancellationToken,
    /// The sender for events of flights. They are boxed, since the channel allocates room for some from the start.
    events: mpsc::UnboundedSender<Box<Event>>,
    /// How long they may take to end once the process is stopped.
    drain_timeout: Duration,
    /// How long they may take to end while the process runs on; at least as long.
    send_timeout: Duration,
    /// How long new ones still begin once it is stopped.
    linger: Duration,
}

/// How long after the next probe of a cool-down, or after the pause of its lane, a throttled job may go, so that
/// another job goes first.
const BEHIND: Duration = Duration::from_millis(100);

/// The inputs of the worker.
struct Inputs {
    ends: Ends,
    wakeups: Wakeups,
    events: mpsc::UnboundedReceiver<Box<Event>>,
    control: ControlEnd,
}

impl Flights {
    fn new(options: &Options, send_timeout: Duration) -> (Self, mpsc::UnboundedReceiver<Box<Event>>) {
        let Options { drain_timeout, linger, .. } = *options;
        let (sender, events) = mpsc::unbounded_channel();
        let (tasks, abandon) = (TaskTracker::new(), CancellationToken::new());
        let (send_timeout, linger) = (send_timeout.max(drain_timeout), linger.min(drain_timeout));
        (Self { tasks, abandon, events: sender, drain_timeout, send_timeout, linger }, events)
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Boxed, it is moved once, and not by each of the layers around it.
        self.tasks.spawn(self.abandon.clone().run_until_cancelled_owned(Box::pin(work)));
    }
}

/// Waits until this work is done, and forgets it; forever, if there is none. Cancel safe.
async fn ended<T>(work: &mut Option<BoxFuture<'static, T>>) -> T {
    let output = match work {
        Some(under_way) => under_way.as_mut().await,
        None => std::future::pending().await,
    };
    *work = None;
    output
}

impl Worker {
    /// Runs a dispatcher's parts until the source ends and all is settled, or until its end.
    pub(super) fn run<S: Source>(
        mut parts: Dispatcher,
        source: S,
        ends: Ends,
    ) -> impl Future<Output = Drained> {
        let control = std::mem::take(&mut parts.control);
        let clock = Arc::clone(&parts.clock);
        let (worker, events) = Self::new(parts);
        // The future of a function has room for each argument twice, so the worker is boxed.
        let worker = Box::new(worker);
        let wakeups = worker.engine.wakeups(&*clock);
        let inputs = Inputs { ends, wakeups, events, control };
        let span = worker.engine.span();
        worker.listen(source, inputs).instrument(span)
    }

    fn new(parts: Dispatcher) -> (Self, mpsc::UnboundedReceiver<Box<Event>>) {
        let Dispatcher { options, store, sink, board, peers, send_timeout, .. } = parts;
        let engine = Engine::new(options.settings(), store).with_peers(peers).opening_connections();
        let mut engine = if options.proposes_limits { engine } else { engine.without_proposing() };
        let preflight = Preflight {
            cancelled: engine.follow_cancellations(),
            gate: Arc::clone(engine.release().gate()),
            tolerance: engine.release().tolerance(),
        };
        let (flights, events) = Flights::new(&options, send_timeout);
        let context = FlightContext {
            downstream: options.downstream.clone(),
            sink,
            retry: options.retry,
            preflight,
            meters: Meters::new(&options.downstream, engine.meters(), Arc::clone(board.totals())),
            logs: flight::Logs::new(&options.downstream),
            unsettled: Arc::default(),
            is_failing: Arc::default(),
            successes: Arc::default(),
        };
        let mut worker = Self {
            engine,
            effects: Vec::new(),
            context: Arc::new(context),
            intake: Intake::new(options.rules, options.max_wait),
            halt: Halt::default(),
            flights,
            parking: Parking::new(),
            opened: None,
            reporting: Reporting::new(board),
        };
        worker.bound_costs();
        worker.follow_pauses();
        worker.engine.follow_cool_downs(worker.context.retry.max_cooldown);
        (worker, events)
    }

    async fn listen(mut self: Box<Self>, mut source: impl Source, mut inputs: Inputs) -> Drained {
        let (mut is_open, mut ends_at) = (true, None);
        loop {
            failpoint::held().await;
            // This is no branch below: inputs that come all the time would put it off.
            if let Some(Given { options, sought }) = inputs.control.take() {
                options.into_iter().for_each(|options| self.reload(*options));
                sought.into_iter().for_each(|sought| self.answer(sought));
            }
            let now = Instant::now();
            self.tick(now, &source);
            if ends_at.is_some_and(|end| now >= end || !self.engine.has_slots_by(end)) {
                break;
            }
            if !is_open && self.has_no_jobs() {
                break;
            }
            self.tick_halt(&mut source, now);
            self.report(now);
            let own = self.wake_at().into_iter().chain(ends_at).min();
            let Inputs { ends, wakeups, events, control } = &mut inputs;
            tokio::select! {
                biased;
                () = ends.end.cancelled(), if ends_at.is_none() => {
                    let end = Instant::now() + self.flights.linger;
                    self.engine.end_at(end);
                    ends_at = Some(end);
                }
                // Events of flights may close the gate for slots that come now.
                Some(event) = events.recv() => {
                    self.note(*event);
                    let more = std::iter::from_fn(|| events.try_recv().ok());
                    more.take(MAX_INPUTS_PER_TURN).for_each(|event| self.note(*event));
                }
                () = ended(&mut self.halt.stopping) => self.source_stopped(),
                tried = ended(&mut self.halt.trial) => self.tried(tried),
                () = control.changed() => {}
                () = ended(&mut self.opened) => self.engine.on_opened(),
                () = self.engine.next(wakeups, own) => self.apply(),
                delivery = source.next(), if is_open && ends_at.is_none() => {
                    let more = std::iter::from_fn(|| source.next().now_or_never().flatten());
                    let is_end = delivery.is_none();
                    let all = delivery.into_iter().chain(more.take(MAX_INPUTS_PER_TURN));
                    all.for_each(|delivery| self.take_in(delivery));
                    if is_end {
                        is_open = false;
                        self.purge();
                    }
                }
            }
        }
        Box::pin(self.drain(source, inputs.events, inputs.ends.stop)).await
    }

    /// Does everything that is due at `now`, except for halts and reports.
    fn tick(&mut self, now: Instant, source: &impl Source) {
        self.park_waiting(now, source);
        let admission = JobAdmission { intake: &self.intake, preflight: &self.context.preflight };
        self.engine.tick(now, &admission);
        self.apply();
        self.unpark_eased(source);
    }

    /// Returns the next instant at which something is due, except for what the engine waits for.
    fn wake_at(&self) -> Option<Instant> {
        [self.trial_wake_at(), self.park_scan_at(), self.report_wake_at()].into_iter().flatten().min()
    }

    /// Whether every job is sent, settled or parked.
    fn has_no_jobs(&self) -> bool {
        self.parking.in_progress == 0 && self.engine.is_idle() && self.halt.jobs() == 0
    }

    /// Applies the effects of the engine.
    fn apply(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        self.engine.take_effects(&mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Release(held) => {
                    let place = FlightGuard::new(self.flights.events.clone(), held.waiter.key.clone());
                    self.flights.spawn(Flight::new(Arc::clone(&self.context), place, held).run());
                }
                Effect::Refuse(entry, refusal) => self.refuse(entry, refusal),
                // Opening a connection may take as long as the call and the hold together, or longer.
                Effect::Prepare { jobs, at_once, is_awaited } => {
                    let opened = self.context.sink.warm(Soon { jobs, at_once });
                    match opened.filter(|_| is_awaited) {
                        Some(opened) => self.opened = Some(opened),
                        None if is_awaited => self.engine.on_opened(),
                        None => {}
                    }
                }
                Effect::Follow => self.follow(),
                Effect::Eased => self.eased(),
                Effect::DropStale => self.halt.drop_stale(),
                Effect::Cancelled => self.discard_cancelled(),
                // The engine waits, or continues alone; slots were handed out only to flights, which check the gate.
                Effect::Failing(error) => self.reporting.on_store_error(&error),
                Effect::Recheck { .. } => {}
            }
        }
        self.effects = effects;
    }

    fn take_in(&mut self, delivery: Delivery) {
        let meters = &self.context.meters;
        meters.received.increment(1);
        meters.poison.increment(delivery.message.malformed.is_some().into());
        if let Some(stay) = delivery.stay.as_ref().filter(|_| !delivery.ticket.is_redelivered()) {
            meters.home(stay);
        }
        if (delivery.stay.is_some() || delivery.ticket.is_redelivered())
            && let Some(id) = &delivery.message.message_id
        {
            self.parking.lately.forget(id);
        }
        match self.intake.take(delivery, self.context.retry.max_age) {
            Taken::Ready(entry) => {
                self.warn_of_lane(&entry);
                match self.unless_ended(entry) {
                    Some((entry, None)) => self.offer(entry),
                    Some((entry, Some(due))) => self.wait(due, entry),
                    None => {}
                }
            }
            Taken::Later(due, entry) => {
                self.warn_of_lane(&entry);
                if let Some((entry, until)) = self.unless_ended(entry) {
                    self.wait(until.map_or(due, |until| until.max(due)), entry);
                }
            }
            Taken::Expired(entry, mut letter) => {
                // A send that began in time decides on its message, however late that is delivered again.
                if let Some((entry, _)) = self.unless_ended(entry) {
                    letter.report.attempts = entry.attempts.sent;
                    let reply = entry.job.reply.is_some().then(Response::default);
                    self.bury(entry, letter, reply);
                }
            }
            Taken::Dead(ticket, letter, wants_reply) => {
                let (doomed, reply) = (Doomed::message(ticket), wants_reply.then(Response::default));
                let context = Arc::clone(&self.context);
                self.flights.spawn(flight::dead_letter(context, doomed, letter, reply));
            }
        }
        if self.engine.is_crowded() {
            self.purge();
        }
    }

    /// Warns once if a producer expects its jobs to be scheduled by lanes.
    fn warn_of_lane(&mut self, entry: &Entry) {
        if !self.intake.has_warned_of_lanes
            && !entry.job.lane.name.is_empty()
            && !self.intake.rules.lanes.parts.contains(&LanePart::Lane)
        {
            self.intake.has_warned_of_lanes = true;
            let why = match self.intake.rules.lanes.parts.is_empty() {
                true => "without lanes.by: one tenant's backlog delays the jobs of others",
                false => "since no part of lanes.by is header:paced-lane",
            };
            tracing::warn!(
                downstream = self.context.downstream,
                "messages have paced-lane, which has no effect {why}"
            );
        }
    }

    /// Dead-letters a job that needs no slot, with this answer if a producer waits for one.
    fn bury(&self, mut entry: Box<Entry>, letter: DeadLetter, response: Option<Response>) {
        // If its message is delivered again meanwhile, this settles it.
        entry.begin(&self.context.unsettled);
        let (context, doomed) = (Arc::clone(&self.context), Doomed::of(entry));
        self.flights.spawn(flight::dead_letter(context, doomed, letter, response));
    }

    /// Discards jobs whose connection is lost.
    fn purge(&mut self) {
        self.engine.drop_stale();
        self.halt.drop_stale();
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Back(entry) | Event::Retry(_, entry) if !entry.ticket.is_live() => drop(entry),
            Event::Back(entry) => {
                self.unless_cancelled(entry).into_iter().for_each(|entry| self.engine.offer(entry));
            }
            Event::Retry(due, entry) => {
                let Some(mut entry) = self.unless_cancelled(entry) else { return };
                if entry.attempts.unreachable == 0 {
                    // The downstream answered without refusing the credentials, or refused some that have been replaced
                    // since: either way an earlier refusal is obsolete.
                    (entry.attempts.refusals.suspicion, entry.attempts.refusals.since) = (None, None);
                }
                entry.hold.reason = ParkReason::Retry;
                self.wait(due, entry);
            }
            // It goes behind the jobs that wait, so that one that is always throttled holds up no other.
            Event::Throttled(due, mut entry) => {
                let due = self.engine.pause_ends(&entry.key).map_or(due, |at| due.max(at + BEHIND));
                let wait = due.saturating_duration_since(Instant::now());
                entry.request.seq = self.intake.position_behind(wait);
                self.note(Event::Retry(due, entry));
            }
            Event::Parked(began) => _ = self.parking.ended(began),
            Event::Unparked(due, began, entry) => self.stays_here(due, began, entry),
            Event::Unused { lane, cost, slot } => self.engine.give_back_unused((lane, cost, slot)),
            Event::Pause(end, key) => {
                let alone = self.engine.penalize_for(&key, end);
                alone.into_iter().for_each(|lanes| self.context.logs.throttled(&lanes));
            }
            Event::CoolDown(sent, key) => {
                let alone = self.engine.cool_down_for(&key, sent);
                alone.into_iter().for_each(|lanes| self.context.logs.throttled(&lanes));
            }
            Event::Refused(refused) => self.refused(*refused),
            Event::Ended(end) => {
                self.engine.on_sent(end.took);
                self.engine.attempt_ended_for(&end.key, end.since, end.as_probe());
                self.on_attempt(end.ending);
                self.judge(end.since, end.contact);
            }
        }
    }
}
