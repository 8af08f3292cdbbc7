//! Bounds how much of the log strangers can fill: log lines that their messages or requests cause are written one by
//! one up to a number a second, and a summary counts the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// The most lines a second that are logged one by one, unless a log has its own bound.
const SINGLES: u32 = 10;

const SECOND: Duration = Duration::from_secs(1);

/// How long lines are counted before a summary is logged.
const SUMMARY: Duration = Duration::from_secs(10);

/// Logs a line, or counts it for a summary. All lines that have one bound share one log.
pub struct BoundedLog {
    budget: Mutex<Budget>,
    summarize: Box<dyn Fn(Summary) + Send + Sync>,
}

/// The lines that were counted and not logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many there were.
    pub lines: u64,
    /// How many of each kind, by kind.
    pub kinds: BTreeMap<&'static str, u64>,
}

impl fmt::Display for Summary {
    /// Writes the kinds with their counts, such as `bad-id 3, status 12`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, lines)) in self.kinds.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{kind} {lines}")?;
        }
        Ok(())
    }
}

impl BoundedLog {
    /// Logs ten lines a second one by one. Summaries go to `summarize`, which writes a line for each.
    pub fn new(summarize: impl Fn(Summary) + Send + Sync + 'static) -> Arc<Self> {
        Self::with_bound(SINGLES, SECOND, summarize)
    }

    /// As [`BoundedLog::new`], with `max_singles` lines in each `span`.
    pub fn with_bound(
        max_singles: u32,
        span: Duration,
        summarize: impl Fn(Summary) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let budget = Mutex::new(Budget::new(Instant::now(), max_singles, span));
        Arc::new(Self { budget, summarize: Box::new(summarize) })
    }

    /// Calls `single`, which writes a line of this kind, or counts the line for a summary.
    ///
    /// Summaries come from a task; outside a tokio runtime only when the last owner drops the log.
    pub fn line(self: &Arc<Self>, kind: &'static str, single: impl FnOnce()) {
        let line = lock(&self.budget).line(Instant::now(), kind);
        match line {
            Line::Single => single(),
            Line::Counted { first: false } => {}
            Line::Counted { first: true } => {
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    // The task must not keep the log: when its owner drops it, the summary is due at once.
                    let log = Arc::downgrade(self);
                    drop(runtime.spawn(Self::summarize_later(log)));
                }
            }
        }
    }

    async fn summarize_later(log: Weak<Self>) {
        tokio::time::sleep(SUMMARY).await;
        if let Some(log) = log.upgrade() {
            log.write();
        }
    }

    fn write(&self) {
        let summary = lock(&self.budget).take();
        if let Some(summary) = summary {
            (self.summarize)(summary);
        }
    }
}

impl Drop for BoundedLog {
    fn drop(&mut self) {
        self.write();
    }
}

impl fmt::Debug for BoundedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedLog").finish_non_exhaustive()
    }
}

/// The decision on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Single,
    Counted {
        /// It is the first one of the next summary.
        first: bool,
    },
}

/// The part of a span's lines that is used up, and the contents of the next summary. It has no I/O.
#[derive(Debug)]
struct Budget {
    /// The most lines that are logged one by one in a span.
    max_singles: u32,
    span: Duration,
    /// When the present span began.
    begun: Instant,
    singles: u32,
    counted: BTreeMap<&'static str, u64>,
}

impl Budget {
    const fn new(now: Instant, max_singles: u32, span: Duration) -> Self {
        Self { max_singles, span, begun: now, singles: 0, counted: BTreeMap::new() }
    }

    fn line(&mut self, now: Instant, kind: &'static str) -> Line {
        if now.saturating_duration_since(self.begun) >= self.span {
            (self.begun, self.singles) = (now, 0);
        }
        if self.singles < self.max_singles {
            self.singles += 1;
            return Line::Single;
        }
        let first = self.counted.is_empty();
        *self.counted.entry(kind).or_default() += 1;
        Line::Counted { first }
    }

    fn take(&mut self) -> Option<Summary> {
        let kinds = std::mem::take(&mut self.counted);
        (!kinds.is_empty()).then(|| Summary { lines: kinds.values().sum(), kinds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Summaries = Arc<Mutex<Vec<String>>>;

    fn log() -> (Arc<BoundedLog>, Summaries) {
        let summaries = Summaries::default();
        let theirs = Arc::clone(&summaries);
        let log = BoundedLog::new(move |summary| {
            theirs.lock().unwrap().push(format!("{}: {summary}", summary.lines));
        });
        (log, summaries)
    }

    fn singles(log: &Arc<BoundedLog>, kind: &'static str, lines: u32) -> u32 {
        let mut singles = 0;
        (0..lines).for_each(|_| log.line(kind, || singles += 1));
        singles
    }

    #[tokio::test(start_paused = true)]
    async fn ten_a_second_are_logged_and_the_rest_is_summarized() {
        let (log, summaries) = log();
        assert_eq!(singles(&log, "status", 7), 7);
        assert_eq!(singles(&log, "bad-id", 20), 3);
        assert_eq!(singles(&log, "status", 1), 0);
        tokio::time::sleep(SECOND).await;
        assert_eq!(singles(&log, "bad-id", 12), 10, "another second");
        assert!(summaries.lock().unwrap().is_empty(), "not yet");
        tokio::time::sleep(SUMMARY - SECOND + Duration::from_millis(1)).await;
        assert_eq!(*summaries.lock().unwrap(), ["20: bad-id 19, status 1"]);
        tokio::time::sleep(10 * SUMMARY).await;
        assert_eq!(summaries.lock().unwrap().len(), 1, "nothing more happened");

        assert_eq!(singles(&log, "status", 11), 10);
        drop(log);
        assert_eq!(summaries.lock().unwrap()[1..], ["1: status 1"], "the end summarizes the rest");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_takes_eleven_lines_a_second_at_most() {
        let (log, summaries) = log();
        let mut all = 0;
        for _ in 0..600 {
            all += singles(&log, "bad-id", 100);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(all, 600, "60 seconds");
        drop(log);
        let counts: Vec<u64> = summaries
            .lock()
            .unwrap()
            .iter()
            .map(|line| line.split(':').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(counts.iter().sum::<u64>(), 60_000 - 600, "each line is in a summary");
        assert!(counts.len() <= 7, "{counts:?}");
    }
}
