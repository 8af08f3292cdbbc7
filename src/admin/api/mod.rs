//! `/api/v1`: shows the downstreams to operators and changes them, through any replica.

mod body;
mod dead;
mod find;
mod live;
mod operations;
mod orders;
mod values;
mod view;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::api::history::Changes;
use paced::api::{
    CANCEL, CHANGES, DOWNSTREAM, DOWNSTREAM_STATUS, DOWNSTREAMS, DROP_TERMS, Downstream, Downstreams, EVENTS,
    Endpoint, FIND, FORCE_TERMS, HISTORY, LETTER, LETTERS, PAUSE, PAUSE_VALUE, PURGE_LETTERS, RATES,
    REPLAY_LETTERS, RESET, RESUME, RESUME_VALUE, SET_RATE, SET_WEIGHT, STATUS, TERMS, UNSET_RATE,
    UNSET_WEIGHT,
};
use paced::config::Role;
use paced::store::RecordState;
use tokio_util::task::TaskTracker;

pub(crate) use dead::Letters;
use find::Seeker;
pub(crate) use operations::Operations;

use super::audit::Subject;
use super::reply::{Refusal, answer};
use super::routes::{Client, Route, Rule};
use crate::status::{Dispatchers, Watch};
use operations::{Author, Done};
use orders::Order;

/// The most changes that are in progress at once, also of clients that have disconnected.
const MAX_CHANGES: usize = 64;

/// The operations, and the state that the API shows.
pub(crate) struct Api {
    operations: Operations,
    watch: Watch,
    letters: Letters,
    seeker: Seeker,
    /// The changes that are being made: each runs to its end, also if its client hangs up.
    changes: TaskTracker,
}

impl Api {
    pub(crate) fn new(
        operations: Operations,
        watch: Watch,
        letters: Letters,
        dispatchers: Dispatchers,
    ) -> Self {
        let seeker = Seeker::new(dispatchers);
        Self { operations, watch, letters, seeker, changes: TaskTracker::new() }
    }

    /// The record of a downstream as the store has it now; from memory, as in a list, if requests would read the store too
    /// often. Cancel safe.
    async fn record(&self, name: &str) -> Result<RecordState, Refusal> {
        self.operations.known(name)?;
        if let Some(record) = self.operations.read(name).await? {
            return Ok(record);
        }
        let record = self.watch.records().await.remove(name);
        record.ok_or_else(|| unread(self.watch.store_error()))
    }

    /// Makes a change, to its end, also if its client hangs up. A client that sends many and hangs up must not fill the
    /// memory with them.
    async fn make<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        if self.changes.len() >= MAX_CHANGES {
            let text = "too many changes are in progress already; try again in a second";
            return Err(Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, 1));
        }
        // The runtime reports a panic.
        self.changes.spawn(change).await.unwrap_or_else(|_| Err(broke_off()))
    }

    /// The changes that are being made, to be waited for at the end.
    pub(crate) fn changes(&self) -> TaskTracker {
        self.changes.clone()
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
        Route::to(&FIND, Rule::Read, (find::find, api)),
        order(&PAUSE, api),
        order(&RESUME, api),
        order(&RESET, api),
        order(&CANCEL, api),
        Route::to(&LETTERS, Rule::Hold(Role::Operate), (dead::list, api)),
        Route::to(&LETTER, Rule::Bodies, (dead::show, api)),
        Route::to(&REPLAY_LETTERS, Rule::Change(Role::Operate), (dead::replay, api)),
        Route::to(&PURGE_LETTERS, Rule::Change(Role::Admin), (dead::purge, api)),
        Route::to(&RATES, Rule::Read, (rates, api)),
        order(&SET_RATE, api),
        order(&UNSET_RATE, api),
        order(&SET_WEIGHT, api),
        order(&UNSET_WEIGHT, api),
        order(&PAUSE_VALUE, api),
        order(&RESUME_VALUE, api),
        Route::to(&CHANGES, Rule::Read, (changes, api)),
        Route::to(&TERMS, Rule::Read, (stored_terms, api)),
        order(&FORCE_TERMS, api),
        order(&DROP_TERMS, api),
    ]
}

/// The route of an order.
fn order<O: Order>(endpoint: &Endpoint<O, Downstream>, api: &Arc<Api>) -> Route {
    Route::to(endpoint, Rule::Change(O::ROLE), (change::<O>, api))
}

/// The downstreams, from memory: more clients or a slow store cause no more calls to the store.
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
    let record = api.record(&name).await?;
    Ok(answer(&api.operations.describe(&name, &record)?))
}

async fn changes(State(api): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    api.operations.known(&name)?;
    let changes = api.operations.changes(&name).await?;
    Ok(answer(&Changes { name, changes }))
}

async fn stored_terms(State(api): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    let record = api.record(&name).await?;
    Ok(answer(&api.operations.stored_terms(&name, &record)?))
}

async fn rates(State(api): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    let record = api.record(&name).await?;
    Ok(answer(&api.operations.rates(&name, &record)?))
}

/// Carries an order out, and writes it to the audit log, even if it failed or the client has gone meanwhile.
async fn change<O: Order>(
    State(api): Shared,
    Extension(client): Extension<Client>,
    Path(downstream): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let order: O = body::read(body).await?;
    let reason = body::reason(order.reason().cloned())?;
    let by = client.author.by.clone();
    let subject = Subject {
        client,
        downstream: downstream.clone(),
        change: O::NAME,
        chosen: String::new(),
        reason: reason.clone().unwrap_or_default(),
    };
    let shared = Arc::clone(&api);
    let carried_out = shared.make(async move {
        let begun = subject.begin().await;
        let by = Author { name: &by, reason: reason.as_deref() };
        let allowed = if O::SETS_VALUE { values::check(&api, &downstream) } else { Ok(()) };
        let done = match allowed.and_then(|()| api.operations.target(&downstream, by)) {
            Ok(target) => order.carry_out(target).await,
            Err(refusal) => Err(refusal),
        };
        match done {
            Ok(Done { before, after, body }) => {
                let made = begun.made(&before, &after);
                api.watch.changed(&downstream, Some(body.pause.clone()));
                api.operations.note(&downstream, &made).await;
                Ok(answer(&body))
            }
            Err(refusal) => {
                if let Some(perhaps) = begun.failed(&refusal) {
                    api.watch.changed(&downstream, None);
                    api.operations.note(&downstream, &perhaps).await;
                }
                Err(refusal)
            }
        }
    });
    carried_out.await
}

/// The refusal of a change that broke off by itself.
fn broke_off() -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the change broke off; see the log").or_made()
}

#[cfg(test)]
pub(super) mod tests;
