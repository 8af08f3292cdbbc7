//! Calls about the downstream's record as a whole, apart from those for slots: they read it, or change it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::cooling::CoolingReport;
use crate::store::{BoxFuture, Change, LONGEST_PAUSE, Recall, RecordState, Store, StoreError};
use crate::time::Deadline;

/// The longest time without an answer of the store while there are waiters, since a notice of [`Store::changes`] may
/// have been lost.
const READ_EVERY: Duration = Duration::from_secs(2);

/// The minimum interval of reads after changes, however many changes there are.
const APART: Duration = Duration::from_millis(50);

/// The time over which the reads of several replicas after a change are spread.
const SPREAD: Duration = Duration::from_millis(10);

/// The schedule of these calls, and the call in flight.
#[derive(Debug)]
pub(crate) struct RecordCalls {
    call: Option<RecordCall>,
    /// The earliest instant of the next call.
    next_at: Instant,
    /// The instant of the last answer of the store to any call.
    answered_at: Instant,
    /// Whether the record was changed, and is to be read soon.
    is_changed: bool,
    /// The instant of the last read.
    read_at: Option<Instant>,
}

/// A call in flight.
struct RecordCall {
    purpose: Purpose,
    reply: BoxFuture<'static, RecordReply>,
}

impl std::fmt::Debug for RecordCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RecordCall").field(&self.purpose).finish()
    }
}

/// The purpose of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reads the record.
    Read,
    /// Reports a pause until this end, which the downstream asked for.
    Penalize(Deadline),
    /// Replaces the terms of generation `of` by this text.
    Write { of: u64, text: String },
    /// Restores the record, which the store has lost, from this memory.
    Recall(Memory),
    /// Reports a cool-down, whose waits grow up to the longest, or requests its probe.
    CoolDown { report: CoolingReport, replica: Arc<str>, longest: Duration },
}

/// A worker's memory of a record, with the remaining spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The rest of the pause that the downstream asked for.
    pub(crate) penalty: Duration,
    /// The rest of the operator's pause; `None` if it lasts until an operator resumes.
    pub(crate) pause: Option<Duration>,
    /// The version of the operator's pause.
    pub(crate) version: u64,
    /// The generation and the text of the terms.
    pub(crate) terms: Option<(u64, String)>,
}

/// The reply to a call.
pub(crate) struct RecordReply {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) answer: Result<RecordState, StoreError>,
}

impl RecordCalls {
    pub(crate) fn new(now: Instant) -> Self {
        Self { call: None, next_at: now, answered_at: now, is_changed: false, read_at: None }
    }

    pub(crate) const fn is_calling(&self) -> bool {
        self.call.is_some()
    }

    /// Starts a call. There is one at a time.
    pub(crate) fn start(
        &mut self,
        store: Arc<dyn Store>,
        downstream: String,
        purpose: Purpose,
        now: Instant,
    ) {
        if purpose == Purpose::Read {
            (self.is_changed, self.read_at) = (false, Some(now));
        }
        let reply = Box::pin(call(store, downstream, purpose.clone()));
        self.call = Some(RecordCall { purpose, reply });
    }

    /// Waits for the reply to the call in flight; forever, if there is none. Cancel safe.
    pub(crate) async fn reply(&mut self) -> (Purpose, RecordReply) {
        let Some(call) = &mut self.call else { return std::future::pending().await };
        let reply = call.reply.as_mut().await;
        let purpose = call.purpose.clone();
        self.call = None;
        (purpose, reply)
    }

    /// Whether a call may be made at `now`.
    pub(crate) fn may_call(&self, now: Instant) -> bool {
        now >= self.next_at
    }

    /// The earliest instant of the next call.
    pub(crate) const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Sets the earliest instant of the next call.
    pub(crate) const fn postpone(&mut self, until: Instant) {
        self.next_at = until;
    }

    /// Returns when to read the record, if no other answer comes before. Unless it was changed, it is not read while
    /// slots `are_requested`, or there is no waiter.
    pub(crate) fn read_due(&self, are_requested: bool, somebody_waits: bool) -> Option<Instant> {
        if self.is_changed {
            return Some(self.next_at);
        }
        let is_due = !are_requested && somebody_waits;
        is_due.then(|| (self.answered_at + READ_EVERY).max(self.next_at))
    }

    /// Handles the notice that the record was changed; this number of replicas read it now. While calls fail, the next
    /// one that succeeds carries the change.
    pub(crate) fn on_change(&mut self, now: Instant, replicas: u32, is_failing: bool) {
        if std::mem::replace(&mut self.is_changed, true) || is_failing {
            return;
        }
        let spread = if replicas > 1 { SPREAD.mul_f64(fastrand::f64()) } else { Duration::ZERO };
        let soon = now + spread;
        self.next_at = self.read_at.map_or(soon, |at| soon.max(at + APART));
    }

    /// Makes a failed read repeat.
    pub(crate) const fn on_read_failed(&mut self) {
        self.is_changed = true;
    }

    /// Records that the store answered a call of any kind.
    pub(crate) const fn on_answer(&mut self, received: Instant) {
        self.answered_at = received;
    }
}

async fn call(store: Arc<dyn Store>, downstream: String, purpose: Purpose) -> RecordReply {
    let sent = Instant::now();
    let answer = match purpose.change() {
        Some(change) => store.update_record(&downstream, change).await,
        None => store.read_record(&downstream).await,
    };
    RecordReply { sent, received: Instant::now(), answer }
}

impl Purpose {
    /// Returns the change of the record; `None` for a read.
    fn change(&self) -> Option<Change<'_>> {
        Some(match self {
            Self::Read => return None,
            Self::Penalize(end) => {
                Change::Penalize(end.left().clamp(Duration::from_micros(1), LONGEST_PAUSE))
            }
            Self::CoolDown { report, replica, longest } => Change::CoolDown(report.call(replica, *longest)),
            Self::Write { of, text } => Change::Terms { of: *of, text },
            Self::Recall(Memory { penalty, pause, version, terms }) => Change::Recall(Recall {
                penalty: (*penalty).min(LONGEST_PAUSE),
                pause: *pause,
                version: *version,
                generation: terms.as_ref().map_or(0, |(generation, _)| *generation),
                terms: terms.as_ref().map(|(_, text)| text.as_str()),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn the_record_is_read_now_and_then_while_somebody_waits_and_nothing_else_tells() {
        let start = Instant::now();
        let mut calls = RecordCalls::new(start);
        assert_eq!(calls.read_due(false, false), None, "nobody waits");
        assert_eq!(calls.read_due(true, true), None, "the answers about slots show it");
        assert_eq!(calls.read_due(false, true), Some(start + READ_EVERY));
        calls.on_answer(start + 500 * MS);
        assert_eq!(calls.read_due(false, true), Some(start + 500 * MS + READ_EVERY));
        calls.postpone(start + 10 * READ_EVERY);
        assert_eq!(calls.read_due(false, true), Some(start + 10 * READ_EVERY), "after a failure");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_change_it_is_read_soon_also_while_nobody_waits_and_not_too_often() {
        let start = Instant::now();
        let mut calls = RecordCalls::new(start);
        calls.on_change(start, 1, false);
        assert_eq!(calls.read_due(true, false), Some(start));
        let store = Arc::new(crate::store::MemoryStore::new());
        calls.start(store, "billing".to_owned(), Purpose::Read, start);
        assert!(calls.is_calling());
        let (purpose, reply) = calls.reply().await;
        assert_eq!((purpose, calls.is_calling()), (Purpose::Read, false));
        assert!(reply.answer.is_ok());
        assert_eq!(calls.read_due(true, false), None, "it was read");
        calls.on_change(start + MS, 1, false);
        assert_eq!(calls.read_due(true, false), Some(start + APART), "the next one is held back");
        calls.on_change(start + 20 * MS, 1, false);
        assert_eq!(calls.read_due(true, false), Some(start + APART), "they count as one");
    }

    #[tokio::test(start_paused = true)]
    async fn many_replicas_do_not_read_at_one_instant_and_a_failing_one_waits() {
        let start = Instant::now();
        let mut calls = RecordCalls::new(start);
        calls.on_change(start, 8, false);
        assert!(calls.read_due(true, false).is_some_and(|at| at < start + SPREAD));
        let mut failing = RecordCalls::new(start);
        failing.postpone(start + READ_EVERY);
        failing.on_change(start, 8, true);
        assert_eq!(failing.read_due(true, false), Some(start + READ_EVERY));
    }
}
