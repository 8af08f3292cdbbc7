//! A dispatcher under test: with a scripted source, a recording sink, and stores and clocks that misbehave on
//! demand.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::dispatch::{
    Backoff, Control, Delivery, Dispatcher, Drained, OnLimit, OnUnavailable, Options, Peers, ReleaseClock,
    RetryPolicy, Stay, TokioClock, View,
};
use crate::job::{CostBound, JobLanes, METHODS, MaxCost, Message, Reason, ReplyRules, Rules};
use crate::limit::{Limit, LimitSet};
use crate::sink::Outcome;
use crate::store::MemoryStore;

mod clock;
mod sink;
mod source;
mod store;

pub(super) use clock::LateOnce;
pub(super) use sink::RecordingSink;
pub(super) use source::{LATER, Ledger, NOWHERE, ScriptedParking, Settled};
use source::{Place, ScriptedSource, ScriptedTicket, SourceParking};
pub(super) use store::FlakyStore;

/// A dispatcher under test, with everything around it.
pub(super) struct Bench {
    pub(super) options: Options,
    pub(super) sink: Arc<RecordingSink>,
    pub(super) store: Arc<FlakyStore>,
    pub(super) clock: Arc<dyn ReleaseClock>,
    pub(super) ledger: Ledger,
    pub(super) stop: CancellationToken,
    pub(super) tickets: Tickets,
    pub(super) source: SourceEnd,
    running: Option<Running>,
}

/// The tickets of the messages that are published from now on.
pub(super) struct Tickets {
    pub(super) live: Arc<AtomicBool>,
    /// The generation of the channel that messages come through.
    generation: u64,
    /// Whether messages may be given back while the downstream cannot be used.
    pub(super) may_be_given_back: bool,
    /// What becomes of jobs that are to be parked.
    pub(super) parking: ScriptedParking,
}

/// The other end of the source.
pub(super) struct SourceEnd {
    messages: mpsc::UnboundedSender<(Delivery, Place)>,
    /// The calls that it received.
    pub(super) windows: Arc<Mutex<Vec<u16>>>,
    pauses: Arc<Mutex<Vec<bool>>>,
    /// Whether it is full, so that it hands out nothing.
    pub(super) full: watch::Sender<bool>,
    pub(super) parking: SourceParking,
    /// How many messages it hands out at once at most, as it says.
    pub(super) most_at_once: Arc<AtomicUsize>,
    /// The source, before the dispatcher is started.
    source: Option<ScriptedSource>,
}

/// The handles on a running dispatcher.
struct Running {
    control: Control,
    view: View,
    peers: Peers,
    still: Arc<Still>,
}

/// Whether the dispatcher stands still, as a process does after SIGSTOP.
#[derive(Debug, Default)]
struct Still {
    is_set: AtomicBool,
    waker: AtomicWaker,
    /// How often the dispatcher was polled.
    polls: AtomicUsize,
}

impl Bench {
    pub(super) fn new(rate: &str, takes: Duration) -> Self {
        let limit = Limit::leaky_bucket("leaky-bucket-0", rate.parse().unwrap(), 1).unwrap();
        let (sender, messages) = mpsc::unbounded_channel();
        let (windows, pauses, full) = (Arc::default(), Arc::default(), watch::Sender::new(false));
        let (parking, most_at_once) = (SourceParking::default(), Arc::new(AtomicUsize::new(usize::MAX)));
        Self {
            options: Options {
                downstream: "billing".to_owned(),
                limits: LimitSet::new(vec![limit]).unwrap(),
                plans: Vec::new(),
                lanes: None,
                on_limit: OnLimit::Wait,
                horizon: Duration::from_millis(100),
                concurrency: 64,
                retry: retries(),
                max_wait: None,
                hold_max: Duration::from_secs(60),
                on_unavailable: OnUnavailable::Hold,
                revision: None,
                proposes_limits: true,
                prefetch: 1000,
                rules: rules(),
                linger: Duration::from_millis(250),
                drain_timeout: Duration::from_secs(25),
            },
            sink: Arc::new(RecordingSink::new(takes)),
            store: Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), Duration::ZERO)),
            clock: Arc::new(TokioClock),
            ledger: Ledger::default(),
            stop: CancellationToken::new(),
            tickets: Tickets {
                live: Arc::new(AtomicBool::new(true)),
                generation: 1,
                may_be_given_back: true,
                parking: ScriptedParking::default(),
            },
            source: SourceEnd {
                messages: sender,
                source: Some(ScriptedSource {
                    messages,
                    window: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
                    place: None,
                    windows: Arc::clone(&windows),
                    pauses: Arc::clone(&pauses),
                    is_paused: false,
                    full: full.subscribe(),
                    most_at_once: Arc::clone(&most_at_once),
                    parking: parking.clone(),
                }),
                windows,
                pauses,
                full,
                parking,
                most_at_once,
            },
            running: None,
        }
    }

    /// Has the source hand out no more messages than this before one is settled.
    pub(super) fn bound_window(&mut self, window: usize) {
        self.source.source.as_mut().expect("not started").window = Arc::new(Semaphore::new(window));
    }

    pub(super) fn publish(&self, message: Message) {
        let id = message.message_id.clone().unwrap_or_default();
        self.deliver(message, id, false, None);
    }

    /// Publishes a message that comes back from where it was parked.
    pub(super) fn publish_parked(&self, message: Message, stay: Stay) {
        let id = message.message_id.clone().unwrap_or_default();
        self.deliver(message, id, false, Some(stay));
    }

    /// Publishes a message that was delivered before; the ledger names this delivery by `label`.
    pub(super) fn publish_again(&self, message: Message, label: &str) {
        self.deliver(message, label.to_owned(), true, None);
    }

    /// Publishes a message that comes back from where it was parked, and was delivered before.
    pub(super) fn publish_parked_again(&self, message: Message, label: &str, stay: Stay) {
        self.deliver(message, label.to_owned(), true, Some(stay));
    }

    /// Loses the channel of all messages so far; later ones come through another one.
    pub(super) fn reconnect(&mut self) {
        self.tickets.live.store(false, Ordering::SeqCst);
        self.another_channel();
    }

    /// Has later messages come through another channel, beside the present one.
    pub(super) fn another_channel(&mut self) {
        self.tickets.live = Arc::new(AtomicBool::new(true));
        self.tickets.generation += 1;
    }

    fn deliver(&self, message: Message, id: String, redelivered: bool, stay: Option<Stay>) {
        let Tickets { live, generation, may_be_given_back, parking } = &self.tickets;
        let place = Place::default();
        let ticket = Box::new(ScriptedTicket {
            _place: Arc::clone(&place),
            id,
            reply_to: message.reply_to.clone(),
            live: Arc::clone(live),
            ledger: self.ledger.clone(),
            generation: *generation,
            redelivered,
            may_be_given_back: *may_be_given_back,
            parking: *parking,
        });
        self.source.messages.send((Delivery { message, ticket, stay }, place)).unwrap();
    }

    pub(super) fn publish_many(&self, ids: std::ops::Range<usize>) {
        for id in ids {
            self.publish(message(&id.to_string()));
        }
    }

    /// Starts the dispatcher. It ends with the handle, so that it costs later runs of the same test no time.
    pub(super) fn start(&mut self) -> AbortOnDropHandle<Drained> {
        let stop = self.stop.clone();
        self.start_among(Duration::ZERO, stop)
    }

    /// As [`Bench::start`], in a process that runs until `stop`, with sends that take this long at most.
    pub(super) fn start_among(
        &mut self,
        send_timeout: Duration,
        stop: CancellationToken,
    ) -> AbortOnDropHandle<Drained> {
        let source = self.source.source.take().expect("started once");
        let can_park = self.tickets.parking != ScriptedParking::Absent;
        self.source.parking.can_park.store(can_park, Ordering::SeqCst);
        let dispatcher = Dispatcher::new(
            self.options.clone(),
            Arc::clone(&self.store) as _,
            Arc::clone(&self.sink) as _,
            Arc::clone(&self.clock),
        )
        .with_send_timeout(send_timeout);
        let (control, view, peers) = (dispatcher.control(), dispatcher.view(), dispatcher.peers());
        let still = Arc::<Still>::default();
        self.running = Some(Running { control, view, peers, still: Arc::clone(&still) });
        let mut run = Box::pin(dispatcher.run_among(source, self.stop.clone(), stop));
        AbortOnDropHandle::new(tokio::spawn(poll_fn(move |context| {
            still.waker.register(context.waker());
            still.polls.fetch_add(1, Ordering::SeqCst);
            if still.is_set.load(Ordering::SeqCst) { Poll::Pending } else { run.as_mut().poll(context) }
        })))
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("started")
    }

    /// The handle on the running dispatcher.
    pub(super) fn control(&self) -> Control {
        self.running().control.clone()
    }

    /// The view of the running dispatcher.
    pub(super) fn view(&self) -> View {
        self.running().view.clone()
    }

    /// Has the running dispatcher stand still, or continue.
    pub(super) fn stand_still(&self, still: bool) {
        let running = self.running();
        running.still.is_set.store(still, Ordering::SeqCst);
        running.still.waker.wake();
    }

    /// Lets time pass, also where the dispatcher never rests. Returns how often it was polled meanwhile.
    pub(super) async fn pass(&self, time: Duration) -> usize {
        let polls = || self.running().still.polls.load(Ordering::SeqCst);
        let before = polls();
        for _ in 0..time.as_millis() {
            tokio::time::advance(Duration::from_millis(1)).await;
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
        }
        polls() - before
    }

    /// Sets the number of replicas of the running dispatcher.
    pub(super) fn tell_peers(&self, replicas: u32) {
        self.running().peers.set(replicas);
    }

    /// The pauses of the source, in order: true for a pause, false for the continuation.
    pub(super) fn pauses(&self) -> Vec<bool> {
        self.source.pauses.lock().unwrap().clone()
    }

    /// Ends the source: the dispatcher ends once every job is settled.
    pub(super) fn end(&mut self) {
        self.source.messages = mpsc::unbounded_channel().0;
    }
}

fn retries() -> RetryPolicy {
    let backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(1) };
    RetryPolicy { max_attempts: 3, backoff, ..RetryPolicy::default() }
}

fn rules() -> Rules {
    Rules {
        max_body: 100,
        allow_headers: Vec::new(),
        methods: METHODS.map(str::to_owned).to_vec(),
        encoded_slash: false,
        max_cost: at_most(1000),
        costs: Vec::new(),
        plans: Vec::new(),
        lanes: JobLanes::default(),
        reply: ReplyRules { own: Some("paced.".to_owned()), ..ReplyRules::default() },
    }
}

pub(super) fn at_most(units: u32) -> MaxCost {
    MaxCost { units, bound: CostBound::Given, given: Some(units) }
}

pub(super) fn message(id: &str) -> Message {
    Message {
        routing_key: "billing".to_owned(),
        content: Bytes::from_static(b"{}").into(),
        message_id: Some(id.to_owned()),
        ..Message::default()
    }
}

pub(super) fn retry(status: u16) -> Outcome {
    let detail = format!("status {status}");
    Outcome::Retry { reason: "status", detail, status: Some(status), after: None, response: None }
}

pub(super) fn throttled(after: Option<Duration>) -> Outcome {
    Outcome::Throttled {
        detail: "status 429".to_owned(),
        status: 429,
        after,
        is_final: false,
        response: None,
    }
}

pub(super) fn unreachable() -> Outcome {
    Outcome::Unreachable { detail: "connection refused".to_owned() }
}

pub(super) fn dead(status: u16) -> Outcome {
    let detail = format!("status {status}");
    Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response: None }
}
