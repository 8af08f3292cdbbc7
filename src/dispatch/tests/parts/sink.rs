//! A sink that records what it is handed.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{dead, unreachable};
use crate::job::{Job, Reason};
use crate::sink::{AnswerPolicy, Handover, Meaning, Outcome, Receipt, Response, Sink, Soon};

/// A job that the sink was handed, and the instant.
#[derive(Clone, Debug)]
pub(in crate::dispatch) struct Sent {
    pub(in crate::dispatch) id: String,
    pub(in crate::dispatch) at: Instant,
}

/// Records the jobs that it is handed; it answers by script, or else delivers.
#[derive(Debug)]
pub(in crate::dispatch) struct RecordingSink {
    pub(in crate::dispatch) sent: Mutex<Vec<Sent>>,
    answers: Answers,
    pub(in crate::dispatch) flying: AtomicUsize,
    pub(in crate::dispatch) most: AtomicUsize,
    pub(in crate::dispatch) takes: Duration,
    pub(in crate::dispatch) connections: Connections,
    pub(in crate::dispatch) secrets: Secrets,
    arrivals: watch::Sender<usize>,
    deliveries: watch::Sender<usize>,
}

/// The connections of a [`RecordingSink`].
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Connections {
    /// Whether one can be opened.
    pub(in crate::dispatch) reachable: AtomicBool,
    /// The time until there is one, for the first sends, in reverse order.
    pub(in crate::dispatch) connects: Mutex<Vec<Duration>>,
    /// The time that those take to open which are announced.
    pub(in crate::dispatch) opens_in: Mutex<Duration>,
    /// The announcements that jobs will be sent soon.
    pub(in crate::dispatch) warmed: Mutex<Vec<(Instant, usize)>>,
    /// The number of trials.
    pub(in crate::dispatch) tried: AtomicUsize,
    /// The number of jobs that found none.
    pub(in crate::dispatch) unreached: AtomicUsize,
}

/// The credentials of a [`RecordingSink`].
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Secrets {
    /// Whether they are accepted.
    pub(in crate::dispatch) accepts: AtomicBool,
    /// Whether better ones are there once they are read again.
    pub(in crate::dispatch) renewed: AtomicBool,
    /// The jobs that are refused with all credentials.
    refused_jobs: Mutex<Vec<String>>,
    pub(in crate::dispatch) reads: AtomicUsize,
    /// Why they cannot be read.
    pub(in crate::dispatch) error: Mutex<Option<String>>,
}

/// The answers of a [`RecordingSink`].
#[derive(Debug, Default)]
struct Answers {
    scripts: Mutex<HashMap<String, VecDeque<Outcome>>>,
    rule: Rule,
    /// Whether they are successes that never end, and then whether these are streams of events.
    endless: Mutex<Option<bool>>,
}

/// What jobs are answered that have no script, by id; `None` delivers.
#[derive(Default)]
struct Rule(Mutex<Option<AnswerById>>);

type AnswerById = Box<dyn Fn(&str) -> Option<Outcome> + Send>;

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rule")
    }
}

impl RecordingSink {
    pub(in crate::dispatch) fn new(takes: Duration) -> Self {
        Self {
            sent: Mutex::default(),
            answers: Answers::default(),
            flying: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            takes,
            connections: Connections { reachable: AtomicBool::new(true), ..Connections::default() },
            secrets: Secrets { accepts: AtomicBool::new(true), ..Secrets::default() },
            arrivals: watch::Sender::new(0),
            deliveries: watch::Sender::new(0),
        }
    }

    /// Answers these jobs with 401, always.
    pub(in crate::dispatch) fn refuse<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        self.secrets.refused_jobs.lock().unwrap().extend(ids.into_iter().map(str::to_owned));
    }

    /// Waits until this many jobs were delivered.
    pub(in crate::dispatch) async fn accepted(&self, count: usize) {
        self.deliveries.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }

    pub(in crate::dispatch) fn answer(&self, id: &str, outcome: Outcome) {
        self.answers.scripts.lock().unwrap().entry(id.to_owned()).or_default().push_back(outcome);
    }

    /// Answers jobs by this rule, by their ids, unless they have a script; `None` delivers.
    pub(in crate::dispatch) fn answer_by(&self, rule: impl Fn(&str) -> Option<Outcome> + Send + 'static) {
        *self.answers.rule.0.lock().unwrap() = Some(Box::new(rule));
    }

    /// Answers every job with a success that never ends, or a stream of events.
    pub(in crate::dispatch) fn answer_endlessly(&self, is_stream: bool) {
        *self.answers.endless.lock().unwrap() = Some(is_stream);
    }

    pub(in crate::dispatch) fn ids(&self) -> Vec<String> {
        self.sent.lock().unwrap().iter().map(|sent| sent.id.clone()).collect()
    }

    /// The number of hand-overs.
    pub(in crate::dispatch) fn count(&self) -> usize {
        self.sent.lock().unwrap().len()
    }

    /// The instants of all hand-overs, in ms from `start`.
    pub(in crate::dispatch) fn millis(&self, start: Instant) -> Vec<u128> {
        self.sent.lock().unwrap().iter().map(|sent| (sent.at - start).as_millis()).collect()
    }

    pub(in crate::dispatch) async fn arrived(&self, count: usize) {
        self.arrivals.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }
}

/// An outcome with a status, as the policy has it.
fn by_status(outcome: Outcome, answers: &AnswerPolicy) -> Outcome {
    let (detail, status, after, response) = match outcome {
        Outcome::Throttled { detail, status, after, response, .. } => {
            let is_final = answers.never.contains(status);
            return Outcome::Throttled { detail, status, after, is_final, response };
        }
        Outcome::Retry { detail, status: Some(status), after, response, .. } => {
            (detail, status, after, response)
        }
        Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response } => {
            (detail, status, None, response)
        }
        Outcome::Outdated { detail, status, replaced, response, .. } => {
            return Outcome::Outdated { detail, status, replaced, is: answers.of_status(status), response };
        }
        outcome => return outcome,
    };
    match answers.of_status(status) {
        Meaning::Retry => Outcome::Retry { reason: "status", detail, status: Some(status), after, response },
        Meaning::Unauthorized => Outcome::Unauthorized { detail, status, response },
        _ => Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response },
    }
}

impl Sink for RecordingSink {
    fn release<'a>(&'a self, job: &'a Job, handover: Handover<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            handover.peer.set(&"api:443".into());
            let connects = self.connections.connects.lock().unwrap().pop();
            if let Some(connects) = connects {
                tokio::time::sleep(connects).await;
            }
            if !self.connections.reachable.load(Ordering::SeqCst) {
                self.connections.unreached.fetch_add(1, Ordering::SeqCst);
                return unreachable();
            }
            if !(handover.look)() {
                return Outcome::Missed;
            }
            self.sent.lock().unwrap().push(Sent { id: job.id.clone(), at: Instant::now() });
            self.arrivals.send_modify(|seen| *seen += 1);
            let flying = self.flying.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(flying, Ordering::SeqCst);
            tokio::time::sleep(self.takes).await;
            let endless = *self.answers.endless.lock().unwrap();
            if let Some(is_stream) = endless {
                handover.closing.wait(is_stream).await;
            }
            self.flying.fetch_sub(1, Ordering::SeqCst);
            let scripted =
                self.answers.scripts.lock().unwrap().get_mut(&job.id).and_then(VecDeque::pop_front);
            let by_rule = || self.answers.rule.0.lock().unwrap().as_ref().and_then(|rule| rule(&job.id));
            let scripted = scripted.or_else(by_rule);
            let is_refused = self.secrets.refused_jobs.lock().unwrap().contains(&job.id);
            if scripted.is_none() && (is_refused || !self.secrets.accepts.load(Ordering::SeqCst)) {
                return by_status(dead(401), handover.answers);
            }
            self.deliveries.send_modify(|seen| *seen += 1);
            let delivered = || Outcome::Delivered(Receipt::new(Response::without_body(Some(200))));
            by_status(scripted.unwrap_or_else(delivered), handover.answers)
        })
    }

    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        self.connections.tried.fetch_add(1, Ordering::SeqCst);
        let reachable = self.connections.reachable.load(Ordering::SeqCst);
        Box::pin(std::future::ready(reachable.then_some(()).ok_or_else(|| "refused".to_owned())))
    }

    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        self.secrets.reads.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = self.secrets.error.lock().unwrap().clone() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let new = self.secrets.renewed.swap(false, Ordering::SeqCst);
        if new {
            self.secrets.accepts.store(true, Ordering::SeqCst);
        }
        Box::pin(std::future::ready(Ok(new)))
    }

    fn warm(&self, soon: Soon) -> Option<BoxFuture<'static, ()>> {
        self.connections.warmed.lock().unwrap().push((Instant::now(), soon.at_once));
        let opens_in = *self.connections.opens_in.lock().unwrap();
        (!opens_in.is_zero()).then(|| Box::pin(tokio::time::sleep(opens_in)) as BoxFuture<'static, ()>)
    }
}
