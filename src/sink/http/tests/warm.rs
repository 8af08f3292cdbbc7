//! Connections that are opened before they are needed, and those that were closed meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::time;

use super::super::pool::{MIN_WARM_TIME, POOL_IDLE, WARM_RETRY};
use super::*;

/// Lets time pass at once, for the timers of the sink.
pub(super) async fn pass(duration: Duration) {
    time::pause();
    time::advance(duration).await;
    time::resume();
}

async fn with_spare(sink: &HttpSink) {
    sink.warm(soon(1));
    until(|| sink.target.current().pool.counts() == (1, 0)).await;
}

#[tokio::test]
async fn a_spare_is_opened_once_and_used_by_the_next_send() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    for _ in 0..3 {
        sink.warm(soon(1));
        assert_eq!(sink.target.current().pool.counts(), (0, 1));
    }
    until(|| sink.target.current().pool.counts() == (1, 0)).await;
    sink.warm(soon(1));
    assert_eq!(sink.target.current().pool.counts(), (1, 0));
    delivered(sink.send(&job()).await);
    sink.warm(soon(1));
    assert_eq!(
        (sink.target.current().pool.counts(), server.connections(), server.seen().len()),
        ((1, 0), 1, 1)
    );
}

#[tokio::test]
async fn as_many_are_opened_as_will_be_used_and_no_more() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    sink.warm(soon(3));
    assert_eq!(sink.target.current().pool.counts(), (0, 3));
    sink.warm(soon(3));
    sink.warm(soon(2));
    assert_eq!(sink.target.current().pool.counts(), (0, 3), "they are on their way");
    until(|| sink.target.current().pool.counts() == (3, 0)).await;
    sink.warm(soon(4));
    until(|| sink.target.current().pool.counts() == (4, 0)).await;
    sink.warm(soon(4));
    assert_eq!((sink.target.current().pool.counts(), server.connections()), ((4, 0), 4));
    server.hang_up().await;
    sink.warm(soon(2));
    until(|| sink.target.current().pool.counts().1 == 0 && server.connections() == 6).await;
}

/// A server that closes each connection needs one for each job, however short the jobs are; one that keeps them does not.
#[tokio::test]
async fn a_server_that_closes_each_connection_gets_one_for_each_job() {
    let (keeps, closes) = (Server::always(200).await, Server::closing().await);
    for (server, expected) in [(keeps, 2), (closes, 5)] {
        let sink = sink(&server.base);
        let ready = || sink.target.current().pool.counts();
        for _ in 0..3 {
            delivered(sink.send(&job()).await);
        }
        sink.warm(Soon { jobs: 5, at_once: 2 });
        until(|| ready().1 == 0 && ready().0 > 0).await;
        assert_eq!(ready(), (expected, 0));
    }
}

#[tokio::test]
async fn a_send_uses_the_spare_that_is_being_opened() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    sink.warm(soon(1));
    delivered(sink.send(&job()).await);
    assert_eq!((sink.target.current().pool.counts(), server.connections()), ((1, 0), 1));
}

#[tokio::test]
async fn a_spare_is_beyond_those_in_use() {
    let gate = Arc::new(Notify::new());
    let open = Arc::clone(&gate);
    let server = Server::start(move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            empty(200)
        }
    })
    .await;
    let sink = Arc::new(sink(&server.base));
    let send = || {
        let sink = Arc::clone(&sink);
        tokio::spawn(async move { delivered(sink.send(&job()).await) })
    };
    let mut sends = vec![send(), send()];
    until(|| server.seen().len() == 2).await;
    with_spare(&sink).await;
    sends.push(send());
    until(|| server.seen().len() == 3).await;
    assert_eq!((sink.target.current().pool.counts(), server.connections()), ((0, 0), 3));
    for send in sends {
        open.notify_one();
        send.await.expect("no panic");
    }
    assert_eq!((sink.target.current().pool.counts(), server.connections()), ((3, 0), 3));
}

#[tokio::test]
async fn a_spare_that_the_server_has_closed() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    with_spare(&sink).await;
    server.hang_up().await;
    delivered(sink.send(&job()).await);
    assert_eq!((server.seen().len(), server.connections()), (1, 2));
    server.hang_up().await;
    with_spare(&sink).await;
    assert_eq!((server.open(), server.connections()), (1, 3));
}

#[tokio::test]
async fn a_connection_that_the_server_closed_between_two_sends() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    for connections in 1..=3 {
        delivered(sink.send(&Job { content: Bytes::from_static(b"once").into(), ..job() }).await);
        assert_eq!((server.seen().len(), server.connections()), (connections, connections));
        server.hang_up().await;
    }
}

#[tokio::test]
async fn a_request_that_was_written_is_not_sent_again() {
    let server =
        Server::start(move |n| async move { if n == 0 { empty(200) } else { future::pending().await } })
            .await;
    let sink = sink(&server.base);
    delivered(sink.send(&job()).await);
    let job = job();
    let close = async {
        until(|| server.seen().len() == 2).await;
        server.hang_up().await;
    };
    let (outcome, ()) = tokio::join!(sink.send(&job), close);
    let (reason, detail) = retry(outcome);
    assert_eq!((reason, server.seen().len(), server.connections()), ("connection", 2, 1), "{detail}");
}

#[tokio::test]
async fn every_stale_connection_is_left_for_a_new_one() {
    let gate = Arc::new(Notify::new());
    let open = Arc::clone(&gate);
    let server = Server::start(move |n| {
        let gate = Arc::clone(&gate);
        async move {
            if n < 3 {
                gate.notified().await;
            }
            empty(200)
        }
    })
    .await;
    let sink = sink(&server.base);
    let job = job();
    let release = async {
        until(|| server.seen().len() == 3).await;
        open.notify_waiters();
    };
    let (first, second, third, ()) = tokio::join!(sink.send(&job), sink.send(&job), sink.send(&job), release);
    for outcome in [first, second, third] {
        delivered(outcome);
    }
    assert_eq!(sink.target.current().pool.counts(), (3, 0));
    server.hang_up().await;
    delivered(sink.send(&job).await);
    assert_eq!(
        (server.seen().len(), server.connections(), sink.target.current().pool.counts()),
        (4, 4, (1, 0))
    );
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    with_spare(&sink).await;
    // The connection is too old to wait for a job, but not for a job that is there.
    pass(POOL_IDLE - MIN_WARM_TIME).await;
    sink.warm(soon(1));
    until(|| sink.target.current().pool.counts() == (2, 0)).await;
    pass(MIN_WARM_TIME).await;
    until(|| server.open() == 1).await;
    assert_eq!(sink.target.current().pool.counts(), (1, 0));
    pass(POOL_IDLE).await;
    until(|| server.open() == 0).await;
    delivered(sink.send(&job()).await);
    assert_eq!((sink.target.current().pool.counts(), server.connections()), ((1, 0), 3));
    drop(sink);
    until(|| server.open() == 0).await;
}

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

fn counted(host: &str) -> std::io::Result<Vec<SocketAddr>> {
    LOOKUPS.fetch_add(1, Ordering::SeqCst);
    guard::system(host)
}

#[tokio::test]
async fn a_spare_to_a_dead_port_is_not_tried_again_at_once() {
    let (_silent, address) = silent();
    let options = options(&format!("http://localhost:{}/", address.port()));
    let sink = HttpSink::with(options, counted).expect("a sink");
    for tries in 1..=3 {
        sink.warm(soon(1));
        assert_eq!(sink.target.current().pool.counts(), (0, 1));
        until(|| sink.target.current().pool.counts() == (0, 0)).await;
        for _ in 0..100 {
            sink.warm(soon(1));
        }
        assert_eq!((sink.target.current().pool.counts(), LOOKUPS.load(Ordering::SeqCst)), ((0, 0), tries));
        pass(WARM_RETRY).await;
    }
    unreachable(sink.send(&job()).await);
}

#[tokio::test]
async fn a_send_that_is_given_up_leaves_its_connection() {
    let server = Server::always(200).await;
    let sink = sink(&server.base);
    let job = job();
    tokio::select! {
        biased;
        outcome = sink.send(&job) => panic!("{outcome:?}"),
        () = future::ready(()) => {}
    }
    until(|| sink.target.current().pool.counts() == (1, 0)).await;
    delivered(sink.send(&job).await);
    assert_eq!((server.seen().len(), server.connections()), (1, 1));
}

#[tokio::test]
async fn a_server_that_closes_every_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}/", listener.local_addr().expect("an address"));
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    let close = tokio::spawn(async move {
        loop {
            drop(listener.accept().await.expect("a connection"));
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    match sink(&base).send(&job()).await {
        // The request or the end of the connection may come first.
        Outcome::Retry { reason: "connection", .. } | Outcome::Unreachable { .. } => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    close.abort();
}
