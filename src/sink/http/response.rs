//! From an answer to an outcome. The status decides; the body is for replies only.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, SET_COOKIE};
use tokio::time::timeout;

use super::retry_after;
use crate::job::Reason;
use crate::sink::{Outcome, Receipt, Response};

/// The most that is read of a body, be it for a reply or to free the connection.
const MAX_BODY: usize = 64 * 1024;

/// How long a body that nobody wants may hold its connection; then a new one is cheaper.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// The most headers of a reply.
const MAX_HEADERS: usize = 64;

/// The most bytes of a reply's headers, names and values together.
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// What `answer` comes to. With `wanted` the response is kept, as far as its bounds go.
pub(super) async fn outcome(answer: reqwest::Response, wanted: bool) -> Outcome {
    let status = answer.status();
    let code = status.as_u16();
    let after = retry_after::read(answer.headers());
    let response = if wanted {
        Some(keep(answer).await)
    } else {
        drain(answer).await;
        None
    };
    if status.is_success() {
        let response = response.unwrap_or_else(|| Response { status: code, ..Response::default() });
        return Outcome::Delivered(Receipt::new(response));
    }
    if is_temporary(status) {
        let detail = format!("the downstream answered {status}");
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

fn is_temporary(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
}

/// The response for a reply. A body that breaks off is kept as far as it came: the status was
/// the answer, and asking again would do the work twice.
async fn keep(mut answer: reqwest::Response) -> Response {
    let status = answer.status().as_u16();
    let headers = kept_headers(answer.headers());
    let mut body = BytesMut::new();
    while body.len() < MAX_BODY {
        let Ok(Some(chunk)) = answer.chunk().await else { break };
        let room = MAX_BODY - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Response { status, headers, body: Bytes::from(body) }
}

/// Reads to the end, so that the connection can be used again, unless the end is far.
async fn drain(mut answer: reqwest::Response) {
    let mut room = MAX_BODY as u64;
    if answer.content_length().is_some_and(|length| length > room) {
        return;
    }
    let read = async {
        while let Ok(Some(chunk)) = answer.chunk().await {
            room = room.saturating_sub(chunk.len() as u64);
            if room == 0 {
                break;
            }
        }
    };
    // Too late is no error: the connection is closed instead.
    let _ = timeout(LONGEST_DRAIN, read).await;
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
