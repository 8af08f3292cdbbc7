//! SIGHUP: the daemon reads its configuration again while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paced::config::{self, Admin, Loaded, Reload, Settings, Sources};
use paced::dispatch::{Control, Dispatcher};
use tokio::sync::watch;
use tokio::time::timeout;

use super::certificates::Certificates;
use super::manager::Manager;
use super::parts;
use super::secrets::Secrets;
use super::signals::Hangups;
use super::tokens::TokenFiles;
use crate::status::OwnTerms;

/// How long a reload waits for file systems that do not answer.
const LONGEST: Duration = Duration::from_secs(5);

/// What follows files of its own, beside the configuration.
#[derive(Clone)]
pub(super) struct Followed {
    pub(super) certificates: Certificates,
    pub(super) secrets: Secrets,
    pub(super) tokens: TokenFiles,
}

impl Followed {
    /// Looks at all files each second, and never returns.
    pub(super) async fn watch(self) {
        tokio::join!(self.certificates.watch(), self.secrets.watch(), self.tokens.watch());
    }
}

/// Reads the configuration and the files of certificates and secrets again at each SIGHUP, and tells the manager of it;
/// never returns. One read follows another: all signals that come during one cause one more.
///
/// It is to be polled beside the signals that end the daemon, since a file system that does not answer may keep a
/// read for as long as it likes. Cancel safe, as [`Live::reload`] is.
pub(super) async fn on_hangup(mut hangups: Hangups, mut live: Live, followed: Followed, manager: Manager) {
    let Followed { certificates, secrets, tokens } = followed;
    loop {
        hangups.next().await;
        manager.reloading();
        if live.reload().await {
            for (name, downstream) in &live.loaded.settings.downstreams {
                secrets.replace(name, downstream);
            }
        }
        let all =
            async { tokio::join!(tokens.reload(live.admin()), certificates.refresh(), secrets.refresh()) };
        if timeout(LONGEST, all).await.is_err() {
            tracing::warn!(
                "a file system with certificates or secrets does not answer; those read before stay in use"
            );
        }
        manager.reloaded();
    }
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
                    "the configuration is wrong: the old one stays in effect; mend it and send SIGHUP again"
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
            tracing::info!("configuration reloaded: nothing in it changed that counts without a restart");
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
