//! The connections that are kept up: one for publishing, and one for each [`DOWNSTREAMS`] that consume over it together.

use std::sync::Arc;

use lapin::Connection;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::address::Address;
use super::admission::Admissions;
use super::gate::Gate;
use super::guard::Admit;
use super::status::ConnectionWatches;
use super::supervisor::{ConnectionStates, ConnectionWatch, Supervisor};
use crate::lock::lock;

/// How many downstreams consume over one connection. Each needs two channels, and RabbitMQ allows 2047 to a connection unless
/// it is configured otherwise.
pub(super) const DOWNSTREAMS: usize = 500;

/// The parts that consuming connections have in common.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) current: ConnectionWatch,
    pub(super) gate: Arc<Gate>,
    pub(super) admissions: Arc<Admissions>,
}

/// Opens connections, and keeps them up until it is stopped.
#[derive(Debug)]
pub(super) struct Links {
    address: Address,
    states: Arc<ConnectionStates>,
    connections: ConnectionWatches,
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
            stopping: CancellationToken::new(),
            supervisors: TaskTracker::new(),
        }
    }

    /// Every connection that is kept up, with its purpose.
    pub(super) fn connections(&self) -> ConnectionWatches {
        Arc::clone(&self.connections)
    }

    /// A connection for publishing.
    pub(super) fn publishing(&self, first: Option<Arc<Connection>>) -> ConnectionWatch {
        self.keep_up("publishing".to_owned(), first, None)
    }

    /// A connection that downstreams consume over together: the first one, or one of those beside it.
    pub(super) fn shared(&self, n: usize) -> Link {
        let admissions = Arc::<Admissions>::default();
        let purpose = if n == 0 { "consuming".to_owned() } else { format!("consuming ({})", n + 1) };
        let current = self.keep_up(purpose, None, Some(Arc::clone(&admissions) as Arc<dyn Admit>));
        Link { current, gate: Arc::default(), admissions }
    }

    fn keep_up(
        &self,
        purpose: String,
        first: Option<Arc<Connection>>,
        admit: Option<Arc<dyn Admit>>,
    ) -> ConnectionWatch {
        let (sender, current) = watch::channel(first.clone());
        self.states.set(&purpose, false);
        lock(&self.connections).push((purpose.clone(), current.clone()));
        let supervisor = Supervisor {
            address: self.address.clone(),
            purpose,
            current: sender,
            states: Arc::clone(&self.states),
            admit,
            stop: self.stopping.clone(),
        };
        self.supervisors.spawn(supervisor.run(first));
        current
    }
}
