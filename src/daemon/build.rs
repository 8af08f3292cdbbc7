//! Builds a daemon, and starts it.

use std::sync::Arc;
use std::time::Duration;

use paced::amqp::{self, Amqp};
use paced::config::{Downstream, Loaded, Settings, Sources};
use paced::dispatch::{Dispatcher, Options};
use paced::job::PlanRules;
use paced::limit::{Limit, rate_text};
use paced::store::Store;
use paced::terms::{Replica, Terms};
use paced::time::wall_now;
use paced::tls::ServerTls;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::certificates::Handles;
use super::dynamic::DynamicDir;
use super::error::Error;
use super::factory::{Factory, Made, shared};
use super::manager::Manager;
use super::reload::{Followed, Live, show_reload};
use super::reload_log::log_mistakes;
use super::running::Running;
use super::secrets::{Clients, Secrets};
use super::serving::{Order, Serving};
use super::tokens::TokenFiles;
use super::{liveness, parts};
use crate::admin::{self, Access, Api, Letters, Missing, Operations, Readiness, StoreProbe, Stuck};
use crate::status::{self, Dispatchers, Handle, Identity, Observer};
use crate::telemetry::Exporter;

/// A daemon that is built: its address for probes is bound, nothing is connected, and none of its tasks runs.
pub(crate) struct Daemon {
    settings: Settings,
    store: Arc<dyn Store>,
    /// The dispatchers of all downstreams, and the orders that reloads give.
    made: Vec<Made>,
    orders: mpsc::UnboundedReceiver<Order>,
    broker: amqp::Options,
    /// The rights at the admin server, and the server, if there is an address for it.
    access: Arc<Access>,
    server: Option<BoundServer>,
    live: Live,
}

/// An admin server that listens, and serves nothing yet.
struct BoundServer {
    listener: TcpListener,
    exporter: Exporter,
    tls: Option<ServerTls>,
}

impl Daemon {
    /// Builds all parts. `loaded` was read from `sources`, which are read again at SIGHUP.
    ///
    /// # Errors
    /// A part cannot be made of its settings, or the address for probes cannot be bound.
    pub(crate) async fn build(sources: Sources, loaded: Loaded) -> Result<Self, Error> {
        let settings = loaded.settings.clone();
        // The exporter comes first: metrics that are recorded before it exists are lost.
        let server = bind(&settings).await?;
        let (store, store_tls) =
            parts::store(&settings, false).map_err(|error| Error::setting("store", error))?;
        log_start(&loaded);
        show_reload(loaded.mistakes().is_empty());
        log_mistakes(&loaded);
        let mut factory = Factory::new(Arc::clone(&store), parts::clock(settings.precision));
        let (made, secrets) = make_all(&settings, &mut factory)?;
        let broker = parts::amqp(&settings)?;
        factory.handles.add("amqp.tls", broker.address.tls().cloned());
        factory.handles.add("store.tls", store_tls);
        factory.handles.add("admin.tls", server.as_ref().and_then(|server| server.tls.clone()));
        let access = Arc::new(Access::new(&settings.admin));
        let tokens = TokenFiles::new(Arc::clone(&access), &settings.admin);
        let followed = Followed::new(factory, secrets, tokens, DynamicDir::new(&loaded));
        let (live, orders) = Live::new(sources, loaded, &made, followed, broker.clone());
        Ok(Self { settings, store, made, orders, broker, access, server, live })
    }

    /// Starts all parts on the runtime of the caller. To end them in order, [`Running::run`] has to be awaited.
    ///
    /// # Errors
    /// A part could not be started; those that were end with the process.
    pub(crate) fn spawn(self) -> Result<Running, Error> {
        let Self { settings, store, made, orders, broker, access, server, live } = self;
        let manager = Manager::from_env();
        let prefix = broker.prefix.clone();
        let (amqp, stop) = (Arc::new(Amqp::start(broker)), CancellationToken::new());
        let (handles, each) = handles(&made, &stop);
        let observer = Observer::start(status::Parts {
            identity: identity(),
            dispatchers: handles.clone(),
            broker: status::Broker { status: amqp.status(), depths: amqp.depths(), prefix },
            store: Arc::clone(&store),
            store_kind: store_kind(&settings),
            terms: live.terms(),
            can_change: access.can_change(),
            asks: status::Asks::new(handles.clone()),
        });
        let operations = Operations::new(Arc::clone(&store), live.terms());
        let api = Api::new(operations, observer.watch(), Letters::new(live.broker()), handles.clone());
        let watch = observer.watch();
        let last_error = Box::new(move || watch.store_error());
        let probe = Arc::new(StoreProbe::new(store, last_error, handles.clone()));
        let stuck = Stuck::default();
        let readiness = Readiness {
            amqp: amqp.status(),
            store: Arc::clone(&probe),
            dispatchers: handles.clone(),
            missing: Missing::default(),
            stuck: stuck.clone(),
            draining: stop.clone(),
        };
        let server = server.map(|server| server.serve(readiness, api, &access)).transpose()?;
        let mut serving = Serving::new(Arc::clone(&amqp), handles.clone(), orders, stop.clone());
        let begun = serving.begin_all(made.into_iter().zip(each).collect());
        begun.map_err(|error| Error::failed("no source of jobs", error))?;
        tokio::spawn(liveness::watch(stuck, handles.clone(), stop.clone()));
        manager.watch(amqp.status(), handles, stop.clone());
        let watches = live.watches();
        Ok(Running { serving, amqp, observer, server, probe, stop, live, watches, manager })
    }
}

/// Binds the address for probes and scrapers, if there is one, and installs the exporter; without an address nothing is
/// recorded.
async fn bind(settings: &Settings) -> Result<Option<BoundServer>, Error> {
    let tls = parts::admin_tls(settings)?;
    let Some(listen) = &settings.admin.listen else { return Ok(None) };
    let listener = admin::bind(listen).await.map_err(|error| match error.is_permanent() {
        true => Error::setting("admin.listen", error),
        false => Error::failed("admin.listen", error),
    })?;
    let exporter = Exporter::install().map_err(|error| Error::failed("no metrics", error))?;
    Ok(Some(BoundServer { listener, exporter, tls }))
}

impl BoundServer {
    fn serve(self, readiness: Readiness, api: Api, access: &Arc<Access>) -> Result<admin::Server, Error> {
        let Self { listener, exporter, tls } = self;
        let (changes, dispatchers) = (api.changes(), readiness.dispatchers.clone());
        let pages = admin::router(readiness, move || exporter.render(&dispatchers.gone()), api, access);
        let server = admin::Server::start(listener, pages, tls);
        let server = server.map_err(|error| Error::failed("no admin server", error))?.waiting_for(changes);
        let address = server.address();
        tracing::info!(%address, "probes and metrics are served");
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "everybody who reaches this address may read the metrics and the state of the downstreams; admin.listen = \"127.0.0.1:{}\" keeps them on this machine", address.port());
        }
        Ok(server)
    }
}

/// The kind of store, in a word.
fn store_kind(settings: &Settings) -> &'static str {
    match &settings.store.file {
        Some(_) => "file",
        None if settings.store.url.expose() == parts::MEMORY => "memory",
        None => "redis",
    }
}

/// Logs the version, the files of the configuration, and the limits of each downstream.
fn log_start(loaded: &Loaded) {
    let files: Vec<String> = loaded.files.iter().map(|file| file.display().to_string()).collect();
    let store = store_kind(&loaded.settings);
    if store == "memory" {
        tracing::warn!(
            "store.url is memory: so the pace is not shared, and forgotten at the end; run one replica, or set redis://HOST"
        );
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), files = files.join(", "), store, "starting");
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    for (name, downstream) in &loaded.settings.downstreams {
        let limit = |limit: &Limit| format!("{} {}", limit.name(), rate_text(limit));
        let limits: Vec<String> = downstream.limits.iter().map(limit).collect();
        let plans = downstream.plans.iter().map(|plan| plan.name.as_str());
        let plans: Vec<&str> = plans.filter(|name| *name != PlanRules::LANES).collect();
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
        terms: Terms::VERSION,
    }
}

/// The dispatcher of each downstream, and the secrets of its requests.
fn make_all(settings: &Settings, factory: &mut Factory) -> Result<(Vec<Made>, Secrets), Error> {
    let (mut all, mut secrets) = (Vec::with_capacity(settings.downstreams.len()), Secrets::default());
    let reply = parts::reply_rules(settings);
    for (name, downstream) in &settings.downstreams {
        let made = factory.make(settings, name, downstream, &reply)?;
        secrets.insert(name.clone(), Arc::clone(&made.target));
        all.push(made);
    }
    Ok((all, secrets))
}

/// The handles of dispatchers, together and one by one; `stop` ends all of them.
fn handles(made: &[Made], stop: &CancellationToken) -> (Dispatchers, Vec<Handle>) {
    let (handles, mut each) = (Dispatchers::default(), Vec::with_capacity(made.len()));
    for Made { name, dispatcher, .. } in made {
        let handle = Handle::of(dispatcher, stop.child_token());
        each.push(handle.clone());
        handles.insert(name.clone(), handle);
    }
    (handles, each)
}

/// The dispatcher of one downstream for jobs that are not from the broker and cannot be parked there: by the limits in force
/// in the store. The limits of the settings, as terms, are not proposed to the replicas.
///
/// # Errors
/// A part cannot be made of its settings.
pub(crate) fn single(
    settings: &Settings,
    name: &str,
    downstream: &Downstream,
    store: Arc<dyn Store>,
) -> Result<(Dispatcher, Terms), Error> {
    let options = parts::options(settings, name, downstream, &parts::reply_rules(settings));
    let options = Options { hold_max: Duration::MAX, prefetch: u16::MAX, proposes_limits: false, ..options };
    let (own, clock) = (options.terms(), parts::clock(settings.precision));
    let built = shared(name, downstream, &mut Clients::default(), &mut Handles::default())
        .and_then(|shared| parts::dispatcher(options, &downstream.http, shared, store, clock));
    let setting = |error| Error::setting(format!("downstreams.{name}"), error);
    built.map(|(dispatcher, _)| (dispatcher, own)).map_err(setting)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use paced::config;

    use super::*;

    /// Builds the daemon of these settings.
    async fn build(settings: &[String]) -> Result<Daemon, Error> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, "[downstreams.a]\nrate = '1/s'\nhttp.base_url = 'http://127.0.0.1:1/'\n")
            .unwrap();
        let sources = Sources { files: vec![file], set: settings.to_vec(), ..Sources::default() };
        Daemon::build(sources.clone(), config::load(sources).unwrap()).await
    }

    #[tokio::test]
    async fn nothing_is_connected_before_it_is_spawned() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let daemon = build(&[format!("amqp.url=amqp://{address}/"), format!("store.url=redis://{address}")])
            .await
            .unwrap();
        tokio::task::yield_now().await;
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(daemon);
    }

    #[tokio::test]
    async fn an_address_that_is_taken_may_be_free_at_the_next_start() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = build(&[format!("admin.listen={}", taken.local_addr().unwrap())]).await.err().unwrap();
        assert!(matches!(error, Error::Failed { .. }), "{error}");
        let error = build(&["admin.listen=192.0.2.1:80".to_owned()]).await.err().unwrap();
        assert!(matches!(error, Error::Setting { .. }), "{error}");
    }
}
