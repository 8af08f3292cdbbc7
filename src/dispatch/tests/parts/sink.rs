//! A sink that records what it is handed.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{dead, unreachable};
use crate::job::Job;
use crate::sink::{LastLook, Outcome, Receipt, Response, Sink, Soon};
use crate::store::BoxFuture;

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
    answers: Mutex<HashMap<String, VecDeque<Outcome>>>,
    pub(in crate::dispatch) flying: AtomicUsize,
    pub(in crate::dispatch) most: AtomicUsize,
    pub(in crate::dispatch) takes: Duration,
    /// The time until there is a connection, for the first sends, in reverse order.
    pub(in crate::dispatch) connects: Mutex<Vec<Duration>>,
    /// The time that connections take to open which are announced.
    pub(in crate::dispatch) opens_in: Mutex<Duration>,
    /// The announcements that jobs will be sent soon.
    pub(in crate::dispatch) warmed: Mutex<Vec<(Instant, usize)>>,
    arrivals: watch::Sender<usize>,
    deliveries: watch::Sender<usize>,
    /// Whether it can be reached.
    pub(in crate::dispatch) reachable: AtomicBool,
    /// Whether it accepts the credentials.
    pub(in crate::dispatch) accepts: AtomicBool,
    /// Whether better credentials are there once they are read again.
    pub(in crate::dispatch) new_secrets: AtomicBool,
    /// The jobs that it refuses whatever the credentials.
    refused: Mutex<Vec<String>>,
    /// The number of trial connections.
    pub(in crate::dispatch) tried: AtomicUsize,
    /// The number of jobs that found no connection.
    pub(in crate::dispatch) unreached: AtomicUsize,
    pub(in crate::dispatch) secrets_read: AtomicUsize,
    /// Why the secrets cannot be read.
    pub(in crate::dispatch) secrets_error: Mutex<Option<String>>,
}

impl RecordingSink {
    pub(in crate::dispatch) fn new(takes: Duration) -> Self {
        Self {
            sent: Mutex::default(),
            answers: Mutex::default(),
            flying: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            takes,
            connects: Mutex::default(),
            opens_in: Mutex::default(),
            warmed: Mutex::default(),
            arrivals: watch::Sender::new(0),
            deliveries: watch::Sender::new(0),
            reachable: AtomicBool::new(true),
            accepts: AtomicBool::new(true),
            new_secrets: AtomicBool::new(false),
            refused: Mutex::default(),
            tried: AtomicUsize::new(0),
            unreached: AtomicUsize::new(0),
            secrets_read: AtomicUsize::new(0),
            secrets_error: Mutex::default(),
        }
    }

    /// Answers these jobs with 401, always.
    pub(in crate::dispatch) fn refuse<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        self.refused.lock().unwrap().extend(ids.into_iter().map(str::to_owned));
    }

    /// Waits until this many jobs were delivered.
    pub(in crate::dispatch) async fn accepted(&self, count: usize) {
        self.deliveries.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }

    pub(in crate::dispatch) fn answer(&self, id: &str, outcome: Outcome) {
        self.answers.lock().unwrap().entry(id.to_owned()).or_default().push_back(outcome);
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

impl Sink for RecordingSink {
    fn release<'a>(&'a self, job: &'a Job, look: LastLook<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let connects = self.connects.lock().unwrap().pop();
            if let Some(connects) = connects {
                tokio::time::sleep(connects).await;
            }
            if !self.reachable.load(Ordering::SeqCst) {
                self.unreached.fetch_add(1, Ordering::SeqCst);
                return unreachable();
            }
            if !look() {
                return Outcome::Missed;
            }
            self.sent.lock().unwrap().push(Sent { id: job.id.clone(), at: Instant::now() });
            self.arrivals.send_modify(|seen| *seen += 1);
            let flying = self.flying.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(flying, Ordering::SeqCst);
            tokio::time::sleep(self.takes).await;
            self.flying.fetch_sub(1, Ordering::SeqCst);
            let scripted = self.answers.lock().unwrap().get_mut(&job.id).and_then(VecDeque::pop_front);
            let is_refused = self.refused.lock().unwrap().contains(&job.id);
            if scripted.is_none() && (is_refused || !self.accepts.load(Ordering::SeqCst)) {
                return dead(401);
            }
            self.deliveries.send_modify(|seen| *seen += 1);
            scripted.unwrap_or_else(|| Outcome::Delivered(Receipt::new(Response::without_body(Some(200)))))
        })
    }

    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        self.tried.fetch_add(1, Ordering::SeqCst);
        let reachable = self.reachable.load(Ordering::SeqCst);
        Box::pin(std::future::ready(reachable.then_some(()).ok_or_else(|| "refused".to_owned())))
    }

    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        self.secrets_read.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = self.secrets_error.lock().unwrap().clone() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let new = self.new_secrets.swap(false, Ordering::SeqCst);
        if new {
            self.accepts.store(true, Ordering::SeqCst);
        }
        Box::pin(std::future::ready(Ok(new)))
    }

    fn warm(&self, soon: Soon) -> Option<BoxFuture<'static, ()>> {
        self.warmed.lock().unwrap().push((Instant::now(), soon.at_once));
        let opens_in = *self.opens_in.lock().unwrap();
        (!opens_in.is_zero()).then(|| Box::pin(tokio::time::sleep(opens_in)) as BoxFuture<'static, ()>)
    }
}
