//! Samples what the dispatchers of this process publish, once a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paced::api::Millis;
use paced::api::state::{Counts, Failing, Failure, KindCount, Lane};
use paced::dispatch::{Binding, BusyLane, Outage, Snapshot, Totals, View};
use paced::lock::lock;
use paced::metric;
use paced::sink::MAX_EXCERPT;
use paced::text;
use paced::time::{Micros, wall_now};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::binding_log::{self, BindingLog, Source};
use super::dispatchers::{Dispatchers, Handle};
use super::fleet::Progress;
use super::rates::{Rates, Step};
use super::shared::Shared;
use super::summary::{Bound, Own, OwnReleases};
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

/// A downstream at rest is sampled once in this number of samples, so that thousands of them cost little.
const RESTING_SAMPLES: u32 = 10;

/// How far apart the same instant by two readings of the wall clock may lie before the clock counts as set.
const CLOCK_SET: Micros = Micros(500_000);

/// Samples the dispatchers.
pub(super) struct Sampler {
    shared: Arc<Shared>,
    /// An instant, and the wall clock at it, so that the same instant is the same time in each state.
    anchor: (Instant, Micros),
    /// The dispatchers that `downstreams` are of.
    dispatchers: Arc<BTreeMap<String, Handle>>,
    /// The hashes of the limits in this replica's file, as they were at the last sample.
    files: Arc<BTreeMap<String, u64>>,
    downstreams: BTreeMap<String, Sampled>,
    /// The part of each replica's releases, and of its attempts that failed, that is in the history: by the replica and the
    /// downstream.
    progress: BTreeMap<String, BTreeMap<String, [Progress; 2]>>,
    samples: u64,
}

struct Sampled {
    view: View,
    rates: Rates,
    log: BindingLog,
    /// Its state at the last sample, if it was at rest then.
    resting: Option<Resting>,
}

/// The state of a downstream that has no jobs. As long as it is the same, so is its part of the summary.
struct Resting {
    snapshot: Arc<Snapshot>,
    released: u64,
    /// The number of samples left until it is sampled again in any case.
    samples_left: u32,
}

impl Sampler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let anchor = (Instant::now(), wall_now());
        let mut sampler = Self {
            shared,
            anchor,
            dispatchers: Arc::default(),
            files: Arc::default(),
            downstreams: BTreeMap::new(),
            progress: BTreeMap::new(),
            samples: 0,
        };
        sampler.sync(anchor.0);
        sampler
    }

    /// Adopts the present list of dispatchers. Returns whether it has changed.
    fn sync(&mut self, now: Instant) -> bool {
        let dispatchers = self.shared.parts.dispatchers.all();
        if Arc::ptr_eq(&dispatchers, &self.dispatchers) {
            return false;
        }
        self.downstreams.retain(|name, sampled| {
            dispatchers.get(name).is_some_and(|dispatcher| dispatcher.view.is_same(&sampled.view))
        });
        for (name, Handle { view, .. }) in &*dispatchers {
            if !self.downstreams.contains_key(name) {
                self.downstreams.insert(name.clone(), Sampled::new(name, view, now));
            }
        }
        self.dispatchers = dispatchers;
        true
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
        let are_others = self.sync(now);
        let wall = wall_now();
        let is_clock_set = (self.time(now).0 - wall.0).abs() > CLOCK_SET.0;
        if is_clock_set {
            self.anchor = (now, wall);
        }
        let files = Arc::clone(&lock(&self.shared.known).files);
        // Then the part of each downstream in the summary is made again.
        let is_anew = is_clock_set || !Arc::ptr_eq(&files, &self.files);
        self.files = files;
        let status = &self.shared.parts.broker.status;
        let (unattached, anchor) = (status.unattached(), self.anchor);
        let unconfirmed = u32::try_from(status.unconfirmed().len()).unwrap_or(u32::MAX);
        metrics::gauge!(metric::UNCONFIRMED_QUEUES.name).set(f64::from(unconfirmed));
        let (dispatchers, mut sampled) = (&self.shared.parts.dispatchers, Vec::new());
        for (name, downstream) in &mut self.downstreams {
            let source = source(dispatchers, name, unattached.contains(name));
            if is_anew || source != Source::Consumed || !downstream.rests(now) {
                let mut own = downstream.sample(name, now, source, anchor);
                own.file = self.files.get(name).copied().unwrap_or_default();
                sampled.push((name, own));
            }
        }
        let (at, amqp) = (time(anchor, now).0 / 1000, status.lost().is_empty());
        let store = lock(&self.shared.known).store_error.is_none();
        {
            let mut summary = lock(&self.shared.own);
            (summary.at, summary.amqp, summary.store) = (at, amqp, store);
            for (name, own) in sampled {
                summary.downstreams.insert(name.clone(), own);
            }
            if are_others {
                summary.downstreams.retain(|name, _| self.downstreams.contains_key(name));
            }
        }
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
            let of_replica = self.progress.entry(summary.replica.id.clone()).or_default();
            for (name, own) in &summary.downstreams {
                let counts = [own.releases.released, own.releases.failed];
                if !of_replica.contains_key(name) {
                    of_replica.insert(name.clone(), counts.map(|count| Progress::new(summary.at, count)));
                }
                let Some(progress) = of_replica.get_mut(name) else { continue };
                let sums = steps.entry(name).or_default();
                for ((sum, progress), count) in sums.iter_mut().zip(progress).zip(counts) {
                    *sum += progress.step(until, summary.at, count);
                }
            }
        }
        let downstreams = &self.downstreams;
        history.retain(|name, _| downstreams.contains_key(name));
        for (name, [released, failed]) in steps {
            let step = Step { until, released, failed };
            match history.get_mut(name) {
                Some(steps) => steps.push(step),
                None if downstreams.contains_key(name) => {
                    history.entry(name.to_owned()).or_default().push(step);
                }
                None => {}
            }
        }
        let ids: Vec<&str> =
            known.others.summaries.iter().chain([&*own]).map(|summary| summary.replica.id.as_str()).collect();
        self.progress.retain(|id, of_replica| {
            of_replica.retain(|name, _| downstreams.contains_key(name));
            ids.contains(&id.as_str())
        });
        *lock(&self.shared.stepped_at) = until;
    }

    fn time(&self, at: Instant) -> Micros {
        time(self.anchor, at)
    }

    fn millis(&self, at: Instant) -> Millis {
        self.time(at).0 / 1000
    }
}

/// Whether the queue of a downstream is consumed, or why not. A dispatcher that ends consumes nothing any more, and that is
/// no fault of the broker.
fn source(dispatchers: &Dispatchers, name: &str, is_unattached: bool) -> Source {
    match is_unattached {
        true if dispatchers.is_leaving(name) => Source::Consumed,
        true if dispatchers.is_ending(name) => Source::Restarting,
        true => Source::Missing,
        false => Source::Consumed,
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
        Self { view: view.clone(), rates: Rates::default(), log, resting: None }
    }

    /// Whether it is as it was at the last sample, when it was at rest and consumed: then its part of the summary stays as it is.
    fn rests(&mut self, now: Instant) -> bool {
        let Some(resting) = &mut self.resting else { return false };
        let totals = self.view.totals();
        let is_same = totals.released() == resting.released
            && totals.settling() == 0
            && Arc::ptr_eq(&self.view.snapshot(), &resting.snapshot);
        if !is_same || resting.samples_left == 0 {
            return false;
        }
        resting.samples_left -= 1;
        self.rates.sample(now, resting.released, || spans(totals));
        true
    }

    fn sample(&mut self, name: &str, now: Instant, source: Source, anchor: (Instant, Micros)) -> Own {
        let snapshot = self.view.snapshot();
        let samples_left = self.resting.take().map(|resting| resting.samples_left);
        if samples_left.is_some() {
            // What binds now did not bind before.
            self.log.count_until(now);
        }
        let own = self.own(&snapshot, name, now, source, anchor);
        if own.is_at_rest() && self.log.is_settled() {
            // The first time is random, and one that is sampled for another reason keeps its turn, so that all of them are not
            // sampled at once.
            let samples_left = match samples_left {
                Some(left) => left.checked_sub(1).unwrap_or(RESTING_SAMPLES - 1),
                None => fastrand::u32(..RESTING_SAMPLES),
            };
            self.resting = Some(Resting { snapshot, released: own.releases.released, samples_left });
        }
        own
    }

    /// Its part of the summary.
    fn own(
        &mut self,
        snapshot: &Snapshot,
        name: &str,
        now: Instant,
        source: Source,
        anchor: (Instant, Micros),
    ) -> Own {
        let totals = self.view.totals();
        let spans = spans(totals);
        self.rates.sample(now, totals.released(), || spans.clone());
        let reason = binding_log::reason(snapshot, source);
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
            counts: counts(snapshot, totals.settling()),
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
                lateness: self.rates.lateness(&spans[0]),
                latency: self.rates.latency(&spans[1]),
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

/// How many releases there were of each lateness, and answers of each latency; nothing if there were none.
fn spans(totals: &Totals) -> [Vec<u64>; 2] {
    if totals.released() == 0 { Default::default() } else { [totals.lateness(), totals.latency()] }
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
