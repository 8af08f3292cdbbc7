//! Waiters that are cancelled while they wait, with or without a slot.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Effect, Engine};
use crate::pace::Waiter;
use crate::pace::meters::Abandoned;
use crate::pace::release::Unused;
use crate::pace::terms::{CancelledIds, TombstonesReply};
use crate::store::Stamp;

impl<W: Waiter> Engine<W> {
    /// Follows the cancellations in the store from now on. Returns the ids of the waiters that are cancelled at any
    /// time. The driver does not admit these ([`Admission`](super::Admission)), and checks once more before it sends
    /// a waiter.
    pub(crate) fn follow_cancellations(&mut self) -> Arc<CancelledIds> {
        self.terms.follow_tombstones(Instant::now())
    }

    /// Takes out the waiters that `is_cancelled` selects. Their slots go to the waiters behind them, or back to the
    /// store. A waiter that is part of a call in flight stays, and is found before it is sent.
    pub(crate) fn take_cancelled(&mut self, is_cancelled: impl Fn(&W) -> bool) -> Vec<W> {
        let mut taken = self.backlog.take(&is_cancelled);
        // The last slot is withdrawn first, since only the last slot can go back to the store.
        for seq in self.release.positions(&is_cancelled).into_iter().rev() {
            if let Some(held) = self.release.remove(seq) {
                let unused = Unused::of(&held);
                taken.push(held.waiter);
                self.pass_on_for(unused, Abandoned::Cancelled);
            }
        }
        taken
    }

    /// Handles the reply to a call about cancelled waiters.
    pub(super) fn on_tombstones_reply(&mut self, reply: TombstonesReply) {
        let TombstonesReply { purpose, sent, received, answer } = reply;
        match answer {
            Ok(answer) => {
                self.meters.record_answered(received - sent);
                self.on_store_there(received);
                let (now, epoch, status) = (answer.now, answer.epoch, answer.status);
                self.on_stamp(sent, received, Stamp { now, epoch, status });
                let count = self.terms.on_tombstones(purpose, answer);
                if count > 0 {
                    tracing::debug!(downstream = self.settings.downstream, count, "jobs are cancelled");
                    self.driver.effects.push(Effect::Cancelled);
                }
            }
            Err(error) => {
                self.meters.record_failed();
                if error.is_away() {
                    self.on_failure(&error);
                }
                let again = self.pacing.next_reserve_at();
                self.terms.on_tombstones_failed(&purpose, (&error, &self.settings.downstream), again);
            }
        }
    }

    /// Whether nothing is released until this replica has read the cancellations that the store announced. While the
    /// store is away, the known ones count.
    pub(super) fn is_held_up(&self) -> bool {
        self.terms.lacks_tombstones() && !self.pacing.state().is_away()
    }

    /// Returns the instant of the next release.
    pub(super) fn release_wake_at(&self) -> Option<Instant> {
        if self.is_held_up() { None } else { self.release.wake_at() }
    }
}
