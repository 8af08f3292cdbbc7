//! Reads `[downstreams.NAME.lanes]`.

use std::collections::{BTreeMap, BTreeSet};

use super::all;
use crate::config::key::keys;
use crate::config::limits::{self, NamedLimit};
use crate::config::reader::{Reader, Table};
use crate::config::settings::Lanes;
use crate::dispatch::{LaneRules, OnLimit};
use crate::job::{LanePart, nearest};

keys! {
    /// The lanes of the jobs.
    LANES = "lanes".default("{}");
    /// The plan of jobs that name none. Without it they keep only the limits of the downstream and those of lanes.
    DEFAULT_PLAN = "default_plan".example("free").reload();
    /// What makes the lane of a job: one to three parts, each under a name of your own. A lane is one combination of
    /// their values. Lanes share the pace of the downstream, and one that waits for a limit of its own does not block
    /// the others (docs/lanes.md). Unset: no lanes, first in, first out.
    BY = "by".matches("^[a-z][a-z0-9_]*$").example("{ tenant = \"header:paced-lane\" }");
    /// header:paced-lane, routing-key:N (a word of the routing key, from 2 on: the first one is the downstream's name) or
    /// plan.
    PART = "NAME".matches("^(header:paced-lane|routing-key:([2-9]|[1-9][0-9])|plan)$");
    /// The part whose values share equally, or by their weights. Unset: the only part; where there are several it is
    /// needed.
    FAIR_BY = "fair_by".otherwise("the only part of `by`").example("tenant");
    /// The parts whose values the limit holds for. Unset: each lane for itself.
    PER = "per".example("[\"tenant\"]");
    /// The parts whose values wait alone when the API throttles a job of theirs: with ["tenant"] a 429 for one tenant does
    /// not stop the others (docs/lanes.md). Empty: all jobs of the downstream wait.
    PAUSE_PER = "pause_per".default("[]").example("[\"tenant\"]").reload();
    /// How many times the share of others a value of `fair_by` gets while all have jobs.
    WEIGHTS = "weights".matches(".").example("{ acme = 5 }").reload();
    /// The weight of this value; others have 1.
    WEIGHT = "NAME".integers(1, 1_000_000).reload();
    /// The most lanes that a replica has at one time. Jobs that would have further ones share the lane of those without any
    /// part.
    MAX_LANES = "max_lanes".default("1000000").integers(1, 1_000_000);
}

/// The limits of `[plans.NAME]`, by name; `None` where they are wrong.
pub(super) type Plans<'v> = BTreeMap<String, Option<Vec<NamedLimit<'v>>>>;

/// The share of slots that the lowest priority that waits keeps, in millionths.
const STARVATION_GUARD: u32 = 50_000;

/// The most parts of a key.
const MAX_PARTS: usize = 3;

/// The lanes, and their limits.
pub(super) struct ReadLanes<'v> {
    pub lanes: Lanes,
    pub limits: Vec<NamedLimit<'v>>,
}

pub(super) fn lanes<'v>(
    reader: &mut Reader<'v>,
    downstream: &Table<'v>,
    plans: &Plans<'v>,
    on_limit: Option<OnLimit>,
) -> Option<ReadLanes<'v>> {
    let table = reader.section(downstream, &LANES);
    let known = |name: &str| {
        if plans.contains_key(name) {
            return Ok(name.to_owned());
        }
        let names: Vec<&str> = plans.keys().map(String::as_str).collect();
        Err(match nearest(name, &names) {
            Some(near) => format!("no such plan; did you mean `{near}`?"),
            None if names.is_empty() => "no such plan; add one, such as [plans.free]".to_owned(),
            None => format!("no such plan; there are `{}`", names.join("`, `")),
        })
    };
    let default_plan = reader.parsed(&table, &DEFAULT_PLAN, known);
    let keyed = keyed(reader, &table, on_limit);
    if table.has(DEFAULT_PLAN.name) && default_plan.is_none() {
        return None;
    }
    let (parts, rules, limits) = keyed?;
    Some(ReadLanes { lanes: Lanes { default_plan, parts, rules }, limits })
}

type Keyed<'v> = (Vec<LanePart>, Option<LaneRules>, Vec<NamedLimit<'v>>);

/// What makes lanes, and what they share by.
fn keyed<'v>(reader: &mut Reader<'v>, table: &Table<'v>, on_limit: Option<OnLimit>) -> Option<Keyed<'v>> {
    let by = reader.names(table, &BY, &[]);
    let names: Vec<String> = by.keys();
    let place = |name: &str| place(&names, name);
    let fair_by = reader.parsed(table, &FAIR_BY, place);
    let read = limits::of_lanes(reader, table, |reader, table| {
        let (given, mark) = (table.has(PER.name), reader.entries.len());
        let per = reader.texts(table, &PER, |name| place(name).map(|_| name.to_owned()))?;
        reader.entries.truncate(if given { usize::MAX } else { mark });
        if given && per.is_empty() {
            reader.wrong_value(table, PER.name, "empty; name a part of `by`");
            return None;
        }
        Some(given.then(|| per.iter().filter_map(|name| place(name).ok()).collect::<Vec<usize>>()))
    });
    let pause_per = reader.texts(table, &PAUSE_PER, |name| place(name).map(|_| name.to_owned()));
    let max_lanes = reader.integer(table, &MAX_LANES);
    // Tables come behind the keys of this one, as `config show` writes them.
    let parts = parts(reader, &by);
    let weights = weights(reader, table);
    if !table.has(BY.name) {
        let keys = [FAIR_BY.name, limits::LANE_LIMITS.name, WEIGHTS.name];
        // Without any part it is the default.
        let pauses = pause_per.is_some_and(|parts| !parts.is_empty());
        let moot = keys.into_iter().filter(|key| table.has(key)).chain(pauses.then_some(PAUSE_PER.name));
        let moot: Vec<&str> = moot.collect();
        moot.iter().for_each(|key| reader.wrong_key(table, key, "there are no lanes without `by`; add it"));
        return moot.is_empty().then(|| (vec![], None, vec![]));
    }
    let problem = match (names.len(), table.has(FAIR_BY.name)) {
        (0, _) => Some("names no part; write such as { tenant = \"header:paced-lane\" }".to_owned()),
        (2..=MAX_PARTS, false) => {
            Some(format!("has several parts; set fair_by to `{}`", names.join("` or `")))
        }
        (count, _) if count > MAX_PARTS => Some(format!("has {count} parts; use at most {MAX_PARTS}")),
        _ if on_limit == Some(OnLimit::Reject) => {
            Some("lanes are not made where on_limit is \"reject\"; remove one of the two".to_owned())
        }
        _ => None,
    };
    if let Some(problem) = problem {
        reader.wrong_key(table, BY.name, &problem);
        return None;
    }
    let fair_by = if table.has(FAIR_BY.name) { fair_by? } else { 0 };
    let (parts, read) = (parts?, read?);
    let pause_per = pause_per?.iter().filter_map(|name| place(name).ok()).collect();
    let per = read.iter().filter_map(|(given, per)| Some((given.limit.name().to_owned(), per.clone()?)));
    let rules = LaneRules {
        parts: names,
        fair_by,
        per: per.collect(),
        pause_per,
        weights: weights?,
        paused: BTreeSet::new(),
        starvation_guard: STARVATION_GUARD,
        max_lanes: max_lanes?,
    };
    Some((parts, Some(rules), read.into_iter().map(|(limit, _)| limit).collect()))
}

/// The parts of `by`, in the order of their names.
fn parts<'v>(reader: &mut Reader<'v>, by: &Table<'v>) -> Option<Vec<LanePart>> {
    all(by.keys().into_iter().map(|name| {
        let part = reader.parsed(by, &PART.under(&name), part);
        if !is_name(&name) {
            let problem = "no name for a part; use up to 63 of a-z, 0-9 and _, begin with a letter";
            reader.wrong_key(by, &name, problem);
            return None;
        }
        part
    }))
}

/// Whether limits may hold beside those of lanes, as the store decides on them. Otherwise each call would fail, which is
/// reported.
pub(super) fn may_join<'v>(reader: &mut Reader<'v>, limits: &[&NamedLimit<'v>], downstream: &str) -> bool {
    let mut may = true;
    for (index, given) in limits.iter().enumerate() {
        if given.cost.is_some() {
            let problem = format!(
                "a limit of downstream `{downstream}`, where lanes.by is set: there a job costs every limit the same; \
                 remove `cost`, or lanes.by"
            );
            reader.wrong(given.cost_at.as_ref().unwrap_or(&given.at), problem);
            may = false;
        }
        if limits[..index].iter().any(|other| other.limit == given.limit) {
            let problem = format!(
                "the same limit twice in downstream `{downstream}`, where lanes.by is set; give it once"
            );
            reader.wrong(&given.at, problem);
            may = false;
        }
    }
    may
}

fn is_name(name: &str) -> bool {
    let is_fit = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
    name.len() <= 63 && name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(is_fit)
}

/// The place of a part by its name.
fn place(names: &[String], name: &str) -> Result<usize, String> {
    if names.is_empty() {
        // That `by` names none is the only mistake.
        return Ok(0);
    }
    names.iter().position(|other| other == name).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match nearest(name, &names) {
            Some(near) => format!("no part of `by`; did you mean `{near}`?"),
            None => format!("no part of `by`; there are `{}`", names.join("`, `")),
        }
    })
}

fn part(text: &str) -> Result<LanePart, String> {
    let word = text.strip_prefix("routing-key:").and_then(|place| place.parse::<usize>().ok());
    match (text, word) {
        ("header:paced-lane", _) => Ok(LanePart::Lane),
        ("plan", _) => Ok(LanePart::Plan),
        (_, Some(1)) => Err("the first word is the downstream's name, which all its jobs have; use routing-key:2 or a later one".to_owned()),
        (_, Some(place @ 2..=99)) => Ok(LanePart::Word(place - 1)),
        _ => Err("no part of a key; use header:paced-lane, routing-key:N from 2 to 99, or plan".to_owned()),
    }
}

fn weights<'v>(reader: &mut Reader<'v>, lanes: &Table<'v>) -> Option<BTreeMap<String, u32>> {
    let table = reader.names(lanes, &WEIGHTS, &[]);
    let weight = |value: String| Some((value.clone(), reader.integer(&table, &WEIGHT.under(&value))?));
    all(table.keys().into_iter().map(weight))
}
