//! The arguments of the scripts: requests, encoded as packed numbers.

use std::collections::HashMap;
use std::time::Duration;

use super::packed::Packed;
use crate::limit::{Calendar, Combine, Costs, Limit, LimitSet, Window};
use crate::store::lanes::States;
use crate::store::turns::farthest;
use crate::store::{Asker, Lanes, Lease, SharedHorizon, Sharing};
use crate::time::Micros;
pub(super) use change::encode_change;
pub(super) use limits::encode_limits;
use limits::{derived, encode_window, window};

mod change;
mod limits;

/// The clock that a script decides by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Now {
    /// The store's clock.
    Store,
    /// A test's clock, at this instant.
    Clock(Micros),
}

impl Now {
    pub(super) const fn number(self) -> i64 {
        match self {
            Self::Store => -1,
            Self::Clock(now) => now.0,
        }
    }
}

/// What a worker knows of a downstream's record, which every call sends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownRecord {
    /// The last epoch seen; 0 for none.
    pub(super) epoch: Micros,
    /// How far ahead slots are granted to this worker and its peers.
    pub(super) horizon: Duration,
    /// The farthest slot that this worker was granted in that epoch.
    pub(super) farthest: Micros,
    /// The store's clock in the last answer.
    pub(super) answered_at: Micros,
    /// The id of the server's process that the connection leads to.
    pub(super) run: i64,
}

/// The longest fence after a loss, with any horizon of the caller.
const LONGEST_FENCE: Duration = Duration::from_secs(60);

impl KnownRecord {
    pub(super) fn numbers(self) -> [i64; 5] {
        [self.epoch.0, self.run, self.horizon().0, self.farthest.0, self.answered_at.0]
    }

    /// Uses the horizon of the request where none is known.
    pub(super) fn with_default_horizon(self, request: &Request<'_>) -> Self {
        if self.horizon.is_zero() { Self { horizon: request.horizon(), ..self } } else { self }
    }

    fn horizon(self) -> Micros {
        Micros(0).plus(self.horizon.min(LONGEST_FENCE))
    }
}

/// How far the worker's clock may be off before edges of calendars must be sent a second time.
const SLACK: Duration = Duration::from_secs(60);

/// The request of [`Store::reserve`](crate::Store::reserve) or [`Store::check`](crate::Store::check).
pub(super) struct Request<'a> {
    pub(super) limits: &'a LimitSet,
    pub(super) costs: Costs<'a>,
    pub(super) reach: Reach,
    pub(super) sharing: Sharing<'a>,
    pub(super) asker: Option<Asker>,
    pub(super) police: bool,
    pub(super) generation: u64,
    pub(super) windows: Windows,
    pub(super) in_lanes: Option<InLanes<'a>>,
}

/// How far ahead a slot may lie.
pub(super) struct Reach {
    /// The span from the store's now on.
    pub(super) ahead: Duration,
    /// The latest slot that is exact in a double.
    pub(super) exact: Micros,
}

/// Data for scripts that count by windows.
pub(super) struct Windows {
    /// The span of calendar edges that is sent: its start, and its end at least.
    pub(super) edges: (Micros, Micros),
    /// The last known windows by limit, from which a store that lost them restores them.
    pub(super) known: KnownWindows,
}

/// The lanes of a call's jobs.
pub(super) struct InLanes<'a> {
    pub(super) lanes: Lanes<'a>,
    pub(super) states: States<'a>,
    /// The last known window of each state.
    pub(super) known_windows: Vec<Option<KnownWindow>>,
}

/// A window, and the epoch in which it was seen.
pub(super) type KnownWindow = (Micros, Window);

/// Last known windows, by the limit's name.
pub(super) type KnownWindows = HashMap<String, KnownWindow>;

/// A fast script: for one limit of the GCRA family, for several of them, or for windows, beside such limits or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FastScript {
    One,
    Many,
    Mixed,
}

impl FastScript {
    /// Whether its answer is one of `reserve.lua`'s. The others answer so only to those who take turns.
    pub(super) const fn answers_whole(self) -> bool {
        matches!(self, Self::Mixed)
    }
}

impl InLanes<'_> {
    /// Encodes the numbers that `lanes.lua` reads; `own` is the number of the downstream's own limits.
    pub(super) fn encode(&self, numbers: &mut Packed, own: usize, costs: Costs<'_>) {
        self.states.all.iter().for_each(|_| numbers.put([1]));
        numbers.put_count(own as u64);
        numbers.put([Micros(0).plus(self.lanes.lead).0, self.lanes.most.into()]);
        numbers.put_count(self.states.lanes.len() as u64);
        self.states.lanes.iter().for_each(|lane| numbers.put_count(lane.len() as u64));
        for place in self.states.lanes.iter().flatten() {
            numbers.put_count((own + place + 1) as u64);
        }
        let (Costs::Each(costs) | Costs::PerLimit(costs)) = costs;
        numbers.put_count(costs.len() as u64);
        self.lanes.of.iter().for_each(|lane| numbers.put([lane.map_or(0, |lane| i64::from(lane) + 1)]));
        costs.iter().for_each(|&cost| numbers.put([cost.into()]));
    }
}

impl Request<'_> {
    /// The limits, each with its last known window: the downstream's own, then those of lanes.
    pub(super) fn all_limits(&self) -> impl Iterator<Item = (&Limit, Option<&KnownWindow>)> + Clone {
        let own = self.limits.iter().map(|limit| (limit, self.windows.known.get(limit.name())));
        let keyed = self.in_lanes.iter().flat_map(|lanes| lanes.states.all.iter().zip(&lanes.known_windows));
        own.chain(keyed.map(|((limit, _), known)| (*limit, known.as_ref())))
    }

    /// Whether the worker derives the slots from the first one. It cannot where it does not know the horizon that a
    /// shared one was reduced to.
    fn is_derived(&self) -> bool {
        self.limits.is_tat() && self.in_lanes.is_none() && self.sharing.horizon().is_none()
    }

    /// Encodes the numbers of a call for any algorithm, in the order that the head of `reserve.lua` gives: those
    /// between the record's and the limits'.
    pub(super) fn encode(&self, numbers: &mut Packed) {
        numbers.put([
            Micros(0).plus(self.reach.ahead).0,
            self.reach.exact.0,
            self.combine(),
            self.police.into(),
        ]);
        numbers.put([self.is_derived().into()]);
        numbers.put_count(self.generation);
        numbers.put([self.lease_micros()]);
        let waits_here = self.sharing.horizon().is_some_and(|shared| shared.waits_here);
        numbers.put([i64::from(self.asker.is_some()) + 2 * i64::from(waits_here)]);
        self.asker.iter().for_each(|asker| encode_asker(numbers, asker));
    }

    /// The id of the calling replica, if its lease or those of others matter.
    pub(super) fn replica(&self) -> Option<&str> {
        match self.sharing {
            Sharing::None => None,
            Sharing::Lease(Lease { replica, .. }) | Sharing::Horizon(SharedHorizon { replica, .. }) => {
                Some(replica)
            }
        }
    }

    /// The duration of the lease in µs; without a lease, the shared horizon as a negative number.
    fn lease_micros(&self) -> i64 {
        match self.sharing {
            Sharing::None => 0,
            Sharing::Lease(lease) => Micros(0).plus(lease.ttl).0,
            Sharing::Horizon(shared) => -Micros(1).plus(shared.horizon).0,
        }
    }

    /// The fast script that may serve the request, if there is one.
    pub(super) fn fast_script(&self) -> Option<FastScript> {
        let (limits, is_plain) = (self.limits, self.limits.is_plain());
        let is_mixed = || limits.iter().all(|limit| limit.is_even() || window(limit).is_some());
        if self.replica().is_some() || self.in_lanes.is_some() {
            None
        } else if limits.is_tat() {
            let script = if limits.len() > 1 { FastScript::Many } else { FastScript::One };
            (self.asker.is_none() || is_plain).then_some(script)
        } else {
            (is_plain && !self.police && is_mixed()).then_some(FastScript::Mixed)
        }
    }

    /// The horizon of this caller and its peers.
    pub(super) fn horizon(&self) -> Duration {
        // At its turn a caller may reach further where slots lie far apart: the pace then keeps others as far away.
        match self.asker {
            Some(Asker { turn: Some(turn), reach, .. }) => {
                // The lead of the turn shows the reach of the queue, which is that of the most distant replica.
                farthest(reach.max(turn.lead * 5 / 3)).min(self.reach.ahead)
            }
            _ => self.reach.ahead,
        }
    }

    /// Encodes the argument of a fast script, in the order that the head of `fast.lua` gives.
    pub(super) fn fast(&self, now: Now, known_record: KnownRecord) -> Packed {
        let limits = self.limits;
        let mut numbers = Packed::with_capacity(18 + 6 * limits.len() + 1);
        numbers.put([
            now.number(),
            known_record.epoch.0,
            known_record.run,
            Micros(0).plus(self.reach.ahead).0,
            self.reach.exact.0,
        ]);
        numbers.put([self.police.into()]);
        numbers.put_count(self.generation);
        numbers.put([self.asker.is_some().into(), known_record.horizon().0, self.combine()]);
        self.asker.iter().for_each(|asker| encode_asker(&mut numbers, asker));
        let is_mixed = !limits.is_tat();
        for limit in limits.iter() {
            if let Some(counting) = window(limit) {
                encode_window(&mut numbers, counting, Some(self), self.windows.known.get(limit.name()));
                continue;
            }
            if is_mixed {
                numbers.put([0]);
            }
            numbers.put(derived(limit));
        }
        encode_runs(&mut numbers, self, limits.len());
        numbers
    }

    fn combine(&self) -> i64 {
        match self.limits.combine() {
            Combine::All => 0,
            Combine::Any => 1,
            Combine::OneOf => 2,
        }
    }

    /// The edges of a calendar to send: the last one at or before the start of the span, those up to its end, and as
    /// many more as the jobs of this call can use up.
    fn edges(&self, calendar: Calendar) -> Vec<Micros> {
        let (from, to) = self.windows.edges;
        let until = from.plus(self.reach.ahead).plus(SLACK);
        let mut spare = self.limits.jobs(self.costs) + 2;
        let mut edge = calendar.current(from);
        let mut edges = vec![edge];
        // `Micros::MAX` means that there is no further edge.
        while spare > 0 && edge < Micros::MAX {
            edge = calendar.next(edge);
            edges.push(edge);
            if edge > to {
                spare = if edge > until { 0 } else { spare - 1 };
            }
        }
        edges
    }
}

fn encode_asker(numbers: &mut Packed, asker: &Asker) {
    let Asker { turn, reach, waiting, own, interval, goes_on, farthest } = *asker;
    let micros = |span: Duration| Micros(0).plus(span).0;
    let turn = turn.map(|turn| [turn.begins.0, turn.units.into(), micros(turn.spacing), micros(turn.lead)]);
    numbers.put(turn.unwrap_or([-1, 0, 0, 0]));
    numbers.put([micros(reach)]);
    numbers.put_count(waiting);
    numbers.put_count(own as u64);
    numbers.put([micros(interval), goes_on.into(), micros(farthest)]);
}

/// Encodes the number of costs of a job, then runs of jobs with equal costs.
pub(super) fn encode_costs(numbers: &mut Packed, request: &Request<'_>) {
    let limits = request.limits;
    let width = if matches!(request.costs, Costs::Each(_)) && limits.is_plain() { 1 } else { limits.len() };
    numbers.put_count(width as u64);
    encode_runs(numbers, request, width);
}

/// Encodes runs of jobs with equal costs: the costs, and the number of jobs.
fn encode_runs(numbers: &mut Packed, request: &Request<'_>, width: usize) {
    let mut rows = request.limits.rows(request.costs).peekable();
    while let Some(row) = rows.next() {
        let mut jobs = 1;
        while rows.next_if_eq(&row).is_some() {
            jobs += 1;
        }
        for &cost in &row[..width] {
            numbers.put([cost.into()]);
        }
        numbers.put([jobs]);
    }
}
