//! Answers whose bodies have content codings: wherever a body is read, it is read as it was meant.

use std::io::Write as _;

use super::server::{Body, full};
use super::*;

fn gzip(body: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

fn coded(status: u16, coding: &'static str, body: impl Into<Bytes>) -> hyper::Response<Body> {
    let mut response = full(status, body);
    response.headers_mut().insert("content-encoding", coding.parse().expect("a value"));
    response
}

const THROTTLES: &str = r#"{"code": "slow_down"}"#;

#[tokio::test]
async fn rules_read_what_was_meant() {
    let answers = [
        ("gzip", gzip(THROTTLES)),
        ("gzip", gzip(r#"{"code": "done"}"#)),
        ("gzip", b"done".to_vec()),
        ("gzip, zstd", zstd::encode_all(&gzip(THROTTLES)[..], 1).expect("memory")),
        // Fields that are wrong do not hide what a plain body says.
        ("gzip", THROTTLES.into()),
        ("UTF-8", THROTTLES.into()),
    ];
    let count = answers.len();
    let server = Server::start(move |n| future::ready(coded(200, answers[n].0, answers[n].1.clone()))).await;
    let (sink, policy) = (sink(&server.base), slow_down());
    let throttled = |outcome: Outcome| match outcome {
        Outcome::Throttled { status: 200, response, .. } => response.expect("an excerpt").excerpt,
        other => panic!("{other:?}"),
    };
    assert_eq!(throttled(sink.send_by(&job(), &policy).await), THROTTLES);
    delivered(sink.send_by(&job(), &policy).await);
    // It is not what its field says: it stays as it is, its status counts, and that is noted.
    let Outcome::Delivered(Receipt { remark: Some(remark), .. }) = sink.send_by(&job(), &policy).await else {
        panic!("delivered, with a remark")
    };
    assert!(remark.contains("cannot be decoded as gzip"), "{remark}");
    for _ in 3..count {
        assert_eq!(throttled(sink.send_by(&job(), &policy).await), THROTTLES);
    }
    assert_eq!(server.connections(), 1);
}

/// As that to HEAD, which has the fields of the body that it leaves out.
#[tokio::test]
async fn an_answer_without_a_body_needs_no_decoder() {
    let server =
        Server::start(|n| future::ready(coded([200, 204, 200][n], ["gzip", "gzip", "aws-chunked"][n], "")))
            .await;
    let sink = sink(&server.base);
    for method in ["HEAD", "POST", "POST"] {
        let request = Request { method, ..job().request };
        let outcome = sink.send(&Job { request, ..with_reply() }).await;
        let Outcome::Delivered(Receipt { response, remark: None, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(response.body.is_empty());
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_reply_is_decoded_and_says_nothing_of_codings() {
    let long = "0123456789".repeat(20_000);
    let bodies = [gzip("done"), gzip(&long), b"done".to_vec(), Vec::new()];
    let server = Server::start(move |n| future::ready(coded(200, "gzip", bodies[n].clone()))).await;
    let sink = sink(&server.base);
    let has = |response: &Response, name: &str| response.headers.iter().any(|(other, _)| other == name);
    let response = delivered(sink.send(&with_reply()).await);
    assert_eq!(&response.body[..], b"done");
    assert!(!has(&response, "content-encoding") && !has(&response, "content-length"), "{response:?}");
    let response = delivered(sink.send(&with_reply()).await);
    assert_eq!(&response.body[..], &long.as_bytes()[..64 * 1024]);
    // What is no gzip, or nothing at all, stays as it is, with its fields.
    for body in ["done", ""] {
        let response = delivered(sink.send(&with_reply()).await);
        assert_eq!(&response.body[..], body.as_bytes());
        assert!(has(&response, "content-encoding") && has(&response, "content-length"), "{response:?}");
    }
}

#[tokio::test]
async fn a_dead_letter_has_the_beginning_of_what_was_meant() {
    let long = "no such invoice ".repeat(2_000);
    let sent = (gzip(&long), b"no gzip".to_vec());
    let server = Server::start(move |n| {
        let body = if n < 2 { sent.0.clone() } else { sent.1.clone() };
        future::ready(coded(422, "gzip", body))
    })
    .await;
    let sink = sink(&server.base);
    let dead = |outcome: Outcome| match outcome {
        Outcome::Dead { detail, response: Some(response), .. } => (detail, response.excerpt),
        other => panic!("{other:?}"),
    };
    for job in [job(), with_reply()] {
        let (detail, excerpt) = dead(sink.send(&job).await);
        assert_eq!(excerpt, &long.as_bytes()[..crate::sink::MAX_EXCERPT]);
        assert!(!detail.contains("decoded"), "{detail}");
    }
    let (detail, excerpt) = dead(sink.send(&job()).await);
    assert_eq!(&excerpt[..], b"no gzip");
    assert!(detail.contains("taken as it is: it cannot be decoded as gzip"), "{detail}");
    assert_eq!(server.connections(), 1);
}

/// 1 GiB of zeros, of which nothing is held but what is kept.
#[tokio::test]
async fn a_bomb_is_an_answer_like_any_other() {
    let zeros = zstd::encode_all(std::io::Read::take(std::io::repeat(0), 1 << 30), 1).expect("memory");
    assert!(zeros.len() > 64 * 1024 || zeros.len() > 1024, "{}", zeros.len());
    let server =
        Server::start(move |n| future::ready(coded(if n == 0 { 200 } else { 422 }, "zstd", zeros.clone())))
            .await;
    let sink = sink(&server.base);
    assert_eq!(delivered(sink.send(&with_reply()).await).body, vec![0; 64 * 1024]);
    let Outcome::Dead { response: Some(response), .. } = sink.send(&job()).await else { panic!("dead") };
    assert_eq!(response.excerpt, vec![0; crate::sink::MAX_EXCERPT]);
}
