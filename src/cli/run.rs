//! `paced run`: the daemon.

use std::sync::Arc;
use std::time::Duration;

use paced::amqp::Amqp;
use paced::config::{Downstream, Loaded, Settings};
use paced::dispatch::{Dispatcher, Drained};
use paced::limit::{Limit, rate_text};
use paced::sink::http::HttpError;
use paced::store::Store;
use paced::terms::Replica;
use paced::time::wall_now;
use paced::tls::ServerTls;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::certificates::{Certificates, Handles};
use super::exit::Exit;
use super::manager::Manager;
use super::reload::{self, Followed, Live};
use super::secrets::{Clients, Secrets};
use super::signals::{Hangups, Signals};
use super::tokens::TokenFiles;
use super::{Global, parts};
use crate::admin::{self, Access, Api, Letters, Operations, Readiness, StoreProbe};
use crate::status::{self, Identity, Observer};
use crate::telemetry::Exporter;

/// The time that the connections may take beyond the drain to write the last acks and to close.
const CLOSING: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Args {
    /// Writes a line to the log for each job that is settled: its id, outcome, status and attempts, how long it waited,
    /// and how late it was released. `-vv` does too
    #[arg(long)]
    pub(super) log_jobs: bool,
}

/// The time in which the other replicas are told that this one has ended.
const OBSERVER_STOP: Duration = Duration::from_secs(2);

pub(super) async fn run(global: &Global) -> Exit {
    match daemon(global).await {
        Ok(exit) | Err(exit) => exit,
    }
}

async fn daemon(global: &Global) -> Result<Exit, Exit> {
    let loaded = parts::load(global)?;
    let drain_timeout = loaded.settings.shutdown.drain_timeout;
    let (mut signals, hangups) = (Signals::new()?, Hangups::new()?);
    let manager = Manager::from_env();
    let Started { mut running, amqp, observer, server, probe, stop, live, followed } =
        start(global, loaded, &manager).await?;
    // It outlives the loop, since the admin API looks at the terms that it keeps until the end.
    let mut reloading = std::pin::pin!(reload::on_hangup(hangups, live, followed.clone(), manager.clone()));
    let failed = {
        let mut announcing = std::pin::pin!(announce(&amqp, probe, &manager));
        let mut following = std::pin::pin!(followed.watch());
        loop {
            tokio::select! {
                signal = signals.next() => {
                    tracing::info!(signal, "stopping: jobs not yet sent go back, sends in flight may end");
                    break false;
                }
                ended = running.join_next() => {
                    tracing::error!(?ended, "a dispatcher ended by itself; stopping, so that a restart mends it");
                    break true;
                }
                () = announcing.as_mut() => {}
                () = following.as_mut() => {}
                () = reloading.as_mut() => {}
            }
        }
    };
    manager.stopping(drain_timeout + CLOSING + OBSERVER_STOP);
    stop.cancel();
    let end = Instant::now() + drain_timeout + CLOSING;
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
    // A store that does not answer must not keep the process from its end.
    let _ = tokio::time::timeout(OBSERVER_STOP, observer.stop()).await;
    if failed { Err(Exit::Failed) } else { ended.exit() }
}

/// The parts of a daemon that has started.
struct Started {
    /// The dispatchers, which end after `stop`.
    running: JoinSet<Drained>,
    amqp: Amqp,
    observer: Observer,
    server: Option<admin::Server>,
    probe: Arc<StoreProbe>,
    stop: CancellationToken,
    live: Live,
    followed: Followed,
}

/// Starts all parts. What is wrong is logged.
async fn start(global: &Global, loaded: Loaded, manager: &Manager) -> Result<Started, Exit> {
    let settings = loaded.settings.clone();
    // The exporter comes first: metrics that are recorded before it exists are lost.
    let watched = watched(&settings).await?;
    let (store, store_tls) = parts::store(&settings).map_err(|error| {
        tracing::error!(%error, "no store");
        Exit::Config
    })?;
    tell_start(&loaded);
    let mut handles = Handles::default();
    let (dispatchers, secrets) = dispatchers(&settings, &store, &mut handles)?;
    let live = Live::new(parts::sources(global), loaded, &dispatchers);
    let broker = parts::amqp(&settings)?;
    let admin_tls = parts::admin_tls(&settings)?;
    handles.add("amqp.tls", broker.address.tls().cloned());
    handles.add("store.tls", store_tls);
    handles.add("admin.tls", admin_tls.clone());
    let access = Arc::new(Access::new(&settings.admin));
    let tokens = TokenFiles::new(Arc::clone(&access), &settings.admin);
    let followed = Followed { certificates: Certificates::new(handles), secrets, tokens };
    let (amqp, stop) = (Amqp::start(broker.clone()), CancellationToken::new());
    let observer = Observer::start(status::Parts {
        identity: identity(),
        views: dispatchers.iter().map(|(name, dispatcher)| (name.clone(), dispatcher.view())).collect(),
        peers: dispatchers.iter().map(|(name, dispatcher)| (name.clone(), dispatcher.peers())).collect(),
        amqp: amqp.status(),
        depths: amqp.depths(),
        store: Arc::clone(&store),
        store_kind: store_kind(&settings),
        terms: live.terms(),
        can_change: access.can_change(),
    });
    let operations = Operations::new(Arc::clone(&store), live.terms());
    let api = Api::new(operations, observer.watch(), Letters::new(broker));
    let probe = Arc::new(StoreProbe::new(store, settings.downstreams.keys().cloned().collect()));
    let readiness = Readiness { amqp: amqp.status(), store: Arc::clone(&probe), draining: stop.clone() };
    let server = serve(watched, readiness, (api, &access), admin_tls)?;
    let controls =
        dispatchers.iter().map(|(name, dispatcher)| (name.clone(), dispatcher.control())).collect();
    let mut running = JoinSet::new();
    for (name, dispatcher) in dispatchers {
        let source = amqp.source(&name).map_err(|error| {
            tracing::error!(downstream = name, %error, "no source");
            Exit::Failed
        })?;
        running.spawn(dispatcher.run(source, stop.clone()));
    }
    manager.watch(amqp.status(), controls, stop.clone());
    Ok(Started { running, amqp, observer, server, probe, stop, live, followed })
}

/// The kind of store, in a word.
fn store_kind(settings: &Settings) -> &'static str {
    if settings.store.url.expose() == parts::MEMORY { "memory" } else { "redis" }
}

/// Logs what runs, by which files, and the limits of each downstream.
fn tell_start(loaded: &Loaded) {
    let files: Vec<String> = loaded.files.iter().map(|file| file.display().to_string()).collect();
    let store = store_kind(&loaded.settings);
    if store == "memory" {
        tracing::warn!(
            "store.url is memory: so the pace is not shared; run one replica, or set redis://HOST"
        );
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), files = files.join(", "), store, "starting");
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    for (name, downstream) in &loaded.settings.downstreams {
        let limit = |limit: &Limit| format!("{} {}", limit.name(), rate_text(limit));
        let limits: Vec<String> = downstream.limits.iter().map(limit).collect();
        let plans: Vec<&str> = downstream.plans.iter().map(|plan| plan.name.as_str()).collect();
        tracing::info!(downstream = name, limits = limits.join(", "), plans = plans.join(", "), "configured");
    }
}

/// The name and origin of this replica.
fn identity() -> Identity {
    let Replica { id, host } = Replica::of_this_process().clone();
    Identity {
        id,
        host,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: wall_now().0 / 1000,
    }
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
    (api, access): (Api, &Arc<Access>),
    tls: Option<ServerTls>,
) -> Result<Option<admin::Server>, Exit> {
    let Some((listener, exporter)) = watched else { return Ok(None) };
    let pages = admin::router(readiness, move || exporter.render(), api, access);
    let server = admin::Server::start(listener, pages, tls).map_err(|error| {
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

/// The dispatchers, each with the name of its downstream.
type Dispatchers = Vec<(String, Dispatcher)>;

/// The dispatcher of each downstream, and the secrets that its requests go by. The TLS of those that have files for it is
/// added to `handles`.
fn dispatchers(
    settings: &Settings,
    store: &Arc<dyn Store>,
    handles: &mut Handles,
) -> Result<(Dispatchers, Secrets), Exit> {
    let (mut targets, mut clients) = (Vec::new(), Clients::default());
    let clock = parts::clock(settings.precision);
    let mut dispatchers = Vec::with_capacity(settings.downstreams.len());
    for (name, downstream) in &settings.downstreams {
        let (store, clock) = (Arc::clone(store), Arc::clone(&clock));
        let built = shared(name, downstream, &mut clients, handles)
            .and_then(|shared| parts::dispatcher(settings, (name, downstream), shared, store, clock));
        let (dispatcher, target) = built.map_err(|error| {
            tracing::error!(downstream = name, %error, "no sink");
            Exit::Config
        })?;
        targets.push((name.clone(), target));
        dispatchers.push((name.clone(), dispatcher));
    }
    Ok((dispatchers, Secrets::new(targets)))
}

/// The TLS of a downstream and its client of OAuth2, which others may have too.
fn shared(
    name: &str,
    downstream: &Downstream,
    clients: &mut Clients,
    handles: &mut Handles,
) -> Result<parts::Shared, HttpError> {
    let setting = format!("downstreams.{name}.tls");
    let tls = downstream.tls.as_ref().map(|options| handles.http(setting, options)).transpose()?;
    Ok(parts::Shared { tls, client: clients.of(name, &downstream.http, handles)? })
}

/// Logs when the store answers and every consumer is attached, and tells the service manager; never returns.
async fn announce(amqp: &Amqp, store: Arc<StoreProbe>, manager: &Manager) {
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
