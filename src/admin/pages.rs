//! The pages: `/livez`, `/readyz` and `/metrics`.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::sync::Mutex;

use super::health::{Check, Checks};
use super::routes::{Insight, Route, Rule, asks_for};

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
}

/// The pages: readiness from `checks`, metrics from `render`.
pub(crate) fn pages(checks: impl Checks, render: impl Fn() -> String + Send + Sync + 'static) -> Vec<Route> {
    let sources = Sources { checks: Arc::new(checks), render: Arc::new(render), rendering: Arc::default() };
    vec![
        Route::new(Method::GET, "/livez", Rule::Probe, (livez, &sources)),
        Route::new(Method::GET, "/readyz", Rule::Readiness, (readyz, &sources)),
        Route::new(Method::GET, "/metrics", Rule::Metrics, (metrics, &sources)),
    ]
}

/// An answer shows that the runtime of the jobs takes turns. Its status says whether all dispatchers take turns too.
async fn livez(State(sources): State<Sources>) -> Response {
    if sources.checks.is_alive() {
        return page(StatusCode::OK, PLAIN, "ok\n".to_owned());
    }
    // Every client may ask, so the answer names no downstream.
    page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "a dispatcher is stuck; the log names it\n".to_owned())
}

/// Answers with the list of checks for `?verbose`, and otherwise with one word. If the daemon is not ready, clients
/// that may read get the list in both cases.
async fn readyz(
    State(sources): State<Sources>,
    insight: Option<Extension<Insight>>,
    RawQuery(query): RawQuery,
) -> Response {
    let checks = sources.checks.run_checks().await;
    let is_ready = checks.iter().all(|check| check.verdict.is_ok() || !check.is_required);
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Without an insight the guard has checked that the request may read.
    let may_read = insight.is_none_or(|Extension(Insight(may_read))| may_read);
    let body = match (is_ready, asks_for(query.as_deref(), "verbose"), may_read) {
        (true, false, _) => "ok\n".to_owned(),
        (false, _, false) => "not ready\n".to_owned(),
        _ => list(&checks, is_ready),
    };
    page(status, PLAIN, body)
}

async fn metrics(State(sources): State<Sources>) -> Response {
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
    for Check { name, verdict, .. } in checks {
        // Writing to a String cannot fail.
        let _ = match verdict {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(reason) => writeln!(text, "[-]{name} failed: {}", reason.replace(['\n', '\r'], " ")),
        };
    }
    let _ = writeln!(text, "readyz check {}", if is_ready { "passed" } else { "failed" });
    text
}

fn page(status: StatusCode, kind: &'static str, body: String) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::{HeaderMap, Request};
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use paced::config::{Admin, Secret};
    use paced::store::BoxFuture;

    use super::*;
    use crate::admin::access::Access;
    use crate::admin::connections::Connections;
    use crate::admin::routes::router;

    struct Fixed(Vec<Check>);

    impl Checks for Fixed {
        fn run_checks(&self) -> BoxFuture<'_, Vec<Check>> {
            Box::pin(async { self.0.clone() })
        }

        /// With a check of this name.
        fn is_alive(&self) -> bool {
            self.0.iter().all(|check| check.name != "stuck")
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
        let admin = Admin { read_token, ..Admin::default() };
        let access = Arc::new(Access::new(&admin));
        let pages = router(pages(Fixed(checks.into()), || "# EOF\n".to_owned()), &access);
        let connection = Connections::default().open("10.0.0.7:1".parse().unwrap()).unwrap();
        let service = TowerToHyperService::new(pages.layer(Extension(connection.peer.clone())));
        let mut request = Request::builder().method(method).uri(path).header("host", "10.0.0.5:9750");
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
    async fn what_is_not_required_does_not_count_and_what_is_stuck_is_not_alive() {
        let ask = async |checks: &[Check], path: &str| {
            let access = Arc::new(Access::new(&Admin::default()));
            let pages = router(pages(Fixed(checks.to_vec()), || "# EOF\n".to_owned()), &access);
            let connection = Connections::default().open("10.0.0.7:1".parse().unwrap()).unwrap();
            let service = TowerToHyperService::new(pages.layer(Extension(connection.peer.clone())));
            let request = Request::builder().uri(path).header("host", "10.0.0.5:9750");
            let response = service.call(request.body(Body::empty()).unwrap()).await.unwrap();
            let (head, body) = response.into_parts();
            let body = to_bytes(body, 1 << 20).await.unwrap();
            (head.status.as_u16(), String::from_utf8(body.into()).unwrap())
        };
        let fine = Check::new("downstream/a", Ok(()));
        let missing = Check { is_required: false, ..Check::new("downstream/b", Err("gone".to_owned())) };
        let checks = [fine, missing];
        assert_eq!(ask(&checks, "/readyz").await, (200, "ok\n".to_owned()));
        let listed = "[+]downstream/a ok\n[-]downstream/b failed: gone\nreadyz check passed\n";
        assert_eq!(ask(&checks, "/readyz?verbose").await, (200, listed.to_owned()));
        assert_eq!(ask(&checks, "/livez").await, (200, "ok\n".to_owned()));
        let text = "a dispatcher is stuck; the log names it\n".to_owned();
        assert_eq!(ask(&[Check::new("stuck", Ok(()))], "/livez").await, (503, text));
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
