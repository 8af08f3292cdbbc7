//! The state of the connections and consumers, for queries from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::supervisor::ConnectionWatch;
use super::targets::Targets;
use crate::lock::lock;

/// Every connection that is kept up, with its purpose.
pub(super) type ConnectionWatches = Arc<Mutex<Vec<(String, ConnectionWatch)>>>;

/// Whether each downstream is consumed, by name.
pub(super) type Attachments = Arc<Mutex<BTreeMap<String, watch::Receiver<bool>>>>;

/// A view of the connections and the consumers that stays valid while [`super::Amqp`] shuts down.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The address of the broker, without credentials.
    pub(super) address: String,
    pub(super) connections: ConnectionWatches,
    /// The queues that messages are being published to.
    pub(super) targets: Vec<Targets>,
    pub(super) attached: Attachments,
}

impl Status {
    /// The purposes of the connections that are down, such as `consuming`; empty while all are up.
    pub fn lost(&self) -> Vec<String> {
        let is_down =
            |current: &ConnectionWatch| !current.borrow().as_ref().is_some_and(|c| c.status().connected());
        let connections = lock(&self.connections);
        connections
            .iter()
            .filter(|(_, current)| is_down(current))
            .map(|(purpose, _)| purpose.clone())
            .collect()
    }

    /// Which connections are down, and to which broker, for people; `None` while all are up.
    pub fn trouble(&self) -> Option<String> {
        let lost = self.lost();
        let (at, purposes) = (&self.address, lost.join(", "));
        (!lost.is_empty()).then(|| format!("no connection to RabbitMQ at {at} for {purposes}"))
    }

    /// The queues that have not confirmed publishes for some seconds, by name; at most 40, since producers choose the
    /// queues of replies.
    pub fn unconfirmed(&self) -> Vec<String> {
        self.targets.iter().flat_map(Targets::late).collect()
    }

    /// The names of the downstreams that are not consumed now.
    pub fn unattached(&self) -> BTreeSet<String> {
        let attached = lock(&self.attached);
        let unattached = attached.iter().filter(|(_, attached)| !*attached.borrow());
        unattached.map(|(name, _)| name.clone()).collect()
    }

    /// The names of the downstreams that there are now, in order, and whether each is consumed.
    pub fn downstreams(&self) -> Vec<(String, bool)> {
        lock(&self.attached).iter().map(|(name, attached)| (name.clone(), *attached.borrow())).collect()
    }
}
