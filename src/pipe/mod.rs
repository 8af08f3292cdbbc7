//! Reads jobs from lines of JSON or rows of CSV, and writes a line of JSON for the outcome of each: the source of
//! `paced pipe`.
//!
//! ```text
//! reader ─▶ Records ─▶ InputSource ─▶ dispatcher ─▶ ticket ─▶ OutcomeWriter ─▶ writer
//! ```

mod history;
mod later;
mod lines;
mod outcome;
mod progress;
mod recognise;
mod records;
mod resume;
mod source;
mod table;

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::job::ndjson::LineError;
use crate::job::{Reason, Rules};

pub use history::Releases;
pub use lines::{Line, Lines};
pub use outcome::OutcomeWriter;
pub use progress::{BadInput, Before, Progress, Totals};
pub use recognise::{Unreadable, Whole, recognise};
pub use records::{Format, OpenError, Records};
pub use resume::{Mismatch, Outcomes, ResumeError, Resumed, resume, survey};
pub use source::InputSource;

/// The most jobs that were read and whose outcomes were not written yet.
pub const WINDOW: usize = 1000;

/// The most bytes of bodies of these jobs; one job more may be read beyond it.
pub const WINDOW_BYTES: usize = 64 * 1024 * 1024;

/// The longest line, in bytes; a longer one is skipped.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// An event that people should see and that no line of output reports.
#[derive(Debug, thiserror::Error)]
pub enum Notice {
    /// A line is no job; it was skipped.
    #[error("line {line}: {error}")]
    Skipped {
        /// Its number, from 1.
        line: u64,
        /// The reason.
        error: SkipError,
    },
    /// A job was not delivered.
    #[error("line {line}: job {id}: {reason}: {detail}")]
    Failed {
        /// Its line's number, from 1.
        line: u64,
        /// The job id, control characters escaped.
        id: String,
        /// The kind of failure.
        reason: Reason,
        /// What happened, or what would be right.
        detail: String,
    },
    /// The input cannot be read any further; the jobs that were read continue.
    #[error("the input breaks off after line {line}: {error}")]
    Unreadable {
        /// The last line that was read whole.
        line: u64,
        /// The error of the system.
        error: io::Error,
    },
    /// A job that waited for its time cannot be read back.
    #[error(
        "line {line}: the job cannot be read back from the temporary file of jobs for later: {error}; --resume sends it"
    )]
    Lost {
        /// Its line's number, from 1.
        line: u64,
        /// The error of the system.
        error: io::Error,
    },
    /// The input is not that of the outcomes to continue from; the jobs that were read continue.
    #[error("{0}")]
    Mismatch(Mismatch),
}

/// The reason why a line was skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkipError {
    /// It is no job.
    #[error(transparent)]
    Line(#[from] LineError),
    /// It is longer than [`MAX_LINE`].
    #[error("longer than 16 MiB; split the job")]
    TooLong,
    /// It is the last row of a table, and ends inside quotes.
    #[error(
        "the input ends inside quotes that begin in this row; it may be cut off, or the quotes were never closed"
    )]
    Open,
}

/// A callback for notices, which must not block for long.
#[derive(Clone)]
pub struct Notify(Arc<dyn Fn(&Notice) + Send + Sync>);

impl Notify {
    /// Wraps `take`, which is called with each notice.
    pub fn new(take: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    fn report(&self, notice: &Notice) {
        (self.0)(notice);
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notify")
    }
}

/// What differs between one pipe and another.
#[derive(Debug, Default)]
pub struct PipeOptions {
    /// Whether outcomes have the body of the answer.
    pub with_body: bool,
    /// Headers of every request, by their names in lower case, instead of those that a job has of the same names.
    pub headers: Vec<(String, String)>,
    /// The rules of the dispatcher: a job for later that they refuse is not kept for its time.
    pub rules: Option<Rules>,
    /// The outcomes of earlier runs over the same input: what they delivered is skipped.
    pub outcomes: Outcomes,
}

/// A source of the jobs of `records`, and the writer of their outcomes to `writer`.
///
/// Nothing is written before [`OutcomeWriter::run`], which is to run beside the dispatcher. It ends when the source and
/// every ticket are gone.
pub fn open<R, W>(
    records: Records<R>,
    writer: W,
    options: PipeOptions,
    notify: Notify,
) -> (InputSource<R>, OutcomeWriter<W>)
where
    R: AsyncBufRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    let progress = Progress::default();
    let source = InputSource::new(records, sender, progress.clone(), options, notify);
    (source, OutcomeWriter::new(writer, receiver, progress))
}

#[cfg(test)]
mod tests;
