//! SIGHUP: the configuration is read again while the daemon runs.

use std::collections::BTreeMap;

use paced::config::{self, Loaded, Reload, Sources};
use paced::dispatch::{Control, Dispatcher};

use super::parts;

/// The configuration in effect, and those who go by it.
pub(super) struct Live {
    sources: Sources,
    loaded: Loaded,
    controls: BTreeMap<String, Control>,
}

impl Live {
    pub(super) fn new(sources: Sources, loaded: Loaded, dispatchers: &[(String, Dispatcher)]) -> Self {
        let controls = dispatchers.iter().map(|(name, dispatcher)| (name.clone(), dispatcher.control()));
        Self { sources, loaded, controls: controls.collect() }
    }

    /// Reads the same sources again. With any mistake in them everything stays as it is.
    ///
    /// Not cancel safe: a dropped future may have changed some downstreams and not others.
    pub(super) async fn reload(&mut self) {
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
                return;
            }
            Err(error) => return tracing::error!(%error, "the configuration could not be read again"),
        };
        let Reload { loaded, changed, restart } = self.loaded.reload(&new);
        for key in &restart {
            tracing::warn!(key, "a change of this key needs a restart: it keeps its old value until then");
        }
        self.loaded = loaded;
        let settings = &self.loaded.settings;
        for (name, downstream) in &settings.downstreams {
            // Also where nothing changed: of the replicas whose files differ the last load wins.
            if let Some(control) = self.controls.get(name) {
                control.reload(parts::options(settings, name, downstream));
            }
        }
        if changed.is_empty() {
            tracing::info!("configuration reloaded: nothing in it changed that counts without a restart");
        } else {
            tracing::info!(changed = changed.join(", "), "configuration reloaded");
        }
    }
}
