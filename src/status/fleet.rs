//! Merges the summaries of all replicas about a downstream. It has no I/O.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use paced::api::Millis;
use paced::api::state::{Binding, Counts, Downstream, Failing, Failure, Health, KindCount, Lane, Share};
use paced::dispatch::MAX_LANES;

use super::summary::{Own, Summary};

/// How many kinds of failures are shown, and how many of those of one outage.
const MAX_FAILURES: usize = 5;
const MAX_KINDS: usize = 6;

/// The longest time between two summaries, and the most releases in it, that the history uses.
const MAX_SPAN: Millis = 86_400_000;
const MAX_RELEASED: u64 = 1 << 32;

/// How far beyond its last summary the releases of a replica are estimated, if that summary is late.
const MAX_AHEAD: Millis = 1_000;

/// Writes the sums and extremes of the replicas' summaries about this downstream into `into`.
pub(super) fn merge(into: &mut Downstream, replicas: &[&Summary]) {
    let name = into.name.clone();
    let all: Vec<(&Summary, &Own)> =
        replicas.iter().filter_map(|summary| Some((*summary, summary.downstreams.get(&name)?))).collect();
    for (summary, own) in &all {
        add(&mut into.counts, own.counts);
        let (sum, own_releases) = (&mut into.releases, &own.releases);
        sum.released = sum.released.saturating_add(own_releases.released);
        sum.delivered = sum.delivered.saturating_add(own_releases.delivered);
        sum.failed = sum.failed.saturating_add(own_releases.failed);
        sum.rate += own_releases.rate;
        sum.next_slot = earliest(sum.next_slot, own_releases.next_slot);
        sum.oldest = earliest(sum.oldest, own_releases.oldest);
        into.parts.replicas.push(Share {
            id: summary.replica.id.clone(),
            waiting: own.counts.waiting,
            held: own.counts.held,
            sending: own.counts.sending,
            rate: own.releases.rate,
            reason: own.binding.reason.clone(),
        });
    }
    let releases = || all.iter().map(|(_, own)| &own.releases);
    into.releases.lateness = releases().filter_map(|own| own.lateness).max_by_key(|late| late.p99_us);
    into.releases.latency = releases().filter_map(|own| own.latency).max_by_key(|took| took.p99_us);
    into.binding = binding(&all);
    into.health = Health { failing: failing(&all), failures: failures(&all) };
    into.parts.lanes = lanes(&all);
}

fn add(sum: &mut Counts, more: Counts) {
    sum.waiting = sum.waiting.saturating_add(more.waiting);
    sum.delayed = sum.delayed.saturating_add(more.delayed);
    sum.retrying = sum.retrying.saturating_add(more.retrying);
    sum.held = sum.held.saturating_add(more.held);
    sum.sending = sum.sending.saturating_add(more.sending);
    sum.settling = sum.settling.saturating_add(more.settling);
}

fn earliest(one: Option<Millis>, other: Option<Millis>) -> Option<Millis> {
    one.into_iter().chain(other).min()
}

/// The releases of one replica to one downstream, for the history.
///
/// Other replicas report themselves every two seconds. If jobs counted at the instant of their report, a step of five
/// seconds would have the jobs of four or of six seconds, and an even pace would seem to exceed its limit. So the
/// jobs that were released between two summaries are spread evenly over the time between them.
#[derive(Debug)]
pub(super) struct Progress {
    /// The last summary: when it was made, and how many were released by then.
    reported_at: Millis,
    reported: u64,
    /// The releases that are in the history.
    counted: u64,
}

impl Progress {
    /// Jobs that were released before the replica was known are not in the history.
    pub(super) const fn new(reported_at: Millis, reported: u64) -> Self {
        Self { reported_at, reported, counted: reported }
    }

    /// The releases up to `until` that are not in the history yet, by the latest summary and the one before it.
    pub(super) fn step(&mut self, until: Millis, reported_at: Millis, reported: u64) -> u64 {
        let millis = |span: Millis| u64::try_from(span).unwrap_or_default();
        if reported < self.reported {
            // The dispatcher was replaced, and the new one counts from 0.
            (self.reported, self.counted) = (0, 0);
        }
        // Others may report anything.
        let span = reported_at.saturating_sub(self.reported_at).min(MAX_SPAN);
        let by = match span {
            ..=0 => reported,
            _ => {
                let part = until.saturating_sub(self.reported_at).clamp(0, span + MAX_AHEAD);
                let released = reported.saturating_sub(self.reported).min(MAX_RELEASED);
                self.reported.saturating_add(released * millis(part) / millis(span))
            }
        };
        (self.reported_at, self.reported) = (reported_at, reported);
        let more = by.saturating_sub(self.counted);
        self.counted = self.counted.saturating_add(more);
        more
    }
}

/// The reason at the replica that holds most jobs back. If several hold back the same number, one that is not idle
/// counts.
fn binding(all: &[(&Summary, &Own)]) -> Binding {
    let most = all.iter().max_by_key(|(_, own)| (own.held_up(), own.binding.reason != "idle"));
    let Some((_, Own { binding, .. })) = most else {
        return Binding { reason: "starting".to_owned(), ..Binding::default() };
    };
    // The reason has lasted since the first replica had it.
    let bindings = all.iter().map(|(_, own)| &own.binding);
    let same = bindings.filter(|other| other.reason == binding.reason && other.limit == binding.limit);
    Binding {
        reason: binding.reason.clone(),
        limit: binding.limit.clone(),
        since: same.map(|same| same.since).min().unwrap_or(binding.since),
        until: binding.until,
        text: String::new(),
    }
}

/// The downstream fails if it fails for any replica.
fn failing(all: &[(&Summary, &Own)]) -> Option<Failing> {
    let mut failing = all.iter().filter_map(|(_, own)| own.failing.as_ref());
    let mut first = failing.next()?.clone();
    for other in failing {
        first.attempts = first.attempts.saturating_add(other.attempts);
        first.since = first.since.min(other.since);
        other.kinds.iter().for_each(|more| add_kind(&mut first.kinds, more));
    }
    first.kinds.sort_by_key(|known| Reverse(known.count));
    first.kinds.truncate(MAX_KINDS);
    Some(first)
}

fn add_kind(kinds: &mut Vec<KindCount>, more: &KindCount) {
    match kinds.iter_mut().find(|known| known.kind == more.kind) {
        Some(known) => known.count = known.count.saturating_add(more.count),
        None => kinds.push(more.clone()),
    }
}

/// The last kinds of failures, newest first.
fn failures(all: &[(&Summary, &Own)]) -> Vec<Failure> {
    let mut kinds: Vec<Failure> = Vec::new();
    for failure in all.iter().flat_map(|(_, own)| &own.failures) {
        match kinds.iter_mut().find(|known| known.kind == failure.kind) {
            Some(known) => {
                known.count = known.count.saturating_add(failure.count);
                if failure.at > known.at {
                    let count = known.count;
                    *known = Failure { count, ..failure.clone() };
                }
            }
            None => kinds.push(failure.clone()),
        }
    }
    kinds.sort_by_key(|failure| Reverse(failure.at));
    kinds.truncate(MAX_FAILURES);
    kinds
}

/// The lanes with the most jobs, the busiest first. The reason of a lane is that of the replica with most of its
/// jobs.
fn lanes(all: &[(&Summary, &Own)]) -> Vec<Lane> {
    // With the most jobs that one replica has.
    let mut by_name: BTreeMap<&str, (u64, Lane)> = BTreeMap::new();
    for more in all.iter().flat_map(|(_, own)| &own.lanes) {
        let (most, sum) = by_name.entry(&more.name).or_default();
        let Lane { waiting, oldest, .. } = *sum;
        if more.waiting > *most {
            (*most, *sum) = (more.waiting, more.clone());
        }
        sum.waiting = waiting.saturating_add(more.waiting);
        sum.oldest = earliest(oldest, more.oldest);
    }
    let mut lanes: Vec<Lane> = by_name.into_values().map(|(_, lane)| lane).collect();
    lanes.retain(|lane| lane.waiting > 0);
    lanes.sort_by_key(|lane| Reverse(lane.waiting));
    lanes.truncate(MAX_LANES);
    lanes
}

/// The replicas whose file has other limits for this downstream than those in force.
pub(super) fn strays(name: &str, in_force: u64, replicas: &[&Summary]) -> Vec<String> {
    let differs = |summary: &&&Summary| {
        summary.downstreams.get(name).is_some_and(|own| own.file != 0 && own.file != in_force)
    };
    replicas.iter().filter(differs).map(|summary| summary.replica.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::summary::{Bound, Identity, OwnReleases};
    use super::*;

    fn summary(id: &str, own: Own) -> Summary {
        let identity = Identity { id: id.to_owned(), ..Identity::default() };
        let mut summary = Summary::new(identity, 0);
        summary.downstreams.insert("billing".to_owned(), own);
        summary
    }

    fn own(reason: &str, waiting: u64, since: Millis) -> Own {
        let counts = Counts { waiting, sending: 1, ..Counts::default() };
        let binding = Bound { reason: reason.to_owned(), since, ..Bound::default() };
        let releases = OwnReleases { released: 10, rate: 2.5, ..OwnReleases::default() };
        Own { counts, binding, releases, ..Own::default() }
    }

    fn merged(all: &[Summary]) -> Downstream {
        let mut downstream = Downstream { name: "billing".to_owned(), ..Downstream::default() };
        merge(&mut downstream, &all.iter().collect::<Vec<_>>());
        downstream
    }

    #[test]
    fn counts_are_added_and_the_busiest_replica_says_what_binds() {
        let all = [
            summary("a", own("limit", 5, 70)),
            summary("b", own("idle", 0, 10)),
            summary("c", own("limit", 4, 60)),
        ];
        let merged = merged(&all);
        assert_eq!((merged.counts.waiting, merged.counts.sending, merged.releases.released), (9, 3, 30));
        assert!((merged.releases.rate - 7.5).abs() < 1e-9);
        assert_eq!((merged.binding.reason.as_str(), merged.binding.since), ("limit", 60));
        let ids: Vec<&str> = merged.parts.replicas.iter().map(|share| share.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
    }

    #[test]
    fn an_even_pace_is_even_however_old_the_summaries_are() {
        // 25 a second, reported at these instants; each step ends five seconds before it is counted.
        let mut progress = Progress::new(4_900, 122);
        let reported = [(6_900, 172), (11_900, 297), (18_900, 472), (23_000, 575), (26_100, 652)];
        let steps = (2..).map(|step| step * 5_000).zip(reported);
        let steps: Vec<u64> = steps.map(|(now, (at, jobs))| progress.step(now - 5_000, at, jobs)).collect();
        assert_eq!(steps, [2, 125, 125, 125, 125]);
    }

    #[test]
    fn a_replica_that_stops_or_has_another_clock_adds_nothing() {
        let mut progress = Progress::new(1_000, 10);
        assert_eq!(progress.step(3_000, 1_000, 10), 0, "the same summary again");
        assert_eq!(progress.step(3_000, 5_000, 50), 20);
        assert_eq!(progress.step(90_000, 6_000, 60), 40, "a second ahead at most");
        assert_eq!(progress.step(90_000, 7_000, 60), 0, "what was counted too early is not counted again");
        assert_eq!(progress.step(0, 90_000, 70), 0);
    }

    #[test]
    fn a_dispatcher_that_is_replaced_counts_from_0() {
        let mut progress = Progress::new(1_000, 1_000);
        assert_eq!(progress.step(3_000, 3_000, 1_100), 100);
        assert_eq!(progress.step(5_000, 5_000, 20), 20);
        assert_eq!(progress.step(7_000, 7_000, 50), 30);
    }

    #[test]
    fn nobody_knows_it_yet() {
        assert_eq!(merged(&[]).binding.reason, "starting");
        let other = summary("a", own("paused", 0, 0));
        assert_eq!(merged(&[summary("b", own("idle", 0, 0)), other]).binding.reason, "paused");
    }

    #[test]
    fn failures_of_one_kind_are_added_and_the_newest_is_first() {
        let failure = |kind: &str, at, count| Failure {
            at,
            kind: kind.to_owned(),
            detail: format!("{kind} at {at}"),
            count,
            response: Some(format!("{at}")),
        };
        let failing = |since, attempts, others| {
            let count = |kind: &str, count| KindCount { kind: kind.to_owned(), count };
            let kinds = vec![count("500", attempts - others), count("timeout a:1", others)];
            Some(Failing { since, kind: "500".to_owned(), detail: String::new(), attempts, kinds })
        };
        let one =
            Own { failures: vec![failure("500", 5, 3)], failing: failing(4, 3, 1), ..own("limit", 1, 0) };
        let other = Own {
            failures: vec![failure("500", 7, 2), failure("404", 6, 1)],
            failing: failing(3, 9, 8),
            ..own("limit", 1, 0)
        };
        let merged = merged(&[summary("a", one), summary("b", other)]);
        let seen: Vec<(&str, u64)> =
            merged.health.failures.iter().map(|failure| (failure.detail.as_str(), failure.count)).collect();
        assert_eq!(seen, [("500 at 7", 5), ("404 at 6", 1)]);
        assert_eq!(merged.health.failures[0].response.as_deref(), Some("7"));
        let failing = merged.health.failing.unwrap();
        assert_eq!((failing.since, failing.attempts), (3, 12));
        assert_eq!(failing.kinds(), "timeout a:1 ×9, 500 ×3");
    }

    #[test]
    fn jobs_of_a_lane_are_added_and_the_busiest_is_first() {
        let lane = |name: &str, waiting, oldest, reason: &str| Lane {
            name: name.to_owned(),
            waiting,
            oldest: Some(oldest),
            reason: reason.to_owned(),
            ..Lane::default()
        };
        let with = |lanes| Own { lanes, ..own("limit", 9, 0) };
        let one =
            with(vec![lane("t=a", 4, 10, "turn"), lane("t=b", 3, 5, "turn"), lane("t=a", 1, 9, "limit")]);
        let other = with(vec![lane("t=b", 5, 7, "limit"), lane("t=c", u64::MAX, 1, "turn")]);
        let merged = merged(&[summary("a", one), summary("b", other)]).parts.lanes;
        let c = lane("t=c", u64::MAX, 1, "turn");
        assert_eq!(merged, [c, lane("t=b", 8, 5, "limit"), lane("t=a", 5, 9, "turn")]);
        let many = (0..30).map(|number| lane(&format!("t={number}"), number, 0, "turn")).collect();
        let merged = self::merged(&[summary("a", with(many))]).parts.lanes;
        let waiting: Vec<u64> = merged.iter().map(|lane| lane.waiting).collect();
        assert_eq!(waiting, (20..30).rev().collect::<Vec<_>>());
    }

    #[test]
    fn a_replica_with_another_file_is_named() {
        let of = |id: &str, file| summary(id, Own { file, ..own("idle", 0, 0) });
        let all = [of("a", 1), of("b", 2), of("c", 0)];
        let all: Vec<&Summary> = all.iter().collect();
        assert_eq!(strays("billing", 1, &all), ["b"], "of one that says nothing nothing is known");
        assert!(strays("other", 1, &all).is_empty());
    }
}
