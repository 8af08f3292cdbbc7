//! The connections of the admin server, and the permits of the requests on them.
//!
//! When full, a new connection evicts the oldest idle one, so that no client waits for another. A connection is idle
//! while no request is in progress on it. A connection that waits for a handshake or a head is idle too, after a
//! short time in which these may arrive. One remote network has at most [`MAX_OF_ONE`] connections, and its next one
//! evicts one of its own, so that it cannot evict all others. There are at most [`MAX_CONNECTIONS`] in all; then the
//! network with the most connections loses its oldest idle one.
//!
//! A request that may take long, or whose answer is large, needs a permit of its [`RequestClass`]; without one it is refused
//! at once. It holds the permit until its answer is written. So slow readers use up the permits of their class and nothing
//! else, and a connection that holds a permit is not evicted. But where the permits of a class are used up, a
//! request evicts an answer that its client does not read: one whose writing takes longer than [`MIN_WRITING`], of the
//! network with the most permits. No such answer is written for longer than [`MAX_WRITING`]. There are fewer permits than
//! connections, of one network too, so that a new connection always finds an idle one to evict. Probes need no permit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use paced::lock::lock;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::reply::Refusal;

/// The most connections at once.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// The most connections of one remote network at once.
pub(super) const MAX_OF_ONE: usize = 64;
/// How long a new connection counts as one with a request in progress: its head may be under way.
const HEAD_UNDER_WAY: Duration = Duration::from_millis(200);
/// The longest time for writing an answer to a read. Prometheus waits as long for the whole answer.
pub(super) const MAX_WRITING: Duration = Duration::from_secs(10);
/// How long such an answer is written before a request without a permit may evict it.
const MIN_WRITING: Duration = Duration::from_secs(2);

/// The client that a remote address counts as. An IPv4 address is one; of IPv6 a whole network of 64 bits is one, since
/// that is what a single machine is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.into()),
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Self(Ipv6Addr::from_bits(network).into())
            }
        }
    }
}

/// The class of a request, which decides how many of its kind run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestClass {
    /// A read.
    Read,
    /// The page of metrics. Separate permits, so that other reads cannot starve scrapes.
    Metrics,
    /// A stream of events, which lasts.
    Events,
    /// A change, or work on dead letters. It needs the token for changes, so that reads cannot starve operators.
    Change,
}

/// The number of classes.
const CLASSES: usize = 4;

impl RequestClass {
    /// The permits for all, and those that one network may have of them.
    pub(super) const fn permits(self) -> (usize, usize) {
        match self {
            Self::Read => (32, 16),
            Self::Metrics => (16, 8),
            Self::Events => (32, 16),
            Self::Change => (16, 16),
        }
    }

    /// Whether its answer must be written within [`MAX_WRITING`].
    const fn is_short(self) -> bool {
        !matches!(self, Self::Events)
    }

    const fn of_one() -> usize {
        Self::Read.permits().1
            + Self::Metrics.permits().1
            + Self::Events.permits().1
            + Self::Change.permits().1
    }

    const fn of_all() -> usize {
        Self::Read.permits().0
            + Self::Metrics.permits().0
            + Self::Events.permits().0
            + Self::Change.permits().0
    }

    /// The refusal of a request for which there is no permit.
    fn refusal(self) -> Refusal {
        let text = match self {
            Self::Read | Self::Metrics => {
                "too many requests are being answered already; try again in a second"
            }
            Self::Events => "too many others read events already; read /api/v1/status instead",
            Self::Change => "too many changes are in progress already; try again in a second",
        };
        Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, 1)
    }
}

// Otherwise a new connection might find none to evict.
const _: () = assert!(RequestClass::of_one() < MAX_OF_ONE && RequestClass::of_all() < MAX_CONNECTIONS);

/// All connections of a server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// Rises with each opening and each end of a request: the ids of connections, and their order by age.
    sequence: u64,
}

/// An open connection.
#[derive(Debug)]
struct Entry {
    network: Network,
    /// When it began.
    opened_at: Instant,
    /// Whether a request has ended on it.
    is_used: bool,
    /// The sequence number of its opening, or of the end of its last request.
    last: u64,
    /// The requests that are in progress on it, without those that have a permit.
    requests: usize,
    /// The permits that its requests have.
    permits: [usize; CLASSES],
    /// Since when an answer with a permit is written, of a class whose answers are short.
    writing_since: Option<Instant>,
    /// Cancelled when it is evicted.
    closed: CancellationToken,
}

impl Entry {
    fn is_closable(&self) -> bool {
        self.permits == [0; CLASSES]
    }

    /// The requests that are in progress on it without a permit, or may be under way.
    fn requests(&self) -> usize {
        let is_under_way = !self.is_used && self.opened_at.elapsed() < HEAD_UNDER_WAY;
        self.requests.max(usize::from(is_under_way))
    }
}

impl Connections {
    /// Registers a new connection, and evicts another one if there are too many. `None` if all others hold permits, which
    /// the numbers of permits rule out.
    pub(super) fn open(&self, remote: SocketAddr) -> Option<Connection> {
        let mut table = lock(&self.0);
        let network = remote.ip().into();
        if table.is_full(network) {
            let victim = table.victim(network)?;
            table.close(victim);
        }
        table.sequence += 1;
        let (id, closed) = (table.sequence, CancellationToken::new());
        let entry = Entry {
            network,
            opened_at: Instant::now(),
            is_used: false,
            last: id,
            requests: 0,
            permits: [0; CLASSES],
            writing_since: None,
            closed: closed.clone(),
        };
        table.entries.insert(id, entry);
        Some(Connection { peer: Peer { remote, id, all: self.clone(), certificate: None }, closed })
    }

    /// Evicts one idle connection, such as when there are no more descriptors.
    pub(super) fn close_one(&self) {
        let mut table = lock(&self.0);
        if let Some(victim) = table.oldest(|_| true) {
            table.close(victim);
        }
    }
}

impl Table {
    fn of(&self, network: Network) -> usize {
        self.entries.values().filter(|entry| entry.network == network).count()
    }

    /// Whether there is no room for one more connection of this network.
    fn is_full(&self, network: Network) -> bool {
        self.entries.len() >= MAX_CONNECTIONS || self.of(network) >= MAX_OF_ONE
    }

    /// The connection that one of this network evicts: of the same network if that has all that it may.
    fn victim(&self, network: Network) -> Option<u64> {
        match self.of(network) >= MAX_OF_ONE {
            true => self.oldest(|entry| entry.network == network),
            false => self.oldest(|_| true),
        }
    }

    /// The connection to close first: one without a request rather than one with a probe in progress, then one of the
    /// network with the most connections, then the oldest.
    fn oldest(&self, is_meant: impl Fn(&Entry) -> bool) -> Option<u64> {
        let mut counts: HashMap<Network, usize> = HashMap::new();
        for entry in self.entries.values() {
            *counts.entry(entry.network).or_default() += 1;
        }
        let closable = self.entries.iter().filter(|(_, entry)| entry.is_closable() && is_meant(entry));
        let first = closable.min_by_key(|(_, entry)| {
            let count = counts.get(&entry.network).copied().unwrap_or_default();
            (entry.requests(), std::cmp::Reverse(count), entry.last)
        });
        first.map(|(id, _)| *id)
    }

    fn close(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            entry.closed.cancel();
        }
    }

    /// Whether this network may have one more permit of this class.
    fn has_permit(&self, class: RequestClass, network: Network) -> bool {
        let (of_all, of_one) = class.permits();
        let count = |entries: &mut dyn Iterator<Item = &Entry>| -> usize {
            entries.map(|entry| entry.permits[class as usize]).sum()
        };
        let own = count(&mut self.entries.values().filter(|entry| entry.network == network));
        own < of_one && count(&mut self.entries.values()) < of_all
    }

    /// Evicts a connection whose answer is not read, for one more permit of this class: one of the same network if that
    /// has all permits that it may, or else of the network with the most. Returns false if there is none.
    fn evict_unread(&mut self, class: RequestClass, network: Network) -> bool {
        let mut counts: HashMap<Network, usize> = HashMap::new();
        for entry in self.entries.values() {
            *counts.entry(entry.network).or_default() += entry.permits[class as usize];
        }
        let count = |network: &Network| counts.get(network).copied().unwrap_or_default();
        let is_full = count(&network) >= class.permits().1;
        let slow = self.entries.iter().filter_map(|(id, entry)| {
            let since = entry.writing_since.filter(|since| since.elapsed() >= MIN_WRITING)?;
            let is_meant = entry.permits[class as usize] > 0 && (!is_full || entry.network == network);
            is_meant.then(|| (std::cmp::Reverse(count(&entry.network)), since, *id))
        });
        let Some((.., id)) = slow.min() else { return false };
        self.close(id);
        true
    }
}

/// A connection, which is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: Peer,
    /// Cancelled when the connection is evicted.
    pub(super) closed: CancellationToken,
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.peer.all.0).entries.remove(&self.peer.id);
    }
}

/// The client of a request, and its connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) remote: SocketAddr,
    id: u64,
    all: Connections,
    /// The name in the certificate that the client has shown, if it had to show one.
    certificate: Option<Arc<str>>,
}

impl Peer {
    /// The same client, which has shown a certificate with this name.
    pub(super) fn with_certificate(self, name: &str) -> Self {
        Self { certificate: Some(name.into()), ..self }
    }

    /// The name in the certificate that the client has shown.
    pub(super) fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// The network that it counts for.
    pub(super) fn network(&self) -> Network {
        self.remote.ip().into()
    }

    /// Whether a change or work on dead letters is in progress on the connection.
    pub(super) fn has_change(&self) -> bool {
        let table = lock(&self.all.0);
        table.entries.get(&self.id).is_some_and(|entry| entry.permits[RequestClass::Change as usize] > 0)
    }

    /// Records that a request is in progress, until the returned value is dropped.
    pub(super) fn request(&self) -> InProgress {
        if let Some(entry) = lock(&self.all.0).entries.get_mut(&self.id) {
            entry.requests += 1;
        }
        InProgress(self.clone())
    }

    /// Takes a permit of this class, or refuses the request.
    pub(super) fn permit(&self, class: RequestClass) -> Result<Permit, Refusal> {
        let mut table = lock(&self.all.0);
        let network = self.network();
        let has_permit = table.has_permit(class, network)
            || table.evict_unread(class, network) && table.has_permit(class, network);
        if !has_permit {
            return Err(class.refusal());
        }
        // A connection that was closed meanwhile gets no answer any more.
        let entry = table.entries.get_mut(&self.id).ok_or_else(|| class.refusal())?;
        entry.permits[class as usize] += 1;
        Ok(Permit { peer: self.clone(), class, deadline: None })
    }

    /// Closes the connection, even while it is in use.
    fn close(&self) {
        lock(&self.all.0).close(self.id);
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct InProgress(Peer);

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut table = lock(&self.0.all.0);
        table.sequence += 1;
        let last = table.sequence;
        if let Some(entry) = table.entries.get_mut(&self.0.id) {
            (entry.requests, entry.last, entry.is_used) = (entry.requests.saturating_sub(1), last, true);
        }
    }
}

/// A permit, which is returned when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    peer: Peer,
    class: RequestClass,
    /// Closes the connection when the writing of the answer takes too long.
    deadline: Option<AbortOnDropHandle<()>>,
}

impl Permit {
    /// Records that the writing of the answer begins. If the class has short answers, the connection is closed after
    /// [`MAX_WRITING`], unless the permit is returned before. Must be called on a tokio runtime.
    pub(super) fn begin_writing(&mut self) {
        if !self.class.is_short() {
            return;
        }
        if let Some(entry) = lock(&self.peer.all.0).entries.get_mut(&self.peer.id) {
            entry.writing_since = Some(Instant::now());
        }
        // The body of an answer is not polled while its connection takes no more, so that it cannot watch the time.
        let peer = self.peer.clone();
        let closing = async move {
            sleep(MAX_WRITING).await;
            peer.close();
        };
        self.deadline = Some(AbortOnDropHandle::new(tokio::spawn(closing)));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut table = lock(&self.peer.all.0);
        table.sequence += 1;
        let last = table.sequence;
        if let Some(entry) = table.entries.get_mut(&self.peer.id) {
            let permits = &mut entry.permits[self.class as usize];
            (*permits, entry.last) = (permits.saturating_sub(1), last);
            (entry.is_used, entry.writing_since) = (true, None);
        }
    }
}

#[cfg(test)]
mod tests;
