//! The connections of the admin server, and the places of the requests on them.
//!
//! Nobody who connects waits for others to go: every connection is accepted, and where there are too many the newcomer
//! takes the place of an *idle* one, on which no request is in progress. Of one remote network there are at most
//! [`MAX_OF_ONE`] connections, so that a single one cannot push out others; of all together [`MAX_CONNECTIONS`], and
//! then an idle one of the network with the most connections goes, the oldest first. A handshake and a head that does
//! not come are idle too, after a moment in which they may come.
//!
//! A request that may take long, or whose answer is large, needs a place for its [`Work`]; without one it is refused at
//! once. It keeps the place until its answer is written, so that slow readers use up the places of their kind and
//! nothing else, and a connection with a place is not closed for a newcomer. But where the places of a kind are used up,
//! a request takes that of an answer that is not read: one whose writing takes for longer than [`MIN_WRITING`], of the
//! network with the most places. And no such answer is written for longer than [`MAX_WRITING`]. There are fewer places than connections, of
//! one network too, so that a newcomer always finds an idle connection to replace. Probes need no place.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::api::Refusal;

/// The most connections at once.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// The most connections of one remote network at once.
pub(super) const MAX_OF_ONE: usize = 64;
/// How long a new connection counts as one with a request in progress: its head may be under way.
const HEAD_UNDER_WAY: Duration = Duration::from_millis(200);
/// The longest time in which an answer that shows something is written. Prometheus waits as long for all of it.
pub(super) const MAX_WRITING: Duration = Duration::from_secs(10);
/// How long such an answer is written before another request may take its place.
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

/// What a request needs a place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// An answer that shows something.
    Look,
    /// The page of metrics. So whoever reads other things keeps no monitoring out.
    Metrics,
    /// A stream of events, which lasts.
    Events,
    /// A change, or work on dead letters. Only who has the token of changes gets to one, so that those who look keep
    /// no operator from acting.
    Change,
}

/// The number of kinds of work.
const KINDS: usize = 4;

impl Work {
    /// The places for all, and those that one network may have of them.
    pub(super) const fn places(self) -> (usize, usize) {
        match self {
            Self::Look => (32, 16),
            Self::Metrics => (16, 8),
            Self::Events => (32, 16),
            Self::Change => (16, 16),
        }
    }

    /// Whether its answer is to be written within [`MAX_WRITING`].
    const fn is_short(self) -> bool {
        matches!(self, Self::Look | Self::Metrics)
    }

    const fn of_one() -> usize {
        Self::Look.places().1 + Self::Metrics.places().1 + Self::Events.places().1 + Self::Change.places().1
    }

    const fn of_all() -> usize {
        Self::Look.places().0 + Self::Metrics.places().0 + Self::Events.places().0 + Self::Change.places().0
    }

    /// The refusal of a request for which there is no place.
    fn refusal(self) -> Refusal {
        let text = match self {
            Self::Look | Self::Metrics => {
                "too many requests are being answered already; try again in a second"
            }
            Self::Events => "too many others read events already; read /api/v1/status instead",
            Self::Change => "too many changes are in progress already; try again in a second",
        };
        Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, 1)
    }
}

// Otherwise a newcomer might find no connection to replace.
const _: () = assert!(Work::of_one() < MAX_OF_ONE && Work::of_all() < MAX_CONNECTIONS);

/// All connections of a server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// Counts up with each event, which gives connections their ids and tells which are older.
    events: u64,
}

/// What is known of a connection.
#[derive(Debug)]
struct Entry {
    network: Network,
    /// When it began.
    opened_at: Instant,
    /// Whether a request has ended on it.
    is_used: bool,
    /// The event of its beginning, or of the end of its last request.
    last: u64,
    /// The requests that are in progress on it, without those that have a place.
    requests: usize,
    /// The places that its requests have.
    places: [usize; KINDS],
    /// Since when the answer of a request with a place is written, of work that is short.
    writing_since: Option<Instant>,
    /// Cancelled when it is closed for another.
    closed: CancellationToken,
}

impl Entry {
    fn is_closable(&self) -> bool {
        self.places == [0; KINDS]
    }

    /// The requests that are in progress on it without a place, or may be under way.
    fn requests(&self) -> usize {
        let is_under_way = !self.is_used && self.opened_at.elapsed() < HEAD_UNDER_WAY;
        self.requests.max(usize::from(is_under_way))
    }
}

impl Connections {
    /// Enters a new connection, and closes another one for it if there are too many. `None` if each of the others works,
    /// which the numbers of places rule out.
    pub(super) fn open(&self, remote: SocketAddr) -> Option<Connection> {
        let mut table = self.lock();
        let network = remote.ip().into();
        if table.is_full(network) {
            let victim = table.victim(network)?;
            table.close(victim);
        }
        table.events += 1;
        let (id, closed) = (table.events, CancellationToken::new());
        let entry = Entry {
            network,
            opened_at: Instant::now(),
            is_used: false,
            last: id,
            requests: 0,
            places: [0; KINDS],
            writing_since: None,
            closed: closed.clone(),
        };
        table.entries.insert(id, entry);
        Some(Connection { peer: Peer { remote, id, all: self.clone() }, closed })
    }

    /// Closes the idle connection that another one would replace, such as when there are no more descriptors.
    pub(super) fn close_one(&self) {
        let mut table = self.lock();
        if let Some(victim) = table.oldest(|_| true) {
            table.close(victim);
        }
    }

    /// The data is whole after a panic: nothing that changes it can panic half-way.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The connection that one of this network replaces: of the same network if that has all that it may.
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

    /// Whether this connection may have one more place of this kind.
    fn has_place(&self, work: Work, network: Network) -> bool {
        let (of_all, of_one) = work.places();
        let count = |entries: &mut dyn Iterator<Item = &Entry>| -> usize {
            entries.map(|entry| entry.places[work as usize]).sum()
        };
        let own = count(&mut self.entries.values().filter(|entry| entry.network == network));
        own < of_one && count(&mut self.entries.values()) < of_all
    }

    /// Closes a connection whose answer is not read, for one more place of this kind: one of the same network if that has
    /// all places that it may, or else of the network with the most. Returns false if there is none.
    fn free_place(&mut self, work: Work, network: Network) -> bool {
        let mut counts: HashMap<Network, usize> = HashMap::new();
        for entry in self.entries.values() {
            *counts.entry(entry.network).or_default() += entry.places[work as usize];
        }
        let count = |network: &Network| counts.get(network).copied().unwrap_or_default();
        let is_full = count(&network) >= work.places().1;
        let slow = self.entries.iter().filter_map(|(id, entry)| {
            let since = entry.writing_since.filter(|since| since.elapsed() >= MIN_WRITING)?;
            let is_meant = entry.places[work as usize] > 0 && (!is_full || entry.network == network);
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
    /// Cancelled when the connection is to be closed for another.
    pub(super) closed: CancellationToken,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.peer.all.lock().entries.remove(&self.peer.id);
    }
}

/// Where a request came from.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) remote: SocketAddr,
    id: u64,
    all: Connections,
}

impl Peer {
    /// The client that it counts as.
    pub(super) fn network(&self) -> Network {
        self.remote.ip().into()
    }

    /// Notes that a request is in progress, until what is returned is dropped.
    pub(super) fn request(&self) -> InProgress {
        if let Some(entry) = self.all.lock().entries.get_mut(&self.id) {
            entry.requests += 1;
        }
        InProgress(self.clone())
    }

    /// A place for this work.
    pub(super) fn place(&self, work: Work) -> Result<Place, Refusal> {
        let mut table = self.all.lock();
        let network = self.network();
        let has_place = table.has_place(work, network)
            || table.free_place(work, network) && table.has_place(work, network);
        if !has_place {
            return Err(work.refusal());
        }
        // A connection that was closed meanwhile gets no answer any more.
        let entry = table.entries.get_mut(&self.id).ok_or_else(|| work.refusal())?;
        entry.places[work as usize] += 1;
        Ok(Place { peer: self.clone(), work, deadline: None })
    }

    /// Closes the connection, whatever it does.
    fn close(&self) {
        self.all.lock().close(self.id);
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct InProgress(Peer);

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut table = self.0.all.lock();
        table.events += 1;
        let event = table.events;
        if let Some(entry) = table.entries.get_mut(&self.0.id) {
            (entry.requests, entry.last, entry.is_used) = (entry.requests.saturating_sub(1), event, true);
        }
    }
}

/// A place, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    peer: Peer,
    work: Work,
    /// Closes the connection when the writing of the answer takes too long.
    deadline: Option<AbortOnDropHandle<()>>,
}

impl Place {
    /// Notes that the answer is written from now on. Where it is to be short, its connection is closed after
    /// [`MAX_WRITING`], unless the place is given back before. Must be called on a tokio runtime.
    pub(super) fn begin_writing(&mut self) {
        if !self.work.is_short() {
            return;
        }
        if let Some(entry) = self.peer.all.lock().entries.get_mut(&self.peer.id) {
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

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.peer.all.lock();
        table.events += 1;
        let event = table.events;
        if let Some(entry) = table.entries.get_mut(&self.peer.id) {
            let places = &mut entry.places[self.work as usize];
            (*places, entry.last) = (places.saturating_sub(1), event);
            (entry.is_used, entry.writing_since) = (true, None);
        }
    }
}

#[cfg(test)]
mod tests;
