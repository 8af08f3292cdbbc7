//! Makes the dispatchers of downstreams. Parts that several of them share are made once.

use std::sync::Arc;

use paced::amqp;
use paced::config::{Downstream, Settings};
use paced::dispatch::{Dispatcher, ReleaseClock};
use paced::job::ReplyRules;
use paced::sink::http::{HttpError, Target};
use paced::store::Store;

use super::certificates::Handles;
use super::error::Error;
use super::parts;
use super::secrets::Clients;

/// Makes dispatchers, at the start and at reloads.
pub(super) struct Factory {
    store: Arc<dyn Store>,
    clock: Arc<dyn ReleaseClock>,
    /// The certificates of connections: those of downstreams, and of the process.
    pub(super) handles: Handles,
    clients: Clients,
}

/// A dispatcher that was made and does not run yet.
pub(super) struct Made {
    pub(super) name: String,
    pub(super) queue: amqp::Downstream,
    pub(super) dispatcher: Dispatcher,
    /// Where its requests go.
    pub(super) target: Arc<Target>,
}

impl Factory {
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn ReleaseClock>) -> Self {
        Self { store, clock, handles: Handles::default(), clients: Clients::default() }
    }

    /// Makes the dispatcher of one downstream, which has the rules for replies in common with all others. It reads the files of its TLS, so it blocks for a moment. Nothing is connected.
    ///
    /// # Errors
    /// A part cannot be made of its settings.
    pub(super) fn make(
        &mut self,
        settings: &Settings,
        name: &str,
        downstream: &Downstream,
        reply: &ReplyRules,
    ) -> Result<Made, Error> {
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let options = parts::options(settings, name, downstream, reply);
        let made = shared(name, downstream, &mut self.clients, &mut self.handles)
            .and_then(|shared| parts::dispatcher(options, &downstream.http, shared, store, clock));
        let setting = |error| Error::setting(format!("downstreams.{name}"), error);
        let (dispatcher, target) = made.map_err(setting)?;
        let queue = parts::queue(name, downstream);
        Ok(Made { name: name.to_owned(), queue, dispatcher, target: Arc::new(target) })
    }

    /// Drops the shared parts that no downstream of these settings uses any more.
    pub(super) fn retain(&mut self, settings: &Settings) {
        self.handles.retain(settings);
        self.clients.drop_unused();
    }
}

/// The TLS of a downstream and its client of OAuth2, which others may have too.
pub(super) fn shared(
    name: &str,
    downstream: &Downstream,
    clients: &mut Clients,
    handles: &mut Handles,
) -> Result<parts::Shared, HttpError> {
    let setting = format!("downstreams.{name}.tls");
    let tls = downstream.tls.as_ref().map(|options| handles.http(setting, options)).transpose()?;
    Ok(parts::Shared { tls, client: clients.of(name, &downstream.http, handles)? })
}
