//! Estimates when a job goes, and what holds it back for longest: by its place in the replica that holds it, and by
//! the reason that binds the downstream.

use std::time::Duration;

use paced::api::Millis;
use paced::api::find::{Bound, Job, Turn};
use paced::api::state::Downstream;
use paced::dispatch::{Binding, Snapshot};

/// Estimates when a job of this downstream that waits for a slot at any replica goes, as far as is known, and what
/// holds it back for longest.
pub(crate) fn estimate(job: &mut Job, downstream: &Downstream, snapshot: &Snapshot) {
    if job.place != "waiting" {
        return;
    }
    // The replica has named the reason that binds in the job's lane.
    let of_lane = job.binding.take();
    if let Some(turn) = &job.turn {
        let by_others = shared(downstream, snapshot, turn, of_lane.as_ref());
        let is_last = by_others.is_some_and(|at| turn.own > at);
        job.binding = of_lane.filter(|bound| is_last || bound.reason == "paused");
        // Nobody knows when an operator ends a pause.
        let is_paused = job.binding.as_ref().is_some_and(|bound| bound.reason == "paused");
        job.at = by_others.filter(|_| !is_paused).map(|at| at.max(turn.own));
    }
    job.binding.get_or_insert_with(|| Bound {
        of_lane: false,
        reason: downstream.binding.reason.clone(),
        limit: downstream.binding.limit.clone(),
        text: downstream.binding.text.clone(),
    });
}

/// When the downstream has a slot for a job with this place: by its limits, or by the present pace where `concurrency` binds.
/// Replicas that have jobs get slots in turn.
fn shared(
    downstream: &Downstream,
    snapshot: &Snapshot,
    turn: &Turn,
    of_lane: Option<&Bound>,
) -> Option<Millis> {
    let busy = downstream.parts.replicas.iter().filter(|share| share.waiting + share.held > 0);
    let busy = u64::try_from(busy.count().max(1)).unwrap_or(u64::MAX);
    let jobs = turn.before.saturating_mul(busy);
    let span = match downstream.binding.reason.as_str() {
        "limit" | "idle" => snapshot.delay(jobs),
        "concurrency" if downstream.releases.rate > 0.0 => {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let span = jobs as f64 / downstream.releases.rate;
            Duration::try_from_secs_f64(span).ok()?
        }
        // Only jobs of lanes that are paused alone wait.
        "throttled" if downstream.terms.penalty.is_none() && of_lane.is_some() => Duration::ZERO,
        _ => return None,
    };
    Some(turn.next.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
}

/// The reason that binds a job in its lane.
pub(super) fn bound_of_lane(binding: &Binding) -> Bound {
    Bound {
        of_lane: true,
        reason: binding.reason().to_owned(),
        limit: binding.limit().map(str::to_owned),
        text: match binding {
            Binding::Limit { name, .. } => format!("the limit {name} of its lane"),
            Binding::Paused { .. } => "an operator paused its lane".to_owned(),
            _ => "the API throttles its lane".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use paced::api::Penalty;
    use paced::api::state::{self, Share};

    use super::super::dispatchers::tests::dispatcher;
    use super::*;

    const NOW: Millis = 1_764_000_000_000;

    fn downstream(reason: &str) -> Downstream {
        let text = format!("{reason} of all");
        let binding = state::Binding { reason: reason.to_owned(), text, ..state::Binding::default() };
        Downstream { name: "billing".to_owned(), binding, ..Downstream::default() }
    }

    /// A job with four others before it. Its lane lets it go `own` ms from now, by this binding.
    fn waiting(own: Millis, binding: Option<Binding>) -> Job {
        let turn = Turn { before: 4, next: NOW, own: NOW + own, ..Turn::default() };
        let binding = binding.as_ref().map(bound_of_lane);
        Job { place: "waiting".to_owned(), turn: Some(turn), binding, ..Job::default() }
    }

    fn limit() -> Option<Binding> {
        Some(Binding::Limit { name: "lane.l".to_owned(), next: None })
    }

    /// In how many milliseconds a job goes at 1/s, and what binds.
    fn shown(mut job: Job, downstream: &Downstream) -> (Option<Millis>, String) {
        estimate(&mut job, downstream, &dispatcher("billing").view().snapshot());
        (job.at.map(|at| at - NOW), job.binding.map(|bound| bound.text).unwrap_or_default())
    }

    #[test]
    fn the_limits_of_the_downstream_count_and_those_of_the_lane() {
        let by_limit = downstream("limit");
        assert_eq!(shown(waiting(0, None), &by_limit), (Some(4000), "limit of all".to_owned()));
        assert_eq!(shown(waiting(3999, limit()), &by_limit), (Some(4000), "limit of all".to_owned()));
        let of_lane = "the limit lane.l of its lane".to_owned();
        assert_eq!(shown(waiting(4001, limit()), &by_limit), (Some(4001), of_lane));
        let mut slow = downstream("concurrency");
        slow.releases.rate = 2.0;
        assert_eq!(shown(waiting(0, None), &slow), (Some(2000), "concurrency of all".to_owned()));
    }

    #[test]
    fn replicas_that_have_jobs_go_in_turn() {
        let mut of_three = downstream("limit");
        let share = |waiting, held| {
            let (id, reason) = (String::new(), String::new());
            Share { id, waiting, held, sending: 0, rate: 0.0, reason }
        };
        of_three.parts.replicas = vec![share(7, 0), share(0, 0), share(0, 1)];
        assert_eq!(shown(waiting(0, None), &of_three).0, Some(8000));
    }

    #[test]
    fn nobody_knows_when_a_pause_ends_but_one_of_the_lane_by_the_api() {
        for reason in ["paused", "store", "unreachable"] {
            assert_eq!(shown(waiting(0, None), &downstream(reason)), (None, format!("{reason} of all")));
        }
        let paused = Some(Binding::Paused { until: None });
        let of_lane = "an operator paused its lane".to_owned();
        assert_eq!(shown(waiting(1, paused), &downstream("limit")), (None, of_lane));
        let throttled = || waiting(9000, Some(Binding::Throttled { until: None }));
        let mut by_api = downstream("throttled");
        assert_eq!(shown(throttled(), &by_api), (Some(9000), "the API throttles its lane".to_owned()));
        by_api.terms.penalty = Some(Penalty { until: NOW });
        assert_eq!(shown(throttled(), &by_api), (None, "throttled of all".to_owned()));
    }

    #[test]
    fn a_job_without_a_place_has_what_binds_and_the_time_that_it_had() {
        let job = Job { place: "waiting".to_owned(), at: Some(NOW + 5), ..Job::default() };
        assert_eq!(shown(job.clone(), &downstream("limit")), (Some(5), "limit of all".to_owned()));
        let held = Job { place: "held".to_owned(), ..job };
        assert_eq!(shown(held, &downstream("limit")), (Some(5), String::new()));
    }
}
