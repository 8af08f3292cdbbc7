//! Where jobs are and what they wait for, as far as the dispatchers of this replica and of others hold and remember
//! them.
//!
//! For each question a dispatcher visits all of its jobs and lanes, in the loop that releases them. So one request at
//! a time asks, with a pause before the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::api::find::{Found, Job, Parked, Turn};
use paced::api::state;
use paced::dispatch::{self, Question};
use paced::time::wall_now;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::Api;
use crate::admin::reply::{Refusal, answer};
use crate::status::{Answer, Dispatchers, Handle, estimate, shown_job, shown_parked, words};

/// How long a dispatcher may take for its answer. Its loop runs within milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a request waits for those before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(3);

/// The least time between two questions. It is also at least a multiple of the time that the last answer took, up to
/// a bound: with a full window and many lanes the loop needs some milliseconds for each answer, and hands out no
/// slots meanwhile.
const SPACING: Duration = Duration::from_millis(50);
const TIMES_ANSWER: u32 = 20;
const LONGEST_SPACING: Duration = Duration::from_secs(1);

/// The longest id, and the longest name of a lane, in bytes.
const LONGEST_ID: usize = 255;
const LONGEST_LANE: usize = 4096;

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

    /// The dispatcher of a downstream.
    fn dispatcher(&self, downstream: &str) -> Result<Handle, Refusal> {
        self.dispatchers.all().get(downstream).cloned().ok_or_else(silent)
    }

    /// Asks this question when its turn comes. Cancel safe: a dropped question does not bring the next one forward.
    async fn in_turn(
        &self,
        question: impl Future<Output = dispatch::Found> + Send + 'static,
    ) -> Result<dispatch::Found, Refusal> {
        let turn = Arc::clone(&self.turn);
        let turn = timeout(TURN_TIMEOUT, turn.acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok).ok_or_else(crowded)?;
        let asked = tokio::spawn(async move {
            let start = Instant::now();
            let found = timeout(ANSWER_TIMEOUT, question).await.ok();
            let took = found.as_ref().map_or(Duration::ZERO, |_| start.elapsed());
            sleep((took * TIMES_ANSWER).clamp(SPACING, LONGEST_SPACING)).await;
            drop(turn);
            found
        });
        // The runtime reports a panic.
        asked.await.ok().flatten().ok_or_else(silent)
    }

    /// The answers of the other replicas that have this downstream, within some seconds. Cancel safe.
    async fn ask_others(
        &self,
        api: &Api,
        downstream: &str,
        question: &Question,
    ) -> Result<BTreeMap<String, Answer>, Refusal> {
        let turn = timeout(TURN_TIMEOUT, self.turn_of_others.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or_else(crowded)?;
        Ok(api.watch.ask_others(downstream, question).await)
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
    let (question, asks_others) = sought(query.as_deref().unwrap_or_default())?;
    let Handle { control, view, .. } = api.seeker.dispatcher(&name)?;
    let meant = question.clone();
    let found = api.seeker.in_turn(async move { control.find(meant).await }).await?;
    let others =
        if asks_others { api.seeker.ask_others(&api, &name, &question).await? } else { BTreeMap::new() };
    let state = api.watch.state().await;
    let unknown = state::Downstream { name, ..state::Downstream::default() };
    let known = state.downstreams.iter().find(|downstream| downstream.name == unknown.name);
    let downstream = known.unwrap_or(&unknown);
    let mut found = describe(question, (&state.replica, downstream), &found, others);
    let snapshot = view.snapshot();
    found.jobs.iter_mut().for_each(|job| estimate(job, downstream, &snapshot));
    found.text = lines(&found, downstream);
    Ok(answer(&found))
}

/// The findings of this replica, and the answers of others.
fn describe(
    question: Question,
    (me, downstream): (&String, &state::Downstream),
    found: &dispatch::Found,
    others: BTreeMap<String, Answer>,
) -> Found {
    let clock = (Instant::now(), wall_now());
    let (id, lane) = match question {
        Question::Id(id) => (Some(id), None),
        Question::Lane(lane) => (None, Some(lane)),
    };
    let mine = |job| Job { replica: me.clone(), ..shown_job(job, clock) };
    let is_silent = |id: &&String| *id != me && !others.contains_key(*id);
    let not_asked =
        downstream.parts.replicas.iter().map(|share| &share.id).filter(is_silent).cloned().collect();
    let mut found = Found {
        id,
        lane,
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
        // The latest parking counts, unless that job has come back.
        found.parked = found.parked.into_iter().chain(parked).max_by_key(|parked| parked.at);
    }
    found.parked = found.parked.filter(|_| found.jobs.is_empty());
    found
}

/// The jobs that a query names, as `id=invoice-4711` or `lane=tenant%3Dacme`, and whether the other replicas are asked too:
/// `others=true`.
fn sought(query: &str) -> Result<(Question, bool), Refusal> {
    let (mut sought, mut asks_others) = (None, false);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("id", id) if sought.is_none() && (1..=LONGEST_ID).contains(&id.len()) => {
                sought = Some(Question::Id(id.to_owned()));
            }
            ("lane", lane) if sought.is_none() && lane.len() <= LONGEST_LANE => {
                sought = Some(Question::Lane(lane.to_owned()));
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
            "write ?id=ID with the id of a job, of 1 to {LONGEST_ID} bytes, or ?lane=LANE with the name of a lane, of at \
             most {LONGEST_LANE} bytes, and perhaps &others=true"
        );
        Refusal::wrong(text)
    };
    Ok((sought.ok_or_else(wrong)?, asks_others))
}

/// The answer, in lines for people.
fn lines(found: &Found, downstream: &state::Downstream) -> Vec<String> {
    let replica = &found.replica;
    let mut lines = Vec::new();
    for job in &found.jobs {
        let name = found.lane.as_ref().map(|_| format!("job {}: ", job.id)).unwrap_or_default();
        lines.push(format!("{name}{}", line(job)));
        if let Some(bound) = &job.binding {
            let text = format!("what holds it back: {}", bound.text);
            if !lines.contains(&text) {
                lines.push(text);
            }
        }
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
        lines.push(match &found.lane {
            Some(lane) => format!(
                "no job of the lane `{lane}` waits for a slot at replica {replica}; a lane is written with all of its parts, \
                 as `paced status {}` shows it",
                downstream.name
            ),
            None => format!("replica {replica} does not hold it, and has not parked it lately"),
        });
    }
    if !found.not_asked.is_empty() {
        let jobs = if found.lane.is_some() { "such jobs" } else { "it" };
        lines.push(format!(
            "these replicas were not asked, or did not answer, and may hold {jobs}: {}",
            found.not_asked.join(", ")
        ));
    }
    lines.extend(in_broker(found, downstream));
    lines
}

/// The jobs of the downstream that RabbitMQ holds. Only dead letters can be searched for a job there.
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
    if let Some(id) = found.id.as_ref().filter(|_| queues.dead != Some(0)) {
        let (name, dead) = (&downstream.name, count(queues.dead.map(i64::from)));
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
            let behind = job.turn.as_ref().map(behind).unwrap_or_default();
            let about = at.map(|at| format!(", and may go at about {at}")).unwrap_or_default();
            format!("it waits for a slot at replica {replica}{behind}{about}")
        }
        ("delayed", Some(at)) => format!("replica {replica} holds it until {at}"),
        ("retrying", Some(at)) => format!("replica {replica} holds it for its next attempt at {at}"),
        ("held", Some(at)) => format!("it has the slot of {at} at replica {replica}"),
        ("sending", _) => format!("replica {replica} is sending, settling or parking it"),
        _ => format!("replica {replica} holds it until the API can be used again"),
    };
    format!("{place}{attempts}")
}

/// The text about the jobs that go before a job.
fn behind(Turn { lane, waiting, ahead, before, .. }: &Turn) -> String {
    match lane {
        Some(lane) => format!(
            ", behind {ahead} of the {waiting} job(s) of its lane {lane} there, and {before} of all lanes"
        ),
        None => format!(", behind {before} job(s) there"),
    }
}

#[cfg(test)]
mod tests;
