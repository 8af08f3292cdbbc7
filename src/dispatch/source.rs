//! Sources of jobs, and tickets, by which each job is settled: once, by value.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::job::{Message, Reason, Value};
use crate::sink::{Receipt, Response};
use crate::time::Micros;

/// A source of messages: it hands out as many at once as its window allows.
pub trait Source: Send + 'static {
    /// The next message; `None` when the source has ended.
    ///
    /// A source that loses its broker reconnects by itself and continues.
    /// Cancel safe: a dropped future loses no message.
    fn next(&mut self) -> impl Future<Output = Option<Delivery>> + Send;

    /// Sets the most messages that may be unsettled from now on, since the limits have changed. Returns at once.
    ///
    /// A source that has no window ignores it.
    fn resize(&mut self, window: u16) {
        let _ = window;
    }

    /// Stops new messages until [`Source::resume`], so that messages that are given back go to others. Unsettled
    /// messages stay so. The future ends once no more arrive, and all that had arrived are available from
    /// [`Source::next`].
    ///
    /// A source that cannot do so ignores it.
    fn pause(&mut self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Continues after a pause.
    fn resume(&mut self) {}

    /// Whether no more messages come until one is settled, since the unsettled ones have as many bytes as they may,
    /// however few they are.
    ///
    /// A source that does not bound bytes is never full.
    fn is_full(&self) -> bool {
        false
    }

    /// The most messages that it hands out unsettled at present, if there are enough: fewer than its window if their bytes
    /// bound them. At least 1.
    ///
    /// A source that does not bound bytes has no such bound.
    fn most_at_once(&self, unsettled: usize) -> usize {
        let _ = unsettled;
        usize::MAX
    }

    /// Whether its jobs can be parked, at present.
    fn can_park(&self) -> bool {
        false
    }

    /// Brings back jobs before their time that are parked for a limit ([`ParkReason::Limit`]), since the limits have
    /// changed: those that were not parked under these versions of them ([`Stay::versions`]), as far as the source
    /// knows. Returns at once.
    ///
    /// A source that cannot do so ignores it.
    fn unpark(&self, versions: Option<String>) {
        let _ = versions;
    }

    /// Ends the source: it takes no new messages, and [`Source::next`] yields those that have arrived already and then
    /// ends.
    ///
    /// Cancel safe.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// A message and the right to settle it.
#[derive(Debug)]
pub struct Delivery {
    /// The message that came.
    pub message: Message,
    /// The right to settle it.
    pub ticket: Box<dyn Ticket>,
    /// What was kept of the job while it was parked, if it comes from there.
    pub stay: Option<Stay>,
}

/// The stay of a job that is parked: it waits in its broker, and no replica holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The instant before which the job must not be released, by the wall clock. It comes back a little earlier, and
    /// is held for the rest.
    pub until: Micros,
    /// The reason why it is parked.
    pub reason: ParkReason,
    /// The number of hand-overs to the sink so far.
    pub attempts: u32,
    /// How many of these the downstream throttled.
    pub throttled: u32,
    /// How many of these the downstream answered by refusing the credentials.
    pub refused: u32,
    /// How many of these were answered unintelligibly.
    pub unreadable: u32,
    /// When the job was first taken in, by the wall clock.
    pub first_seen: Micros,
    /// The id that the job was given here, as its producer gave it none.
    pub assigned_id: Option<String>,
    /// For a job that is parked for a limit: the version of the limits and their counts, a dot, and the version of
    /// the pauses. If other limits are in force, `until` means nothing any more.
    pub versions: Option<String>,
}

impl Stay {
    /// Until when a job that is parked for a limit is expected to wait, and the version of the limits by which this
    /// was estimated.
    pub(super) fn expected(&self) -> Option<(Micros, &str)> {
        let versions = self.versions.as_deref().filter(|_| self.reason == ParkReason::Limit)?;
        versions.rsplit_once('.').map(|(limits, _pauses)| (self.until, limits))
    }
}

/// The reasons why jobs are parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkReason {
    /// Its `paced-not-before` is far off.
    NotBefore,
    /// It is tried again much later.
    Retry,
    /// A limit of its plan is used up, or has more jobs than it releases soon.
    Limit,
    /// This replica stops, and the job has been tried: its attempts are kept.
    Restart,
}

impl ParkReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::NotBefore, Self::Retry, Self::Limit, Self::Restart];

    /// The text of `paced-parked-for`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotBefore => "not-before",
            Self::Retry => "retry",
            Self::Limit => "limit",
            Self::Restart => "restart",
        }
    }

    /// The number of the reason in the groups of parked jobs that the store keeps: the same in every version of
    /// paced.
    #[must_use]
    pub const fn kind(self) -> u8 {
        match self {
            Self::NotBefore => 0,
            Self::Retry => 1,
            Self::Limit => 2,
            Self::Restart => 3,
        }
    }
}

/// The result of parking a job.
#[derive(Debug)]
pub enum Parked {
    /// The job is parked, and its message acked.
    Done,
    /// The job is parked, and its message not live any more: when its broker delivers it again, it is only to be acked.
    Unacked,
    /// The message is not live any more: its broker delivers it again.
    Lost,
    /// The job cannot be parked, for a reason that was logged: it stays with its holder.
    Refused(Box<dyn Ticket>),
}

/// The right to settle one message, once: settling consumes it, so a double ack does not compile.
///
/// Dropped unsettled, the message goes back to its broker, at once or when this consumer ends.
pub trait Ticket: Send + Sync + fmt::Debug + 'static {
    /// False once the connection that the message came through is gone: its broker will deliver
    /// it again, so this copy is never released.
    fn is_live(&self) -> bool;

    /// A function that answers as [`Ticket::is_live`], also once this ticket is gone. It keeps open what the ticket
    /// keeps open.
    fn liveness(&self) -> Liveness {
        Arc::new(|| true)
    }

    /// The generation of the connection or channel that the message came through: one that is opened later has a higher
    /// generation. 0 stands for a source that loses no messages, and delivers none again.
    fn generation(&self) -> u64 {
        0
    }

    /// Whether the message was delivered before, to any consumer, and not settled.
    fn is_redelivered(&self) -> bool {
        false
    }

    /// The value of a header of the message that is not among [`Message::headers`], if it has one of this name.
    fn header(&self, _name: &str) -> Option<Value> {
        None
    }

    /// Acks a delivered job. Returns at once: acks leave in groups.
    fn ack(self: Box<Self>, receipt: Receipt, report: Report);

    /// Acks a job that was cancelled: it is not sent, and not sent again, and there is no dead letter. Returns at once,
    /// as [`Ticket::ack`] does.
    fn discard(self: Box<Self>, report: Report);

    /// Publishes a copy to the dead letters, confirmed, and then acks. It retries until that is done or the message is
    /// not live any more: then it returns what is left to be done.
    fn dead_letter(self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, Option<Unburied>>;

    /// Gives the message back to its broker, for any replica. Returns at once.
    fn give_back(self: Box<Self>);

    /// Whether the job can be parked.
    fn can_park(&self) -> bool {
        false
    }

    /// Parks the job: publishes a copy that comes back in time, confirmed, and then acks. It retries until that is
    /// done, the message is not live any more, or it is clear that it cannot be done.
    ///
    /// The jobs of one downstream are parked in the order of the calls, not of the first polls.
    fn park(self: Box<Self>, stay: Stay) -> BoxFuture<'static, Parked>;

    /// Whether the message may be given back through no fault of its own: false where its broker could conclude that
    /// nobody can process it, and drop it. Then it is held as long as possible.
    fn may_be_given_back(&self) -> bool {
        true
    }

    /// Publishes the outcome to the message's `reply_to`, confirmed. It retries until that is done, the message is not
    /// live any more, or it is clear that nobody takes the reply. False if it is not done, and may be later.
    fn reply<'a>(&'a self, response: &'a Response) -> BoxFuture<'a, bool>;
}

/// Returns whether a ticket is live, or would be if it still existed.
pub type Liveness = Arc<dyn Fn() -> bool + Send + Sync>;

/// A dead letter whose message was not acked.
#[derive(Debug)]
pub enum Unburied {
    /// It is published.
    Published(DeadLetter),
    /// It is not, as far as is known.
    Unpublished(DeadLetter),
}

/// The end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of hand-overs to the sink.
    pub attempts: u32,
    /// The last status, where there was one.
    pub status: Option<u16>,
    /// The slot of the last hand-over, on the store's clock.
    pub released_at: Option<Micros>,
}

impl Report {
    /// The report of a job that was never handed to the sink.
    pub const UNSENT: Self = Self { attempts: 0, status: None, released_at: None };
}

/// The reason why a message becomes a dead letter, for its `paced-` headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// `paced-reason`.
    pub reason: Reason,
    /// `paced-detail`.
    pub detail: String,
    /// `paced-status`, `paced-attempts`.
    pub report: Report,
    /// `paced-response`: the beginning of the answer because of which the job became a dead letter; empty if there
    /// was none, or it is not kept.
    pub response: Bytes,
}

impl DeadLetter {
    /// A letter without a response.
    pub fn new(reason: Reason, detail: impl Into<String>, report: Report) -> Self {
        Self { reason, detail: detail.into(), report, response: Bytes::new() }
    }

    /// The letter with this response, of which the publisher takes the first
    /// [`MAX_EXCERPT`](crate::sink::MAX_EXCERPT) bytes.
    #[must_use]
    pub fn with_response(self, response: Bytes) -> Self {
        Self { response, ..self }
    }
}
