//! What was granted, with the data needed to give it back.

use super::Reserved;
use crate::limit::{Charge, Costs, LimitSet, Mark};
use crate::time::Micros;

/// How the jobs of a call were charged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charges {
    /// The mark of each limit before the first slot was taken, then those of the states of lanes, in the order in which
    /// the lanes first name them.
    pub before: Vec<Mark>,
    /// The limits that each granted job was charged to: the downstream's, then its lane's.
    pub jobs: Vec<Charge>,
}

/// A granted slot, with the data needed to give it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The slot.
    pub slot: Micros,
    /// The cost charged to each limit; 0 where it was not charged.
    pub charged: Vec<u32>,
    /// The mark of each limit before the slot was taken.
    pub before: Vec<Mark>,
    /// The mark of each limit after the slot was taken.
    pub after: Vec<Mark>,
}

impl Reserved {
    /// The slots granted to a call without lanes, with the data needed to give them back. `limits` and `costs` are the
    /// call's.
    #[must_use]
    pub fn granted(&self, limits: &LimitSet, costs: Costs<'_>) -> Vec<Granted> {
        let mut marks = self.charges.before.clone();
        let mut granted = self.jobs().peekable();
        let rows = limits.rows(costs).enumerate().filter(|(job, _)| granted.next_if_eq(job).is_some());
        let grants = self.slots.iter().zip(&self.charges.jobs).zip(rows.map(|(_, row)| row));
        let grant = |((&slot, &charge), row): ((&Micros, &Charge), _)| {
            let charged = limits.charged(&row, charge);
            let after = limits.marks_after(&marks, slot, &charged);
            let before = std::mem::replace(&mut marks, after.clone());
            Granted { slot, charged, before, after }
        };
        grants.map(grant).collect()
    }
}
