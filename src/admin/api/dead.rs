//! The dead letters of a downstream: listed, replayed and purged for clients with the token.
//!
//! While a request lists letters, it holds them, and nobody else sees them. Therefore one request at a time does so,
//! and even a list needs the token of changes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::amqp::{self, DeadLetters, Error, Filter, Letter, Replay, Scan, Tally};
use paced::api::Millis;
use paced::api::letters::{self, Bounds, Change, Chosen, Purged, Replayed, Request, StoppedBy};
use paced::dispatch::Precision;
use paced::job::Value;
use paced::text::cut;
use paced::time::{Micros, wall_now};
use paced::{Rate, Shaper};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::{Api, body, broke_off};
use crate::admin::audit::Subject;
use crate::admin::reply::{Refusal, answer};
use crate::admin::routes::Client;
use crate::status::words;

pub(super) use whole::show;

mod whole;

/// The most letters that one request lists.
const MOST_LISTED: u32 = 500;

/// The number of letters that are listed if the request names none.
const LISTED: u32 = 100;

/// The most bytes of text in the letters of one list. As JSON they may take six times as many.
const MAX_LIST: usize = 8 << 20;

/// How long a request may take. A replay or a purge ends in order then: proxies wait no longer for an answer.
const WORK_TIMEOUT: Duration = Duration::from_secs(45);

/// The longest text of a filter in the audit log, in characters.
const MAX_SHOWN: usize = 200;

/// How long a request waits for the one before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the dead letters are.
pub(crate) struct Letters {
    /// The broker, with the present downstreams.
    options: watch::Receiver<Arc<amqp::Options>>,
    turn: Arc<Semaphore>,
}

/// What is done with the letters.
enum Work {
    List,
    /// Show one letter with its body: the first that matches, and that died at this instant if one is given.
    Show {
        dead_at: Option<Millis>,
    },
    Replay(Replay),
    Purge,
}

/// What was done: the letters of a list, without their bodies, and the numbers.
#[derive(Debug, Default)]
struct Done {
    letters: Vec<letters::Letter>,
    /// The letter that is shown with its body.
    whole: Option<letters::Whole>,
    tally: Tally,
    /// Why the work ended early.
    stopped_by: Option<StoppedBy>,
}

impl Done {
    /// What was done, for the audit log.
    fn text(&self) -> String {
        let Tally { found, done, kept, failed, .. } = self.tally;
        let stopped =
            self.stopped_by.map(|by| format!(", stopped by {by:?}").to_lowercase()).unwrap_or_default();
        format!("{done} of {found} done, {kept} passed over, {failed} failed{stopped}")
    }
}

impl Letters {
    /// The letters of the downstreams of these options.
    pub(crate) fn new(options: watch::Receiver<Arc<amqp::Options>>) -> Self {
        Self { options, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Works on the letters of a downstream that `scan` chooses, for one request at a time, until it is done or stopped.
    ///
    /// Not cancel safe: the work continues, and later requests wait for its end.
    async fn work(&self, downstream: &str, scan: Scan, work: Work) -> Result<Done, Refusal> {
        let Ok(Ok(turn)) = timeout(TURN_TIMEOUT, Arc::clone(&self.turn).acquire_owned()).await else {
            let text = "another request works on dead letters; try again in a minute";
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let (options, downstream) = (Arc::clone(&self.options.borrow()), downstream.to_owned());
        let stop = scan.stop.clone();
        let runtime = Handle::current();
        // The future of a scan cannot move between threads, so it has a thread of its own.
        let mut working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            runtime.block_on(async {
                let letters = work.open(&options, &downstream).await.map_err(|error| refusal(&error))?;
                let done = work.on(&letters, &scan).await;
                letters.close().await;
                // A replay or a purge that fails has already changed the letters before the error.
                done.map_err(|error| match work {
                    Work::List | Work::Show { .. } => refusal(&error),
                    Work::Replay(_) | Work::Purge => refusal(&error).or_made(),
                })
            })
        });
        let done = match timeout(WORK_TIMEOUT, &mut working).await {
            Ok(done) => done,
            Err(_) => {
                stop.cancel();
                working.await
            }
        };
        match done {
            Ok(done) => done,
            // The runtime reports the panic.
            Err(_) => Err(broke_off()),
        }
    }
}

impl Work {
    /// Only a replay and a letter that is shown need bodies. These are read at any length.
    async fn open(&self, options: &amqp::Options, downstream: &str) -> Result<DeadLetters, Error> {
        match self {
            Self::Show { .. } | Self::Replay(_) => DeadLetters::open(options, downstream).await,
            Self::List | Self::Purge => DeadLetters::open_heads(options, Some(downstream)).await,
        }
    }

    async fn on(&self, letters: &DeadLetters, scan: &Scan) -> Result<Done, Error> {
        let none = |tally: Tally| Done { stopped_by: stopped_by(&tally, scan), tally, ..Done::default() };
        match self {
            Self::List => list_some(letters, scan).await,
            Self::Show { dead_at } => whole::find(letters, scan, *dead_at).await,
            Self::Replay(replay) => letters.replay(scan, replay, |_| ()).await.map(none),
            Self::Purge => letters.purge(scan, |_| ()).await.map(none),
        }
    }
}

/// Lists letters until their texts take [`MAX_LIST`].
async fn list_some(letters: &DeadLetters, scan: &Scan) -> Result<Done, Error> {
    let mut room = Some(MAX_LIST);
    let keep = |letter: Letter, bytes| {
        let view = listed(letter, bytes);
        room = room.and_then(|room| room.checked_sub(text_bytes(&view)));
        if room.is_none() {
            scan.stop.cancel();
        }
        view
    };
    let (letters, tally) = letters.list_as(scan, keep, |_| ()).await?;
    let stopped_by = match room {
        None if tally.stopped => Some(StoppedBy::Size),
        _ => stopped_by(&tally, scan),
    };
    Ok(Done { letters, tally, stopped_by, whole: None })
}

/// The bytes of all texts of a letter.
fn text_bytes(letter: &letters::Letter) -> usize {
    let letters::Letter { id, reason, detail, request, response, .. } = letter;
    let Request { key, method, path } = request;
    [id, reason, detail, key, method, path, response].into_iter().flatten().map(String::len).sum()
}

/// What ended the work before all letters were examined.
fn stopped_by(tally: &Tally, scan: &Scan) -> Option<StoppedBy> {
    match tally {
        Tally { stopped: true, .. } => Some(StoppedBy::Time),
        Tally { seen, found, .. } if seen >= found => None,
        Tally { done, .. } if scan.limit.is_some_and(|limit| *done >= limit) => Some(StoppedBy::Limit),
        Tally { error: Some(_), .. } => Some(StoppedBy::Error),
        _ => None,
    }
}

fn refusal(error: &Error) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("the broker: {error}"))
}

/// `GET /api/v1/downstreams/NAME/dead`
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    api.operations.known(&name)?;
    let scan = chosen(query.as_deref().unwrap_or_default())?;
    // If the client gives the request up, the letters go back at once.
    let _ends_work = scan.stop.clone().drop_guard();
    let listed_at = wall_now().0 / 1000;
    let Done { letters, tally, stopped_by, .. } = api.letters.work(&name, scan, Work::List).await?;
    let Tally { found, stopped, .. } = tally;
    Ok(answer(&letters::List { letters, total: found, stopped, stopped_by, listed_at }))
}

/// The letters that a query chooses, such as `limit=50&status=404`.
fn chosen(query: &str) -> Result<Scan, Refusal> {
    let (mut filter, mut limit) = (Filter::default(), LISTED);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let number =
            || Refusal::wrong(format!("{name}: `{value}` is no number that fits; write one such as 50"));
        match &*name {
            "limit" => limit = value.parse().map_err(|_| number())?,
            "status" => filter.status = Some(value.parse().map_err(|_| number())?),
            "reason" => filter.reason = Some(value.into_owned()),
            "id" => filter.id = Some(value.into_owned()),
            "key" => filter.key = Some(value.into_owned()),
            _ => {
                let text =
                    format!("`{name}` chooses no letters; there are limit, reason, status, id and key");
                return Err(Refusal::wrong(text));
            }
        }
    }
    Ok(Scan { filter, limit: Some(limit.clamp(1, MOST_LISTED)), ..Scan::default() })
}

/// A letter as a list shows it: its path without the query, which may have a secret or somebody's data.
fn listed(letter: Letter, bytes: u64) -> letters::Letter {
    let mut view = view(letter, bytes);
    if let Some(path) = &mut view.request.path {
        let end = path.find('?').unwrap_or(path.len());
        path.truncate(end);
    }
    view
}

/// A letter as the API shows it, with the length of its body.
fn view(letter: Letter, bytes: u64) -> letters::Letter {
    let header = |name: &str| {
        let (_, value) = letter.message.headers.iter().find(|(known, _)| known == name)?;
        let Value::Text(text) = value else { return None };
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let (method, path) = (header("paced-method"), header("paced-path"));
    letters::Letter {
        id: letter.message.message_id,
        reason: letter.reason,
        detail: letter.detail,
        status: number(letter.status.as_deref()),
        attempts: number(letter.attempts.as_deref()),
        request: Request { key: letter.routing_key, method, path },
        dead_at: number(letter.dead_at.as_deref()),
        response: letter.response,
        bytes,
    }
}

/// The number in a header of a letter.
fn number(text: Option<&str>) -> Option<i64> {
    text.and_then(|text| text.parse().ok())
}

/// `POST /api/v1/downstreams/NAME/dead/replay`
pub(super) async fn replay(
    State(api): State<Arc<Api>>,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let change: Change = body::read(body).await?;
    let pace = change.rate.as_deref().map(shaper).transpose()?;
    let work = Work::Replay(Replay { pace, ..Replay::default() });
    Ok(answer(&replayed(&api.tend(client, (&name, "dead replay"), change, work).await?)))
}

fn replayed(Done { tally, stopped_by, .. }: &Done) -> Replayed {
    let &Tally { found, done, kept, failed, stopped, ref error, .. } = tally;
    let (error, stopped_by) = (error.as_ref().map(ToString::to_string), *stopped_by);
    Replayed { found, replayed: done, passed: kept, failed, stopped, stopped_by, error }
}

/// `POST /api/v1/downstreams/NAME/dead/purge`
pub(super) async fn purge(
    State(api): State<Arc<Api>>,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let change: Change = body::read(body).await?;
    if change.rate.is_some() {
        return Err(Refusal::wrong("rate: a purge has none; leave it out"));
    }
    Ok(answer(&purged(&api.tend(client, (&name, "dead purge"), change, Work::Purge).await?)))
}

const fn purged(Done { tally, stopped_by, .. }: &Done) -> Purged {
    let &Tally { found, done, kept, stopped, .. } = tally;
    Purged { found, purged: done, passed: kept, stopped, stopped_by: *stopped_by }
}

/// The pace of a replay, for this request alone.
fn shaper(rate: &str) -> Result<Shaper, Refusal> {
    let rate: Rate = rate.parse().map_err(|error| Refusal::wrong(format!("rate: {error}")))?;
    let shaper = Shaper::builder("replay", rate)
        .max_wait(WORK_TIMEOUT * 2)
        .precision(Precision::Coarse)
        .runtime(Handle::current())
        .build();
    shaper.map_err(|error| Refusal::wrong(format!("rate: {error}")))
}

impl Api {
    /// Works on the letters that a request chooses, and writes the outcome to the audit log, also if the work failed
    /// or the client disconnected. In the latter case the work ends after the current letter.
    async fn tend(
        self: Arc<Self>,
        client: Client,
        (downstream, change): (&str, &'static str),
        Change { chosen, bounds, audit, .. }: Change,
        work: Work,
    ) -> Result<Done, Refusal> {
        self.operations.known(downstream)?;
        let reason = body::reason(audit)?.unwrap_or_default();
        let downstream = downstream.to_owned();
        let which = which(&chosen, bounds);
        let subject = Subject { client, downstream: downstream.clone(), change, chosen: which, reason };
        let scan = scan(chosen, bounds);
        let _ends_work = scan.stop.clone().drop_guard();
        let shared = Arc::clone(&self);
        let working = shared.make(async move {
            let begun = subject.begin().await;
            let done = self.letters.work(&downstream, scan, work).await;
            self.watch.letters_changed(&downstream);
            let noted = match &done {
                Ok(done) => Some(begun.made("", &done.text())),
                Err(refusal) => begun.failed(refusal),
            };
            if let Some(noted) = noted {
                self.operations.note(&downstream, &noted).await;
            }
            done
        });
        working.await
    }
}

/// The chosen letters, as text, for the audit log.
fn which(Chosen { all, reason, status, id, key }: &Chosen, bounds: Bounds) -> String {
    let Bounds { limit, first, died_until } = bounds;
    let part = |name: &str, text: &Option<String>| {
        text.as_deref().map(|text| format!("{name} `{}`", cut(text, MAX_SHOWN)))
    };
    let parts = [
        all.then(|| "all".to_owned()),
        part("reason", reason),
        status.map(|status| format!("status {status}")),
        part("id", id),
        part("key", key),
        limit.map(|limit| format!("at most {limit}")),
        first.map(|first| format!("of the first {first}")),
        died_until.map(|at| format!("died until {}", words::instant(at))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The scan for the chosen letters.
fn scan(Chosen { reason, status, id, key, .. }: Chosen, bounds: Bounds) -> Scan {
    let filter = Filter { reason, status, id, key, ..Filter::default() };
    let Bounds { limit, first, died_until } = bounds;
    let died_until = died_until.map(|millis| Micros(millis.saturating_mul(1000)));
    Scan { filter, limit, first, died_until, ..Scan::default() }
}

#[cfg(test)]
mod tests;
