//! Brings home the jobs that wait for a limit of their downstream, after that limit has changed.
//!
//! A replica consumes and rejects them. The broker then moves each job to the home queue of its downstream, as it
//! moves a job whose stay is over. It keeps their order, and loses none if the consumer ends. The replica uses its
//! consuming connection: few bytes are in transit there, since it cuts the bodies that arrive.
//!
//! Each replica does this when it learns of the change. A job that came home and cannot be released yet is parked
//! again, behind the rest. Its copy names the versions of the limits by which it was parked
//! ([`Stay::versions`](crate::dispatch::Stay::versions)), so that other replicas leave it there. A replica ends once
//! enough copies in a row have the versions that it knows.
//!
//! The broker reports 0 for a queue that does not answer it. A check counts only where the queue itself has answered
//! ([`Progress`]). Consuming a queue without a leader makes the broker close the connection, so only the command does
//! that to find out.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Options;
use super::acker::Acker;
use super::admission::Admissions;
use super::connection::{ask, channel, close, closed, connect};
use super::error::Error;
use super::guard::Admit;
use super::read_timeout;
use super::topology::{queue_counts, short};
use group::Group;
use progress::Progress;

mod group;
mod progress;
mod replica;

pub(super) use replica::Unparker;

/// After this time without a message, a replica asks the broker whether others took the rest.
const IDLE: Duration = Duration::from_secs(1);

/// How many downstreams are emptied at a time; each takes a channel.
const AT_ONCE: usize = 4;

/// After this number of jobs, or this time, another downstream has its turn.
const TURN: (u32, Duration) = (10_000, Duration::from_secs(2));

/// Brings home the jobs of a downstream that wait for one of its limits. Returns their number. Jobs that are parked
/// meanwhile may stay.
///
/// Cancel safe: a job is brought home, or stays where it is.
///
/// # Errors
/// An error of the broker; some may have come home by then.
pub async fn unpark(options: &Options, downstream: &str) -> Result<u32, Error> {
    let (admissions, permits) = (Arc::<Admissions>::default(), UnparkPermits::default());
    let closing = CancellationToken::new();
    let admit = Arc::clone(&admissions) as Arc<dyn Admit>;
    let connection = connect(&options.address, "unparking", Some(admit)).await?;
    let (connection, admissions) = (&connection, &*admissions);
    let (permits, closing, mut progress) = (&permits, &closing, Progress::default());
    let (versions, asks_queues) = (None, false);
    let unparking = Unparking { connection, admissions, permits, closing, versions, asks_queues };
    let mut unparked = unparking.run(options, downstream, &mut progress).await;
    if unparked.is_ok() && progress.doubtful().is_some() {
        let asking = Unparking { asks_queues: true, ..unparking };
        unparked = asking.run(options, downstream, &mut progress).await;
    }
    let _ = ask("closing the connection", connection.close(200, "OK".into())).await;
    unparked?;
    match progress.doubtful() {
        Some(queue) => Err(silent(queue)),
        None => Ok(progress.jobs),
    }
}

/// The error for a queue that has messages or consumers, although the broker reports neither.
fn silent(queue: &str) -> Error {
    Error::TimedOut { what: format!("queue {queue}"), after: IDLE }
}

/// Empties the queues of a downstream once.
struct Unparking<'a> {
    connection: &'a Connection,
    /// The admissions of the connection.
    admissions: &'a Admissions,
    permits: &'a UnparkPermits,
    /// Ends the run early, once the call in progress is answered: the refusal of an abandoned call would count as an
    /// error of the connection, which others use.
    closing: &'a CancellationToken,
    /// Jobs that were parked under these versions of the limits stay, except for a few.
    versions: Option<&'a str>,
    /// Whether this also asks the queue itself where the broker reports 0. That may make the broker close the
    /// connection.
    asks_queues: bool,
}

/// A queue in which jobs wait.
struct Found {
    queue: String,
    jobs: u32,
    /// Whether it was checked before, and had none.
    had_none: bool,
}

impl Unparking<'_> {
    /// Empties the queues that are not certain to be empty.
    async fn run(&self, options: &Options, downstream: &str, progress: &mut Progress) -> Result<(), Error> {
        let mut failed = None;
        for found in self.waiting(options, downstream, progress).await? {
            match self.empty(&found, progress).await {
                Ok(()) => progress.emptied(&found.queue),
                Err(error) if !self.connection.status().connected() => return Err(error),
                // The other queues need not wait for this one.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The queues in which jobs wait.
    async fn waiting(
        &self,
        options: &Options,
        downstream: &str,
        progress: &mut Progress,
    ) -> Result<Vec<Found>, Error> {
        let Some(_permit) = self.permit().await else { return Ok(Vec::new()) };
        let (mut all, mut checking) = (Vec::new(), channel(self.connection).await?);
        for (n, delay) in options.names().waits(downstream).enumerate() {
            if self.closing.is_cancelled() {
                break;
            }
            if progress.is_empty(&delay.name) {
                continue;
            }
            match self.counts(&checking, &delay.name).await {
                Ok((messages, holders)) => {
                    let had_none = progress.seen(&delay.name, messages, holders);
                    if messages > 0 {
                        all.push(Found { queue: delay.name, jobs: messages, had_none });
                    }
                }
                // They are declared together.
                Err(Error::NotFound { .. }) if n == 0 => {
                    progress.all_missing();
                    return Ok(all);
                }
                // The broker has closed the channel.
                Err(Error::NotFound { .. }) => {
                    progress.missing(&delay.name);
                    checking = channel(self.connection).await?;
                }
                Err(error) => {
                    close(&checking).await;
                    return Err(error);
                }
            }
        }
        close(&checking).await;
        Ok(all)
    }

    /// The numbers of messages and of holders of a queue.
    async fn counts(&self, channel: &Channel, queue: &str) -> Result<(u32, u32), Error> {
        match queue_counts(channel, queue).await? {
            (0, 0) if self.asks_queues => self.ask_queue(queue).await,
            found => Ok(found),
        }
    }

    /// As [`queue_counts`], while the queue is consumed: then the queue itself answers, or the attempt fails.
    async fn ask_queue(&self, queue: &str) -> Result<(u32, u32), Error> {
        let channel = channel(self.connection).await?;
        self.admissions.heads_only(channel.id());
        let counts = async {
            let mut consumer = self.consume(&channel, queue, 1).await?;
            let (messages, holders) = queue_counts(&channel, queue).await?;
            // A message may have come; it returns when the channel is closed.
            let came = matches!(consumer.next().now_or_never(), Some(Some(Ok(_))));
            Ok::<_, Error>((messages + u32::from(came), holders))
        };
        // Where it fails, the connection is closed next.
        let counts = counts.await?;
        close(&channel).await;
        Ok(counts)
    }

    /// Rejects this many messages of a queue, or fewer where others take the rest, or the rest was parked under the
    /// versions in force.
    async fn empty(&self, found: &Found, progress: &mut Progress) -> Result<(), Error> {
        let Found { queue, jobs, had_none } = found;
        let mut group = Group::new(*jobs, self.versions, *had_none);
        let mut emptied = Ok(());
        while emptied.is_ok() && !self.ends(&group) {
            emptied = self.turn(queue, &mut group).await;
        }
        progress.jobs += group.rejected;
        emptied
    }

    /// Rejects messages until it is another downstream's turn, over a channel of its own.
    async fn turn(&self, queue: &str, group: &mut Group<'_>) -> Result<(), Error> {
        let Some(permit) = self.permit().await else { return Ok(()) };
        let channel = channel(self.connection).await?;
        self.admissions.heads_only(channel.id());
        let ended = match self.reject(&channel, queue, group).await {
            // Unless the queue itself answers, some rejections could be lost with the channel.
            Ok(()) => {
                let acker = Acker::new(channel.clone(), queue.to_owned());
                self.finish(&format!("queue {queue}"), acker.flush()).await
            }
            // The queue would not answer.
            Err(error) => Err(error),
        };
        if matches!(ended, Err(Error::TimedOut { .. })) {
            // The broker may be busy with this channel for long; the others need not wait for it.
            drop(permit);
        }
        // Another channel for each attempt would use up those of the connection.
        self.closing.run_until_cancelled(closed(&channel)).await;
        ended
    }

    async fn reject(&self, channel: &Channel, queue: &str, group: &mut Group<'_>) -> Result<(), Error> {
        let (what, (jobs, longest)) = (format!("queue {queue}"), TURN);
        let (end, by) = (group.rejected.saturating_add(jobs), Instant::now() + longest);
        let goes_on = |group: &Group<'_>| group.taken() < end && Instant::now() < by && !self.ends(group);
        while goes_on(group) {
            let prefetch = group.prefetch();
            let mut consumer = self.consume(channel, queue, prefetch).await?;
            let is_quiet = loop {
                let Some(mut first) = self.next(&mut consumer, &what).await? else { break true };
                group.add(&mut first);
                group.add_ready(&mut consumer);
                if goes_on(group) && !group.has_outgrown(prefetch) {
                    group.reject(channel, &what).await?;
                } else if self.ends(group) || group.is_full(prefetch) {
                    // The broker also sends messages after its answer to a cancel, and the client drops them. Here no
                    // message that is wanted is in transit.
                    break false;
                }
            };
            if is_quiet && !self.closing.is_cancelled() {
                // Others took the rest; or the broker is slow; or the queue has no leader, and would not answer a
                // cancel either. Its consumer is counted if the queue answers.
                match self.finish(&what, queue_counts(channel, queue)).await? {
                    (_, 1..) if group.add_ready(&mut consumer) => {}
                    (0, 1..) => group.exhausted(),
                    _ => return Err(silent(queue)),
                }
            }
            self.answer(&what, channel.basic_cancel(consumer.tag(), BasicCancelOptions::default())).await?;
            if group.is_known() {
                group.reject(channel, &what).await?;
            } else {
                group.add_ready(&mut consumer);
                group.reject_all(channel, &what).await?;
            }
        }
        Ok(())
    }

    async fn consume(&self, channel: &Channel, queue: &str, prefetch: u16) -> Result<Consumer, Error> {
        let what = format!("queue {queue}");
        self.answer(&what, channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let (name, options) = (short(queue)?, BasicConsumeOptions::default());
        self.answer(&what, channel.basic_consume(name, "".into(), options, FieldTable::default())).await
    }

    /// Waits for the broker's answer, which may wait behind bodies that are cut. The wait is short once this is to
    /// end.
    async fn answer<T>(
        &self,
        what: &str,
        answer: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, Error> {
        read_timeout::answer(self.admissions, self.closing, what, answer).await
    }

    /// Waits for calls to the broker, each of which has its own time-out. The wait is short once this is to end.
    async fn finish<T>(&self, what: &str, calls: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        read_timeout::finish(self.admissions, self.closing, what, calls).await
    }

    /// The next delivery; `None` if none comes.
    async fn next(&self, consumer: &mut Consumer, what: &str) -> Result<Option<Delivery>, Error> {
        match self.closing.run_until_cancelled(timeout(IDLE, consumer.next())).await {
            Some(Ok(Some(Ok(delivery)))) => Ok(Some(delivery)),
            Some(Ok(Some(Err(error)))) => Err(Error::of(what, &error)),
            // Its queue was moved or deleted; the next attempt finds that out.
            Some(Ok(None)) => {
                let (what, detail) = (what.to_owned(), "the broker ended the consumer".to_owned());
                Err(Error::Failed { what, detail })
            }
            Some(Err(_)) | None => Ok(None),
        }
    }

    /// Whether no more messages are to be rejected.
    fn ends(&self, group: &Group<'_>) -> bool {
        group.is_over() || self.closing.is_cancelled()
    }

    /// Waits for a permit, in the order of the callers. `None` if this is to end. The semaphore is never closed.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.closing.run_until_cancelled(self.permits.0.acquire()).await?.ok()
    }
}

/// Bounds how many downstreams of a process are emptied at a time. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct UnparkPermits(Arc<Semaphore>);

impl Default for UnparkPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}
