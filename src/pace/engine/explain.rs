//! Where waiters are, and the place of one that waits for a slot.

use tokio::time::Instant;

use super::Engine;
use crate::limit::Limit;
use crate::pace::backlog::Spot;
use crate::pace::schedule::{LaneWait, WaiterPlace};
use crate::pace::{LaneId, Waiter, limit_delay};

/// Where a waiter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// It waits for a slot: [`Engine::place_of`] says for how long.
    Ready,
    /// A slot is being requested for it, or it is the trial of a suspended engine.
    Requested,
    /// It has a slot at this instant.
    Held(Instant),
    /// It waits for the end of a window of the downstream at this instant, since it costs more than is left of the window.
    Window(Instant),
    /// It may only have a slot from this instant on.
    Later(Instant),
}

impl<W: Waiter> Engine<W> {
    /// Returns all waiters, and where each is.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Whereabouts, &W)> {
        let held = self.release.holders().map(|(at, waiter)| (Whereabouts::Held(at), waiter));
        let requested = self.pacing.batch().chain(self.pacing.trial());
        let requested = requested.map(|waiter| (Whereabouts::Requested, waiter));
        let backlog = self.backlog.all().map(|(spot, waiter)| match spot {
            Spot::Ready => (Whereabouts::Ready, waiter),
            Spot::Later(due) => (Whereabouts::Later(due), waiter),
            Spot::Aside(ends) => (Whereabouts::Window(ends), waiter),
        });
        held.chain(requested).chain(backlog)
    }

    /// Finds the next waiter without a slot of the lane by keys of this name.
    pub(crate) fn next_of(&self, lane: &str) -> Option<&W> {
        let lanes = self.schedule.keyed().map(|lanes| lanes.named(lane)).unwrap_or_default();
        let next = lanes.into_iter().filter_map(|lane| self.backlog.first_waiter(lane));
        next.min_by_key(|waiter| (9 - waiter.priority().min(9), waiter.seq()))
    }

    /// The place of a ready waiter. It goes over all lanes several times.
    pub(crate) fn place_of(&self, waiter: &W) -> WaiterPlace {
        let now = Instant::now();
        let limits: Vec<&Limit> = self.settings.limits.iter().collect();
        let next = self.next_slot(LaneId::DOWNSTREAM).max(now);
        let pace = |waiters: u64| limit_delay(&limits, waiters);
        let keyed = self.schedule.keyed();
        let place = keyed.and_then(|lanes| lanes.place_of(&self.backlog, waiter, (now, next), pace));
        let mut place = place.unwrap_or_else(|| self.place_without_keys(waiter, (now, next)));
        // Those for which slots are being requested go before it.
        place.before += self.pacing.batch().count() as u64;
        place
    }

    /// The same where a lane is a plan. Plans share evenly, which is not taken into account.
    fn place_without_keys(&self, waiter: &W, (now, next): (Instant, Instant)) -> WaiterPlace {
        let lane = waiter.lane();
        let rank = 9 - waiter.priority().min(9);
        let others = (0..=self.settings.plans.len()).map(LaneId::at).filter(|other| *other != lane);
        let others = others.map(|other| {
            let (higher, equal) = self.backlog.ranks(other, rank);
            (higher + equal) as u64
        });
        let (higher, equal) = self.backlog.before(waiter);
        let ahead = higher + equal;
        let limits: Vec<&Limit> = self.settings.own_limits(lane).collect();
        let asleep = self.schedule.sleeps_until(lane).map_or(now, |until| until.max(now));
        let own = asleep + limit_delay(&limits, ahead as u64);
        let slowest = limits.iter().max_by_key(|limit| limit.rate().interval());
        let wait = match slowest {
            Some(limit) if own > now => LaneWait::Limit(limit.name().to_owned(), Some(own)),
            _ => LaneWait::Turn,
        };
        WaiterPlace {
            lane: None,
            waiting: self.backlog.ready(lane),
            ahead,
            before: ahead as u64 + others.sum::<u64>(),
            next,
            own,
            wait,
        }
    }
}
