//! A daemon that runs, until it has ended in order.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use paced::amqp::Amqp;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::manager::Manager;
use super::reload::{self, Live};
use super::serving::Serving;
use super::signals::{Hangups, Signals};
use super::watches::Watches;
use crate::admin::{self, StoreProbe};
use crate::status::Observer;

/// The time that the connections may take beyond the drain to write the last acks and to close.
const CLOSING: Duration = Duration::from_secs(4);

/// The parts of a daemon that runs.
pub(crate) struct Running {
    /// The dispatchers, which end after `stop`.
    pub(super) serving: Serving,
    pub(super) amqp: Arc<Amqp>,
    pub(super) observer: Observer,
    pub(super) server: Option<admin::Server>,
    pub(super) probe: Arc<StoreProbe>,
    pub(super) stop: CancellationToken,
    pub(super) live: Live,
    pub(super) watches: Watches,
    pub(super) manager: Manager,
}

/// How a daemon has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Everything that was being sent has ended, and the broker has every ack.
    Drained,
    /// Something that was being sent may be sent again.
    Undrained,
    /// A dispatcher ended by itself.
    Failed,
}

impl Running {
    /// Runs until a signal comes or a dispatcher ends by itself, and then drains: no further job is sent, and sends
    /// in progress may end. A second signal ends the drain at once. At each of `hangups`, and at a change of the
    /// directory of `[dynamic]`, the configuration is read again.
    pub(crate) async fn run(self, mut signals: Signals, hangups: Hangups) -> End {
        let Self { mut serving, amqp, observer, server, probe, stop, live, watches, manager } = self;
        let drain_timeout = live.drain_timeout();
        // The reload outlives the loop, since the admin API reads its terms until the end.
        let mut reloading = std::pin::pin!(reload::on_changes(hangups, live, manager.clone()));
        let failed = tokio::select! {
            signal = signals.next() => {
                tracing::info!(signal, "stopping: jobs not yet sent go back, sends in flight may end");
                false
            }
            ended = serving.run() => {
                tracing::error!(?ended, "a dispatcher ended by itself; the daemon stops, to be started again");
                true
            }
            never = announce(&amqp, probe, &manager) => match never {},
            never = watches.watch() => match never {},
            never = reloading.as_mut() => match never {},
        };
        manager.stopping(drain_timeout + CLOSING + admin::CHANGES_TIMEOUT + Observer::STOP);
        stop.cancel();
        let within = drain_timeout + CLOSING;
        let drained = tokio::select! {
            drained = drain(serving, &amqp, within) => drained,
            signal = signals.next() => {
                tracing::warn!(signal, "stopped at once; jobs that were being sent will be sent again");
                return End::Undrained;
            }
        };
        if let Some(server) = server {
            // Until the end the server reports that the daemon lives and is not ready.
            server.stop().await;
        }
        observer.stop().await;
        if failed { End::Failed } else { drained.end() }
    }
}

/// The results of the drain.
struct Outcome {
    /// Whether a dispatcher panicked.
    failed: bool,
    /// The number of sends that had not ended in time.
    unfinished: usize,
    /// Whether the broker has processed every ack.
    flushed: bool,
}

impl Outcome {
    /// Returns how the daemon has ended, and logs it.
    fn end(&self) -> End {
        if self.failed {
            return End::Failed;
        }
        if self.unfinished > 0 {
            let unfinished = self.unfinished;
            tracing::warn!(unfinished, "the drain timed out; these jobs will be sent again");
            return End::Undrained;
        }
        if !self.flushed {
            tracing::warn!(
                "the connections to RabbitMQ did not close in time; jobs that were just sent may be sent again"
            );
            return End::Undrained;
        }
        tracing::info!("stopped");
        End::Drained
    }
}

/// Waits for the dispatchers, and then for the connections until the time is over.
async fn drain(mut serving: Serving, amqp: &Amqp, within: Duration) -> Outcome {
    let end = Instant::now() + within;
    let (mut unfinished, mut failed, mut flushed) = (0, false, true);
    // A dispatcher that was removed just before may still wait for the broker.
    while let Ok(Some(ended)) = timeout_at(end, serving.next_ended()).await {
        match ended {
            Ok(ended) => {
                unfinished += ended.drained.unfinished;
                flushed &= ended.is_flushed;
            }
            Err(error) => {
                tracing::error!(%error, "a dispatcher ended badly");
                failed = true;
            }
        }
    }
    flushed &= serving.left() == 0;
    flushed &= amqp.shutdown(end.saturating_duration_since(Instant::now())).await;
    Outcome { failed, unfinished, flushed }
}

/// Logs when the store answers and every consumer is attached, and informs the service manager.
async fn announce(amqp: &Amqp, store: Arc<StoreProbe>, manager: &Manager) -> Infallible {
    tokio::spawn(async move {
        if let Err(error) = store.check().await {
            tracing::warn!(error, "jobs are held until there is a store");
        }
    });
    amqp.ready().await;
    // Tests and operators wait for this log line.
    tracing::info!("ready");
    manager.ready();
    std::future::pending().await
}
