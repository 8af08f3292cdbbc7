//! What one job of this replica waits for.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::dispatch::Question;
use tokio::time::timeout;

use super::{Api, Shared};
use crate::admin::reply::{Refusal, answer};

/// The time-out for an answer of a dispatcher.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// `GET /api/v1/downstreams/{name}/jobs/{id}`
pub(super) async fn job(
    State(api): Shared,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    let missing = format!(
        "job `{id}` does not wait in this replica: it waits in another one or in the broker, is parked, on its way to the \
         API, or gone"
    );
    explain(&api, &name, Question::Job(id), missing).await
}

/// `GET /api/v1/downstreams/{name}/lanes/{lane}`
pub(super) async fn lane(
    State(api): Shared,
    Path((name, lane)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    let missing = format!(
        "no job of the lane `{lane}` waits for a slot in this replica; a lane is written with all of its parts, as \
         `paced status {name}` shows it"
    );
    explain(&api, &name, Question::Lane(lane), missing).await
}

/// Answers a question to a dispatcher; `missing` is the answer if there is no such job.
async fn explain(api: &Api, name: &str, question: Question, missing: String) -> Result<Response, Refusal> {
    api.operations.known(name)?;
    let later = |text: &str| Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, 1);
    let Some(control) = api.dispatchers.all().get(name).map(|handle| handle.control.clone()) else {
        return Err(later("this replica does not serve it"));
    };
    let explained = match timeout(ANSWER_TIMEOUT, control.explain(question)).await {
        Ok(Ok(Some(explained))) => explained,
        Ok(Ok(None)) => return Err(Refusal::new(StatusCode::NOT_FOUND, missing)),
        Ok(Err(busy)) => return Err(later(&busy.to_string())),
        Err(_) => return Err(later("its loop does not answer; is the daemon starting or stopping?")),
    };
    match api.watch.explanation(name, explained).await {
        Some(explanation) => Ok(answer(&explanation)),
        None => Err(later("nothing is known of it yet; try again in a second")),
    }
}
