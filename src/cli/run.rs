//! `paced run`: the daemon.

use std::sync::Arc;
use std::time::Duration;

use paced::amqp::Amqp;
use paced::config::Settings;
use paced::dispatch::{Dispatcher, Drained};
use paced::store::Store;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::reload::Live;
use super::signals::{Hangups, Signals};
use super::{Global, parts};
use crate::admin::{self, Access, Api, Operations, Readiness, StoreProbe};
use crate::telemetry::Exporter;

/// The time that the connections may take beyond the drain to write the last acks and to close.
const CLOSING: Duration = Duration::from_secs(4);

pub(super) async fn run(global: &Global) -> Exit {
    match daemon(global).await {
        Ok(exit) | Err(exit) => exit,
    }
}

async fn daemon(global: &Global) -> Result<Exit, Exit> {
    let loaded = parts::load(global)?;
    let settings = loaded.settings.clone();
    let (mut signals, mut hangups) = (Signals::new()?, Hangups::new()?);
    // The exporter comes first: metrics that are recorded before it exists are lost.
    let watched = watched(&settings).await?;
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
    let mut live = Live::new(parts::sources(global), loaded, &dispatchers);
    let amqp = Amqp::start(parts::amqp(&settings)?);
    let stop = CancellationToken::new();
    let operations = Operations::new(Arc::clone(&store), live.terms());
    let api = Api { access: Access::new(&settings.admin), operations };
    let probe = Arc::new(StoreProbe::new(store, settings.downstreams.keys().cloned().collect()));
    let readiness = Readiness { amqp: amqp.status(), store: Arc::clone(&probe), draining: stop.clone() };
    let server = serve(watched, readiness, api)?;
    let mut running = JoinSet::new();
    for (name, dispatcher) in dispatchers {
        let source = amqp.source(&name).map_err(|error| {
            tracing::error!(downstream = name, %error, "no source");
            Exit::Failed
        })?;
        running.spawn(dispatcher.run(source, stop.clone()));
    }

    let failed = {
        let mut announcing = std::pin::pin!(announce(&amqp, probe));
        loop {
            tokio::select! {
                signal = signals.next() => {
                    tracing::info!(signal, "stopping: jobs not yet sent go back, sends in flight may end");
                    break false;
                }
                () = hangups.next() => live.reload().await,
                ended = running.join_next() => {
                    tracing::error!(?ended, "a dispatcher ended by itself; stopping, so that a restart mends it");
                    break true;
                }
                () = announcing.as_mut() => {}
            }
        }
    };
    stop.cancel();
    let end = Instant::now() + settings.shutdown.drain_timeout + CLOSING;
    let ended = tokio::select! {
        ended = drain(running, amqp, end) => ended,
        signal = signals.next() => {
            tracing::warn!(signal, "stopped at once; what was being sent will be sent again");
            return Err(Exit::Undrained);
        }
    };
    if let Some(server) = server {
        // Until the end the server reports that the daemon lives and is not ready.
        server.stop().await;
    }
    if failed { Err(Exit::Failed) } else { ended.exit() }
}

/// The results of the drain.
struct Ended {
    /// Whether a dispatcher panicked.
    failed: bool,
    /// The number of sends that had not ended in time.
    unfinished: usize,
    /// Whether the broker has processed every ack.
    flushed: bool,
}

impl Ended {
    fn exit(&self) -> Result<Exit, Exit> {
        if self.failed {
            return Err(Exit::Failed);
        }
        if self.unfinished > 0 {
            let unfinished = self.unfinished;
            tracing::warn!(unfinished, "the drain timed out; these jobs will be sent again");
            return Err(Exit::Undrained);
        }
        if !self.flushed {
            tracing::warn!(
                "the connections to RabbitMQ did not close in time; what was just sent may be sent again"
            );
            return Err(Exit::Undrained);
        }
        tracing::info!("stopped");
        Ok(Exit::Ok)
    }
}

/// Waits for the dispatchers, then for the connections until `end`.
async fn drain(mut running: JoinSet<Drained>, amqp: Amqp, end: Instant) -> Ended {
    let (mut unfinished, mut failed) = (0, false);
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(drained) => unfinished += drained.unfinished,
            Err(error) => {
                tracing::error!(%error, "a dispatcher ended badly");
                failed = true;
            }
        }
    }
    let flushed = amqp.shutdown(end.saturating_duration_since(Instant::now())).await;
    Ended { failed, unfinished, flushed }
}

/// Binds the address for probes and scrapers, if there is one, and installs the exporter; without an address nothing is
/// recorded.
async fn watched(settings: &Settings) -> Result<Option<(TcpListener, Exporter)>, Exit> {
    let Some(listen) = &settings.admin.listen else { return Ok(None) };
    let listener = admin::bind(listen).await.map_err(|error| {
        tracing::error!("{error}");
        if error.is_permanent() { Exit::Config } else { Exit::Failed }
    })?;
    let exporter = Exporter::install().map_err(|error| {
        tracing::error!(%error, "no metrics");
        Exit::Failed
    })?;
    Ok(Some((listener, exporter)))
}

fn serve(
    watched: Option<(TcpListener, Exporter)>,
    readiness: Readiness,
    api: Api,
) -> Result<Option<admin::Server>, Exit> {
    let Some((listener, exporter)) = watched else { return Ok(None) };
    let pages = admin::pages(readiness, move || exporter.render()).merge(admin::api(api));
    let server = admin::Server::start(listener, pages).map_err(|error| {
        tracing::error!(%error, "no admin server");
        Exit::Failed
    })?;
    let address = server.address();
    tracing::info!(%address, "probes and metrics are served");
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "whoever reaches this address may read the metrics and how the downstreams stand; admin.listen = \"127.0.0.1:{}\" keeps them on this machine", address.port());
    }
    Ok(Some(server))
}

fn dispatchers(settings: &Settings, store: &Arc<dyn Store>) -> Result<Vec<(String, Dispatcher)>, Exit> {
    let clock = parts::clock(settings.precision);
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

/// Logs when the store answers and every consumer is attached; never returns.
async fn announce(amqp: &Amqp, store: Arc<StoreProbe>) {
    tokio::spawn(async move {
        if let Err(error) = store.check().await {
            tracing::warn!(error, "jobs are held until there is a store");
        }
    });
    amqp.ready().await;
    // Tests and operators wait for this log line.
    tracing::info!("ready");
    std::future::pending().await
}
