//! Writes log lines to a writer that may be slow, full or gone, without ever waiting for it.
//!
//! `tracing-appender`'s non-blocking writer does most of this, but bounds lines instead of bytes, does not
//! count lines whose write failed, and prints to stdout at exit when its queue is full.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use paced::lock::lock;
use paced::text;
use tokio::time::Instant;
use tracing_subscriber::fmt::MakeWriter;

use super::LogFormat;

/// Bytes of log lines that wait to be written, at most.
const CAPACITY: usize = 1 << 20;

/// The approximate memory that a line takes in the queue besides its own bytes.
const PER_LINE: usize = 64;

/// The least time between two lines that report dropped lines.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How long to wait before the next attempt to write to a full pipe that does not block.
const PAUSE: Duration = Duration::from_millis(10);

/// Takes log lines and gives them to a thread that writes them. A line that finds the queue full, or whose
/// write fails, is dropped and counted; once lines can be written again, one of them says how many were
/// dropped. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LossyWriter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when there is a line to write.
    filled: Condvar,
    /// Notified when every line has been written or dropped.
    drained: Condvar,
    capacity: usize,
    format: LogFormat,
    /// Whether the formatter colours lines: escape sequences for colours pass then.
    color: bool,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// The bytes of `lines` and of the line that is being written.
    bytes: usize,
    /// Whether a line has left `lines` and is being written.
    writing: bool,
    /// Lines dropped since the start.
    dropped: u64,
    /// Those of them that a line has reported.
    reported: u64,
}

impl Queue {
    fn is_drained(&self) -> bool {
        self.lines.is_empty() && !self.writing
    }
}

impl LossyWriter {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        out: impl Write + Send + 'static,
        format: LogFormat,
        color: bool,
    ) -> io::Result<Self> {
        Self::with_capacity(out, format, color, CAPACITY)
    }

    fn with_capacity(
        out: impl Write + Send + 'static,
        format: LogFormat,
        color: bool,
        capacity: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            drained: Condvar::new(),
            capacity,
            format,
            color,
        });
        let theirs = Arc::clone(&shared);
        // The thread ends with the process: a write that blocks cannot be cancelled.
        thread::Builder::new().name("paced-log".to_owned()).spawn(move || theirs.write_all_to(out))?;
        Ok(Self { shared })
    }

    /// Queues a line, which ends in a line feed, or drops it. It never waits for the writer.
    pub(crate) fn push(&self, line: &[u8]) {
        self.enqueue(self.shared.safe(line));
    }

    /// Queues a message for people as a line, or drops it. It never waits for the writer.
    pub(crate) fn push_message(&self, message: &str) {
        self.enqueue(format!("{}\n", text::escaped(message)).into_bytes());
    }

    fn enqueue(&self, line: Vec<u8>) {
        let cost = line.len() + PER_LINE;
        let mut queue = lock(&self.shared.queue);
        if queue.bytes + cost > self.shared.capacity {
            queue.dropped += 1;
            return;
        }
        queue.bytes += cost;
        queue.lines.push_back(line);
        drop(queue);
        self.shared.filled.notify_one();
    }

    /// The number of lines dropped since the start.
    pub(crate) fn dropped(&self) -> u64 {
        lock(&self.shared.queue).dropped
    }

    /// Waits for at most `within` until all queued lines are written; returns whether they are.
    pub(crate) fn flush(&self, within: Duration) -> bool {
        let queue = lock(&self.shared.queue);
        let waited = self.shared.drained.wait_timeout_while(queue, within, |queue| !queue.is_drained());
        let (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.is_drained()
    }
}

impl Shared {
    /// The line as one line, with control characters escaped.
    fn safe(&self, line: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let mut safe = String::with_capacity(text.len() + 1);
        for (at, c) in text.char_indices() {
            match self.format {
                _ if !text::is_unsafe(c) => safe.push(c),
                _ if self.color && is_color(&text[at..]) => safe.push(c),
                LogFormat::Text => safe.extend(c.escape_default()),
                // Such characters occur inside strings only, and all have at most four digits.
                LogFormat::Json => drop(write!(safe, "\\u{:04x}", u32::from(c))),
            }
        }
        safe.push('\n');
        safe.into_bytes()
    }

    /// The main loop of the thread.
    fn write_all_to(&self, out: impl Write) {
        let mut lines = LineWriter { out, in_line: false };
        let mut reported_at: Option<Instant> = None;
        let mut queue = lock(&self.queue);
        loop {
            let Some(line) = queue.lines.pop_front() else {
                self.drained.notify_all();
                queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.writing = true;
            drop(queue);
            let written = lines.write(&line);
            queue = lock(&self.queue);
            queue.bytes -= line.len() + PER_LINE;
            queue.dropped += u64::from(written.is_err());
            let dropped = queue.dropped;
            let due = queue.lines.is_empty() || reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
            if written.is_ok() && dropped > queue.reported && due {
                let report = self.report(dropped - queue.reported);
                drop(queue);
                let written = lines.write(report.as_bytes());
                reported_at = Some(Instant::now());
                queue = lock(&self.queue);
                if written.is_ok() {
                    queue.reported = dropped;
                }
            }
            queue.writing = false;
        }
    }

    /// The line that reports dropped lines, in the format of the log.
    fn report(&self, lines: u64) -> String {
        let now = jiff::Timestamp::now();
        match self.format {
            LogFormat::Text => format!("{now:.6}  WARN {lines} log lines were dropped\n"),
            LogFormat::Json => format!(
                "{{\"timestamp\":\"{now:.6}\",\"level\":\"WARN\",\"message\":\"{lines} log lines were dropped\",\
                 \"dropped\":{lines}}}\n"
            ),
        }
    }
}

/// Whether the text begins with an escape sequence that only sets a colour or style.
fn is_color(text: &str) -> bool {
    let Some(sequence) = text.strip_prefix("\u{1b}[") else { return false };
    let numbers = |c: char| c.is_ascii_digit() || c == ';';
    sequence.trim_start_matches(numbers).starts_with('m')
}

/// Writes whole lines: after a line that was cut off by an error the next one starts on a new line.
struct LineWriter<W> {
    out: W,
    in_line: bool,
}

impl<W: Write> LineWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.in_line {
            self.bytes(b"\n")?;
        }
        self.bytes(line)?;
        self.in_line = false;
        Ok(())
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.out.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.in_line = true;
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::park_timeout(PAUSE),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Each event of the log is one call.
impl Write for &LossyWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LossyWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests;
