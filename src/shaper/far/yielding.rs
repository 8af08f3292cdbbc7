//! How callers that reserve leave slots to callers that wait in order: they take turns with them, and have one slot
//! at a time, like a caller that waits for one slot after the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limit::{Costs, MAX_BATCH};
use crate::pace::{Settings, TurnTaking};
use crate::shaper::ReserveError;
use crate::store::{Asker, NextTurn, Reserve, Reserved, Scope, Store};
use crate::time::Micros;

/// How long callers are refused without a call to the store. The time is short, since waiting callers may leave and
/// limits may change.
const REFUSING: Duration = Duration::from_secs(1);

/// The shortest time after which a caller that was refused should ask again.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The part of the reserving callers in the queue of turns of a downstream.
#[derive(Debug)]
pub(super) struct Yielding {
    turns: TurnTaking,
    settings: Arc<Settings>,
    /// The answer to all callers while others wait in order; `None` if nobody does.
    refusal: Option<Refusal>,
}

/// An answer that counts until an instant.
#[derive(Debug)]
struct Refusal {
    error: ReserveError,
    until: Instant,
}

impl Yielding {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        let turns = TurnTaking::new(settings.horizon, &settings.limits);
        Self { turns, settings: Arc::clone(settings), refusal: None }
    }

    /// Whether these settings have the pace of those under which it was created.
    pub(super) fn is_under(&self, settings: &Arc<Settings>) -> bool {
        Arc::ptr_eq(&self.settings, settings) || self.settings.paces_like(settings)
    }

    /// Returns the most requests of a call. `waits_here` says whether callers of this process wait in order.
    pub(super) const fn most(&self, waits_here: bool) -> usize {
        if waits_here || self.refusal.is_some() { 1 } else { MAX_BATCH }
    }

    /// Returns the answer to all callers at `now`, if they are refused without a call to the store.
    pub(super) fn refusal(&self, now: Instant) -> Option<&ReserveError> {
        self.refusal.as_ref().filter(|refusal| refusal.until > now).map(|refusal| &refusal.error)
    }

    /// Returns the part of a call in the queue of turns.
    pub(super) fn asker(&self, now: Instant, waiting: u64, max_wait: Duration) -> Asker {
        let asker = self.turns.asker_at(now, waiting, &self.settings.limits);
        // Nobody waits for a turn behind `max_wait`.
        Asker { farthest: asker.farthest.min(max_wait), ..asker }
    }

    /// Records the turn in an answer. If the call took part in the queue of turns, returns when to ask again, and the
    /// first slot then.
    pub(super) fn on_answer(
        &mut self,
        (sent, received): (Instant, Instant),
        reserved: &Reserved,
        max_wait: Duration,
    ) -> Option<(Instant, Micros)> {
        self.turns.on_round_trip(received - sent);
        self.refusal = None;
        let booking = reserved.booking?;
        let when = |at: Micros| sent + at.since(reserved.stamp.now);
        let mut at = self.turns.on_booking(sent, &booking, reserved);
        if reserved.stamp.status.paused_until() > reserved.stamp.now {
            // The pause is the reason.
            return None;
        }
        let begins = match booking.next {
            NextTurn::At(turn) => {
                // A caller that waits for one slot after the other calls without a turn once the next slot is that
                // near, so calls at the same instant would always come second. Therefore these are made earlier, by
                // half an interval at most: still earlier ones would be refused.
                let early = (turn.lead / 8).min(turn.spacing / 2);
                at = at.min(when(turn.ask_at().minus(early)));
                turn.begins
            }
            NextTurn::Later(begins) => begins,
            NextTurn::None => {
                // The slots before are those of others.
                at = at.max(when(reserved.next));
                reserved.next
            }
        };
        at = at.max(received + SHORTEST_WAIT);
        if let Some(last) = reserved.slots.last() {
            at = at.max(when(*last));
        }
        let error = self.error((at, begins), reserved, max_wait);
        self.refusal = Some(Refusal { error, until: at.min(received + REFUSING) });
        Some((at, begins))
    }

    /// Returns the reason why callers get no slot before `at`, when the first one is `begins`.
    fn error(
        &self,
        (at, begins): (Instant, Micros),
        reserved: &Reserved,
        max_wait: Duration,
    ) -> ReserveError {
        let latest = reserved.stamp.now.plus(max_wait);
        if begins <= latest {
            return ReserveError::NotYet { retry_at: at };
        }
        let place = reserved.refused.map_or(0, |refused| refused.limit);
        let limit = self.settings.limits.get(place).map(|limit| limit.name().to_owned()).unwrap_or_default();
        ReserveError::QueueFull { retry_after: begins.since(latest), limit }
    }

    /// Records that a call failed.
    pub(super) const fn on_failure(&mut self) {
        self.turns.on_failure();
    }

    /// Forgets the turn, since the store's clock stepped or its state was lost.
    pub(super) fn forget_turn(&mut self) {
        self.turns.drop_turn();
        self.refusal = None;
    }

    /// Gives the turn back, if there is one.
    pub(super) async fn give_back(self, store: &dyn Store) {
        let asker = self.turns.asker_at(Instant::now(), 0, &self.settings.limits);
        if asker.turn.is_some() {
            let scope = Scope { downstream: &self.settings.downstream, key: "" };
            let call = Reserve::new(scope, &self.settings.limits, Costs::Each(&[]), Duration::ZERO);
            // If the store does not take the turn back, a slot stays unused.
            let _ = store.reserve(Reserve { asker: Some(asker), ..call }).await;
        }
    }
}
