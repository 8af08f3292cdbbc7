//! Reads the settings from the merged tree.

use std::collections::BTreeMap;

use figment::value::Value;

use super::dynamic::dynamic;
use super::key::{Absent, keys};
use super::reader::{Reader, Table};
use super::settings::{Downstream, Settings};
use super::{limits, value, warnings};
use crate::dispatch::Precision;
use downstream::{Defaults, downstream};
use lanes::Plans;

mod downstream;
mod http;
mod lanes;
mod oauth2;
mod process;

pub(super) use process::admin;

keys! {
    /// How punctual releases are. No environment variable sets this key: those need a section.
    ///   fine: a thread that sleeps until just before each slot. It and the tasks that it wakes spin for
    ///   the last microseconds, a thirtieth of a core at most, and nothing while no job is held.
    ///   coarse: the timer of the runtime: no thread, and each release is 1 to 2 ms late.
    PRECISION = "precision".default("fine");
    /// Limits under a name, for the jobs that name the plan (paced-plan). They keep these limits and those of their
    /// downstream. Each downstream counts them for itself. Jobs of a used-up plan do not hold up jobs of other plans. But
    /// they wait among the `queue.prefetch` jobs that a replica holds, so make it large enough.
    PLANS = "plans".matches(value::NAME);
    /// A plan: limits for the jobs that name it.
    PLAN = "NAME".default("{}");
    /// One table for each API, [downstreams.NAME]. Jobs for it have the routing key NAME.
    DOWNSTREAMS = "downstreams".required("add a downstream, such as [downstreams.billing]").matches(value::NAME);
}

/// Reads all settings; `None` when there is a mistake, which the reader has noted.
pub(super) fn settings(reader: &mut Reader<'_>) -> Option<Settings> {
    let root = reader.root();
    let precisions = [("fine", Precision::Fine), ("coarse", Precision::Coarse)];
    let precision = reader.choice(&root, &PRECISION, "no precision", &precisions);
    let amqp = process::amqp(reader, &root);
    let store = process::store(reader, &root);
    let reply = process::reply(reader, &root);
    let admin = admin(reader, &root);
    let shutdown = process::shutdown(reader, &root);
    let dir = dynamic(reader, &root);
    let plans = plans(reader, &root);
    let table = reader.names(&root, &DOWNSTREAMS, &[]);
    let names = table.keys();
    if names.is_empty()
        && dir.is_none()
        && (table.is_there() || !root.has(DOWNSTREAMS.name))
        && let Absent::Mistake(hint) = DOWNSTREAMS.absent
    {
        reader.missing_table(&table, hint);
    }
    let defaults = Defaults {
        plans: &plans,
        on_unavailable: store.as_ref().map(|store| store.on_unavailable).unwrap_or_default(),
        declare: amqp.as_ref().is_none_or(|amqp| amqp.declare),
    };
    let downstreams: Option<BTreeMap<_, _>> = all(names.into_iter().map(|name| {
        let read = downstream(reader, &table, &name, &defaults)?;
        Some((name, read))
    }));
    if let (Some(amqp), Some(downstreams)) = (&amqp, &downstreams) {
        reject_useless_lengths(reader, &table, amqp.declare, downstreams);
        reject_shared_queues(reader, &table, &amqp.prefix, downstreams);
    }
    if let (Some(store), Some(downstreams)) = (&store, &downstreams) {
        warnings::forgotten(reader, &root, store, downstreams);
        warnings::unkept(reader, (&root, &table), store, downstreams);
    }
    if let Some(downstreams) = &downstreams {
        warnings::shared_plans(reader, downstreams, plans.values().flatten());
    }
    if plans.values().any(Option::is_none) {
        return None;
    }
    Some(Settings {
        precision: precision?,
        amqp: amqp?,
        store: store?,
        reply: reply?,
        admin,
        shutdown: shutdown?,
        downstreams: downstreams?,
    })
}

/// All values, if every one is right. Each is read, so that all mistakes are reported.
fn all<T, C: FromIterator<T>>(values: impl Iterator<Item = Option<T>>) -> Option<C> {
    values.collect::<Vec<_>>().into_iter().collect()
}

fn plans<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Plans<'v> {
    let table = reader.names(root, &PLANS, &[]);
    let mut plans = Plans::new();
    for name in table.keys() {
        let plan = reader.section(&table, &PLAN.under(&name));
        let named = value::name("plan", &name);
        if let Err(problem) = &named {
            reader.wrong_name(&plan, problem);
        }
        let limits = limits::of_plan(reader, &plan, &name);
        warnings::ineffective_limits(reader, &limits.iter().flatten().collect::<Vec<_>>());
        plans.insert(name, named.ok().and(limits));
    }
    plans
}

/// Rejects bounds of queues that are not declared.
fn reject_useless_lengths<'v>(
    reader: &mut Reader<'v>,
    all: &Table<'v>,
    declare: bool,
    downstreams: &BTreeMap<String, Downstream>,
) {
    for (name, Downstream { queue, .. }) in downstreams {
        if queue.max_length.is_none() || (declare && queue.name.is_none()) {
            continue;
        }
        let table = reader.table(all, name);
        let table = reader.table(&table, "queue");
        let why = if declare { "queue.name is used as it is" } else { "amqp.declare is false" };
        let problem = format!("nobody would set it, since {why}; set it by a policy of the broker");
        reader.wrong_value(&table, "max_length", problem);
    }
}

/// Rejects two downstreams on one queue, which would take each other's jobs. The mistake is at the one in the later file, and
/// within one at the one whose queue is configured: a new file must not be a mistake of one that was there.
fn reject_shared_queues<'v>(
    reader: &mut Reader<'v>,
    all: &Table<'v>,
    prefix: &str,
    downstreams: &BTreeMap<String, Downstream>,
) {
    let mut layers: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, layer) in reader.layers.iter().enumerate().filter(|(_, layer)| layer.given.is_none()) {
        let Some(Value::Dict(_, names)) = layer.dict.get(DOWNSTREAMS.name) else { continue };
        names.keys().for_each(|name| _ = layers.entry(name).or_insert(index));
    }
    let mut ordered: Vec<_> = downstreams.iter().collect();
    ordered.sort_by_key(|(name, downstream)| {
        (layers.get(name.as_str()).copied(), downstream.queue.name.is_some())
    });
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for (name, downstream) in ordered {
        let queue = downstream.queue.name.clone().unwrap_or_else(|| format!("{prefix}.jobs.{name}"));
        let Some(owner) = owners.insert(queue, name) else { continue };
        let problem = format!("the queue of downstream `{owner}` too; give each its own");
        let table = reader.table(all, name);
        if downstream.queue.name.is_some() {
            let table = reader.table(&table, "queue");
            reader.wrong_value(&table, "name", problem);
        } else {
            reader.wrong_name(&table, &problem);
        }
    }
}
