//! `/api/v1`: shows the downstreams to operators and changes them, through any replica.

mod access;
mod body;
mod dead;
mod live;
mod operations;
mod reply;
mod view;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use futures_util::future::try_join_all;
use paced::bounded_log::BoundedLog;
use serde_json::json;
use tokio::sync::Semaphore;

pub(crate) use access::{Access, Peer};
pub(crate) use dead::Letters;
pub(crate) use operations::{Operations, OwnTerms};
pub(super) use reply::Refusal;

use body::OrderWithReason;
use operations::{Author, Done};
use reply::json_response;

use crate::status::Watch;

/// The rules of access, and the operations.
pub(crate) struct Api {
    access: Arc<Access>,
    operations: Operations,
    watch: Watch,
    /// The places of those who read events.
    streams: Arc<Semaphore>,
    letters: Letters,
}

impl Api {
    pub(crate) fn new(access: Arc<Access>, operations: Operations, watch: Watch, letters: Letters) -> Self {
        let streams = Arc::new(Semaphore::new(live::MAX_STREAMS));
        Self { access, operations, watch, streams, letters }
    }
}

type Shared = State<Arc<Api>>;

/// The routes below `/api`.
pub(crate) fn api(api: Api) -> Router {
    let api = Arc::new(api);
    Router::new()
        .route("/api/v1/status", get(live::status))
        .route("/api/v1/events", get(live::events))
        .route("/api/v1/history", get(live::history))
        .route("/api/v1/downstreams", get(list))
        .route("/api/v1/downstreams/{name}", get(one))
        .route("/api/v1/downstreams/{name}/pause", post(pause))
        .route("/api/v1/downstreams/{name}/resume", post(resume))
        .route("/api/v1/downstreams/{name}/reset", post(reset))
        .route("/api/v1/downstreams/{name}/cancel", post(cancel))
        .route("/api/v1/downstreams/{name}/dead", get(dead::list))
        .route("/api/v1/downstreams/{name}/dead/replay", post(dead::replay))
        .route("/api/v1/downstreams/{name}/dead/purge", post(dead::purge))
        .route("/api/v1/downstreams/{name}/rate", get(rates).put(set_rate).delete(unset_rate))
        .route("/api/{*rest}", any(nothing))
        .layer(from_fn_with_state(Arc::clone(&api), guard))
        .with_state(api)
}

/// The log of refused requests is bounded, since anybody who reaches the address could cause a line for each.
static REFUSALS: LazyLock<Arc<BoundedLog>> = LazyLock::new(|| {
    // These lines record who tried what, so more of them are kept than for messages.
    BoundedLog::with_bound(50, |summary| {
        let (requests, kinds) = (summary.lines, &summary);
        tracing::warn!(requests, %kinds, "admin: refused; too many to log each");
    })
});

/// Passes requests that are allowed, and answers those without a route in JSON.
async fn guard(
    State(api): Shared,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let asked = (request.method(), request.uri(), request.headers());
    if let Err(refusal) = api.access.check(asked, peer.local.ip()) {
        let (remote, status) = (peer.remote, refusal.status().as_u16());
        let (method, path) = (request.method(), request.uri().path());
        REFUSALS.line(refusal.status().canonical_reason().unwrap_or("other"), || {
            tracing::warn!(%remote, %method, path, status, error = refusal.text(), "admin: refused");
        });
        return refusal.into_response();
    }
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    // The router adds the methods that there are.
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "no method for this; use one of the header `allow`")
        .into_response()
}

async fn nothing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "no such page; see /api/v1/downstreams")
}

async fn list(State(api): Shared) -> Result<Response, Refusal> {
    let names = api.operations.names();
    let all = try_join_all(names.iter().map(|name| api.operations.downstream(name))).await?;
    Ok(json_response(StatusCode::OK, &json!({ "downstreams": all })))
}

async fn one(State(api): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    Ok(json_response(StatusCode::OK, &api.operations.downstream(&name).await?))
}

async fn rates(State(api): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    Ok(json_response(StatusCode::OK, &api.operations.rates(&name).await?))
}

type Who = Extension<Peer>;

async fn pause(
    State(api): Shared,
    Extension(peer): Who,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    api.change(peer, &name, "pause", body::read::<body::Pause>(body).await?).await
}

async fn resume(
    State(api): Shared,
    Extension(peer): Who,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    api.change(peer, &name, "resume", body::read::<body::Resume>(body).await?).await
}

async fn reset(
    State(api): Shared,
    Extension(peer): Who,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    api.change(peer, &name, "reset", body::read::<body::Reset>(body).await?).await
}

async fn cancel(
    State(api): Shared,
    Extension(peer): Who,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    api.change(peer, &name, "cancel", body::read::<body::Cancel>(body).await?).await
}

async fn set_rate(
    State(api): Shared,
    Extension(peer): Who,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    api.change(peer, &name, "rate set", body::read::<body::SetRate>(body).await?).await
}

async fn unset_rate(
    State(api): Shared,
    Extension(peer): Who,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    api.change(peer, &name, "rate unset", body::read::<body::UnsetRate>(body).await?).await
}

impl Api {
    /// Carries an order out, and writes it to the audit log, even if it failed.
    async fn change(
        &self,
        Peer { remote, .. }: Peer,
        downstream: &str,
        change: &str,
        (order, reason): OrderWithReason,
    ) -> Result<Response, Refusal> {
        let reason = reason.unwrap_or_default();
        let author = Author { address: remote.ip(), reason: &reason };
        match self.operations.carry_out(downstream, &order, &author).await {
            Ok(Done { before, after, body }) => {
                self.watch.changed(downstream);
                tracing::info!(%remote, downstream, change, before, after, reason, "admin: changed");
                Ok(json_response(StatusCode::OK, &body))
            }
            Err(refusal) => {
                let (status, error) = (refusal.status().as_u16(), refusal.text());
                tracing::warn!(%remote, downstream, change, reason, status, error, "admin: not changed");
                Err(refusal)
            }
        }
    }
}

#[cfg(test)]
mod tests;
