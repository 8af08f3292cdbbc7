//! Classifies an answer. The status decides; the body is for replies only.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{HeaderMap, SET_COOKIE};
use tokio::time::{Instant, timeout_at};

use super::pool::Aging;
use super::retry_after;
use crate::job::Reason;
use crate::sink::{BodyMatch, MAX_ANSWER, Outcome, Receipt, Response};

/// The most bytes that are read of a body, for a reply or to reuse the connection.
const MAX_BODY: usize = MAX_ANSWER;

/// How long reading the rest of an unwanted body may take; beyond that a new connection is cheaper.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);

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

/// The outcome of `answer`, and its connection if it can be used again. With `wanted` the response is kept, within its
/// bounds. A success with a body such as `throttled_when` throttles.
///
/// An answer may come before its request was written. A 2xx counts only once the request is written: a part of a job is
/// no delivery, whatever the server answers. Any other status is the answer at once.
pub(super) async fn outcome(
    mut answer: Answer,
    wanted: bool,
    throttled_when: Option<&BodyMatch>,
) -> (Outcome, Option<Aging>) {
    let is_success = answer.head.status().is_success();
    let throttled_when = throttled_when.filter(|_| is_success);
    let is_kept = wanted || throttled_when.is_some();
    let response = if is_kept { Some(keep(&mut answer).await) } else { None };
    if is_success && let Err(cut_off) = finish_sending(&mut answer).await {
        return (cut_off, None);
    }
    let is_sent = answer.aging.connection.has_sent();
    if is_sent && !is_kept {
        drain(&mut answer).await;
    }
    let throttles = |kept: &Response| throttled_when.is_some_and(|when| when.is_in(&kept.body));
    let outcome = match response {
        Some(kept) if throttles(&kept) => throttled_by_body(&answer.head, wanted.then_some(kept)),
        kept => judge(&answer.head, kept.filter(|_| wanted)),
    };
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

/// The outcome of a success whose body means that the downstream throttles.
fn throttled_by_body(answer: &hyper::Response<Incoming>, response: Option<Response>) -> Outcome {
    let status = answer.status();
    let detail = format!("the downstream answered {status} with a body that means that it throttles");
    let after = retry_after::read(answer.headers());
    Outcome::Throttled { detail, status: status.as_u16(), after, response }
}

fn judge(answer: &hyper::Response<Incoming>, response: Option<Response>) -> Outcome {
    let status = answer.status();
    let code = status.as_u16();
    if status.is_success() {
        let response = response.unwrap_or_else(|| Response { status: code, ..Response::default() });
        return Outcome::Delivered(Receipt::new(response));
    }
    if is_temporary(status) {
        let detail = format!("the downstream answered {status}");
        let after = retry_after::read(answer.headers());
        if is_throttling(status, after) {
            return Outcome::Throttled { detail, status: code, after, response };
        }
        return Outcome::Retry { reason: "status", detail, status: Some(code), after, response };
    }
    let hint = if status.is_redirection() {
        "; redirects are not followed, set `base_url` to their target"
    } else {
        ""
    };
    let detail = format!("the downstream answered {status}{hint}");
    Outcome::Dead { reason: Reason::Status, detail, status: Some(code), response }
}

/// Whether the answer asks all callers to slow down.
fn is_throttling(status: StatusCode, after: Option<Duration>) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || (status == StatusCode::SERVICE_UNAVAILABLE && after.is_some())
}

fn is_temporary(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
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
    Response { status: answer.head.status().as_u16(), headers, body: Bytes::from(body) }
}

/// Reads the body to its end, so that the connection can be used again, unless the end is far. A time-out is no error:
/// the connection is closed instead.
async fn drain(answer: &mut Answer) {
    let mut room = MAX_BODY as u64;
    if answer.is_read() || answer.head.body().size_hint().lower() > room {
        return;
    }
    let by = answer.deadline.min(Instant::now() + LONGEST_DRAIN);
    while room > 0
        && let Some(chunk) = answer.chunk(by).await
    {
        room = room.saturating_sub(chunk.len() as u64);
    }
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
