//! The state of all downstreams, once or as it changes, and what was released in the last minutes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use paced::api::state::{Downstream, State};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::Api;
use crate::admin::reply::{Refusal, json_text};
use crate::status::Watch;

/// How long a stream lasts: less than a connection does. Its reader asks again after it.
const STREAM_LIFE: Duration = Duration::from_secs(50);

/// A comment is sent after this time without a change, so that both ends notice a broken connection.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// `GET /api/v1/status`
pub(super) async fn status(Shared(api): Shared<Arc<Api>>) -> Response {
    json_text(StatusCode::OK, text(&*api.watch.state().await))
}

/// `GET /api/v1/downstreams/{name}/status`
pub(super) async fn status_of_one(
    Shared(api): Shared<Arc<Api>>,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    api.operations.known(&name)?;
    let state = api.watch.state().await;
    match state.downstreams.iter().find(|downstream| downstream.name == name) {
        Some(downstream) => Ok(json_text(StatusCode::OK, text(downstream))),
        None => Err(Refusal::later(
            StatusCode::SERVICE_UNAVAILABLE,
            "nothing is known of it yet; try again in a second",
            1,
        )),
    }
}

/// `GET /api/v1/history`
pub(super) async fn history(Shared(api): Shared<Arc<Api>>) -> Response {
    json_text(StatusCode::OK, text(&api.watch.history()))
}

/// `GET /api/v1/events`
pub(super) async fn events(Shared(api): Shared<Arc<Api>>) -> Response {
    let events = Events {
        states: api.watch.states(),
        watch: api.watch.clone(),
        first: Some(api.watch.state().await),
        sent: BTreeMap::new(),
        end: Instant::now() + STREAM_LIFE,
    };
    let events = stream::unfold(events, async |mut events| {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(event)), events))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

/// One reader of events. It is polled only as fast as its client reads, and skips states for which the client is too
/// slow.
struct Events {
    states: watch::Receiver<Arc<State>>,
    watch: Watch,
    /// The state that is sent first, whole.
    first: Option<Arc<State>>,
    /// The downstreams as they were sent last.
    sent: BTreeMap<String, Downstream>,
    end: Instant,
}

impl Events {
    /// The next event; `None` at the end. Cancel safe: an event that nobody took is sent with the next one.
    async fn next(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            self.states.mark_unchanged();
            return Some(self.event(&first));
        }
        self.watch.look();
        match timeout_at(self.end, timeout(PING_INTERVAL, self.states.changed())).await {
            // The stream has lasted long enough, or the observer has ended.
            Err(_) | Ok(Ok(Err(_))) => None,
            Ok(Err(_)) => Some(": ping\n\n".to_owned()),
            Ok(Ok(Ok(()))) => {
                let state = Arc::clone(&self.states.borrow_and_update());
                Some(self.event(&state))
            }
        }
    }

    /// The event of a state, with those downstreams that have changed.
    fn event(&mut self, state: &State) -> String {
        let mut changes = state.head();
        for downstream in &state.downstreams {
            if self.sent.get(&downstream.name) != Some(downstream) {
                self.sent.insert(downstream.name.clone(), downstream.clone());
                changes.downstreams.push(downstream.clone());
            }
        }
        format!("event: state\ndata: {}\n\n", text(&changes))
    }
}

/// JSON in one line.
fn text(value: &impl Serialize) -> String {
    // Numbers in it are finite and keys are texts, so that there is no error.
    serde_json::to_string(value).unwrap_or_default()
}
