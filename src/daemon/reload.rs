//! SIGHUP: the daemon reads its configuration again while it runs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use paced::config::{self, Admin, Loaded, Reload, Settings, Sources};
use paced::dispatch::{Control, Dispatcher};
use paced::metric;
use tokio::sync::watch;
use tokio::time::timeout;

use super::certificates::Handles;
use super::manager::Manager;
use super::parts;
use super::secrets::Secrets;
use super::signals::Hangups;
use super::tokens::TokenFiles;
use super::watches::{Refresh, Watches};
use crate::status::OwnTerms;

/// How long a reload waits for file systems that do not answer.
const LONGEST: Duration = Duration::from_secs(5);

/// The files of certificates and secrets, which are followed beside the configuration.
#[derive(Clone)]
pub(super) struct Followed {
    pub(super) watches: Watches,
    secrets: Secrets,
    tokens: Arc<TokenFiles>,
}

impl Followed {
    pub(super) fn new(certificates: Handles, secrets: Secrets, tokens: Arc<TokenFiles>) -> Self {
        let others = secrets.watched().chain([Arc::clone(&tokens) as Arc<dyn Refresh>]);
        Self { watches: certificates.watched().chain(others).collect(), secrets, tokens }
    }
}

/// Reads the configuration and the files of certificates and secrets again at each SIGHUP, and notifies the manager;
/// never returns. One read follows another: all signals that come during one cause one more.
///
/// It is to be polled beside the signals that end the daemon, since a file system that does not answer may keep a
/// read for as long as it likes. Cancel safe, as [`Live::reload`] is.
pub(super) async fn on_hangup(
    mut hangups: Hangups,
    mut live: Live,
    followed: Followed,
    manager: Manager,
) -> Infallible {
    let Followed { watches, secrets, tokens } = followed;
    loop {
        hangups.next().await;
        manager.reloading();
        let is_loaded = live.reload().await;
        show_reload(is_loaded);
        if is_loaded {
            for (name, downstream) in &live.loaded.settings.downstreams {
                secrets.replace(name, downstream);
            }
        }
        tokens.reload(live.admin());
        if timeout(LONGEST, watches.refresh()).await.is_err() {
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
    loaded: Loaded,
    controls: BTreeMap<String, Control>,
    /// The terms of the file for the admin API, where a store has none.
    terms: watch::Sender<OwnTerms>,
}

impl Live {
    pub(super) fn new(sources: Sources, loaded: Loaded, dispatchers: &[(String, Dispatcher)]) -> Self {
        let controls = dispatchers.iter().map(|(name, dispatcher)| (name.clone(), dispatcher.control()));
        let (terms, _) = watch::channel(terms(&loaded.settings));
        Self { sources, loaded, controls: controls.collect(), terms }
    }

    /// The terms of the configuration in effect.
    pub(super) fn terms(&self) -> watch::Receiver<OwnTerms> {
        self.terms.subscribe()
    }

    /// How long sends may take to end after a signal to stop.
    pub(super) const fn drain_timeout(&self) -> Duration {
        self.loaded.settings.shutdown.drain_timeout
    }

    /// `[admin]` as it is in effect.
    const fn admin(&self) -> &Admin {
        &self.loaded.settings.admin
    }

    /// Reads the same sources again, and returns whether they are in effect. If they have any mistake, nothing changes.
    ///
    /// Cancel safe: nothing changes before all is read, and then all changes at once.
    async fn reload(&mut self) -> bool {
        let sources = self.sources.clone();
        let read = tokio::task::spawn_blocking(move || config::load(sources)).await;
        let new = match read {
            Ok(Ok(new)) => new,
            Ok(Err(errors)) => {
                for error in &errors {
                    tracing::error!("{error}");
                }
                tracing::error!(
                    errors = errors.iter().count(),
                    "the configuration is wrong: the old one stays in effect; correct it and send SIGHUP again"
                );
                return false;
            }
            Err(error) => {
                tracing::error!(%error, "the configuration could not be read again");
                return false;
            }
        };
        let Reload { loaded, changed, restart } = self.loaded.reload(&new);
        for key in &restart {
            tracing::warn!(key, "a change of this key needs a restart: it keeps its old value until then");
        }
        self.loaded = loaded;
        let settings = &self.loaded.settings;
        for (name, downstream) in &settings.downstreams {
            // The options are passed on even if nothing changed: of the replicas whose files differ the last load wins.
            if let Some(control) = self.controls.get(name) {
                control.reload(parts::options(settings, name, downstream));
            }
        }
        self.terms.send_replace(terms(settings));
        if changed.is_empty() {
            tracing::info!("configuration reloaded: no key changed that a reload applies");
        } else {
            tracing::info!(changed = changed.join(", "), "configuration reloaded");
        }
        true
    }
}

fn terms(settings: &Settings) -> OwnTerms {
    let terms = settings.downstreams.iter().map(|(name, downstream)| {
        let terms = parts::options(settings, name, downstream).terms();
        (name.clone(), terms)
    });
    Arc::new(terms.collect())
}
