//! Writes one line of JSON for the outcome of each job, in the order in which the jobs ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::dispatch::Report;
use crate::job::Reason;
use crate::text::escaped_json;
use crate::time::Micros;

/// The most outcomes that are written at once when they come faster than the writer takes them.
const BATCH: usize = 256;

/// An outcome, and its job's place in the window until it is written.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) line: u64,
    pub(super) id: String,
    /// The reason of a failure; `None` if the job was delivered.
    pub(super) reason: Option<Reason>,
    pub(super) report: Report,
    #[expect(dead_code, reason = "held, then dropped")]
    pub(super) place: OwnedSemaphorePermit,
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
        };
        // The id is foreign text, so it is escaped.
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
    #[must_use]
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
            let mut written = vec![first];
            while written.len() < BATCH {
                let Ok(next) = self.records.try_recv() else { break };
                written.push(next);
            }
            for record in &written {
                record.write(&mut out)?;
            }
            self.writer.write_all(&out).await?;
            self.writer.flush().await?;
            out.clear();
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
    unreadable: AtomicBool,
}

impl Progress {
    /// The counts now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Totals {
            delivered: read(&self.0.delivered),
            dead: read(&self.0.dead),
            rejected: read(&self.0.rejected),
            skipped: read(&self.0.skipped),
            returned: read(&self.0.returned),
            unreadable: self.0.unreadable.load(Ordering::Relaxed),
        }
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

    pub(super) fn unreadable(&self) {
        self.0.unreadable.store(true, Ordering::Relaxed);
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
    /// Whether the input broke off.
    pub unreadable: bool,
}

impl Totals {
    /// Jobs that have an outcome.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.delivered + self.dead + self.rejected
    }

    /// Whether every line was a job and every job was delivered.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        let Self { delivered: _, dead, rejected, skipped, returned, unreadable } = *self;
        dead == 0 && rejected == 0 && skipped == 0 && returned == 0 && !unreadable
    }
}
