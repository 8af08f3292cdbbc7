//! Samples what the dispatchers of this process publish, once a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paced::api::Millis;
use paced::api::state::{Counts, Failing, Failure, KindCount, Lane};
use paced::dispatch::{Binding, BusyLane, Outage, Snapshot, View};
use paced::lock::lock;
use paced::metric;
use paced::sink::MAX_EXCERPT;
use paced::text;
use paced::time::{Micros, wall_now};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::binding_log::{self, BindingLog};
use super::dispatchers::Handle;
use super::fleet::Progress;
use super::rates::{Rates, Step};
use super::shared::Shared;
use super::summary::{Bound, Own, OwnReleases, Summary};
use super::words;

/// How often the dispatchers are sampled.
const SAMPLE: Duration = Duration::from_secs(1);

/// The samples in a step of the history.
const STEP_SAMPLES: u64 = 5;
pub(super) const STEP: Millis = 5_000;

/// The most kinds of failures that are reported to others, and the most characters of each, so that a summary of hundreds of
/// failing downstreams is not too large.
const FAILURES: usize = 3;
const DETAIL: usize = 120;

/// How far apart the same instant by two readings of the wall clock may lie before the clock counts as set.
const CLOCK_SET: Micros = Micros(500_000);

/// Samples the dispatchers.
pub(super) struct Sampler {
    shared: Arc<Shared>,
    /// An instant, and the wall clock at it, so that the same instant is the same time in each state.
    anchor: (Instant, Micros),
    downstreams: BTreeMap<String, Sampled>,
    /// The part of each replica's releases, and of its attempts that failed, that is in the history, for each downstream.
    progress: BTreeMap<(String, String), [Progress; 2]>,
    samples: u64,
}

struct Sampled {
    view: View,
    rates: Rates,
    log: BindingLog,
}

impl Sampler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let anchor = (Instant::now(), wall_now());
        let mut sampler =
            Self { shared, anchor, downstreams: BTreeMap::new(), progress: BTreeMap::new(), samples: 0 };
        sampler.sync(anchor.0);
        sampler
    }

    /// Adopts the present list of dispatchers.
    fn sync(&mut self, now: Instant) {
        let dispatchers = self.shared.parts.dispatchers.all();
        self.downstreams.retain(|name, sampled| {
            dispatchers.get(name).is_some_and(|dispatcher| dispatcher.view.is_same(&sampled.view))
        });
        for (name, Handle { view, .. }) in &*dispatchers {
            if !self.downstreams.contains_key(name) {
                self.downstreams.insert(name.clone(), Sampled::new(name, view, now));
            }
        }
    }

    pub(super) async fn run(mut self) {
        let mut ticks = interval(SAMPLE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sample(Instant::now());
            if self.shared.is_watched() {
                self.shared.publish();
            }
        }
    }

    fn sample(&mut self, now: Instant) {
        self.sync(now);
        let wall = wall_now();
        if (self.time(now).0 - wall.0).abs() > CLOCK_SET.0 {
            self.anchor = (now, wall);
        }
        let attached = self.shared.parts.broker.status.downstreams();
        let attached: BTreeMap<String, bool> = attached.into_iter().collect();
        let mut summary = Summary::new(self.shared.parts.identity.clone(), self.millis(now));
        summary.amqp = self.shared.parts.broker.status.lost().is_empty();
        summary.store = lock(&self.shared.known).store_error.is_none();
        let anchor = self.anchor;
        let files = lock(&self.shared.known).files.clone();
        for (name, sampled) in &mut self.downstreams {
            // A dispatcher that is to end consumes nothing any more, and that is no fault of the broker.
            let is_ending = self.shared.parts.dispatchers.is_ending(name);
            let is_attached = is_ending || attached.get(name).copied().unwrap_or(true);
            let mut own = sampled.sample(name, now, is_attached, anchor);
            own.file = files.get(name).copied().unwrap_or_default();
            summary.downstreams.insert(name.clone(), own);
        }
        *lock(&self.shared.own) = summary;
        self.samples += 1;
        if self.samples.is_multiple_of(STEP_SAMPLES) {
            self.step(now);
        }
    }

    /// Ends a step of the history.
    fn step(&mut self, now: Instant) {
        let (own, known) = (lock(&self.shared.own), lock(&self.shared.known));
        let mut history = lock(&self.shared.history);
        // By then each replica has reported it.
        let until = self.millis(now) - STEP;
        let mut steps: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for summary in known.others.summaries.iter().chain([&*own]) {
            for (name, own) in &summary.downstreams {
                let counts = [own.releases.released, own.releases.failed];
                let progress = self.progress.entry((summary.replica.id.clone(), name.clone()));
                let progress =
                    progress.or_insert_with(|| counts.map(|count| Progress::new(summary.at, count)));
                let sums = steps.entry(name).or_default();
                for ((sum, progress), count) in sums.iter_mut().zip(progress).zip(counts) {
                    *sum += progress.step(until, summary.at, count);
                }
            }
        }
        for (name, [released, failed]) in steps {
            if self.downstreams.contains_key(name) {
                history.entry(name.to_owned()).or_default().push(Step { until, released, failed });
            }
        }
        let ids: Vec<&str> =
            known.others.summaries.iter().chain([&*own]).map(|summary| summary.replica.id.as_str()).collect();
        let downstreams = &self.downstreams;
        self.progress.retain(|(id, name), _| ids.contains(&id.as_str()) && downstreams.contains_key(name));
        history.retain(|name, _| downstreams.contains_key(name));
        *lock(&self.shared.stepped_at) = until;
    }

    fn time(&self, at: Instant) -> Micros {
        time(self.anchor, at)
    }

    fn millis(&self, at: Instant) -> Millis {
        self.time(at).0 / 1000
    }
}

/// The wall clock at an instant.
pub(super) fn time((instant, wall): (Instant, Micros), at: Instant) -> Micros {
    wall.plus(at.saturating_duration_since(instant)).minus(instant.saturating_duration_since(at))
}

impl Sampled {
    fn new(name: &str, view: &View, now: Instant) -> Self {
        let snapshot = view.snapshot();
        let limits = snapshot.limits().flat_map(|(_, set)| set.iter()).map(paced::limit::Limit::name);
        let log = BindingLog::new(name, limits, now);
        Self { view: view.clone(), rates: Rates::default(), log }
    }

    fn sample(&mut self, name: &str, now: Instant, is_attached: bool, anchor: (Instant, Micros)) -> Own {
        let (snapshot, totals) = (self.view.snapshot(), self.view.totals());
        self.rates.sample(now, totals.released(), || [totals.lateness(), totals.latency()]);
        let reason = binding_log::reason(&snapshot, is_attached);
        let limit = snapshot.binding.limit();
        let millis = |at: Instant| time(anchor, at).0 / 1000;
        let age = snapshot.backlog.oldest.map(|oldest| time(anchor, now).since(oldest)).unwrap_or_default();
        metrics::gauge!(metric::OLDEST_JOB.name, "downstream" => name.to_owned()).set(age.as_secs_f64());
        let until = snapshot.binding.until().map(millis);
        if self.log.sample(reason, limit, now) {
            let until =
                snapshot.binding.until().filter(|until| *until > now).map(|at| words::instant(millis(at)));
            if reason == "idle" {
                tracing::info!(downstream = name, reason, "nothing waits any more");
            } else {
                let text = "the same reason has held jobs back for 10 s";
                tracing::info!(downstream = name, reason, limit, until, "{text}");
            }
        }
        Own {
            counts: counts(&snapshot, totals.settling()),
            binding: Bound {
                reason: reason.to_owned(),
                limit: limit.map(str::to_owned),
                since: millis(snapshot.since),
                until: until.filter(|_| reason != "broker"),
            },
            releases: OwnReleases {
                released: totals.released(),
                delivered: totals.delivered(),
                failed: totals.failed(),
                rate: self.rates.rate(snapshot.pace()),
                next_slot: snapshot.next_slot.map(millis),
                oldest: snapshot.backlog.oldest.map(|at| at.0 / 1000),
                lateness: self.rates.lateness(&totals.lateness()),
                latency: self.rates.latency(&totals.latency()),
            },
            failing: snapshot.outage.as_ref().map(|outage| failing(outage, millis(outage.since))),
            failures: snapshot
                .failures
                .iter()
                .take(FAILURES)
                .map(|failure| of_failure(failure, millis(failure.at)))
                .collect(),
            lanes: snapshot.backlog.lanes.iter().map(|lane| of_lane(lane, millis)).collect(),
            store_error: snapshot
                .store_error
                .clone()
                .filter(|_| matches!(snapshot.binding, Binding::Store { .. })),
            file: 0,
        }
    }
}

fn counts(snapshot: &Snapshot, settling: usize) -> Counts {
    let counts = snapshot.counts;
    let count = |jobs: usize| u64::try_from(jobs).unwrap_or(u64::MAX);
    Counts {
        waiting: count(counts.waiting),
        delayed: count(counts.delayed),
        retrying: count(counts.retrying),
        held: count(counts.held),
        sending: count(counts.sending),
        settling: count(settling + counts.parking),
    }
}

fn of_lane(lane: &BusyLane, millis: impl Fn(Instant) -> Millis) -> Lane {
    let BusyLane { name, waiting, oldest, binding, .. } = lane;
    let binding = binding.as_ref();
    Lane {
        name: name.clone(),
        waiting: u64::try_from(*waiting).unwrap_or(u64::MAX),
        oldest: oldest.map(|at| at.0 / 1000),
        reason: binding.map_or("turn", Binding::reason).to_owned(),
        limit: binding.and_then(Binding::limit).map(str::to_owned),
        until: binding.and_then(Binding::until).map(millis),
    }
}

fn of_failure(failure: &paced::dispatch::Failure, at: Millis) -> Failure {
    let paced::dispatch::Failure { kind, detail, count, response, .. } = failure;
    let response = response.as_ref().map(|body| text::excerpt(body, MAX_EXCERPT));
    Failure { at, kind: kind.clone(), detail: shortened(detail), count: *count, response }
}

fn failing(outage: &Outage, since: Millis) -> Failing {
    let Outage { kind, detail, attempts, kinds, .. } = outage;
    let kinds = kinds.iter().map(|known| KindCount { kind: known.kind.clone(), count: known.count });
    Failing {
        since,
        kind: kind.clone(),
        detail: shortened(detail),
        attempts: *attempts,
        kinds: kinds.collect(),
    }
}

fn shortened(detail: &str) -> String {
    detail.chars().take(DETAIL).collect()
}
