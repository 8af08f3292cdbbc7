//! Reads the bodies of answers.

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING};
use tokio::time::{Instant, timeout_at};

use super::coding::{CodingError, Codings};
use super::pool::Aging;
use super::{SECOND, chain};
use crate::sink::{Closing, MAX_ANSWER};

/// The most bytes that are read of the body of an answer that is no success, for a reply or to reuse the connection.
pub(super) const MAX_BODY: usize = MAX_ANSWER;

/// How long reading a body that nobody needs may take, if the answer is no success. After that a new connection is
/// cheaper.
pub(super) const LONGEST_DRAIN: std::time::Duration = SECOND;

/// How long a body that has come waits to be decoded. This is long, because without the body a rule cannot decide.
/// The work of decoding the bodies before it is bounded.
const LONGEST_DECODING: std::time::Duration = SECOND.saturating_mul(30);

/// An answer whose head has arrived.
pub(super) struct Answer {
    pub(super) head: hyper::Response<Incoming>,
    /// The connection on which its body arrives.
    pub(super) aging: Aging,
    /// The end of the request's time-out.
    pub(super) deadline: Instant,
}

/// What was read of a body.
#[derive(Debug)]
pub(super) struct Read {
    /// Its beginning, as far as the caller wanted to keep it.
    pub(super) start: Bytes,
    pub(super) end: End,
}

/// How reading ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The body is over.
    Whole,
    /// The caller wanted no more bytes, or the time was over.
    Cut,
    /// The connection ended before the body.
    Broken(String),
}

impl Answer {
    /// Reads the body to its end, or until the time-out, and keeps `most` bytes at most. When the dispatcher closes,
    /// it stops waiting for more.
    pub(super) async fn read_on(&mut self, most: usize, closing: &Closing) -> Read {
        let is_stream = is_event_stream(self.head.headers());
        let mut start = BytesMut::new();
        let end = tokio::select! {
            biased;
            end = self.read(&mut start, most, usize::MAX, self.deadline) => end,
            () = closing.wait(is_stream) => End::Cut,
        };
        Read { start: start.freeze(), end }
    }

    /// Reads the first 64 KiB of the body within the time-out. The status is the answer, so a body that breaks off is
    /// kept as far as it arrived.
    pub(super) async fn keep(&mut self) -> Read {
        let mut start = BytesMut::new();
        let end = self.read(&mut start, MAX_BODY, MAX_BODY, self.deadline).await;
        Read { start: start.freeze(), end }
    }

    /// Reads the body to its end, so that the connection can be used again, unless the end is far or the request is not
    /// written yet; keeps `most` bytes at most. What does not come in time is no error: the connection is closed instead.
    pub(super) async fn drain(&mut self, is_sent: bool, most: usize) -> Read {
        let is_near = is_sent && self.head.body().size_hint().lower() <= MAX_BODY as u64;
        let room = if is_near { MAX_BODY } else { most };
        let by = self.deadline.min(Instant::now() + LONGEST_DRAIN);
        let mut start = BytesMut::new();
        let end = self.read(&mut start, most, room, by).await;
        Read { start: start.freeze(), end }
    }

    /// Reads `room` bytes of the body at most, up to this instant, and puts the first `most` of them into `start`.
    async fn read(&mut self, start: &mut BytesMut, most: usize, mut room: usize, by: Instant) -> End {
        loop {
            if self.head.body().is_end_stream() {
                return End::Whole;
            }
            if room == 0 {
                return End::Cut;
            }
            let piece = timeout_at(by, self.aging.connection.chunk(self.head.body_mut())).await;
            match piece {
                Err(_) => return End::Cut,
                Ok(None) => return End::Whole,
                Ok(Some(Err(error))) => {
                    let is_end = is_ended_by_closing(self.head.headers()) && is_unclean_end(&error);
                    return if is_end { End::Whole } else { End::Broken(chain(&error)) };
                }
                // It is copied, since a piece may hold much more memory than its beginning has bytes.
                Ok(Some(Ok(piece))) => {
                    start.extend_from_slice(&piece[..piece.len().min(most - start.len())]);
                    room = room.saturating_sub(piece.len());
                }
            }
        }
    }
}

impl Read {
    /// The beginning of the body, `most` bytes at most: decoded if it has codings, and otherwise as it is. The error
    /// says why it could not be decoded, and has what was read.
    pub(super) async fn decode(&self, headers: &HeaderMap, most: usize) -> Result<Decoded, CodingError> {
        // An answer to HEAD has the header fields of a body, but no body; it needs no decoder.
        let codings = if self.start.is_empty() { Codings::default() } else { Codings::of(headers)? };
        if codings.is_empty() {
            return Ok(self.as_it_is(most));
        }
        let is_whole = self.end == End::Whole && self.start.len() < MAX_BODY;
        let decoding = codings.decode(self.start.clone(), most, is_whole);
        let body = tokio::time::timeout(LONGEST_DECODING, decoding).await;
        Ok(Decoded { body: body.unwrap_or(Err(CodingError::TooLate))?, was_coded: true })
    }

    /// The beginning as it was sent, `most` bytes at most.
    pub(super) fn as_it_is(&self, most: usize) -> Decoded {
        Decoded { body: self.start.slice(..most.min(self.start.len())), was_coded: false }
    }
}

/// A body, or its beginning.
pub(super) struct Decoded {
    pub(super) body: Bytes,
    /// Whether codings were taken off it.
    pub(super) was_coded: bool,
}

/// Whether the body is a stream of events, which need not end and has no end that could be missed.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
}

/// Whether the end of the connection is that of the body.
fn is_ended_by_closing(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(TRANSFER_ENCODING)
}

/// Whether the connection ended without a `close_notify` of TLS, which many servers do not send.
fn is_unclean_end(error: &hyper::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.kind() == std::io::ErrorKind::UnexpectedEof;
        }
        cause = error.source();
    }
    false
}
