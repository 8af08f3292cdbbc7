//! The daemon reads its configuration again while it runs: all of it at SIGHUP, and the directory of `[dynamic]` when that
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paced::amqp;
use paced::config::{self, Admin, Loaded, Reload, Settings, Sources};
use paced::dispatch::Control;
use paced::lock::lock;
use paced::{failpoint, metric};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::dynamic::DynamicDir;
use super::factory::{Factory, Made};
use super::manager::Manager;
use super::parts;
use super::reload_log::{Wrong, log, log_mistakes, mistakes, warn_of_left_queues};
use super::secrets::Secrets;
use super::serving::Order;
use super::signals::Hangups;
use super::tokens::TokenFiles;
use super::watches::{Refresh, Watches};
use crate::status::OwnTerms;

/// How long a reload waits for file systems that do not answer.
const LONGEST: Duration = Duration::from_secs(5);

/// How many times as long as it took to read the directory no change of it is read, and the longest such time: one who changes a
/// file all the time must not keep a core busy, since each time all files are read.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(60);

/// How long after files with mistakes were read they are read again, although the directory has not changed: what is missing may be
/// elsewhere, such as the file of a secret.
const AGAIN: Duration = Duration::from_secs(30);

/// The parts of which dispatchers are made, and the files that are followed beside the configuration.
pub(super) struct Followed {
    factory: Arc<Mutex<Factory>>,
    secrets: Secrets,
    tokens: Arc<TokenFiles>,
    dynamic: Arc<DynamicDir>,
    watches: Watches,
}

impl Followed {
    pub(super) fn new(
        factory: Factory,
        secrets: Secrets,
        tokens: Arc<TokenFiles>,
        dynamic: Arc<DynamicDir>,
    ) -> Self {
        let (factory, watches) = (Arc::new(Mutex::new(factory)), [].into_iter().collect());
        let followed = Self { factory, secrets, tokens, dynamic, watches };
        followed.watch(&lock(&followed.factory));
        followed
    }

    /// Has the files of these settings be watched, and no others.
    fn retain(&self, loaded: &Loaded) {
        self.dynamic.follow(loaded);
        let mut factory = lock(&self.factory);
        factory.retain(&loaded.settings);
        self.watch(&factory);
    }

    /// Watches the files of certificates, secrets and tokens that there are now, and the directory of downstreams.
    fn watch(&self, factory: &Factory) {
        let others: [Arc<dyn Refresh>; 2] = [Arc::clone(&self.tokens) as _, Arc::clone(&self.dynamic) as _];
        self.watches.replace(factory.handles.watched().chain(self.secrets.watched()).chain(others));
    }
}

/// What is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// All sources.
    All,
    /// The directory of `[dynamic]`.
    Directory,
}

/// Reads the configuration and the files of certificates and secrets again at each SIGHUP, and notifies the manager; and reads
/// the directory of `[dynamic]` again when that changes. Never returns. One read follows another: all signals and
/// changes that come during one cause one more.
///
/// Poll it beside the signals that end the daemon: a read may last forever if the file system does not answer. Cancel
/// safe, as [`Live::reload`] is.
pub(super) async fn on_changes(mut hangups: Hangups, mut live: Live, manager: Manager) -> Infallible {
    let dynamic = Arc::clone(&live.followed.dynamic);
    // Whether all sources, and the directory, could be read last.
    let (mut is_base_read, mut is_dir_read) = (true, true);
    // Until when no change of the directory is read.
    let mut rests_until = Instant::now();
    let mut read_at = Instant::now();
    loop {
        let is_wrong = !is_dir_read || !live.loaded.mistakes().is_empty();
        let again_at = rests_until.max(read_at + failpoint::interval(AGAIN));
        let changed = async {
            sleep_until(rests_until).await;
            dynamic.changed().await;
        };
        let scope = tokio::select! {
            () = hangups.next() => Scope::All,
            () = changed => Scope::Directory,
            () = sleep_until(again_at), if is_wrong => Scope::Directory,
        };
        read_at = Instant::now();
        if scope == Scope::Directory {
            let begun = Instant::now();
            is_dir_read = live.reload(scope).await;
            rests_until = Instant::now() + (begun.elapsed() * REST).min(LONGEST_REST);
            show_reload(is_base_read && is_dir_read && live.loaded.mistakes().is_empty());
            continue;
        }
        manager.reloading();
        is_base_read = live.reload(scope).await;
        is_dir_read |= is_base_read;
        show_reload(is_base_read && is_dir_read && live.loaded.mistakes().is_empty());
        live.followed.tokens.reload(live.admin());
        if timeout(LONGEST, live.followed.watches.refresh()).await.is_err() {
            tracing::warn!(
                "a file system with certificates or secrets does not answer; the old ones stay in use \
                 until they can be read"
            );
        }
        manager.reloaded();
    }
}

/// Shows whether the configuration could be read last.
pub(super) fn show_reload(is_loaded: bool) {
    metrics::gauge!(metric::CONFIG_LOADED.name).set(f64::from(u8::from(is_loaded)));
}

/// The configuration in effect, and the parts that depend on it.
pub(super) struct Live {
    sources: Sources,
    loaded: Arc<Loaded>,
    controls: BTreeMap<String, Control>,
    followed: Followed,
    orders: mpsc::UnboundedSender<Order>,
    /// The terms of the file for the admin API, where a store has none.
    terms: watch::Sender<OwnTerms>,
    /// The connections to the broker that tools of the admin API open.
    broker: watch::Sender<Arc<amqp::Options>>,
    /// The mistakes that the log had last.
    logged: Vec<String>,
}

/// A configuration that was read and can take effect.
struct Prepared {
    reload: Reload,
    /// The dispatchers of downstreams that begin.
    made: Vec<Made>,
    /// Why others cannot begin, which stay as they were.
    failed: Vec<String>,
}

impl Live {
    /// What runs by `loaded`, which was read from `sources`; the dispatchers of its downstreams are `made`. Returns also the
    /// orders that reloads will give.
    pub(super) fn new(
        sources: Sources,
        loaded: Loaded,
        made: &[Made],
        followed: Followed,
        broker: amqp::Options,
    ) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let controls = made.iter().map(|made| (made.name.clone(), made.dispatcher.control())).collect();
        let ((terms, _), (orders, receiver)) =
            (watch::channel(terms(&loaded.settings)), mpsc::unbounded_channel());
        let logged = mistakes(&loaded);
        let (loaded, broker) = (Arc::new(loaded), watch::Sender::new(Arc::new(broker)));
        (Self { sources, loaded, controls, followed, orders, terms, broker, logged }, receiver)
    }

    /// The terms of the configuration in effect.
    pub(super) fn terms(&self) -> watch::Receiver<OwnTerms> {
        self.terms.subscribe()
    }

    /// The broker, with the downstreams of the configuration in effect.
    pub(super) fn broker(&self) -> watch::Receiver<Arc<amqp::Options>> {
        self.broker.subscribe()
    }

    /// The files that are followed.
    pub(super) fn watches(&self) -> Watches {
        self.followed.watches.clone()
    }

    /// How long sends may take to end after a signal to stop.
    pub(super) fn drain_timeout(&self) -> Duration {
        self.loaded.settings.shutdown.drain_timeout
    }

    /// `[admin]` as it is in effect.
    fn admin(&self) -> &Admin {
        &self.loaded.settings.admin
    }

    /// Reads the sources of this scope again, and returns whether they are in effect. If they have any mistake, nothing changes. A
    /// mistake in a file of the directory of `[dynamic]` changes nothing of that file.
    ///
    /// Cancel safe: nothing changes before all is read, and then all changes at once.
    async fn reload(&mut self, scope: Scope) -> bool {
        let (sources, loaded) = (self.sources.clone(), Arc::clone(&self.loaded));
        let factory = Arc::clone(&self.followed.factory);
        let read = spawn_blocking(move || prepare(scope, sources, &loaded, &factory)).await;
        match read.unwrap_or_else(|error| Err(Wrong::Panic(error))) {
            Ok(prepared) => {
                let is_whole = prepared.failed.is_empty();
                self.apply(scope, prepared);
                is_whole
            }
            Err(wrong) => {
                if self.is_news(scope, wrong.lines()) {
                    wrong.log(scope == Scope::All);
                }
                false
            }
        }
    }

    /// Whether these mistakes are to be logged: others than those that the log had last, or any at SIGHUP.
    fn is_news(&mut self, scope: Scope, mistakes: Vec<String>) -> bool {
        let before = std::mem::replace(&mut self.logged, mistakes);
        scope == Scope::All || before != self.logged
    }

    /// Puts a configuration in effect.
    fn apply(&mut self, scope: Scope, Prepared { reload, made, failed }: Prepared) {
        let Reload { loaded, changed, downstreams, restart } = reload;
        // No key of the directory does.
        for key in restart.iter().filter(|_| scope == Scope::All) {
            tracing::warn!(key, "a change of this key needs a restart: it keeps its old value until then");
        }
        let reply = parts::reply_rules(&loaded.settings);
        let takes_other_replies = reply.consumed != parts::reply_rules(&self.loaded.settings).consumed;
        let has_other_plans = changed.iter().any(|key| key.starts_with("plans."));
        warn_of_left_queues(&self.loaded.settings, &loaded.settings, &downstreams);
        let is_of_all = scope == Scope::All || takes_other_replies || has_other_plans;
        self.loaded = Arc::new(loaded);
        for name in &downstreams.removed {
            self.controls.remove(name);
            self.followed.secrets.remove(name);
        }
        for made in &made {
            self.controls.insert(made.name.clone(), made.dispatcher.control());
            self.followed.secrets.insert(made.name.clone(), Arc::clone(&made.target));
        }
        let settings = &self.loaded.settings;
        let concerned: BTreeSet<&str> = changed.iter().filter_map(|key| downstream_of(key)).collect();
        for (name, downstream) in &settings.downstreams {
            // At SIGHUP the options are passed on even if nothing changed: of the replicas whose files differ the last load
            // wins. A change of one file in the directory loads no other one again.
            let is_concerned = !downstreams.begins(name) && (is_of_all || concerned.contains(name.as_str()));
            if let Some(control) = self.controls.get(name).filter(|_| is_concerned) {
                control.reload(parts::options(settings, name, downstream, &reply));
                self.followed.secrets.replace(name, downstream);
            }
        }
        self.followed.retain(&self.loaded);
        self.terms.send_replace(terms(settings));
        self.broker.send_modify(|broker| {
            *broker = Arc::new(amqp::Options { downstreams: parts::queues(settings), ..(**broker).clone() });
        });
        let ended = downstreams.ended().map(str::to_owned).collect();
        // The receiver is gone only where the daemon ends.
        let _ = self.orders.send(Order { ended, begun: made });
        let wrong = mistakes(&self.loaded).into_iter().chain(failed.iter().cloned()).collect();
        if self.is_news(scope, wrong) || !changed.is_empty() || !downstreams.is_empty() {
            log(&changed, &downstreams);
            log_mistakes(&self.loaded);
            for error in failed {
                tracing::error!(
                    error,
                    "a downstream cannot be served as it is configured: it stays as it was until it can; correct it"
                );
            }
        }
    }
}

/// Reads the sources again, and makes the dispatchers of downstreams that begin. It blocks.
fn prepare(
    scope: Scope,
    sources: Sources,
    loaded: &Loaded,
    factory: &Mutex<Factory>,
) -> Result<Prepared, Wrong> {
    let new = match scope {
        Scope::All => config::load_usable(sources, Some(loaded)),
        Scope::Directory => loaded.load_dynamic(&sources),
    };
    let new = new.map_err(Wrong::Settings)?;
    let mut reload = loaded.reload(&new);
    let (mut made, mut wrong) = (Vec::new(), Vec::new());
    let mut factory = lock(factory);
    let settings = &reload.loaded.settings;
    let reply = parts::reply_rules(settings);
    for (name, downstream) in settings.downstreams.iter().filter(|(name, _)| reload.downstreams.begins(name))
    {
        match factory.make(settings, name, downstream, &reply) {
            Ok(one) => made.push(one),
            Err(error) => wrong.push((name.clone(), error)),
        }
    }
    let mut failed = Vec::new();
    for (name, error) in wrong {
        // A file of its own changes nothing if it cannot be used; at SIGHUP nothing changes at all.
        if scope == Scope::All || !reload.leave(loaded, &name) {
            factory.retain(&loaded.settings);
            return Err(Wrong::Part(error));
        }
        failed.push(error.to_string());
    }
    Ok(Prepared { reload, made, failed })
}

/// The downstream that has this key.
fn downstream_of(key: &str) -> Option<&str> {
    key.strip_prefix("downstreams.")?.split('.').next()
}

fn terms(settings: &Settings) -> OwnTerms {
    let reply = parts::reply_rules(settings);
    let terms = settings.downstreams.iter().map(|(name, downstream)| {
        let terms = parts::options(settings, name, downstream, &reply).terms();
        (name.clone(), terms)
    });
    Arc::new(terms.collect())
}
