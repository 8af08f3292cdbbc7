//! Hands on what one consumer brings, and consumes anew with another prefetch where the window changes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::Consumer;
use lapin::options::BasicCancelOptions;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{End, Subscriber};
use crate::amqp::connection::ask;
use crate::amqp::error::{Error, text};
use crate::amqp::ticket::Subscription;
use crate::amqp::window::{Consuming, Step, step};

/// For the broker's answer to the cancel at the end: a drain has little time.
const LAST_CANCEL: Duration = Duration::from_secs(3);

/// How long nothing is consumed, so that more of what is unsettled is settled, before a window is taken that
/// is less than half of what it may be.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a window is filled up of which less than half is missing.
const FILL_UP: Duration = Duration::from_secs(10);

/// The consumer of one channel, or none while there is no room for more.
pub(super) struct Pump<'a> {
    pub(super) subscriber: &'a mut Subscriber,
    pub(super) subscription: Arc<Subscription>,
    consumer: Option<Consumer>,
    consuming: Consuming,
    /// Nothing is consumed before, unless half of the window is free.
    patience: Instant,
    fill_up: Interval,
}

/// What happens next.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and a box would be one per message")]
enum Event {
    Closing,
    /// Perhaps another window.
    Look,
    /// Nothing was changed for long.
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
        let mut fill_up = interval_at(now + FILL_UP, FILL_UP);
        fill_up.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { subscriber, subscription, consumer: Some(consumer), consuming, patience: now, fill_up }
    }

    /// Runs until the consumer ends or is closed.
    pub(super) async fn run(mut self) -> End {
        loop {
            let event = self.event().await;
            let waited = matches!(event, Event::Waited);
            match event {
                Event::Closing => return self.close().await,
                Event::Look | Event::Waited => {}
                Event::Item(Some(Ok(delivery))) => self.subscriber.hand_on(&self.subscription, delivery),
                Event::Item(Some(Err(error))) => return End::Lost(text(&error)),
                Event::Item(None) => return End::Lost("the broker ended the consumer".to_owned()),
            }
            if let Err(error) = self.adjust(waited).await {
                return End::Lost(error.to_string());
            }
        }
    }

    async fn event(&mut self) -> Event {
        let Subscriber { window, closing, .. } = &mut *self.subscriber;
        match &mut self.consumer {
            Some(consumer) => tokio::select! {
                () = closing.cancelled() => Event::Closing,
                Ok(()) = window.changed() => Event::Look,
                item = consumer.next() => Event::Item(item),
                _ = self.fill_up.tick() => Event::Waited,
            },
            None if !self.subscription.is_live() => Event::Item(None),
            None => tokio::select! {
                () = closing.cancelled() => Event::Closing,
                Ok(()) = window.changed() => Event::Look,
                () = self.subscription.acker.settled() => Event::Look,
                () = tokio::time::sleep(PATIENCE) => Event::Look,
            },
        }
    }

    /// Cancels, or consumes anew, where the window calls for it.
    async fn adjust(&mut self, waited: bool) -> Result<(), Error> {
        if *self.subscriber.window.borrow() == 0 {
            self.cancel().await?;
            self.subscriber.idle.send_replace(true);
            return Ok(());
        }
        if self.consumer.is_some() {
            if self.step(waited).1 != Step::Cancel {
                return Ok(());
            }
            self.cancel().await?;
            self.patience = Instant::now() + PATIENCE;
        }
        if self.subscriber.closing.is_cancelled() {
            return Ok(());
        }
        if let (target, Step::Consume(prefetch)) = self.step(Instant::now() >= self.patience) {
            self.subscriber.idle.send_replace(false);
            // Ahead of the consumer: the broker, too, counts them as settled then.
            self.subscription.acker.write_now();
            self.subscription.acker.another_consumer();
            let channel = self.subscription.acker.channel();
            self.consumer = Some(self.subscriber.subscribe(channel, prefetch).await?);
            self.consuming = Consuming { prefetch, target };
            self.fill_up.reset();
        }
        Ok(())
    }

    /// What to do for a window of this many.
    fn step(&self, waited: bool) -> (u16, Step) {
        let bounds = self.subscriber.bounds();
        let target = self.subscriber.sizes.target(bounds);
        let consuming = self.consumer.is_some().then_some(self.consuming);
        let unsettled = self.subscription.acker.unsettled();
        (target, step(target, bounds.wanted, consuming, unsettled, waited))
    }

    /// Cancels the consumer and hands on what still comes. What is unacked stays so.
    async fn cancel(&mut self) -> Result<(), Error> {
        let Some(mut consumer) = self.consumer.take() else { return Ok(()) };
        let channel = self.subscription.acker.channel();
        let cancel = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        ask("consuming with another prefetch", cancel).await?;
        // The stream ends behind the last message that had arrived.
        while let Some(Ok(delivery)) = consumer.next().await {
            self.subscriber.hand_on(&self.subscription, delivery);
        }
        Ok(())
    }

    /// Consumes no more; what has arrived is handed on.
    async fn close(mut self) -> End {
        let Some(mut consumer) = self.consumer.take() else { return End::Closed };
        let channel = self.subscription.acker.channel();
        let cancel = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        match tokio::time::timeout(LAST_CANCEL, cancel).await {
            Ok(Ok(())) => {}
            // The channel is gone, and all that is unacked comes again.
            Ok(Err(_)) => {
                self.subscription.end();
                return End::Closed;
            }
            // A broker that is slow may take the acks of the drain all the same: the channel stays until
            // the shutdown. What still comes was handed to nobody, and goes back with the channel.
            Err(_) => return End::Closed,
        }
        while let Some(Ok(delivery)) = consumer.next().await {
            self.subscriber.hand_on(&self.subscription, delivery);
        }
        End::Closed
    }
}
