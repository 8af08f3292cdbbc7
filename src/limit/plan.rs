//! What jobs cost, and what a set of limits answers.

use super::Standing;
use crate::time::Micros;

/// What jobs cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs<'a> {
    /// One cost per job, the same for every limit.
    Each(&'a [u32]),
    /// For each job in turn one cost per limit, in the order in which the limits were given. A job
    /// does not ask a limit that it costs nothing, unless it costs nothing at all.
    PerLimit(&'a [u32]),
}

/// The limits that a job was charged to: bit `i` stands for the limit at place `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Charge(pub u32);

impl Charge {
    /// The charge of a job of this cost that obeys so many limits, at most 32, all together.
    pub(crate) const fn all(limits: usize, cost: u32) -> Self {
        Self(if limits == 0 || cost == 0 { 0 } else { u32::MAX >> (32 - limits) })
    }

    /// Whether the limit at this place was charged.
    #[must_use]
    pub const fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }
}

/// Why a job got no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The slot that it would have had.
    pub slot: Micros,
    /// The binding limit, by its place in the set: the first that allows nothing earlier. Behind the downstream's own
    /// limits come those of the job's lane.
    pub limit: usize,
}

/// A job that got no slot while later ones may have had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Its place in the call.
    pub job: usize,
    /// The reason why it got none.
    pub refusal: Refusal,
}

/// Slots for jobs, in their order, as far as they go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One for each job that got one.
    pub slots: Vec<Micros>,
    /// What each of them was charged to.
    pub charges: Vec<Charge>,
    /// Those passed over, in their order.
    pub passed: Vec<Passed>,
    /// Why there are no more.
    pub refused: Option<Refusal>,
    /// The place of the job that was refused. In a call without lanes it is the first one behind those granted and
    /// passed over.
    pub refused_job: usize,
    /// The number of jobs, from that one on, that wait for the end of a window; 0 if that one does not wait for it.
    pub dear: usize,
}

impl Plan {
    /// The limits that any of them was charged to.
    #[must_use]
    pub fn taken(&self) -> Charge {
        Charge(self.charges.iter().fold(0, |all, charge| all | charge.0))
    }

    /// Turns the jobs that were passed over behind the last slot into the refusal that ended the call.
    pub(super) fn end(&mut self) {
        self.refused_job = self.slots.len() + self.passed.len();
        if self.refused.is_some() {
            return;
        }
        while let Some(last) = self.passed.pop_if(|last| last.job + 1 == self.refused_job) {
            self.refused = Some(last.refusal);
            self.refused_job -= 1;
            self.dear += 1;
        }
    }
}

/// What a policer finds for one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When it fits; it is allowed if that is now.
    pub earliest: Micros,
    /// The limits that it was charged to; none when it is not allowed.
    pub charge: Charge,
    /// The binding limit among those asked, when it is not allowed.
    pub limit: usize,
    /// How each limit stands after it.
    pub standings: Vec<Standing>,
}
