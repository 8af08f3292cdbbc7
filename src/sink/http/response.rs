//! Classifies an answer. The status decides; the body is for replies and dead letters.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{HeaderMap, SET_COOKIE};
use tokio::time::{Instant, timeout_at};

use super::SECOND;
use super::meaning::{Answered, By, Decision, decide, needs_body};
use super::pool::Aging;
use crate::job::Reason;
use crate::sink::{AnswerPolicy, MAX_ANSWER, MAX_EXCERPT, Meaning, Outcome, Receipt, Response, excerpt_len};

/// The most bytes that are read of a body, for a reply or to reuse the connection.
const MAX_BODY: usize = MAX_ANSWER;

/// How long reading a body that no reply needs may take; beyond that a new connection is cheaper.
pub(super) const LONGEST_DRAIN: Duration = SECOND;

/// The most headers of a reply.
const MAX_HEADERS: usize = 64;

/// The most bytes of a reply's headers, names and values together.
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// An answer whose head has arrived.
pub(super) struct Answer {
    pub(super) head: hyper::Response<Incoming>,
    /// The connection on which its body arrives.
    pub(super) aging: Aging,
    /// The end of the request's time-out.
    pub(super) deadline: Instant,
}

impl Answer {
    /// The next piece of the body, if there is one and it arrives by then.
    async fn chunk(&mut self, by: Instant) -> Option<Bytes> {
        if self.is_read() {
            return None;
        }
        timeout_at(by, self.aging.connection.chunk(self.head.body_mut())).await.ok()?
    }

    fn is_read(&self) -> bool {
        self.head.body().is_end_stream()
    }
}

/// What is wanted of the body of an answer.
pub(super) struct Wanted<'a> {
    /// The response, within its bounds, for a reply.
    pub(super) reply: bool,
    /// The beginning of an answer that is no delivery, for a dead letter.
    pub(super) excerpt: bool,
    /// What it means.
    pub(super) answers: &'a AnswerPolicy,
    /// Whether an earlier attempt ended without an answer.
    pub(super) repeats_unanswered: bool,
}

/// The outcome of `answer`, and its connection if it can be used again.
///
/// An answer may come before its request was written. A 2xx, and what a rule takes for a delivery, counts only once the request
/// is written: a part of a job is no delivery, whatever the server answers. Any other status is the answer, whether or not the rest of the request is
/// written; the beginning of its body is waited for within [`LONGEST_DRAIN`].
pub(super) async fn outcome(mut answer: Answer, wanted: Wanted<'_>) -> (Outcome, Option<Aging>) {
    let (status, headers) = (answer.head.status(), answer.head.headers());
    let is_kept = wanted.reply || needs_body(wanted.answers, status, headers);
    let kept = if is_kept { Some(keep(&mut answer).await) } else { None };
    let body = kept.as_ref().map(|kept| &kept.body[..]);
    let answered = Answered::new(status, answer.head.headers(), body).repeating(wanted.repeats_unanswered);
    let decision = decide(wanted.answers, &answered);
    let is_delivery = decision.is == Meaning::Delivered;
    if (status.is_success() || is_delivery)
        && let Err(cut_off) = finish_sending(&mut answer).await
    {
        return (cut_off, None);
    }
    let is_sent = answer.aging.connection.has_sent();
    // A delivery makes no dead letter: nothing is copied of its body.
    let most = if wanted.excerpt && !is_delivery { MAX_EXCERPT } else { 0 };
    let excerpt = match &kept {
        Some(kept) if most > 0 => Bytes::copy_from_slice(&kept.body[..excerpt_len(&kept.body)]),
        Some(_) => Bytes::new(),
        None => drain(&mut answer, is_sent, most).await,
    };
    let status = answer.head.status().as_u16();
    let response = match kept {
        Some(kept) if wanted.reply => Some(Response { excerpt, ..kept }),
        _ if excerpt.is_empty() => None,
        _ => Some(Response { status, excerpt, ..Response::default() }),
    };
    let outcome = judged(answer.head.status(), decision, response);
    let Answer { head, mut aging, .. } = answer;
    // The rest of the body stays unread, so the connection ends.
    drop(head);
    let is_reusable = is_sent && aging.connection.is_idle();
    (outcome, is_reusable.then_some(aging))
}

/// Waits until the whole request is written; the error is the outcome of a failed attempt.
async fn finish_sending(answer: &mut Answer) -> Result<(), Outcome> {
    let Answer { head, aging, deadline } = answer;
    if aging.connection.has_sent() {
        return Ok(());
    }
    let status = head.status();
    let (reason, why) = match timeout_at(*deadline, aging.connection.finish_sending(head.body_mut())).await {
        Ok(true) => return Ok(()),
        Ok(false) => ("connection", "the connection ended"),
        Err(_) => ("timeout", "the time-out came"),
    };
    let detail =
        format!("{why} before the whole request was sent, which the downstream had answered {status}");
    Err(Outcome::Retry { reason, detail, status: None, after: None, response: None })
}

/// The outcome of an answer with this status, about which this was decided.
fn judged(status: StatusCode, decision: Decision, response: Option<Response>) -> Outcome {
    let Decision { is, wait, by } = decision;
    let (code, mut detail) = (status.as_u16(), format!("the downstream answered {status}"));
    if let By::Rule(_) = by {
        detail.push_str(&format!(", which is {} by {by}", is.word()));
    } else if is == Meaning::Dead && status.is_redirection() {
        detail.push_str("; redirects are not followed, set `base_url` to their target");
    }
    match is {
        Meaning::Delivered => {
            let response = response.unwrap_or_else(|| Response { status: code, ..Response::default() });
            Outcome::Delivered(Receipt { response, rest: wait })
        }
        Meaning::Throttled => {
            Outcome::Throttled { detail, status: code, after: wait, is_final: false, response }
        }
        Meaning::Dead if wait.is_some() => {
            Outcome::Throttled { detail, status: code, after: wait, is_final: true, response }
        }
        Meaning::Retry => {
            Outcome::Retry { reason: "status", detail, status: Some(code), after: wait, response }
        }
        Meaning::Unauthorized => Outcome::Unauthorized { detail, status: code, response },
        Meaning::Dead => Outcome::Dead { reason: Reason::Status, detail, status: Some(code), response },
    }
}

/// The response for a reply. A body that breaks off is kept as far as it arrived: the status was the answer, and a
/// repeated request would do the work twice.
async fn keep(answer: &mut Answer) -> Response {
    let headers = kept_headers(answer.head.headers());
    let mut body = BytesMut::new();
    while body.len() < MAX_BODY
        && let Some(chunk) = answer.chunk(answer.deadline).await
    {
        let room = MAX_BODY - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    let (status, body) = (answer.head.status().as_u16(), Bytes::from(body));
    Response { status, headers, body, ..Response::default() }
}

/// Reads the body to its end, so that the connection can be used again, unless the end is far or the request is not written
/// yet; returns the beginning of the body, `most` bytes at most. What does not come in time is no error: the connection
/// is closed instead.
async fn drain(answer: &mut Answer, is_sent: bool, most: usize) -> Bytes {
    let is_near = is_sent && answer.head.body().size_hint().lower() <= MAX_BODY as u64;
    let mut room = if is_near { MAX_BODY } else { most };
    if room == 0 || answer.is_read() {
        return Bytes::new();
    }
    let by = answer.deadline.min(Instant::now() + LONGEST_DRAIN);
    let mut start = BytesMut::new();
    while room > 0
        && let Some(chunk) = answer.chunk(by).await
    {
        // It is copied, since a chunk may hold much more memory than its beginning has bytes.
        start.extend_from_slice(&chunk[..chunk.len().min(most - start.len())]);
        room = room.saturating_sub(chunk.len());
    }
    start.truncate(excerpt_len(&start));
    start.freeze()
}

/// The text headers in lower case, within the bounds; cookies are left out, as they do not concern the requester.
fn kept_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut room = MAX_HEADER_BYTES;
    let texts = headers.iter().filter(|(name, _)| *name != SET_COOKIE);
    let texts = texts.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    texts
        .take(MAX_HEADERS)
        .take_while(|(name, value)| {
            let fits = room.checked_sub(name.len() + value.len());
            room = fits.unwrap_or(0);
            fits.is_some()
        })
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
