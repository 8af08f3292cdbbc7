//! Start-time fair queueing (Goyal, Vin, Cheng 1996) over classes, within each priority. It is pure.
//!
//! A class is the lanes of one value. Each grant of a class begins at its start tag and ends at the start tag of its
//! next grant; they lie apart by cost / weight. The class with the lowest tag is first, and of its lanes the one with
//! the lowest turn. Virtual time is the latest start tag that was granted. A class that comes back starts there at
//! the earliest, so it has no credit for the time in which it requested nothing. Tags and virtual time are those of
//! one priority: grants of a class at another priority neither count against it nor let it fall behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The number of priorities; rank 0 is first.
pub(super) const RANKS: usize = 10;

/// One unit of cost at weight 1.
const UNIT: u128 = 1 << 32;

/// The whole, of which a share is given in millionths.
const WHOLE: u64 = 1_000_000;

/// The classes that wait, and their grants.
#[derive(Debug, Default)]
pub(super) struct Classes {
    all: Vec<Class>,
    by_value: HashMap<String, usize>,
    /// Classes without lanes, whose rows new ones may take.
    free: Vec<usize>,
    ranks: [Rank; RANKS],
    /// The share of grants that goes to the lowest priority that waits, in millionths, and how much of one is due to it.
    guard: u64,
    due_to_lowest: u64,
}

/// The grants at one priority.
#[derive(Debug, Default)]
struct Rank {
    /// The tags of the classes that wait.
    ready: BTreeSet<(u128, usize)>,
    virtual_time: u128,
}

#[derive(Debug, Default)]
struct Class {
    value: String,
    weight: u32,
    /// The priorities at which it has had lanes; most classes have one.
    queues: Vec<Queue>,
    /// The number of lanes, waiting or not.
    members: usize,
}

/// The lanes of one class and priority.
#[derive(Debug)]
struct Queue {
    rank: usize,
    /// The start tag of its next grant.
    tag: u128,
    /// The lanes that wait, by their turns.
    lanes: BTreeMap<u64, usize>,
}

/// The lane whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(super) lane: usize,
    pub(super) class: usize,
    pub(super) rank: usize,
    /// Whether a lower priority waits, and whether this turn is that of the lowest one.
    pub(super) has_lower: bool,
    pub(super) is_lowest: bool,
}

/// A unit of work that was charged to a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    class: usize,
    rank: usize,
    /// The start tag, and how far the next one lies behind it.
    start: u128,
    span: u128,
    has_lower: bool,
    is_lowest: bool,
}

impl Class {
    fn queue(&mut self, rank: usize) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.rank == rank)
    }
}

impl Classes {
    pub(super) fn new(guard: u32) -> Self {
        Self { guard: u64::from(guard).min(WHOLE), ..Self::default() }
    }

    /// Adds a lane to the class of a value, and returns that class.
    pub(super) fn join(&mut self, value: &str, weight: u32) -> usize {
        let class = self.by_value.get(value).copied().unwrap_or_else(|| {
            let class = self.free.pop().unwrap_or_else(|| {
                self.all.push(Class::default());
                self.all.len() - 1
            });
            self.all[class] = Class { value: value.to_owned(), weight, ..Class::default() };
            self.by_value.insert(value.to_owned(), class);
            class
        });
        self.all[class].members += 1;
        class
    }

    /// The weight of a class; 1 at least.
    pub(super) fn weight(&self, class: usize) -> u32 {
        self.all[class].weight.max(1)
    }

    /// Removes a lane that does not wait from its class.
    pub(super) fn leave(&mut self, class: usize) {
        let left = &mut self.all[class];
        left.members -= 1;
        if left.members == 0 {
            let left = std::mem::take(left);
            debug_assert!(left.queues.iter().all(|queue| queue.lanes.is_empty()), "a lane of {left:?} waits");
            self.by_value.remove(&left.value);
            self.free.push(class);
        }
    }

    /// Has a lane wait at this rank, at its turn among the lanes of its class.
    pub(super) fn push(&mut self, lane: usize, class: usize, rank: usize, turn: u64) {
        let Rank { ready, virtual_time } = &mut self.ranks[rank];
        let joined = &mut self.all[class];
        if joined.queue(rank).is_none() {
            joined.queues.reserve_exact(1);
            joined.queues.push(Queue { rank, tag: 0, lanes: BTreeMap::new() });
        }
        let Some(queue) = joined.queue(rank) else { return };
        if queue.lanes.is_empty() {
            queue.tag = queue.tag.max(*virtual_time);
        }
        queue.lanes.insert(turn, lane);
        ready.insert((queue.tag, class));
    }

    /// Takes a lane out that waits at this rank and turn.
    pub(super) fn remove(&mut self, class: usize, rank: usize, turn: u64) {
        let Some(queue) = self.all[class].queue(rank) else { return };
        queue.lanes.remove(&turn);
        if queue.lanes.is_empty() {
            self.ranks[rank].ready.remove(&(queue.tag, class));
        }
    }

    /// Gives a lane that waits at this rank another turn.
    pub(super) fn turn(&mut self, class: usize, rank: usize, (before, turn): (u64, u64)) {
        let Some(queue) = self.all[class].queue(rank) else { return };
        if let Some(lane) = queue.lanes.remove(&before) {
            queue.lanes.insert(turn, lane);
        }
    }

    /// Takes the lane whose turn it is. `spare` is the rest due to the lowest priority after the turns taken before,
    /// which may have no effect; `None` if none was taken.
    pub(super) fn pop(&mut self, spare: &mut Option<u64>) -> Option<Turn> {
        let waits = |rank: &Rank| !rank.ready.is_empty();
        let first = self.ranks.iter().position(waits)?;
        let last = self.ranks.iter().rposition(waits)?;
        let due = spare.get_or_insert(self.due_to_lowest);
        let has_lower = last > first;
        let is_lowest = has_lower && *due >= WHOLE;
        let rank = if is_lowest { last } else { first };
        let (_, class) = *self.ranks[rank].ready.first()?;
        let queue = self.all[class].queue(rank)?;
        let (_, lane) = queue.lanes.pop_first()?;
        if queue.lanes.is_empty() {
            self.ranks[rank].ready.remove(&(queue.tag, class));
        }
        Some(Turn { lane, class, rank, has_lower, is_lowest })
    }

    /// Charges a turn to its class, as if it were granted.
    pub(super) fn charge(&mut self, turn: &Turn, cost: u32, spare: &mut Option<u64>) -> Charge {
        let Turn { class, rank, has_lower, is_lowest, .. } = *turn;
        let span = UNIT * u128::from(cost) / u128::from(self.all[class].weight.max(1));
        let start = self.all[class].queue(rank).map_or(0, |queue| queue.tag);
        let charge = Charge { class, rank, start, span, has_lower, is_lowest };
        let due = spare.get_or_insert(self.due_to_lowest);
        *due = Self::due(*due, self.guard, &charge);
        self.retag(class, rank, start.saturating_add(span));
        charge
    }

    /// Accepts the charges of a call, in its order, and whether each was granted. Charges that were not granted are
    /// taken back.
    pub(super) fn settle<'c>(&mut self, charges: impl Iterator<Item = (&'c Charge, bool)>) {
        // Charges of a class before that were not granted are part of the start tags behind them.
        let mut refunds = HashMap::<(usize, usize), u128>::new();
        for (charge, is_granted) in charges {
            let before = refunds.entry((charge.class, charge.rank)).or_default();
            if is_granted {
                self.grant(&Charge { start: charge.start.saturating_sub(*before), ..*charge });
            } else {
                *before += charge.span;
                self.refund(charge);
            }
        }
    }

    /// Records that a charge was granted.
    fn grant(&mut self, charge: &Charge) {
        let virtual_time = &mut self.ranks[charge.rank].virtual_time;
        *virtual_time = charge.start.max(*virtual_time);
        self.due_to_lowest = Self::due(self.due_to_lowest, self.guard, charge);
    }

    /// Takes back a charge that was not granted.
    fn refund(&mut self, charge: &Charge) {
        let Charge { class, rank, span, .. } = *charge;
        let tag = self.all[class].queue(rank).map_or(0, |queue| queue.tag);
        self.retag(class, rank, tag.saturating_sub(span));
    }

    const fn due(due: u64, guard: u64, charge: &Charge) -> u64 {
        match charge {
            Charge { is_lowest: true, .. } => due.saturating_sub(WHOLE),
            Charge { has_lower: true, .. } => {
                let more = due + guard;
                // It never gets two turns in a row.
                if more < 2 * WHOLE { more } else { 2 * WHOLE - 1 }
            }
            _ => due,
        }
    }

    fn retag(&mut self, class: usize, rank: usize, tag: u128) {
        let Some(queue) = self.all[class].queue(rank) else { return };
        let before = std::mem::replace(&mut queue.tag, tag);
        if !queue.lanes.is_empty() {
            let ready = &mut self.ranks[rank].ready;
            ready.remove(&(before, class));
            ready.insert((tag, class));
        }
    }

    /// Whether any lane waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.ranks.iter().any(|rank| !rank.ready.is_empty())
    }

    /// The lanes that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        let ranks = self.ranks.iter().enumerate();
        let classes = ranks.flat_map(|(rank, of)| of.ready.iter().map(move |(_, class)| (rank, *class)));
        classes.flat_map(move |(rank, class)| {
            let queue = self.all[class].queues.iter().find(|queue| queue.rank == rank);
            queue.into_iter().flat_map(|queue| queue.lanes.values().copied())
        })
    }

    /// Sets the weights of all classes.
    pub(super) fn weigh(&mut self, weight: impl Fn(&str) -> u32) {
        self.all.iter_mut().for_each(|class| class.weight = weight(&class.value));
    }

    /// The number of classes, for tests of what is left behind.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_value.len()
    }
}

#[cfg(test)]
mod tests;
