//! What one job costs: the same for each limit, or for some limits costs of their own.

use super::{Costs, Limit, LimitSet, Row};

/// The most limits for which a job may have costs of their own.
pub(crate) const MOST_OWN: usize = 8;

/// What one job costs each limit, by the limits' names, so that it stays right when other limits come into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobCost {
    each: u32,
    /// The hash of a limit's name, and what the job costs it; 0 after the last one.
    own: [(u32, u32); MOST_OWN],
}

impl Default for JobCost {
    fn default() -> Self {
        Self::each(1)
    }
}

impl From<u32> for JobCost {
    fn from(cost: u32) -> Self {
        Self::each(cost)
    }
}

impl JobCost {
    /// A cost that is the same for each limit.
    #[must_use]
    pub const fn each(cost: u32) -> Self {
        Self { each: cost, own: [(0, 0); MOST_OWN] }
    }

    /// The same with another cost for the limit of this name; `None` where there are too many such limits.
    #[must_use]
    pub fn with(mut self, limit: &str, cost: u32) -> Option<Self> {
        let name = hash(limit);
        let place = self.own.iter_mut().find(|(known, _)| *known == name || *known == 0)?;
        *place = (name, cost);
        Some(self)
    }

    /// The cost for limits that have none of their own.
    #[must_use]
    pub const fn default_cost(&self) -> u32 {
        self.each
    }

    /// Whether it is the same for each limit.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.own[0].0 == 0
    }

    /// What the job costs a limit.
    #[must_use]
    pub fn of(&self, limit: &Limit) -> u32 {
        if self.is_plain() {
            return self.each;
        }
        let name = hash(limit.name());
        self.own.iter().find(|(known, _)| *known == name).map_or(self.each, |(_, cost)| *cost)
    }

    /// What the job costs each limit of a set.
    pub(crate) fn row(&self, limits: &LimitSet) -> Row {
        let mut row = Row::default();
        for (place, (limit, times)) in limits.iter().zip(limits.unit()).enumerate() {
            row[place] = self.of(limit).saturating_mul(times);
        }
        row
    }

    /// The first limit that can never hold what the job costs it, and that cost.
    #[cfg(any(test, feature = "dispatch"))]
    pub(crate) fn unfit<'l>(&self, limits: &'l LimitSet) -> Option<(&'l Limit, u32)> {
        let row = self.row(limits);
        let unfit = limits.iter().enumerate().find(|(place, limit)| row[*place] > limit.max_cost());
        unfit.map(|(place, limit)| (limit, row[place]))
    }

    /// The intervals of the slowest limit that the job takes, at least 1: for turns, never for slots.
    pub(crate) fn units(&self, limits: &LimitSet) -> u32 {
        if self.is_plain() {
            return self.each;
        }
        let slowest = limits.iter().map(|limit| limit.rate().interval()).max().unwrap_or_default().as_nanos();
        let units = |limit: &Limit| {
            let span = limit.rate().interval().as_nanos() * u128::from(self.of(limit));
            span.div_ceil(slowest.max(1))
        };
        let units = limits.iter().map(units).max().unwrap_or(1);
        u32::try_from(units).unwrap_or(u32::MAX).max(1)
    }

    /// The units of the next interval that the job is known to take: 1 where its costs differ.
    pub(crate) const fn known_units(&self) -> u32 {
        if self.is_plain() { self.each } else { 1 }
    }

    /// The same, and never more than each limit of a set can hold: of a share of the limits at most the whole is charged.
    pub(crate) fn at_most(mut self, limits: &LimitSet) -> Self {
        if self.is_plain() {
            self.each = self.each.min(limits.max_cost());
            return self;
        }
        for (limit, times) in limits.iter().zip(limits.unit()) {
            let most = limit.max_cost() / times.max(1);
            if self.of(limit) > most {
                self = self.with(limit.name(), most).unwrap_or(self);
            }
        }
        self
    }
}

/// The costs of the jobs of one call.
#[derive(Clone, Debug)]
pub(crate) struct CallCosts {
    flat: Vec<u32>,
    is_plain: bool,
}

impl CallCosts {
    pub(crate) fn of(costs: &[JobCost], limits: &LimitSet) -> Self {
        let is_plain = costs.iter().all(JobCost::is_plain);
        let flat = match is_plain {
            true => costs.iter().map(JobCost::default_cost).collect(),
            false => costs.iter().flat_map(|cost| limits.listed().map(|limit| cost.of(limit))).collect(),
        };
        Self { flat, is_plain }
    }

    pub(crate) fn costs(&self) -> Costs<'_> {
        if self.is_plain { Costs::Each(&self.flat) } else { Costs::PerLimit(&self.flat) }
    }
}

/// FNV-1a of a name, which is never 0.
pub(crate) fn hash(name: &str) -> u32 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> LimitSet {
        let pace = |name: &str, rate: &str| Limit::leaky_bucket(name, rate.parse().unwrap(), 1).unwrap();
        LimitSet::new(vec![pace("requests", "500/min"), pace("tokens", "30000/min")]).unwrap()
    }

    #[test]
    fn each_limit_is_charged_its_own_cost() {
        let limits = limits();
        let plain = JobCost::each(3);
        assert_eq!((&plain.row(&limits)[..3], plain.units(&limits)), (&[3, 3, 0][..], 3));
        let own = JobCost::each(1).with("tokens", 1500).unwrap();
        assert!(plain.is_plain() && !own.is_plain());
        assert_eq!(&own.row(&limits)[..3], [1, 1500, 0]);
        // 3 s are 25 intervals of 120 ms.
        assert_eq!((own.units(&limits), own.known_units()), (25, 1));
        let calls = CallCosts::of(&[plain, own], &limits);
        assert_eq!(calls.costs(), Costs::PerLimit(&[3, 3, 1, 1500]));
        assert_eq!(CallCosts::of(&[plain, plain], &limits).costs(), Costs::Each(&[3, 3]));
        assert_eq!(own.with("tokens", 7).unwrap().of(limits.get(1).unwrap()), 7, "given again");
    }

    #[test]
    fn a_limit_that_is_there_twice_is_charged_twice() {
        let one = Limit::leaky_bucket("a", "1/s".parse().unwrap(), 1).unwrap();
        let twice = LimitSet::new(vec![one.clone(), one]).unwrap();
        let own = JobCost::each(1).with("a", 2).unwrap();
        assert_eq!(own.row(&twice)[0], 4);
        assert_eq!(CallCosts::of(&[own], &twice).costs(), Costs::PerLimit(&[2, 2]));
    }

    #[test]
    fn there_are_a_few_costs_of_their_own() {
        let mut cost = JobCost::each(1);
        for number in 0..MOST_OWN {
            cost = cost.with(&format!("limit-{number}"), 2).unwrap();
        }
        assert_eq!(cost.with("one-more", 2), None);
        assert!(cost.with("limit-3", 9).is_some());
    }

    #[test]
    fn of_a_share_at_most_the_whole_is_charged() {
        let gcra = Limit::gcra("tokens", "10/s".parse().unwrap(), 100).unwrap();
        let limits = LimitSet::new(vec![gcra, limits().get(0).unwrap().clone()]).unwrap();
        let own = JobCost::each(1).with("tokens", 1500).unwrap().at_most(&limits);
        assert_eq!(&own.row(&limits)[..2], [100, 1]);
        assert_eq!(JobCost::each(500).at_most(&limits).default_cost(), 100);
        let unfit = |cost: JobCost| cost.unfit(&limits).map(|(limit, cost)| (limit.name().to_owned(), cost));
        assert_eq!(unfit(JobCost::each(100)), None);
        assert!(
            unfit(JobCost::each(1).with("tokens", u32::MAX).unwrap())
                .is_some_and(|(name, _)| name == "tokens")
        );
    }
}
