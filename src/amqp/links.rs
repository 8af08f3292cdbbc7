//! The connections that are kept up: one for publishing, and those that downstreams consume over together.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::address::Address;
use super::gate::Gate;
use super::status::ConnectionWatches;
use super::supervisor::{ConnectionStates, ConnectionWatch, Supervisor, Up, up};
use crate::lock::lock;

/// The most downstreams that consume over one connection.
const DOWNSTREAMS: usize = 500;

/// The channels of a downstream, at most: those of its two queues, that of the consumer that stands in for one, and
/// one that is being replaced.
const CHANNELS: u16 = 4;

/// The channels of a connection that belong to no downstream: for declarations, and checks of queues.
const OTHERS: u16 = 40;

/// How many downstreams consume over a connection that may have this many channels. RabbitMQ allows 2047 unless it is
/// configured otherwise.
fn downstreams(channel_max: u16) -> usize {
    usize::from(channel_max.saturating_sub(OTHERS) / CHANNELS).clamp(1, DOWNSTREAMS)
}

/// The purpose of the first connection that downstreams consume over. The lengths of queues are read over it too.
pub const CONSUMING: &str = "consuming";

/// A connection that downstreams consume over, and its gate.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) current: ConnectionWatch,
    pub(super) gate: Arc<Gate>,
}

/// The choice of the connection that one downstream consumes over.
#[derive(Clone, Debug)]
pub(super) struct Route {
    links: Arc<Links>,
    /// The index of the downstream among all.
    index: usize,
    pub(super) link: Link,
}

impl Route {
    /// Starts with the first connection. Must be called on a tokio runtime.
    pub(super) fn new(links: &Arc<Links>, index: usize) -> Self {
        Self { links: Arc::clone(links), index, link: links.first() }
    }

    /// Chooses the connection, once the broker has said how many channels one may have. Returns false if the
    /// connections are closed for good.
    ///
    /// Cancel safe.
    pub(super) async fn choose(&mut self) -> bool {
        // Where the first one is down, the downstream's own connection is enough.
        let mut first = self.links.first().current;
        let connection = tokio::select! {
            connection = up(&mut self.link.current) => connection,
            connection = up(&mut first) => connection,
        };
        let Some(connection) = connection else { return false };
        let each = downstreams(connection.configuration().channel_max());
        self.link = self.links.consuming(self.index / each);
        true
    }
}

/// Opens connections, and keeps them up until it is stopped.
#[derive(Debug)]
pub(super) struct Links {
    address: Address,
    states: Arc<ConnectionStates>,
    connections: ConnectionWatches,
    /// The connections that downstreams consume over.
    consuming: Mutex<Vec<Link>>,
    /// Ends the connections.
    pub(super) stopping: CancellationToken,
    pub(super) supervisors: TaskTracker,
}

impl Links {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            states: Arc::default(),
            connections: ConnectionWatches::default(),
            consuming: Mutex::default(),
            stopping: CancellationToken::new(),
            supervisors: TaskTracker::new(),
        }
    }

    /// Every connection that is kept up, with its purpose.
    pub(super) fn connections(&self) -> ConnectionWatches {
        Arc::clone(&self.connections)
    }

    /// A connection for publishing.
    pub(super) fn publishing(&self, first: Option<Arc<Up>>) -> ConnectionWatch {
        self.keep_up("publishing".to_owned(), first, false)
    }

    /// The first connection that downstreams consume over. Must be called on a tokio runtime.
    pub(super) fn first(&self) -> Link {
        self.consuming(0)
    }

    fn consuming(&self, n: usize) -> Link {
        let mut consuming = lock(&self.consuming);
        while consuming.len() <= n {
            let next = self.shared(consuming.len());
            consuming.push(next);
        }
        consuming[n].clone()
    }

    /// A connection that several downstreams consume over: the first one, or one of the others.
    fn shared(&self, n: usize) -> Link {
        let purpose = if n == 0 { CONSUMING.to_owned() } else { format!("consuming ({})", n + 1) };
        Link { current: self.keep_up(purpose, None, true), gate: Arc::default() }
    }

    fn keep_up(&self, purpose: String, first: Option<Arc<Up>>, consumes: bool) -> ConnectionWatch {
        let (sender, current) = watch::channel(first.clone());
        self.states.set(&purpose, false);
        lock(&self.connections).push((purpose.clone(), current.clone()));
        let supervisor = Supervisor {
            address: self.address.clone(),
            purpose,
            current: sender,
            states: Arc::clone(&self.states),
            consumes,
            stop: self.stopping.clone(),
        };
        self.supervisors.spawn(supervisor.run(first));
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_never_needs_more_channels_than_it_may_have() {
        assert_eq!(downstreams(2047), DOWNSTREAMS);
        assert_eq!(downstreams(u16::MAX), DOWNSTREAMS);
        for channel_max in 44..=2047 {
            assert!(
                downstreams(channel_max) * usize::from(CHANNELS) + usize::from(OTHERS) <= channel_max.into()
            );
        }
        assert_eq!((downstreams(1), downstreams(43), downstreams(60)), (1, 1, 5));
    }
}
