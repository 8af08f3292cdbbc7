//! What one job waits for: its place in this replica, together with what binds its downstream.

use std::time::Duration;

use paced::api::Millis;
use paced::api::explain::{Bound, Explanation, Place};
use paced::api::state::Downstream;
use paced::dispatch::{Binding, Explained, JobWait, Snapshot, Turn};
use paced::time::wall_now;
use tokio::time::Instant;

use super::sampler::time;

/// What a job of this downstream waits for.
pub(super) fn explanation(
    replica: &str,
    downstream: &Downstream,
    snapshot: &Snapshot,
    explained: Explained,
) -> Explanation {
    let anchor = (Instant::now(), wall_now());
    let millis = |at: Instant| -> Millis { time(anchor, at).0 / 1000 };
    let Explained { id, is_retry, wait, .. } = explained;
    let (state, goes_at) = match &wait {
        JobWait::Slot(place) => ("waiting", goes(downstream, snapshot, place)),
        JobWait::Window(ends) => ("waiting", Some(*ends)),
        JobWait::Release(slot) => ("held", Some(*slot)),
        JobWait::Time(due) if is_retry => ("retrying", Some(*due)),
        JobWait::Time(due) => ("delayed", Some(*due)),
        _ => ("requested", None),
    };
    let is_waiting = state == "waiting";
    let place = match wait {
        JobWait::Slot(place) => Some(place),
        _ => None,
    };
    let binding = is_waiting.then(|| binding(downstream, snapshot, place.as_ref()));
    Explanation {
        name: downstream.name.clone(),
        id,
        replica: replica.to_owned(),
        state: state.to_owned(),
        place: place.map(|Turn { lane, waiting, ahead, before, .. }| {
            let count = |jobs: usize| u64::try_from(jobs).unwrap_or(u64::MAX);
            Place { lane, waiting: count(waiting), ahead: count(ahead), before }
        }),
        binding,
        goes_at: goes_at.map(millis),
    }
}

/// When a job with this place goes, as far as is known: nobody knows when an operator ends a pause.
fn goes(downstream: &Downstream, snapshot: &Snapshot, place: &Turn) -> Option<Instant> {
    if let Some(Binding::Paused { .. }) = place.binding {
        return None;
    }
    shared(downstream, snapshot, place).map(|shared| shared.max(place.own))
}

/// When the downstream has a slot for a job with this place: by its limits, or by the present pace where `concurrency` binds.
/// Replicas that have jobs get slots in turn.
fn shared(downstream: &Downstream, snapshot: &Snapshot, place: &Turn) -> Option<Instant> {
    let busy = downstream.parts.replicas.iter().filter(|share| share.waiting + share.held > 0);
    let busy = u64::try_from(busy.count().max(1)).unwrap_or(u64::MAX);
    let jobs = place.before.saturating_mul(busy);
    match downstream.binding.reason.as_str() {
        "limit" | "idle" => Some(place.next + snapshot.delay(jobs)),
        "concurrency" if downstream.releases.rate > 0.0 => {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let span = jobs as f64 / downstream.releases.rate;
            Some(place.next + Duration::try_from_secs_f64(span).ok()?)
        }
        _ => None,
    }
}

/// What lets a job go last: a limit or a pause of its lane, or what binds the downstream.
fn binding(downstream: &Downstream, snapshot: &Snapshot, place: Option<&Turn>) -> Bound {
    let of_lane = place.and_then(|place| {
        let shared = shared(downstream, snapshot, place)?;
        place.binding.as_ref().filter(|_| place.own > shared)
    });
    match of_lane {
        Some(binding) => Bound {
            of_lane: true,
            reason: binding.reason().to_owned(),
            limit: binding.limit().map(str::to_owned),
            text: match binding {
                Binding::Limit { name, .. } => format!("the limit {name} of its lane"),
                Binding::Paused { .. } => "an operator paused it".to_owned(),
                _ => "the API throttles its lane".to_owned(),
            },
        },
        None => Bound {
            of_lane: false,
            reason: downstream.binding.reason.clone(),
            limit: downstream.binding.limit.clone(),
            text: downstream.binding.text.clone(),
        },
    }
}
