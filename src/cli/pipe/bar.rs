//! The progress of a pipe, on a terminal.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{FormattedDuration, ProgressBar};
use paced::Rate;
use paced::pipe::Totals;
use tokio::time::Instant;

use crate::cli::out;
use crate::telemetry;

/// The shortest span over which the pace is measured.
const SPAN: Duration = Duration::from_secs(5);

/// The number of intervals of the limit over which the pace is measured, where that is longer.
const INTERVALS: u32 = 20;

/// A bar on stderr, which is hidden where that is no terminal.
pub(super) struct Bar {
    bar: ProgressBar,
    limit: Rate,
    pace: Pace,
}

/// The jobs of the last seconds.
struct Pace {
    span: Duration,
    samples: VecDeque<(Instant, u64)>,
}

impl Bar {
    /// A bar; hidden where stdout shows the outcomes on the same terminal.
    pub(super) fn new(limit: Rate, writes_to_stdout: bool) -> Self {
        let shows_outcomes = writes_to_stdout && std::io::stdout().is_terminal();
        let bar = if shows_outcomes { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.set_style(out::bar_style("{spinner} {msg}"));
        Self { bar, limit, pace: Pace::new(limit) }
    }

    /// A handle by which messages are printed above the bar.
    pub(super) fn messages(&self) -> Messages {
        Messages(self.bar.clone())
    }

    /// Draws what was done so far of `total`.
    pub(super) fn draw(&mut self, totals: Totals, total: Option<u64>) {
        let pace = self.pace.observe(Instant::now(), totals.settled());
        if let Some(total) = total.filter(|total| self.bar.length() != Some(*total)) {
            self.bar.set_length(total);
            self.bar.set_style(out::bar_style("{bar:30} {msg}"));
        }
        self.bar.set_position(totals.done());
        self.bar.set_message(text(totals.done(), total, pace, self.limit));
        self.bar.tick();
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// What stands beside the bar: the part that is done, the pace against the limit, and the time that is left.
fn text(done: u64, total: Option<u64>, pace: Option<f64>, limit: Rate) -> String {
    let shown = pace.unwrap_or_default();
    let percent = shown / limit.per_second() * 100.0;
    let pace_text = format!("{shown:.1}/s, {percent:.0} % of {limit}");
    let Some(total) = total else { return format!("{done} done, {pace_text}") };
    let left = total.saturating_sub(done);
    let part = done.saturating_mul(100).checked_div(total).unwrap_or(100).min(100);
    // Until a pace is seen, the limit is the best guess.
    let pace = pace.filter(|pace| *pace > 0.0).unwrap_or(limit.per_second());
    #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
    let eta = Duration::try_from_secs_f64((left as f64 / pace).ceil()).unwrap_or(Duration::MAX);
    format!("{done}/{total} ({part} %), {pace_text}, {} left", FormattedDuration(eta))
}

impl Pace {
    fn new(limit: Rate) -> Self {
        Self { span: SPAN.max(limit.interval().saturating_mul(INTERVALS)), samples: VecDeque::new() }
    }

    /// Adds how many jobs are settled by now, and returns the jobs a second; `None` until that is known.
    fn observe(&mut self, now: Instant, settled: u64) -> Option<f64> {
        self.samples.push_back((now, settled));
        // The oldest sample is at least as old as the span, if there is one.
        while self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= self.span) {
            self.samples.pop_front();
        }
        let (first, before) = *self.samples.front()?;
        let elapsed = now.duration_since(first).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
        let jobs = settled.saturating_sub(before) as f64;
        (elapsed >= 0.5).then(|| jobs / elapsed)
    }
}

/// Prints messages while jobs are released: on a terminal above the bar; elsewhere without waiting, since a pipe that
/// nobody reads must not stop the jobs.
#[derive(Clone)]
pub(super) struct Messages(ProgressBar);

impl Messages {
    pub(super) fn print(&self, message: &str) {
        if std::io::stderr().is_terminal() {
            self.0.suspend(|| out::say(message));
        } else {
            telemetry::note(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_beside_the_bar() {
        let limit: Rate = "50/s".parse().unwrap();
        assert_eq!(text(7, None, None, limit), "7 done, 0.0/s, 0 % of 50/s");
        assert_eq!(text(0, Some(20_000), None, limit), "0/20000 (0 %), 0.0/s, 0 % of 50/s, 00:06:40 left");
        let half = text(10_000, Some(20_000), Some(25.0), limit);
        assert_eq!(half, "10000/20000 (50 %), 25.0/s, 50 % of 50/s, 00:06:40 left");
        assert_eq!(text(0, Some(0), Some(0.0), limit), "0/0 (100 %), 0.0/s, 0 % of 50/s, 00:00:00 left");
        assert!(text(3, Some(2), Some(1.0), limit).starts_with("3/2 (100 %)"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pace_is_that_of_the_last_seconds() {
        let mut pace = Pace::new("50/s".parse().unwrap());
        assert_eq!(pace.observe(Instant::now(), 100), None, "what was done before does not count");
        let mut seen = None;
        for tenth in 1..=100 {
            tokio::time::advance(Duration::from_millis(100)).await;
            // 50/s for five seconds, then 10/s.
            let settled = if tenth <= 50 { tenth * 5 } else { 250 + (tenth - 50) };
            seen = pace.observe(Instant::now(), 100 + settled);
            if tenth == 50 {
                assert_eq!(seen, Some(50.0));
            }
        }
        assert_eq!(seen, Some(10.0));
        assert!(pace.samples.len() <= 52, "{}", pace.samples.len());
        assert_eq!(Pace::new("1/m".parse().unwrap()).span, Duration::from_secs(1200));
    }
}
