//! Jobs from RabbitMQ: consuming, settling, publishing, dead letters.
//!
//! There are two connections, since a broker that blocks publishers would also block the acks on the same connection.
//! There are more where the downstreams are many (see `links`). A supervisor of our own keeps each connection up:
//! lapin's recovery does not report to the holders of messages that these will be delivered again. Another connection
//! is opened for replies once there are any: producers choose the queues of replies, and may choose one that makes
//! the broker close the connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use address::{Address, AddressError};
pub use check::{Findings, Warning, check_online};
pub use dead::{DeadLetters, Filter, Letter, Replay, Scan, Tally};
pub use depths::{Depth, Depths, Waiting};
pub use error::Error;
pub use greeting::Server;
pub use ladder::RUNG_UNIT;
pub use leftovers::{Leftover, Leftovers};
pub use letter::Edits;
pub use links::CONSUMING;
pub use properties::properties;
pub use publish_error::PublishError;
pub use publisher::Publisher;
pub use source::AmqpSource;
pub use status::Status;
pub use unpark::unpark;

pub use lapin::BasicProperties;
pub use lapin::types::{AMQPValue, FieldTable};

mod acker;
mod address;
mod admission;
mod attached;
mod budget;
mod channels;
mod check;
mod connection;
mod consumed;
mod dead;
mod depths;
mod error;
mod existing;
mod foreign;
mod gate;
mod greeting;
mod guard;
mod ladder;
mod leftovers;
mod letter;
mod links;
mod message;
mod nodes;
mod parking;
mod properties;
mod publish_error;
mod publisher;
mod read_timeout;
mod replies;
mod rights;
mod rungs;
mod socket;
mod source;
mod status;
mod supervisor;
mod survey;
mod tags;
mod targets;
mod ticket;
mod topology;
mod unpark;
mod unroutable;
mod weight;
mod window;

use attached::Attached;
use consumed::{Consumed, Consumers, Running};
use gate::Gate;
use links::{Links, Route};
use parking::{Parker, Parking};
use replies::Replies;
use rungs::{Own, Rungs};
use source::Slot;
use supervisor::Up;
use targets::Targets;
use ticket::Settlement;
use topology::Names;
use unpark::{UnparkPermits, Unparker};

/// The broker, and the names of exchanges and queues there.
#[derive(Clone, Debug)]
pub struct Options {
    /// The broker.
    pub address: Address,
    /// The prefix of the names of all exchanges and queues.
    pub prefix: String,
    /// If false, exchanges and queues are only checked passively.
    pub declare: bool,
    /// The bytes of messages that are held unsettled at once, over all downstreams.
    pub window_bytes: u64,
    /// The unit of the delays of jobs that are parked: [`RUNG_UNIT`], or less in tests, which makes all delays shorter.
    pub rung_unit: Duration,
    /// Divides the intervals between checks of queues: 1, or more in tests.
    pub haste: u32,
    /// The downstreams.
    pub downstreams: Vec<Downstream>,
}

/// One downstream's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downstream {
    /// Its name.
    pub name: String,
    /// An existing queue instead of `PREFIX.jobs.NAME`: paced uses it as it is, and never declares it.
    pub queue: Option<String>,
    /// The most messages that may wait in the queue; the broker refuses more. `None` stands for no bound. A queue that
    /// exists keeps its own.
    pub max_length: Option<u64>,
    /// Messages unacked at once, at least 1.
    pub prefetch: u16,
    /// Bytes of messages that are held unsettled at once; one message is always held.
    pub prefetch_bytes: u64,
}

impl Options {
    /// The exchange that jobs are published to, with the downstream's name as routing key.
    pub fn jobs_exchange(&self) -> String {
        self.names().jobs()
    }

    /// Where jobs for the downstream are published to: exchange and routing key.
    ///
    /// # Errors
    /// The options have no such downstream.
    pub fn target(&self, downstream: &str) -> Result<(String, String), Error> {
        let downstream = self.downstream(downstream)?;
        Ok(match &downstream.queue {
            Some(queue) => (String::new(), queue.clone()),
            None => (self.jobs_exchange(), downstream.name.clone()),
        })
    }

    fn downstream(&self, name: &str) -> Result<&Downstream, Error> {
        let found = self.downstreams.iter().find(|downstream| downstream.name == name);
        found.ok_or_else(|| Error::UnknownDownstream(name.to_owned()))
    }

    fn names(&self) -> Names {
        Names::new(&self.prefix)
    }
}

/// The daemon's connections to the broker, which are kept up until [`Amqp::shutdown`], whether or not the broker is
/// reachable.
#[derive(Debug)]
pub struct Amqp {
    options: Arc<Options>,
    publisher: Publisher,
    /// The queues that messages are being published to, and those of replies.
    targets: [Targets; 2],
    replies: Arc<Replies>,
    links: Arc<Links>,
    consumers: Consumers,
    rungs: Arc<Rungs>,
    depths: Depths,
    subscribers: Subscribers,
}

/// The tasks that use the consuming connection and end before it: the subscribers, and the checks of queues.
#[derive(Debug, Default)]
struct Subscribers {
    tasks: TaskTracker,
    /// The tasks that bring parked jobs home. They have no jobs of their own, so no ack waits for them.
    unparkers: TaskTracker,
    /// Ends the sources when cancelled.
    closing: CancellationToken,
    /// Whether downstreams are consumed; false if this only publishes.
    consumes: bool,
    /// Bounds how many downstreams have their parked jobs brought home at a time.
    unparking: UnparkPermits,
}

impl Amqp {
    /// Starts connecting. Must be called on a tokio runtime.
    ///
    /// A source for each downstream comes from [`Amqp::source`].
    pub fn start(options: Options) -> Self {
        let mut amqp = Self::idle(options);
        amqp.subscribers.consumes = true;
        let current = amqp.links.first().current;
        let closing = amqp.subscribers.closing.clone();
        let (unroutable, haste) = (amqp.options.names().unroutable(), amqp.options.haste);
        amqp.subscribers.tasks.spawn(unroutable::watch(current.clone(), unroutable, haste, closing.clone()));
        amqp.subscribers.tasks.spawn(amqp.depths.watch(current, &amqp.options, closing));
        amqp.publisher = Publisher::new(amqp.links.publishing(None), amqp.targets[0].clone());
        amqp
    }

    /// Connects only for publishing, and ensures that every downstream's queues exist.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// The first error, without a retry, since users wait for the command. Once connected, a lost connection is
    /// replaced automatically.
    pub async fn publishing(options: Options) -> Result<Self, Error> {
        let connection = connection::connect(&options.address, "publishing", None).await?;
        let connection = Up::publishing(connection);
        let mut amqp = Self::idle(options);
        Gate::default().ensure_all(&connection, &amqp.options).await?;
        amqp.publisher = Publisher::new(amqp.links.publishing(Some(connection)), amqp.targets[0].clone());
        Ok(amqp)
    }

    fn idle(options: Options) -> Self {
        let targets = <[Targets; 2]>::default();
        Self {
            consumers: Consumers::new(options.window_bytes, &options.downstreams),
            replies: Arc::new(Replies::new(options.address.clone(), targets[1].clone())),
            links: Arc::new(Links::new(options.address.clone())),
            options: Arc::new(options),
            publisher: Publisher::new(watch::channel(None).1, targets[0].clone()),
            rungs: Arc::default(),
            depths: Depths::default(),
            subscribers: Subscribers::default(),
            targets,
        }
    }

    /// Adds downstreams, all at once or none; [`Amqp::source`] consumes each of them then.
    ///
    /// # Errors
    /// There is a downstream of one of these names already. It may still be ending.
    pub fn add(&self, downstreams: &[Downstream]) -> Result<(), Error> {
        self.consumers.add(downstreams)?;
        for downstream in downstreams {
            self.depths.follow(downstream.name.clone(), self.options.names().queue(downstream));
        }
        Ok(())
    }

    /// Stops consuming a downstream. Its source ends. Messages that its owner has not settled are delivered again.
    /// Waits until the broker has processed the settlements, and closes the channels. Returns false if that is not
    /// certain.
    ///
    /// Not cancel safe: if the future is dropped, its channels stay open. Another downstream of this name may be
    /// added before the end.
    pub async fn remove(&self, name: &str) -> bool {
        // This comes first, since `take` lets another downstream of this name be added.
        self.depths.leave(name);
        let Some(Consumed { index, running, .. }) = self.consumers.take(name) else { return true };
        let flushed = match running {
            Some(running) => running.end(&self.links.first().gate).await,
            None => true,
        };
        self.rungs.forget(self.options.names().waits(name));
        self.consumers.release(index);
        flushed
    }

    /// Starts to consume a downstream.
    ///
    /// # Errors
    /// There is no such downstream, it has a source already, or this only publishes.
    pub fn source(&self, downstream: &str) -> Result<AmqpSource, Error> {
        if !self.subscribers.consumes {
            return Err(Error::UnknownDownstream(downstream.to_owned()));
        }
        self.consumers.start(downstream, |consumed| self.consume(consumed))
    }

    /// Starts the tasks that consume a downstream.
    fn consume(&self, consumed: &Consumed) -> (Running, AmqpSource) {
        let (link, Consumed { downstream, index, attached, account, .. }) = (self.links.first(), consumed);
        let parking = Parking::start(Parker {
            options: Arc::clone(&self.options),
            downstream: downstream.clone(),
            publisher: self.publisher.clone(),
            current: link.current.clone(),
            rungs: Arc::clone(&self.rungs),
            own: Own::new(&self.options, &downstream.name, self.depths.clone()),
            log: ticket::publish_log(&downstream.name),
            misfits: Default::default(),
        });
        let closing = self.subscribers.closing.child_token();
        let unparker = Unparker {
            options: Arc::clone(&self.options),
            downstream: downstream.name.clone(),
            link: link.clone(),
            permits: self.subscribers.unparking.clone(),
            depths: self.depths.clone(),
            asked: parking.unpark.subscribe(),
            closing: closing.clone(),
        };
        let settlement = Settlement {
            options: Arc::clone(&self.options),
            downstream: downstream.clone(),
            parking,
            publisher: self.publisher.clone(),
            replies: Arc::clone(&self.replies),
            current: link.current.clone(),
            gate: Arc::clone(&link.gate),
            log: ticket::publish_log(&downstream.name),
            account: Arc::clone(account),
        };
        let slots = <[Slot; 2]>::default();
        let (subscribers, source) = source::open(
            Arc::new(settlement),
            &Route::new(&self.links, *index),
            closing.clone(),
            Attached::each(attached),
            slots.clone(),
        );
        let subscribers =
            subscribers.map(|subscriber| self.subscribers.tasks.spawn(Box::new(subscriber).run()));
        let unparker = self.subscribers.unparkers.spawn(unparker.run());
        (Running { slots, closing, subscribers, unparker }, source)
    }

    /// Waits until every downstream is consumed at the same time.
    ///
    /// Cancel safe. Never ends where a downstream has no source.
    pub async fn ready(&self) {
        self.consumers.ready().await;
    }

    /// True while this downstream is consumed.
    pub fn is_attached(&self, downstream: &str) -> bool {
        self.consumers.is_attached(downstream)
    }

    /// True while every downstream is consumed.
    pub fn is_ready(&self) -> bool {
        self.consumers.is_ready()
    }

    /// The state of the connections and the consumers, now and later.
    pub fn status(&self) -> Status {
        Status {
            address: self.options.address.to_string(),
            connections: self.links.connections(),
            targets: self.targets.to_vec(),
            attached: Arc::clone(&self.consumers.attached),
        }
    }

    /// The lengths of the queues as of their latest checks. Where this only publishes, none is checked.
    pub fn depths(&self) -> Depths {
        self.depths.clone()
    }

    /// A publisher of jobs, for any task.
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// Ends everything in order: consumers, then the last acks, then channels and connections. The broker has processed
    /// what was settled before, and requeues what was not.
    ///
    /// Returns false if the broker had not processed all settlements by the end of `within`, or did not answer: then those that
    /// were not processed are lost, and their messages are delivered again.
    ///
    /// Not cancel safe: a dropped future closes everything without waiting for the broker, once the last handle is dropped.
    pub async fn shutdown(&self, within: Duration) -> bool {
        self.subscribers.closing.cancel();
        self.subscribers.tasks.close();
        self.subscribers.unparkers.close();
        self.links.supervisors.close();
        let mut flushed = false;
        let orderly = async {
            self.subscribers.tasks.wait().await;
            let slots = self.consumers.slots();
            flushed = stream::iter(slots.iter().map(source::flush))
                .buffer_unordered(gate::PERMITS)
                .fold(true, async |all, flushed| all && flushed)
                .await;
            self.subscribers.unparkers.wait().await;
            self.replies.close().await;
            self.links.stopping.cancel();
            self.links.supervisors.wait().await;
        };
        // The channels that are left then end with their connection.
        let _ = tokio::time::timeout(within, orderly).await;
        self.links.stopping.cancel();
        flushed
    }
}

impl Drop for Amqp {
    fn drop(&mut self) {
        self.subscribers.closing.cancel();
        self.links.stopping.cancel();
    }
}
