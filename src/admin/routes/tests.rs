//! Tests the access to each route by host, origin, token and method.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use paced::config::{Admin, Secret};
use paced::store::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::*;
use crate::admin::api::tests::in_memory;
use crate::admin::connections::{Connections, MAX_WRITING};
use crate::admin::health::{Check, Checks};
use crate::admin::server::{Server, bind};

/// The requests that have access to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// Everybody, by whatever name and with whatever token.
    Anybody,
    /// Requests addressed to this daemon, by a name of its own or an address, and from no page of another origin.
    Addressed,
    /// These, with a token if one is needed to look.
    Looking,
    /// These, with the token of changes.
    Operator,
    /// These, if they send JSON.
    OperatorWithJson,
}

use Verb::{Delete, Get, Post, Put};
use Who::{Addressed, Anybody, Looking, Operator, OperatorWithJson};

/// Every route. A route without an entry fails the test.
const TABLE: [(Verb, &str, Who); 32] = [
    (Get, "/livez", Anybody),
    (Get, "/readyz", Anybody),
    (Get, "/readyz?verbose", Looking),
    (Get, "/metrics", Looking),
    (Get, "/", Addressed),
    (Get, "/api.js", Addressed),
    (Get, "/card.js", Addressed),
    (Get, "/chart.js", Addressed),
    (Get, "/dead.js", Addressed),
    (Get, "/details.js", Addressed),
    (Get, "/dialogs.js", Addressed),
    (Get, "/dom.js", Addressed),
    (Get, "/history.js", Addressed),
    (Get, "/live.js", Addressed),
    (Get, "/page.css", Addressed),
    (Get, "/page.js", Addressed),
    (Get, "/words.js", Addressed),
    (Get, "/api/v1/status", Looking),
    (Get, "/api/v1/events", Looking),
    (Get, "/api/v1/history", Looking),
    (Get, "/api/v1/downstreams", Looking),
    (Get, "/api/v1/downstreams/{name}", Looking),
    (Post, "/api/v1/downstreams/{name}/pause", OperatorWithJson),
    (Post, "/api/v1/downstreams/{name}/resume", OperatorWithJson),
    (Post, "/api/v1/downstreams/{name}/reset", OperatorWithJson),
    (Post, "/api/v1/downstreams/{name}/cancel", OperatorWithJson),
    (Get, "/api/v1/downstreams/{name}/dead", Operator),
    (Post, "/api/v1/downstreams/{name}/dead/replay", OperatorWithJson),
    (Post, "/api/v1/downstreams/{name}/dead/purge", OperatorWithJson),
    (Get, "/api/v1/downstreams/{name}/rate", Looking),
    (Put, "/api/v1/downstreams/{name}/rate", OperatorWithJson),
    (Delete, "/api/v1/downstreams/{name}/rate", OperatorWithJson),
];

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];

/// The `Host`, and whether it is one of this daemon's.
const HOSTS: [(&str, bool); 6] = [
    ("localhost:9750", true),
    ("10.1.2.3:9750", true),
    ("[2001:db8::1]:9750", true),
    ("paced.internal", true),
    ("evil.example", false),
    ("", false),
];

/// Which tokens are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Configured {
    token: bool,
    read_token: bool,
}

/// The token that is sent, whether it is that of changes, and whether it is one to look with.
const TOKENS: [(Option<&str>, bool, bool); 4] = [
    (None, false, false),
    (Some("wrong"), false, false),
    (Some("look"), false, true),
    (Some("change"), true, true),
];

struct Unready;

impl Checks for Unready {
    fn run_checks(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async { vec![Check::new("store", Err("away at 10.9.9.9".to_owned()))] })
    }
}

/// A request in each of its dimensions.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    method: &'a str,
    path: &'a str,
    host: &'a str,
    is_foreign: bool,
    token: Option<&'a str>,
    is_json: bool,
}

struct Scene {
    pages: Router,
    connections: Connections,
    routes: BTreeSet<(Verb, &'static str)>,
    /// The clients so far: each request is of its own, since wrong tokens count.
    clients: std::cell::Cell<u32>,
}

impl Scene {
    fn new(Configured { token, read_token }: Configured) -> Self {
        let access = Access::new(&Admin {
            listen: Some("127.0.0.1:9750".to_owned()),
            token: token.then(|| Secret::hidden("change")),
            read_token: read_token.then(|| Secret::hidden("look")),
            allow_hosts: vec!["paced.internal".to_owned()],
            tls: None,
        });
        let all = crate::admin::all_routes(Unready, || "# EOF\n".to_owned(), in_memory());
        let routes = all.iter().map(|route| (route.verb, route.path)).collect();
        let pages = router(all, &Arc::new(access));
        Self { pages, connections: Connections::default(), routes, clients: 1.into() }
    }

    /// The status, and the text of an answer that ends.
    async fn send(&self, asked: Asked<'_>) -> (u16, String) {
        let Asked { method, path, host, is_foreign, token, is_json } = asked;
        let client = self.clients.replace(self.clients.get() + 1);
        let remote = SocketAddr::new(std::net::Ipv4Addr::from_bits(client).into(), 1);
        let connection = self.connections.open(remote).unwrap();
        let path = path.replace("{name}", "nowhere");
        let mut request = http::Request::builder().method(method).uri(&path);
        for (name, value) in [
            ("host", (!host.is_empty()).then(|| host.to_owned())),
            ("origin", is_foreign.then(|| "https://evil.example".to_owned())),
            ("authorization", token.map(|token| format!("Bearer {token}"))),
            ("content-type", is_json.then(|| "application/json".to_owned())),
        ] {
            request = value.into_iter().fold(request, |request, value| request.header(name, value));
        }
        let request = request.body(Body::from("{}")).unwrap();
        let service = TowerToHyperService::new(self.pages.clone().layer(Extension(connection.peer.clone())));
        let response = service.call(request).await.unwrap();
        let status = response.status().as_u16();
        let text = match path.starts_with("/readyz") {
            true => axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap(),
            false => Bytes::new(),
        };
        (status, String::from_utf8(text.to_vec()).unwrap())
    }
}

/// The status of a refusal; `None` if the request is to be passed on to its handler.
fn expected(who: Who, configured: Configured, asked: Asked<'_>) -> Option<u16> {
    let is_known = HOSTS.iter().any(|(host, is_known)| *host == asked.host && *is_known);
    let (_, may_change, may_look) = TOKENS.into_iter().find(|(token, ..)| *token == asked.token).unwrap();
    match who {
        Anybody => None,
        _ if !is_known => Some(421),
        _ if asked.is_foreign => Some(403),
        Addressed => None,
        Looking if !configured.read_token => None,
        // Without a token of changes that one is as wrong as any other.
        Looking => (!may_look || may_change && !configured.token).then_some(401),
        Operator | OperatorWithJson if !configured.token => Some(403),
        Operator | OperatorWithJson if !may_change => Some(401),
        OperatorWithJson if !asked.is_json => Some(415),
        Operator | OperatorWithJson => None,
    }
}

#[tokio::test(start_paused = true)]
async fn each_route_is_for_whom_it_is_meant() {
    let refusals = [401, 403, 405, 415, 421, 429];
    for (token, read_token) in [(false, false), (true, false), (false, true), (true, true)] {
        let configured = Configured { token, read_token };
        let scene = Scene::new(configured);
        let plain = |(verb, path, _): (Verb, &'static str, Who)| (verb, path.split('?').next().unwrap());
        assert_eq!(scene.routes, TABLE.into_iter().map(plain).collect(), "each route has an entry");
        for (verb, path, who) in TABLE {
            let method = http::Method::from(verb);
            for (host, _) in HOSTS {
                for is_foreign in [false, true] {
                    for (token, ..) in TOKENS {
                        for is_json in [true, false] {
                            let method = method.as_str();
                            let asked = Asked { method, path, host, is_foreign, token, is_json };
                            let (status, text) = scene.send(asked).await;
                            match expected(who, configured, asked) {
                                Some(refused) => assert_eq!(status, refused, "{configured:?} {asked:?}"),
                                None => {
                                    assert!(!refusals.contains(&status), "{status} {configured:?} {asked:?}")
                                }
                            }
                            // A probe says why the daemon is not ready only to those who may look.
                            let may_know = expected(Looking, configured, asked).is_none();
                            assert!(may_know || !text.contains("10.9.9.9"), "{asked:?} {text}");
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn other_methods_and_paths_are_refused_to_everybody() {
    let scene = Scene::new(Configured { token: true, read_token: true });
    let send = async |method, path| {
        let (host, token) = ("localhost", Some("change"));
        let asked = Asked { method, path, host, is_foreign: false, token, is_json: true };
        let with = scene.send(asked).await.0;
        let without = scene.send(Asked { host: "evil.example", token: None, ..asked }).await.0;
        assert_eq!(with, without, "{method} {path}");
        with
    };
    for (_, path, _) in TABLE {
        let here = |method: &str| {
            TABLE.iter().any(|(verb, other, _)| {
                let verb = http::Method::from(*verb);
                *other == path && (verb.as_str() == method || verb == "GET" && method == "HEAD")
            })
        };
        for method in METHODS.into_iter().filter(|method| !here(method) && *method != "CONNECT") {
            assert_eq!(send(method, path).await, 405, "{method} {path}");
        }
    }
    for path in [
        "/livez/",
        "/readyz/x",
        "/x.js",
        "/metrics/",
        "/Metrics",
        "//metrics",
        "/api",
        "/api/v1",
        "/api/v2/status",
    ] {
        for method in ["GET", "POST"] {
            assert_eq!(send(method, path).await, 404, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn an_answer_keeps_its_place_until_its_last_piece_is_taken() {
    use http_body_util::BodyExt as _;

    let connections = Connections::default();
    let connection = connections.open("192.0.2.1:1".parse().unwrap()).unwrap();
    let (_, of_one) = Work::Look.places();
    let mut places: Vec<Place> = (0..of_one).map(|_| connection.peer.place(Work::Look).unwrap()).collect();
    let place = places.pop().unwrap();
    let mut answer =
        Body::new(PlacedBody { body: Body::from(vec![7; 2 * PIECE + 1]), rest: Bytes::new(), _place: place });
    assert_eq!(answer.size_hint().exact(), Some(2 * PIECE as u64 + 1));
    let mut pieces = Vec::new();
    while !answer.is_end_stream() {
        assert!(connection.peer.place(Work::Look).is_err());
        pieces.push(answer.frame().await.unwrap().unwrap().into_data().unwrap().len());
    }
    assert_eq!(pieces, [PIECE, PIECE, 1]);
    drop(answer);
    assert!(connection.peer.place(Work::Look).is_ok());
}

/// The bytes of an answer that no socket takes at once.
const LARGE: usize = 8 << 20;

/// A server with a large answer and small ones.
async fn with_a_large_page() -> Server {
    let large = || async { "x".repeat(LARGE) };
    let small = || async { "small" };
    let routes = vec![
        Route::new(Get, "/metrics", Rule::Metrics, (large, &())),
        Route::new(Get, "/small", Rule::Metrics, (small, &())),
        Route::new(Get, "/status", Rule::Look, (small, &())),
    ];
    let access = Arc::new(Access::new(&Admin {
        listen: None,
        token: None,
        read_token: None,
        allow_hosts: Vec::new(),
        tls: None,
    }));
    Server::start(bind("127.0.0.1:0").await.unwrap(), router(routes, &access), None).unwrap()
}

/// Asks for a path, from this address on loopback, and returns the first line of the answer.
async fn first_line(from: [u8; 4], server: &Server, path: &str) -> (TcpStream, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.into(), 0)).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(line).unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_cut_off() {
    let server = with_a_large_page().await;
    let (mut deaf, line) = first_line([127, 0, 0, 2], &server, "/metrics").await;
    assert_eq!(line, "HTTP/1.1 200 OK\r\n");
    let start = tokio::time::Instant::now();
    tokio::time::sleep(MAX_WRITING + Duration::from_secs(1)).await;
    let mut rest = Vec::new();
    // A reset also ends the connection.
    let _ = deaf.read_to_end(&mut rest).await;
    assert!(rest.len() < LARGE, "cut off");
    assert!(start.elapsed() < MAX_WRITING + Duration::from_secs(2), "{:?}", start.elapsed());
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_metrics_keeps_nobody_else_from_them() {
    let server = with_a_large_page().await;
    let mut deaf = Vec::new();
    for address in [2, 3] {
        for _ in 0..Work::Metrics.places().1 {
            let (stream, line) = first_line([127, 0, 0, address], &server, "/metrics").await;
            assert_eq!(line, "HTTP/1.1 200 OK\r\n");
            deaf.push(stream);
        }
    }
    assert_eq!(first_line([127, 0, 0, 4], &server, "/status").await.1, "HTTP/1.1 200 OK\r\n");
    let (_, line) = first_line([127, 0, 0, 4], &server, "/small").await;
    assert_eq!(line, "HTTP/1.1 503 Service Unavailable\r\n", "they may be reading");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (_, line) = first_line([127, 0, 0, 4], &server, "/small").await;
    assert_eq!(line, "HTTP/1.1 200 OK\r\n", "they are not");
    server.stop().await;
}
