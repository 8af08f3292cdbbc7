//! Classifies an answer. The status decides; the body is for rules, replies and dead letters.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, SET_COOKIE};
use tokio::time::timeout_at;

use super::body::{Answer, Decoded, End, MAX_BODY, Read, is_event_stream};
use super::coding::CodingError;
use super::meaning::{Answered, By, Decision, decide, needs_body};
use super::pool::Aging;
use crate::job::Reason;
use crate::sink::{AnswerPolicy, Closing, MAX_EXCERPT, Meaning, Outcome, Receipt, Response, excerpt_len};

/// The most headers of a reply.
const MAX_HEADERS: usize = 64;

/// The most bytes of a reply's headers, names and values together.
const MAX_HEADER_BYTES: usize = 8 * 1024;

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
    /// When no more is waited for.
    pub(super) closing: &'a Closing,
}

/// The outcome of `answer`, and its connection if it can be used again.
///
/// A success is read to its end, or up to the time-out: an API may undo its work when its caller goes, and only the end shows
/// that it is done. One that breaks off is no answer. An answer may come before its request was written. A 2xx, and what a
/// rule takes for a delivery, counts only once the request is written: a part of a job is no delivery, with any
/// answer. Any other status is the answer, whether or not the rest of the request is written; the beginning of its body is
/// waited for within [`LONGEST_DRAIN`](super::body::LONGEST_DRAIN).
pub(super) async fn outcome(mut answer: Answer, wanted: Wanted<'_>) -> (Outcome, Option<Aging>) {
    let status = answer.head.status();
    let is_kept = wanted.reply || needs_body(wanted.answers, status, answer.head.headers());
    let decided = |headers: &HeaderMap, body: Option<&[u8]>| {
        let answered = Answered::new(status, headers, body);
        decide(wanted.answers, &answered.repeating(wanted.repeats_unanswered))
    };
    let by_head = if is_kept { None } else { Some(decided(answer.head.headers(), None)) };
    // If the head alone shows that the answer is no success, its body is not read to the end.
    let reads_on = status.is_success() && by_head.is_none_or(|decision| decision.is == Meaning::Delivered);
    let read = match (reads_on, is_kept) {
        (true, _) => Some(answer.read_on(if is_kept { MAX_BODY } else { 0 }, wanted.closing).await),
        (false, true) => Some(answer.keep().await),
        (false, false) => None,
    };
    let mut remark = Remark::default();
    let body = match &read {
        Some(read) if is_kept => Some(remark.decoded(read, answer.head.headers(), MAX_BODY).await),
        _ => None,
    };
    // One that cannot be decoded may be plain, and its field wrong: then a rule reads it too.
    let with_body = || decided(answer.head.headers(), body.as_ref().map(|body| &body.body[..]));
    let decision = by_head.unwrap_or_else(with_body);
    let is_delivery = decision.is == Meaning::Delivered;
    if let Err(cut_off) = count_delivery(&mut answer, read.as_ref(), is_delivery).await {
        return (cut_off, None);
    }
    if is_delivery && status.is_success() {
        remark.end(read.as_ref());
    }
    let is_sent = answer.aging.connection.has_sent();
    let wants_excerpt = wanted.excerpt && !is_delivery;
    let excerpt = match (&body, &read) {
        (Some(body), _) if wants_excerpt => Bytes::copy_from_slice(&body.body[..excerpt_len(&body.body)]),
        (None, None) => {
            let room = if wants_excerpt { excerpt_room(answer.head.headers()) } else { 0 };
            let read = answer.drain(is_sent, room).await;
            remark.excerpt(&read, answer.head.headers()).await
        }
        _ => Bytes::new(),
    };
    let response = match body {
        Some(body) if wanted.reply => Some(Response { excerpt, ..kept(&answer.head, body) }),
        _ if excerpt.is_empty() => None,
        _ => Some(Response { status: status.as_u16(), excerpt, ..Response::default() }),
    };
    let outcome = judged(status, decision, response, remark);
    let Answer { head, mut aging, .. } = answer;
    // The rest of the body stays unread, so the connection ends.
    drop(head);
    let is_reusable = is_sent && aging.connection.is_idle();
    (outcome, is_reusable.then_some(aging))
}

/// How much is kept of a body for an excerpt: of one that is coded as much as may be decoded.
fn excerpt_room(headers: &HeaderMap) -> usize {
    if headers.contains_key(CONTENT_ENCODING) { MAX_BODY } else { MAX_EXCERPT }
}

/// Whether a success, or what a rule takes for a delivery, counts: the request is written, and the answer of a delivery did
/// not break off. The error is the outcome otherwise.
async fn count_delivery(answer: &mut Answer, read: Option<&Read>, is_delivery: bool) -> Result<(), Outcome> {
    let status = answer.head.status();
    if status.is_success() || is_delivery {
        finish_sending(answer).await?;
    }
    let is_whole = !status.is_success() || is_event_stream(answer.head.headers());
    match read {
        Some(Read { end: End::Broken(why), .. }) if is_delivery && !is_whole => {
            let detail = format!("the answer {status} broke off: {why}");
            Err(Outcome::Retry { reason: "connection", detail, status: None, after: None, response: None })
        }
        _ => Ok(()),
    }
}

/// What people should know about an answer besides its meaning.
#[derive(Default)]
struct Remark(Vec<String>);

impl Remark {
    /// The body as it was meant, `most` bytes at most; one that cannot be decoded stays as it is, which is noted.
    async fn decoded(&mut self, read: &Read, headers: &HeaderMap, most: usize) -> Decoded {
        match read.decode(headers, most).await {
            Ok(decoded) => decoded,
            Err(error) => {
                self.note(error);
                read.as_it_is(most)
            }
        }
    }

    /// The beginning of the body, for a dead letter.
    async fn excerpt(&mut self, read: &Read, headers: &HeaderMap) -> Bytes {
        if read.start.is_empty() {
            return Bytes::new();
        }
        // A few bytes more show whether the last character is whole.
        let Decoded { body, .. } = self.decoded(read, headers, MAX_EXCERPT + 4).await;
        Bytes::copy_from_slice(&body[..excerpt_len(&body)])
    }

    /// Notes that the answer of a delivery did not end, as that of a stream of events need not.
    fn end(&mut self, read: Option<&Read>) {
        match read.map(|read| &read.end) {
            Some(End::Cut) => {
                self.0.push("its answer had not ended when it was no longer waited for".to_owned());
            }
            Some(End::Broken(why)) => self.0.push(format!("its stream of events broke off: {why}")),
            Some(End::Whole) | None => {}
        }
    }

    fn note(&mut self, error: CodingError) {
        self.0.push(format!("the body of its answer is taken as it is: {error}"));
    }

    fn text(self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join("; "))
    }
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

/// The outcome of an answer with this status and this decision.
fn judged(status: StatusCode, decision: Decision, response: Option<Response>, remark: Remark) -> Outcome {
    let Decision { is, wait, by } = decision;
    let (code, remark) = (status.as_u16(), remark.text());
    // Only if the job is not delivered; most are.
    let detail = || detail_of(status, is, by, remark.as_deref());
    match is {
        Meaning::Delivered => {
            let response = response.unwrap_or_else(|| Response { status: code, ..Response::default() });
            Outcome::Delivered(Receipt { response, rest: wait, remark })
        }
        Meaning::Throttled => {
            Outcome::Throttled { detail: detail(), status: code, after: wait, is_final: false, response }
        }
        Meaning::Dead if wait.is_some() => {
            Outcome::Throttled { detail: detail(), status: code, after: wait, is_final: true, response }
        }
        Meaning::Retry => {
            let status = Some(code);
            Outcome::Retry { reason: "status", detail: detail(), status, after: wait, response }
        }
        Meaning::Unauthorized => Outcome::Unauthorized { detail: detail(), status: code, response },
        Meaning::Dead => {
            Outcome::Dead { reason: Reason::Status, detail: detail(), status: Some(code), response }
        }
    }
}

/// The detail of an answer that is no delivery, for people.
fn detail_of(status: StatusCode, is: Meaning, by: By, remark: Option<&str>) -> String {
    let mut detail = format!("the downstream answered {status}");
    if let By::Rule(_) = by {
        detail.push_str(&format!(", which is {} by {by}", is.word()));
    } else if is == Meaning::Dead && status.is_redirection() {
        detail.push_str("; redirects are not followed, set `base_url` to their target");
    }
    if let Some(remark) = remark {
        detail.push_str("; ");
        detail.push_str(remark);
    }
    detail
}

/// The response for a reply. One that was decoded has neither the codings nor the length of what was sent.
fn kept<B>(head: &hyper::Response<B>, Decoded { body, was_coded }: Decoded) -> Response {
    let is_kept = |name: &HeaderName| !(was_coded && (*name == CONTENT_ENCODING || *name == CONTENT_LENGTH));
    let headers = kept_headers(head.headers(), is_kept);
    Response { status: head.status().as_u16(), headers, body, ..Response::default() }
}

/// The text headers in lower case, within the bounds; cookies are left out, as they do not concern the requester.
fn kept_headers(headers: &HeaderMap, is_kept: impl Fn(&HeaderName) -> bool) -> Vec<(String, String)> {
    let mut room = MAX_HEADER_BYTES;
    let texts = headers.iter().filter(|(name, _)| *name != SET_COOKIE && is_kept(name));
    let texts =
        texts.filter_map(|(name, value)| Some((name.as_str(), str::from_utf8(value.as_bytes()).ok()?)));
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
