//! What the observer knows from the store: the summaries of other replicas, the records of downstreams, and what is left
//! of their limits.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::dispatch::{Binding, Snapshot};
use paced::limit::{LimitSet, rate_text};
use paced::store::RecordState;
use paced::terms::{Terms, algorithm};
use tokio::time::Instant;

use super::fleet;
use super::model::{Downstream, Limit, Override, Pause, Penalty};
use super::peek::Left;
use super::summary::Summary;

/// After this time a record is read again although nothing tells that it has changed, and a count is asked for again.
pub(super) const RECORD_AGE: Duration = Duration::from_secs(60);
pub(super) const COUNT_AGE: Duration = Duration::from_secs(10);

/// How long a record still counts that is to be read again, which a slow store makes wait.
const GRACE: Duration = Duration::from_secs(15);

/// How long the summaries of other replicas count while the store does not answer.
const OTHERS_AGE: Duration = Duration::from_secs(10);

/// What is known from the store.
#[derive(Default)]
pub(super) struct Known {
    /// The summaries of the other replicas.
    pub(super) others: Vec<Summary>,
    /// When these were read.
    others_at: Option<Instant>,
    /// Why the store does not answer, if it does not.
    pub(super) store_error: Option<String>,
    /// The hash of the limits in this replica's file, for each downstream.
    pub(super) files: BTreeMap<String, u64>,
    pub(super) records: BTreeMap<String, Record>,
    pub(super) left: BTreeMap<String, (Instant, Vec<Left>)>,
    pub(super) parked: BTreeMap<String, (Instant, i64)>,
}

/// A record as it was read.
pub(super) struct Record {
    pub(super) at: Instant,
    state: RecordState,
    /// The contents of its terms; `None` if it has none that can be read.
    in_force: Option<InForce>,
}

/// The terms of a record in the words of the state. They are made once, and not each second, as they take longer than all
/// the rest of a downstream.
struct InForce {
    limits: Vec<Limit>,
    overrides: Vec<Override>,
    fingerprint: u64,
}

impl Record {
    /// A record that was read just now.
    pub(super) fn new(state: RecordState) -> Self {
        Self { at: Instant::now(), in_force: in_force(&state), state }
    }
}

impl Known {
    /// Records whether the store took the summary of this replica. What the other replicas told ends like theirs there.
    pub(super) fn on_told(&mut self, error: Option<String>) {
        self.store_error = error;
        if self.others_at.is_none_or(|at| at.elapsed() > OTHERS_AGE) {
            self.others.clear();
        }
    }

    /// Records what the other replicas tell.
    pub(super) fn on_others(&mut self, others: Vec<Summary>) {
        (self.others, self.others_at) = (others, Some(Instant::now()));
    }

    /// Has a record be read again.
    pub(super) fn forget_record(&mut self, downstream: &str) {
        self.records.remove(downstream);
        self.left.remove(downstream);
    }

    /// Adds what is known of this downstream from the store.
    pub(super) fn describe(&self, downstream: &mut Downstream, replicas: &[&Summary]) {
        let name = downstream.name.clone();
        downstream.parked = self.parked.get(&name).map(|(_, jobs)| *jobs);
        let Some(record) = self.records.get(&name) else { return };
        describe_pauses(downstream, &record.state);
        let Some(in_force) = &record.in_force else { return };
        downstream.limits.clone_from(&in_force.limits);
        downstream.overrides.clone_from(&in_force.overrides);
        let left = self.left.get(&name).map(|(_, left)| left.as_slice()).unwrap_or_default();
        for limit in &mut downstream.limits {
            if let Some(left) = left.iter().find(|left| left.name == limit.name) {
                (limit.remaining, limit.of) = (Some(left.remaining), Some(left.of));
                limit.whole_at = Some(left.whole_at);
            }
        }
        downstream.strays = fleet::strays(&name, in_force.fingerprint, replicas);
    }

    /// The records that were read lately, as of now on the store's clock.
    pub(super) fn fresh_records(&self) -> BTreeMap<String, RecordState> {
        let fresh = self.records.iter().filter(|(_, record)| record.at.elapsed() <= RECORD_AGE + GRACE);
        let now = |(name, record): (&String, &Record)| {
            let now = record.state.now.plus(record.at.elapsed());
            (name.clone(), RecordState { now, ..record.state.clone() })
        };
        fresh.map(now).collect()
    }

    /// Whether the record is to be read.
    pub(super) fn wants_record(&self, name: &str, snapshot: &Snapshot) -> bool {
        let Some(Record { at, state: record, .. }) = self.records.get(name) else { return true };
        let is_paused = matches!(snapshot.binding, Binding::Paused { .. } | Binding::Throttled { .. });
        let shows_pause = record.status.paused_until() > record.now;
        at.elapsed() > RECORD_AGE
            || record.status.generation != snapshot.generation
            || is_paused != shows_pause
    }
}

fn describe_pauses(downstream: &mut Downstream, record: &RecordState) {
    let (status, now) = (&record.status, record.now);
    downstream.pause = (status.pause.until > now).then(|| {
        let note: Option<serde_json::Value> =
            record.note.as_deref().and_then(|note| serde_json::from_str(note).ok());
        let part = |name: &str| Some(note.as_ref()?.get(name)?.as_str()?.to_owned());
        Pause {
            until: (!status.is_stopped()).then_some(status.pause.until.0 / 1000),
            reason: part("reason"),
            by: part("by"),
            at: i64::try_from(status.pause.version).ok().map(|version| version / 1000),
        }
    });
    downstream.penalty = (status.penalty > now).then_some(Penalty { until: status.penalty.0 / 1000 });
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
    let set = terms.overrides().iter().filter(|(_, set)| set.until.is_none_or(|until| record.now < until));
    let overrides = set
        .map(|(limit, set)| Override {
            limit: limit.clone(),
            rate: set.rate.to_string(),
            until: set.until.map(|until| until.0 / 1000),
            reason: set.reason.clone(),
            by: set.by.clone(),
            set_at: set.set_at.0 / 1000,
        })
        .collect();
    Some(InForce { limits: all, overrides, fingerprint: terms.fingerprint() })
}
