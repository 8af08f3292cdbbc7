//! Tests the access to each route by host, origin, token and method.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Extension;
use axum::http::{self, Method};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use paced::config::{Admin, NamedToken, Role, Secret};
use paced::store::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};

use super::api::tests::in_memory;
use super::connections::{Connections, MAX_WRITING, RequestClass};
use super::health::Check;
use super::routes::Rule;
use super::*;

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
    /// One with a name for each role.
    named: bool,
}

/// The token that is sent, and its role.
const TOKENS: [(Option<&str>, Option<Role>); 7] = [
    (None, None),
    (Some("wrong"), None),
    (Some("look"), Some(Role::Read)),
    (Some("change"), Some(Role::Admin)),
    (Some("named-read"), Some(Role::Read)),
    (Some("named-operate"), Some(Role::Operate)),
    (Some("named-admin"), Some(Role::Admin)),
];

impl Configured {
    /// Whether the token of this text is among them.
    fn has(self, token: &str) -> bool {
        match token {
            "look" => self.read_token,
            "change" => self.token,
            token => self.named && token.starts_with("named-"),
        }
    }
}

struct Unready;

impl Checks for Unready {
    fn run_checks(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(async { vec![Check::new("store", Err("away at 10.9.9.9".to_owned()))] })
    }

    fn is_alive(&self) -> bool {
        true
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
    routes: Vec<(Method, &'static str, Rule)>,
    /// The clients so far: each request is of its own, since wrong tokens count.
    clients: std::cell::Cell<u32>,
}

impl Scene {
    fn new(Configured { token, read_token, named }: Configured) -> Self {
        let roles = [Role::Read, Role::Operate, Role::Admin].into_iter().filter(|_| named);
        let tokens = roles.map(|role| {
            let name = role.name().to_owned();
            NamedToken { token: Secret::hidden(format!("named-{name}")), name, role }
        });
        let access = Access::new(&Admin {
            listen: Some("127.0.0.1:9750".to_owned()),
            token: token.then(|| Secret::hidden("change")),
            read_token: read_token.then(|| Secret::hidden("look")),
            tokens: tokens.collect(),
            allow_hosts: vec!["paced.internal".to_owned()],
            // Bodies are shown in some configurations, and not in others.
            show_bodies: read_token,
            ..Admin::default()
        });
        let all = all_routes(Unready, || "# EOF\n".to_owned(), in_memory());
        let mut routes: Vec<_> =
            all.iter().map(|route| (route.method.clone(), route.path, route.rule)).collect();
        routes.push((Method::GET, "/readyz?verbose", Rule::Read));
        let pages = routes::router(all, &Arc::new(access));
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

/// The role that a rule asks for, and the least that it may be given to.
fn role(rule: Rule) -> Option<Role> {
    match rule {
        Rule::Probe | Rule::Readiness | Rule::Page => None,
        Rule::Read | Rule::Metrics | Rule::Events => Some(Role::Read),
        Rule::Bodies => Some(Role::Admin),
        Rule::Hold(role) | Rule::Change(role) => Some(role),
    }
}

/// The status of a refusal; `None` if the request is to be passed on to its handler.
fn expected(rule: Rule, configured: Configured, asked: Asked<'_>) -> Option<u16> {
    let is_known = HOSTS.iter().any(|(host, is_known)| *host == asked.host && *is_known);
    let sent = asked.token.filter(|token| configured.has(token));
    let sent = sent.and_then(|sent| TOKENS.into_iter().find(|(token, _)| *token == Some(sent))?.1);
    let guards_reads = configured.read_token || configured.named;
    match (rule, role(rule)) {
        (Rule::Probe | Rule::Readiness, _) => None,
        _ if !is_known => Some(421),
        _ if asked.is_foreign => Some(403),
        (Rule::Page, _) | (_, None) => None,
        (_, Some(Role::Read)) if !guards_reads => None,
        (_, Some(Role::Operate | Role::Admin)) if !configured.token && !configured.named => Some(403),
        (_, needed) if sent < needed => Some(401),
        (Rule::Bodies, _) if !configured.read_token => Some(403),
        (Rule::Change(_), _) if !asked.is_json => Some(415),
        _ => None,
    }
}

/// Only probes and the empty page are open to everybody, and every change needs the token and JSON.
#[tokio::test(start_paused = true)]
async fn each_route_has_a_rule_that_is_strict_enough() {
    let (mut open, mut pages) = (Vec::new(), Vec::new());
    for (method, path, rule) in Scene::new(Configured { token: true, read_token: true, named: false }).routes
    {
        match rule {
            Rule::Probe | Rule::Readiness => open.push(path),
            Rule::Page => pages.push(path),
            Rule::Change(_) => assert_ne!(method, Method::GET, "{path}"),
            // Letters that are listed are held, and a body may be anybody's secret.
            Rule::Hold(role) => assert_eq!((role, path), (Role::Operate, "/api/v1/downstreams/{name}/dead")),
            Rule::Bodies => assert_eq!(path, "/api/v1/downstreams/{name}/dead/letter"),
            Rule::Read | Rule::Metrics | Rule::Events => assert_eq!(method, Method::GET, "{path}"),
        }
        assert!(method == Method::GET || matches!(rule, Rule::Change(_)), "{path}");
        assert!(!path.starts_with("/api/") || !matches!(rule, Rule::Probe | Rule::Readiness | Rule::Page));
    }
    assert_eq!(open, ["/livez", "/readyz"]);
    assert_eq!(pages, page::page().iter().map(|route| route.path).collect::<Vec<_>>());
}

/// `docs/operations.md` has a row for each request of the API, with the role that it needs.
#[tokio::test(start_paused = true)]
async fn each_request_of_the_api_is_documented_with_its_role() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split("` | ");
        let (request, rest) = (cells.next()?.to_owned(), cells.next()?);
        request.contains(" /api/").then(|| (request, rest.split(' ').next().unwrap_or_default().to_owned()))
    };
    let rows: BTreeSet<(String, String)> = docs.lines().filter_map(row).collect();
    let routes = Scene::new(Configured { token: true, read_token: true, named: false }).routes.into_iter();
    let routes = routes.filter(|(_, path, _)| path.starts_with("/api/")).map(|(method, path, rule)| {
        let role = role(rule).map_or("nobody", Role::name).to_owned();
        let path = path.replace("{name}", "NAME").replace("{id}", "ID").replace("{lane}", "LANE");
        (format!("{method} {path}"), role)
    });
    assert_eq!(rows, routes.collect());
}

#[tokio::test(start_paused = true)]
async fn each_route_refuses_as_its_rule_says() {
    let refusals = [401, 403, 405, 415, 421, 429];
    for (token, read_token, named) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (true, true, true),
        (false, false, true),
    ] {
        let configured = Configured { token, read_token, named };
        let scene = Scene::new(configured);
        for (method, path, rule) in scene.routes.clone() {
            let each_token = HOSTS.into_iter().flat_map(|host| TOKENS.map(|token| (host, token)));
            for (((host, _), (token, _)), is_foreign) in
                each_token.flat_map(|both| [(both, false), (both, true)])
            {
                for is_json in [true, false] {
                    let asked = Asked { method: method.as_str(), path, host, is_foreign, token, is_json };
                    let (status, text) = scene.send(asked).await;
                    match expected(rule, configured, asked) {
                        Some(refused) => assert_eq!(status, refused, "{configured:?} {asked:?}"),
                        None => assert!(!refusals.contains(&status), "{status} {configured:?} {asked:?}"),
                    }
                    // A probe says why the daemon is not ready only to clients that may read.
                    let may_know = expected(Rule::Read, configured, asked).is_none();
                    assert!(may_know || !text.contains("10.9.9.9"), "{asked:?} {text}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn other_methods_and_paths_are_refused_to_everybody() {
    let scene = Scene::new(Configured { token: true, read_token: true, named: false });
    let send = async |method, path| {
        let (host, token) = ("localhost", Some("change"));
        let asked = Asked { method, path, host, is_foreign: false, token, is_json: true };
        let with = scene.send(asked).await.0;
        let without = scene.send(Asked { host: "evil.example", token: None, ..asked }).await.0;
        assert_eq!(with, without, "{method} {path}");
        with
    };
    for (_, path, _) in &scene.routes {
        let here = |method: &str| {
            scene.routes.iter().any(|(known, other, _)| {
                other == path && (known == method || known == Method::GET && method == "HEAD")
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

/// The bytes of an answer that no socket takes at once.
const LARGE: usize = 8 << 20;

/// A server with a large answer and small ones.
async fn with_a_large_page() -> Server {
    let large = || async { "x".repeat(LARGE) };
    let small = || async { "small" };
    let routes = vec![
        Route::new(Method::GET, "/metrics", Rule::Metrics, (large, &())),
        Route::new(Method::GET, "/small", Rule::Metrics, (small, &())),
        Route::new(Method::GET, "/status", Rule::Read, (small, &())),
    ];
    let access = Arc::new(Access::new(&Admin { token: None, ..Admin::default() }));
    Server::start(bind("127.0.0.1:0").await.unwrap(), routes::router(routes, &access), None).unwrap()
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

/// The first line of each answer to these requests for changes, over one connection.
async fn changes(server: &Server, paths: &[&str]) -> Vec<String> {
    let mut stream = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
    let mut lines = Vec::new();
    for path in paths {
        let request =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer change\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.unwrap() > 0 {}
        lines.push(head.lines().next().unwrap_or_default().to_owned());
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn a_long_change_is_not_cut_by_the_age_of_its_connection() {
    let after = |seconds| move || async move { tokio::time::sleep(Duration::from_secs(seconds)).await };
    let routes = vec![
        Route::new(Method::POST, "/short", Rule::Hold(Role::Operate), (after(50), &())),
        Route::new(Method::POST, "/long", Rule::Hold(Role::Operate), (after(55), &())),
        Route::new(Method::POST, "/endless", Rule::Hold(Role::Operate), (after(1_000), &())),
    ];
    let access = Arc::new(Access::new(&Admin { token: Some(Secret::hidden("change")), ..Admin::default() }));
    let pages = routes::router(routes, &access);
    let server = Server::start(bind("127.0.0.1:0").await.unwrap(), pages, None).unwrap();
    assert_eq!(changes(&server, &["/short", "/long"]).await, ["HTTP/1.1 200 OK"; 2]);
    // No request begins on a connection that is so old, and none keeps it for ever.
    assert_eq!(changes(&server, &["/short", "/long", "/short"]).await[2], "");
    let start = tokio::time::Instant::now();
    assert_eq!(changes(&server, &["/endless"]).await, [""]);
    assert!(start.elapsed() < Duration::from_secs(160), "{:?}", start.elapsed());
    server.stop().await;
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
        for _ in 0..RequestClass::Metrics.permits().1 {
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
