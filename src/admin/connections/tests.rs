//! Which connection is evicted, and how many permits there are.

use tokio::time::advance;

use super::*;

fn at(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 4711)
}

fn open(all: &Connections, address: &str) -> Connection {
    all.open(at(address)).expect("there is always room")
}

fn is_open(connection: &Connection) -> bool {
    !connection.closed.is_cancelled()
}

#[tokio::test(start_paused = true)]
async fn one_client_pushes_out_itself_and_nobody_else() {
    let all = Connections::default();
    let other = open(&all, "192.0.2.1");
    let mut mine: Vec<Connection> = (0..MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
    assert!(mine.iter().all(is_open));
    advance(HEAD_UNDER_WAY).await;
    // The first is used, so that the second is the oldest.
    drop(mine[0].peer.request());
    mine.push(open(&all, "192.0.2.2"));
    assert_eq!(mine.iter().position(|connection| !is_open(connection)), Some(1));
    assert!(is_open(&other));
    assert_eq!(lock(&all.0).of(at("192.0.2.2").ip().into()), MAX_OF_ONE);
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
    let many: Vec<Connection> =
        (0..MAX_CONNECTIONS - 1).map(|number| open(&all, &format!("198.51.100.{}", number % 5))).collect();
    assert!(many.iter().all(is_open) && is_open(&probe));
    let newcomers: Vec<Connection> =
        (0..100).map(|number| open(&all, &format!("203.0.113.{number}"))).collect();
    assert!(is_open(&probe) && newcomers.iter().all(is_open));
    assert_eq!(many.iter().filter(|connection| !is_open(connection)).count(), 100);
    // However many clients connect once, the newest stay.
    let flood: Vec<Connection> =
        (0..2_000).map(|number| open(&all, &format!("10.0.{}.{}", number / 256, number % 256))).collect();
    assert!(flood[2_000 - 200..].iter().all(is_open));
    assert_eq!(lock(&all.0).entries.len(), MAX_CONNECTIONS);
}

#[test]
fn a_connection_with_a_permit_is_not_evicted_and_permits_are_returned() {
    let all = Connections::default();
    let connections: Vec<Connection> = (0..MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
    let permits = |class: RequestClass| -> Vec<Permit> {
        connections.iter().filter_map(|connection| connection.peer.permit(class).ok()).collect()
    };
    let reading = permits(RequestClass::Read);
    assert_eq!(reading.len(), 16);
    let (events, changes) = (permits(RequestClass::Events), permits(RequestClass::Change));
    assert_eq!((events.len(), changes.len()), (16, 16));
    let refusal = connections[0].peer.permit(RequestClass::Read).unwrap_err();
    assert_eq!((refusal.status(), refusal.retry_after()), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
    // Another client still gets one, up to the bound for all.
    let other = open(&all, "192.0.2.3");
    let more: Vec<Permit> = (0..16).map(|_| other.peer.permit(RequestClass::Read).unwrap()).collect();
    let third = open(&all, "192.0.2.4");
    assert!(
        third.peer.permit(RequestClass::Read).is_err() && third.peer.permit(RequestClass::Events).is_ok()
    );
    drop(more);
    assert!(third.peer.permit(RequestClass::Read).is_ok());

    let newcomers: Vec<Connection> = (0..2 * MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
    assert!(newcomers.last().is_some_and(is_open));
    assert!(connections[..16].iter().all(is_open), "they have permits");
    assert!(!connections[20..].iter().any(is_open));
    drop((reading, events, changes));
    assert!(permits(RequestClass::Read).len() <= 16);
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_is_not_closed_before_its_request_can_come() {
    let all = Connections::default();
    let probing: Vec<Connection> = (1..MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
    let requests: Vec<InProgress> = probing.iter().map(|connection| connection.peer.request()).collect();
    let fresh = open(&all, "192.0.2.2");
    let newer = open(&all, "192.0.2.2");
    assert!(
        is_open(&fresh) && is_open(&newer) && !is_open(&probing[0]),
        "the oldest of those that are busy goes"
    );
    advance(HEAD_UNDER_WAY).await;
    let _newest = open(&all, "192.0.2.2");
    assert!(!is_open(&fresh) && is_open(&newer) && is_open(&probing[1]), "it had its time");
    drop(requests);
}

#[tokio::test(start_paused = true)]
async fn a_probe_in_progress_goes_last() {
    let all = Connections::default();
    let probing = open(&all, "192.0.2.2");
    let request = probing.peer.request();
    let idle: Vec<Connection> = (1..MAX_OF_ONE).map(|_| open(&all, "192.0.2.2")).collect();
    advance(HEAD_UNDER_WAY).await;
    let _newcomer = open(&all, "192.0.2.2");
    assert!(is_open(&probing) && !is_open(&idle[0]));
    // If nothing else is left, probes in progress make room too.
    let requests: Vec<InProgress> = idle.iter().map(|connection| connection.peer.request()).collect();
    all.close_one();
    all.close_one();
    assert_eq!(lock(&all.0).entries.len(), MAX_OF_ONE - 2);
    drop((request, requests));
}

#[test]
fn a_connection_that_ends_is_forgotten() {
    let all = Connections::default();
    let connection = open(&all, "192.0.2.2");
    let permit = connection.peer.permit(RequestClass::Read).unwrap();
    drop(connection);
    assert!(lock(&all.0).entries.is_empty());
    drop(permit);
    all.close_one();
}
