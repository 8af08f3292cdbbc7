//! The costs of requests, alone and in a batch.

use std::slice;

use crate::limit::{Combine, Costs, LimitSet, Row};

/// The cost of one request: the same for every limit, or one per limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    Each(u32),
    /// The costs in the order in which the limits were given.
    PerLimit(Box<[u32]>),
}

/// The reason why the limits can never take a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InvalidCost {
    /// There is not one cost for each limit.
    Count { given: usize, limits: usize },
    /// The cost is more than the limit holds.
    TooLarge { cost: u32, highest: u32, limit: String },
}

impl Cost {
    fn costs(&self) -> Costs<'_> {
        match self {
            Self::Each(cost) => Costs::Each(slice::from_ref(cost)),
            Self::PerLimit(costs) => Costs::PerLimit(costs),
        }
    }

    /// Returns the cost for each limit of the set.
    pub(super) fn row(&self, limits: &LimitSet) -> Row {
        limits.rows(self.costs()).next().unwrap_or_default()
    }

    /// Whether the cost is zero for all limits.
    pub(super) fn is_nothing(&self) -> bool {
        let (Costs::Each(costs) | Costs::PerLimit(costs)) = self.costs();
        costs.iter().all(|&cost| cost == 0)
    }

    /// Checks that the limits can ever take the cost.
    pub(super) fn check(&self, limits: &LimitSet) -> Result<(), InvalidCost> {
        if let Self::PerLimit(costs) = self
            && costs.len() != limits.given()
        {
            return Err(InvalidCost::Count { given: costs.len(), limits: limits.given() });
        }
        if limits.unfit(self.costs()).is_none() {
            return Ok(());
        }
        let row = self.row(limits);
        let too_high = limits.iter().enumerate().filter(|(place, limit)| row[*place] > limit.max_cost());
        // If all limits must hold it, the error names the first that cannot; of alternatives, the one that holds the
        // most.
        let limit = match limits.combine() {
            Combine::All => too_high.min_by_key(|(place, _)| *place),
            Combine::Any | Combine::OneOf => too_high.max_by_key(|(_, limit)| limit.max_cost()),
        };
        // An unfit cost is too high for one of them.
        let Some((place, limit)) = limit else { return Ok(()) };
        let (cost, highest) = match self {
            Self::Each(cost) => (*cost, limit.max_cost() / limits.unit()[place]),
            Self::PerLimit(_) => (row[place], limit.max_cost()),
        };
        Err(InvalidCost::TooLarge { cost, highest, limit: limit.name().to_owned() })
    }
}

/// Returns the kind of a request: of requests that are made at once, those of the same kind would get the same slot.
///
/// A leaky bucket charges behind, so that its slot does not depend on the cost of the request.
pub(super) fn kind(limits: &LimitSet, cost: &Cost) -> Row {
    let mut row = cost.row(limits);
    for (limit, cost) in limits.iter().zip(&mut row) {
        if limit.is_behind() {
            *cost = (*cost).min(1);
        }
    }
    row
}

/// The costs of the requests of one call: one for each request, or one for each limit if any request has those.
#[derive(Debug)]
pub(super) struct BatchCosts {
    costs: Vec<u32>,
    per_limit: bool,
}

impl BatchCosts {
    pub(super) fn of<'a>(limits: &LimitSet, batch: impl Iterator<Item = &'a Cost>) -> Self {
        let (mut costs, mut per_limit) = (vec![], false);
        for (before, cost) in batch.enumerate() {
            match cost {
                Cost::Each(cost) if per_limit => {
                    costs.resize(costs.len() + limits.given(), *cost);
                }
                Cost::Each(cost) => costs.push(*cost),
                Cost::PerLimit(own) => {
                    if !per_limit {
                        per_limit = true;
                        let each =
                            std::mem::replace(&mut costs, Vec::with_capacity((before + 1) * own.len()));
                        costs.extend(each.iter().flat_map(|&cost| vec![cost; limits.given()]));
                    }
                    costs.extend_from_slice(own);
                }
            }
        }
        Self { costs, per_limit }
    }

    pub(super) fn costs(&self) -> Costs<'_> {
        if self.per_limit { Costs::PerLimit(&self.costs) } else { Costs::Each(&self.costs) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    fn gcra(name: &str, burst: u32) -> Limit {
        Limit::gcra(name, "10/s".parse().unwrap(), burst).unwrap()
    }

    fn per_limit(costs: &[u32]) -> Cost {
        Cost::PerLimit(costs.into())
    }

    #[test]
    fn a_cost_that_never_fits_is_reported_with_the_limit_and_what_would_fit() {
        let all = LimitSet::new(vec![gcra("a", 8), gcra("b", 5), gcra("b", 5)]).unwrap();
        let too_large = |cost, highest, limit: &str| {
            Err(InvalidCost::TooLarge { cost, highest, limit: limit.to_owned() })
        };
        assert_eq!(Cost::Each(2).check(&all), Ok(()));
        assert_eq!(Cost::Each(3).check(&all), too_large(3, 2, "b"), "it is there twice");
        assert_eq!(Cost::Each(9).check(&all), too_large(9, 8, "a"));
        assert_eq!(per_limit(&[8, 1, 4]).check(&all), Ok(()));
        assert_eq!(per_limit(&[8, 2, 4]).check(&all), too_large(6, 5, "b"));
        assert_eq!(per_limit(&[1, 1]).check(&all), Err(InvalidCost::Count { given: 2, limits: 3 }));
        let any = LimitSet::any(vec![gcra("a", 5), gcra("b", 8)]).unwrap();
        assert_eq!(Cost::Each(6).check(&any), Ok(()));
        assert_eq!(Cost::Each(9).check(&any), too_large(9, 8, "b"));
        assert_eq!(per_limit(&[6, 0]).check(&any), too_large(6, 5, "a"), "b is not asked");
    }

    #[test]
    fn a_batch_is_the_requests_one_by_one() {
        let set = LimitSet::new(vec![gcra("a", 8), gcra("b", 5), gcra("a", 8)]).unwrap();
        let mixed = [Cost::Each(2), per_limit(&[1, 0, 3]), Cost::Each(0), per_limit(&[0, 0, 0])];
        let batch = BatchCosts::of(&set, mixed.iter());
        assert_eq!(batch.costs(), Costs::PerLimit(&[2, 2, 2, 1, 0, 3, 0, 0, 0, 0, 0, 0]));
        let rows: Vec<Row> = set.rows(batch.costs()).collect();
        assert_eq!(rows, mixed.each_ref().map(|cost| cost.row(&set)));
        let plain = [Cost::Each(2), Cost::Each(7)];
        assert_eq!(BatchCosts::of(&set, plain.iter()).costs(), Costs::Each(&[2, 7]));
    }
}
