//! Replicas inside this process, as a program embeds them: dispatchers on a real Redis, between a scripted source and a
//! counting sink. There is no broker and no HTTP.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use paced::dispatch::{
    Backoff, DeadLetter, Delivery, Dispatcher, Drained, OnLimit, OnUnavailable, Options, Parked,
    ReleaseClock, Report, RetryPolicy, Source, Stay, ThreadClock, Ticket, Unburied,
};
use paced::job::{CostBound, Job, JobLanes, METHODS, MaxCost, Message, ReplyRules, Rules};
use paced::sink::{Handover, Outcome, Receipt, Response, Sink};
use paced::store::{BoxFuture, Store};
use paced::{Limit, LimitSet, RedisOptions, RedisStore};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::api::stamp;

/// The [`stamp`]s of all occurrences of an event, in ascending order.
#[derive(Clone, Debug)]
pub struct Stamps(Arc<watch::Sender<Vec<u64>>>);

impl Stamps {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    fn note(&self) {
        // The stamp is taken under the lock, so that stamps ascend.
        self.0.send_modify(|stamps| stamps.push(stamp()));
    }

    pub fn all(&self) -> Vec<u64> {
        self.0.borrow().clone()
    }

    /// The stamp of this number, from 0 on, once it is there.
    pub async fn nth(&self, number: usize, within: Duration) -> Result<u64, String> {
        let mut stamps = self.0.subscribe();
        let there = timeout(within, stamps.wait_for(|stamps| stamps.len() > number)).await;
        match there {
            Ok(Ok(stamps)) => Ok(stamps[number]),
            _ => Err(format!("nothing happened within {within:?}")),
        }
    }
}

/// The work of one replica for one downstream.
#[derive(Debug)]
pub struct Task {
    pub downstream: String,
    /// The rate per second.
    pub rate: u32,
    /// The most jobs that it holds.
    pub window: u16,
    pub jobs: Jobs,
    /// The instants at which jobs reached the sink.
    pub released: Stamps,
}

/// The source of the jobs.
#[derive(Debug)]
pub enum Jobs {
    /// There is always one more.
    Endless,
    /// One for each message; it is stamped when the source hands it out.
    Signalled(mpsc::UnboundedReceiver<()>, Stamps),
}

/// Dispatchers with a store and a runtime of their own, as a daemon has them.
#[derive(Debug)]
pub struct Replica {
    /// The runtime, until it is dropped.
    runtime: Option<Runtime>,
    stop: CancellationToken,
    running: JoinSet<Drained>,
}

impl Replica {
    /// Connects to Redis, and starts a dispatcher for each of the tasks.
    pub async fn start(url: &str, prefix: &str, tasks: Vec<Task>) -> Result<Self, String> {
        let runtime = Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        let clock: Arc<dyn ReleaseClock> =
            Arc::new(ThreadClock::start().map_err(|error| format!("no clock: {error}"))?);
        let handle = runtime.handle().clone();
        let (runtime, stop, running) = (Some(runtime), CancellationToken::new(), JoinSet::new());
        let mut replica = Self { runtime, stop, running };
        let (url, key_prefix) = (url.to_owned(), prefix.to_owned());
        let options = RedisOptions::default().with_key_prefix(key_prefix);
        let store = handle.spawn(async move { RedisStore::connect(&url, options).await }).await;
        let store =
            store.map_err(|error| error.to_string())?.map_err(|error| format!("no store: {error}"))?;
        let store: Arc<dyn Store> = Arc::new(store);
        for Task { downstream, rate, window, jobs, released } in tasks {
            let options = options_of(downstream, rate, window)?;
            let sink = Arc::new(CountingSink(released));
            let dispatcher = Dispatcher::new(options, Arc::clone(&store), sink, Arc::clone(&clock));
            let source = ScriptedSource {
                jobs,
                places: Arc::new(Semaphore::new(usize::from(window))),
                given: 0,
                closed: false,
            };
            replica.running.spawn_on(dispatcher.run(source, replica.stop.clone()), &handle);
        }
        Ok(replica)
    }

    /// Stops it, as a daemon is stopped.
    pub async fn end(mut self) -> Result<(), String> {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.map_err(|error| format!("a dispatcher did not end: {error}"))?;
        }
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Other replicas wait on this thread.
            runtime.shutdown_background();
        }
    }
}

/// The options of a daemon whose configuration has only the rate.
fn options_of(downstream: String, rate: u32, window: u16) -> Result<Options, String> {
    let rate = format!("{rate}/s").parse().map_err(|error| format!("{rate}/s: {error}"))?;
    let limit = Limit::leaky_bucket("rate", rate, 1).map_err(|error| error.to_string())?;
    Ok(Options {
        downstream,
        limits: LimitSet::new(vec![limit]).map_err(|error| error.to_string())?,
        plans: Vec::new(),
        lanes: None,
        on_limit: OnLimit::Wait,
        horizon: Duration::from_millis(100),
        concurrency: 64,
        retry: RetryPolicy {
            max_attempts: 1,
            backoff: Backoff { min: Duration::from_secs(1), max: Duration::from_secs(1) },
            ..RetryPolicy::default()
        },
        max_wait: None,
        hold_max: Duration::from_secs(60),
        on_unavailable: OnUnavailable::Hold,
        revision: None,
        proposes_limits: true,
        prefetch: window,
        rules: Rules {
            max_body: 1024,
            allow_headers: Vec::new(),
            methods: METHODS.map(str::to_owned).to_vec(),
            encoded_slash: false,
            max_cost: MaxCost { units: 1, bound: CostBound::Given, given: Some(1) },
            costs: Vec::new(),
            plans: Vec::new(),
            lanes: JobLanes::default(),
            reply: ReplyRules::default(),
        },
        linger: Duration::ZERO,
        drain_timeout: Duration::from_secs(5),
    })
}

/// Hands out jobs as long as there is a place in the window.
struct ScriptedSource {
    jobs: Jobs,
    /// The free places of the window.
    places: Arc<Semaphore>,
    given: u64,
    closed: bool,
}

impl Source for ScriptedSource {
    async fn next(&mut self) -> Option<Delivery> {
        if self.closed {
            return None;
        }
        // The place comes before the job, so that nothing is lost when this future is dropped.
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        if let Jobs::Signalled(signals, handed) = &mut self.jobs {
            signals.recv().await?;
            handed.note();
        }
        self.given += 1;
        let message = Message {
            content: Bytes::from_static(b"{}").into(),
            message_id: Some(self.given.to_string()),
            ..Message::default()
        };
        Some(Delivery { message, ticket: Box::new(Place { _place: place }), stay: None })
    }

    async fn close(&mut self) {
        self.closed = true;
    }
}

/// A job's place in the window, which is free again once the job is settled.
#[derive(Debug)]
struct Place {
    _place: OwnedSemaphorePermit,
}

impl Ticket for Place {
    fn is_live(&self) -> bool {
        true
    }

    fn ack(self: Box<Self>, _receipt: Receipt, _report: Report) {}

    fn discard(self: Box<Self>, _report: Report) {}

    fn dead_letter(self: Box<Self>, _letter: DeadLetter) -> BoxFuture<'static, Option<Unburied>> {
        Box::pin(std::future::ready(None))
    }

    fn give_back(self: Box<Self>) {}

    /// It is refused.
    fn park(self: Box<Self>, _stay: Stay) -> BoxFuture<'static, Parked> {
        Box::pin(std::future::ready(Parked::Refused(self)))
    }

    fn reply<'a>(&'a self, _response: &'a Response) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// Accepts every job at once, and records the instant.
#[derive(Debug)]
struct CountingSink(Stamps);

impl Sink for CountingSink {
    fn release<'a>(&'a self, _job: &'a Job, handover: Handover<'a>) -> BoxFuture<'a, Outcome> {
        if !(handover.look)() {
            return Box::pin(std::future::ready(Outcome::Missed));
        }
        self.0.note();
        let receipt = Receipt::new(Response::without_body(Some(200)));
        Box::pin(std::future::ready(Outcome::Delivered(receipt)))
    }
}
