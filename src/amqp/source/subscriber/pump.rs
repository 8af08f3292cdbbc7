//! Hands on the deliveries of one consumer, and replaces the consumer by one with another prefetch where the window
//! changes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::Consumer;
use lapin::options::BasicCancelOptions;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tracing::warn;

use super::read_timeout::ReadTimeout;
use super::{End, Subscriber};
use crate::amqp::connection::{ANSWER, close};
use crate::amqp::error::{Error, text};
use crate::amqp::links::SeparationReason;
use crate::amqp::ticket::Subscription;
use crate::amqp::window::{Consuming, Step, Unsettled, step};

/// How long there is no consumer, so that more messages are settled, before a window is used that is less than half of
/// the possible one.
const PAUSE_BEFORE_CUT: Duration = Duration::from_secs(1);

/// How long the messages of a downstream that changes connections may still come over the shared one, and slow down the
/// others, before that connection is given up.
const SEPARATION_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a window is filled up of which less than half is missing.
const FILL_UP_INTERVAL: Duration = Duration::from_secs(10);

/// The consumer of one channel; none while there is no room for more messages.
pub(super) struct Pump<'a> {
    pub(super) subscriber: &'a mut Subscriber,
    pub(super) subscription: Arc<Subscription>,
    consumer: Option<Consumer>,
    consuming: Consuming,
    /// Before this instant nothing is consumed, unless half of the window is free.
    consume_at: Instant,
    fill_up: Interval,
}

/// The next event.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and a box would be one per message")]
enum Event {
    Closing,
    /// The window may have changed.
    WindowChanged,
    /// Nothing was changed for a long time.
    Waited,
    Item(Option<Result<lapin::message::Delivery, lapin::Error>>),
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        subscriber: &'a mut Subscriber,
        subscription: Arc<Subscription>,
        consumer: Consumer,
        consuming: Consuming,
    ) -> Self {
        let now = Instant::now();
        let mut fill_up = interval_at(now + FILL_UP_INTERVAL, FILL_UP_INTERVAL);
        fill_up.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { subscriber, subscription, consumer: Some(consumer), consuming, consume_at: now, fill_up }
    }

    /// Runs until the consumer ends or is closed.
    pub(super) async fn run(mut self) -> End {
        loop {
            let event = self.event().await;
            let waited = matches!(event, Event::Waited);
            match event {
                Event::Closing => return self.close().await,
                Event::WindowChanged | Event::Waited => {}
                Event::Item(Some(Ok(delivery))) => self.subscriber.hand_on(&self.subscription, delivery),
                Event::Item(Some(Err(error))) => return End::Lost(text(&error)),
                Event::Item(None) => return End::Lost("the broker ended the consumer".to_owned()),
            }
            let is_closing = self.subscriber.closing.is_cancelled();
            if let Some(why) = self.subscriber.unfit().filter(|_| !is_closing) {
                return self.leave(why).await;
            }
            match self.adjust(waited).await {
                Ok(()) => {}
                // A slow broker may still accept the acks of the drain.
                Err(Error::TimedOut { .. }) if self.subscriber.closing.is_cancelled() => return End::Closed,
                Err(error) => return End::Lost(error.to_string()),
            }
        }
    }

    async fn event(&mut self) -> Event {
        let Subscriber { window, closing, .. } = &mut *self.subscriber;
        match &mut self.consumer {
            Some(consumer) => tokio::select! {
                () = closing.cancelled() => Event::Closing,
                Ok(()) = window.changed() => Event::WindowChanged,
                item = consumer.next() => Event::Item(item),
                _ = self.fill_up.tick() => Event::Waited,
            },
            None if !self.subscription.is_live() => Event::Item(None),
            None => tokio::select! {
                () = closing.cancelled() => Event::Closing,
                Ok(()) = window.changed() => Event::WindowChanged,
                () = self.subscription.acker.settled() => Event::WindowChanged,
                () = tokio::time::sleep(PAUSE_BEFORE_CUT) => Event::WindowChanged,
            },
        }
    }

    /// Cancels the consumer, or replaces it, where the window requires it.
    async fn adjust(&mut self, waited: bool) -> Result<(), Error> {
        if *self.subscriber.window.borrow() == 0 {
            self.cancel().await?;
            self.subscriber.reports.idle.send_replace(true);
            return Ok(());
        }
        if self.consumer.is_some() {
            if self.step(waited).1 != Step::Cancel {
                return Ok(());
            }
            self.cancel().await?;
            self.consume_at = Instant::now() + PAUSE_BEFORE_CUT;
        }
        // The downstream may have been paused meanwhile.
        if self.subscriber.closing.is_cancelled() || *self.subscriber.window.borrow() == 0 {
            return Ok(());
        }
        if let (target, Step::Consume(prefetch)) = self.step(Instant::now() >= self.consume_at) {
            self.subscriber.reports.idle.send_replace(false);
            // The settlements go ahead of the new consumer, so that the broker, too, counts them first.
            self.subscription.acker.write_now();
            self.subscription.acker.another_consumer();
            let channel = self.subscription.acker.channel();
            self.consumer = Some(self.subscriber.subscribe(channel, prefetch).await?);
            self.consuming = Consuming { prefetch, target };
            self.fill_up.reset();
        }
        Ok(())
    }

    /// The target of the window, and the step towards it.
    fn step(&self, waited: bool) -> (u16, Step) {
        let bounds = self.subscriber.bounds();
        let target = self.subscriber.sizes.target(bounds);
        let consuming = self.consumer.is_some().then_some(self.consuming);
        let mut unsettled = self.subscription.acker.unsettled();
        if self.subscriber.route.is_own {
            let elsewhere = self.subscriber.elsewhere(Some(&self.subscription));
            unsettled = Unsettled { all: unsettled.all + elsewhere, earlier: unsettled.earlier + elsewhere };
        }
        (target, step(target, bounds.wanted, consuming, unsettled, waited))
    }

    /// Cancels the consumer and hands on the deliveries in transit. What is unacked stays so.
    async fn cancel(&mut self) -> Result<(), Error> {
        let cancelled = self.drain("consuming with another prefetch", ANSWER).await;
        self.subscriber.route.gives_back = false;
        cancelled
    }

    /// Leaves the connection to the others: ends the consumer, and hands on the deliveries in transit.
    async fn leave(mut self, why: SeparationReason) -> End {
        self.subscriber.route.gives_back = true;
        match self.drain("changing connections", SEPARATION_TIMEOUT).await {
            Ok(()) => {}
            // The shutdown closes the connection once the broker has processed the others' settlements.
            Err(Error::TimedOut { .. }) if self.subscriber.closing.is_cancelled() => return End::Closed,
            Err(error @ Error::TimedOut { .. }) => {
                // Its deliveries still come before those of all others, which is worth replacing the connection.
                warn!(downstream = %self.subscriber.name(), %error, "its messages hold up the others; reconnecting");
                self.subscriber.route.link.meter.cut();
                self.subscription.end();
            }
            // Only its channel is closed, or the connection is lost: the others are not affected.
            Err(_) => {
                self.subscription.end();
                close(self.subscription.acker.channel()).await;
            }
        }
        // Messages that were given back should be ahead of the next consumer.
        self.subscription.acker.write_now();
        End::Moved(why)
    }

    /// Cancels the consumer and hands on deliveries until the broker has answered.
    async fn drain(&mut self, what: &str, within: Duration) -> Result<(), Error> {
        let Some(mut consumer) = self.consumer.take() else { return Ok(()) };
        let channel = self.subscription.acker.channel().clone();
        let meter = Arc::clone(&self.subscriber.route.link.meter);
        let closing = self.subscriber.closing.clone();
        let mut cancel = pin!(channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()));
        let mut timeout = ReadTimeout::new(&meter, &closing, within);
        let mut over = pin!(timeout.elapsed());
        let (mut answered, mut ended) = (false, false);
        let mut window = self.subscriber.window.clone();
        // The stream ends after the last message that had arrived.
        while !(answered && ended) {
            tokio::select! {
                answer = &mut cancel, if !answered => {
                    answer.map_err(|error| Error::of(what, &error))?;
                    answered = true;
                }
                item = consumer.next(), if !ended => match item {
                    Some(Ok(delivery)) => self.subscriber.hand_on(&self.subscription, delivery),
                    Some(Err(error)) => return Err(Error::of(what, &error)),
                    None => ended = true,
                },
                Ok(_) = window.wait_for(|window| *window == 0), if !self.subscriber.route.gives_back => {
                    // The valve is opened whatever is held: the answer must not queue behind bytes that are not read.
                    meter.disarm();
                    self.subscriber.route.gives_back = true;
                }
                () = &mut over => {
                    // Deliveries that still come return with the channel, and must not pile up until then.
                    tokio::spawn(async move { while let Some(Ok(_)) = consumer.next().await {} });
                    return Err(Error::TimedOut { what: what.to_owned(), after: within });
                }
            }
        }
        Ok(())
    }

    /// Ends the consumer; messages that have arrived are handed on.
    async fn close(mut self) -> End {
        self.subscriber.route.link.meter.disarm();
        match self.drain("consuming no more", ANSWER).await {
            // A slow broker may still accept the acks of the drain, so the channel stays open until the shutdown.
            Ok(()) | Err(Error::TimedOut { .. }) => {}
            // The channel is closed, and all that is unacked is delivered again.
            Err(_) => self.subscription.end(),
        }
        End::Closed
    }
}
