//! The costs of jobs, and the decisions of a set of limits.

use super::Standing;
use crate::time::Micros;

/// The costs of the jobs of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs<'a> {
    /// One cost per job, the same for every limit.
    Each(&'a [u32]),
    /// For each job one cost per limit, in the order in which the limits were given. A limit is not asked about a job
    /// that costs it nothing, unless the job costs nothing at all.
    PerLimit(&'a [u32]),
}

/// The limits that a job was charged to: bit `i` stands for the limit at index `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Charge(pub u32);

impl Charge {
    /// The charge of a job of this cost to all of this many limits, at most 32.
    pub(crate) const fn all(limits: usize, cost: u32) -> Self {
        Self(if limits == 0 || cost == 0 { 0 } else { u32::MAX >> (32 - limits) })
    }

    /// Whether the limit at this index was charged.
    #[must_use]
    pub const fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }
}

/// The reason why a job got no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The slot that it would have had.
    pub slot: Micros,
    /// The index of the binding limit in the set: the first that allows nothing earlier. The limits of the job's lane
    /// come after the downstream's own.
    pub limit: usize,
}

/// A job that was passed over: it got no slot while later jobs may have got one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The index of the job in the call.
    pub job: usize,
    /// The reason why it got none.
    pub refusal: Refusal,
}

/// The slots planned for the jobs of a call, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The slot of each job that got one.
    pub slots: Vec<Micros>,
    /// The charge of each of those jobs.
    pub charges: Vec<Charge>,
    /// The jobs that were passed over, in their order.
    pub passed: Vec<Passed>,
    /// The reason why there are no more slots.
    pub refused: Option<Refusal>,
    /// The index of the job that was refused. In a call without lanes it is the first one after those granted and
    /// passed over.
    pub refused_job: usize,
    /// The number of jobs, from that one on, that wait for the end of a window; 0 if that one does not wait for it.
    pub awaiting_window: usize,
}

impl Plan {
    /// The limits that any of the jobs was charged to.
    #[must_use]
    pub fn taken(&self) -> Charge {
        Charge(self.charges.iter().fold(0, |all, charge| all | charge.0))
    }

    /// Turns the jobs that were passed over after the last slot into the refusal that ended the call.
    pub(super) fn end(&mut self) {
        self.refused_job = self.slots.len() + self.passed.len();
        if self.refused.is_some() {
            return;
        }
        while let Some(last) = self.passed.pop_if(|last| last.job + 1 == self.refused_job) {
            self.refused = Some(last.refusal);
            self.refused_job -= 1;
            self.awaiting_window += 1;
        }
    }
}

/// The verdict of a policer on one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The instant at which the job fits; it is allowed if that is now.
    pub earliest: Micros,
    /// The limits that the job was charged to; none if it is not allowed.
    pub charge: Charge,
    /// The binding limit among those asked, if the job is not allowed.
    pub limit: usize,
    /// The standing of each limit after the decision.
    pub standings: Vec<Standing>,
}
