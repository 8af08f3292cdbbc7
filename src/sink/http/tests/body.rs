//! The handling of the answer's body and headers.

use super::server::full;
use super::*;

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(|n| future::ready(full(200, vec![b'x'; n * 6_000]))).await;
    let sink = sink(&server.base);
    for _ in 0..5 {
        assert_eq!(delivered(sink.send(&job()).await), Response { status: 200, ..Response::default() });
        delivered(sink.send(&with_reply()).await);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_reply_keeps_the_response() {
    let server = Server::start(|_| {
        let mut response = full(418, "short and stout");
        let headers = response.headers_mut();
        headers.insert("X-Pot", "tea".parse().expect("a value"));
        headers.insert("set-cookie", "a=b".parse().expect("a value"));
        future::ready(response)
    })
    .await;
    let Outcome::Dead { response: Some(response), .. } = sink(&server.base).send(&with_reply()).await else {
        panic!("no response")
    };
    assert_eq!((response.status, &response.body[..]), (418, &b"short and stout"[..]));
    assert!(response.headers.contains(&pair("x-pot", "tea")), "{:?}", response.headers);
    assert!(!response.headers.iter().any(|(name, _)| name == "set-cookie"));
}

#[tokio::test]
async fn a_reply_has_bounds() {
    let server = Server::start(|_| {
        let mut response = full(200, vec![b'x'; 5_000_000]);
        for number in 0..90 {
            let name: hyper::header::HeaderName = format!("x-{number}").parse().expect("a name");
            response.headers_mut().insert(name, "y".repeat(200).parse().expect("a value"));
        }
        future::ready(response)
    })
    .await;
    let response = delivered(sink(&server.base).send(&with_reply()).await);
    assert_eq!(response.body.len(), 64 * 1024);
    let bytes: usize = response.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!((7000..=8192).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn a_success_may_mean_that_the_downstream_throttles() {
    let bodies = [r#"{"code": "slow_down"}"#, r#"{"code": "done"}"#, "slow_down", r#"{"code": "slow_down""#];
    let server = Server::start(move |n| {
        let mut response = full(if n == 4 { 404 } else { 200 }, bodies[n % bodies.len()]);
        response.headers_mut().insert("retry-after", "7".parse().expect("a value"));
        future::ready(response)
    })
    .await;
    let (sink, policy) = (sink(&server.base), slow_down());
    let Outcome::Throttled { status: 200, after, response, .. } = sink.send_by(&job(), &policy).await else {
        panic!("it throttles")
    };
    let Response { headers, body, .. } = response.expect("what it says, for the dead letter");
    assert_eq!((after, headers, body), (Some(Duration::from_secs(7)), Vec::new(), Bytes::new()));
    for _ in 0..3 {
        assert_eq!(
            delivered(sink.send_by(&job(), &policy).await).body,
            Bytes::new(),
            "nobody waits for a reply"
        );
    }
    assert!(
        matches!(sink.send_by(&job(), &policy).await, Outcome::Dead { status: Some(404), .. }),
        "that is no success"
    );
    assert_eq!(server.connections(), 1, "a body that was read leaves the connection to the next job");
}

#[tokio::test]
async fn a_body_that_is_longer_than_what_is_read_throttles_nobody() {
    const READ: usize = 64 * 1024;
    let body = |more: usize| format!(r#"{{"code": "slow_down", "more": "{}"}}"#, "x".repeat(more));
    let fits = READ - body(0).len();
    let server = Server::start(move |n| {
        let bodies = [fits, fits + 1, 5_000_000, fits];
        future::ready(full(200, body(bodies[n % bodies.len()])))
    })
    .await;
    let (sink, policy) = (sink(&server.base), slow_down());
    assert!(
        matches!(sink.send_by(&job(), &policy).await, Outcome::Throttled { status: 200, .. }),
        "that is read whole"
    );
    // The part of the others that was read is no whole JSON text, also if its beginning is one. So their statuses count.
    for _ in 0..2 {
        delivered(sink.send_by(&job(), &policy).await);
    }
    assert!(
        matches!(sink.send_by(&job(), &policy).await, Outcome::Throttled { .. }),
        "the next job is judged by its own"
    );
}
