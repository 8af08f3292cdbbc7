//! The age of connections, and whether a changed DNS answer is followed.

use std::sync::atomic::{AtomicU8, Ordering};

use super::super::pool::{POOL_IDLE, lifetime};
use super::warm::pass;
use super::*;

/// A wait that is shorter than the time after which an idle connection is closed.
const STEP: Duration = SECOND.saturating_mul(3);

/// The last byte of the loopback address that the scripted lookup answers.
static ADDRESS: AtomicU8 = AtomicU8::new(1);

fn scripted(_: &str) -> std::io::Result<Vec<SocketAddr>> {
    Ok(vec![SocketAddr::new(IpAddr::from([127, 0, 0, ADDRESS.load(Ordering::SeqCst)]), 0)])
}

/// Two servers on one port of two addresses, and a sink that resolves its host to them.
async fn two_servers(max_connection_age: Duration) -> (Server, Server, HttpSink) {
    ADDRESS.store(1, Ordering::SeqCst);
    let old = Server::always(200).await;
    let port = old.base.rsplit(':').next().expect("a port").trim_end_matches('/');
    let listener = TcpListener::bind(format!("127.0.0.2:{port}")).await.expect("the same port");
    let new = Server::on(listener, None, |_| future::ready(empty(200)));
    let options = HttpOptions { max_connection_age, ..options(&format!("http://api.test:{port}/")) };
    let sink = HttpSink::with(options, scripted).expect("a sink");
    (old, new, sink)
}

#[tokio::test]
async fn a_changed_dns_answer_is_followed_once_connections_are_old() {
    let (old, new, sink) = two_servers(STEP * 4).await;
    delivered(sink.send(&job()).await);
    ADDRESS.store(2, Ordering::SeqCst);
    // A connection that is in use and answers is reused, up to its age.
    for _ in 0..3 {
        pass(STEP).await;
        delivered(sink.send(&job()).await);
    }
    assert_eq!((old.seen().len(), old.connections(), new.seen().len()), (4, 1, 0));
    pass(STEP).await;
    for _ in 0..3 {
        delivered(sink.send(&job()).await);
    }
    assert_eq!((old.seen().len(), new.seen().len(), new.connections()), (4, 3, 1));
    pass(POOL_IDLE).await;
    until(|| old.open() == 0).await;

    // Without a bound the connection is used for as long as it lasts.
    let (old, new, sink) = two_servers(Duration::ZERO).await;
    delivered(sink.send(&job()).await);
    ADDRESS.store(2, Ordering::SeqCst);
    for _ in 0..50 {
        pass(STEP).await;
        delivered(sink.send(&job()).await);
    }
    assert_eq!((old.seen().len(), old.connections(), new.connections()), (51, 1, 0));
}

#[tokio::test]
async fn a_request_that_outlasts_its_connection_is_answered() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let open = Arc::clone(&gate);
    let server = Server::start(move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            empty(200)
        }
    })
    .await;
    let aging = HttpOptions { max_connection_age: STEP, timeout: STEP * 10, ..options(&server.base) };
    let sink = HttpSink::new(aging).expect("a sink");
    for connections in 1..=2 {
        let job = job();
        let release = async {
            until(|| server.seen().len() == connections).await;
            pass(STEP).await;
            open.notify_one();
        };
        let (outcome, ()) = tokio::join!(sink.send(&job), release);
        delivered(outcome);
        assert_eq!((server.connections(), sink.target.current().pool.counts()), (connections, (0, 0)));
    }
}

#[test]
fn ages_are_spread_below_the_bound() {
    let max = Duration::from_secs(90);
    let ages: Vec<_> = (0..1000).filter_map(|_| lifetime(max)).collect();
    assert_eq!(ages.len(), 1000);
    let (low, high) = (ages.iter().min().expect("some"), ages.iter().max().expect("some"));
    assert!(*low >= max * 4 / 5 && *high <= max, "{low:?} to {high:?}");
    assert!(*high - *low > max / 6, "{low:?} to {high:?}");
    assert_eq!(lifetime(Duration::ZERO), None);
    assert!(lifetime(Duration::MAX).is_some_and(|age| age <= Duration::from_secs(366 * 86_400)));
}
