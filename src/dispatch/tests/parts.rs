//! A scripted source, a recording sink, and stores and clocks that misbehave on demand.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dispatch::held::Held;
use crate::dispatch::lane::Entry;
use crate::dispatch::retry::Tries;
use crate::dispatch::{
    Alarm, Control, DeadLetter, Delivery, Dispatcher, Drained, OnLimit, OnUnavailable, Options,
    RefusalStatuses, ReleaseClock, Report, RetryPolicy, Source, Ticket, TokioClock,
};
use crate::job::{CostBound, Job, MaxCost, Message, Reason, ReplyRules, Rules, decode};
use crate::limit::{Limit, LimitSet};
use crate::sink::{LastLook, Outcome, Receipt, Response, Sink};
use crate::store::{
    BoxFuture, Cancel, Change, Changes, Check, Checked, MemoryStore, Reserve, Reserved, Scope, Store,
    StoreError, Tended,
};
use crate::time::{Deadline, Micros};

/// A `reply_to` that takes no message.
pub(super) const NOWHERE: &str = "nowhere";

/// How a message was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Replied(String),
    Acked(Report),
    Dead(DeadLetter),
    Back,
}

/// What the tickets of one test tell, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<Vec<(String, Settled)>>>, Arc<Notify>);

impl Ledger {
    fn note(&self, id: &str, settled: Settled) {
        self.0.lock().unwrap().push((id.to_owned(), settled));
        self.1.notify_waiters();
    }

    pub(super) fn all(&self) -> Vec<(String, Settled)> {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn of(&self, id: &str) -> Vec<Settled> {
        self.all().into_iter().filter(|(other, _)| other == id).map(|(_, settled)| settled).collect()
    }

    /// The letter that a job became; it must be all that became of it.
    #[track_caller]
    pub(super) fn letter(&self, id: &str) -> DeadLetter {
        match &self.of(id)[..] {
            [Settled::Dead(letter)] => letter.clone(),
            other => panic!("{id}: {other:?}"),
        }
    }

    pub(super) async fn count(&self, count: usize) {
        loop {
            let more = self.1.notified();
            if self.all().len() >= count {
                return;
            }
            more.await;
        }
    }
}

#[derive(Debug)]
struct ScriptedTicket {
    id: String,
    reply_to: Option<String>,
    live: Arc<AtomicBool>,
    ledger: Ledger,
    generation: u64,
    redelivered: bool,
    may_be_given_back: bool,
}

impl Ticket for ScriptedTicket {
    fn may_be_given_back(&self) -> bool {
        self.may_be_given_back
    }

    fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn is_redelivered(&self) -> bool {
        self.redelivered
    }

    fn ack(self: Box<Self>, _receipt: Receipt, report: Report) {
        self.ledger.note(&self.id, Settled::Acked(report));
    }

    fn bury(self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.ledger.note(&self.id, Settled::Dead(letter)) })
    }

    fn give_back(self: Box<Self>) {
        self.ledger.note(&self.id, Settled::Back);
    }

    /// Replies to `NOWHERE` are never confirmed.
    fn reply<'a>(&'a self, response: &'a Response) -> BoxFuture<'a, ()> {
        if self.reply_to.as_deref() == Some(NOWHERE) {
            return Box::pin(std::future::pending());
        }
        let body = String::from_utf8_lossy(&response.body).into_owned();
        self.ledger.note(&self.id, Settled::Replied(format!("{} {body}", response.status)));
        Box::pin(std::future::ready(()))
    }
}

pub(super) struct ScriptedSource {
    messages: mpsc::UnboundedReceiver<Delivery>,
    windows: Arc<Mutex<Vec<u16>>>,
    pauses: Arc<Mutex<Vec<bool>>>,
    is_paused: bool,
}

impl Source for ScriptedSource {
    fn pause(&mut self) -> BoxFuture<'static, ()> {
        self.is_paused = true;
        self.pauses.lock().unwrap().push(true);
        Box::pin(tokio::time::sleep(Duration::from_millis(3)))
    }

    fn resume(&mut self) {
        self.is_paused = false;
        self.pauses.lock().unwrap().push(false);
    }

    fn resize(&mut self, window: u16) {
        self.windows.lock().unwrap().push(window);
    }

    async fn next(&mut self) -> Option<Delivery> {
        if self.is_paused {
            std::future::pending::<()>().await;
        }
        self.messages.recv().await
    }

    async fn close(&mut self) {
        self.is_paused = false;
        self.messages.close();
    }
}

/// What the sink was handed, and when.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) id: String,
    pub(super) at: Instant,
}

/// Records what it is handed; answers by script, else delivers.
#[derive(Debug)]
pub(super) struct RecordingSink {
    pub(super) sent: Mutex<Vec<Sent>>,
    answers: Mutex<HashMap<String, VecDeque<Outcome>>>,
    pub(super) flying: AtomicUsize,
    pub(super) most: AtomicUsize,
    pub(super) takes: Duration,
    /// So long until there is a connection, for the first sends, the last one first.
    pub(super) connects: Mutex<Vec<Duration>>,
    /// When it was told that a job will be sent soon.
    pub(super) warmed: Mutex<Vec<Instant>>,
    arrivals: watch::Sender<usize>,
    deliveries: watch::Sender<usize>,
    /// There is a way to it.
    pub(super) reachable: AtomicBool,
    /// It accepts the credentials.
    pub(super) accepts: AtomicBool,
    /// Better ones are there once they are read.
    pub(super) new_secrets: AtomicBool,
    /// Jobs that it refuses whatever the credentials.
    refused: Mutex<Vec<String>>,
    /// Connections that were tried without a job.
    pub(super) tried: AtomicUsize,
    /// Jobs that found no connection.
    pub(super) unreached: AtomicUsize,
    pub(super) secrets_read: AtomicUsize,
}

impl RecordingSink {
    fn new(takes: Duration) -> Self {
        Self {
            sent: Mutex::default(),
            answers: Mutex::default(),
            flying: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            takes,
            connects: Mutex::default(),
            warmed: Mutex::default(),
            arrivals: watch::Sender::new(0),
            deliveries: watch::Sender::new(0),
            reachable: AtomicBool::new(true),
            accepts: AtomicBool::new(true),
            new_secrets: AtomicBool::new(false),
            refused: Mutex::default(),
            tried: AtomicUsize::new(0),
            unreached: AtomicUsize::new(0),
            secrets_read: AtomicUsize::new(0),
        }
    }

    /// These jobs are answered 401 always.
    pub(super) fn refuse<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        self.refused.lock().unwrap().extend(ids.into_iter().map(str::to_owned));
    }

    /// Waits until so many were delivered.
    pub(super) async fn accepted(&self, count: usize) {
        self.deliveries.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }

    pub(super) fn answer(&self, id: &str, outcome: Outcome) {
        self.answers.lock().unwrap().entry(id.to_owned()).or_default().push_back(outcome);
    }

    pub(super) fn ids(&self) -> Vec<String> {
        self.sent.lock().unwrap().iter().map(|sent| sent.id.clone()).collect()
    }

    /// Millis from `start` to each hand-over.
    pub(super) fn millis(&self, start: Instant) -> Vec<u128> {
        self.sent.lock().unwrap().iter().map(|sent| (sent.at - start).as_millis()).collect()
    }

    pub(super) async fn arrived(&self, count: usize) {
        self.arrivals.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }
}

impl Sink for RecordingSink {
    fn release<'a>(&'a self, job: &'a Job, look: LastLook<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let connects = self.connects.lock().unwrap().pop();
            if let Some(connects) = connects {
                tokio::time::sleep(connects).await;
            }
            if !self.reachable.load(Ordering::SeqCst) {
                self.unreached.fetch_add(1, Ordering::SeqCst);
                return unreachable();
            }
            if !look() {
                return Outcome::Missed;
            }
            self.sent.lock().unwrap().push(Sent { id: job.id.clone(), at: Instant::now() });
            self.arrivals.send_modify(|seen| *seen += 1);
            let flying = self.flying.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(flying, Ordering::SeqCst);
            tokio::time::sleep(self.takes).await;
            self.flying.fetch_sub(1, Ordering::SeqCst);
            let scripted = self.answers.lock().unwrap().get_mut(&job.id).and_then(VecDeque::pop_front);
            let is_refused = self.refused.lock().unwrap().contains(&job.id);
            if scripted.is_none() && (is_refused || !self.accepts.load(Ordering::SeqCst)) {
                return dead(401);
            }
            self.deliveries.send_modify(|seen| *seen += 1);
            scripted.unwrap_or_else(|| Outcome::Delivered(Receipt::new(Response::without_body(Some(200)))))
        })
    }

    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        self.tried.fetch_add(1, Ordering::SeqCst);
        let reachable = self.reachable.load(Ordering::SeqCst);
        Box::pin(std::future::ready(reachable.then_some(()).ok_or_else(|| "refused".to_owned())))
    }

    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        self.secrets_read.fetch_add(1, Ordering::SeqCst);
        let new = self.new_secrets.swap(false, Ordering::SeqCst);
        if new {
            self.accepts.store(true, Ordering::SeqCst);
        }
        Box::pin(std::future::ready(Ok(new)))
    }

    fn warm(&self) {
        self.warmed.lock().unwrap().push(Instant::now());
    }
}

/// Counts its calls, and is away while told so.
#[derive(Debug)]
pub(super) struct FlakyStore {
    inner: Mutex<Arc<MemoryStore>>,
    /// From here to the store, and back.
    pub(super) distance: Duration,
    pub(super) away: AtomicBool,
    /// It answers that it may not.
    pub(super) refuses: AtomicBool,
    /// Nobody is told of changes.
    pub(super) deaf: AtomicBool,
    /// For slots.
    pub(super) calls: AtomicUsize,
    /// About the whole downstream.
    pub(super) tends: AtomicUsize,
}

impl FlakyStore {
    pub(super) fn new(inner: Arc<MemoryStore>, distance: Duration) -> Self {
        let (away, refuses, deaf) = Default::default();
        let (calls, tends) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { inner: Mutex::new(inner), distance, away, refuses, deaf, calls, tends }
    }

    /// What it keeps its state in.
    pub(super) fn inner(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.inner.lock().unwrap())
    }

    /// Loses all that it knows.
    pub(super) fn forget(&self) {
        self.swap(&Arc::new(MemoryStore::new()));
    }

    /// Keeps its state in another store from now on.
    pub(super) fn swap(&self, inner: &Arc<MemoryStore>) {
        *self.inner.lock().unwrap() = Arc::clone(inner);
    }

    /// One call more: counted, and failed while the store is away.
    fn enter(&self, counter: &AtomicUsize) -> Result<(), StoreError> {
        counter.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unreachable { address: "test".to_owned(), detail: "away".to_owned() });
        }
        if self.refuses.load(Ordering::SeqCst) {
            let (address, detail) = ("test".to_owned(), "NOPERM".to_owned());
            return Err(StoreError::Unexpected { address, detail });
        }
        Ok(())
    }
}

impl Store for FlakyStore {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> BoxFuture<'a, Result<Reserved, StoreError>> {
        Box::pin(async move {
            self.enter(&self.calls)?;
            tokio::time::sleep(self.distance).await;
            let answer = self.inner().reserve(call).await;
            tokio::time::sleep(self.distance).await;
            answer
        })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> BoxFuture<'a, Result<Checked, StoreError>> {
        Box::pin(async move {
            self.enter(&self.calls)?;
            tokio::time::sleep(self.distance).await;
            let answer = self.inner().check(call).await;
            tokio::time::sleep(self.distance).await;
            answer
        })
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.inner().cancel(call).await })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.inner().reset(scope, limits).await })
    }

    fn tend<'a>(
        &'a self,
        downstream: &'a str,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<Tended, StoreError>> {
        Box::pin(async move {
            self.enter(&self.tends)?;
            tokio::time::sleep(self.distance).await;
            let answer = self.inner().tend(downstream, change).await;
            tokio::time::sleep(self.distance).await;
            answer
        })
    }

    fn changes(&self, downstream: &str) -> Changes {
        if self.deaf.load(Ordering::SeqCst) {
            return MemoryStore::new().changes(downstream);
        }
        self.inner().changes(downstream)
    }

    fn ping(&self) -> BoxFuture<'_, Result<Micros, StoreError>> {
        Box::pin(async move { self.inner().ping().await })
    }
}

/// Tokio's clock, but late by this much once.
#[derive(Debug)]
pub(super) struct LateOnce(pub(super) Mutex<Option<Duration>>);

impl ReleaseClock for LateOnce {
    fn alarm(&self) -> Box<dyn Alarm> {
        let late = self.0.lock().unwrap().take().unwrap_or_default();
        Box::new(LateAlarm { late, set: None, inner: TokioClock.alarm() })
    }
}

/// Late the first time that it is set.
#[derive(Debug)]
struct LateAlarm {
    late: Duration,
    set: Option<Instant>,
    inner: Box<dyn Alarm>,
}

impl Alarm for LateAlarm {
    fn set(&mut self, at: Option<Instant>) {
        if self.set != at {
            self.set = at;
            let late = at.map_or(Duration::ZERO, |_| std::mem::take(&mut self.late));
            self.inner.set(at.map(|at| at + late));
        }
    }

    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_ring(context).map(|()| self.set = None)
    }
}

/// A dispatcher under test, with everything around it.
pub(super) struct Bench {
    pub(super) options: Options,
    pub(super) sink: Arc<RecordingSink>,
    pub(super) store: Arc<FlakyStore>,
    pub(super) clock: Arc<dyn ReleaseClock>,
    pub(super) ledger: Ledger,
    pub(super) live: Arc<AtomicBool>,
    /// The generation of the channel that messages come through.
    generation: u64,
    pub(super) stop: CancellationToken,
    /// What the source was told.
    pub(super) windows: Arc<Mutex<Vec<u16>>>,
    /// Whether its messages may go back while the downstream cannot be used.
    pub(super) may_be_given_back: bool,
    pauses: Arc<Mutex<Vec<bool>>>,
    messages: mpsc::UnboundedSender<Delivery>,
    source: Option<ScriptedSource>,
    control: Option<Control>,
}

impl Bench {
    pub(super) fn new(rate: &str, takes: Duration) -> Self {
        let limit = Limit::leaky_bucket("leaky-bucket-0", rate.parse().unwrap(), 1).unwrap();
        let (tell, messages) = mpsc::unbounded_channel();
        let (windows, pauses) = (Arc::default(), Arc::default());
        Self {
            options: Options {
                downstream: "billing".to_owned(),
                limits: LimitSet::new(vec![limit]).unwrap(),
                plans: Vec::new(),
                on_limit: OnLimit::Wait,
                horizon: Duration::from_millis(100),
                concurrency: 64,
                retry: RetryPolicy {
                    max_attempts: 3,
                    max_throttled: None,
                    outlast: true,
                    on_unauthorized: RefusalStatuses::default(),
                    min_backoff: Duration::from_secs(1),
                    max_backoff: Duration::from_secs(1),
                },
                max_pause: Duration::from_secs(300),
                on_unavailable: OnUnavailable::Hold,
                revision: None,
                prefetch: 1000,
                rules: rules(),
                drain_timeout: Duration::from_secs(25),
            },
            sink: Arc::new(RecordingSink::new(takes)),
            store: Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), Duration::ZERO)),
            clock: Arc::new(TokioClock),
            ledger: Ledger::default(),
            live: Arc::new(AtomicBool::new(true)),
            generation: 1,
            stop: CancellationToken::new(),
            messages: tell,
            source: Some(ScriptedSource {
                messages,
                windows: Arc::clone(&windows),
                pauses: Arc::clone(&pauses),
                is_paused: false,
            }),
            windows,
            may_be_given_back: true,
            pauses,
            control: None,
        }
    }

    pub(super) fn publish(&self, message: Message) {
        let id = message.message_id.clone().unwrap_or_default();
        self.deliver(message, id, false);
    }

    /// A message that was delivered before; the ledger knows this delivery by a name of its own.
    pub(super) fn publish_again(&self, message: Message, label: &str) {
        self.deliver(message, label.to_owned(), true);
    }

    /// The channel that all messages came through so far is lost; others come through another one.
    pub(super) fn reconnect(&mut self) {
        self.live.store(false, Ordering::SeqCst);
        self.live = Arc::new(AtomicBool::new(true));
        self.generation += 1;
    }

    fn deliver(&self, message: Message, id: String, redelivered: bool) {
        let (live, ledger) = (Arc::clone(&self.live), self.ledger.clone());
        let (reply_to, generation) = (message.reply_to.clone(), self.generation);
        let may_be_given_back = self.may_be_given_back;
        let ticket = Box::new(ScriptedTicket {
            id,
            reply_to,
            live,
            ledger,
            generation,
            redelivered,
            may_be_given_back,
        });
        self.messages.send(Delivery { message, ticket }).unwrap();
    }

    pub(super) fn publish_many(&self, ids: std::ops::Range<usize>) {
        for id in ids {
            self.publish(message(&id.to_string()));
        }
    }

    /// Starts the dispatcher; the handle ends with it.
    pub(super) fn start(&mut self) -> tokio::task::JoinHandle<Drained> {
        let source = self.source.take().expect("started once");
        let dispatcher = Dispatcher::new(
            self.options.clone(),
            Arc::clone(&self.store) as _,
            Arc::clone(&self.sink) as _,
            Arc::clone(&self.clock),
        );
        self.control = Some(dispatcher.control());
        tokio::spawn(dispatcher.run(source, self.stop.clone()))
    }

    /// The handle on what was started.
    pub(super) fn control(&self) -> Control {
        self.control.clone().expect("started")
    }

    /// What the source was told, in order: to pause (true), to go on (false).
    pub(super) fn pauses(&self) -> Vec<bool> {
        self.pauses.lock().unwrap().clone()
    }

    /// Ends the source: the dispatcher ends once every job is settled.
    pub(super) fn end(&mut self) {
        self.messages = mpsc::unbounded_channel().0;
    }
}

fn rules() -> Rules {
    Rules {
        max_body: 100,
        allow_headers: Vec::new(),
        max_cost: at_most(1000),
        plans: Vec::new(),
        default_plan: None,
        reply: ReplyRules { own: Some("paced.".to_owned()), ..ReplyRules::default() },
    }
}

pub(super) fn at_most(units: u32) -> MaxCost {
    MaxCost { units, bound: CostBound::Given, given: Some(units) }
}

/// A job that holds the slot of this instant.
pub(in crate::dispatch) fn held(deadline: Instant) -> Held {
    let rules = rules();
    let (id, live) = ("0".to_owned(), Arc::new(AtomicBool::new(true)));
    let ticket = Box::new(ScriptedTicket {
        id,
        reply_to: None,
        live,
        ledger: Ledger::default(),
        generation: 1,
        redelivered: false,
        may_be_given_back: true,
    });
    let job = Arc::new(decode(&message("0"), &rules).unwrap());
    let entry = Entry { job, has_own_id: true, ticket, tries: Tries::default(), since: deadline, seq: 0 };
    Held { entry, slot: Micros(0), deadline: Deadline::at(deadline) }
}

pub(super) fn message(id: &str) -> Message {
    Message {
        routing_key: "billing".to_owned(),
        body: Bytes::from_static(b"{}"),
        message_id: Some(id.to_owned()),
        ..Message::default()
    }
}

pub(super) fn retry(status: u16) -> Outcome {
    let detail = format!("status {status}");
    Outcome::Retry { reason: "status", detail, status: Some(status), after: None, response: None }
}

pub(super) fn throttled(after: Option<Duration>) -> Outcome {
    Outcome::Throttled { detail: "status 429".to_owned(), status: 429, after, response: None }
}

pub(super) fn unreachable() -> Outcome {
    Outcome::Unreachable { detail: "connection refused".to_owned() }
}

pub(super) fn dead(status: u16) -> Outcome {
    let detail = format!("status {status}");
    Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response: None }
}
