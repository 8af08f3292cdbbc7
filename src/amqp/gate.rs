//! Bounds the number of downstreams that set up their queues at a time, and ensures only once per connection that the
//! shared exchanges and queues exist.
//!
//! A user who may not declare, or not even inspect, may still be allowed to consume: then consuming starts without the
//! check, with one warning, and a queue that is really missing causes an error when it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as StdMutex, Weak};

use futures_util::{StreamExt, TryStreamExt, stream};
use lapin::{Channel, Connection};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tracing::warn;

use super::connection::{channel, close};
use super::error::Error;
use super::existing::Existing;
use super::supervisor::Up;
use super::topology::{ensure_own, ensure_shared, is_needless, needs_shared};
use super::{Downstream, Options};
use crate::lock::lock;

/// The number of downstreams that may declare, check and start to consume at the same time over one connection.
///
/// With RabbitMQ 3.10 on two cores, 300 new downstreams take 4.6 s one by one, 2.7 s with 4 and 2.5 s with 8 or more,
/// where the broker is the bottleneck; and no call waits long for its answer.
pub(super) const PERMITS: usize = 8;

/// The gate of one connection that is kept up.
#[derive(Debug)]
pub(super) struct Gate {
    permits: Semaphore,
    /// The connection over which the shared queues were last ensured.
    shared: Mutex<Weak<Up>>,
    /// The downstreams whose queues are used unchecked, since the user may not declare or inspect them, and the
    /// broker's error text.
    unchecked: StdMutex<BTreeMap<String, Error>>,
    /// The queues that are used as they are, although their arguments differ.
    pub(super) existing: Existing,
    /// The warnings that were already logged.
    warned: StdMutex<BTreeSet<String>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(PERMITS),
            shared: Mutex::default(),
            unchecked: StdMutex::default(),
            existing: Existing::default(),
            warned: StdMutex::default(),
        }
    }
}

impl Gate {
    /// Waits for a permit, in the order of the callers. While a caller holds its permit, it keeps the broker busy
    /// with one channel at most.
    ///
    /// Cancel safe.
    pub(super) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed, so there always is a permit.
        self.permits.acquire().await.ok()
    }

    /// Ensures for a consumer that the shared exchanges and queues exist, unless that was done over this connection.
    /// Where the user may not declare or inspect them, they are used unchecked. The caller must hold a permit.
    pub(super) async fn share(
        &self,
        connection: &Arc<Up>,
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
        match share(connection, &self.existing, options).await {
            Err(error @ Error::Refused { .. }) => self.warn("", &error),
            ensured => ensured?,
        }
        *shared = Arc::downgrade(connection);
        // The user may have been granted more permissions meanwhile.
        lock(&self.unchecked).clear();
        Ok(())
    }

    /// Ensures for a consumer that the downstream's own queues exist. Where the user may not declare or inspect them,
    /// this fails once, and uses them unchecked from then on. Where they have other arguments, it fails once and uses
    /// them as they are. The caller must hold a permit.
    pub(super) async fn own(
        &self,
        channel: &Channel,
        options: &Options,
        downstream: &Downstream,
    ) -> Result<(), Error> {
        if self.is_unchecked(&downstream.name) {
            return Ok(());
        }
        let own = self.declare_own(channel, options, downstream).await;
        if let Err(error @ Error::Refused { .. }) = &own {
            // The broker has closed the channel, so the next attempt uses another one.
            lock(&self.unchecked).insert(downstream.name.clone(), error.clone());
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
        let own = ensure_own(channel, &self.existing, options, downstream).await;
        let declared = options.declare && downstream.queue.is_none();
        if declared && matches!(own, Err(Error::NotFound { .. })) {
            // Only the exchange that the queue is bound to can be missing: it was deleted, and the next attempt
            // declares it.
            *self.shared.lock().await = Weak::new();
        }
        own
    }

    /// Ensures for a publisher that everything that a downstream needs exists.
    ///
    /// # Errors
    /// An error of the broker, also where the options ask for a declaration that the user may not make.
    pub(super) async fn ensure(
        &self,
        connection: &Arc<Up>,
        options: &Options,
        downstream: &Downstream,
    ) -> Result<(), Error> {
        let _permit = self.enter().await;
        {
            let mut shared = self.shared.lock().await;
            let is_known = std::ptr::eq(shared.as_ptr(), Arc::as_ptr(connection));
            if !is_known && needs_shared(options, downstream) {
                let ensured = share(connection, &self.existing, options).await;
                if !is_needless(options, &ensured) {
                    ensured?;
                }
                *shared = Arc::downgrade(connection);
            }
        }
        loop {
            let channel = channel(connection).await?;
            let ensured = self.declare_own(&channel, options, downstream).await;
            close(&channel).await;
            match ensured {
                Err(error) if self.existing.note(&error) => {}
                ensured if is_needless(options, &ensured) => return Ok(()),
                ensured => return ensured,
            }
        }
    }

    /// Calls [`Gate::ensure`] for every downstream; ends at the first error.
    pub(super) async fn ensure_all(&self, connection: &Arc<Up>, options: &Options) -> Result<(), Error> {
        stream::iter(&options.downstreams)
            .map(Ok)
            .try_for_each_concurrent(PERMITS, |downstream| self.ensure(connection, options, downstream))
            .await
    }

    /// Whether the gate has warned of exactly this error, so that the next attempt works without the permission.
    pub(super) fn continues_without(&self, downstream: &str, error: &Error) -> bool {
        lock(&self.unchecked).get(downstream) == Some(error)
    }

    /// Whether the downstream's queues are used unchecked.
    pub(super) fn is_unchecked(&self, downstream: &str) -> bool {
        lock(&self.unchecked).contains_key(downstream)
    }

    /// Warns once of a permission that the user lacks for the downstream, or for all of them.
    fn warn(&self, downstream: &str, error: &Error) {
        if lock(&self.warned).insert(downstream.to_owned()) {
            warn!(downstream, %error, "queues that the user may not declare or check are used as they are");
        }
    }
}

/// Ensures that the shared exchanges and queues exist.
async fn share(connection: &Connection, existing: &Existing, options: &Options) -> Result<(), Error> {
    loop {
        // The broker closes the channel when it refuses a declaration.
        let channel = channel(connection).await?;
        let ensured = ensure_shared(&channel, existing, options).await;
        close(&channel).await;
        match ensured {
            Err(error) if existing.note(&error) => {}
            ensured => return ensured,
        }
    }
}
