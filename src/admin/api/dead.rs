//! The dead letters of a downstream: listed, replayed and purged for whoever has the token.
//!
//! A list of letters holds them for a while, so that nobody else sees them. That is why one request at a time does so,
//! and why even a list needs the token of changes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::amqp::{self, DeadLetters, Error, Filter, Letter, Replay, Scan, Tally};
use paced::api::letters::{self, Change, Purged, Replayed};
use paced::dispatch::Precision;
use paced::{Rate, Shaper};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Api, body};
use crate::admin::connections::Peer;
use crate::admin::reply::{Refusal, answer};

/// The most letters that one request lists.
const MOST_LISTED: u32 = 500;

/// The letters that are listed unless the request says so.
const LISTED: u32 = 100;

/// How long a request may take: less than its connection lasts. A replay or a purge ends in order then.
const WORK_TIMEOUT: Duration = Duration::from_secs(45);

/// How long a request waits for the one before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the dead letters are.
pub(crate) struct Letters {
    options: amqp::Options,
    turn: Arc<Semaphore>,
}

/// What is done with the letters.
enum Work {
    List,
    Replay(Replay),
    Purge,
}

/// What was done: the letters of a list, without their bodies, and the numbers.
type Done = (Vec<letters::Letter>, Tally);

impl Letters {
    /// The letters of the downstreams of these options.
    pub(crate) fn new(options: amqp::Options) -> Self {
        Self { options, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Works on the letters of a downstream that `scan` chooses, for one request at a time, until it is done or stopped.
    ///
    /// Not cancel safe: the work goes on, and others wait for its end.
    async fn work(&self, downstream: &str, scan: Scan, work: Work) -> Result<Done, Refusal> {
        let Ok(Ok(turn)) = timeout(TURN_TIMEOUT, Arc::clone(&self.turn).acquire_owned()).await else {
            let text = "another request works on dead letters; try again in a minute";
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let (options, downstream) = (self.options.clone(), downstream.to_owned());
        let stop = scan.stop.clone();
        let runtime = Handle::current();
        // The future of a scan cannot move between threads, so that it has one of its own.
        let mut working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            runtime.block_on(async {
                let letters = DeadLetters::open(&options, &downstream).await?;
                let done = work.on(&letters, &scan).await;
                letters.close().await;
                done
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
            Ok(done) => done.map_err(|error| refusal(&error)),
            // The runtime reports the panic.
            Err(_) => Err(ended_by_itself()),
        }
    }
}

fn ended_by_itself() -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the work ended by itself; see the log")
}

impl Work {
    async fn on(&self, letters: &DeadLetters, scan: &Scan) -> Result<Done, Error> {
        let none = |tally: Tally| (Vec::new(), tally);
        match self {
            Self::List => letters.list_as(scan, view, |_| ()).await,
            Self::Replay(replay) => letters.replay(scan, replay, |_| ()).await.map(none),
            Self::Purge => letters.purge(scan, |_| ()).await.map(none),
        }
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
    let (letters, Tally { found, stopped, .. }) = api.letters.work(&name, scan, Work::List).await?;
    Ok(answer(&letters::List { letters, total: found, stopped }))
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

/// A letter as the API shows it.
fn view(letter: Letter) -> letters::Letter {
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
    letters::Letter {
        id: letter.message.message_id,
        reason: letter.reason,
        detail: letter.detail,
        status: number(letter.status),
        attempts: number(letter.attempts),
        key: letter.routing_key,
        dead_at: number(letter.dead_at),
        response: letter.response,
        bytes: letter.message.content.body.len(),
    }
}

/// `POST /api/v1/downstreams/NAME/dead/replay`
pub(super) async fn replay(
    State(api): State<Arc<Api>>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let change: Change = body::read(body).await?;
    let pace = change.rate.as_deref().map(shaper).transpose()?;
    let work = Work::Replay(Replay { pace, ..Replay::default() });
    let tally = api.tend(peer, (&name, "dead replay"), change, work).await?;
    Ok(answer(&replayed(&tally)))
}

fn replayed(&Tally { found, done, kept, failed, stopped, ref error, .. }: &Tally) -> Replayed {
    let error = error.as_ref().map(ToString::to_string);
    Replayed { found, replayed: done, passed: kept, failed, stopped, error }
}

/// `POST /api/v1/downstreams/NAME/dead/purge`
pub(super) async fn purge(
    State(api): State<Arc<Api>>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let change: Change = body::read(body).await?;
    if change.rate.is_some() {
        return Err(Refusal::wrong("rate: a purge has none; leave it out"));
    }
    let tally = api.tend(peer, (&name, "dead purge"), change, Work::Purge).await?;
    Ok(answer(&purged(&tally)))
}

const fn purged(&Tally { found, done, kept, stopped, .. }: &Tally) -> Purged {
    Purged { found, purged: done, passed: kept, stopped }
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
    /// Works on the letters that a request chooses, and writes it to the audit log, even if it failed or the request was
    /// given up meanwhile; then the work ends after the letter at hand.
    async fn tend(
        self: Arc<Self>,
        Peer { remote, .. }: Peer,
        (downstream, change): (&str, &'static str),
        Change { limit, reason, status, id, key, audit, .. }: Change,
        work: Work,
    ) -> Result<Tally, Refusal> {
        self.operations.known(downstream)?;
        let why = body::reason(audit)?.unwrap_or_default();
        let filter = Filter { reason, status, id, key, ..Filter::default() };
        let chosen = format!("{filter:?}");
        let scan = Scan { filter, limit, ..Scan::default() };
        let _ends_work = scan.stop.clone().drop_guard();
        let downstream = downstream.to_owned();
        let working = tokio::spawn(async move {
            let done = self.letters.work(&downstream, scan, work).await;
            match &done {
                Ok((_, Tally { found, done, stopped, .. })) => {
                    tracing::info!(%remote, downstream, change, chosen, limit, found, done, stopped, reason = why, "admin: changed");
                }
                Err(refusal) => {
                    let (status, error) = (refusal.status().as_u16(), refusal.text());
                    tracing::warn!(%remote, downstream, change, chosen, limit, reason = why, status, error, "admin: not changed");
                }
            }
            done.map(|(_, tally)| tally)
        });
        working.await.unwrap_or_else(|_| Err(ended_by_itself()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_the_same_texts() {
        let text = |text: &str| Some(text.to_owned());
        let mut letter = Letter {
            message: paced::job::Message {
                message_id: text("a\n"),
                content: paced::job::Content { body: "12345".into(), ..Default::default() },
                ..Default::default()
            },
            properties: amqp::BasicProperties::default(),
            reason: text("status"),
            detail: None,
            status: text("404"),
            attempts: text("many"),
            routing_key: text("billing.x"),
            dead_at: text("1764000000000"),
            response: text("<b>"),
        };
        let full = r#"{"attempts":null,"bytes":5,"dead_at":1764000000000,"detail":null,"id":"a\n","key":"billing.x","reason":"status","response":"<b>","status":404}"#;
        assert_eq!(json!(view(letter.clone())).to_string(), full);
        letter.message = paced::job::Message::default();
        let Letter { reason, status, routing_key, dead_at, response, .. } = &mut letter;
        for field in [reason, status, routing_key, dead_at, response] {
            *field = None;
        }
        let bare = r#"{"attempts":null,"bytes":0,"dead_at":null,"detail":null,"id":null,"key":null,"reason":null,"response":null,"status":null}"#;
        assert_eq!(json!(view(letter.clone())).to_string(), bare);
        let list = letters::List { letters: vec![view(letter)], total: 7, stopped: false };
        assert_eq!(json!(list).to_string(), format!(r#"{{"letters":[{bare}],"stopped":false,"total":7}}"#));
        let mut tally = Tally { found: 9, seen: 8, done: 3, kept: 4, failed: 1, ..Tally::default() };
        let replay = r#"{"error":null,"failed":1,"found":9,"passed":4,"replayed":3,"stopped":false}"#;
        assert_eq!(json!(replayed(&tally)).to_string(), replay);
        tally.stopped = true;
        assert_eq!(json!(purged(&tally)).to_string(), r#"{"found":9,"passed":4,"purged":3,"stopped":true}"#);
    }

    #[test]
    fn a_query_chooses_letters() {
        let scan = chosen("").unwrap();
        assert_eq!((scan.limit, scan.filter), (Some(LISTED), Filter::default()));
        let scan = chosen("limit=7&reason=status&status=404&id=a%20b&key=billing.x").unwrap();
        let text = |text: &str| Some(text.to_owned());
        let (reason, id, key) = (text("status"), text("a b"), text("billing.x"));
        assert_eq!(scan.limit, Some(7));
        assert_eq!(scan.filter, Filter { reason, status: Some(404), id, key, ..Filter::default() });
        assert_eq!(chosen("limit=1000000").unwrap().limit, Some(MOST_LISTED));
        for (query, told) in
            [("limit=x", "limit: `x`"), ("status=70000", "status: "), ("older=1", "`older` chooses no")]
        {
            let refusal = chosen(query).unwrap_err();
            assert!(refusal.text().contains(told) && refusal.status() == 400, "{refusal:?}");
        }
    }
}
