//! The channels that a connection publishes over: each has one user at a time.

use std::sync::{Arc, Mutex};

use lapin::{Channel, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::confirming;
use super::error::Error;
use crate::lock::lock;

/// The most channels that are kept for later users.
const MAX_IDLE: usize = 16;

type Idle = Arc<Mutex<Vec<Channel>>>;

/// The channels of one connection. At most half of those that it may have are in use.
#[derive(Debug)]
pub(super) struct Channels {
    idle: Idle,
    permits: Arc<Semaphore>,
}

/// A channel that nobody else uses. Once dropped it is kept for others, so no publish may be outstanding then.
#[derive(Debug)]
pub(super) struct Pooled {
    pub(super) channel: Channel,
    idle: Idle,
    _permit: OwnedSemaphorePermit,
}

impl Channels {
    pub(super) fn new(connection: &Connection) -> Self {
        let permits = usize::from(connection.configuration().channel_max() / 2).max(1);
        Self { idle: Idle::default(), permits: Arc::new(Semaphore::new(permits)) }
    }

    /// Takes a channel of the connection whose publishes are confirmed; waits while too many are in use.
    pub(super) async fn take(&self, connection: &Connection) -> Result<Pooled, Error> {
        let closed = |_| Error::Failed { what: "opening a channel".to_owned(), detail: String::new() };
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        let idle = {
            let mut idle = lock(&self.idle);
            std::iter::from_fn(|| idle.pop()).find(|channel| channel.status().connected())
        };
        let channel = match idle {
            Some(channel) => channel,
            None => confirming(connection).await?,
        };
        Ok(Pooled { channel, idle: Arc::clone(&self.idle), _permit: permit })
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE && self.channel.status().connected() {
            idle.push(self.channel.clone());
        }
    }
}
