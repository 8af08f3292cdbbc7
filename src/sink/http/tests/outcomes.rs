//! The outcome of each kind of answer, and of none.

use super::*;

#[tokio::test]
async fn statuses_by_class() {
    let next = Arc::new(Mutex::new(200));
    let status = Arc::clone(&next);
    let server = Server::start(move |_| future::ready(empty(*status.lock().expect("no panic")))).await;
    let sink = sink(&server.base);
    for (status, class) in [
        (200, "delivered"),
        (201, "delivered"),
        (202, "delivered"),
        (204, "delivered"),
        (299, "delivered"),
        (408, "retry"),
        (425, "retry"),
        (429, "throttled"),
        (500, "retry"),
        (501, "retry"),
        (502, "retry"),
        (503, "retry"),
        (504, "retry"),
        (599, "retry"),
        (300, "dead"),
        (301, "dead"),
        (302, "dead"),
        (304, "dead"),
        (308, "dead"),
        (400, "dead"),
        (401, "unauthorized"),
        (403, "dead"),
        (404, "dead"),
        (409, "dead"),
        (410, "dead"),
        (422, "dead"),
        (499, "dead"),
        (600, "dead"),
    ] {
        *next.lock().expect("no panic") = status;
        let outcome = sink.send(&job()).await;
        let (found, code) = match outcome {
            Outcome::Delivered(Receipt { response, rest: None, .. }) => ("delivered", Some(response.status)),
            Outcome::Retry { reason: "status", status, response: None, after: None, detail } => {
                assert!(detail.contains(&code(status)), "{detail}");
                ("retry", status)
            }
            Outcome::Throttled { status, response: None, after: None, detail, is_final: false } => {
                assert!(detail.contains(&status.to_string()), "{detail}");
                ("throttled", Some(status))
            }
            Outcome::Dead { reason: Reason::Status, status, response: None, detail } => {
                assert!(detail.contains(&code(status)), "{detail}");
                ("dead", status)
            }
            Outcome::Unauthorized { status, response: None, .. } => ("unauthorized", Some(status)),
            other => panic!("{status}: {other:?}"),
        };
        assert_eq!((found, code), (class, Some(status)));
    }
}

fn code(status: Option<u16>) -> String {
    status.expect("a status").to_string()
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let target = Server::always(200).await;
    let location = target.base.clone();
    let server = Server::start(move |_| {
        let mut response = empty(307);
        response.headers_mut().insert("location", location.parse().expect("a value"));
        future::ready(response)
    })
    .await;
    let Outcome::Dead { reason, detail, status, .. } = sink(&server.base).send(&job()).await else {
        panic!("not dead")
    };
    assert_eq!((reason, status), (Reason::Status, Some(307)));
    assert!(detail.contains("redirects are not followed"), "{detail}");
    assert_eq!((server.seen().len(), target.connections()), (1, 0));
}

#[tokio::test]
async fn a_429_and_a_503_with_retry_after_ask_all_callers_to_slow_down() {
    for (code, header, throttles) in [
        (429, Some("7"), true),
        (503, Some("7"), true),
        (500, Some("7"), false),
        (408, Some("7"), false),
        (429, None, true),
        (429, Some("soon"), true),
        (503, None, false),
        (503, Some("soon"), false),
    ] {
        let server = Server::start(move |_| {
            let mut response = empty(code);
            if let Some(header) = header {
                response.headers_mut().insert("retry-after", header.parse().expect("a value"));
            }
            future::ready(response)
        })
        .await;
        let found = match sink(&server.base).send(&job()).await {
            Outcome::Throttled { after, status, .. } => (after, Some(status), true),
            Outcome::Retry { after, status, .. } => (after, status, false),
            other => panic!("{other:?}"),
        };
        let asked = (header == Some("7")).then_some(Duration::from_secs(7));
        assert_eq!(found, (asked, Some(code), throttles));
    }
}

#[tokio::test]
async fn no_answer_in_time() {
    let server = Server::start(|_| future::pending()).await;
    let short = HttpOptions { timeout: SECOND * 3, ..options(&server.base) };
    let sink = HttpSink::new(short).expect("a sink");
    let job = to("a?token=s3cret");
    let (reason, detail) = retry(send_and_pass(&server, &sink, &job, SECOND * 3).await);
    assert_eq!(reason, "timeout", "{detail}");
    assert!(!detail.contains("s3cret") && !detail.contains("http://"), "{detail}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_port_where_nobody_listens() {
    let (_silent, address) = silent();
    let base = format!("http://{address}/");
    let detail = unreachable(sink(&base).send(&to("a?token=s3cret")).await);
    assert!(detail.contains("refused") && !detail.contains("s3cret"), "{detail}");
}

#[tokio::test]
async fn a_connection_that_breaks() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}/", listener.local_addr().expect("an address"));
    let close = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        // The request has arrived, and it gets no answer.
        stream.read_exact(&mut [0; 16]).await.expect("a request");
        drop(stream);
        listener
    });
    let (reason, detail) = retry(sink(&base).send(&job()).await);
    assert_eq!(reason, "connection", "{detail}");
    close.await.expect("no panic");
}

#[tokio::test]
async fn a_server_that_speaks_no_tls() {
    let server = Server::always(200).await;
    match HttpSink::new(options(&server.base.replace("http:", "https:"))) {
        Ok(sink) => {
            let detail = unreachable(sink.send(&job()).await);
            assert!(detail.contains("does not speak TLS on this port"), "{detail}");
        }
        // The machine has no certificate authorities, without which https does not work.
        Err(error) => assert!(error.to_string().contains("ca-certificates"), "{error}"),
    }
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn the_host_that_an_attempt_went_to_is_noted_and_nothing_more() {
    let (_silent, address) = silent();
    let sink = sink(&format!("http://ann:p%40ss@{address}/secret/"));
    let (outcome, peer) = sink.send_and_tell(&to("things?token=s3cret")).await;
    unreachable(outcome);
    assert_eq!(peer, address.to_string());
    for (base, expected) in [
        ("https://ann:pw@api.example.com/v1/?x=1", "api.example.com:443"),
        ("http://api.example.com/", "api.example.com:80"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ] {
        let base = url::Url::parse(base).expect("a URL");
        assert_eq!(super::super::connect::address(&base), expected);
    }
}
