//! Starts to consume a queue, after it has ensured that everything exists that this needs.

use std::pin::pin;
use std::sync::Arc;

use lapin::{Channel, Connection};
use tokio::time::Instant;

use super::stand_in::StandIn;
use super::{Attempt, Feed, Feeds, Queue, Started, Subscriber};
use crate::amqp::acker::Acker;
use crate::amqp::admission::GiveBack;
use crate::amqp::connection::{ANSWER, CloseUnlessUsed, channel as new_channel, close, closed};
use crate::amqp::error::Error;
use crate::amqp::foreign::{Kind, Traits, traits};
use crate::amqp::links::Link;
use crate::amqp::supervisor::{Up, up};
use crate::amqp::ticket::{Settlement, Subscription};
use crate::amqp::topology::ensure_home;
use crate::amqp::window::Consuming;
use crate::episode::Episode;
use crate::lock::lock;

/// Precautions for consuming a queue.
struct Precautions {
    gives_back: GiveBack,
    may_be_stream: bool,
    /// Whether the queue may be deleted when it loses its last consumer.
    may_be_deleted: bool,
}

impl Subscriber {
    /// Waits for a connection and for a permit of the gate, and consumes on a channel of its own.
    pub(super) async fn attach(
        &self,
        trouble: &mut Episode<String>,
        without: &mut Option<Error>,
    ) -> Result<Attempt, Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        let Link { current, gate } = &self.route.link;
        let mut current = current.clone();
        let (connection, permit) = loop {
            let Some(connection) = up(&mut current).await else { return Ok(Attempt::Over) };
            let permit = gate.enter().await;
            // If the connection was lost during the wait for a permit, that is no trouble of this downstream.
            if connection.status().connected() {
                break (connection, permit);
            }
        };
        gate.share(&connection, options, downstream).await?;
        let mut checked = None;
        if self.queue == Queue::Home {
            match self.ensure_parking(&connection).await? {
                Ok(channel) => (*without, checked) = (None, Some(channel)),
                Err(error) => *without = Some(error),
            }
        }
        let channel = match checked {
            // Each channel costs the broker a while at the start.
            Some(channel) => channel,
            None => new_channel(&connection).await?,
        };
        let unused = CloseUnlessUsed::new(channel.clone());
        match self.consume(&connection, &channel).await {
            Ok(started) => {
                unused.used();
                let Feeds { main, stand_in } = &started.feeds;
                let all = [Some(main), stand_in.as_ref().map(|stand_in| &stand_in.feed)];
                let all = all.into_iter().flatten().map(|feed| Arc::clone(&feed.subscription));
                *lock(&self.reports.slot) = all.collect();
                Ok(Attempt::Consuming(Box::new(started)))
            }
            Err(error) => {
                // A slow broker is busy with this channel until it has closed it: another one each time would overload
                // it, and use up the channels of the connection.
                let mut closed = pin!(closed(&channel));
                if tokio::time::timeout(ANSWER, &mut closed).await.is_err() {
                    self.log_trouble(trouble, error.to_string());
                    // The others need not wait for one queue that does not answer.
                    drop(permit);
                    tokio::select! {
                        () = closed => {}
                        _ = current.changed() => {}
                    }
                }
                Err(error)
            }
        }
    }

    /// Ensures that jobs can be parked, and come back. Returns the channel that was used for that, or the reason if they cannot
    /// be parked: what is already parked is still consumed.
    async fn ensure_parking(&self, connection: &Connection) -> Result<Result<Channel, Error>, Error> {
        let Settlement { options, downstream, parking, .. } = &*self.settlement;
        let ensured = async {
            let existing = &self.route.link.gate.existing;
            let (channel, unused) = loop {
                let channel = new_channel(connection).await?;
                let unused = CloseUnlessUsed::new(channel.clone());
                match ensure_home(&channel, existing, options, downstream).await {
                    Ok(()) => break (channel, unused),
                    Err(error) => {
                        close(&channel).await;
                        if !existing.note(&error) {
                            return Err(error);
                        }
                    }
                }
            };
            if !options.declare {
                parking.rungs.ensure_all(&self.route.link.current, options).await?;
            }
            unused.used();
            Ok::<Channel, Error>(channel)
        };
        match ensured.await {
            Err(error) if error.is_final() => Ok(Err(error)),
            ensured => ensured.map(Ok),
        }
    }

    /// Ensures the downstream's queues and consumes, all on one channel.
    async fn consume(&self, connection: &Up, channel: &Channel) -> Result<Started, Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        match self.queue {
            Queue::Jobs => self.route.link.gate.own(channel, options, downstream).await?,
            // `ensure_parking` has tried to ensure this queue. It may be consumed even where the broker refuses to
            // declare it.
            Queue::Home => {}
        }
        let Precautions { gives_back, may_be_stream, may_be_deleted } = self.precautions(connection).await?;
        let main = self.feed(connection, channel.clone(), gives_back, may_be_stream);
        let stand_in = if may_be_deleted {
            let channel = new_channel(connection).await?;
            Some(StandIn::new(self.feed(connection, channel, GiveBack::None, may_be_stream)))
        } else {
            None
        };
        let target = self.sizes.target(self.bounds(&main.admission), 0).max(1);
        let consumer = self.subscribe(&main, target).await?;
        Ok(Started {
            feeds: Feeds { main, stand_in },
            consumer,
            consuming: Consuming { prefetch: target, target },
        })
    }

    /// Prepares a channel for consuming.
    fn feed(&self, connection: &Up, channel: Channel, gives_back: GiveBack, may_be_stream: bool) -> Feed {
        let (gate, admissions) = (&self.route.link.gate, Arc::clone(&connection.admissions));
        let admission = admissions.open(channel.id(), &self.settlement.account, gives_back);
        let subscription =
            Arc::new(Subscription::new(Acker::new(channel, self.queue_name()), Arc::clone(gate)));
        Feed { subscription, admissions, admission, may_be_stream }
    }

    /// Determines the precautions for the queue: others may have declared it.
    ///
    /// # Errors
    /// The queue is a stream.
    async fn precautions(&self, connection: &Connection) -> Result<Precautions, Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        let (queue, gate) = (self.queue_name(), &self.route.link.gate);
        // paced would declare a queue with a name of its own in the same way, except perhaps for its limits.
        let is_foreign = self.queue == Queue::Jobs && downstream.queue.is_some() || gate.existing.has(&queue);
        if !is_foreign && options.declare && !gate.is_unchecked(&downstream.name) {
            return Ok(Precautions {
                gives_back: GiveBack::All,
                may_be_stream: false,
                may_be_deleted: false,
            });
        }
        let traits = self.traits(connection, &queue).await;
        let may_be_other = traits.kind == Kind::Unknown && is_foreign;
        let looked_so = self.known.is_stream_until.is_some_and(|until| Instant::now() < until);
        if traits.kind == Kind::Stream || may_be_other && looked_so {
            return Err(Error::Stream { queue });
        }
        Ok(Precautions {
            gives_back: traits.gives_back(),
            may_be_stream: may_be_other,
            may_be_deleted: traits.is_auto_delete || may_be_other,
        })
    }

    /// The traits of the queue. The broker is asked again only while they are unknown.
    async fn traits(&self, connection: &Connection, queue: &str) -> Traits {
        let known = lock(&self.known.traits).clone();
        if let Some(known) = known {
            return known;
        }
        let found = traits(connection, queue).await;
        if found.kind != Kind::Unknown {
            *lock(&self.known.traits) = Some(found.clone());
        }
        found
    }
}
