//! `paced run`: the daemon.

use std::sync::Arc;
use std::time::Duration;

use paced::amqp::Amqp;
use paced::config::Settings;
use paced::dispatch::Dispatcher;
use paced::store::Store;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::signals::Signals;
use super::{Global, parts};

/// How long the connections may take to write the last acks and to close, beyond the drain.
const CLOSING: Duration = Duration::from_secs(4);

pub(super) async fn run(global: &Global) -> Exit {
    match daemon(global).await {
        Ok(exit) | Err(exit) => exit,
    }
}

async fn daemon(global: &Global) -> Result<Exit, Exit> {
    let settings = parts::load(global)?.settings;
    let mut signals = Signals::new()?;
    let store = parts::store(&settings).map_err(|error| {
        tracing::error!(%error, "no store");
        Exit::Config
    })?;
    if settings.store.url.expose() == parts::MEMORY {
        tracing::warn!(
            "store.url is memory: so the pace is not shared; run one replica, or set redis://HOST"
        );
    }
    let dispatchers = dispatchers(&settings, &store)?;
    let amqp = Amqp::start(parts::amqp(&settings)?);
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    for (name, dispatcher) in dispatchers {
        let source = amqp.source(&name).map_err(|error| {
            tracing::error!(downstream = name, %error, "no source");
            Exit::Failed
        })?;
        running.spawn(dispatcher.run(source, stop.clone()));
    }

    let (mut unfinished, mut failed) = (0, false);
    tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping: jobs not yet sent go back, sends in flight may end");
        }
        ended = running.join_next() => {
            tracing::error!(?ended, "a dispatcher ended by itself; stopping, so that a restart mends it");
            failed = true;
        }
        () = announce(&amqp, store) => {}
    }
    stop.cancel();
    let end = Instant::now() + settings.shutdown.drain_timeout + CLOSING;
    let mut flushed = true;
    let ending = async {
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(drained) => unfinished += drained.unfinished,
                Err(error) => {
                    tracing::error!(%error, "a dispatcher ended badly");
                    failed = true;
                }
            }
        }
        flushed = amqp.shutdown(end.saturating_duration_since(Instant::now())).await;
    };
    tokio::select! {
        () = ending => {}
        signal = signals.next() => {
            tracing::warn!(signal, "stopped at once; what was being sent will be sent again");
            return Err(Exit::Undrained);
        }
    }
    if failed {
        return Err(Exit::Failed);
    }
    if unfinished > 0 {
        tracing::warn!(unfinished, "the drain timed out; these jobs will be sent again");
        return Err(Exit::Undrained);
    }
    if !flushed {
        tracing::warn!(
            "the connections to RabbitMQ did not close in time; what was just sent may be sent again"
        );
        return Err(Exit::Undrained);
    }
    tracing::info!("stopped");
    Ok(Exit::Ok)
}

fn dispatchers(settings: &Settings, store: &Arc<dyn Store>) -> Result<Vec<(String, Dispatcher)>, Exit> {
    let clock = parts::clock();
    let mut dispatchers = Vec::with_capacity(settings.downstreams.len());
    for (name, downstream) in &settings.downstreams {
        let (store, clock) = (Arc::clone(store), Arc::clone(&clock));
        let dispatcher = parts::dispatcher(settings, name, downstream, store, clock).map_err(|error| {
            tracing::error!(downstream = name, %error, "no sink");
            Exit::Config
        })?;
        dispatchers.push((name.clone(), dispatcher));
    }
    Ok(dispatchers)
}

/// Says when the store answers and every consumer is attached; never ends.
async fn announce(amqp: &Amqp, store: Arc<dyn Store>) {
    tokio::spawn(async move {
        if let Err(error) = store.ping().await {
            tracing::warn!(%error, "jobs are held until there is a store");
        }
    });
    amqp.ready().await;
    // Tests and operators wait for this word.
    tracing::info!("ready");
    std::future::pending().await
}
