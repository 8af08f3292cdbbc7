//! Downstreams behind an HTTP proxy.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::tls::{server, trusting};
use super::*;
use crate::tls::authority::Authority;

/// A proxy that opens all tunnels to one server, also if a request names another one, and keeps the requests.
struct Tunnels {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    opened: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Tunnels {
    async fn start(server: &str) -> Self {
        let server = server.split('/').nth(2).expect("an authority").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://me:hunter2@{}", listener.local_addr().expect("an address"));
        let (asked, opened) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let mut task = JoinSet::new();
        let (heads, count) = (Arc::clone(&asked), Arc::clone(&opened));
        task.spawn(async move {
            let mut tunnels = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let (heads, count, server) = (Arc::clone(&heads), Arc::clone(&count), server.clone());
                tunnels.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(client.read_u8().await.expect("a head"));
                    }
                    let head = String::from_utf8(head).expect("text");
                    // "me:hunter2"
                    let is_known = head.contains("\r\nproxy-authorization: Basic bWU6aHVudGVyMg==\r\n");
                    heads.lock().expect("no panic").push(head);
                    if !is_known {
                        let answer =
                            b"HTTP/1.1 407 No\r\nproxy-authenticate: Basic\r\ncontent-length: 0\r\n\r\n";
                        client.write_all(answer).await.expect("written");
                        return;
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("written");
                    let mut server = TcpStream::connect(server).await.expect("the server");
                    // Either side may end it.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { url, asked, opened, _task: task }
    }
}

#[tokio::test]
async fn https_goes_through_a_tunnel_that_the_proxy_cannot_look_into() {
    let authority = Authority::new("ours");
    let server = server(&authority.issue(&["api.example"]), None).await;
    let proxy = Tunnels::start(&server.base).await;
    let (_folder, tls) = trusting(&authority, None);
    // Nobody here knows the name: the proxy is the one that resolves it.
    let through = |proxy: &str| {
        let options = HttpOptions {
            tls: Some(tls.clone()),
            proxy: Some(proxy.to_owned()),
            ..options("https://api.example:8443/v1/")
        };
        HttpSink::new(options).expect("a sink")
    };
    let sink = through(&proxy.url);
    for _ in 0..3 {
        delivered(sink.send(&to("a?token=s3cret")).await);
    }
    assert_eq!(proxy.opened.load(Ordering::SeqCst), 1, "the tunnel is kept");
    let asked = proxy.asked.lock().expect("no panic").clone();
    assert!(
        asked[0].starts_with("CONNECT api.example:8443 HTTP/1.1\r\nhost: api.example:8443\r\n"),
        "{asked:?}"
    );
    assert!(asked.iter().all(|head| !head.contains("s3cret")), "{asked:?}");
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].target.as_str()), (3, "/v1/a?token=s3cret"));
    assert_eq!(
        (seen[0].header("host"), seen[0].header("proxy-authorization")),
        (Some("api.example:8443"), None)
    );

    // Other credentials.
    let sink = through(&proxy.url.replace("hunter2", "hunter3"));
    let (outcome, peer) = sink.send_and_tell(&job()).await;
    let detail = unreachable(outcome);
    assert!(proxy.url.ends_with(&format!("@{peer}")), "the proxy failed: {peer}");
    assert!(detail.contains("correct the user and the password in http.proxy"), "{detail}");
    assert!(!detail.contains("hunter3") && !format!("{sink:?}").contains("hunter3"), "{detail}");
    assert_eq!((server.seen().len(), proxy.opened.load(Ordering::SeqCst)), (3, 1));

    // A certificate of another authority: the tunnel is open, and the API failed.
    let (_folder, others) = trusting(&Authority::new("another"), None);
    let options = HttpOptions {
        tls: Some(others),
        proxy: Some(proxy.url.clone()),
        ..options("https://api.example:8443/v1/")
    };
    let (outcome, peer) = HttpSink::new(options).expect("a sink").send_and_tell(&job()).await;
    unreachable(outcome);
    assert_eq!(peer, "api.example:8443");
}

#[tokio::test]
async fn a_proxy_gets_requests_to_http_with_the_whole_url() {
    let proxy = Server::start(|number| future::ready(empty(if number == 0 { 200 } else { 407 }))).await;
    let address = proxy.base.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let options = HttpOptions {
        proxy: Some(format!("http://me:hunter2@{address}")),
        ..options("http://api.example:8080/v1/")
    };
    let sink = HttpSink::new(options).expect("a sink");
    delivered(sink.send(&to("things/7?a=b")).await);
    let seen = proxy.only();
    assert_eq!(seen.target, "http://api.example:8080/v1/things/7?a=b");
    assert_eq!(seen.header("host"), Some("api.example:8080"));
    assert_eq!(seen.header("proxy-authorization"), Some("Basic bWU6aHVudGVyMg=="));
    // Its refusal is no answer of the API.
    let (outcome, peer) = sink.send_and_tell(&job()).await;
    let detail = unreachable(outcome);
    assert!(detail.contains("correct the user and the password in http.proxy"), "{detail}");
    assert_eq!(peer, address);

    // Without a proxy 407 is an answer like any other.
    let server = Server::always(407).await;
    let sink = HttpSink::new(super::options(&server.base)).expect("a sink");
    assert!(matches!(sink.send(&job()).await, Outcome::Dead { status: Some(407), .. }));
}

#[tokio::test]
async fn a_proxy_that_is_away_is_reported() {
    let (_silent, address) = silent();
    let proxy = format!("http://{address}/");
    for base in ["http://api.example/", "https://api.example/"] {
        let (_folder, tls) = trusting(&Authority::new("ours"), None);
        let tls = base.starts_with("https").then_some(tls);
        let options = HttpOptions { proxy: Some(proxy.clone()), tls, ..options(base) };
        let (outcome, peer) = HttpSink::new(options).expect("a sink").send_and_tell(&job()).await;
        let detail = unreachable(outcome);
        assert!(detail.contains("refused"), "{base}: {detail}");
        assert_eq!(peer, address.to_string(), "{base}");
    }
}

#[test]
fn a_proxy_that_is_none() {
    for proxy in ["", "proxy:3128", "https://hunter2@proxy/", "http://hunter2@proxy/path"] {
        let options = HttpOptions { proxy: Some(proxy.to_owned()), ..options("http://api.example/") };
        let error = HttpSink::new(options).expect_err(proxy);
        assert!(matches!(error, HttpError::Proxy(_)) && !error.to_string().contains("hunter2"), "{error}");
    }
    let options =
        HttpOptions { proxy: Some("http://169.254.169.254".to_owned()), ..options("http://a.example/") };
    assert!(matches!(HttpSink::new(options), Err(HttpError::ForbiddenAddress(_))));
}
