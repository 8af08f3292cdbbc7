//! The connections that are kept up: one for publishing, one for each [`DOWNSTREAMS`] that consume over it together, and
//! one for each downstream that would hold up the others there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lapin::Connection;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::address::Address;
use super::budget::Account;
use super::gate::Gate;
use super::status::ConnectionWatches;
use super::supervisor::{ConnectionStates, ConnectionWatch, Supervisor};
use super::suspicion::Suspicion;
use super::valve::Meter;
use crate::lock::lock;

/// How many downstreams consume over one connection. Each needs two channels, and RabbitMQ allows 2047 to a connection unless
/// it is configured otherwise.
pub(super) const DOWNSTREAMS: usize = 500;

/// The parts that consuming connections have in common.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) current: ConnectionWatch,
    pub(super) gate: Arc<Gate>,
    pub(super) meter: Arc<Meter>,
}

/// The reason why a downstream gets a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeparationReason {
    /// Its messages are so long that their bytes bound what is read.
    Long,
    /// The messages that it asked for exceed its bytes, and would hold up the others.
    Overrun,
    /// The shared connection was lost several times while something came for it.
    Losses,
}

impl SeparationReason {
    pub(super) const ALL: [Self; 3] = [Self::Long, Self::Overrun, Self::Losses];

    /// The label of the metric.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Long => "long",
            Self::Overrun => "overrun",
            Self::Losses => "losses",
        }
    }

    /// The text for the log.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Long => "its messages are long",
            Self::Overrun => "its messages exceed queue.prefetch_bytes",
            Self::Losses => {
                "the connection was lost three times within a minute while its messages came; see what lies in \
                 its queue"
            }
        }
    }
}

/// Opens connections, and keeps them up until it is stopped.
#[derive(Debug)]
pub(super) struct Links {
    address: Address,
    states: Arc<ConnectionStates>,
    connections: ConnectionWatches,
    /// The downstreams that ended the shared connection have true here.
    guilty: BTreeMap<String, watch::Sender<bool>>,
    suspicion: Mutex<Suspicion>,
    /// Ends the connections.
    pub(super) stopping: CancellationToken,
    pub(super) supervisors: TaskTracker,
}

impl Links {
    pub(super) fn new(address: Address, downstreams: impl Iterator<Item = String>) -> Arc<Self> {
        Arc::new(Self {
            address,
            states: Arc::default(),
            connections: ConnectionWatches::default(),
            guilty: downstreams.map(|name| (name, watch::Sender::new(false))).collect(),
            suspicion: Mutex::default(),
            stopping: CancellationToken::new(),
            supervisors: TaskTracker::new(),
        })
    }

    /// Every connection that is kept up, with its purpose.
    pub(super) fn connections(&self) -> ConnectionWatches {
        Arc::clone(&self.connections)
    }

    /// A connection for publishing.
    pub(super) fn publishing(&self, first: Option<Arc<Connection>>) -> ConnectionWatch {
        self.keep_up("publishing".to_owned(), first, None, None)
    }

    /// A connection that downstreams consume over together: the first one, or one of those beside it.
    pub(super) fn shared(self: &Arc<Self>, n: usize) -> Link {
        let meter = Meter::shared();
        let links = Arc::downgrade(self);
        let suspects = Arc::clone(&meter);
        let lost = move || {
            if let Some(links) = links.upgrade() {
                links.suspect(&suspects);
            }
        };
        let purpose = if n == 0 { "consuming".to_owned() } else { format!("consuming ({})", n + 1) };
        let current = self.keep_up(purpose, None, Some(&meter), Some(Box::new(lost)));
        Link { current, gate: Arc::default(), meter }
    }

    /// A connection for one queue of a downstream. It stays until the end: its reason may recur at any time, and a return would
    /// hold up the others each time.
    pub(super) fn own(&self, what: &str, account: &Arc<Account>) -> Link {
        let meter = Meter::own(Arc::clone(account));
        let current = self.keep_up(format!("consuming {what}"), None, Some(&meter), None);
        Link { current, gate: Arc::default(), meter }
    }

    /// A receiver that becomes true when this downstream has ended the shared connection.
    pub(super) fn guilt(&self, downstream: &str) -> watch::Receiver<bool> {
        self.guilty.get(downstream).map_or_else(|| watch::channel(false).1, watch::Sender::subscribe)
    }

    /// Records that the shared connection was lost soon after it was made.
    fn suspect(&self, meter: &Meter) {
        let now = tokio::time::Instant::now();
        let mut suspicion = lock(&self.suspicion);
        for name in suspicion.lost(now, meter.recent()) {
            if let Some(guilty) = self.guilty.get(&name) {
                guilty.send_replace(true);
            }
        }
    }

    fn keep_up(
        &self,
        purpose: String,
        first: Option<Arc<Connection>>,
        meter: Option<&Arc<Meter>>,
        lost_early: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> ConnectionWatch {
        let (sender, current) = watch::channel(first.clone());
        self.states.set(&purpose, false);
        lock(&self.connections).push((purpose.clone(), current.clone()));
        let supervisor = Supervisor {
            address: self.address.clone(),
            purpose,
            current: sender,
            states: Arc::clone(&self.states),
            meter: meter.cloned(),
            lost_early,
            stop: self.stopping.clone(),
        };
        self.supervisors.spawn(supervisor.run(first));
        current
    }
}
