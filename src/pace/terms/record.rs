//! Calls about the downstream's record as a whole, beside those for slots: what holds now, and what is to hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{BoxFuture, Change, LONGEST_PAUSE, Recall, RecordState, Store, StoreError};
use crate::time::Deadline;

/// While jobs wait or are held, the store is heard at least this often: what it told by [`Store::changes`] may have been
/// lost.
const READ_EVERY: Duration = Duration::from_secs(2);

/// Reads after changes are this far apart at least, however many changes there are.
const APART: Duration = Duration::from_millis(50);

/// Where several replicas hear of a change each reads within this time: not all at one instant.
const SPREAD: Duration = Duration::from_millis(10);

/// When to make such calls, and the one that is under way.
#[derive(Debug)]
pub(crate) struct RecordCalls {
    call: Option<RecordCall>,
    /// The earliest instant of the next call.
    next_at: Instant,
    /// When the store answered last, to whatever call.
    heard_at: Instant,
    /// Somebody changed what holds for the downstream: the record is to be read soon.
    is_changed: bool,
    /// When it was read last.
    read_at: Option<Instant>,
}

/// A call under way.
struct RecordCall {
    purpose: Purpose,
    reply: BoxFuture<'static, RecordReply>,
}

impl std::fmt::Debug for RecordCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RecordCall").field(&self.purpose).finish()
    }
}

/// What such a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What holds now?
    Read,
    /// The downstream asked for a pause until then.
    Penalize(Deadline),
    /// These terms, instead of those of a generation.
    Write { of: u64, text: String },
    /// The store has forgotten what was learnt from it.
    Recall(Memory),
}

/// A worker's memory of a record, with spans as they are left now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// What is left of the pause that the downstream asked for.
    pub(crate) penalty: Duration,
    /// What is left of the operator's pause; none: it lasts until somebody resumes.
    pub(crate) pause: Option<Duration>,
    /// The version of the operator's pause.
    pub(crate) version: u64,
    /// Generation and text of the terms.
    pub(crate) terms: Option<(u64, String)>,
}

/// How such a call ended.
pub(crate) struct RecordReply {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) answer: Result<RecordState, StoreError>,
}

impl RecordCalls {
    pub(crate) fn new(now: Instant) -> Self {
        Self { call: None, next_at: now, heard_at: now, is_changed: false, read_at: None }
    }

    pub(crate) const fn is_calling(&self) -> bool {
        self.call.is_some()
    }

    /// Makes a call. There is one at a time.
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

    /// How the call under way ended; never, where there is none. Cancel safe.
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

    /// The next call is made then, and not before.
    pub(crate) const fn postpone(&mut self, until: Instant) {
        self.next_at = until;
    }

    /// When to read the record, if nothing else tells what holds by then. It is not read just for that while slots
    /// `are_asked_for`, or nobody waits.
    pub(crate) fn read_due(&self, are_asked_for: bool, somebody_waits: bool) -> Option<Instant> {
        if self.is_changed {
            return Some(self.next_at);
        }
        let is_due = !are_asked_for && somebody_waits;
        is_due.then(|| (self.heard_at + READ_EVERY).max(self.next_at))
    }

    /// Somebody changed what holds for the downstream, which so many replicas work on. While calls fail the next one
    /// that succeeds tells of it.
    pub(crate) fn on_change(&mut self, now: Instant, replicas: u32, is_failing: bool) {
        if std::mem::replace(&mut self.is_changed, true) || is_failing {
            return;
        }
        let spread = if replicas > 1 { SPREAD.mul_f64(fastrand::f64()) } else { Duration::ZERO };
        let soon = now + spread;
        self.next_at = self.read_at.map_or(soon, |at| soon.max(at + APART));
    }

    /// A read failed, and is to be made again.
    pub(crate) const fn on_read_failed(&mut self) {
        self.is_changed = true;
    }

    /// The store answered some call.
    pub(crate) const fn on_heard(&mut self, received: Instant) {
        self.heard_at = received;
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
    /// The change of the record that it is for.
    fn change(&self) -> Option<Change<'_>> {
        Some(match self {
            Self::Read => return None,
            Self::Penalize(end) => {
                Change::Penalize(end.left().clamp(Duration::from_micros(1), LONGEST_PAUSE))
            }
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
        assert_eq!(calls.read_due(true, true), None, "the answers about slots tell");
        assert_eq!(calls.read_due(false, true), Some(start + READ_EVERY));
        calls.on_heard(start + 500 * MS);
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
