//! What the scripts are told: numbers, packed.

use std::collections::HashMap;
use std::time::Duration;

use super::packed::Packed;
use crate::limit::{Algorithm, Calendar, Combine, Costs, Counting, Edges, Limit, LimitSet, Window};
use crate::rate::Rate;
use crate::store::lanes::States;
use crate::store::turns::farthest;
use crate::store::{Asker, Lanes, Lease, SharedHorizon};
use crate::time::Micros;

/// The instant that a script decides at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Now {
    /// The store's clock.
    Store,
    /// A test's clock.
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

/// What a worker knows of a downstream's record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The last epoch; 0: none.
    pub(super) epoch: Micros,
    /// How far ahead slots are granted to it and those like it.
    pub(super) horizon: Duration,
    /// The farthest slot that it was granted in that epoch.
    pub(super) farthest: Micros,
    /// The store's clock in the last answer.
    pub(super) heard: Micros,
    /// The server's process that it is connected to.
    pub(super) run: i64,
}

/// A loss of the store's state is fenced by the caller's horizon, but by no more than this.
const LONGEST_FENCE: Duration = Duration::from_secs(60);

impl Seen {
    pub(super) fn numbers(self) -> [i64; 5] {
        [self.epoch.0, self.run, self.horizon().0, self.farthest.0, self.heard.0]
    }

    /// As far ahead as is asked for, where nothing is known.
    pub(super) fn or_asking(self, ask: &Ask<'_>) -> Self {
        if self.horizon.is_zero() { Self { horizon: ask.horizon(), ..self } } else { self }
    }

    fn horizon(self) -> Micros {
        Micros(0).plus(self.horizon.min(LONGEST_FENCE))
    }
}

/// How far the worker's clock may be off before edges of calendars are sent twice.
const SLACK: Duration = Duration::from_secs(60);

/// What [`Store::reserve`](crate::Store::reserve) and [`Store::check`](crate::Store::check) ask.
pub(super) struct Ask<'a> {
    pub(super) limits: &'a LimitSet,
    pub(super) costs: Costs<'a>,
    pub(super) ahead: Duration,
    /// The latest slot that is exact.
    pub(super) exact: Micros,
    pub(super) lease: Option<Lease<'a>>,
    pub(super) shared: Option<SharedHorizon<'a>>,
    pub(super) asker: Option<Asker>,
    pub(super) police: bool,
    pub(super) generation: u64,
    /// From where on edges of calendars are sent, and up to where at least.
    pub(super) edges: (Micros, Micros),
    /// The windows as the worker last heard of them, by limit: what a store lost is made good by it.
    pub(super) known: Windows,
    pub(super) in_lanes: Option<InLanes<'a>>,
}

/// The lanes of the jobs of a call.
pub(super) struct InLanes<'a> {
    pub(super) lanes: Lanes<'a>,
    pub(super) states: States<'a>,
    /// The window of each state as the worker last heard of it.
    pub(super) known: Vec<Option<Heard>>,
}

/// A window, and the epoch in which it was heard of.
pub(super) type Heard = (Micros, Window);

/// Windows, by the limit's name.
pub(super) type Windows = HashMap<String, Heard>;

impl InLanes<'_> {
    /// The numbers that `lanes.lua` reads, where the downstream has so many limits of its own.
    pub(super) fn tell(&self, numbers: &mut Packed, own: usize, costs: Costs<'_>) {
        self.states.all.iter().for_each(|_| numbers.put([1]));
        numbers.put_count(own as u64);
        numbers.put([Micros(0).plus(self.lanes.lead).0]);
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

impl Ask<'_> {
    /// The limits, each with the window that the worker knows of: the downstream's, then those of lanes.
    pub(super) fn all_limits(&self) -> impl Iterator<Item = (&Limit, Option<&Heard>)> + Clone {
        let own = self.limits.iter().map(|limit| (limit, self.known.get(limit.name())));
        let keyed = self.in_lanes.iter().flat_map(|lanes| lanes.states.all.iter().zip(&lanes.known));
        own.chain(keyed.map(|((limit, _), known)| (*limit, known.as_ref())))
    }

    /// Whether the worker derives the slots from the first one. It does not know how far a shared horizon reached.
    fn is_derived(&self) -> bool {
        self.limits.is_tat() && self.in_lanes.is_none() && self.shared.is_none()
    }

    /// The numbers of a call for any algorithm, as the head of `reserve.lua` describes them, between those of the
    /// record and those of the limits.
    pub(super) fn tell(&self, numbers: &mut Packed) {
        numbers.put([Micros(0).plus(self.ahead).0, self.exact.0, self.combine(), self.police.into()]);
        numbers.put([self.is_derived().into()]);
        numbers.put_count(self.generation);
        numbers.put([self.life()]);
        numbers.put([self.asker.is_some().into()]);
        self.asker.iter().for_each(|asker| tell_asker(numbers, asker));
    }

    /// The replica that asks, where its lease or those of others matter.
    pub(super) fn replica(&self) -> Option<&str> {
        let lease = self.lease.map(|lease| lease.replica);
        lease.or(self.shared.map(|shared| shared.replica))
    }

    /// For how long the replica lives, in µs; where it takes no lease, the shared horizon below 0.
    fn life(&self) -> i64 {
        let shared = self.shared.map_or(0, |shared| -Micros(1).plus(shared.horizon).0);
        self.lease.map_or(shared, |lease| Micros(0).plus(lease.ttl).0)
    }

    /// Whether the script for most calls is for it.
    pub(super) fn is_fast(&self) -> bool {
        let takes_turns = self.asker.is_some();
        self.replica().is_none() && self.is_derived() && (!takes_turns || self.limits.is_plain())
    }

    /// How far ahead slots are granted to those who ask like this.
    pub(super) fn horizon(&self) -> Duration {
        // At its turn it may reach further where slots lie far apart: then the pace keeps others as far away.
        match self.asker {
            Some(Asker { turn: Some(turn), reach, .. }) => {
                // The lead tells how far ahead turns are booked, for whoever is farthest.
                farthest(reach.max(turn.lead * 5 / 3)).min(self.ahead)
            }
            _ => self.ahead,
        }
    }

    /// The argument of a call for the GCRA family, as the head of `fast.lua` describes it.
    pub(super) fn fast(&self, now: Now, seen: Seen) -> Packed {
        let limits = self.limits;
        let mut numbers = Packed::with_capacity(18 + 6 * limits.len() + 1);
        numbers.put([now.number(), seen.epoch.0, seen.run, Micros(0).plus(self.ahead).0, self.exact.0]);
        numbers.put([self.police.into()]);
        numbers.put_count(self.generation);
        numbers.put([self.asker.is_some().into(), seen.horizon().0, self.combine()]);
        self.asker.iter().for_each(|asker| tell_asker(&mut numbers, asker));
        for limit in limits.iter() {
            numbers.put(derived(limit));
        }
        tell_runs(&mut numbers, self, limits.len());
        numbers
    }

    fn combine(&self) -> i64 {
        match self.limits.combine() {
            Combine::All => 0,
            Combine::Any => 1,
            Combine::OneOf => 2,
        }
    }

    /// A calendar's edges: the last one up to where they are sent from, those up to where they are sent to,
    /// and as many more as the jobs of this call can use up.
    fn edges(&self, calendar: Calendar) -> Vec<Micros> {
        let (from, to) = self.edges;
        let until = from.plus(self.ahead).plus(SLACK);
        let mut spare = self.limits.jobs(self.costs) + 2;
        let mut edge = calendar.current(from);
        let mut edges = vec![edge];
        // The end of time is no edge, but there is none after it.
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

fn tell_asker(numbers: &mut Packed, asker: &Asker) {
    let Asker { turn, reach, waiting, own, interval, goes_on } = *asker;
    let micros = |span: Duration| Micros(0).plus(span).0;
    let turn = turn.map(|turn| [turn.begins.0, turn.units.into(), micros(turn.spacing), micros(turn.lead)]);
    numbers.put(turn.unwrap_or([-1, 0, 0, 0]));
    numbers.put([micros(reach)]);
    numbers.put_count(waiting);
    numbers.put_count(own as u64);
    numbers.put([micros(interval), goes_on.into()]);
}

/// N, P div N, P mod N, and the emission intervals after TAT at which a cost is due: a per unit and b.
fn derived(limit: &Limit) -> [i64; 5] {
    let (rate, burst, whole) = match limit.algorithm() {
        Algorithm::LeakyBucket(bucket) => (bucket.rate(), bucket.burst(), false),
        Algorithm::Gcra(gcra) => (gcra.rate(), gcra.burst(), true),
        Algorithm::TokenBucket(bucket) => (bucket.refill(), bucket.capacity(), true),
        // It takes none of them.
        _ => (limit.rate(), 1, false),
    };
    let [count, period] = counted(rate);
    let (a, b) = if whole { (1, -i64::from(burst)) } else { (0, 1 - i64::from(burst)) };
    [count, period / count, period % count, a, b]
}

/// N per P.
fn counted(rate: Rate) -> [i64; 2] {
    [rate.count(), rate.period_micros()].map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

/// How many limits there are, and each, with what is known of its window.
pub(super) fn tell_limits<'a>(
    numbers: &mut Packed,
    limits: impl Iterator<Item = (&'a Limit, Option<&'a Heard>)> + Clone,
    ask: Option<&Ask<'_>>,
) {
    numbers.put_count(limits.clone().count() as u64);
    for (limit, known) in limits {
        match limit.algorithm() {
            Algorithm::LeakyBucket(bucket) => tell_pace(numbers, b't', bucket.rate(), bucket.burst()),
            Algorithm::Gcra(gcra) => tell_pace(numbers, b'g', gcra.rate(), gcra.burst()),
            Algorithm::TokenBucket(bucket) => tell_pace(numbers, b'g', bucket.refill(), bucket.capacity()),
            Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => {
                tell_window(numbers, counting, ask, known);
            }
            Algorithm::SlidingWindow(window) => {
                numbers.put([b'c'.into()]);
                numbers.put_count(window.count());
                numbers.put([window.width(), window.buckets().into()]);
            }
            Algorithm::SlidingLog(log) => {
                numbers.put([b'l'.into()]);
                numbers.put_count(log.count());
                numbers.put([log.period()]);
            }
        }
    }
}

fn tell_pace(numbers: &mut Packed, letter: u8, rate: Rate, burst: u32) {
    numbers.put([letter.into()]);
    numbers.put(counted(rate));
    numbers.put([burst.into()]);
}

fn tell_window(numbers: &mut Packed, counting: Counting, ask: Option<&Ask<'_>>, known: Option<&Heard>) {
    let (epoch, known) = known.copied().unwrap_or_default();
    let mut tell = |letter: u8| {
        numbers.put([letter.into()]);
        numbers.put_count(counting.count());
        numbers.put([epoch.0, known.end.0]);
        numbers.put_count(known.used);
    };
    match counting.edges() {
        Edges::Aligned { period, offset } => {
            tell(b'w');
            numbers.put([period, offset]);
        }
        Edges::FirstHit { period } => {
            tell(b'f');
            numbers.put([period]);
        }
        Edges::Calendar(calendar) => {
            let edges = ask.map(|ask| ask.edges(calendar)).unwrap_or_default();
            tell(b'q');
            numbers.put([calendar.longest()]);
            numbers.put_count(edges.len() as u64);
            edges.iter().for_each(|edge| numbers.put([edge.0]));
        }
    }
}

/// How many costs a job has, then runs of them.
pub(super) fn tell_costs(numbers: &mut Packed, ask: &Ask<'_>) {
    let limits = ask.limits;
    let width = if matches!(ask.costs, Costs::Each(_)) && limits.is_plain() { 1 } else { limits.len() };
    numbers.put_count(width as u64);
    tell_runs(numbers, ask, width);
}

/// Runs of costs, and how many jobs have them.
fn tell_runs(numbers: &mut Packed, ask: &Ask<'_>, width: usize) {
    let mut rows = ask.limits.rows(ask.costs).peekable();
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
