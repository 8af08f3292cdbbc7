//! Lets a few downstreams at a time ask the broker for what they need, and makes sure only once per
//! connection of what all of them share.
//!
//! A user who may not declare, or not even look, may still be allowed to consume: then consuming goes on
//! without, with one warning, and what is really missing shows when it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};

use futures_util::{StreamExt, TryStreamExt, stream};
use lapin::{Channel, Connection};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tracing::warn;

use super::connection::{channel, close};
use super::error::Error;
use super::topology::{ensure_own, ensure_shared, is_needless, needs_shared};
use super::{Downstream, Options};

/// Downstreams that declare, look and start to consume at the same time, over one connection.
///
/// With RabbitMQ 3.10 on two cores, 300 new downstreams take 4.6 s one by one, 2.7 s with 4 and 2.5 s with
/// 8 or more, where the broker is the limit; and nobody waits long for an answer.
pub(super) const PLACES: usize = 8;

/// One for each connection that is kept up.
#[derive(Debug)]
pub(super) struct Gate {
    places: Semaphore,
    /// The connection over which the shared part was made sure of last.
    shared: Mutex<Weak<Connection>>,
    /// The downstreams whose queues are used as they are, since the user may not declare or look at them, and
    /// what the broker said.
    unchecked: StdMutex<BTreeMap<String, Error>>,
    /// What was warned of once.
    warned: StdMutex<BTreeSet<String>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            places: Semaphore::new(PLACES),
            shared: Mutex::default(),
            unchecked: StdMutex::default(),
            warned: StdMutex::default(),
        }
    }
}

impl Gate {
    /// Waits for a place, in the order of asking; whoever holds it has at most one channel that the
    /// broker is busy with.
    ///
    /// Cancel safe.
    pub(super) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so there always is one.
        self.places.acquire().await.ok()
    }

    /// Makes sure that what all downstreams share is there, unless that was done over this connection, for one
    /// who consumes: what the user has no right to is left as it is. For holders of a place.
    pub(super) async fn share(
        &self,
        connection: &Arc<Connection>,
        options: &Options,
        downstream: &Downstream,
    ) -> Result<(), Error> {
        if !needs_shared(options, downstream) {
            return Ok(());
        }
        let mut shared = self.shared.lock().await;
        if std::ptr::eq(shared.as_ptr(), Arc::as_ptr(connection)) {
            return Ok(());
        }
        match share(connection, options).await {
            Err(error @ Error::Refused { .. }) => self.warn("", &error),
            ensured => ensured?,
        }
        *shared = Arc::downgrade(connection);
        // The user may have been given more rights meanwhile.
        self.unchecked().clear();
        Ok(())
    }

    /// Makes sure that the downstream's own queues are there, for one who consumes: where the user has no right
    /// to declare them or to look at them, this fails once, and takes them as they are from then on. For holders
    /// of a place.
    pub(super) async fn own(
        &self,
        channel: &Channel,
        options: &Options,
        downstream: &Downstream,
    ) -> Result<(), Error> {
        if self.unchecked().contains_key(&downstream.name) {
            return Ok(());
        }
        let own = self.declare_own(channel, options, downstream).await;
        if let Err(error @ Error::Refused { .. }) = &own {
            // The broker has closed the channel: the next attempt has another one.
            self.unchecked().insert(downstream.name.clone(), error.clone());
            self.warn(&downstream.name, error);
        }
        own
    }

    async fn declare_own(
        &self,
        channel: &Channel,
        options: &Options,
        downstream: &Downstream,
    ) -> Result<(), Error> {
        let own = ensure_own(channel, options, downstream).await;
        let declared = options.declare && downstream.queue.is_none();
        if declared && matches!(own, Err(Error::NotFound { .. })) {
            // Only the exchange that the queue is bound to can be missing: someone has deleted it, and
            // the next attempt declares it.
            *self.shared.lock().await = Weak::new();
        }
        own
    }

    /// Makes sure that all that a downstream needs is there, for one who publishes.
    ///
    /// # Errors
    /// The broker's; also where the user may not declare, though the options say so.
    pub(super) async fn ensure(
        &self,
        connection: &Arc<Connection>,
        options: &Options,
        downstream: &Downstream,
    ) -> Result<(), Error> {
        let _place = self.enter().await;
        {
            let mut shared = self.shared.lock().await;
            let is_known = std::ptr::eq(shared.as_ptr(), Arc::as_ptr(connection));
            if !is_known && needs_shared(options, downstream) {
                let ensured = share(connection, options).await;
                if !is_needless(options, &ensured) {
                    ensured?;
                }
                *shared = Arc::downgrade(connection);
            }
        }
        let channel = channel(connection).await?;
        let ensured = self.declare_own(&channel, options, downstream).await;
        close(&channel).await;
        if is_needless(options, &ensured) { Ok(()) } else { ensured }
    }

    /// [`Gate::ensure`] for all; ends at the first error.
    pub(super) async fn ensure_all(
        &self,
        connection: &Arc<Connection>,
        options: &Options,
    ) -> Result<(), Error> {
        stream::iter(&options.downstreams)
            .map(Ok)
            .try_for_each_concurrent(PLACES, |downstream| self.ensure(connection, options, downstream))
            .await
    }

    /// Whether the gate has warned of just this, and the next attempt goes on without.
    pub(super) fn goes_on_without(&self, downstream: &str, error: &Error) -> bool {
        self.unchecked().get(downstream) == Some(error)
    }

    fn unchecked(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Error>> {
        self.unchecked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns once of what the user may not do for the downstream, or for all of them.
    fn warn(&self, downstream: &str, error: &Error) {
        if self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(downstream.to_owned()) {
            warn!(downstream, %error, "what the user may not declare or look at is used as it is");
        }
    }
}

/// Makes sure that what all downstreams share is there.
async fn share(connection: &Connection, options: &Options) -> Result<(), Error> {
    // The broker closes it over what it refuses.
    let channel = channel(connection).await?;
    let ensured = ensure_shared(&channel, options).await;
    close(&channel).await;
    ensured
}
