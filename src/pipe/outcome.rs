//! Writes one line of JSON for the outcome of each job, in the order in which the jobs ended.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

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
    /// The reason of a failure; `None` if the job was delivered.
    pub(super) reason: Option<Reason>,
    pub(super) report: Report,
    /// The body of the answer.
    pub(super) body: AnswerBody,
    #[expect(dead_code, reason = "held, then dropped")]
    pub(super) place: OwnedSemaphorePermit,
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
    #[serde(flatten)]
    body: Body<'a>,
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
        match self.reason {
            None => Kind::Delivered,
            Some(Reason::Rejected) => Kind::Rejected,
            // The same reason after an attempt is the sink's verdict.
            Some(reason) if reason.is_rejection() && self.report.attempts == 0 => Kind::Rejected,
            Some(_) => Kind::Dead,
        }
    }

    fn write(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let line = Out {
            line: self.line,
            id: &self.id,
            outcome: self.kind(),
            reason: self.reason.map(Reason::as_str),
            status: self.report.status,
            attempts: self.report.attempts,
            released_at: self.report.released_at.and_then(rfc3339),
            body: self.body.keys(),
        };
        // The id and the body are foreign text, so they are escaped.
        out.extend_from_slice(escaped_json(&serde_json::to_string(&line)?).as_bytes());
        out.push(b'\n');
        Ok(())
    }
}

/// The values of `outcome`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Delivered,
    Dead,
    Rejected,
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

/// Counts that grow while jobs end.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    delivered: AtomicU64,
    dead: AtomicU64,
    rejected: AtomicU64,
    skipped: AtomicU64,
    returned: AtomicU64,
    resumed: AtomicU64,
    /// Jobs that the source has handed out.
    handed_out: AtomicU64,
    /// Outcomes that are written.
    written: AtomicU64,
    input: Input,
}

/// The state of the input.
#[derive(Debug, Default)]
struct Input {
    unreadable: AtomicBool,
    mismatched: AtomicBool,
    /// Whether it was read to its end.
    ended: AtomicBool,
}

impl Progress {
    /// The counts now.
    pub fn totals(&self) -> Totals {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Totals {
            delivered: read(&self.0.delivered),
            dead: read(&self.0.dead),
            rejected: read(&self.0.rejected),
            skipped: read(&self.0.skipped),
            returned: read(&self.0.returned),
            resumed: read(&self.0.resumed),
            unreadable: self.0.input.unreadable.load(Ordering::Relaxed),
            mismatched: self.0.input.mismatched.load(Ordering::Relaxed),
        }
    }

    /// Jobs that were read, and neither have an outcome nor were given up.
    pub fn open(&self) -> u64 {
        let totals = self.totals();
        let ended = totals.settled() + totals.returned;
        self.0.handed_out.load(Ordering::Relaxed).saturating_sub(ended)
    }

    /// The number of entries of the input, once it was read to its end.
    pub fn entries(&self) -> Option<u64> {
        let totals = self.totals();
        let read = self.0.handed_out.load(Ordering::Relaxed) + totals.resumed + totals.skipped;
        self.0.input.ended.load(Ordering::Relaxed).then_some(read)
    }

    /// Whether the outcome of every job that has one is written.
    pub fn is_written(&self) -> bool {
        self.0.written.load(Ordering::Relaxed) >= self.totals().settled()
    }

    pub(super) fn settled(&self, kind: Kind) {
        let count = match kind {
            Kind::Delivered => &self.0.delivered,
            Kind::Dead => &self.0.dead,
            Kind::Rejected => &self.0.rejected,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn skipped(&self) {
        self.0.skipped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn returned(&self) {
        self.0.returned.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn resumed(&self) {
        self.0.resumed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn handed_out(&self) {
        self.0.handed_out.fetch_add(1, Ordering::Relaxed);
    }

    fn written(&self, outcomes: usize) {
        self.0.written.fetch_add(outcomes as u64, Ordering::Relaxed);
    }

    pub(super) fn ended(&self) {
        self.0.input.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn mismatched(&self) {
        self.0.input.mismatched.store(true, Ordering::Relaxed);
    }

    pub(super) fn unreadable(&self) {
        self.0.input.unreadable.store(true, Ordering::Relaxed);
    }
}

/// The counts of the outcomes of all lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Jobs that were delivered.
    pub delivered: u64,
    /// Jobs whose failure is final.
    pub dead: u64,
    /// Jobs that were refused, either before any release or by limits that police.
    pub rejected: u64,
    /// Lines that are no job.
    pub skipped: u64,
    /// Jobs that were read and then given up, because the pipe was stopped: some of them may have
    /// been sent.
    pub returned: u64,
    /// Jobs that an earlier run delivered.
    pub resumed: u64,
    /// Whether the input broke off.
    pub unreadable: bool,
    /// Whether the input is not that of the outcomes to go on from.
    pub mismatched: bool,
}

impl Totals {
    /// Jobs that have an outcome.
    pub const fn settled(&self) -> u64 {
        self.delivered + self.dead + self.rejected
    }

    /// Lines that are done with: they have an outcome, in this run or of a delivery before it, or are no job.
    pub const fn done(&self) -> u64 {
        self.settled() + self.resumed + self.skipped
    }

    /// Whether every line was a job and every job was delivered.
    pub const fn is_clean(&self) -> bool {
        let Self { delivered: _, dead, rejected, skipped, returned, resumed: _, unreadable, mismatched } =
            *self;
        dead == 0 && rejected == 0 && skipped == 0 && returned == 0 && !unreadable && !mismatched
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
