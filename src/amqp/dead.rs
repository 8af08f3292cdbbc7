//! Dead letters, and messages that reached no downstream's queue: lists them without any change, replays them, and
//! removes them.

use std::sync::Arc;
use std::time::Duration;

use lapin::Connection;
use tokio_util::sync::CancellationToken;

use super::Options;
use super::connection::{ask, connect};
use super::error::Error;
use super::guard::{Admit, HeadsOnly};
use super::publish_error::PublishError;
use super::topology;
use crate::failpoint;
use crate::shaper::Shaper;
use crate::time::{Micros, wall_now};
use held::HeldLetters;
use letter_queue::LetterQueue;

pub use letter_view::{Filter, Letter};
pub use replay::Replay;

mod held;
mod letter_queue;
mod letter_view;
mod limit;
mod replay;

/// How often, and how far apart, the queue is polled for letters to return: five seconds at most, since others may
/// have taken some.
const MAX_POLLS: u32 = 250;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The dead letters of one downstream, or the messages that reached no downstream's queue.
#[derive(Debug)]
pub struct DeadLetters {
    options: Options,
    letter_queue: LetterQueue,
    consuming: Connection,
    /// Whether letters come with their bodies.
    has_bodies: bool,
}

/// Which letters a scan examines, and when it ends early.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Only letters that match; the others stay as they are.
    pub filter: Filter,
    /// Ends after this many letters that matched.
    pub limit: Option<u32>,
    /// Examines only this many letters, from the oldest one on. The default is the number of letters at the start.
    pub first: Option<u32>,
    /// Skips letters whose `paced-dead-at` is later than this instant of the wall clock. Letters without it count as
    /// older: the broker dead-lettered them.
    pub died_until: Option<Micros>,
    /// When cancelled, the scan ends after the current letter.
    pub stop: CancellationToken,
}

/// The progress or the result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of letters to examine: those at the start, each once.
    pub found: u32,
    /// Letters examined so far.
    pub seen: u32,
    /// Letters that were listed; or published again, confirmed, and removed; or just removed.
    pub done: u32,
    /// Letters that did not match, which stay as they are.
    pub kept: u32,
    /// Letters that could not be published, or were malformed and are no jobs; they stay.
    pub failed: u32,
    /// The last error of those.
    pub error: Option<PublishError>,
    /// Whether [`Scan::stop`] ended the scan.
    pub stopped: bool,
}

/// The decision about a letter that matched.
enum Verdict {
    /// It stays, and counts as done.
    Stays,
    /// It is removed.
    Goes,
    /// It stays, since it could not be published.
    Fails(PublishError),
}

impl DeadLetters {
    /// Connects to the dead letters of a downstream. Nothing is declared: [`DeadLetters::replay`] does that.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// Any error of connecting, without a retry. The options have no such downstream.
    pub async fn open(options: &Options, downstream: &str) -> Result<Self, Error> {
        let letter_queue = LetterQueue::Dead(options.downstream(downstream)?.clone());
        Self::connect(options, letter_queue, true).await
    }

    /// Connects as [`DeadLetters::open`] does, or without a name as [`DeadLetters::open_unroutable`] does, and reads no
    /// bodies: each letter comes with an empty one, however long it is in the queue. So a letter takes no more memory than
    /// its properties do. These letters cannot be replayed.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// Any error of connecting, without a retry. The options have no such downstream.
    pub async fn open_heads(options: &Options, downstream: Option<&str>) -> Result<Self, Error> {
        let letter_queue = match downstream {
            Some(downstream) => LetterQueue::Dead(options.downstream(downstream)?.clone()),
            None => LetterQueue::Unroutable,
        };
        Self::connect(options, letter_queue, false).await
    }

    /// Connects to the messages that reached no downstream's queue. Nothing is ever declared.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// Any error of connecting, without a retry.
    pub async fn open_unroutable(options: &Options) -> Result<Self, Error> {
        Self::connect(options, LetterQueue::Unroutable, true).await
    }

    /// Connects to the jobs that lie in a queue of a downstream that no replica serves. Nothing is ever declared.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// Any error of connecting, without a retry.
    pub async fn open_jobs(options: &Options, queue: String) -> Result<Self, Error> {
        Self::connect(options, LetterQueue::Jobs(queue), true).await
    }

    async fn connect(options: &Options, letter_queue: LetterQueue, has_bodies: bool) -> Result<Self, Error> {
        let admit = (!has_bodies).then(|| Arc::new(HeadsOnly) as Arc<dyn Admit>);
        let consuming = connect(&options.address, "reading dead letters", admit).await?;
        Ok(Self { options: options.clone(), letter_queue, consuming, has_bodies })
    }

    /// The number of letters.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn count(&self) -> Result<u32, Error> {
        topology::count(&self.consuming, &self.queue()).await
    }

    /// How often letters may be listed before the broker drops them. `None` if that is more often than anybody lists
    /// them, or if the user may not find out. A limit that a policy sets cannot be seen.
    ///
    /// Cancel safe.
    pub async fn low_delivery_limit(&self) -> Option<u32> {
        limit::low_limit(&self.consuming, &self.options.address, &self.queue()).await
    }

    /// The letters that match, in their order. All stay in the queue; while this runs, no other consumer sees those
    /// that it holds.
    ///
    /// `progress` is called after each letter.
    ///
    /// Cancel safe: a dropped future gives all of them back, perhaps in another order.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn list(
        &self,
        scan: &Scan,
        progress: impl FnMut(&Tally),
    ) -> Result<(Vec<Letter>, Tally), Error> {
        self.list_as(scan, |letter, _| letter, progress).await
    }

    /// As [`DeadLetters::list`], but only the result of `view` is kept of each letter. `view` receives the letter and
    /// the length of its body in bytes, also where the body is not read.
    ///
    /// Cancel safe, as [`DeadLetters::list`] is.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn list_as<T>(
        &self,
        scan: &Scan,
        mut view: impl FnMut(Letter, u64) -> T,
        progress: impl FnMut(&Tally),
    ) -> Result<(Vec<T>, Tally), Error> {
        let mut letters = Vec::new();
        let list = async |letter: Letter, bytes| {
            letters.push(view(letter, bytes));
            Ok::<_, Error>(Verdict::Stays)
        };
        let tally = self.scan(scan, None, list, progress).await?;
        Ok((letters, tally))
    }

    /// Counts the letters that match, as [`DeadLetters::list`] lists them.
    ///
    /// Cancel safe, as [`DeadLetters::list`] is.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn count_matching(&self, scan: &Scan, progress: impl FnMut(&Tally)) -> Result<Tally, Error> {
        self.scan(scan, None, async |_, _| Ok(Verdict::Stays), progress).await
    }

    /// Removes the letters that match, oldest first. Those that arrive meanwhile stay.
    ///
    /// `progress` is called after each letter.
    ///
    /// Cancel safe: a dropped future removes no more, and gives the others back, perhaps in another order.
    ///
    /// # Errors
    /// An error of the broker; letters that were removed by then are gone.
    pub async fn purge(&self, scan: &Scan, progress: impl FnMut(&Tally)) -> Result<Tally, Error> {
        let purge = async |_, _| {
            failpoint::reached("purge:remove");
            Ok::<_, Error>(Verdict::Goes)
        };
        self.scan(scan, None, purge, progress).await
    }

    /// Closes the connection.
    ///
    /// Cancel safe: a dropped future closes it without waiting for the broker.
    pub async fn close(self) {
        end(&self.consuming).await;
    }

    /// Takes the letters one by one, and gives back in their order those that stay.
    async fn scan(
        &self,
        scan: &Scan,
        pace: Option<&Shaper>,
        mut each: impl AsyncFnMut(Letter, u64) -> Result<Verdict, Error>,
        mut progress: impl FnMut(&Tally),
    ) -> Result<Tally, Error> {
        let mut held = HeldLetters::start(&self.consuming, &self.options, &self.letter_queue).await?;
        let (now, start) = (wall_now(), held.found);
        let found = scan.first.unwrap_or(start).min(start);
        let (mut tally, mut removed) = (Tally { found, ..Tally::default() }, 0);
        // The scan waits for a slot before it takes a letter, so that it does not hold that letter during the wait.
        // It holds only letters that are kept.
        let mut has_slot = false;
        while tally.seen < found && scan.limit.is_none_or(|limit| tally.done < limit) {
            if let Some(pace) = pace.filter(|_| !has_slot) {
                has_slot = slot(pace, &scan.stop).await?;
            }
            if scan.stop.is_cancelled() {
                tally.stopped = true;
                break;
            }
            let Some((letter, bytes)) = held.next().await? else { break };
            tally.seen += 1;
            if scan.takes(&letter, now) {
                let verdict = each(letter, bytes).await?;
                has_slot &= matches!(verdict, Verdict::Fails(_));
                match verdict {
                    Verdict::Stays => tally.done += 1,
                    Verdict::Goes => {
                        held.done().await?;
                        failpoint::reached("letter:removed");
                        removed += 1;
                        tally.done += 1;
                    }
                    Verdict::Fails(error) => {
                        let is_over = self.ends_replay(&error);
                        tally.failed += 1;
                        tally.error = Some(error);
                        if is_over {
                            break;
                        }
                    }
                }
            } else {
                tally.kept += 1;
            }
            progress(&tally);
        }
        let there = held.give_back_all().await?;
        self.settle(there.saturating_sub(removed)).await?;
        Ok(tally)
    }

    /// Whether the next letter would fail with the same error, since the error is one of the connection or of the
    /// queue.
    const fn ends_replay(&self, error: &PublishError) -> bool {
        match error {
            PublishError::HeadersTooLarge { .. } | PublishError::Malformed(_) => false,
            PublishError::Unroutable(_) => !matches!(self.letter_queue, LetterQueue::Unroutable),
            _ => true,
        }
    }

    /// Waits until `remaining` letters are in the queue, so that the next reader sees them: letters that were given
    /// back reappear a little later.
    async fn settle(&self, remaining: u32) -> Result<(), Error> {
        for _ in 0..MAX_POLLS {
            if self.count().await? >= remaining {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    fn queue(&self) -> String {
        self.letter_queue.queue(&self.options)
    }
}

impl Scan {
    fn takes(&self, letter: &Letter, now: Micros) -> bool {
        let is_later = self.died_until.is_some_and(|until| letter.died_at().is_some_and(|at| at > until));
        !is_later && self.filter.takes(letter, now)
    }
}

/// Waits for a slot. Returns false if `stop` comes first.
async fn slot(pace: &Shaper, stop: &CancellationToken) -> Result<bool, Error> {
    match stop.run_until_cancelled(pace.acquire("replay")).await {
        Some(Ok(())) => Ok(true),
        Some(Err(error)) => {
            Err(Error::Failed { what: "pacing the replay".to_owned(), detail: error.to_string() })
        }
        None => Ok(false),
    }
}

/// Closes a connection. Nothing is unsettled, so a broker that does not answer is not worth the usual wait.
async fn end(connection: &Connection) {
    let closing = ask("closing a connection", connection.close(200, "OK".into()));
    let _ = tokio::time::timeout(Duration::from_secs(3), closing).await;
}
