//! The routes of the server, each with the rule for its requests, and the guard that applies the rules.
//!
//! Only the entries of the list for [`router`] are routes, and each entry has a rule, so nobody can add a route
//! without one. All other paths have the same answer for everybody.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Extension, Request, State};
use axum::handler::Handler;
use axum::http::header::HeaderMap;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, any, on};
use hyper::body::{Frame, SizeHint};
use paced::api::Endpoint;
use paced::api::history::Author;
use paced::bounded_log::BoundedLog;
use paced::config::Role;
use paced::text::cut;

use super::access::{Access, Holder, has_json};
use super::connections::{Peer, Permit, RequestClass};
use super::reply::Refusal;

/// The bytes of an answer that are passed on at once: the server keeps a second copy of what it writes.
const PIECE: usize = 16 * 1024;

/// The header by which a client claims a name: it says which of several people who share a token sends the request.
const CLAIMED: &str = "paced-as";

/// The longest name that is claimed, in characters.
const MAX_CLAIMED: usize = 100;

/// The rule for the requests of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Every request is allowed, addressed to any name: the answer says only that the daemon lives.
    Probe,
    /// As [`Rule::Probe`], with an [`Insight`]; and with `?verbose` as [`Rule::Read`].
    Readiness,
    /// Requests addressed to this daemon are allowed: the answer is the same for every daemon.
    Page,
    /// Requests that may read are allowed.
    Read,
    /// Requests that may read are allowed; they take a permit for metrics.
    Metrics,
    /// Requests that may read are allowed; they take a permit for a stream of events.
    Events,
    /// Requests with this role are allowed; they have no body, and take a permit for a change.
    Hold(Role),
    /// As [`Rule::Hold`] with the role `admin`, if the daemon shows the bodies of dead letters.
    Bodies,
    /// Requests with this role are allowed; they have a body in JSON, and take a permit for a change.
    Change(Role),
}

impl Rule {
    /// What the token of a request must allow; `None` if it needs none.
    const fn role(self) -> Option<Role> {
        match self {
            Self::Probe | Self::Page => None,
            Self::Readiness | Self::Read | Self::Metrics | Self::Events => Some(Role::Read),
            Self::Bodies => Some(Role::Admin),
            Self::Hold(role) | Self::Change(role) => Some(role),
        }
    }
}

/// The client of a request.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) remote: SocketAddr,
    pub(super) author: Author,
}

impl Client {
    /// The client that sent this request, with the token of `holder`.
    fn of(peer: &Peer, holder: Holder, headers: &HeaderMap) -> Self {
        let claimed = headers.get(CLAIMED).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let certificate = peer.certificate().unwrap_or_default();
        let shown = Some(certificate).filter(|name| !name.is_empty()).map(str::to_owned);
        let author = Author {
            by: holder.name.or(shown).unwrap_or_else(|| peer.remote.ip().to_string()),
            certificate: certificate.to_owned(),
            claimed: cut(claimed, MAX_CLAIMED).to_owned(),
        };
        Self { remote: peer.remote, author }
    }
}

/// Whether the client may know why the daemon is not ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Insight(pub(super) bool);

/// A method of a path.
pub(crate) struct Route {
    #[cfg_attr(not(test), expect(dead_code, reason = "the test of all routes reads it"))]
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) rule: Rule,
    handler: MethodRouter,
}

impl Route {
    pub(super) fn new<H, T, S>(
        method: Method,
        path: &'static str,
        rule: Rule,
        (handler, state): (H, &S),
    ) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
        S: Clone + Send + Sync + 'static,
    {
        #[expect(clippy::expect_used, reason = "routes have the methods that axum knows")]
        let filter = MethodFilter::try_from(method.clone()).expect("a method that axum knows");
        Self { method, path, rule, handler: on(filter, handler).with_state(state.clone()) }
    }

    /// The route of an endpoint of the API.
    pub(super) fn to<B, A, H, T, S>(endpoint: &Endpoint<B, A>, rule: Rule, handler: (H, &S)) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
        S: Clone + Send + Sync + 'static,
    {
        Self::new(endpoint.method.clone(), endpoint.path, rule, handler)
    }
}

/// The server of these routes.
pub(crate) fn router(routes: Vec<Route>, access: &Arc<Access>) -> Router {
    let mut paths: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
    for Route { path, rule, handler, .. } in routes {
        let guarded = Guarded { access: Arc::clone(access), rule };
        let handler = handler.layer(from_fn_with_state(guarded, guard));
        let all = paths.remove(path).unwrap_or_default();
        paths.insert(path, all.merge(handler));
    }
    let router = Router::new().route("/api/{*rest}", any(nothing));
    // The router adds the methods that there are.
    paths.into_iter().fold(router, |router, (path, all)| router.route(path, all.fallback(no_method)))
}

async fn nothing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "no such page; see /api/v1/downstreams")
}

async fn no_method() -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "no method for this; use one of the header `allow`")
}

/// The log of requests that are refused to strangers. It is bounded tightly: anybody who reaches the address could
/// cause a line for each, until the lines about changes are rotated away.
pub(super) static REFUSALS: LazyLock<Arc<BoundedLog>> =
    LazyLock::new(|| refusals(20, Duration::from_secs(60)));

/// The log of refused requests of clients that have a token for changes.
static REFUSED_CHANGES: LazyLock<Arc<BoundedLog>> = LazyLock::new(|| refusals(50, Duration::from_secs(1)));

/// The longest text of a client in a line of the log, in characters.
pub(super) const MAX_SHOWN: usize = 200;

fn refusals(lines: u32, span: Duration) -> Arc<BoundedLog> {
    BoundedLog::with_bound(lines, span, |summary| {
        let (requests, kinds) = (summary.lines, &summary);
        tracing::warn!(requests, %kinds, "admin: refused; too many to log each");
    })
}

#[derive(Clone)]
struct Guarded {
    access: Arc<Access>,
    rule: Rule,
}

/// Passes requests that are allowed, and for which there is a permit.
async fn guard(
    State(Guarded { access, rule }): State<Guarded>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    match admit(&access, rule, &peer, &mut request) {
        Ok(None) => next.run(request).await,
        Ok(Some(mut permit)) => {
            let response = next.run(request).await;
            permit.begin_writing();
            response.map(|body| Body::new(PermitBody { body, rest: Bytes::new(), _permit: permit }))
        }
        Err(refusal) => {
            log_refusal(rule, &peer, &request, &refusal);
            refusal.into_response()
        }
    }
}

fn log_refusal(rule: Rule, peer: &Peer, request: &Request, refusal: &Refusal) {
    // These statuses come from checks after that of the token, so the client has one.
    let has_token = matches!(rule, Rule::Hold(_) | Rule::Bodies | Rule::Change(_))
        && matches!(refusal.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::SERVICE_UNAVAILABLE);
    let log = if has_token { &REFUSED_CHANGES } else { &REFUSALS };
    log.line(refusal.status().canonical_reason().unwrap_or("other"), || {
        let (remote, status) = (peer.remote, refusal.status().as_u16());
        let (method, path) =
            (cut(request.method().as_str(), MAX_SHOWN), cut(request.uri().path(), MAX_SHOWN));
        let error = cut(refusal.text(), 2 * MAX_SHOWN);
        let certificate = peer.certificate();
        tracing::warn!(%remote, certificate, method, path, status, error, "admin: refused");
    });
}

/// Checks whether the request is allowed, notes whose it is, and takes its permit if it needs one.
fn admit(access: &Access, rule: Rule, peer: &Peer, request: &mut Request) -> Result<Option<Permit>, Refusal> {
    let (uri, headers) = (request.uri(), request.headers());
    let may = |role| access.is_meant(uri, headers).and_then(|()| access.may(role, headers, peer.network()));
    if rule == Rule::Readiness && !asks_for(uri.query(), "verbose") {
        let insight = Insight(may(Role::Read).is_ok());
        request.extensions_mut().insert(insight);
        return Ok(None);
    }
    let class = match rule {
        Rule::Probe => return Ok(None),
        Rule::Page => return access.is_meant(uri, headers).map(|()| None),
        Rule::Readiness | Rule::Read => RequestClass::Read,
        Rule::Metrics => RequestClass::Metrics,
        Rule::Events => RequestClass::Events,
        Rule::Hold(_) | Rule::Bodies | Rule::Change(_) => RequestClass::Change,
    };
    let holder = rule.role().map(may).transpose()?.unwrap_or_default();
    if rule == Rule::Bodies {
        access.has_bodies()?;
    }
    if matches!(rule, Rule::Change(_)) {
        has_json(headers)?;
    }
    let client = Client::of(peer, holder, headers);
    request.extensions_mut().insert(client);
    peer.permit(class).map(Some)
}

/// Whether the query has this parameter: `verbose`, `verbose=` and `verbose=1` all count.
pub(super) fn asks_for(query: Option<&str>, word: &str) -> bool {
    let pairs = query.unwrap_or_default().split('&');
    pairs.map(|pair| pair.split('=').next().unwrap_or_default()).any(|name| name == word)
}

/// The body of an answer, which holds its permit until the connection has taken all of it, in small pieces.
struct PermitBody {
    body: Body,
    /// What is left of the last piece of the body.
    rest: Bytes,
    _permit: Permit,
}

impl HttpBody for PermitBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            if !self.rest.is_empty() {
                let count = self.rest.len().min(PIECE);
                return Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(count)))));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::admin::connections::Connections;

    #[tokio::test]
    async fn an_answer_keeps_its_permit_until_its_last_piece_is_taken() {
        let connections = Connections::default();
        let connection = connections.open("192.0.2.1:1".parse().unwrap()).unwrap();
        let (_, of_one) = RequestClass::Read.permits();
        let take = || connection.peer.permit(RequestClass::Read);
        let mut permits: Vec<Permit> = (0..of_one).map(|_| take().unwrap()).collect();
        let permit = permits.pop().unwrap();
        let mut answer = Body::new(PermitBody {
            body: Body::from(vec![7; 2 * PIECE + 1]),
            rest: Bytes::new(),
            _permit: permit,
        });
        assert_eq!(answer.size_hint().exact(), Some(2 * PIECE as u64 + 1));
        let mut pieces = Vec::new();
        while !answer.is_end_stream() {
            assert!(take().is_err());
            pieces.push(answer.frame().await.unwrap().unwrap().into_data().unwrap().len());
        }
        assert_eq!(pieces, [PIECE, PIECE, 1]);
        drop(answer);
        assert!(take().is_ok());
    }
}
