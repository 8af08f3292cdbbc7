//! One replica's knowledge of cancelled waiters, which follows the tombstones in the store.
//!
//! Every answer of the store carries the version of its tombstones. If this replica has not read the changes up to
//! that version, it reads them, page by page, and releases nothing before it has. So no waiter costs a call.
//! | state | event | next state |
//! |---|---|---|
//! | `Unknown` | the first answer of the store | `Comparing` |
//! | `Comparing` | all is read, and the store has all that is known here | `Settled` |
//! | `Comparing` | all is read, and the store lacks some that are known here | `Missing` |
//! | `Missing` | the store has the last of these again | `Settled` |
//! | `Comparing`, `Missing`, `Settled` | an answer is of another record, or of a lower version than was read | `Comparing` |
//!
//! A record that started again is read from its beginning, since it may have lost any change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::known_tombstones::{CancelledIds, KnownTombstones};
use crate::store::{BoxFuture, SlotClock, Store, StoreError, Tombstone, TombstoneCall, TombstoneReply};
use crate::time::Micros;

/// The delay before a call is repeated that the store refused.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// The owner of one replica's knowledge of cancelled waiters.
pub(crate) struct Tombstones {
    state: State,
    known: KnownTombstones,
    /// The epoch of the store's record and the version of its tombstones, as of its last answer.
    stored: (Micros, u64),
    /// The version up to which the changes are known here.
    read: u64,
    /// The call in flight.
    call: Option<BoxFuture<'static, TombstonesReply>>,
    /// The earliest instant of the next call.
    next_at: Instant,
    /// Whether a refusal by the store was logged since its last answer.
    is_refused: bool,
}

#[derive(Debug)]
enum State {
    /// The store has not answered yet.
    Unknown,
    /// The store's tombstones are being read from the beginning.
    Comparing,
    /// The store lacks these, which are being restored from the last one on.
    Missing(Vec<Arc<str>>),
    /// The store has all that is known here.
    Settled,
}

/// The purpose of a call.
#[derive(Debug)]
pub(crate) enum TombstonePurpose {
    /// Reads the changes after this version.
    Read(u64),
    /// Restores tombstones that the store has lost.
    Recall(Vec<Tombstone>),
}

/// The reply to a call.
pub(crate) struct TombstonesReply {
    pub(crate) purpose: TombstonePurpose,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) answer: Result<TombstoneReply, StoreError>,
}

impl std::fmt::Debug for Tombstones {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tombstones")
            .field("state", &self.state)
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}

impl Tombstones {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            state: State::Unknown,
            known: KnownTombstones::default(),
            stored: (Micros(0), 0),
            read: 0,
            call: None,
            next_at: now,
            is_refused: false,
        }
    }

    /// Returns the ids of the waiters that are cancelled, which follow each change.
    pub(crate) const fn cancelled(&self) -> &Arc<CancelledIds> {
        self.known.cancelled()
    }

    /// Whether the store has changes that are not known here.
    pub(crate) const fn is_behind(&self) -> bool {
        !matches!(self.state, State::Unknown) && self.read != self.stored.1
    }

    /// Accepts the version of an answer, with the epoch of the store's record.
    pub(crate) fn on_version(&mut self, epoch: Micros, version: u64) {
        let before = std::mem::replace(&mut self.stored, (epoch, version));
        if matches!(self.state, State::Unknown) || epoch != before.0 || version < self.read {
            self.known.begin_record();
            (self.state, self.read) = (State::Comparing, 0);
        }
        self.advance();
    }

    /// Changes the state once all is read, or restored.
    fn advance(&mut self) {
        if self.is_behind() {
            return;
        }
        if matches!(self.state, State::Comparing) {
            self.state = State::Missing(self.known.missing());
        }
        if let State::Missing(ids) = &mut self.state {
            while ids.pop_if(|id| !self.known.is_missing(id)).is_some() {}
            if ids.is_empty() {
                self.state = State::Settled;
            }
        }
    }

    /// Starts the next call, if one is needed.
    pub(crate) fn tick(&mut self, now: Instant, (store, downstream): (&Arc<dyn Store>, &str)) {
        if self.call.is_some() || now < self.next_at {
            return;
        }
        let purpose = match &self.state {
            _ if self.is_behind() => TombstonePurpose::Read(self.read),
            State::Missing(ids) => TombstonePurpose::Recall(self.known.last_missing(ids)),
            State::Unknown | State::Comparing | State::Settled => return,
        };
        self.call = Some(Box::pin(call(Arc::clone(store), downstream.to_owned(), purpose)));
    }

    /// Waits for the reply to the call in flight; forever, if there is none. Cancel safe.
    pub(crate) async fn reply(&mut self) -> TombstonesReply {
        let Some(call) = &mut self.call else { return std::future::pending().await };
        let reply = call.as_mut().await;
        self.call = None;
        reply
    }

    /// Accepts an answer, whose version was accepted already. Returns how many waiters are newly cancelled.
    pub(crate) fn on_answer(&mut self, purpose: TombstonePurpose, answer: TombstoneReply) -> usize {
        self.is_refused = false;
        let TombstoneReply { now, epoch, before, page, up_to, .. } = answer;
        let is_current = epoch == self.stored.0;
        let cancelled = match purpose {
            TombstonePurpose::Read(after) => {
                if is_current && after == self.read {
                    self.read = up_to;
                }
                self.known.learn(page, now)
            }
            TombstonePurpose::Recall(recalled) => {
                if is_current {
                    self.known.confirm(&recalled);
                    if before == self.read {
                        // No other replica has changed anything.
                        self.read = up_to;
                    }
                }
                0
            }
        };
        self.advance();
        cancelled
    }

    /// Handles that a call failed because the store is away; it is repeated at `again`.
    pub(crate) const fn on_away(&mut self, again: Instant) {
        self.next_at = again;
    }

    /// Handles that the store refused a call.
    pub(crate) fn on_refused(&mut self, purpose: &TombstonePurpose, error: &StoreError, downstream: &str) {
        if let (TombstonePurpose::Recall(recalled), StoreError::Invalid(_)) = (purpose, error) {
            // They stay in force here.
            let count = recalled.len();
            tracing::error!(downstream, %error, count, "the store accepts none of these cancelled jobs");
            self.known.confirm(recalled);
            return self.advance();
        }
        self.next_at = Instant::now() + REFUSED_AGAIN;
        if !std::mem::replace(&mut self.is_refused, true) {
            match purpose {
                TombstonePurpose::Recall(_) => {
                    tracing::error!(downstream, %error, "the store does not accept the ids of cancelled jobs");
                }
                TombstonePurpose::Read(_) => tracing::error!(
                    downstream,
                    %error,
                    "the store does not say which jobs are cancelled; jobs are held"
                ),
            }
        }
    }

    /// Allows a call at once, since the store is available again.
    pub(crate) const fn on_store_back(&mut self, received: Instant) {
        self.next_at = received;
    }

    /// Forgets the tombstones that have ended.
    pub(crate) fn end(&mut self, slots: &SlotClock) {
        if self.known.next_end().is_some()
            && let Some(now) = slots.store_now()
        {
            self.known.end(now);
        }
    }

    /// Returns the instant at which [`Tombstones::tick`] or [`Tombstones::end`] has something to do.
    pub(crate) fn wake_at(&self, is_away: bool, slots: &SlotClock) -> Option<Instant> {
        let wants = self.is_behind() || matches!(self.state, State::Missing(_));
        let call = (wants && !is_away && self.call.is_none()).then_some(self.next_at);
        call.into_iter().chain(self.known.next_end().and_then(|end| slots.deadline(end))).min()
    }
}

async fn call(store: Arc<dyn Store>, downstream: String, purpose: TombstonePurpose) -> TombstonesReply {
    let sent = Instant::now();
    let call = match &purpose {
        TombstonePurpose::Read(after) => TombstoneCall::Read { after: *after },
        TombstonePurpose::Recall(tombstones) => TombstoneCall::Recall { tombstones },
    };
    let answer = store.tombstones(&downstream, call).await;
    TombstonesReply { purpose, sent, received: Instant::now(), answer }
}

#[cfg(test)]
mod tests;
