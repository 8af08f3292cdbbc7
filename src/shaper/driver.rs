//! The task of a shaper: it drives the engine for waiting callers, and calls the store for reservations.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::ReserveError;
use super::cost::Cost;
use super::far::{Done, Far};
use super::known::Known;
use super::message::{Message, WaitOutcome, Waiting};
use crate::pace::release::Held;
use crate::pace::release::clock::ReleaseClock;
use crate::pace::{Admission, Answered, Effect, Engine, Settings, Unused, Waiter as _};
use crate::store::{BoxFuture, Stamp, Store};

/// The most messages that are handled before slots are checked again.
const MAX_MESSAGES_PER_TURN: usize = 64;

/// The longest time to give slots back at the end.
const CLOSING: Duration = Duration::from_secs(2);

/// Drives the engine of a shaper.
pub(super) struct Driver {
    known: Arc<Known>,
    clock: Arc<dyn ReleaseClock>,
    engine: Engine<Waiting>,
    /// An empty buffer, kept for its memory.
    effects: Vec<Effect<Waiting>>,
    far: Far,
    refresh: Refresh,
    /// Whether the engine's last call failed.
    is_failing: bool,
    /// The error of the last call that failed.
    last_error: ReserveError,
    /// The last two instants at which a caller that waited in order got a slot: the latest one first.
    served: [Option<Instant>; 2],
}

/// How long reservations still yield after a slot for a caller that acquires one slot after another: such a caller
/// pauses between two calls.
const YIELDING: Duration = Duration::from_secs(1);

/// Admits waiters whose cost the limits in force can ever hold.
struct Fits(Arc<Settings>);

impl Admission<Waiting> for Fits {
    fn admits(&self, waiting: &Waiting) -> bool {
        Cost::Each(waiting.cost().default_cost()).check(self.0.limits_of(waiting.lane())).is_ok()
    }
}

impl Driver {
    /// Creates the driver of a shaper with these settings. Callers read `known`, which outlives it.
    pub(super) fn new(
        given: Settings,
        store: Arc<dyn Store>,
        clock: Arc<dyn ReleaseClock>,
        max_wait: Duration,
        known: Arc<Known>,
    ) -> Self {
        let refresh = Refresh::new(Arc::clone(&store), given.downstream.clone());
        let engine = Engine::new(given, Arc::clone(&store));
        let engine = match known.replica.get() {
            Some(replica) => engine.continuing_as(Arc::clone(replica)),
            None => engine,
        };
        Self {
            clock,
            engine: engine.with_clock_and_gate(Arc::clone(&known.slots), Arc::clone(&known.gate)),
            known,
            effects: Vec::new(),
            far: Far::new(store, max_wait),
            refresh,
            is_failing: false,
            last_error: ReserveError::Stopped,
            served: [None; 2],
        }
    }

    /// Returns the tracing span of its work.
    pub(super) fn span(&self) -> tracing::Span {
        self.engine.span()
    }

    /// Runs until all senders of messages are dropped.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut wakeups = self.engine.wakeups(&*self.clock);
        loop {
            let fits = Fits(Arc::clone(self.engine.settings()));
            self.engine.tick(Instant::now(), &fits);
            self.apply();
            self.settle();
            match self.engine.generation() {
                // While this process follows its fallback, slots from the store would exceed the limits.
                _ if self.engine.is_absent() => self.far.fail(&self.last_error),
                Some(generation) => {
                    let waits_here = self.does_somebody_wait();
                    self.far.call(self.engine.settings(), (generation, self.engine.replica()), waits_here);
                }
                None if self.engine.has_no_limits() => self.has_no_limits(),
                None => {}
            }
            tokio::select! {
                message = inbox.recv() => {
                    let Some(message) = message else { break };
                    self.take_in(message);
                    let more = std::iter::from_fn(|| inbox.try_recv().ok());
                    more.take(MAX_MESSAGES_PER_TURN).for_each(|message| self.take_in(message));
                }
                done = self.far.next() => self.on_far(done),
                answer = self.refresh.next() => answer.into_iter().for_each(|answer| self.engine.on_answered(answer)),
                () = self.engine.next(&mut wakeups, None) => {}
            }
        }
        // The last clones may have given slots back when they were dropped.
        let settings = Arc::clone(self.engine.settings());
        let generation = self.engine.generation().unwrap_or_default();
        self.far.call(&settings, (generation, self.engine.replica()), false);
        let Self { far, engine, .. } = &mut self;
        let _ = timeout(CLOSING, async { tokio::join!(far.end(), engine.leave()) }).await;
    }

    /// Whether a caller waits in order, or callers got two slots in order shortly after each other, the last one a
    /// moment ago.
    fn does_somebody_wait(&self) -> bool {
        let apart = self.engine.settings().limits.spacing().saturating_mul(2).saturating_add(YIELDING);
        let goes_on = match self.served {
            [Some(last), Some(before)] => last.elapsed() < YIELDING && last - before < apart,
            _ => false,
        };
        goes_on || self.engine.somebody_waits()
    }

    fn take_in(&mut self, message: Message) {
        match message {
            Message::Wait { waiting, missed } => {
                if let Some(missed) = missed {
                    self.engine.on_missed(missed);
                }
                self.engine.offer(waiting);
                if self.engine.is_crowded() {
                    self.engine.drop_stale();
                }
            }
            Message::Unused(slot) => self.engine.pass_on(slot),
            Message::Withdraw(lane, seq) => self.engine.withdraw((lane, 0, seq)),
            Message::Reserve { lane, key, request } => self.far.ask((lane, key), request),
            Message::Return(taken) => self.far.give_back(taken),
            Message::Answered(answer, done) => {
                self.engine.on_answered(answer);
                // A pause must be applied before its maker is notified.
                self.apply();
                let _ = done.send(());
            }
            Message::Refresh(done) => {
                let age = self.known.slots.newest().map(|(age, _)| age);
                self.refresh.start(age, done);
            }
            Message::Reset => self.engine.forget_next_slots(),
        }
    }

    /// Carries out the engine's effects.
    fn apply(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        self.engine.take_effects(&mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Release(held) => self.release(held),
                Effect::Refuse(waiting, _) => self.refuse(waiting),
                Effect::Follow => self.known.follow(Arc::clone(self.engine.settings())),
                Effect::Failing(error) => {
                    self.is_failing = true;
                    self.last_error = error.clone().into();
                    self.known.set_trouble(Some(self.last_error.clone()));
                    if self.engine.generation().is_none() {
                        self.far.fail(&self.last_error);
                    }
                    // The store will refuse the call again until an operator fixes the cause.
                    if !error.is_away() {
                        let refused = || WaitOutcome::Refused(error.clone().into());
                        self.engine.take_waiting().into_iter().for_each(|waiting| answer(waiting, refused()));
                    }
                }
                Effect::Recheck { has_stepped } => {
                    self.known.recheck.notify_waiters();
                    if has_stepped {
                        self.far.forget_turn();
                    }
                }
                // Callers have no ids by which they could be cancelled.
                Effect::Prepare { .. } | Effect::DropStale | Effect::Cancelled | Effect::Eased => {}
            }
        }
        self.effects = effects;
    }

    /// Clears the error that callers get, once the limits in force are known and the store answers.
    fn settle(&mut self) {
        if self.engine.generation().is_none() || self.engine.is_failing() {
            return;
        }
        // A driver that is started in place of this one continues with its name.
        self.known.replica.get_or_init(|| Arc::clone(self.engine.replica()));
        if std::mem::take(&mut self.is_failing) {
            self.known.set_trouble(None);
        }
    }

    /// Fails all reservations, since this process cannot use the limits in force.
    fn has_no_limits(&mut self) {
        let error = ReserveError::NoLimits;
        self.far.fail(&error);
        self.is_failing = true;
        self.known.set_trouble(Some(error));
    }

    /// Hands a slot that has come to its caller.
    fn release(&mut self, held: Held<Waiting>) {
        self.served = [Some(Instant::now()), self.served[0]];
        // The driver does not know when the caller's work ends.
        self.engine.on_sent(None);
        let come = WaitOutcome::Come(Unused::of(&held));
        if let Err(WaitOutcome::Come(unused)) = held.waiter.answer.send(come) {
            self.engine.pass_on(unused);
        }
    }

    /// Refuses a waiter whose cost the limits in force can never hold.
    fn refuse(&mut self, waiting: Waiting) {
        let settings = self.engine.settings();
        match Cost::Each(waiting.cost().default_cost()).check(settings.limits_of(waiting.lane())) {
            Err(invalid) => answer(waiting, WaitOutcome::Refused(invalid.into())),
            // The limits have changed again, and hold its cost now.
            Ok(()) => self.engine.offer(waiting),
        }
    }

    /// Handles the end of a call for reservations.
    fn on_far(&mut self, done: Done) {
        if let Some(answered) = done.answered() {
            self.engine.on_answered(answered);
            // A turn that is void now is forgotten before the next one is known.
            self.apply();
        }
        if done.has_given_back() {
            self.engine.forget_next_slots();
        }
        let mapping = |slot| self.known.slots.mapping(slot);
        self.far.on_done(done, mapping, |retry_at, horizon| {
            let at = self.known.slots.deadline(retry_at).unwrap_or_else(Instant::now);
            let retry_at = at.checked_sub(horizon).unwrap_or(at);
            ReserveError::NotYet { retry_at }
        });
    }
}

/// Answers a waiter. A caller that is gone needs no answer.
fn answer(waiting: Waiting, outcome: WaitOutcome) {
    let _ = waiting.answer.send(outcome);
}

/// The age from which on the mapping of slots is refreshed.
const STALE: Duration = Duration::from_secs(5);

/// The longest time for reading the store's clock.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the store's clock for callers that wait long for a slot.
struct Refresh {
    store: Arc<dyn Store>,
    downstream: String,
    tried: Option<Instant>,
    call: Option<BoxFuture<'static, Option<Answered>>>,
    /// The callers to notify once the clock is known.
    asked: Vec<oneshot::Sender<()>>,
}

impl Refresh {
    const fn new(store: Arc<dyn Store>, downstream: String) -> Self {
        Self { store, downstream, tried: None, call: None, asked: Vec::new() }
    }

    /// Starts a read, unless the mapping is fresh or a read was tried recently.
    fn start(&mut self, age: Option<Duration>, done: oneshot::Sender<()>) {
        let now = Instant::now();
        let is_fresh = age.is_some_and(|age| age < STALE);
        if is_fresh || self.tried.is_some_and(|at| now - at < STALE) {
            // Dropping the sender notifies the caller.
            return;
        }
        self.tried = Some(now);
        self.asked.push(done);
        let (store, downstream) = (Arc::clone(&self.store), self.downstream.clone());
        self.call = Some(Box::pin(async move {
            let record = timeout(CLOCK_TIMEOUT, store.read_record(&downstream)).await.ok()?.ok()?;
            let stamp = Stamp { now: record.now, epoch: record.epoch, status: record.status };
            Some(Answered { sent: now, received: Instant::now(), stamp })
        }));
    }

    /// Waits for the store's answer; forever, if there is no call. Cancel safe.
    async fn next(&mut self) -> Option<Answered> {
        let Some(call) = &mut self.call else { return std::future::pending().await };
        let answered = call.as_mut().await;
        self.call = None;
        // The callers read the mapping once the stamp is taken in; the driver awaits nothing in between.
        self.asked.clear();
        answered
    }
}
