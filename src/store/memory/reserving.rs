//! The decision on a reserve call, from the record of one downstream and the states of its limits.

use std::time::Duration;

use super::downstream::Downstream;
use super::{LONGEST_TURN_LEASE, Lease, NextTurn, Reserve, Reserved, SharedHorizon, Stamp};
use crate::limit::{Charge, Keyed, Mark, Plan, State};
use crate::store::lanes::States;
use crate::store::{Asker, Booking, Charges, Lanes, Sharing};
use crate::time::Micros;

impl Downstream {
    /// Grants slots to jobs of lanes. Returns the answer, and which of the downstream's limits were charged.
    pub(super) fn reserve_in_lanes(
        &mut self,
        call: &Reserve<'_>,
        (touched, lanes): (States<'_>, &Lanes<'_>),
        states: &mut [State],
        now: Micros,
    ) -> (Reserved, Charge) {
        let own = call.limits.len();
        let keyed = touched.all.iter().map(|(limit, key)| (*limit, self.read(limit, key, now))).collect();
        let costs = call.limits.rows(call.costs).map(|row| row[0]);
        let jobs = lanes.of.iter().map(|lane| lane.map(usize::from)).zip(costs).collect();
        let mut keyed = Keyed { states: keyed, lanes: touched.lanes, jobs };
        let mut before = call.limits.marks(states);
        before.extend(keyed.states.iter().map(|(limit, state)| limit.mark(state)));
        let plan = call.plan_lanes((states, &mut keyed), (now, now), (&self.status, lanes));
        for (index, ((limit, key), (_, state))) in touched.all.iter().zip(&keyed.states).enumerate() {
            if limit.mark(state) != before[own + index] {
                self.write(limit, key, state.clone());
            }
        }
        let taken = plan.taken();
        (self.reserved(call, states, now, (before, plan)), taken)
    }

    /// Builds the answer to a call; `states` are those after the decision.
    pub(super) fn reserved(
        &mut self,
        call: &Reserve<'_>,
        states: &[State],
        now: Micros,
        (before, plan): (Vec<Mark>, Plan),
    ) -> Reserved {
        let status = self.status;
        let outdated = !status.is_current(call.generation);
        let next = match plan.refused {
            Some(refused) if call.lanes.is_none() => refused.slot,
            _ if status.is_stopped() => Micros::MAX,
            _ => call.limits.earliest(states, now, 1),
        };
        let may_book = !outdated && !status.is_stopped();
        let booking = call.asker.map(|asker| self.booking(call, &asker, states, (now, may_book), &plan));
        let replicas = call.sharing.lease().map(|lease| self.lease(lease, booking.as_ref(), now));
        let Plan { slots, charges: jobs, passed, refused, .. } = plan;
        let (stamp, charges) = (Stamp { now, epoch: self.epoch, status }, Charges { before, jobs });
        Reserved { stamp, slots, charges, passed, refused, next, replicas, booking, outdated }
    }

    fn booking(
        &mut self,
        call: &Reserve<'_>,
        asker: &Asker,
        states: &[State],
        (now, may_book): (Micros, bool),
        plan: &Plan,
    ) -> Booking {
        let reach = self.extend_reach(now, asker);
        if !may_book {
            return Booking { reach, next: NextTurn::None };
        }
        let next = call.limits.next_two(&mut states.to_vec(), now, asker.own);
        let mut wants = call.left(asker, plan, next.0);
        if let (Some(wants), Some(_)) = (&mut wants, call.sharing.horizon()) {
            wants.units = wants.units.min(1);
        }
        let refused = plan.refused.filter(|refused| refused.limit < asker.own && refused.slot > next.0);
        let refused = refused.filter(|refused| !call.limits.waits_for_window(refused.limit));
        let slots = refused.map_or(next, |refused| (refused.slot, asker.interval));
        let is_granted = plan.taken() != Charge::default();
        let next = self.queue().next_turn(now, asker, slots, wants, is_granted);
        Booking { reach, next }
    }

    /// Renews a replica's lease, and counts the leases in force.
    pub(super) fn lease(&mut self, lease: Lease<'_>, booking: Option<&Booking>, now: Micros) -> u32 {
        // A lease that ends later than any lease can was granted before the clock stepped back.
        self.leases.retain(|_, until| *until > now && *until <= now.plus(LONGEST_TURN_LEASE));
        let ttl = lease.ttl.max(booking.map_or(Duration::ZERO, |booking| booking.lease_ttl(now)));
        self.leases.insert(lease.replica.to_owned(), now.plus(ttl));
        u32::try_from(self.leases.len()).unwrap_or(u32::MAX)
    }

    /// The call as it counts while others wait in order or hold leases. Without them, it counts as the call of a
    /// caller that is alone. A call that is still shared yields to others.
    pub(super) fn yielding<'a>(&mut self, call: Reserve<'a>, states: &[State], now: Micros) -> Reserve<'a> {
        let Some(shared) = call.sharing.horizon() else { return call };
        let SharedHorizon { replica, horizon, waits_here } = shared;
        let lives = |until: &Micros| *until > now && *until <= now.plus(LONGEST_TURN_LEASE);
        let yields = waits_here || self.leases.iter().any(|(name, until)| name != replica && lives(until));
        if !yields {
            return Reserve { sharing: Sharing::None, asker: None, ..call };
        }
        let call = Reserve { ahead: call.ahead.min(horizon), ..call };
        let turn = call.asker.and_then(|asker| asker.turn);
        if turn.is_some_and(|turn| turn.is_due(now)) {
            return call;
        }
        // The slots before the end of the queue belong to those whose turns are booked.
        let own = call.asker.map_or(call.limits.len(), |asker| asker.own);
        let (free, _) = call.limits.next_two(&mut states.to_vec(), now, own);
        Reserve { ahead: if self.queue().end > free { Duration::ZERO } else { call.ahead }, ..call }
    }
}
