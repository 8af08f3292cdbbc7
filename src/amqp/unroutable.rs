//! Watches the messages that reach no downstream's queue: counts those that arrive, and warns of them.
//!
//! The broker sends no notice of them, so the length of their queue is polled. A message that is taken out of the
//! queue between two polls hides one arrival.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::error::Error;
use super::supervisor::{ConnectionWatch, up};
use super::topology::count;
use crate::metric;

/// How often the queue is polled.
const POLL_INTERVAL: Duration = Duration::from_secs(15);

/// The least time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(600);

/// A shorter queue counts once this many polls in a row have found it: letters that a command holds for a while
/// return, and the broker also reports 0 for a queue that does not answer in time.
const LOWER_POLLS: u32 = 8;

/// Watches the queue until `stop`.
///
/// The caller waits for its end before it closes the connection. A poll in progress then ends first: the refusal of
/// an abandoned one would count as an error of the connection.
pub(super) async fn watch(mut current: ConnectionWatch, queue: String, haste: u32, stop: CancellationToken) {
    metrics::counter!(metric::UNROUTABLE.name).increment(0);
    let (mut growth, mut is_said) = (Growth::default(), false);
    let mut ticks = interval(POLL_INTERVAL / haste.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next = async {
            ticks.tick().await;
            up(&mut current).await
        };
        let Some(Some(connection)) = stop.run_until_cancelled(next).await else { return };
        match count(&connection, &queue).await {
            Ok(messages) => note(&mut growth, &queue, messages),
            // It may be missing, or out of reach for this user, for ever.
            Err(error) if error.is_final() => {
                if matches!(error, Error::NotFound { .. }) {
                    note(&mut growth, &queue, 0);
                }
                if !std::mem::replace(&mut is_said, true) {
                    debug!(queue, %error, "messages that reach no queue cannot be counted");
                }
            }
            // The connection was lost, or the broker is slow: the next poll shows it.
            Err(_) => {}
        }
    }
}

fn note(growth: &mut Growth, queue: &str, messages: u32) {
    let Reading { grown, warn } = growth.read(messages, Instant::now());
    metrics::counter!(metric::UNROUTABLE.name).increment(grown.into());
    if let Some(new) = warn {
        warn!(
            queue,
            messages,
            new,
            "messages for no downstream are in the broker: their routing keys may be misspelt; see `paced dead list \
             --unroutable`"
        );
    }
}

/// What one poll shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// How many more messages there are than at the poll before.
    grown: u32,
    /// If it is time for a warning: how many messages arrived since the last one.
    warn: Option<u64>,
}

/// The length of the queue over time. It has no I/O.
#[derive(Debug, Default)]
struct Growth {
    /// The length that counts; the first poll has none to compare with.
    last: Option<u32>,
    /// The number of polls in a row that found fewer.
    lower: u32,
    /// Messages that no warning has reported.
    unreported: u64,
    warned_at: Option<Instant>,
}

impl Growth {
    fn read(&mut self, messages: u32, now: Instant) -> Reading {
        let is_lower = self.last.is_some_and(|last| messages < last);
        self.lower = if is_lower { self.lower + 1 } else { 0 };
        if is_lower && self.lower < LOWER_POLLS {
            return Reading { grown: 0, warn: None };
        }
        self.lower = 0;
        let grown = self.last.map_or(0, |last| messages.saturating_sub(last));
        // Messages that lie there from the start are worth a warning, but did not arrive just now.
        self.unreported += u64::from(if self.last.is_none() { messages } else { grown });
        self.last = Some(messages);
        let is_due = self.warned_at.is_none_or(|at| now.duration_since(at) >= WARNING_INTERVAL);
        let warn = (is_due && self.unreported > 0).then(|| std::mem::take(&mut self.unreported));
        if warn.is_some() {
            self.warned_at = Some(now);
        }
        Reading { grown, warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of these lengths shows, polled at this interval.
    fn readings(every: Duration, lengths: &[u32]) -> Vec<(u32, Option<u64>)> {
        let (mut growth, mut now) = (Growth::default(), Instant::now());
        let read = lengths.iter().map(|messages| {
            now += every;
            let Reading { grown, warn } = growth.read(*messages, now);
            (grown, warn)
        });
        read.collect()
    }

    #[test]
    fn growth_is_counted_and_warned_of() {
        let lengths = [0, 0, 3, 3, 5, 2, 7];
        let expected = [(0, None), (0, None), (3, Some(3)), (0, None), (2, Some(2)), (0, None), (2, Some(2))];
        assert_eq!(readings(WARNING_INTERVAL, &lengths), expected);
    }

    #[test]
    fn what_lies_there_at_the_start_is_warned_of_and_not_counted() {
        assert_eq!(readings(POLL_INTERVAL, &[7, 7, 8]), [(0, Some(7)), (0, None), (1, None)]);
    }

    #[test]
    fn warnings_are_rare_and_tell_of_all() {
        let lengths: Vec<u32> = (0..100).collect();
        let readings = readings(POLL_INTERVAL, &lengths);
        assert_eq!(readings.iter().map(|(grown, _)| grown).sum::<u32>(), 99);
        let warnings: Vec<u64> = readings.iter().filter_map(|(_, warn)| *warn).collect();
        // 100 polls take 25 minutes.
        assert_eq!(warnings, [1, 40, 40]);
    }

    #[test]
    fn a_shorter_queue_is_believed_after_a_while() {
        let grown = |lengths: &[u32]| -> Vec<u32> {
            readings(WARNING_INTERVAL, lengths).into_iter().map(|(grown, _)| grown).collect()
        };
        // A queue that did not answer in time, or whose messages are held for a while, is not one that was filled anew.
        assert_eq!(grown(&[5, 0, 5]), [0; 3]);
        assert_eq!(grown(&[5, 0, 2, 6, 0, 6]), [0, 0, 0, 1, 0, 0]);
        let emptied = [&[5][..], &[0; 7], &[2]].concat();
        assert_eq!(grown(&emptied), [0; 9], "the eighth lower one counts, and no growth before it");
        let filled = [&[5][..], &[0; 8], &[2]].concat();
        assert_eq!(grown(&filled).last(), Some(&2));
    }
}
