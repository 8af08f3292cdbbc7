//! The messages of one downstream, over one connection after another: new jobs, and parked jobs that come home.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::attached::Attached;
use super::budget::Account;
use super::connection::close;
use super::error::Error;
use super::links::Route;
use super::parking::Parking;
use super::ticket::{Settlement, Subscription};
use super::window::Sizes;
use crate::dispatch::{Delivery, Source};
use crate::lock::lock;
use crate::metric;
use subscriber::{Known, Queue, Reports, Subscriber};

mod subscriber;

/// The last subscriptions to a queue, whose messages may still be settled: for the last flush.
pub(super) type Slot = Arc<Mutex<Vec<Arc<Subscription>>>>;

/// The messages of one downstream.
///
/// When dropped, it consumes no more; tickets that were handed out stay valid.
#[derive(Debug)]
pub struct AmqpSource {
    arrivals: mpsc::UnboundedReceiver<Box<Delivery>>,
    /// The window in force; 0 while it is paused.
    window: watch::Sender<u16>,
    /// The window that the dispatcher wants while it is not paused.
    wanted: u16,
    is_paused: bool,
    /// For each queue, whether it has no consumer.
    idle: [watch::Receiver<bool>; 2],
    /// The assumed size of messages of the jobs' queue, in bytes.
    size: Arc<AtomicU64>,
    /// The account of the bytes that it holds.
    account: Arc<Account>,
    parking: Arc<Parking>,
    closing: CancellationToken,
}

impl AmqpSource {
    fn set_window(&self) {
        let window = if self.is_paused { 0 } else { self.wanted.max(1) };
        self.window.send_if_modified(|known| std::mem::replace(known, window) != window);
    }
}

impl Source for AmqpSource {
    async fn next(&mut self) -> Option<Delivery> {
        loop {
            let delivery = self.arrivals.recv().await?;
            // A message of a lost connection is delivered again over the next one.
            if delivery.ticket.is_live() {
                return Some(*delivery);
            }
        }
    }

    /// Unsettled messages stay so, and count for the new window: the broker delivers none until fewer are unsettled.
    fn resize(&mut self, window: u16) {
        self.wanted = window;
        self.set_window();
    }

    /// Cancels the consumer. The channel stays open, and its messages stay unsettled.
    fn pause(&mut self) -> BoxFuture<'static, ()> {
        self.is_paused = true;
        self.set_window();
        let mut idle = self.idle.clone();
        Box::pin(async move {
            for idle in &mut idle {
                // Without a sender the source has ended, and hands out nothing more.
                let _ = idle.wait_for(|idle| *idle).await;
            }
        })
    }

    fn resume(&mut self) {
        self.is_paused = false;
        self.set_window();
    }

    fn most_at_once(&self, unsettled: usize) -> usize {
        let most = self.account.most(unsettled as u64, self.size.load(Ordering::Relaxed));
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    fn can_park(&self) -> bool {
        self.parking.is_available()
    }

    fn unpark(&self, versions: Option<String>) {
        self.parking.unpark.send_replace(versions);
    }

    fn is_full(&self) -> bool {
        self.account.is_full()
    }

    async fn close(&mut self) {
        self.closing.cancel();
    }
}

impl Drop for AmqpSource {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// As [`flush`], while other downstreams use the connection: it does not ask a silent queue again. If that queue has
/// no leader, the broker would close the connection.
pub(super) async fn flush_among(slot: &Slot) -> bool {
    let silent: Vec<_> = lock(slot).extract_if(.., |subscription| subscription.is_silent()).collect();
    for subscription in &silent {
        subscription.acker.write_now();
        close(subscription.acker.channel()).await;
        subscription.end();
    }
    flush(slot).await && silent.is_empty()
}

/// Waits until the broker has processed a queue's settlements, and closes its channels; false where that failed.
pub(super) async fn flush(slot: &Slot) -> bool {
    let subscriptions = std::mem::take(&mut *lock(slot));
    let mut all = true;
    // The messages of a lost connection are delivered again in any case.
    for subscription in subscriptions.iter().filter(|subscription| subscription.is_live()) {
        // A queue that is deleted with its last consumer has nothing to process any more.
        all &= matches!(subscription.acker.flush().await, Ok(()) | Err(Error::NotFound { .. }));
        close(subscription.acker.channel()).await;
        subscription.end();
    }
    all
}

/// A source, and the subscribers that fill it: one for each queue.
pub(super) fn open(
    settlement: Arc<Settlement>,
    route: &Route,
    closing: CancellationToken,
    attached: [Attached; 2],
    slots: [Slot; 2],
) -> ([Subscriber; 2], AmqpSource) {
    let (sender, arrivals) = mpsc::unbounded_channel();
    let wanted = settlement.downstream.prefetch;
    let (windows, window) = watch::channel(wanted.max(1));
    let idle = [watch::channel(true), watch::channel(true)];
    let is_idle = idle.each_ref().map(|(_, is_idle)| is_idle.clone());
    let size = Arc::<AtomicU64>::default();
    let source = AmqpSource {
        arrivals,
        window: windows,
        wanted,
        is_paused: false,
        idle: is_idle,
        size: Arc::clone(&size),
        account: Arc::clone(&settlement.account),
        parking: Arc::clone(&settlement.parking),
        closing: closing.clone(),
    };
    let cut =
        metrics::counter!(metric::DELIVERIES_CUT.name, "downstream" => settlement.downstream.name.clone());
    cut.increment(0);
    let ([jobs, home], [jobs_slot, home_slot]) = (attached, slots);
    let [(jobs_idle, _), (home_idle, _)] = idle;
    let subscriber = |queue, attached, slot, idle| Subscriber {
        queue,
        settlement: Arc::clone(&settlement),
        arrivals: sender.clone(),
        window: window.clone(),
        sizes: Sizes::default(),
        closing: closing.clone(),
        reports: Reports { idle, size: Arc::clone(&size), attached, slot, cut: cut.clone() },
        route: route.clone(),
        known: Known::default(),
    };
    let jobs = subscriber(Queue::Jobs, jobs, jobs_slot, jobs_idle);
    let home = subscriber(Queue::Home, home, home_slot, home_idle);
    ([jobs, home], source)
}
