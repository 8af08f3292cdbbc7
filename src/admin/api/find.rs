//! Where the jobs with an id are: what the dispatcher of this replica holds and remembers, and those of others.
//!
//! A dispatcher goes over all of its jobs for each question, in the loop that releases them. So one request at a time asks, and
//! not again at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::api::find::{Found, Job, Parked};
use paced::api::state;
use paced::dispatch;
use paced::time::wall_now;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::Api;
use crate::admin::reply::{Refusal, answer};
use crate::status::{Answer, Dispatchers, shown_job, shown_parked, words};

/// How long a dispatcher may take for its answer. Its loop runs within milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a request waits for those before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(3);

/// The least time between two questions: with a full window the loop is busy for some milliseconds with each.
const SPACING: Duration = Duration::from_millis(50);

/// The longest id, in bytes.
const LONGEST_ID: usize = 255;

/// The dispatchers that are asked for jobs, and the turns of requests: to ask one of them, and to ask the other replicas.
pub(super) struct Seeker {
    dispatchers: Dispatchers,
    turn: Arc<Semaphore>,
    turn_of_others: Semaphore,
}

impl Seeker {
    /// Asks these dispatchers.
    pub(super) fn new(dispatchers: Dispatchers) -> Self {
        let (turn, turn_of_others) = (Arc::new(Semaphore::new(1)), Semaphore::new(1));
        Self { dispatchers, turn, turn_of_others }
    }

    /// What the dispatcher of a downstream knows of an id. Cancel safe.
    async fn ask(&self, downstream: &str, id: &str) -> Result<dispatch::Found, Refusal> {
        let control = self.dispatchers.all().get(downstream).ok_or_else(silent)?.control.clone();
        let id = id.to_owned();
        self.in_turn(async move { control.find(&id).await }).await
    }

    /// Asks this question, once it is its turn. Cancel safe: the next one has its turn no earlier for that.
    async fn in_turn(
        &self,
        question: impl Future<Output = dispatch::Found> + Send + 'static,
    ) -> Result<dispatch::Found, Refusal> {
        let turn = Arc::clone(&self.turn);
        let turn = timeout(TURN_TIMEOUT, turn.acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok).ok_or_else(crowded)?;
        let asked = tokio::spawn(async move {
            let found = timeout(ANSWER_TIMEOUT, question).await;
            sleep(SPACING).await;
            drop(turn);
            found.ok()
        });
        // The runtime reports a panic.
        asked.await.ok().flatten().ok_or_else(silent)
    }

    /// What the other replicas answer that have this downstream, within some seconds. Cancel safe.
    async fn ask_others(
        &self,
        api: &Api,
        downstream: &str,
        id: &str,
    ) -> Result<BTreeMap<String, Answer>, Refusal> {
        let turn = timeout(TURN_TIMEOUT, self.turn_of_others.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or_else(crowded)?;
        Ok(api.watch.ask_others(downstream, id).await)
    }
}

fn crowded() -> Refusal {
    let text = "many look for jobs; try again in a second";
    Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, 1)
}

fn silent() -> Refusal {
    let text = "its dispatcher does not answer: it starts, stops or is stuck (see /livez)";
    Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, 1)
}

/// `GET /api/v1/downstreams/NAME/job`
pub(super) async fn find(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    api.operations.known(&name)?;
    let (id, asks_others) = sought(query.as_deref().unwrap_or_default())?;
    let found = api.seeker.ask(&name, &id).await?;
    let others = if asks_others { api.seeker.ask_others(&api, &name, &id).await? } else { BTreeMap::new() };
    let state = api.watch.state().await;
    let unknown = state::Downstream { name, ..state::Downstream::default() };
    let known = state.downstreams.iter().find(|downstream| downstream.name == unknown.name);
    let downstream = known.unwrap_or(&unknown);
    let answered = describe(&api, &state, (downstream, id), (&found, others));
    Ok(answer(&answered))
}

/// What this replica has found, and what others have answered.
fn describe(
    api: &Api,
    state: &state::State,
    (downstream, id): (&state::Downstream, String),
    (found, others): (&dispatch::Found, BTreeMap<String, Answer>),
) -> Found {
    let (me, clock) = (&state.replica, (Instant::now(), wall_now()));
    let replicas = u64::try_from(downstream.parts.replicas.len()).unwrap_or(1).max(1);
    // Each replica has about the same part of the pace.
    let gone = |ahead: u64| api.watch.gone_at(downstream, (ahead + 1).saturating_mul(replicas), state.now);
    let mine = |job| Job { replica: me.clone(), ..shown_job(job, clock, gone) };
    let is_silent = |id: &&String| *id != me && !others.contains_key(*id);
    let not_asked =
        downstream.parts.replicas.iter().map(|share| &share.id).filter(is_silent).cloned().collect();
    let mut found = Found {
        id,
        now: clock.1.0 / 1000,
        replica: me.clone(),
        not_asked,
        jobs: found.jobs.iter().map(mine).collect(),
        parked: found.parked.map(|parked| Parked { replica: me.clone(), ..shown_parked(parked) }),
        cancelled: found.is_cancelled,
        text: Vec::new(),
    };
    for Answer { jobs, parked, .. } in others.into_values() {
        found.jobs.extend(jobs);
        // The latest one counts, unless that has come back.
        found.parked = found.parked.into_iter().chain(parked).max_by_key(|parked| parked.at);
    }
    found.parked = found.parked.filter(|_| found.jobs.is_empty());
    found.text = lines(&found, downstream);
    found
}

/// The id that a query names, as `id=invoice-4711`, and whether the other replicas are asked too: `others=true`.
fn sought(query: &str) -> Result<(String, bool), Refusal> {
    let (mut sought, mut asks_others) = (None, false);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("id", id) if sought.is_none() && (1..=LONGEST_ID).contains(&id.len()) => {
                sought = Some(id.to_owned())
            }
            ("others", "true") => asks_others = true,
            ("others", "false") => asks_others = false,
            _ => {
                sought = None;
                break;
            }
        }
    }
    let wrong = || {
        let text = format!(
            "write ?id=ID with the id of a job, of 1 to {LONGEST_ID} bytes, and perhaps &others=true"
        );
        Refusal::wrong(text)
    };
    Ok((sought.ok_or_else(wrong)?, asks_others))
}

/// What is known, in lines for people.
fn lines(found: &Found, downstream: &state::Downstream) -> Vec<String> {
    let replica = &found.replica;
    let mut lines: Vec<String> = found.jobs.iter().map(line).collect();
    if found.jobs.iter().any(|job| job.place == "waiting") {
        lines.push(format!("what holds jobs back: {}", downstream.binding.text));
    }
    if let Some(Parked { replica, at, until, reason }) = &found.parked {
        let [at, until] = [*at, *until].map(words::instant);
        lines.push(format!(
            "replica {replica} parked it at {at} until about {until} ({reason}): it is in RabbitMQ, or another replica has \
             taken it since"
        ));
    }
    if found.cancelled {
        lines.push("its id is cancelled: no replica sends it".to_owned());
    }
    if !found.jobs.is_empty() {
        return lines;
    }
    if found.parked.is_none() {
        lines.push(format!("replica {replica} does not hold it, and has not parked it lately"));
    }
    if !found.not_asked.is_empty() {
        lines.push(format!(
            "these replicas were not asked, or did not answer, and may hold it: {}",
            found.not_asked.join(", ")
        ));
    }
    lines.extend(in_broker(found, downstream));
    lines
}

/// What RabbitMQ holds of the downstream, where nobody can look for an id but among dead letters.
fn in_broker(found: &Found, downstream: &state::Downstream) -> Vec<String> {
    let queues = &downstream.queues;
    let count =
        |jobs: Option<i64>| jobs.map_or_else(|| "an unknown number of".to_owned(), |jobs| jobs.to_string());
    let [queued, parked] = [queues.queued.map(i64::from), queues.parked].map(count);
    let mut lines = Vec::new();
    if queues.queued != Some(0) || queues.parked != Some(0) {
        lines.push(format!(
            "RabbitMQ has {queued} queued and {parked} parked job(s), which nobody can look through"
        ));
    }
    if queues.dead != Some(0) {
        let (name, id) = (&downstream.name, &found.id);
        let dead = count(queues.dead.map(i64::from));
        lines.push(format!("`paced dead list {name} --id {id}` looks through {dead} dead letter(s)"));
    }
    lines
}

fn line(job: &Job) -> String {
    let replica = &job.replica;
    let at = job.at.map(words::instant);
    let attempts = match job.attempts {
        None | Some(0) => String::new(),
        Some(attempts) => format!("; {attempts} attempt(s) so far"),
    };
    let place = match (job.place.as_str(), at) {
        ("waiting", at) => {
            let about = at.map(|at| format!(", and may go at about {at}")).unwrap_or_default();
            let ahead = job.ahead.unwrap_or_default();
            format!(
                "it waits for a slot at replica {replica}, behind {ahead} job(s) of its lane there{about}"
            )
        }
        ("delayed", Some(at)) => format!("replica {replica} holds it until {at}"),
        ("retrying", Some(at)) => format!("replica {replica} holds it for its next attempt at {at}"),
        ("held", Some(at)) => format!("it has the slot of {at} at replica {replica}"),
        ("sending", _) => format!("replica {replica} is sending, settling or parking it"),
        _ => format!("replica {replica} holds it until the API can be used again"),
    };
    format!("{place}{attempts}")
}

#[cfg(test)]
mod tests;
