//! Begins to consume a queue: what it needs is ensured first.

use std::pin::pin;
use std::sync::Arc;

use lapin::{Channel, Connection, Consumer};

use super::{Attempt, Queue, Subscriber};
use crate::amqp::acker::Acker;
use crate::amqp::connection::{ANSWER, CloseUnlessUsed, channel, close, closed};
use crate::amqp::error::Error;
use crate::amqp::links::Link;
use crate::amqp::supervisor::up;
use crate::amqp::ticket::{Settlement, Subscription};
use crate::amqp::topology::ensure_home;
use crate::amqp::window::Consuming;
use crate::episode::Episode;
use crate::lock::lock;

impl Subscriber {
    /// Waits for a connection and for a place at the gate, and consumes on a channel of its own.
    pub(super) async fn attach(
        &self,
        trouble: &mut Episode<String>,
        without: &mut Option<Error>,
    ) -> Result<Attempt, Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        let Link { current, gate, meter } = &self.route.link;
        let mut current = current.clone();
        // Until it consumes, the bytes that are held do not matter.
        meter.disarm();
        let (connection, place) = loop {
            let connection = tokio::select! {
                biased;
                () = self.route.guilty() => return Ok(Attempt::Guilty),
                connection = up(&mut current) => connection,
            };
            let Some(connection) = connection else { return Ok(Attempt::Over) };
            let place = tokio::select! {
                biased;
                () = self.route.guilty() => return Ok(Attempt::Guilty),
                place = gate.enter() => place,
            };
            // If the connection was lost during the wait for a place, that is no trouble of this downstream.
            if connection.status().connected() {
                break (connection, place);
            }
        };
        gate.share(&connection, options, downstream).await?;
        if self.queue == Queue::Home {
            *without = self.ensure_parking(&connection).await?;
        }
        let channel = channel(&connection).await?;
        meter.assign(channel.id(), &downstream.name);
        let unused = CloseUnlessUsed::new(channel.clone());
        match self.consume(&channel).await {
            Ok((queue, consumer, consuming)) => {
                unused.used();
                let subscription = Arc::new(Subscription::new(Acker::new(channel, queue)));
                let mut slot = lock(&self.reports.slot);
                slot.retain(|subscription| subscription.is_live());
                slot.push(Arc::clone(&subscription));
                Ok(Attempt::Consuming(subscription, consumer, consuming))
            }
            Err(error) => {
                // A slow broker is busy with this channel until it has closed it: another one each time would overload
                // it, and use up the channels of the connection.
                let mut closed = pin!(closed(&channel));
                if tokio::time::timeout(ANSWER, &mut closed).await.is_err() {
                    self.log_trouble(trouble, error.to_string());
                    // The others need not wait for one queue that does not answer.
                    drop(place);
                    tokio::select! {
                        () = closed => {}
                        _ = current.changed() => {}
                    }
                }
                Err(error)
            }
        }
    }

    /// Ensures that jobs can be parked, and come back. Returns the reason if they cannot be parked: what is there is
    /// consumed all the same.
    async fn ensure_parking(&self, connection: &Connection) -> Result<Option<Error>, Error> {
        let Settlement { options, downstream, parking, .. } = &*self.settlement;
        let ensured = async {
            let existing = &self.route.link.gate.existing;
            loop {
                let channel = channel(connection).await?;
                let ensured = ensure_home(&channel, existing, options, downstream).await;
                close(&channel).await;
                match ensured {
                    Err(error) if existing.note(&error) => {}
                    ensured => break ensured?,
                }
            }
            if !options.declare {
                parking.rungs.ensure_all(connection, options, downstream).await?;
            }
            Ok::<(), Error>(())
        };
        match ensured.await {
            Err(error) if error.is_final() => Ok(Some(error)),
            ensured => ensured.map(|()| None),
        }
    }

    /// Ensures the downstream's queues and consumes, all on one channel.
    async fn consume(&self, channel: &Channel) -> Result<(String, Consumer, Consuming), Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        match self.queue {
            Queue::Jobs => self.route.link.gate.own(channel, options, downstream).await?,
            // It was ensured on another channel, since it may be consumed even where that is refused.
            Queue::Home => {}
        }
        let target = self.sizes.target(self.bounds());
        // Messages of an earlier connection count too.
        let elsewhere = u16::try_from(self.elsewhere(None)).unwrap_or(u16::MAX);
        let prefetch = target.saturating_sub(elsewhere).max(1);
        let consumer = self.subscribe(channel, prefetch).await?;
        Ok((self.queue_name(), consumer, Consuming { prefetch, target }))
    }
}
