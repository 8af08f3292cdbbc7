//! The beginning of an answer that is no delivery, for the dead letter.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::body::LONGEST_DRAIN;
use super::server::{Body, full, streamed};
use super::*;
use crate::sink::MAX_EXCERPT;

/// What was kept of the answer to an attempt that failed.
fn kept(outcome: Outcome) -> Option<Response> {
    match outcome {
        Outcome::Throttled { response, .. }
        | Outcome::Retry { response, .. }
        | Outcome::Dead { response, .. } => response,
        other => panic!("{other:?}"),
    }
}

fn excerpt(outcome: Outcome) -> Bytes {
    kept(outcome).map(|response| response.excerpt).unwrap_or_default()
}

/// A server that gives one answer, and a sink with this time-out.
async fn once(response: hyper::Response<Body>, timeout: Duration) -> (Server, HttpSink) {
    let response = Mutex::new(Some(response));
    let server =
        Server::start(move |_| future::ready(response.lock().expect("no panic").take().expect("one"))).await;
    let sink = HttpSink::new(HttpOptions { timeout, ..options(&server.base) }).expect("a sink");
    (server, sink)
}

#[tokio::test]
async fn what_failed_keeps_the_beginning_of_its_answer() {
    for status in [404, 422, 429, 500, 503, 302] {
        let server = Server::start(move |n| future::ready(full(status, vec![b'x'; n * 1000]))).await;
        let sink = sink(&server.base);
        for length in [0, 1000, MAX_EXCERPT, MAX_EXCERPT] {
            let outcome = sink.send(&job()).await;
            let Some(Response { status: reported, headers, body, excerpt }) = kept(outcome) else {
                assert_eq!(length, 0, "{status}");
                continue;
            };
            assert_eq!((reported, &excerpt[..]), (status, &vec![b'x'; length][..]));
            assert!(headers.is_empty() && body.is_empty(), "nobody waits for a reply");
        }
        assert_eq!(server.connections(), 1, "a body that is read leaves the connection to the next job");
    }
}

#[tokio::test]
async fn bytes_stay_as_they_are_and_no_character_is_cut() {
    let bodies = [b"\xff\x00\x1b[2J".to_vec(), vec![0xfe; 3000], format!("x{}", "é".repeat(3000)).into()];
    let expected = [bodies[0].clone(), vec![0xfe; MAX_EXCERPT], bodies[2][..MAX_EXCERPT - 1].to_vec()];
    let server = Server::start(move |n| future::ready(full(400, bodies[n].clone()))).await;
    let sink = sink(&server.base);
    for expected in expected {
        assert_eq!(excerpt(sink.send(&job()).await), expected);
    }
}

#[tokio::test]
async fn a_delivery_keeps_nothing() {
    let server = Server::start(|_| future::ready(full(200, "done"))).await;
    let sink = sink(&server.base);
    assert_eq!(delivered(sink.send(&job()).await), Response { status: 200, ..Response::default() });
    let Response { body, excerpt, .. } = delivered(sink.send(&with_reply()).await);
    assert_eq!((&body[..], &excerpt[..]), (&b"done"[..], &b""[..]));
}

#[tokio::test]
async fn a_reply_and_a_dead_letter_have_the_same_answer() {
    let server = Server::start(|_| future::ready(full(418, vec![b'x'; 3000]))).await;
    let Response { status, body, excerpt, .. } =
        kept(sink(&server.base).send(&with_reply()).await).expect("a response");
    assert_eq!((status, body.len(), &excerpt[..]), (418, 3000, &[b'x'; MAX_EXCERPT][..]));
}

#[tokio::test]
async fn nothing_is_kept_where_that_is_not_wished() {
    let server = Server::start(|_| future::ready(full(500, "secret"))).await;
    let sink = HttpSink::new(HttpOptions { keep_response: false, ..options(&server.base) }).expect("a sink");
    assert_eq!(kept(sink.send(&job()).await), None);
    let Response { body, excerpt, .. } = kept(sink.send(&with_reply()).await).expect("the reply's");
    assert_eq!((&body[..], &excerpt[..]), (&b"secret"[..], &b""[..]));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_success_that_throttles_keeps_what_it_says() {
    let body = r#"{"code": "slow_down"}"#;
    let server = Server::start(move |_| future::ready(full(200, body))).await;
    for keep_response in [true, false] {
        let options = HttpOptions { keep_response, ..options(&server.base) };
        let (sink, policy) = (HttpSink::new(options).expect("a sink"), slow_down());
        let expected = if keep_response { body } else { "" };
        assert_eq!(excerpt(sink.send_by(&job(), &policy).await), expected.as_bytes());
        let Response { body: reply, excerpt, .. } =
            kept(sink.send_by(&with_reply(), &policy).await).expect("the reply's");
        assert_eq!((&reply[..], &excerpt[..]), (body.as_bytes(), expected.as_bytes()));
    }
}

/// The read of a body ends with the time-out, or with the time that unwanted bodies have, and the connection is
/// closed.
#[tokio::test]
async fn a_slow_body_gives_what_came_in_time() {
    for timeout in [LONGEST_DRAIN / 2, SECOND * 3600] {
        let (pieces, response) = streamed(503);
        pieces.send(Bytes::from_static(b"first")).expect("open");
        let (server, sink) = once(response, timeout).await;
        let outcome = send_and_pass(&server, &sink, &job(), timeout.min(LONGEST_DRAIN)).await;
        assert_eq!(excerpt(outcome), &b"first"[..]);
        until(|| server.open() == 0).await;
        drop(pieces);
    }
}

/// These bodies never end, so that a sink that waited for their ends would wait for ever.
#[tokio::test]
async fn no_more_is_read_of_a_body_without_end() {
    let (pieces, response) = streamed(500);
    pieces.send(Bytes::from(vec![b'x'; 200_000])).expect("open");
    let (server, sink) = once(response, Duration::from_secs(3600)).await;
    assert_eq!(excerpt(sink.send(&job()).await), vec![b'x'; MAX_EXCERPT]);
    until(|| server.open() == 0).await;
    drop(pieces);

    let (pieces, mut response) = streamed(500);
    response.headers_mut().insert("content-length", "99999999999".parse().expect("a value"));
    pieces.send(Bytes::from(vec![b'y'; 2000])).expect("open");
    let (server, sink) = once(response, Duration::from_secs(3600)).await;
    assert_eq!(excerpt(sink.send(&job()).await), vec![b'y'; MAX_EXCERPT]);
    until(|| server.open() == 0).await;
    drop(pieces);
}

#[tokio::test]
async fn a_body_that_breaks_off_gives_what_was_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}/", listener.local_addr().expect("an address"));
    let serve = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        stream.read_exact(&mut [0; 16]).await.expect("a request");
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 100\r\n\r\nno such";
        stream.write_all(answer).await.expect("an answer");
        // An end in order, with the rest of the request read: a reset could take the answer back.
        stream.shutdown().await.expect("an end");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.expect("the end of the request");
    });
    assert_eq!(excerpt(sink(&base).send(&job()).await), &b"no such"[..]);
    serve.await.expect("no panic");
}
