//! `/api/v1`: shows the downstreams to operators and changes them, through any replica.

mod body;
mod dead;
mod live;
mod operations;
mod orders;
mod view;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::api::{
    CANCEL, DOWNSTREAM, DOWNSTREAM_STATUS, DOWNSTREAMS, Downstream, Downstreams, EVENTS, Endpoint, HISTORY,
    LETTERS, PAUSE, PURGE_LETTERS, RATES, REPLAY_LETTERS, RESET, RESUME, SET_RATE, STATUS, UNSET_RATE,
};

pub(crate) use dead::Letters;
pub(crate) use operations::Operations;

use super::connections::Peer;
use super::reply::{Refusal, answer};
use super::routes::{Route, Rule};
use crate::status::Watch;
use operations::{Author, Done};
use orders::Order;

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
        Route::to(&STATUS, Rule::Read, (live::status, api)),
        Route::to(&EVENTS, Rule::Events, (live::events, api)),
        Route::to(&HISTORY, Rule::Read, (live::history, api)),
        Route::to(&DOWNSTREAMS, Rule::Read, (list, api)),
        Route::to(&DOWNSTREAM, Rule::Read, (one, api)),
        Route::to(&DOWNSTREAM_STATUS, Rule::Read, (live::status_of_one, api)),
        order(&PAUSE, api),
        order(&RESUME, api),
        order(&RESET, api),
        order(&CANCEL, api),
        Route::to(&LETTERS, Rule::Hold, (dead::list, api)),
        Route::to(&REPLAY_LETTERS, Rule::Change, (dead::replay, api)),
        Route::to(&PURGE_LETTERS, Rule::Change, (dead::purge, api)),
        Route::to(&RATES, Rule::Read, (rates, api)),
        order(&SET_RATE, api),
        order(&UNSET_RATE, api),
    ]
}

/// The route of an order.
fn order<O: Order>(endpoint: &Endpoint<O, Downstream>, api: &Arc<Api>) -> Route {
    Route::to(endpoint, Rule::Change, (change::<O>, api))
}

/// The downstreams, from memory: however many ask, however slow the store is, it is asked no more for it.
async fn list(State(api): Shared) -> Result<Response, Refusal> {
    let records = api.watch.records().await;
    let names = api.operations.names();
    let downstreams: Result<Vec<Downstream>, Refusal> = names
        .iter()
        .map(|name| match records.get(name) {
            Some(record) => api.operations.describe(name, record),
            None => Err(unread(api.watch.store_error())),
        })
        .collect();
    Ok(answer(&Downstreams { downstreams: downstreams? }))
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
    Ok(answer(&api.operations.downstream(&name).await?))
}

async fn rates(State(api): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    Ok(answer(&api.operations.rates(&name).await?))
}

/// Carries an order out, and writes it to the audit log, even if it failed.
async fn change<O: Order>(
    State(api): Shared,
    Extension(Peer { remote, .. }): Extension<Peer>,
    Path(downstream): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let order: O = body::read(body).await?;
    let reason = body::reason(order.reason().cloned())?;
    let reason = reason.as_deref();
    let done = match api.operations.target(&downstream, Author { address: remote.ip(), reason }) {
        Ok(target) => order.carry_out(target).await,
        Err(refusal) => Err(refusal),
    };
    let (change, reason) = (O::NAME, reason.unwrap_or_default());
    match done {
        Ok(Done { before, after, body }) => {
            api.watch.changed(&downstream);
            tracing::info!(%remote, downstream, change, before, after, reason, "admin: changed");
            Ok(answer(&body))
        }
        Err(refusal) => {
            let (status, error) = (refusal.status().as_u16(), refusal.text());
            tracing::warn!(%remote, downstream, change, reason, status, error, "admin: not changed");
            Err(refusal)
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
