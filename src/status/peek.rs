//! How much is left of a downstream's limits, which the store is asked without taking anything.

use std::sync::Arc;

use paced::dispatch::Snapshot;
use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Check, Scope, Store};
use paced::{StoreError, metric};

use super::model::Millis;

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
        whole_at: checked.now.plus(standing.reset_after).0 / 1000,
    };
    let all: Vec<Left> = limits.iter().zip(&verdict.standings).map(left).collect();
    for Left { name, remaining, .. } in &all {
        #[expect(clippy::cast_precision_loss, reason = "a count, for people")]
        metrics::gauge!(metric::LIMIT_REMAINING.name, "downstream" => downstream.to_owned(), "limit" => name.clone())
            .set(*remaining as f64);
    }
    Ok(all)
}
