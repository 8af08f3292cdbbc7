//! How much is left of a downstream's limits, which the store is asked without taking anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use paced::StoreError;
use paced::api::Millis;
use paced::dispatch::Snapshot;
use paced::limit::{Costs, Limit, LimitSet, Standing};
use paced::metric::{self, Metric};
use paced::store::{Check, Scope, Store};
use tokio::time::Instant;

/// The gauges of a window or a quota.
const GAUGES: [Metric; 3] = [metric::LIMIT_REMAINING, metric::LIMIT_CAPACITY, metric::LIMIT_RESET];

/// What is left of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) name: String,
    /// Whether it is a window or a quota, which can be used up. A burst is whole again soon, and has no gauges.
    pub(super) is_window: bool,
    pub(super) remaining: u64,
    pub(super) of: u64,
    /// How long it takes until it is whole again, if nothing more is taken.
    pub(super) reset_after: Duration,
    /// When that is.
    pub(super) whole_at: Millis,
}

/// What is left of all limits, and the gauges that show it.
#[derive(Default)]
pub(super) struct Remaining {
    /// By downstream, with when it was read.
    left: BTreeMap<String, (Instant, Vec<Left>)>,
    /// The windows and quotas that have gauges, by downstream, with when they were set.
    gauges: BTreeMap<String, (Instant, BTreeSet<String>)>,
}

impl Remaining {
    /// What is left of this downstream's limits, and when that was read.
    pub(super) fn of(&self, downstream: &str) -> Option<(Instant, &[Left])> {
        self.left.get(downstream).map(|(at, left)| (*at, left.as_slice()))
    }

    /// Whether a gauge shows a limit of this downstream.
    pub(super) fn is_shown(&self, downstream: &str) -> bool {
        self.gauges.contains_key(downstream)
    }

    /// Keeps what was read just now, and shows it. A limit that is not among them does not exist any more.
    pub(super) fn keep(&mut self, downstream: String, left: Vec<Left>) {
        let shown: BTreeSet<String> =
            left.iter().filter(|left| left.is_window).map(|left| left.name.clone()).collect();
        let before = self.gauges.remove(&downstream).map(|(_, names)| names).unwrap_or_default();
        before.difference(&shown).for_each(|limit| clear(&downstream, limit));
        left.iter().filter(|left| left.is_window).for_each(|left| show(&downstream, left));
        if !shown.is_empty() {
            self.gauges.insert(downstream.clone(), (Instant::now(), shown));
        }
        self.left.insert(downstream, (Instant::now(), left));
    }

    /// Forgets what was read, since it has changed.
    pub(super) fn forget(&mut self, downstream: &str) {
        self.left.remove(downstream);
    }

    /// Shows no more what was read longer ago than this, since the store does not answer.
    pub(super) fn clear_older(&mut self, than: Duration) {
        self.gauges.retain(|downstream, (at, limits)| {
            let is_old = at.elapsed() > than;
            if is_old {
                limits.iter().for_each(|limit| clear(downstream, limit));
            }
            !is_old
        });
    }
}

/// The limits that can be partly used up. A limit that only spaces jobs out cannot.
pub(super) fn countable(snapshot: &Snapshot) -> Option<LimitSet> {
    let mut limits: Vec<Limit> = Vec::new();
    for limit in snapshot.limits().flat_map(|(_, set)| set.iter()) {
        let is_counted = limit.burst() > 1 || !limit.is_even();
        if is_counted && limits.iter().all(|known| known.name() != limit.name()) {
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
    let left = |(limit, standing): (&Limit, &Standing)| Left {
        name: limit.name().to_owned(),
        is_window: !limit.is_even(),
        remaining: standing.remaining,
        of: standing.limit,
        reset_after: standing.reset_after,
        whole_at: checked.stamp.now.plus(standing.reset_after).0 / 1000,
    };
    Ok(limits.iter().zip(&verdict.standings).map(left).collect())
}

#[expect(clippy::cast_precision_loss, reason = "a count, for people")]
fn show(downstream: &str, Left { name, remaining, of, reset_after, .. }: &Left) {
    let values = [*remaining as f64, *of as f64, reset_after.as_secs_f64()];
    GAUGES.into_iter().zip(values).for_each(|(metric, value)| set(metric, downstream, name, value));
}

/// A series cannot be taken back. One that is not a number fires no alert.
fn clear(downstream: &str, limit: &str) {
    GAUGES.into_iter().for_each(|metric| set(metric, downstream, limit, f64::NAN));
}

fn set(metric: Metric, downstream: &str, limit: &str, value: f64) {
    let (downstream, limit) = (downstream.to_owned(), limit.to_owned());
    metrics::gauge!(metric.name, "downstream" => downstream, "limit" => limit).set(value);
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::time::advance;

    use super::*;

    fn left(name: &str, is_window: bool, remaining: u64) -> Left {
        let reset_after = Duration::from_secs(60);
        Left { name: name.to_owned(), is_window, remaining, of: 100, reset_after, whole_at: 60_000 }
    }

    #[tokio::test(start_paused = true)]
    async fn windows_have_gauges_until_they_are_removed_or_the_store_is_silent_for_long() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let value = |limit: &str| {
            let series = format!("paced_limit_remaining{{downstream=\"billing\",limit=\"{limit}\"}} ");
            handle.render().lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned))
        };
        let _installed = metrics::set_default_local_recorder(&recorder);
        let mut all = Remaining::default();
        let keep = |all: &mut Remaining, left| all.keep("billing".to_owned(), left);
        keep(&mut all, vec![left("day", true, 7), left("hour", true, 70), left("burst", false, 0)]);
        assert_eq!([value("day"), value("hour")], [Some("7".to_owned()), Some("70".to_owned())]);
        assert_eq!(value("burst"), None, "a pace with a burst is used up all the time");
        assert_eq!(all.of("billing").unwrap().1.len(), 3);
        keep(&mut all, vec![left("hour", true, 69)]);
        assert_eq!([value("day"), value("hour")], [Some("NaN".to_owned()), Some("69".to_owned())]);
        // A change that this replica makes is read again; what is removed by it is known then.
        all.forget("billing");
        assert!(all.of("billing").is_none() && all.is_shown("billing"));
        keep(&mut all, Vec::new());
        assert_eq!(value("hour").as_deref(), Some("NaN"));
        assert!(!all.is_shown("billing"));
        keep(&mut all, vec![left("day", true, 5)]);
        advance(Duration::from_secs(30)).await;
        all.clear_older(Duration::from_secs(30));
        assert_eq!(value("day").as_deref(), Some("5"));
        advance(Duration::from_secs(1)).await;
        all.clear_older(Duration::from_secs(30));
        assert_eq!(value("day").as_deref(), Some("NaN"), "nobody knows");
        keep(&mut all, vec![left("day", true, 4)]);
        assert_eq!(value("day").as_deref(), Some("4"));
    }
}
