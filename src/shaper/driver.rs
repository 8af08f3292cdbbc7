//! The task of a shaper: it drives the engine for those who wait here, and calls the store for those who reserve.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::ReserveError;
use super::core::{Core, Known};
use super::cost::Cost;
use super::far::{Done, Far, Given, Returned};
use super::line::{Told, Waiting};
use super::queue::Request;
use super::reservation::Reservation;
use crate::pace::release::Held;
use crate::pace::release::clock::ReleaseClock;
use crate::pace::{Admission, Effect, Engine, LaneId, Settings, Stamp, Unused};
use crate::store::{BoxFuture, Store};

/// What the driver is told.
#[derive(Debug)]
pub(super) enum Message {
    /// One waits for a slot; it had this one before, and missed it.
    Wait { waiting: Waiting, missed: Option<Unused> },
    /// The slot of one has come, and it does not use it.
    Unused(Unused),
    /// The one of this lane and place in the order of arrival waits no longer.
    Leave(LaneId, u64),
    /// One asks for a slot, however far ahead.
    Reserve { lane: LaneId, key: String, request: Request<Given> },
    /// A slot is not used.
    Return(Returned),
    /// The store told this in answer to a call made elsewhere; that it was taken in is told back.
    Heard(Stamp, oneshot::Sender<()>),
    /// The store's clock is to be known well; that it is, as well as can be, is told back.
    Refresh(oneshot::Sender<()>),
    /// The counts of the limits began at 0.
    Reset,
}

/// The most messages that are taken in at once before slots are looked at again.
const MAX_MESSAGES_PER_TURN: usize = 64;

/// How long slots that are given back at the end may take.
const CLOSING: Duration = Duration::from_secs(2);

/// Drives the engine of a shaper.
pub(super) struct Driver {
    core: Weak<Core>,
    known: Arc<Known>,
    clock: Arc<dyn ReleaseClock>,
    engine: Engine<Waiting>,
    /// Empty, but for its memory.
    effects: Vec<Effect<Waiting>>,
    far: Far,
    refresh: Refresh,
    /// The last call failed that the engine made.
    is_failing: bool,
    /// Why the last call that failed did.
    last_error: ReserveError,
}

/// Lets those wait for slots that the limits in force can ever hold.
struct Fits(Arc<Settings>);

impl Admission<Waiting> for Fits {
    fn admits(&self, waiting: &Waiting) -> bool {
        Cost::Each(waiting.cost).check(self.0.limits_of(waiting.lane)).is_ok()
    }
}

impl Driver {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let known = Arc::clone(&core.known);
        let engine = Engine::new(core.given.clone(), Arc::clone(&core.store));
        let engine = match known.replica.get() {
            Some(replica) => engine.succeeding(Arc::clone(replica)),
            None => engine,
        };
        Self {
            core: Arc::downgrade(core),
            clock: Arc::clone(&core.clock),
            engine: engine.knowing(Arc::clone(&known.slots), Arc::clone(&known.gate)),
            known,
            effects: Vec::new(),
            far: Far::new(Arc::clone(&core.store), core.max_wait),
            refresh: Refresh::new(Arc::clone(&core.store), core.given.downstream.clone()),
            is_failing: false,
            last_error: ReserveError::Stopped,
        }
    }

    /// Runs until nobody is left who could tell it anything.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut wakeups = self.engine.wakeups(&*self.clock);
        loop {
            let fits = Fits(Arc::clone(self.engine.settings()));
            self.engine.tick(Instant::now(), &fits);
            self.apply();
            self.settle();
            match self.engine.generation() {
                // While this process goes on alone, what the store grants besides would be too much.
                _ if self.engine.is_absent() => self.far.fail(&self.last_error),
                Some(generation) => {
                    self.far.call(self.engine.settings(), (generation, self.engine.replica()))
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
                stamp = self.refresh.next() => stamp.into_iter().for_each(|stamp| self.engine.on_stamp(stamp)),
                () = self.engine.next(&mut wakeups, None) => {}
            }
        }
        // Those who were the last to go may have given slots back.
        let settings = Arc::clone(self.engine.settings());
        let generation = self.engine.generation().unwrap_or_default();
        self.far.call(&settings, (generation, self.engine.replica()));
        let Self { far, engine, .. } = &mut self;
        let _ = timeout(CLOSING, async { tokio::join!(far.end(), engine.end_returns()) }).await;
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
            Message::Leave(lane, seq) => self.engine.withdraw((lane, 0, seq)),
            Message::Reserve { lane, key, request } => self.far.ask((lane, key), request),
            Message::Return(returned) => self.far.give_back(returned),
            Message::Heard(stamp, done) => {
                self.engine.on_stamp(stamp);
                // A pause counts from when its maker is told that it is there.
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

    /// Does what the engine tells.
    fn apply(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        self.engine.take_effects(&mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Release(held) => self.release(held),
                Effect::Refuse(waiting, _) => self.refuse(waiting),
                Effect::Follow(_) => self.known.follow(Arc::clone(self.engine.settings())),
                Effect::Failing(error) => {
                    self.is_failing = true;
                    self.last_error = error.clone().into();
                    self.known.set_trouble(Some(self.last_error.clone()));
                    if self.engine.generation().is_none() {
                        self.far.fail(&self.last_error);
                    }
                    // It will say the same again until somebody mends the cause.
                    if !error.is_away() {
                        let refused = || Told::Refused(error.clone().into());
                        self.engine.take_waiting().into_iter().for_each(|waiting| tell(waiting, refused()));
                    }
                }
                Effect::Recheck => self.known.recheck.notify_waiters(),
                Effect::Prepare(_) | Effect::DropStale => {}
            }
        }
        self.effects = effects;
    }

    /// Notices that the limits in force are known, and that the store answers.
    fn settle(&mut self) {
        if self.engine.generation().is_none() || self.engine.is_failing() {
            return;
        }
        // A driver that is started in place of this one is no start.
        self.known.replica.get_or_init(|| Arc::clone(self.engine.replica()));
        if std::mem::take(&mut self.is_failing) {
            self.known.set_trouble(None);
        }
    }

    /// Until others propose limits that this process can go by, nobody gets a slot.
    fn has_no_limits(&mut self) {
        let error = ReserveError::NoLimits;
        self.far.fail(&error);
        self.is_failing = true;
        self.known.set_trouble(Some(error));
    }

    /// The slot of this one has come.
    fn release(&mut self, held: Held<Waiting>) {
        // What its caller does with it has no end that is known here.
        self.engine.on_sent(None);
        let come = Told::Come(Unused::of(&held));
        if let Err(Told::Come(unused)) = held.waiter.answer.send(come) {
            self.engine.pass_on(unused);
        }
    }

    /// The limits in force never hold what this one costs.
    fn refuse(&mut self, waiting: Waiting) {
        let settings = self.engine.settings();
        match Cost::Each(waiting.cost).check(settings.limits_of(waiting.lane)) {
            Err(invalid) => tell(waiting, Told::Refused(invalid.into())),
            // They held it no longer, and do again.
            Ok(()) => self.engine.offer(waiting),
        }
    }

    /// A call for slots far ahead has ended.
    fn on_far(&mut self, done: Done) {
        if let Some(stamp) = done.stamp() {
            self.engine.on_stamp(stamp);
        }
        if done.has_given_back() {
            self.engine.forget_next_slots();
        }
        let core = self.core.upgrade();
        let reservation = |lane, key: &str, granted, settings: &Arc<Settings>| {
            Reservation::new(core.as_ref()?, (lane, key), granted, settings)
        };
        self.far.on_done(done, reservation, |retry_at, horizon| {
            let at = self.known.slots.deadline(retry_at).unwrap_or_else(Instant::now);
            let retry_at = at.checked_sub(horizon).unwrap_or(at);
            ReserveError::NotYet { retry_at }
        });
    }
}

/// A caller that is gone needs no answer.
fn tell(waiting: Waiting, told: Told) {
    let _ = waiting.answer.send(told);
}

/// A mapping of slots is asked for anew once it is this old.
const STALE: Duration = Duration::from_secs(5);

/// How long the store may take to tell its clock.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks the store for its clock for those who wait long for a slot.
struct Refresh {
    store: Arc<dyn Store>,
    downstream: String,
    tried: Option<Instant>,
    call: Option<BoxFuture<'static, Option<Stamp>>>,
    /// Those who want to know when it is known.
    asked: Vec<oneshot::Sender<()>>,
}

impl Refresh {
    const fn new(store: Arc<dyn Store>, downstream: String) -> Self {
        Self { store, downstream, tried: None, call: None, asked: Vec::new() }
    }

    /// Asks, unless what is known is no older than that, or it was tried lately.
    fn start(&mut self, age: Option<Duration>, done: oneshot::Sender<()>) {
        let now = Instant::now();
        let is_fresh = age.is_some_and(|age| age < STALE);
        if is_fresh || self.tried.is_some_and(|at| now - at < STALE) {
            // The caller is told by the end of the channel.
            return;
        }
        self.tried = Some(now);
        self.asked.push(done);
        let (store, downstream) = (Arc::clone(&self.store), self.downstream.clone());
        self.call = Some(Box::pin(async move {
            let record = timeout(PATIENCE, store.read_record(&downstream)).await.ok()?.ok()?;
            let (now_there, epoch, status) = (record.now, record.epoch, record.status);
            Some(Stamp { sent: now, received: Instant::now(), now: now_there, epoch, status })
        }));
    }

    /// What the store told; never, where it is not asked. Cancel safe.
    async fn next(&mut self) -> Option<Stamp> {
        let Some(call) = &mut self.call else { return std::future::pending().await };
        let stamp = call.as_mut().await;
        self.call = None;
        // They look at the mapping once this is taken in: nothing is awaited before.
        self.asked.clear();
        stamp
    }
}
