//! Hands on the deliveries of one consumer. When the window changes, it replaces the consumer by one with another
//! prefetch.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::Consumer;
use lapin::options::BasicCancelOptions;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::stand_in::StandIn;
use super::{End, Feed, Feeds, Queue, Started, Subscriber};
use crate::amqp::admission::GiveBack;
use crate::amqp::connection::ANSWER;
use crate::amqp::error::{Error, text};
use crate::amqp::read_timeout::ReadTimeout;
use crate::amqp::window::{Consuming, Step, Unsettled, step};

/// How long there is no consumer before a window of less than half of the possible one is used. Meanwhile more
/// messages are settled.
const PAUSE_BEFORE_CUT: Duration = Duration::from_secs(1);

/// How often a window is refilled if less than half of it is missing.
const FILL_UP_INTERVAL: Duration = Duration::from_secs(10);

/// The consumer of one channel; none while there is no room for more messages.
pub(super) struct Pump<'a> {
    subscriber: &'a mut Subscriber,
    feed: Feed,
    stand_in: Option<StandIn>,
    consumer: Option<Consumer>,
    consuming: Consuming,
    /// Whether the consumer brought messages for which there is no room.
    overrun: bool,
    /// Changes when messages were settled.
    freed: watch::Receiver<()>,
    /// Before this instant nothing is consumed, unless half of the window is free.
    consume_at: Instant,
    /// It runs once a message has come.
    fill_up: Interval,
}

/// The next event.
enum Event {
    Closing,
    /// The window may have changed.
    WindowChanged,
    /// [`FILL_UP_INTERVAL`] has passed without a new consumer.
    Waited,
    Item(Option<Result<lapin::message::Delivery, lapin::Error>>),
    /// As `Item`, from the consumer that stands in.
    StoodIn(Option<Result<lapin::message::Delivery, lapin::Error>>),
}

impl<'a> Pump<'a> {
    /// Boxed, since the future of a downstream would have room for it twice.
    pub(super) fn new(subscriber: &'a mut Subscriber, started: Started) -> Box<Self> {
        let now = Instant::now();
        let mut fill_up = interval_at(now + FILL_UP_INTERVAL, FILL_UP_INTERVAL);
        fill_up.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let freed = subscriber.settlement.account.freed();
        let Started { feeds: Feeds { main: feed, stand_in }, consumer, consuming } = started;
        let (consumer, overrun) = (Some(consumer), false);
        let consume_at = now;
        Box::new(Self {
            subscriber,
            feed,
            stand_in,
            consumer,
            consuming,
            overrun,
            freed,
            consume_at,
            fill_up,
        })
    }

    /// Runs until the consumer ends or is closed.
    pub(super) async fn run(mut self: Box<Self>) -> End {
        loop {
            let had_messages = self.subscriber.sizes.has_seen();
            let event = self.event().await;
            let waited = matches!(event, Event::Waited);
            let handed_on = match event {
                Event::Closing => return Box::pin(self.close()).await,
                Event::WindowChanged | Event::Waited => Ok(true),
                Event::Item(Some(Ok(delivery))) => self.subscriber.hand_on(&self.feed, delivery),
                Event::StoodIn(Some(Ok(delivery))) => match &self.stand_in {
                    Some(stand_in) => self.subscriber.hand_on(&stand_in.feed, delivery),
                    None => Ok(true),
                },
                Event::Item(Some(Err(error))) | Event::StoodIn(Some(Err(error))) => {
                    return End::Lost(text(&error));
                }
                Event::Item(None) | Event::StoodIn(None) => {
                    return End::Lost("the broker ended the consumer".to_owned());
                }
            };
            let adjusted = match handed_on {
                Ok(has_room) => {
                    self.overrun |= !has_room;
                    if !had_messages && self.subscriber.sizes.has_seen() {
                        self.fill_up.reset();
                    }
                    self.adjust(waited).await
                }
                Err(error) => Err(error),
            };
            match adjusted {
                Ok(()) => {}
                // A slow broker may still accept the acks of the drain.
                Err(Error::TimedOut { .. }) if self.subscriber.closing.is_cancelled() => {
                    self.feed.subscription.note_silence();
                    return End::Closed;
                }
                Err(error) => return End::Lost(error.to_string()),
            }
        }
    }

    async fn event(&mut self) -> Event {
        let is_used_up = self.is_used_up();
        let Subscriber { window, closing, sizes, .. } = &mut *self.subscriber;
        // Before the first message there is no reason to refill the window.
        let fills_up = sizes.has_seen();
        let is_paused = *window.borrow() == 0;
        let is_lost = self.stand_in.as_ref().is_some_and(StandIn::is_lost);
        let stood_in = async {
            match &mut self.stand_in {
                // A message that arrives during a pause waits for its end.
                Some(stand_in) if !is_paused => stand_in.next().await,
                _ => std::future::pending().await,
            }
        };
        match &mut self.consumer {
            Some(consumer) => tokio::select! {
                () = closing.cancelled() => Event::Closing,
                Ok(()) = window.changed() => Event::WindowChanged,
                item = consumer.next() => Event::Item(item),
                // This consumer delivers nothing more before one of its messages is settled. The sender is the
                // account's.
                _ = self.freed.changed(), if is_used_up => Event::WindowChanged,
                _ = self.fill_up.tick(), if fills_up => Event::Waited,
            },
            None if !self.feed.subscription.is_live() => Event::Item(None),
            None if is_lost => Event::StoodIn(None),
            // The window is read before messages: once a pause has begun, no message passes.
            None => tokio::select! {
                biased;
                () = closing.cancelled() => Event::Closing,
                Ok(()) = window.changed() => Event::WindowChanged,
                item = stood_in => Event::StoodIn(item),
                // The sender is the account's, and outlives this.
                _ = self.freed.changed() => Event::WindowChanged,
                () = tokio::time::sleep(PAUSE_BEFORE_CUT) => Event::WindowChanged,
            },
        }
    }

    /// Cancels the consumer, or replaces it, where the window requires it.
    async fn adjust(&mut self, waited: bool) -> Result<(), Error> {
        let gives_back = self.feed.admission.gives_back();
        if self.subscriber.queue == Queue::Jobs {
            let size = self.subscriber.sizes.size(gives_back);
            self.subscriber.reports.size.store(size, Ordering::Relaxed);
        }
        if *self.subscriber.window.borrow() == 0 {
            // Boxed, as those below: these futures are large, and few calls need them.
            Box::pin(self.cancel()).await?;
            self.subscriber.reports.idle.send_replace(true);
            self.stand_in.iter_mut().filter(|_| gives_back != GiveBack::None).for_each(StandIn::renew);
            return Ok(());
        }
        self.subscriber.reports.idle.send_if_modified(std::mem::take);
        if waited || self.is_used_up() {
            // The requested messages have arrived, or another client has got them.
            self.feed.admission.reserve(0);
        }
        if self.consumer.is_some() {
            if !self.overrun && self.step(waited).1 != Step::Cancel {
                return Ok(());
            }
            Box::pin(self.cancel()).await?;
            self.consume_at = Instant::now() + PAUSE_BEFORE_CUT;
        }
        // The downstream may have been paused meanwhile.
        if self.subscriber.closing.is_cancelled() || *self.subscriber.window.borrow() == 0 {
            return Ok(());
        }
        self.freed.mark_unchanged();
        // A message that arrived now would be given back.
        if self.subscriber.settlement.account.is_full() {
            return Ok(());
        }
        let (now, bound) = (Instant::now(), *self.subscriber.window.borrow());
        let (target, step) = self.step(now >= self.consume_at);
        if step == Step::Keep && now >= self.consume_at && target < bound {
            // There is room again, but without a consumer nothing arrives that would show that messages have become
            // shorter.
            self.subscriber.sizes.fade();
            self.consume_at = now + PAUSE_BEFORE_CUT;
        }
        if let Step::Consume(prefetch) = step {
            let bounds = self.subscriber.bounds(&self.feed.admission);
            self.feed.admission.reserve(self.subscriber.sizes.reserves(prefetch, bounds));
            // The settlements precede the new consumer, so that the broker counts them first too, and has requeued
            // what was given back.
            let acker = &self.feed.subscription.acker;
            acker.write_now();
            acker.another_consumer();
            self.consumer = Some(Box::pin(self.subscriber.subscribe(&self.feed, prefetch)).await?);
            self.consuming = Consuming { prefetch, target };
            self.fill_up.reset();
            if let Some(stand_in) = &mut self.stand_in {
                Box::pin(stand_in.end(self.subscriber)).await?;
            }
        }
        Ok(())
    }

    /// The target of the window, and the step to reach it.
    fn step(&self, waited: bool) -> (u16, Step) {
        let bounds = self.subscriber.bounds(&self.feed.admission);
        let unsettled = self.unsettled();
        let target = self.subscriber.sizes.target(bounds, unsettled.all);
        let consuming = self.consumer.is_some().then_some(self.consuming);
        let waited = waited || self.subscriber.sizes.is_urgent(bounds);
        (target, step(target, bounds.wanted, consuming, unsettled, waited))
    }

    /// The messages of the queue that are unsettled.
    fn unsettled(&self) -> Unsettled {
        let Unsettled { all, earlier } = self.feed.subscription.acker.unsettled();
        let elsewhere =
            self.stand_in.iter().map(|other| other.feed.subscription.acker.unsettled().all).sum::<usize>();
        Unsettled { all: all + elsewhere, earlier: earlier + elsewhere }
    }

    /// Whether everything that the consumer may bring is here.
    fn is_used_up(&self) -> bool {
        let unsettled = self.unsettled();
        self.consumer.is_some() && unsettled.all >= unsettled.earlier + usize::from(self.consuming.prefetch)
    }

    /// Cancels the consumer and hands on the deliveries in transit. Unacked messages stay unacked. If the queue must
    /// not be without a consumer, another one stands in first.
    async fn cancel(&mut self) -> Result<(), Error> {
        if let Some(stand_in) = &mut self.stand_in {
            stand_in.begin(self.subscriber).await?;
        }
        self.drain("consuming with another prefetch").await?;
        self.feed.admission.reserve(0);
        self.overrun = false;
        Ok(())
    }

    async fn drain(&mut self, what: &str) -> Result<(), Error> {
        match self.consumer.take() {
            Some(consumer) => self.subscriber.drain(&self.feed, consumer, what).await,
            None => Ok(()),
        }
    }

    /// Ends the consumer; messages that have arrived are handed on.
    async fn close(mut self: Box<Self>) -> End {
        match self.drain("consuming no more").await {
            // A slow broker may still accept the acks of the drain, so the channel stays open until the shutdown.
            Ok(()) => {}
            Err(Error::TimedOut { .. }) => self.feed.subscription.note_silence(),
            // The channel is closed, and all that is unacked is delivered again.
            Err(_) => self.feed.subscription.end(),
        }
        End::Closed
    }
}

impl Subscriber {
    /// Cancels a consumer and hands on its deliveries until the broker has answered.
    pub(super) async fn drain(
        &mut self,
        feed: &Feed,
        mut consumer: Consumer,
        what: &str,
    ) -> Result<(), Error> {
        let channel = feed.subscription.acker.channel().clone();
        let closing = self.closing.clone();
        let mut cancel = pin!(channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()));
        let mut timeout = ReadTimeout::new(&feed.admissions, &closing);
        let mut over = pin!(timeout.elapsed());
        let (mut answered, mut ended) = (false, false);
        // The stream ends after the last message that had arrived.
        while !(answered && ended) {
            tokio::select! {
                answer = &mut cancel, if !answered => {
                    answer.map_err(|error| Error::of(what, &error))?;
                    answered = true;
                }
                item = consumer.next(), if !ended => match item {
                    Some(Ok(delivery)) => {
                        self.hand_on(feed, delivery)?;
                    }
                    Some(Err(error)) => return Err(Error::of(what, &error)),
                    None => ended = true,
                },
                () = &mut over => {
                    // Deliveries that still come return with the channel, and must not pile up until then.
                    tokio::spawn(async move { while let Some(Ok(_)) = consumer.next().await {} });
                    return Err(Error::TimedOut { what: what.to_owned(), after: ANSWER });
                }
            }
        }
        Ok(())
    }
}
