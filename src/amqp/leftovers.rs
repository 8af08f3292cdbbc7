//! The queues of a downstream that no replica serves any more: they are counted and unbound, and deleted once they are empty.
//!
//! Quorum queues refuse a deletion on the condition that they are empty, so paced must be certain of that before. A
//! passive declaration answers how many messages are ready, and how many consumers a queue has. A quorum queue counts
//! a client that holds an unacked message as a consumer too, also after `basic.get`, or when its consumer was
//! cancelled. But the broker answers 0 and 0 for a queue that does not answer it in time. So paced consumes the queue
//! meanwhile: then only the answer of no message and one consumer proves that the queue is empty.

use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicConsumeOptions, BasicQosOptions, ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use tokio::time::timeout;

use super::Options;
use super::connection::{ask, channel, close, connect};
use super::error::Error;
use super::topology::{Names, queue_counts, short, unbind};

/// The number of checks of a queue before its deletion, and the time between two of them. Meanwhile everything arrives
/// that was routed to the queue before it was unbound.
const CHECKS: u32 = 10;
const INTERVAL: Duration = Duration::from_millis(200);

/// The most checks, where some were not answered.
const MAX_CHECKS: u32 = 100;

/// The queues of a downstream that no replica serves any more.
#[derive(Debug)]
pub struct Leftovers {
    names: Names,
    downstream: String,
    connection: Connection,
}

/// One of these queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Its name.
    pub queue: String,
    /// The messages that are ready.
    pub ready: u32,
    /// The consumers; in a quorum queue also other clients that hold messages unacked.
    pub holders: u32,
}

impl Leftover {
    /// Whether the queue has a message, or one may come back to it.
    pub const fn is_in_use(&self) -> bool {
        self.ready > 0 || self.holders > 0
    }
}

impl Leftovers {
    /// Connects. Nothing is declared.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// Any error of connecting, without a retry.
    pub async fn open(options: &Options, downstream: &str) -> Result<Self, Error> {
        let connection = connect(&options.address, "removing a downstream", None).await?;
        Ok(Self { names: options.names(), downstream: downstream.to_owned(), connection })
    }

    /// The queues that hold jobs, as far as they exist: the queue of new jobs, the queue of jobs that were parked,
    /// and the queues where jobs wait for a limit.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn jobs(&self) -> Result<Vec<Leftover>, Error> {
        let Self { names, downstream, .. } = self;
        let waits = names.waits(downstream).map(|delay| delay.name);
        let queues = [names.jobs_queue(downstream), names.home_queue(downstream)];
        self.existing(queues.into_iter().chain(waits)).await
    }

    /// The queue of the dead letters, if it exists.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn dead(&self) -> Result<Option<Leftover>, Error> {
        Ok(self.existing([self.names.dead(&self.downstream)]).await?.pop())
    }

    /// Makes the exchanges route nothing more to the downstream's queues: its jobs go to `PREFIX.unroutable`, until a
    /// replica that serves it binds them again.
    ///
    /// Cancel safe: each queue is unbound, or not.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn unbind(&self) -> Result<(), Error> {
        let Self { names, downstream, connection } = self;
        let bindings = [
            (names.jobs_queue(downstream), names.jobs(), format!("{downstream}.#")),
            (names.home_queue(downstream), names.home(), downstream.clone()),
        ];
        for (queue, exchange, key) in bindings {
            let channel = channel(connection).await?;
            let unbound = unbind(&channel, &queue, &exchange, &key).await;
            close(&channel).await;
            match unbound {
                // A queue or exchange that does not exist has no binding.
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Deletes all queues of the downstream, also that of its dead letters, if all of them are certain to be empty,
    /// and nobody holds a message of them. Returns those that are not empty; then none was deleted.
    ///
    /// Call it after [`Leftovers::unbind`]. What is published to a queue by its name meanwhile may be lost with it.
    ///
    /// Not cancel safe: a dropped future may have deleted some.
    ///
    /// # Errors
    /// An error of the broker; some may be deleted by then.
    pub async fn delete(&self) -> Result<Vec<Leftover>, Error> {
        let mut queues = self.jobs().await?;
        queues.extend(self.dead().await?);
        let in_use = |queues: Vec<Leftover>| queues.into_iter().filter(Leftover::is_in_use).collect();
        if queues.iter().any(Leftover::is_in_use) {
            return Ok(in_use(queues));
        }
        let watched = queues.into_iter().map(|queue| Watched::start(&self.connection, queue.queue));
        let mut watched = try_join_all(watched).await?;
        let last = try_join_all(watched.iter_mut().map(Watched::last_check)).await;
        // A message that arrives from now on is ready, so the deletion counts it.
        for Watched { channel, .. } in &watched {
            close(channel).await;
        }
        let last = last?;
        if last.iter().any(Leftover::is_in_use) {
            return Ok(in_use(last));
        }
        for queue in last {
            self.delete_queue(&queue.queue).await?;
        }
        for delay in self.names.waits(&self.downstream) {
            let channel = channel(&self.connection).await?;
            let (what, options) = (format!("exchange {}", delay.name), ExchangeDeleteOptions::default());
            let deleted = ask(&what, channel.exchange_delete(short(&delay.name)?, options)).await;
            close(&channel).await;
            deleted?;
        }
        Ok(Vec::new())
    }

    async fn delete_queue(&self, queue: &str) -> Result<(), Error> {
        let channel = channel(&self.connection).await?;
        let what = format!("queue {queue}");
        let deleted = ask(&what, channel.queue_delete(short(queue)?, QueueDeleteOptions::default())).await;
        close(&channel).await;
        match deleted? {
            0 => Ok(()),
            lost => Err(Error::Failed {
                what: format!("deleting {what} without a loss"),
                detail: format!(
                    "{lost} message(s) that were published to it just before were deleted with it"
                ),
            }),
        }
    }

    /// Closes the connection.
    ///
    /// Cancel safe: a dropped future closes it without waiting for the broker.
    pub async fn close(self) {
        let _ = ask("closing the connection", self.connection.close(200, "OK".into())).await;
    }

    async fn existing(&self, queues: impl IntoIterator<Item = String>) -> Result<Vec<Leftover>, Error> {
        let mut there = Vec::new();
        for queue in queues {
            let channel = channel(&self.connection).await?;
            let counted = queue_counts(&channel, &queue).await;
            close(&channel).await;
            match counted {
                Ok((ready, holders)) => there.push(Leftover { queue, ready, holders }),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(there)
    }
}

/// A queue that is consumed while it is checked.
struct Watched {
    queue: String,
    channel: Channel,
    consumer: Consumer,
}

impl Watched {
    async fn start(connection: &Connection, queue: String) -> Result<Self, Error> {
        let channel = channel(connection).await?;
        ask("limiting a prefetch", channel.basic_qos(1, BasicQosOptions::default())).await?;
        let (name, options) = (short(&queue)?, BasicConsumeOptions::default());
        let consume = channel.basic_consume(name, "".into(), options, FieldTable::default());
        let consumer = ask(&format!("queue {queue}"), consume).await?;
        Ok(Self { queue, channel, consumer })
    }

    /// Checks the queue for two seconds, or until it turns out to be in use.
    async fn last_check(&mut self) -> Result<Leftover, Error> {
        let mut quiet = 0;
        for _ in 0..MAX_CHECKS {
            match timeout(INTERVAL, self.consumer.next()).await {
                // The message returns when the channel is closed.
                Ok(Some(Ok(_))) => return Ok(self.leftover(1, 0)),
                Ok(Some(Err(error))) => return Err(Error::of(&format!("queue {}", self.queue), &error)),
                Ok(None) => return Err(Error::NotFound { what: format!("queue {}", self.queue) }),
                Err(_) => {}
            }
            let (ready, holders) = queue_counts(&self.channel, &self.queue).await?;
            quiet = match (ready, holders) {
                (0, 1) => quiet + 1,
                // The queue did not answer the broker in time.
                (0, 0) => 0,
                _ => return Ok(self.leftover(ready, holders.saturating_sub(1))),
            };
            if quiet == CHECKS {
                // What was delivered before the answer is here by now, and would be deleted with the queue.
                let came = self.consumer.next().now_or_never();
                return Ok(self.leftover(came.map_or(0, |_| 1), 0));
            }
        }
        let what = format!("whether queue {} is empty", self.queue);
        Err(Error::TimedOut { what, after: MAX_CHECKS * INTERVAL })
    }

    fn leftover(&self, ready: u32, holders: u32) -> Leftover {
        Leftover { queue: self.queue.clone(), ready, holders }
    }
}
