//! From an answer to an outcome. The status decides; the body is for replies only.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{HeaderMap, SET_COOKIE};
use tokio::time::{Instant, timeout_at};

use super::connection::Connection;
use super::retry_after;
use crate::job::Reason;
use crate::sink::{Outcome, Receipt, Response};

/// The most that is read of a body, be it for a reply or to free the connection.
const MAX_BODY: usize = 64 * 1024;

/// How long the rest of a request or answer that nobody waits for may take; then a new connection is
/// cheaper.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// The most headers of a reply.
const MAX_HEADERS: usize = 64;

/// The most bytes of a reply's headers, names and values together.
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// An answer of which the head has come.
pub(super) struct Answer {
    pub(super) head: hyper::Response<Incoming>,
    /// On which its body comes.
    pub(super) connection: Connection,
    /// The end of the request's time.
    pub(super) deadline: Instant,
}

impl Answer {
    /// The body's next piece, if there is one and it comes by then.
    async fn chunk(&mut self, by: Instant) -> Option<Bytes> {
        if self.is_read() {
            return None;
        }
        timeout_at(by, self.connection.chunk(self.head.body_mut())).await.ok()?
    }

    fn is_read(&self) -> bool {
        self.head.body().is_end_stream()
    }
}

/// What `answer` comes to, and its connection if it can be used again. With `wanted` the response is
/// kept, as far as its bounds go.
pub(super) async fn outcome(mut answer: Answer, wanted: bool) -> (Outcome, Option<Connection>) {
    let response = if wanted {
        Some(keep(&mut answer).await)
    } else {
        drain(&mut answer).await;
        None
    };
    let outcome = judge(&answer.head, response);
    let Answer { head, mut connection, deadline } = answer;
    // What is not read by now stays unread: the connection ends.
    drop(head);
    if !connection.is_idle() && matches!(outcome, Outcome::Delivered(_)) {
        // Some servers say yes before they have read all: it still has to reach them.
        let by = deadline.min(Instant::now() + LONGEST_DRAIN);
        let _ = timeout_at(by, connection.settle()).await;
    }
    let is_idle = connection.is_idle();
    (outcome, is_idle.then_some(connection))
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
        let pause = after.is_some()
            && matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        return Outcome::Retry { reason: "status", detail, status: Some(code), after, pause, response };
    }
    let hint = if status.is_redirection() {
        "; redirects are not followed, set `base_url` to their target"
    } else {
        ""
    };
    let detail = format!("the downstream answered {status}{hint}");
    Outcome::Dead { reason: Reason::Status, detail, status: Some(code), response }
}

fn is_temporary(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
}

/// The response for a reply. A body that breaks off is kept as far as it came: the status was
/// the answer, and asking again would do the work twice.
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

/// Reads to the end, so that the connection can be used again, unless the end is far. Too late is
/// no error: the connection is closed instead.
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

/// Text headers in lower case, up to the bounds; no cookies, which are nobody's business here.
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
