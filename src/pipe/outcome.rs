//! Writes one line of JSON for the outcome of each job, in the order in which the jobs ended.

use std::borrow::Cow;
use std::io;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::progress::{Kind, Progress, Totals};
use crate::dispatch::Report;
use crate::job::Reason;
use crate::sink::MAX_ANSWER;
use crate::text::escaped_json;
use crate::time::Micros;

/// The most outcomes that are written at once when they come faster than the writer takes them.
const BATCH: usize = 256;

/// The bytes from which on no more outcomes are added to those that are written at once.
const BATCH_BYTES: usize = 1 << 20;

/// An outcome, and its job's place in the window until it is written.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) line: u64,
    pub(super) id: String,
    pub(super) cost: u32,
    pub(super) ending: Ending,
    pub(super) report: Report,
    /// The body of the answer.
    pub(super) body: AnswerBody,
    #[expect(dead_code, reason = "held, then dropped")]
    pub(super) place: Place,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Delivered,
    /// The failure is final.
    Failed(Reason),
    /// An operator cancelled it.
    Cancelled,
}

/// A job's place in the window, and the bytes of its body there.
#[derive(Debug)]
#[expect(dead_code, reason = "held, then dropped")]
pub(super) struct Place {
    pub(super) job: OwnedSemaphorePermit,
    pub(super) bytes: OwnedSemaphorePermit,
    pub(super) share: Option<Share>,
}

/// A share of the places for jobs that must not go yet, and of the bytes of their bodies.
#[derive(Debug)]
#[expect(dead_code, reason = "held, then dropped")]
pub(super) struct Share {
    pub(super) job: OwnedSemaphorePermit,
    pub(super) bytes: OwnedSemaphorePermit,
}

/// The body of an answer, as an outcome has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum AnswerBody {
    /// Bodies are not written.
    #[default]
    Unwanted,
    /// There was no answer.
    None,
    /// The body, of which at most [`MAX_ANSWER`] bytes were kept.
    Kept(Bytes),
}

/// The documented form.
#[derive(Serialize)]
struct Out<'a> {
    line: u64,
    id: &'a str,
    outcome: Kind,
    reason: Option<&'static str>,
    status: Option<u16>,
    attempts: u32,
    released_at: Option<String>,
    /// The units that the job took of the limits, if they were not one.
    #[serde(skip_serializing_if = "is_one")]
    cost: u32,
    #[serde(flatten)]
    body: Body<'a>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
const fn is_one(number: &u32) -> bool {
    *number == 1
}

/// The keys of the body, of which there are none if bodies are not written.
#[derive(Debug, Default, Serialize, PartialEq, Eq)]
struct Body<'a> {
    /// The body as text.
    #[serde(rename = "body", skip_serializing_if = "Option::is_none")]
    text: Option<Option<Cow<'a, str>>>,
    /// The body in base64, if it is no text.
    #[serde(rename = "body_base64", skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// Whether the body is as long as the longest that is kept, and may have been longer.
    #[serde(rename = "body_cut", skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

impl AnswerBody {
    /// The body as text or as base64, and whether it may be cut.
    fn keys(&self) -> Body<'_> {
        let body = match self {
            Self::Unwanted => return Body::default(),
            Self::None => return Body { text: Some(None), ..Body::default() },
            Self::Kept(body) => body,
        };
        let cut = body.len() >= MAX_ANSWER;
        let text = match str::from_utf8(body) {
            Ok(text) => Some(text),
            // The last character may have been cut.
            Err(error) if cut && error.error_len().is_none() => {
                str::from_utf8(&body[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        match text {
            Some(text) => Body { text: Some(Some(Cow::Borrowed(text))), base64: None, cut },
            None => Body { text: None, base64: Some(BASE64_STANDARD.encode(body)), cut },
        }
    }
}

impl Record {
    pub(super) fn kind(&self) -> Kind {
        match self.ending {
            Ending::Delivered => Kind::Delivered,
            Ending::Cancelled => Kind::Cancelled,
            Ending::Failed(Reason::Rejected) => Kind::Rejected,
            // After an attempt the same reason comes from the answer.
            Ending::Failed(reason) if reason.is_rejection() && self.report.attempts == 0 => Kind::Rejected,
            Ending::Failed(_) => Kind::Dead,
        }
    }

    fn write(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let line = Out {
            line: self.line,
            id: &self.id,
            outcome: self.kind(),
            reason: match self.ending {
                Ending::Failed(reason) => Some(reason.as_str()),
                Ending::Delivered | Ending::Cancelled => None,
            },
            status: self.report.status,
            attempts: self.report.attempts,
            released_at: self.report.released_at.and_then(rfc3339),
            cost: self.cost,
            body: self.body.keys(),
        };
        // The id and the body are foreign text, so they are escaped.
        out.extend_from_slice(escaped_json(&serde_json::to_string(&line)?).as_bytes());
        out.push(b'\n');
        Ok(())
    }
}

/// Formats an instant in UTC with six digits of microseconds, so that texts sort as instants do.
fn rfc3339(at: Micros) -> Option<String> {
    let at = jiff::Timestamp::from_microsecond(at.0).ok()?;
    Some(format!("{at:.6}"))
}

/// Writes outcomes as they come.
#[derive(Debug)]
pub struct OutcomeWriter<W> {
    writer: W,
    records: mpsc::UnboundedReceiver<Record>,
    progress: Progress,
}

impl<W: AsyncWrite + Unpin + Send> OutcomeWriter<W> {
    pub(super) const fn new(writer: W, records: mpsc::UnboundedReceiver<Record>, progress: Progress) -> Self {
        Self { writer, records, progress }
    }

    /// The counts so far, which can be read while it runs.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Writes until the source and all tickets are gone, and returns the counts of all outcomes.
    ///
    /// # Errors
    /// An error of the writer. The source then ends, and jobs that were not yet released stay so, since their outcome
    /// could not be reported.
    ///
    /// Not cancel safe: outcomes that were taken and not written are lost.
    pub async fn run(mut self) -> io::Result<Totals> {
        let mut out = Vec::new();
        while let Some(first) = self.records.recv().await {
            first.write(&mut out)?;
            let mut written = vec![first];
            while written.len() < BATCH && out.len() < BATCH_BYTES {
                let Ok(next) = self.records.try_recv() else { break };
                next.write(&mut out)?;
                written.push(next);
            }
            self.writer.write_all(&out).await?;
            self.writer.flush().await?;
            out.clear();
            self.progress.written(written.len());
            // The places are freed only now, so that a slow reader slows the intake.
            drop(written);
        }
        self.writer.shutdown().await?;
        Ok(self.progress.totals())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_text_or_base64() {
        let longest = "x".repeat(MAX_ANSWER - 1);
        let keys = |body: &[u8]| {
            let body = AnswerBody::Kept(Bytes::copy_from_slice(body));
            let Body { text, base64, cut } = body.keys();
            (text.flatten().map(Cow::into_owned), base64, cut)
        };
        assert_eq!(keys(b""), (Some(String::new()), None, false));
        assert_eq!(keys("grüße".as_bytes()), (Some("grüße".to_owned()), None, false));
        assert_eq!(keys(b"\xff\xfe"), (None, Some("//4=".to_owned()), false));
        assert_eq!(keys(b"gr\xc3"), (None, Some("Z3LD".to_owned()), false));
        assert_eq!(
            keys(format!("{longest}ü").as_bytes()[..MAX_ANSWER].as_ref()),
            (Some(longest), None, true)
        );
        assert_eq!(AnswerBody::None.keys(), Body { text: Some(None), ..Body::default() });
        assert_eq!(AnswerBody::Unwanted.keys(), Body::default());
    }
}
