//! `/api/v1`: shows the downstreams to operators and changes them, through any replica.

mod access;
mod body;
mod dead;
mod failed_logins;
mod live;
mod operations;
mod reply;
mod view;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

pub(crate) use access::{Access, Tokens, has_json};
pub(crate) use dead::Letters;
pub(crate) use operations::{Operations, OwnTerms};
pub(crate) use reply::Refusal;

pub(super) use super::connections::Peer;

use body::OrderWithReason;
use operations::{Author, Done};
use reply::json_response;

use super::routes::Verb::{Delete, Get, Post, Put};
use super::routes::{Route, Rule};
use crate::status::Watch;

/// The operations, and what is known.
pub(crate) struct Api {
    operations: Operations,
    watch: Watch,
    letters: Letters,
}

impl Api {
    pub(crate) const fn new(operations: Operations, watch: Watch, letters: Letters) -> Self {
        Self { operations, watch, letters }
    }
}

type Shared = State<Arc<Api>>;

/// The routes below `/api`.
pub(crate) fn api(api: Api) -> Vec<Route> {
    let api = &Arc::new(api);
    vec![
        Route::new(Get, "/api/v1/status", Rule::Look, (live::status, api)),
        Route::new(Get, "/api/v1/events", Rule::Events, (live::events, api)),
        Route::new(Get, "/api/v1/history", Rule::Look, (live::history, api)),
        Route::new(Get, "/api/v1/downstreams", Rule::Look, (list, api)),
        Route::new(Get, "/api/v1/downstreams/{name}", Rule::Look, (one, api)),
        Route::new(Post, "/api/v1/downstreams/{name}/pause", Rule::Change, (pause, api)),
        Route::new(Post, "/api/v1/downstreams/{name}/resume", Rule::Change, (resume, api)),
        Route::new(Post, "/api/v1/downstreams/{name}/reset", Rule::Change, (reset, api)),
        Route::new(Post, "/api/v1/downstreams/{name}/cancel", Rule::Change, (cancel, api)),
        Route::new(Get, "/api/v1/downstreams/{name}/dead", Rule::Hold, (dead::list, api)),
        Route::new(Post, "/api/v1/downstreams/{name}/dead/replay", Rule::Change, (dead::replay, api)),
        Route::new(Post, "/api/v1/downstreams/{name}/dead/purge", Rule::Change, (dead::purge, api)),
        Route::new(Get, "/api/v1/downstreams/{name}/rate", Rule::Look, (rates, api)),
        Route::new(Put, "/api/v1/downstreams/{name}/rate", Rule::Change, (set_rate, api)),
        Route::new(Delete, "/api/v1/downstreams/{name}/rate", Rule::Change, (unset_rate, api)),
    ]
}

/// The downstreams, from memory: however many ask, however slow the store is, it is asked no more for it.
async fn list(State(api): Shared) -> Result<Response, Refusal> {
    let records = api.watch.records().await;
    let names = api.operations.names();
    let all: Result<Vec<Value>, Refusal> = names
        .iter()
        .map(|name| match records.get(name) {
            Some(record) => api.operations.describe(name, record),
            None => Err(unread(api.watch.store_error())),
        })
        .collect();
    let all = all?;
    Ok(json_response(StatusCode::OK, &json!({ "downstreams": all })))
}

/// The refusal of a list while the records of some downstreams are not known, or are old.
fn unread(store_error: Option<String>) -> Refusal {
    let text = match store_error {
        Some(error) => format!("the store does not tell how the downstreams stand: {error}"),
        None => "not all downstreams have been read from the store yet; try again in a second".to_owned(),
    };
    Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, 1)
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
pub(super) mod tests;
