//! Sources of jobs, and tickets, by which each job is settled: once, by value.

use std::fmt;
use std::future::Future;

use crate::job::{Message, Reason};
use crate::sink::{Receipt, Response};
use crate::store::BoxFuture;
use crate::time::Micros;

/// A source of messages: it hands out as many at once as its window allows.
pub trait Source: Send + 'static {
    /// The next message; `None` when the source has ended.
    ///
    /// A source that loses its broker reconnects by itself and goes on.
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

    /// Ends the source: it takes no new messages, and [`Source::next`] yields those that have arrived already and then
    /// ends.
    ///
    /// Cancel safe.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// A message and the right to settle it.
#[derive(Debug)]
pub struct Delivery {
    /// What came.
    pub message: Message,
    /// The right to settle it.
    pub ticket: Box<dyn Ticket>,
}

/// The right to settle one message, once: settling consumes it, so a double ack does not compile.
///
/// Dropped unsettled, the message goes back to its broker, at once or when this consumer ends.
pub trait Ticket: Send + Sync + fmt::Debug + 'static {
    /// False once the connection that the message came through is gone: its broker will deliver
    /// it again, so this copy is never released.
    fn is_live(&self) -> bool;

    /// The generation of the connection or channel that the message came through: one that is opened later has a higher
    /// generation. 0 stands for a source that loses no messages, and delivers none again.
    fn generation(&self) -> u64 {
        0
    }

    /// Whether the message was delivered before, to any consumer, and not settled.
    fn is_redelivered(&self) -> bool {
        false
    }

    /// Acks a delivered job. Returns at once: acks leave in groups.
    fn ack(self: Box<Self>, receipt: Receipt, report: Report);

    /// Publishes a copy to the dead letters, confirmed, and then acks. It retries until that is done or the message is
    /// not live any more.
    fn dead_letter(self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, ()>;

    /// Gives the message back to its broker, for any replica. Returns at once.
    fn give_back(self: Box<Self>);

    /// Whether the message may be given back through no fault of its own: false where its broker could conclude that
    /// nobody can process it, and drop it. Then it is held as long as possible.
    fn may_be_given_back(&self) -> bool {
        true
    }

    /// Publishes the outcome to the message's `reply_to`, confirmed. It retries until that is done, the message is not
    /// live any more, or it is clear that nobody takes the reply.
    fn reply<'a>(&'a self, response: &'a Response) -> BoxFuture<'a, ()>;
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

/// The reason why a message is dead, for its `paced-` headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// `paced-reason`.
    pub reason: Reason,
    /// `paced-detail`.
    pub detail: String,
    /// `paced-status`, `paced-attempts`.
    pub report: Report,
}
