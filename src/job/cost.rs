//! The costs of jobs under their limits.

use std::fmt;
use std::sync::Arc;

/// The units that a job takes of its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The units of limits without costs of their own.
    pub units: u32,
    /// The limits with costs of their own, by name, and the units of each.
    pub own: Vec<(Arc<str>, u32)>,
}

/// The cost of jobs under one limit that does not count by `paced-cost`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostRule {
    /// The name of the limit, with that of its plan.
    pub limit: Arc<str>,
    /// The plan whose limit it is, as an index into [`Rules::plans`](super::Rules::plans); `None` for a limit of the downstream.
    pub plan: Option<usize>,
    /// The source of the cost.
    pub source: CostSource,
    /// The cost of a job whose header has none.
    pub default: Option<u32>,
    /// The highest cost of one job.
    pub max_cost: MaxCost,
}

/// The source of the cost under a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// It is the same for each job.
    Fixed(u32),
    /// The header of this name.
    Header(String),
}

impl CostRule {
    /// The name without that of the plan.
    pub(super) fn own_name(&self) -> &str {
        self.limit.rsplit('.').next().unwrap_or(&self.limit)
    }

    /// Whether jobs of this plan, or of none, keep the limit.
    pub(super) fn applies_to(&self, plan: Option<usize>) -> bool {
        self.plan.is_none() || self.plan == plan
    }
}

/// The highest cost of one job, and the bound that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxCost {
    /// The units; at least 1.
    pub units: u32,
    /// The bound that sets it.
    pub bound: CostBound,
    /// The configured bound, even if the limits hold less.
    pub given: Option<u32>,
}

/// The bounds of the cost of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostBound {
    /// The configuration.
    Given,
    /// The units that the limit of this name releases in a minute, or at once.
    Minute(String),
    /// The units that the limit of this name can hold at all.
    Held(String),
    /// None: no limit counts by this cost.
    Uncounted,
}

impl fmt::Display for MaxCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.units;
        match &self.bound {
            CostBound::Given => write!(f, "{units}"),
            CostBound::Minute(limit) => write!(f, "{units}, what the limit `{limit}` releases in a minute"),
            CostBound::Held(limit) => write!(f, "{units}, what the limit `{limit}` holds"),
            CostBound::Uncounted => write!(f, "{units}, since no limit counts by it"),
        }
    }
}
