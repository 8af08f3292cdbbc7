//! Successes whose bodies take long, break off, or never end.

use tokio::io::AsyncWriteExt as _;

use super::server::{Body, full, streamed};
use super::*;

/// A server that gives one answer, and a sink with this time-out.
async fn once(response: hyper::Response<Body>, timeout: Duration) -> (Server, HttpSink) {
    let response = Mutex::new(Some(response));
    let server =
        Server::start(move |_| future::ready(response.lock().expect("no panic").take().expect("one"))).await;
    let sink = HttpSink::new(HttpOptions { timeout, ..options(&server.base) }).expect("a sink");
    (server, sink)
}

fn receipt(outcome: Outcome) -> Receipt {
    let Outcome::Delivered(receipt) = outcome else { panic!("{outcome:?}") };
    receipt
}

fn with_type(mut response: hyper::Response<Body>, kind: &'static str) -> hyper::Response<Body> {
    response.headers_mut().insert("content-type", kind.parse().expect("a value"));
    response
}

#[tokio::test]
async fn a_success_is_read_to_its_end_however_long_it_takes_and_holds() {
    for job in [job(), with_reply()] {
        let (pieces, response) = streamed(200);
        let (server, sink) = once(response, PATIENT).await;
        let first = vec![b'x'; 40_000];
        pieces.send(first.clone().into()).expect("open");
        let send = sink.send(&job);
        let feed = async {
            until(|| server.seen().len() == 1).await;
            // More than is kept, in pieces each of which has been taken before the next one comes.
            for _ in 0..100 {
                settle().await;
                pieces.send(first.clone().into()).expect("it is still read");
            }
            drop(pieces);
        };
        let (outcome, ()) = tokio::join!(send, feed);
        let Receipt { response, remark, .. } = receipt(outcome);
        let kept = if job.reply.is_some() { 64 * 1024 } else { 0 };
        assert_eq!((response.status, response.body.len(), remark), (200, kept, None));
        settle().await;
        assert_eq!(server.open(), 1, "the connection is ready for the next job");
    }
}

#[tokio::test]
async fn a_success_that_has_not_ended_at_the_time_out_is_delivered_and_noted() {
    for (job, kept) in [(job(), ""), (with_reply(), "first")] {
        let (pieces, response) = streamed(200);
        let (server, sink) = once(response, SECOND * 3).await;
        pieces.send(Bytes::from_static(b"first")).expect("open");
        let Receipt { response, remark, .. } = receipt(send_and_pass(&server, &sink, &job, SECOND * 3).await);
        assert_eq!(&response.body[..], kept.as_bytes());
        assert!(remark.is_some_and(|remark| remark.contains("had not ended")), "it is noted");
        until(|| server.open() == 0).await;
        drop(pieces);
    }
}

/// An answer over a socket, after which the connection ends in order, or by a reset, which may take the answer back.
async fn over_a_socket(answer: &'static [u8], is_reset: bool) -> (Outcome, Outcome) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}/", listener.local_addr().expect("an address"));
    let serve = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            stream.write_all(answer).await.expect("an answer");
            if is_reset {
                stream.set_zero_linger().expect("a socket");
            }
        }
    });
    let sink = sink(&base);
    let outcomes = (sink.send(&job()).await, sink.send(&with_reply()).await);
    serve.await.expect("no panic");
    outcomes
}

#[tokio::test]
async fn a_success_that_breaks_off_is_no_answer() {
    for (answer, is_reset) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort"[..], false),
        (b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n", false),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\nzz\r\n", false),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", true),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nnot the end", true),
    ] {
        let (one, other) = over_a_socket(answer, is_reset).await;
        for outcome in [one, other] {
            let shown = format!("{outcome:?}");
            let Outcome::Retry { reason: "connection", status: None, detail, response: None, .. } = outcome
            else {
                panic!("{shown} of {}", String::from_utf8_lossy(answer))
            };
            assert!(is_reset || detail.contains("broke off"), "{detail}");
        }
    }
}

#[tokio::test]
async fn what_ends_with_its_connection_has_come_to_its_end() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it"[..],
        b"HTTP/1.0 200 OK\r\n\r\nall of it",
        // A stream of events has no end that could be missed.
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n9\r\nall of it\r\n",
    ] {
        let (one, other) = over_a_socket(answer, false).await;
        assert_eq!((receipt(one).response.status, &receipt(other).response.body[..]), (200, &b"all of it"[..]));
    }
}

/// Another status is the answer, also if its body breaks off.
#[tokio::test]
async fn a_refusal_that_breaks_off_is_an_answer() {
    let answer = b"HTTP/1.1 422 Unprocessable\r\ncontent-length: 100\r\n\r\nshort";
    let (one, other) = over_a_socket(answer, false).await;
    for outcome in [one, other] {
        assert!(matches!(outcome, Outcome::Dead { status: Some(422), .. }), "{outcome:?}");
    }
}

/// A stop has a job done that is as good as done, and does not wait for events.
#[tokio::test]
async fn a_stop_has_no_answer_waited_for_that_is_a_success() {
    for (kind, ends_early) in [("text/event-stream", true), ("application/json", false)] {
        let (pieces, response) = streamed(200);
        let (server, sink) = once(with_type(response, kind), PATIENT).await;
        pieces.send(Bytes::from_static(b"data: 1\n\n")).expect("open");
        let (closing, job, answers, peer) =
            (Closing::default(), job(), AnswerPolicy::default(), Peer::default());
        let mut sent = std::pin::pin!(sink.send_until(&job, (&answers, &peer), &closing));
        let mut wait_a_little = async || {
            tokio::select! {
                outcome = &mut sent => Some(outcome),
                () = async { until(|| server.seen().len() == 1).await; settle().await } => None,
            }
        };
        assert!(wait_a_little().await.is_none(), "{kind}: it still flows");
        closing.end_streams();
        let early = wait_a_little().await;
        assert_eq!(early.is_some(), ends_early, "{kind}");
        let outcome = match early {
            Some(outcome) => outcome,
            None => {
                closing.end_answers();
                sent.await
            }
        };
        assert_eq!(receipt(outcome).response.status, 200);
        drop(pieces);
    }
}

#[tokio::test]
async fn a_rule_by_the_head_needs_no_end_of_the_body() {
    let header = crate::sink::HeaderMatch { name: "x-throttled".to_owned(), equals: None };
    let rule =
        AnswerRule { statuses: None, header: Some(header), body: None, is: Meaning::Throttled, wait: None };
    let policy = AnswerPolicy { rules: [rule].into(), ..AnswerPolicy::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}/", listener.local_addr().expect("an address"));
    let serve = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        stream.read_u8().await.expect("a request");
        let answer = b"HTTP/1.1 200 OK\r\nx-throttled: 1\r\ncontent-length: 100\r\n\r\nshort";
        stream.write_all(answer).await.expect("an answer");
        stream.shutdown().await.expect("an end");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.expect("the end of the request");
    });
    let outcome = sink(&base).send_by(&job(), &policy).await;
    let Outcome::Throttled { status: 200, response, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(&response.expect("what came of it").excerpt[..], b"short");
    serve.await.expect("no panic");
}

/// A field that is folded over several lines is one field.
#[tokio::test]
async fn folded_lines_are_unfolded() {
    let answer = b"HTTP/1.1 200 OK\r\nx-long: one,\r\n two,\r\n\tthree\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let (one, other) = over_a_socket(answer, false).await;
    assert_eq!(receipt(one).response.status, 200);
    let headers = receipt(other).response.headers;
    let (_, value) = headers.iter().find(|(name, _)| name == "x-long").expect("the field");
    assert_eq!(value.split_whitespace().collect::<Vec<_>>(), ["one,", "two,", "three"]);
    assert!(!value.contains(['\r', '\n']), "{value:?}");
}

#[tokio::test]
async fn fields_may_hold_utf_8_both_ways() {
    let server = Server::start(|_| {
        let mut response = full(200, "");
        let value = hyper::header::HeaderValue::from_bytes("Büro 東京".as_bytes()).expect("a value");
        response.headers_mut().insert("x-office", value);
        future::ready(response)
    })
    .await;
    let fixed = HttpOptions { headers: vec![pair("x-fixed", "Größe")], ..options(&server.base) };
    let job = Job { reply: with_reply().reply, ..with_headers(vec![pair("x-own", "naïve")]) };
    let response = delivered(HttpSink::new(fixed).expect("a sink").send(&job).await);
    assert!(response.headers.contains(&pair("x-office", "Büro 東京")), "{:?}", response.headers);
    let seen = server.only();
    let bytes = |name: &str| seen.headers.get(name).map(|value| value.as_bytes().to_vec());
    assert_eq!(bytes("x-fixed"), Some("Größe".into()));
    assert_eq!(bytes("x-own"), Some("naïve".into()));
}
