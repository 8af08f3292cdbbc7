//! How much is left of a downstream's limits, which the store is asked without taking anything.

use std::sync::Arc;

use paced::StoreError;
use paced::api::Millis;
use paced::dispatch::Snapshot;
use paced::limit::{Costs, Limit, LimitSet};
use paced::metric::{self, Metric};
use paced::store::{Check, Scope, Store};

/// What is left of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) name: String,
    pub(super) remaining: u64,
    pub(super) of: u64,
    /// When it is whole again, if nothing more is taken.
    pub(super) whole_at: Millis,
}

/// The limits of which something may be left: a limit that only spaces jobs out has nothing to use up.
pub(super) fn countable(snapshot: &Snapshot) -> Option<LimitSet> {
    let mut limits: Vec<Limit> = Vec::new();
    for limit in snapshot.limits().flat_map(|(_, set)| set.iter()) {
        if limit.burst() > 1 && limits.iter().all(|known| known.name() != limit.name()) {
            limits.push(limit.clone());
        }
    }
    // More limits than fit into one call are left out.
    limits.truncate(paced::limit::MAX_LIMITS);
    LimitSet::new(limits).ok()
}

/// Asks the store what is left of these limits. Cancel safe: nothing is taken.
pub(super) async fn peek(
    store: &Arc<dyn Store>,
    downstream: &str,
    limits: &LimitSet,
) -> Result<Vec<Left>, StoreError> {
    let scope = Scope { downstream, key: "" };
    let checked = store.check(Check { scope, limits, costs: Costs::Each(&[0]), generation: 0 }).await?;
    let Some(verdict) = checked.verdicts.first() else { return Ok(Vec::new()) };
    let left = |(limit, standing): (&Limit, &paced::limit::Standing)| Left {
        name: limit.name().to_owned(),
        remaining: standing.remaining,
        of: standing.limit,
        whole_at: checked.stamp.now.plus(standing.reset_after).0 / 1000,
    };
    let all: Vec<Left> = limits.iter().zip(&verdict.standings).map(left).collect();
    for Left { name, remaining, of, .. } in &all {
        set(metric::LIMIT_REMAINING, downstream, name, count(*remaining));
        set(metric::LIMIT_CAPACITY, downstream, name, count(*of));
    }
    for (limit, standing) in limits.iter().zip(&verdict.standings) {
        set(metric::LIMIT_RESET, downstream, limit.name(), standing.reset_after.as_secs_f64());
    }
    Ok(all)
}

#[expect(clippy::cast_precision_loss, reason = "a count, for people")]
fn count(units: u64) -> f64 {
    units as f64
}

fn set(metric: Metric, downstream: &str, limit: &str, value: f64) {
    let (downstream, limit) = (downstream.to_owned(), limit.to_owned());
    metrics::gauge!(metric.name, "downstream" => downstream, "limit" => limit).set(value);
}
