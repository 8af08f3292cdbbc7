//! The pages: `/livez`, `/readyz` and `/metrics`.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Mutex;

use super::api::Access;
use super::health::{Check, Checks};

const PLAIN: &str = "text/plain; charset=utf-8";
/// The content type of Prometheus' text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Renders every series.
type Render = Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Clone)]
struct Sources {
    checks: Arc<dyn Checks>,
    render: Render,
    /// Held during rendering: with many series a page is large, so one at a time is enough.
    rendering: Arc<Mutex<()>>,
    access: Arc<Access>,
}

/// The pages: readiness from `checks`, metrics from `render`. Those that tell more than whether the daemon is ready are for
/// whoever may look.
pub(crate) fn pages(
    checks: impl Checks,
    render: impl Fn() -> String + Send + Sync + 'static,
    access: Arc<Access>,
) -> Router {
    let (checks, render) = (Arc::new(checks), Arc::new(render));
    let sources = Sources { checks, render, rendering: Arc::default(), access };
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(sources)
}

/// An answer is the proof of life: it takes a turn of the runtime that the jobs run on.
async fn livez() -> Response {
    page(StatusCode::OK, PLAIN, "ok\n".to_owned())
}

async fn readyz(State(sources): State<Sources>, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    let is_verbose = asks_for(query.as_deref(), "verbose");
    let may_look = sources.access.may_look(&headers);
    if let Err(refusal) = may_look.as_ref()
        && is_verbose
    {
        return refusal.clone().into_response();
    }
    let checks = sources.checks.run_checks().await;
    let is_ready = checks.iter().all(|check| check.verdict.is_ok());
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = match (is_ready, is_verbose, may_look) {
        (true, false, _) => "ok\n".to_owned(),
        (false, _, Err(_)) => "not ready\n".to_owned(),
        _ => list(&checks, is_ready),
    };
    page(status, PLAIN, body)
}

async fn metrics(State(sources): State<Sources>, headers: HeaderMap) -> Response {
    if let Err(refusal) = sources.access.may_look(&headers) {
        return refusal.into_response();
    }
    // The check of the store sets its gauge.
    let _ = sources.checks.run_checks().await;
    let render = sources.render;
    let alone = sources.rendering.lock_owned().await;
    // Rendering runs on another thread: with many series it would delay releases on this one.
    let rendered = tokio::task::spawn_blocking(move || {
        let _alone = alone;
        render()
    });
    match rendered.await {
        Ok(text) => page(StatusCode::OK, EXPOSITION, text),
        Err(_) => page(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "the metrics are not there\n".to_owned()),
    }
}

/// The checks in the form of Kubernetes' own components.
fn list(checks: &[Check], is_ready: bool) -> String {
    let mut text = String::new();
    for Check { name, verdict } in checks {
        // Writing to a String cannot fail.
        let _ = match verdict {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(reason) => writeln!(text, "[-]{name} failed: {}", reason.replace(['\n', '\r'], " ")),
        };
    }
    let _ = writeln!(text, "readyz check {}", if is_ready { "passed" } else { "failed" });
    text
}

/// Whether the query has this parameter: `verbose`, `verbose=` and `verbose=1` all count.
fn asks_for(query: Option<&str>, word: &str) -> bool {
    let pairs = query.unwrap_or_default().split('&');
    pairs.map(|pair| pair.split('=').next().unwrap_or_default()).any(|name| name == word)
}

fn page(status: StatusCode, kind: &'static str, body: String) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use paced::config::{Admin, Secret};
    use paced::store::BoxFuture;

    use super::*;

    struct Fixed(Vec<Check>);

    impl Checks for Fixed {
        fn run_checks(&self) -> BoxFuture<'_, Vec<Check>> {
            Box::pin(async { self.0.clone() })
        }
    }

    const GOOD: [(&str, Result<(), &str>); 2] = [("amqp", Ok(())), ("store", Ok(()))];
    const BAD: [(&str, Result<(), &str>); 2] = [("amqp", Ok(())), ("store", Err("away\nfor now"))];

    async fn ask(
        checks: [(&str, Result<(), &str>); 2],
        method: &str,
        path: &str,
    ) -> (u16, HeaderMap, String) {
        ask_with_tokens(checks, (method, path), None, None).await
    }

    async fn ask_with_tokens(
        checks: [(&str, Result<(), &str>); 2],
        (method, path): (&str, &str),
        read_token: Option<&str>,
        given: Option<&str>,
    ) -> (u16, HeaderMap, String) {
        let checks = checks.map(|(name, verdict)| Check::new(name, verdict.map_err(str::to_owned)));
        let read_token = read_token.map(Secret::hidden);
        let admin = Admin { listen: None, token: None, read_token, allow_hosts: Vec::new(), tls: None };
        let access = Arc::new(Access::new(&admin));
        let pages = pages(Fixed(checks.into()), || "# EOF\n".to_owned(), access);
        let service = TowerToHyperService::new(pages);
        let mut request = Request::builder().method(method).uri(path);
        if let Some(given) = given {
            request = request.header("authorization", format!("Bearer {given}"));
        }
        let request = request.body(Body::empty()).unwrap();
        let response = service.call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (head.status.as_u16(), head.headers, String::from_utf8(body.into()).unwrap())
    }

    #[tokio::test]
    async fn the_pages() {
        const LISTED: &str = "[+]amqp ok\n[+]store ok\nreadyz check passed\n";
        const FAILED: &str = "[+]amqp ok\n[-]store failed: away for now\nreadyz check failed\n";
        for (checks, path, status, text) in [
            (GOOD, "/livez", 200, "ok\n"),
            (BAD, "/livez", 200, "ok\n"),
            (GOOD, "/readyz", 200, "ok\n"),
            (GOOD, "/readyz?x=verbose", 200, "ok\n"),
            (GOOD, "/readyz?verbose", 200, LISTED),
            (GOOD, "/readyz?x=1&verbose=", 200, LISTED),
            (BAD, "/readyz", 503, FAILED),
            (BAD, "/readyz?verbose", 503, FAILED),
            (BAD, "/metrics", 200, "# EOF\n"),
        ] {
            let (got, headers, body) = ask(checks, "GET", path).await;
            assert_eq!((got, body.as_str()), (status, text), "{path}");
            assert_eq!(headers["cache-control"], "no-store", "{path}");
            let kind = headers["content-type"].to_str().unwrap();
            assert_eq!(kind, if path == "/metrics" { EXPOSITION } else { PLAIN }, "{path}");
            assert!(!headers.contains_key("server"), "says nothing of what it runs");

            let (got, headers, body) = ask(checks, "HEAD", path).await;
            assert_eq!((got, body.as_str()), (status, ""), "HEAD {path}");
            assert_eq!(headers["content-type"].to_str().unwrap(), kind, "HEAD {path}");
        }
    }

    #[tokio::test]
    async fn where_a_token_is_needed_to_look_probes_go_without() {
        let status = async |checks, path, given| {
            let (status, _, text) = ask_with_tokens(checks, ("GET", path), Some("look"), given).await;
            assert!(status != 503 || !text.contains("away"), "{text}");
            status
        };
        for (path, with, without) in [
            ("/livez", 200, 200),
            ("/readyz", 200, 200),
            ("/readyz?verbose", 200, 401),
            ("/metrics", 200, 401),
        ] {
            assert_eq!(status(GOOD, path, Some("look")).await, with, "{path}");
            assert_eq!(status(GOOD, path, None).await, without, "{path}");
            assert_eq!(status(GOOD, path, Some("other")).await, without, "{path}");
        }
        assert_eq!(status(BAD, "/readyz", None).await, 503, "and it does not say why");
    }

    #[tokio::test]
    async fn other_methods_and_paths_are_refused() {
        for path in ["/livez", "/readyz", "/metrics"] {
            for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
                let (status, headers, _) = ask(GOOD, method, path).await;
                assert_eq!(status, 405, "{method} {path}");
                assert_eq!(headers["allow"], "GET,HEAD", "{method} {path}");
            }
        }
        for path in
            ["/", "/livez/", "/readyz/x", "/api/v1/downstreams", "//metrics", "/Metrics", "/%6detrics/"]
        {
            assert_eq!(ask(GOOD, "GET", path).await.0, 404, "{path}");
        }
    }
}
