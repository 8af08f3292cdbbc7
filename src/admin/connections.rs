//! The connections of the admin server, and the places of the requests on them.
//!
//! Nobody who connects waits for others to go: every connection is accepted, and where there are too many the newcomer
//! takes the place of an *idle* one, on which no request is in progress. Of one remote network there are at most
//! [`MAX_OF_ONE`] connections, so that a single one cannot push out others; of all together [`MAX_CONNECTIONS`], and
//! then an idle one of the network with the most connections goes, the oldest first. A handshake and a head that does
//! not come are idle too.
//!
//! A request that may take long, or whose answer is large, needs a place for its [`Work`]; without one it is refused at
//! once. It keeps the place until its answer is written, so that slow readers use up the places of their kind and
//! nothing else, and a connection with a place is never closed for another. There are fewer places than connections, of
//! one network too, so that a newcomer always finds an idle connection to replace. Probes need no place.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::api::Refusal;

/// The most connections at once.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// The most connections of one remote network at once.
pub(super) const MAX_OF_ONE: usize = 64;

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
    /// A stream of events, which lasts.
    Events,
    /// A change, or work on dead letters. Only who has the token of changes gets to one, so that those who look keep
    /// no operator from acting.
    Change,
}

/// The number of kinds of work.
const KINDS: usize = 3;

impl Work {
    /// The places for all, and those that one network may have of them.
    pub(super) const fn places(self) -> (usize, usize) {
        match self {
            Self::Look => (32, 16),
            Self::Events => (32, 16),
            Self::Change => (16, 16),
        }
    }

    const fn of_one() -> usize {
        Self::Look.places().1 + Self::Events.places().1 + Self::Change.places().1
    }

    const fn of_all() -> usize {
        Self::Look.places().0 + Self::Events.places().0 + Self::Change.places().0
    }

    /// The refusal of a request for which there is no place.
    fn refusal(self) -> Refusal {
        let text = match self {
            Self::Look => "too many requests are being answered already; try again in a second",
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
    /// The event of its beginning, or of the end of its last request.
    last: u64,
    /// The requests that are in progress on it, without those that have a place.
    requests: usize,
    /// The places that its requests have.
    places: [usize; KINDS],
    /// Cancelled when it is closed for another.
    closed: CancellationToken,
}

impl Entry {
    fn is_closable(&self) -> bool {
        self.places == [0; KINDS]
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
        let entry = Entry { network, last: id, requests: 0, places: [0; KINDS], closed: closed.clone() };
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
            (entry.requests, std::cmp::Reverse(count), entry.last)
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
        if !table.has_place(work, self.network()) {
            return Err(work.refusal());
        }
        // A connection that was closed meanwhile gets no answer any more.
        let entry = table.entries.get_mut(&self.id).ok_or_else(|| work.refusal())?;
        entry.places[work as usize] += 1;
        Ok(Place { peer: self.clone(), work })
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
            (entry.requests, entry.last) = (entry.requests.saturating_sub(1), event);
        }
    }
}

/// A place, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    peer: Peer,
    work: Work,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.peer.all.lock();
        table.events += 1;
        let event = table.events;
        if let Some(entry) = table.entries.get_mut(&self.peer.id) {
            let places = &mut entry.places[self.work as usize];
            (*places, entry.last) = (places.saturating_sub(1), event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 4711)
    }

    fn open(all: &Connections, address: &str) -> Connection {
        all.open(at(address)).expect("there is always a place")
    }

    fn is_open(connection: &Connection) -> bool {
        !connection.closed.is_cancelled()
    }

    #[test]
    fn one_client_pushes_out_itself_and_nobody_else() {
        let all = Connections::default();
        let other = open(&all, "192.0.2.1");
        let mut mine: Vec<Connection> = (0..MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
        assert!(mine.iter().all(is_open));
        // The first is used, so that the second is the oldest.
        drop(mine[0].peer.request());
        mine.push(open(&all, "192.0.2.2"));
        assert_eq!(mine.iter().position(|connection| !is_open(connection)), Some(1));
        assert!(is_open(&other));
        assert_eq!(all.lock().of(at("192.0.2.2").ip().into()), MAX_OF_ONE);
    }

    #[test]
    fn all_of_a_network_of_ipv6_are_one_client() {
        let network = |address: &str| Network::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(network("2001:db8:1:2:3::4"), network("2001:db8:1:2:ffff::"));
        assert_ne!(network("2001:db8:1:2::"), network("2001:db8:1:3::"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
    }

    #[test]
    fn of_many_clients_the_one_with_the_most_connections_makes_room() {
        let all = Connections::default();
        let probe = open(&all, "127.0.0.1");
        let many: Vec<Connection> = (0..MAX_CONNECTIONS - 1)
            .map(|number| open(&all, &format!("198.51.100.{}", number % 5)))
            .collect();
        assert!(many.iter().all(is_open) && is_open(&probe));
        let newcomers: Vec<Connection> =
            (0..100).map(|number| open(&all, &format!("203.0.113.{number}"))).collect();
        assert!(is_open(&probe) && newcomers.iter().all(is_open));
        assert_eq!(many.iter().filter(|connection| !is_open(connection)).count(), 100);
        // However many clients connect once, the newest stay.
        let flood: Vec<Connection> =
            (0..2_000).map(|number| open(&all, &format!("10.0.{}.{}", number / 256, number % 256))).collect();
        assert!(flood[2_000 - 200..].iter().all(is_open));
        assert_eq!(all.lock().entries.len(), MAX_CONNECTIONS);
    }

    #[test]
    fn who_works_is_not_closed_and_places_are_given_back() {
        let all = Connections::default();
        let connections: Vec<Connection> = (0..MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
        let places = |work: Work| -> Vec<Place> {
            connections.iter().filter_map(|connection| connection.peer.place(work).ok()).collect()
        };
        let looking = places(Work::Look);
        assert_eq!(looking.len(), 16);
        let (events, changes) = (places(Work::Events), places(Work::Change));
        assert_eq!((events.len(), changes.len()), (16, 16));
        let refusal = connections[0].peer.place(Work::Look).unwrap_err();
        assert_eq!((refusal.status(), refusal.retry_after()), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
        // Another client still gets one, up to the bound for all.
        let other = open(&all, "192.0.2.3");
        let more: Vec<Place> = (0..16).map(|_| other.peer.place(Work::Look).unwrap()).collect();
        let third = open(&all, "192.0.2.4");
        assert!(third.peer.place(Work::Look).is_err() && third.peer.place(Work::Events).is_ok());
        drop(more);
        assert!(third.peer.place(Work::Look).is_ok());

        let newcomers: Vec<Connection> = (0..2 * MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
        assert!(newcomers.last().is_some_and(is_open));
        assert!(connections[..16].iter().all(is_open), "they have places");
        assert!(!connections[20..].iter().any(is_open));
        drop((looking, events, changes));
        assert!(places(Work::Look).len() <= 16);
    }

    #[test]
    fn a_probe_in_progress_goes_last() {
        let all = Connections::default();
        let probing = open(&all, "192.0.2.2");
        let request = probing.peer.request();
        let idle: Vec<Connection> = (1..MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
        let _newcomer = open(&all, "192.0.2.2");
        assert!(is_open(&probing) && !is_open(&idle[0]));
        // If nothing else is left, probes in progress make room too.
        let requests: Vec<InProgress> = idle.iter().map(|connection| connection.peer.request()).collect();
        all.close_one();
        all.close_one();
        assert_eq!(all.lock().entries.len(), MAX_OF_ONE - 2);
        drop((request, requests));
    }

    #[test]
    fn a_connection_that_ends_is_forgotten() {
        let all = Connections::default();
        let connection = open(&all, "192.0.2.2");
        let place = connection.peer.place(Work::Look).unwrap();
        drop(connection);
        assert!(all.lock().entries.is_empty());
        drop(place);
        all.close_one();
    }
}
