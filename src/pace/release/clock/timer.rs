//! Tokio's timer as a release clock.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::alarm::{Alarm, ReleaseClock};
use crate::time::{Deadline, nap};

/// Tokio's timer. It costs nothing, wakes up to 1 to 2 ms late, and follows paused time.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl ReleaseClock for TokioClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(TokioAlarm::default())
    }
}

#[derive(Debug, Default)]
struct TokioAlarm {
    /// The instant as it was set, and as a deadline that accounts for suspends of the machine.
    set: Option<(Instant, Deadline)>,
    /// The sleep, created by the first poll since it needs a runtime. One sleep is one nap of a long wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether the sleep is for the instant that is set.
    asleep: bool,
}

impl Alarm for TokioAlarm {
    fn set(&mut self, at: Option<Instant>) {
        if self.set.map(|(at, _)| at) != at {
            self.set = at.map(|at| (at, Deadline::at(at)));
            self.asleep = false;
        }
    }

    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some((_, deadline)) = self.set else { return Poll::Pending };
        loop {
            let left = deadline.left();
            if left.is_zero() {
                self.set = None;
                return Poll::Ready(());
            }
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(Duration::ZERO)));
            if !self.asleep {
                sleep.as_mut().reset(Instant::now() + nap(left));
                self.asleep = true;
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.asleep = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring;
    use super::*;
    use crate::time::suspend;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns whether the alarm rings within `by`.
    async fn rings(alarm: &mut dyn Alarm, by: Duration) -> bool {
        tokio::time::timeout(by, ring(alarm)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn rings_once_and_exactly_then() {
        let mut alarm = TokioClock.alarm();
        assert!(!rings(&mut *alarm, HOUR).await, "it is not set");
        for wait in [Duration::from_millis(1), HOUR, 10 * 365 * 24 * HOUR] {
            let start = Instant::now();
            alarm.set(Some(start + wait));
            ring(&mut *alarm).await;
            assert_eq!(start.elapsed(), wait);
            assert!(!rings(&mut *alarm, HOUR).await, "it has rung");
        }
        alarm.set(Some(Instant::now() - HOUR));
        assert!(rings(&mut *alarm, Duration::ZERO).await, "past");
    }

    #[tokio::test(start_paused = true)]
    async fn what_counts_is_the_instant_set_last() {
        let (mut alarm, start) = (TokioClock.alarm(), Instant::now());
        let second = Duration::from_secs(1);
        alarm.set(Some(start + 10 * second));
        assert!(!rings(&mut *alarm, second).await);
        alarm.set(Some(start + 20 * second));
        assert!(!rings(&mut *alarm, 15 * second).await, "the one before is none any more");
        alarm.set(Some(start + 18 * second));
        ring(&mut *alarm).await;
        assert_eq!(start.elapsed(), 18 * second);
        alarm.set(Some(start + 30 * second));
        assert!(!rings(&mut *alarm, second).await);
        alarm.set(None);
        assert!(!rings(&mut *alarm, HOUR).await, "unset");
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspend_is_noticed_within_a_minute() {
        let (mut alarm, start) = (TokioClock.alarm(), Instant::now());
        alarm.set(Some(start + HOUR));
        assert!(!rings(&mut *alarm, HOUR / 4).await);
        suspend(HOUR / 4);
        assert!(!rings(&mut *alarm, HOUR / 3).await);
        ring(&mut *alarm).await;
        assert_eq!(start.elapsed(), HOUR * 3 / 4);
        // The machine is suspended over the instant itself.
        let start = Instant::now();
        alarm.set(Some(start + HOUR));
        assert!(!rings(&mut *alarm, HOUR / 4).await);
        suspend(HOUR);
        ring(&mut *alarm).await;
        assert!(start.elapsed() <= HOUR / 4 + Duration::from_secs(60), "{:?}", start.elapsed());
    }
}
