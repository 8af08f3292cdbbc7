//! A downstream as the API shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use paced::api::{Downstream, File, Limit, Millis, Pause, Rates, SetOverride, Source, StoredTerms};
use paced::limit::{self, LimitSet};
use paced::store::RecordState;
use paced::terms::{Origin, Replica, Terms, algorithm, rate_text};
use paced::time::Micros;

use crate::status::record;

/// The year 2001. The version of a pause is about its instant; below this it is no instant.
const EARLIEST: Millis = 1_000_000_000_000;

/// How far versions may be ahead of the clock: each pause and resume has a later one, also within a microsecond.
const VERSIONS_AHEAD: Duration = Duration::from_secs(1);

/// An instant as epoch milliseconds, as in the headers of dead letters.
const fn millis(at: Micros) -> Millis {
    at.0 / 1000
}

/// A downstream; `own` are the terms of this replica's file.
pub(super) fn downstream(name: &str, record: &RecordState, terms: &Terms, own: &Terms) -> Downstream {
    let (pause, penalty) = (pause(record), record::penalty(record));
    Downstream {
        rates: rates(name, record, terms, own),
        revision: terms.revision(),
        paused: pause.is_some() || penalty.is_some(),
        pause,
        penalty,
        values: record::values(terms, record.now),
        ..Downstream::default()
    }
}

/// The terms in the store; `own` are those of this replica's file.
pub(super) fn stored_terms(name: &str, record: &RecordState, own: &Terms) -> StoredTerms {
    let text = record.terms.as_deref();
    let parsed = text.map(Terms::parse).transpose();
    let terms = parsed.as_ref().ok().and_then(Option::as_ref);
    StoredTerms {
        name: name.to_owned(),
        generation: record.status.generation,
        version: text.and_then(Terms::version_of),
        reads_version: Terms::VERSION,
        error: parsed.as_ref().err().map(ToString::to_string),
        revision: terms.and_then(Terms::revision),
        own_revision: own.revision(),
        is_own: terms.is_some_and(|terms| terms.has_limits_of(own)),
        text: text.map(str::to_owned),
    }
}

/// The pause of an operator. When it began is not known if the clock has stepped back since then.
fn pause(record: &RecordState) -> Option<Pause> {
    let known = EARLIEST..=millis(record.now.plus(VERSIONS_AHEAD));
    record::pause(record).map(|pause| Pause { at: pause.at.filter(|at| known.contains(at)), ..pause })
}

/// A downstream's limits, the rates set over them, and where they come from.
pub(super) fn rates(name: &str, record: &RecordState, terms: &Terms, own: &Terms) -> Rates {
    let now = record.now;
    let (limits, plans) = terms.effective(now);
    let of = |in_force: &LimitSet, file: &LimitSet, skip: usize| -> Vec<Limit> {
        let pairs = in_force.iter().zip(file.iter()).skip(skip);
        pairs.map(|(in_force, file)| limit(in_force, file, terms, now)).collect()
    };
    let plans: BTreeMap<String, Vec<Limit>> = plans
        .iter()
        .filter_map(|(plan, in_force)| {
            // The downstream's limits come first in each plan's set.
            let file = terms.plans().get(plan)?;
            Some((plan.clone(), of(in_force, file, limits.len())))
        })
        .collect();
    let idle = terms.idle(now);
    let overrides = record::overrides(terms, now).map(|set| {
        let idle = idle.contains(&set.limit.as_str());
        SetOverride { set, idle }
    });
    Rates {
        name: name.to_owned(),
        now: millis(now),
        replica: Replica::of_this_process().id.clone(),
        generation: record.status.generation,
        file: terms.loaded().map(|origin| File { source: source(origin), since: millis(origin.at) }),
        limits: of(&limits, terms.limits(), 0),
        plans,
        overrides: overrides.collect(),
        own_limits: (!own.has_limits_of(terms)).then(|| file_limits(own)),
    }
}

fn source(Origin { replica: Replica { id, host }, .. }: &Origin) -> Source {
    Source { replica: id.clone(), host: host.clone() }
}

/// The limits of a file, which need not be in force: the downstream's, and then those that plans add.
fn file_limits(own: &Terms) -> Vec<Limit> {
    let mut names = BTreeSet::new();
    let all = std::iter::once(own.limits()).chain(own.plans().values()).flat_map(LimitSet::iter);
    let first = all.filter(|limit| names.insert(limit.name()));
    first.map(numbers).collect()
}

/// A limit with its numbers.
fn numbers(limit: &limit::Limit) -> Limit {
    Limit {
        name: limit.name().to_owned(),
        algorithm: algorithm(limit).to_owned(),
        rate: rate_text(limit),
        margin_us: limit.margin_micros(),
        burst: limit.burst(),
        ..Limit::default()
    }
}

fn limit(in_force: &limit::Limit, file: &limit::Limit, terms: &Terms, now: Micros) -> Limit {
    let origin = terms.in_force_since(in_force.name(), now);
    let is_set = terms.overrides().contains_key(in_force.name()) && in_force != file;
    Limit {
        since: origin.as_ref().map(|origin| millis(origin.at)),
        from: origin.as_ref().map(source),
        file_rate: is_set.then(|| rate_text(file)),
        ..numbers(in_force)
    }
}
