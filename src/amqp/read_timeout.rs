//! A time-out that does not run while bodies are cut, since the broker's answer may be behind them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::admission::Admissions;
use super::connection::ANSWER;
use super::error::Error;

/// The time-out at shutdown, as a drain has little time.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// How often it checks whether bodies are cut.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest wait, even while bodies are cut: the connection also carries bodies of other downstreams.
const LONGEST: Duration = Duration::from_secs(60);

/// The time-out [`ANSWER`]. It stands still while bodies are cut, but ends after [`LONGEST`] in any case. From a
/// shutdown on it ends after [`SHUTDOWN_TIMEOUT`] at the latest, also while bodies are cut.
pub(super) struct ReadTimeout<'a> {
    admissions: &'a Admissions,
    /// The progress at the last check.
    progress: u64,
    closing: &'a CancellationToken,
    left: Duration,
    /// The time that is left, also while bodies are cut.
    all: Duration,
    is_last: bool,
}

impl<'a> ReadTimeout<'a> {
    pub(super) fn new(admissions: &'a Admissions, closing: &'a CancellationToken) -> Self {
        let (progress, left, all) = (admissions.progress(), ANSWER, LONGEST);
        Self { admissions, progress, closing, left, all, is_last: false }
    }

    /// Ends when the time is over. Cancel safe: elapsed time stays counted, except for the last second.
    pub(super) async fn elapsed(&mut self) {
        while !self.left.min(self.all).is_zero() {
            let step = CHECK_INTERVAL.min(self.left).min(self.all);
            tokio::select! {
                biased;
                () = self.closing.cancelled(), if !self.is_last => self.hurry(),
                () = tokio::time::sleep(step) => {
                    let before = std::mem::replace(&mut self.progress, self.admissions.progress());
                    self.all -= step;
                    if self.is_last || before == self.progress {
                        self.left -= step;
                    }
                }
            }
        }
    }

    fn hurry(&mut self) {
        self.is_last = true;
        self.left = self.left.min(SHUTDOWN_TIMEOUT);
    }
}

/// Waits for the broker's answer within a [`ReadTimeout`]. `what` names the exchange, the queue or the call.
pub(super) async fn answer<T>(
    admissions: &Admissions,
    closing: &CancellationToken,
    what: &str,
    answer: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, Error> {
    let answer = async { answer.await.map_err(|error| Error::of(what, &error)) };
    finish(admissions, closing, what, answer).await
}

/// Waits for calls to the broker within one [`ReadTimeout`]; each call also has its own time-out. Drops those that do
/// not end in time.
pub(super) async fn finish<T>(
    admissions: &Admissions,
    closing: &CancellationToken,
    what: &str,
    calls: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut timeout = ReadTimeout::new(admissions, closing);
    tokio::select! {
        ended = calls => ended,
        () = timeout.elapsed() => Err(Error::TimedOut { what: what.to_owned(), after: ANSWER }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::amqp::guard::Admit as _;

    /// How long the time-out takes while bodies are cut for `cut_for`, if it is closed after `closed_after`.
    async fn takes(cut_for: Duration, closed_after: Option<Duration>) -> Duration {
        let (admissions, closing) = (Admissions::default(), CancellationToken::new());
        let (mut timeout, start) = (ReadTimeout::new(&admissions, &closing), Instant::now());
        let others = async {
            while start.elapsed() < cut_for {
                tokio::time::sleep(CHECK_INTERVAL / 4).await;
                admissions.cut();
                if closed_after.is_some_and(|after| start.elapsed() >= after) {
                    closing.cancel();
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = timeout.elapsed() => {}
            () = others => {}
        }
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_are_cut_put_it_off_and_not_for_ever() {
        assert_eq!(takes(Duration::ZERO, None).await, ANSWER);
        let put_off = takes(Duration::from_secs(20), None).await;
        assert!(put_off >= Duration::from_secs(20) + ANSWER && put_off < LONGEST, "{put_off:?}");
        assert_eq!(takes(LONGEST * 2, None).await, LONGEST);
        let hurried = takes(LONGEST * 2, Some(Duration::from_secs(5))).await;
        assert_eq!(hurried, Duration::from_secs(5) + SHUTDOWN_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_not_answered_end_soon_after_the_shutdown() {
        let (admissions, closing) = (Admissions::default(), CancellationToken::new());
        let start = Instant::now();
        let calls = std::future::pending::<Result<(), Error>>();
        let (ended, ()) = tokio::join!(finish(&admissions, &closing, "a queue", calls), async {
            tokio::time::sleep(CHECK_INTERVAL).await;
            closing.cancel();
        });
        assert!(matches!(ended, Err(Error::TimedOut { .. })), "{ended:?}");
        assert_eq!(start.elapsed(), CHECK_INTERVAL + SHUTDOWN_TIMEOUT);
        let answered = async { Err::<(), _>(Error::UnknownDownstream("x".to_owned())) };
        let ended = finish(&admissions, &closing, "a queue", answered).await;
        assert!(matches!(ended, Err(Error::UnknownDownstream(_))), "{ended:?}");
    }
}
