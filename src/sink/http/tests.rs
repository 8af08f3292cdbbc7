use std::future;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use crate::job::{Content, Cost, JobLane, Reason, ReplyTo, Request, Times};
use crate::sink::{AnswerPolicy, AnswerRule, BodyMatch, Closing, Meaning, Peer, Receipt, Response, Statuses};

mod age;
mod body;
mod coded;
mod excerpt;
mod oauth2;
mod outcomes;
mod proxy;
mod secrets;
mod server;
mod streams;
mod tls;
mod upload;
mod warm;

use server::{Server, empty};

const PATIENT: Duration = Duration::from_secs(60);

impl HttpSink {
    /// Releases a job that has no slot to miss.
    async fn send(&self, job: &Job) -> Outcome {
        self.send_by(job, &AnswerPolicy::default()).await
    }

    /// [`HttpSink::send`], where answers mean what this policy says.
    async fn send_by(&self, job: &Job, answers: &AnswerPolicy) -> Outcome {
        self.send_to(job, answers, &Peer::default()).await
    }

    /// [`HttpSink::send_by`], which notes the host there.
    async fn send_to(&self, job: &Job, answers: &AnswerPolicy, peer: &Peer) -> Outcome {
        self.send_until(job, (answers, peer), &Closing::default()).await
    }

    /// [`HttpSink::send_to`], until its dispatcher closes.
    async fn send_until(
        &self,
        job: &Job,
        (answers, peer): (&AnswerPolicy, &Peer),
        closing: &Closing,
    ) -> Outcome {
        self.release(job, Handover { look: &|| true, answers, repeats_unanswered: false, peer, closing })
            .await
    }

    /// The outcome of a job, and the host that it went to.
    async fn send_and_tell(&self, job: &Job) -> (Outcome, String) {
        let peer = Peer::default();
        let outcome = self.send_to(job, &AnswerPolicy::default(), &peer).await;
        (outcome, peer.address().unwrap_or_default().to_owned())
    }
}

/// A policy by which a success with `slow_down` at `/code` throttles.
fn slow_down() -> AnswerPolicy {
    let body = Some(BodyMatch::new("/code", vec!["slow_down".into()]));
    let statuses = Some(Statuses::NONE.with(200, 299));
    let rule = AnswerRule { statuses, header: None, body, is: Meaning::Throttled, wait: None };
    AnswerPolicy { rules: [rule].into(), ..AnswerPolicy::default() }
}

fn job() -> Job {
    Job {
        id: "job-1".to_owned(),
        lane: JobLane::default(),
        plan: None,
        cost: Cost { units: 1, own: Vec::new() },
        priority: 0,
        times: Times::default(),
        request: Request { method: "POST", path: String::new(), headers: Vec::new() },
        content: Content::default(),
        reply: None,
    }
}

/// A job with this path.
fn to(path: &str) -> Job {
    Job { request: Request { path: path.to_owned(), ..job().request }, ..job() }
}

/// A job with these headers.
fn with_headers(headers: Vec<(String, String)>) -> Job {
    Job { request: Request { headers, ..job().request }, ..job() }
}

fn with_reply() -> Job {
    Job { reply: Some(ReplyTo { queue: "q".to_owned(), correlation_id: None }), ..job() }
}

fn options(base_url: &str) -> HttpOptions {
    HttpOptions { timeout: PATIENT, max_connection_age: SECOND * 90, ..HttpOptions::new(base_url) }
}

/// `jobs` jobs, which are sent at one time.
fn soon(jobs: usize) -> Soon {
    Soon { jobs, at_once: jobs }
}

fn sink(base_url: &str) -> HttpSink {
    HttpSink::new(options(base_url)).expect("a sink")
}

/// Polls until `is_so`, for effects in other tasks that give no signal.
async fn until(is_so: impl Fn() -> bool) {
    let poll = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENT, poll).await.expect("in time");
}

/// Lets all tasks handle what has arrived; they share one thread.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Sends a job, and lets this time pass once its only answer, if there is one, has begun to arrive.
async fn send_and_pass(server: &Server, sink: &HttpSink, job: &Job, time: Duration) -> Outcome {
    let passing = async {
        until(|| server.seen().len() == 1).await;
        settle().await;
        warm::pass(time).await;
    };
    let sending = async { tokio::join!(sink.send(job), passing).0 };
    tokio::time::timeout(time + PATIENT, sending).await.expect("given up in time")
}

/// A socket on which nobody listens, and its address: while it is kept, no other socket has its port.
fn silent() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn delivered(outcome: Outcome) -> Response {
    let Outcome::Delivered(Receipt { response, rest: None, .. }) = outcome else { panic!("{outcome:?}") };
    response
}

fn retry(outcome: Outcome) -> (&'static str, String) {
    let Outcome::Retry { reason, detail, .. } = outcome else { panic!("{outcome:?}") };
    (reason, detail)
}

fn unreachable(outcome: Outcome) -> String {
    let Outcome::Unreachable { detail } = outcome else { panic!("{outcome:?}") };
    detail
}

#[tokio::test]
async fn a_job_becomes_its_request() {
    let server = Server::always(200).await;
    let sink = sink(&format!("{}v1/", server.base));
    let job = Job {
        request: Request {
            method: "PATCH",
            path: "things/7?a=b%2Fc".to_owned(),
            headers: vec![pair("accept", "text/plain"), pair("traceparent", "00-a-b-01")],
        },
        content: Content {
            body: Bytes::from_static(b"a,b"),
            content_type: Some("text/csv".to_owned()),
            content_encoding: Some("gzip".to_owned()),
        },
        ..job()
    };
    delivered(sink.send(&job).await);
    let seen = server.only();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("PATCH", "/v1/things/7?a=b%2Fc"));
    assert_eq!(&seen.body[..], b"a,b");
    for (name, value) in [
        ("accept", "text/plain"),
        ("traceparent", "00-a-b-01"),
        ("content-type", "text/csv"),
        ("content-encoding", "gzip"),
        ("content-length", "3"),
        ("idempotency-key", "job-1"),
        ("user-agent", concat!("paced/", env!("CARGO_PKG_VERSION"))),
        ("host", server.base.trim_start_matches("http://").trim_end_matches('/')),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    assert_eq!(seen.header("authorization").or(seen.header("referer")), None);
}

#[tokio::test]
async fn a_base_url_may_be_an_endpoint_with_a_query_that_is_shown_nowhere() {
    let server = Server::always(404).await;
    let sink = sink(&format!("{}hook?key=s3cret", server.base));
    for path in ["", "items/1", "?q=1", "?key=1"] {
        let outcome = sink.send(&to(path)).await;
        assert!(
            matches!(outcome, Outcome::Dead { .. }) && !format!("{outcome:?}").contains("s3cret"),
            "{outcome:?}"
        );
    }
    let targets: Vec<String> = server.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/hook?key=s3cret", "/hook/items/1?key=s3cret", "/hook?key=s3cret&q=1"]);
    assert!(!format!("{sink:?} {:?}", sink.target()).contains("s3cret"));
}

#[tokio::test]
async fn every_method_is_sent_and_an_empty_post_says_so() {
    let server = Server::always(204).await;
    let sink = sink(&server.base);
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(
            delivered(sink.send(&Job { request: Request { method, ..job().request }, ..job() }).await).status,
            204
        );
        let seen = server.seen().pop().expect("a request");
        assert_eq!((seen.method.as_str(), seen.target.as_str()), (method, "/"));
        let length = seen.header("content-length");
        match method {
            "POST" | "PUT" | "PATCH" => assert_eq!(length, Some("0"), "{method}"),
            _ => assert!(matches!(length, None | Some("0")), "{method}"),
        }
    }
}

#[tokio::test]
async fn the_key_is_the_raw_id() {
    let server = Server::always(200).await;
    let id: String = ('!'..='~').collect();
    delivered(sink(&server.base).send(&Job { id: id.clone(), ..job() }).await);
    assert_eq!(server.only().header("idempotency-key"), Some(id.as_str()));
}

#[tokio::test]
async fn configured_headers_win() {
    let server = Server::always(200).await;
    let headers = vec![
        pair("Authorization", "Bearer t"),
        pair("accept", "application/json"),
        pair("Content-Type", "application/xml"),
        pair("user-agent", "mine"),
        pair("host", "virtual.example"),
    ];
    let sink = HttpSink::new(HttpOptions { headers, ..options(&server.base) }).expect("a sink");
    let job = Job {
        content: Content { content_type: Some("text/csv".to_owned()), ..Content::default() },
        ..with_headers(vec![pair("accept", "text/plain"), pair("x-own", "1"), pair("content-type", "a/b")])
    };
    delivered(sink.send(&job).await);
    let seen = server.only();
    for (name, value) in [
        ("authorization", "Bearer t"),
        ("accept", "application/json"),
        ("content-type", "application/xml"),
        ("user-agent", "mine"),
        ("host", "virtual.example"),
        ("x-own", "1"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn user_information_becomes_authorization() {
    let server = Server::always(200).await;
    let base = server.base.replace("http://", "http://ann:p%40ss@");
    let sink = sink(&base);
    delivered(sink.send(&job()).await);
    assert_eq!(server.only().header("authorization"), Some("Basic YW5uOnBAc3M="));
    assert!(!format!("{sink:?} {:?}", options(&base)).contains("p%40ss"));
}

#[tokio::test]
async fn what_a_hand_built_job_cannot_do() {
    let server = Server::always(200).await;
    let sink = sink(&format!("{}v1/", server.base));
    let dead = async |job: Job| match sink.send(&job).await {
        Outcome::Dead { reason, status: None, response: None, .. } => reason,
        other => panic!("{other:?}"),
    };
    for path in ["../x", "a/../../x", "%2e%2e/x", "..\\x", "\t../x"] {
        assert_eq!(dead(to(path)).await, Reason::ForbiddenPath, "{path}");
    }
    for name in ["host", "Host", "content-length", "transfer-encoding", "authorization", "idempotency-key"] {
        let headers = vec![pair(name, "x")];
        assert_eq!(dead(with_headers(headers)).await, Reason::HeaderNotAllowed, "{name}");
    }
    for (name, value) in [("a b", "x"), ("x", "a\r\nb: c")] {
        let headers = vec![pair(name, value)];
        assert_eq!(dead(with_headers(headers)).await, Reason::MalformedHeader, "{name}");
    }
    assert_eq!(dead(Job { id: "a\nb".to_owned(), ..job() }).await, Reason::BadId);
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn names_are_resolved_and_checked() {
    let server = Server::always(200).await;
    let named = server.base.replace("127.0.0.1", "localhost");
    delivered(sink(&named).send(&job()).await);
    assert!(server.only().header("host").is_some_and(|host| host.starts_with("localhost:")));

    fn metadata(_: &str) -> std::io::Result<Vec<SocketAddr>> {
        Ok(vec![SocketAddr::new(IpAddr::from([169, 254, 169, 254]), 0)])
    }
    let sink = HttpSink::with(options(&named), metadata).expect("a sink");
    let detail = unreachable(sink.send(&job()).await);
    assert!(detail.contains("link-local or metadata"), "{detail}");
}

#[test]
fn options_that_are_wrong() {
    for base in [
        "",
        "api.example.com",
        "ftp://a/",
        "http://",
        "http://a/v1#",
        "http://a/#x",
        "http://a:99999/",
        "file:///etc/",
    ] {
        let error = HttpSink::new(options(base)).expect_err(base);
        assert!(matches!(error, HttpError::BaseUrl(_)), "{base}: {error}");
    }
    for base in [
        "http://169.254.169.254/",
        "http://[fe80::1]/",
        "https://[fd00:ec2::254]/latest/",
        "http://0xa9fea9fe/",
        "http://2852039166/",
        "http://[::ffff:169.254.169.254]/",
        "http://169.254.169.254./",
        "http://0251.0376.0251.0376/",
        "http://169.16689662/",
        "http://169.254.170.2/",
        "http://169.254.170.23/",
        "http://100.100.100.200/",
        "http://[fd20:ce::254]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://metadata/",
        "http://metadata./computeMetadata/v1/",
        "http://Metadata.Google.Internal/",
        "http://metadata.google.internal.:80/",
        "http://metadata.%67oog/",
        "http://instance-data/latest",
    ] {
        let error = HttpSink::new(options(base)).expect_err(base);
        assert!(matches!(error, HttpError::ForbiddenAddress(_)), "{base}: {error}");
    }
    for (name, value) in [
        ("a b", "x"),
        ("", "x"),
        ("x", "a\nb"),
        ("content-length", "1"),
        ("Connection", "x"),
        ("transfer-encoding", "x"),
        ("idempotency-key", "s3cret"),
    ] {
        let headers = vec![pair(name, value)];
        let error = HttpSink::new(HttpOptions { headers, ..options("http://127.0.0.1/") }).expect_err(name);
        assert!(matches!(error, HttpError::Header { .. }), "{name}: {error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
    let none = HttpOptions { timeout: Duration::ZERO, ..options("http://127.0.0.1/") };
    assert_eq!(HttpSink::new(none).expect_err("no time-out"), HttpError::NoTimeout);
}
