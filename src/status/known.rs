//! The observer's memory of the store: the summaries of other replicas, the records of downstreams, and what is left
//! of their limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paced::api::state::{Binding, Downstream, Limit, Orphan, Silent};
use paced::api::values::SetValue;
use paced::api::{Millis, Override, Pause};
use paced::dispatch::{self, Snapshot};
use paced::failpoint;
use paced::limit::{LimitSet, rate_text};
use paced::store::RecordState;
use paced::terms::{Terms, algorithm};
use paced::time::wall_now;
use tokio::time::Instant;

use super::parked::Counted;
use super::peek::{Left, Remaining};
use super::summary::Summary;
use super::words::RESUMING;
use super::{fleet, record};

/// After this time a record is read again while there are readers, although nothing reports a change: a downstream
/// without jobs does not notice a pause that another replica carried out. The exchange bounds the number of reads in
/// a round.
const RECORD_AGE: Duration = Duration::from_secs(5);
/// After this time a count is read again.
pub(super) const COUNT_AGE: Duration = Duration::from_secs(10);

/// How long a record counts while it waits to be read again, because there are many records or the store does not
/// answer.
pub(super) const MAX_RECORD_AGE: Duration = Duration::from_secs(75);

/// How long the summaries of other replicas count while the store does not answer.
const OTHERS_AGE: Duration = Duration::from_secs(10);

/// What is known from the store.
#[derive(Default)]
pub(super) struct Known {
    /// The other replicas.
    pub(super) others: Others,
    /// Why the store does not answer, if it does not.
    pub(super) store_error: Option<String>,
    /// The hash of the limits in this replica's file, for each downstream.
    pub(super) files: Arc<BTreeMap<String, u64>>,
    pub(super) records: BTreeMap<String, Record>,
    pub(super) left: Remaining,
    pub(super) parked: BTreeMap<String, Counted>,
    /// The downstreams that nobody serves any more.
    pub(super) orphans: Vec<Orphan>,
    /// The pause of each downstream after an order that this replica carried out at that instant; it counts until the
    /// record is read.
    ordered: BTreeMap<String, (Instant, Option<Pause>)>,
    /// How often this replica changed the record of each downstream. An answer to a call that began before a change
    /// is not kept.
    changes: BTreeMap<String, u64>,
}

/// What is known of the other replicas.
#[derive(Default)]
pub(super) struct Others {
    /// The reports of those that run.
    pub(super) summaries: Vec<Summary>,
    /// When these were read.
    read_at: Option<Instant>,
    /// Those that have stopped reporting themselves; while the store does not answer, all of them.
    pub(super) silent: Vec<Silent>,
}

/// A record as it was read.
pub(super) struct Record {
    /// When the store was asked for it.
    pub(super) asked_at: Instant,
    /// When the store answered.
    at: Instant,
    state: RecordState,
    /// The contents of its terms; `None` if it has none that can be read.
    in_force: Option<InForce>,
}

/// The terms of a record in the form of the state. They are made once, and not each second, because they take longer
/// than all else of a downstream.
struct InForce {
    limits: Vec<Limit>,
    overrides: Vec<Override>,
    values: Vec<SetValue>,
    fingerprint: u64,
}

impl Record {
    /// A record for which the store was asked at `asked_at`, and which it has just returned.
    pub(super) fn new(asked_at: Instant, state: RecordState) -> Self {
        Self { asked_at, at: Instant::now(), in_force: in_force(&state), state }
    }

    /// Whether the record is recent enough for readers since that instant, if the downstream has this generation, and
    /// is paused or not.
    fn is_current(&self, since: Option<Instant>, generation: u64, is_paused: bool) -> bool {
        let shows_pause = self.state.status.paused_until() > self.state.now;
        self.was_asked_for_since(since)
            && self.asked_at.elapsed() <= failpoint::interval(RECORD_AGE)
            && self.state.status.generation == generation
            && (shows_pause == is_paused || (is_paused && self.has_paused_values(self.state.now.0 / 1000)))
    }

    /// Whether operators paused values of lanes.
    fn has_paused_values(&self, at: Millis) -> bool {
        let values = self.in_force.as_ref().map(|in_force| &in_force.values);
        values
            .into_iter()
            .flatten()
            .any(|set| set.weight.is_none() && set.until.is_none_or(|until| until > at))
    }

    fn was_asked_for_since(&self, since: Option<Instant>) -> bool {
        since.is_none_or(|since| self.asked_at >= since)
    }
}

impl Known {
    /// Drops the reports of the other replicas if they were not read for as long as the store keeps them. Then `all` of them are silent.
    pub(super) fn drop_old_others(&mut self, all: impl FnOnce() -> Vec<Silent>) {
        if self.others.read_at.is_none_or(|at| at.elapsed() > OTHERS_AGE) {
            self.others.summaries.clear();
            self.others.silent = all();
        }
    }

    /// Records the reports of the other replicas that run, and which have ceased to report.
    pub(super) fn on_others(&mut self, summaries: Vec<Summary>, silent: Vec<Silent>) {
        self.others = Others { summaries, read_at: Some(Instant::now()), silent };
    }

    /// How often this replica has changed the record of a downstream. A call to the store passes this number on with
    /// its answer.
    pub(super) fn changes(&self, downstream: &str) -> u64 {
        self.changes.get(downstream).copied().unwrap_or_default()
    }

    /// Keeps a record, unless this replica has changed it since the store was asked for it.
    pub(super) fn on_record(&mut self, downstream: String, changes: u64, record: Record) {
        if self.changes(&downstream) == changes {
            self.ordered.remove(&downstream);
            self.records.insert(downstream, record);
        }
    }

    /// Keeps what is left of the limits, unless this replica has changed the record since the store was asked for it.
    pub(super) fn on_left(&mut self, downstream: String, changes: u64, left: Vec<Left>) {
        if self.changes(&downstream) == changes {
            self.left.keep(downstream, left);
        }
    }

    /// Makes the exchange read a record again, since this replica has changed it. Until then the state shows `pause`,
    /// if it is known.
    pub(super) fn forget_record(&mut self, downstream: &str, pause: Option<Option<Pause>>) {
        match pause {
            Some(pause) => self.ordered.insert(downstream.to_owned(), (Instant::now(), pause)),
            None => self.ordered.remove(downstream),
        };
        let changes = self.changes(downstream).wrapping_add(1);
        self.changes.insert(downstream.to_owned(), changes);
        self.records.remove(downstream);
        self.left.forget(downstream);
    }

    /// Adds to this downstream what the store said about it, as the state at this time shows it.
    pub(super) fn describe(&self, downstream: &mut Downstream, replicas: &[&Summary], at: Millis) {
        let name = downstream.name.clone();
        // A store that does not answer may have lost what it counted.
        let is_fresh = |at: Instant| self.store_error.is_none() || at.elapsed() <= COUNT_AGE;
        let parked = self.parked.get(&name).filter(|counted| is_fresh(counted.at));
        downstream.queues.parked = parked.map(|counted| counted.jobs);
        downstream.queues.parked_by = parked.map(|counted| counted.by_reason(at)).unwrap_or_default();
        let lasts = |pause: &Pause| pause.until.is_none_or(|until| until > at);
        // Without readers the record was not read since then, and other replicas may have carried out other orders.
        let ordered = self.ordered.get(&name).filter(|(given, _)| given.elapsed() <= MAX_RECORD_AGE);
        if let Some((_, pause)) = ordered.filter(|(_, pause)| pause.as_ref().is_none_or(lasts)) {
            downstream.terms.pause.clone_from(pause);
            // The order is newer than the reports of the replicas, also if their clocks are ahead.
            let now = (wall_now().0 / 1000).max(downstream.binding.since + CLOCK_ERROR + 1);
            follow_pause(&mut downstream.binding, (pause.as_ref(), false), now);
        }
        let Some(record) = self.records.get(&name) else { return };
        let pause = record::pause(&record.state);
        // A pause that is over was perhaps followed by another one, which is not read yet.
        let is_over = pause.as_ref().is_some_and(|pause| !lasts(pause));
        downstream.terms.pause = pause.filter(lasts);
        downstream.terms.penalty = record::penalty(&record.state);
        if !is_over && record.asked_at.elapsed() <= MAX_RECORD_AGE {
            let pauses = (downstream.terms.pause.as_ref(), record.has_paused_values(at));
            follow_pause(&mut downstream.binding, pauses, record.state.now.0 / 1000);
        }
        let Some(in_force) = &record.in_force else { return };
        downstream.terms.limits.clone_from(&in_force.limits);
        downstream.terms.overrides.clone_from(&in_force.overrides);
        downstream.terms.values.clone_from(&in_force.values);
        let left = self.left.of(&name).filter(|(at, _)| is_fresh(*at) && at.elapsed() <= MAX_RECORD_AGE);
        let left = left.map(|(_, left)| left).unwrap_or_default();
        for limit in &mut downstream.terms.limits {
            if let Some(left) = left.iter().find(|left| left.name == limit.name) {
                (limit.remaining, limit.of) = (Some(left.remaining), Some(left.of));
                limit.whole_at = Some(left.whole_at);
            }
        }
        downstream.parts.strays = fleet::strays(&name, in_force.fingerprint, replicas);
    }

    /// The records that the store was asked for lately, and not before `since`, as of now on the store's clock.
    pub(super) fn fresh_records(&self, since: Option<Instant>) -> BTreeMap<String, RecordState> {
        let is_fresh = |record: &Record| {
            record.was_asked_for_since(since) && record.asked_at.elapsed() <= MAX_RECORD_AGE
        };
        let fresh = self.records.iter().filter(|(_, record)| is_fresh(record));
        let now = |(name, record): (&String, &Record)| {
            let now = record.state.now.plus(record.at.elapsed());
            (name.clone(), RecordState { now, ..record.state.clone() })
        };
        fresh.map(now).collect()
    }

    /// Whether the record must be read for readers since that instant.
    pub(super) fn wants_record(&self, name: &str, since: Option<Instant>, snapshot: &Snapshot) -> bool {
        let is_paused = matches!(
            snapshot.binding,
            dispatch::Binding::Paused { .. } | dispatch::Binding::Throttled { .. }
        );
        let record = self.records.get(name);
        record.is_none_or(|record| !record.is_current(since, snapshot.terms.generation, is_paused))
    }
}

/// How far the clocks of a replica and of the store may differ.
const CLOCK_ERROR: Millis = 100;

/// Adapts the reason that binds to a record that was read at `now`: the pause of the downstream, and whether values
/// of lanes are paused. After a change here the record is read at once, but replicas report their jobs seconds later.
/// Until then the reason would still be `paused` after `resume`, and the limit after `pause`.
fn follow_pause(binding: &mut Binding, (pause, are_lanes_paused): (Option<&Pause>, bool), now: Millis) {
    match (pause, binding.reason.as_str()) {
        // A reason that began after that is newer than the record: somebody may have ended the pause.
        (Some(pause), "starting" | "limit" | "concurrency" | "not-due" | "throttled")
            if now + CLOCK_ERROR >= binding.since =>
        {
            let (since, until) = (pause.at.unwrap_or(now), pause.until);
            *binding = Binding { reason: "paused".to_owned(), since, until, ..Binding::default() };
        }
        // A pause that has begun since may not be in the record yet. That of lanes is no pause of the downstream.
        (None, "paused") if now > binding.since + CLOCK_ERROR && !are_lanes_paused => {
            *binding = Binding { reason: RESUMING.to_owned(), since: now, ..Binding::default() };
        }
        _ => {}
    }
}

fn in_force(record: &RecordState) -> Option<InForce> {
    let terms = Terms::parse(record.terms.as_deref()?).ok()?;
    let (limits, plans) = terms.effective(record.now);
    let of = |in_force: &LimitSet, file: &LimitSet, skip: usize| -> Vec<Limit> {
        let pairs = in_force.iter().zip(file.iter()).skip(skip);
        let limit = |(in_force, file): (&paced::limit::Limit, &paced::limit::Limit)| Limit {
            name: in_force.name().to_owned(),
            algorithm: algorithm(in_force).to_owned(),
            rate: rate_text(in_force),
            margin_us: in_force.margin_micros(),
            file_rate: (in_force != file).then(|| rate_text(file)),
            ..Limit::default()
        };
        pairs.map(limit).collect()
    };
    let mut all = of(&limits, terms.limits(), 0);
    for (plan, in_force) in &plans {
        // The downstream's limits come first in each plan's set.
        let file = terms.plans().get(plan);
        all.extend(file.map(|file| of(in_force, file, limits.len())).unwrap_or_default());
    }
    let overrides = record::overrides(&terms, record.now).collect();
    let values = record::first_values(&terms, record.now);
    Some(InForce { limits: all, overrides, values, fingerprint: terms.fingerprint() })
}

#[cfg(test)]
mod tests;
