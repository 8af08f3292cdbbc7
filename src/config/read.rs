//! Reads the settings from the merged tree: every key, its default and its range.

use std::collections::BTreeMap;

use super::oauth2::{self, oauth2};
use super::reader::{Absent, Reader, Table};
use super::retry::{Retry, retry};
use super::settings::{
    Admin, Amqp, Downstream, Http, Lanes, Plan, Queue, Reply, Secret, Settings, Shutdown, Store,
};
use super::tls::{server_tls, tls};
use super::{limits, url, value, warnings};
use crate::dispatch::{OnLimit, OnUnavailable};
use crate::job::nearest;

/// The highest revision that every format can represent exactly.
const MAX_REVISION: u64 = (1 << 53) - 1;

/// The longest queue that RabbitMQ can bound.
const MAX_LENGTH: u64 = i64::MAX.unsigned_abs();

/// The limits of `[plans.NAME]`, by name; `None` where they are wrong.
type Plans<'v> = BTreeMap<String, Option<Vec<limits::NamedLimit<'v>>>>;

/// Reads all settings; `None` when there is a mistake, which the reader has noted.
pub(super) fn settings(reader: &mut Reader<'_>) -> Option<Settings> {
    let root = reader.root();
    let precision = reader.parsed(&root, "precision", Absent::Default("fine"), value::precision);
    let amqp = amqp(reader, &root);
    let store = store(reader, &root);
    let reply = reply(reader, &root);
    let admin = admin(reader, &root);
    let shutdown = shutdown(reader, &root);
    let plans = plans(reader, &root);
    let table = reader.table(&root, "downstreams");
    let names = table.keys();
    if names.is_empty() && (table.is_there() || !root.has("downstreams")) {
        reader.missing_table(&table, "add a downstream, such as [downstreams.billing]");
    }
    let mut downstreams = Some(BTreeMap::new());
    for name in names {
        let on_unavailable = store.as_ref().map(|store| store.on_unavailable).unwrap_or_default();
        let declare = amqp.as_ref().is_none_or(|amqp| amqp.declare);
        let read = downstream(reader, &table, &name, &plans, on_unavailable, declare);
        match (&mut downstreams, read) {
            (Some(all), Some(read)) => drop(all.insert(name, read)),
            _ => downstreams = None,
        }
    }
    if let (Some(amqp), Some(downstreams)) = (&amqp, &downstreams) {
        reject_useless_lengths(reader, &table, amqp.declare, downstreams);
        reject_shared_queues(reader, &table, &amqp.prefix, downstreams);
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

fn amqp<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Amqp> {
    let table = reader.table(root, "amqp");
    let url = reader.secret(&table, "url", Absent::Default("amqp://127.0.0.1:5672/%2f"), url::amqp);
    let prefix = reader.parsed(&table, "prefix", Absent::Default("paced"), value::prefix);
    let declare = reader.boolean(&table, "declare", true);
    let window_bytes = reader.parsed(&table, "window_bytes", Absent::Default("256MiB"), value::window_size);
    let tls = tls(reader, &table, url.as_ref(), "amqps://HOST:5671/VHOST");
    Some(Amqp { url: url?, prefix: prefix?, declare: declare?, window_bytes: window_bytes?, tls })
}

fn store<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Store> {
    let table = reader.table(root, "store");
    let url = reader.secret(&table, "url", Absent::Default("memory:"), url::store);
    let key_prefix = reader.parsed(&table, "key_prefix", Absent::Default("paced"), value::prefix);
    let absent = Absent::Default("hold");
    let on_unavailable = reader.parsed(&table, "on_unavailable", absent, value::on_unavailable);
    let tls = tls(reader, &table, url.as_ref(), "rediss instead of redis");
    Some(Store { url: url?, key_prefix: key_prefix?, on_unavailable: on_unavailable?, tls })
}

fn reply<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Reply> {
    let table = reader.table(root, "reply");
    let allow =
        reader.texts(&table, "allow", &["amq.rabbitmq.reply-to", ""], "[\"replies.\"]", value::reply_prefix);
    Some(Reply { allow: allow? })
}

/// Reads `[admin]`. The reader has noted the mistakes, even if a part is `None`.
pub(super) fn admin<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Admin {
    let table = reader.table(root, "admin");
    let listen = reader.parsed(&table, "listen", Absent::Unset, value::listen);
    let token = reader.secret(&table, "token", Absent::Unset, value::token);
    let read_token = reader.secret(&table, "read_token", Absent::Unset, value::token);
    for (key, token) in [("token", &token), ("read_token", &read_token)] {
        warnings::short_token(reader, &table, key, token.as_ref());
    }
    let hosts = ("[\"paced.internal\"]", value::allowed_host);
    let allow_hosts = reader.texts(&table, "allow_hosts", &[], hosts.0, hosts.1).unwrap_or_default();
    let tls = server_tls(reader, &table);
    Admin { listen, token, read_token, allow_hosts, tls }
}

fn shutdown<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Shutdown> {
    let table = reader.table(root, "shutdown");
    let drain_timeout = reader.parsed(&table, "drain_timeout", Absent::Default("25s"), value::duration);
    Some(Shutdown { drain_timeout: drain_timeout? })
}

fn plans<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Plans<'v> {
    let table = reader.table(root, "plans");
    let mut plans = Plans::new();
    for name in table.keys() {
        let plan = reader.table(&table, &name);
        let named = value::name("plan", &name);
        if let Err(problem) = &named {
            reader.wrong_name(&plan, problem);
        }
        let limits = limits::of_plan(reader, &plan, &name);
        warnings::moot(reader, &limits.iter().flatten().collect::<Vec<_>>());
        plans.insert(name, named.ok().and(limits));
    }
    plans
}

fn downstream<'v>(
    reader: &mut Reader<'v>,
    all: &Table<'v>,
    name: &str,
    plans: &Plans<'v>,
    on_unavailable: OnUnavailable,
    declare: bool,
) -> Option<Downstream> {
    let table = reader.table(all, name);
    let named = value::name("downstream", name);
    if let Err(problem) = &named {
        reader.wrong_name(&table, problem);
    }
    let own = limits::of_downstream(reader, &table);
    let named_limits = own.as_ref().map(|own| own.iter().collect::<Vec<_>>()).unwrap_or_default();
    let on_limit = reader.parsed(&table, "on_limit", Absent::Default("wait"), value::on_limit);
    let police = on_limit == Some(OnLimit::Reject);
    let own: Option<Vec<_>> = own.as_ref().map(|own| own.iter().collect());
    let set = own.as_ref().and_then(|own| limits::set(reader, own, police, ""));
    // A mistake in the downstream's own limits is reported once, not again for each plan.
    let own = own.filter(|_| set.is_some());
    let sets = own.and_then(|own| plan_sets(reader, &own, plans, name, police));
    let horizon = |text: &str| value::duration_within(text, "1ms", "10s");
    let horizon = reader.parsed(&table, "horizon", Absent::Default("100ms"), horizon);
    let max_wait = |text: &str| value::duration_within(text, "1s", "365d");
    let max_wait = reader.parsed(&table, "max_wait", Absent::Unset, max_wait);
    let hold_max = |text: &str| value::duration_within(text, "1s", "10m");
    let hold_max = reader.parsed(&table, "hold_max", Absent::Default("60s"), hold_max);
    let max_cost = reader.whole(&table, "max_cost", 1..=u32::MAX.into());
    let concurrency = reader.integer(&table, "concurrency", 64, 1..=65_535);
    let own_unavailable = reader.parsed(&table, "on_unavailable", Absent::Unset, value::on_unavailable);
    let revision = reader.whole(&table, "revision", 0..=MAX_REVISION);
    let queue = queue(reader, &table);
    let mut http = http(reader, &table);
    let retry = retry(reader, &table);
    let lanes = lanes(reader, &table, plans);
    let base_url = http.as_ref().map(|http| &http.base_url);
    let tls = tls(reader, &table, base_url, "https://");
    if let Some(client) = http.as_mut().and_then(|http| http.oauth2.as_mut()) {
        oauth2::inherit(client, tls.as_ref());
    }
    named.ok()?;
    let Retry { policy: retry, max_pause, throttled_when } = retry?;
    let settings = Downstream {
        limits: set?,
        plans: sets?,
        on_limit: on_limit?,
        on_unavailable: own_unavailable.unwrap_or(on_unavailable),
        revision,
        horizon: horizon?,
        max_wait,
        hold_max: hold_max?,
        max_cost: max_cost.and_then(|cost| u32::try_from(cost).ok()),
        concurrency: usize::try_from(concurrency?).ok()?,
        queue: queue?,
        http: http?,
        retry,
        max_pause,
        throttled_when,
        lanes: lanes?,
        tls,
    };
    warnings::downstream(reader, &table, &named_limits, &settings);
    warnings::unacked(reader, &table, &named_limits, &settings.http, declare);
    Some(settings)
}

/// The limits that the downstream's jobs obey under each plan: the downstream's own, and then the plan's.
fn plan_sets<'v>(
    reader: &mut Reader<'v>,
    own: &[&limits::NamedLimit<'v>],
    plans: &Plans<'v>,
    downstream: &str,
    police: bool,
) -> Option<Vec<Plan>> {
    let mut sets = Some(Vec::new());
    for (name, limits) in plans {
        // Mistakes of the plan itself have been reported.
        let Some(limits) = limits else { continue };
        let all: Vec<_> = own.iter().copied().chain(limits).collect();
        let whose = format!(" together with those of downstream `{downstream}`");
        match (&mut sets, limits::set(reader, &all, police, &whose)) {
            (Some(sets), Some(limits)) => sets.push(Plan { name: name.clone(), limits }),
            _ => sets = None,
        }
    }
    sets
}

fn lanes<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>, plans: &Plans<'v>) -> Option<Lanes> {
    let table = reader.table(downstream, "lanes");
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
    let default_plan = reader.parsed(&table, "default_plan", Absent::Unset, known);
    if table.has("default_plan") && default_plan.is_none() {
        return None;
    }
    Some(Lanes { default_plan })
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
        if let Some(found) = reader.given(&table, "max_length") {
            let why = if declare { "queue.name is used as it is" } else { "amqp.declare is false" };
            reader
                .wrong(&found, format!("nobody would set it, since {why}; set it by a policy of the broker"));
        }
    }
}

/// Rejects two downstreams on one queue, which would take each other's jobs.
fn reject_shared_queues<'v>(
    reader: &mut Reader<'v>,
    all: &Table<'v>,
    prefix: &str,
    downstreams: &BTreeMap<String, Downstream>,
) {
    // Queues with paced's own names come first: it is the configured name that must be changed.
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for (name, _) in downstreams.iter().filter(|(_, downstream)| downstream.queue.name.is_none()) {
        owners.insert(format!("{prefix}.jobs.{name}"), name);
    }
    for (name, downstream) in downstreams {
        let Some(queue) = &downstream.queue.name else { continue };
        let Some(owner) = owners.insert(queue.clone(), name) else { continue };
        let table = reader.table(all, name);
        let table = reader.table(&table, "queue");
        if let Some(found) = reader.given(&table, "name") {
            let problem = format!("the queue of downstream `{owner}` too; give each its own");
            reader.wrong(&found, problem);
        }
    }
}

fn queue<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<Queue> {
    let table = reader.table(downstream, "queue");
    let name = reader.parsed(&table, "name", Absent::Unset, value::queue_name);
    let max_length = reader.whole(&table, "max_length", 1..=MAX_LENGTH);
    let prefetch = reader.integer(&table, "prefetch", 1000, 1..=65_535);
    let prefetch_bytes =
        reader.parsed(&table, "prefetch_bytes", Absent::Default("64MiB"), value::window_size);
    let prefetch = u16::try_from(prefetch?).ok()?;
    Some(Queue { name, max_length, prefetch, prefetch_bytes: prefetch_bytes? })
}

fn http<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<Http> {
    const HINT: &str = "say where jobs go, such as base_url = \"https://api.example.com/v1/\"";
    let table = reader.table(downstream, "http");
    let base_url = reader.secret(&table, "base_url", Absent::Mistake(HINT), url::base);
    let timeout = |text: &str| value::duration_within(text, "1us", "365d");
    let timeout = reader.parsed(&table, "timeout", Absent::Default("30s"), timeout);
    let age = Absent::Default("90s");
    let max_connection_age = reader.parsed(&table, "max_connection_age", age, value::duration);
    let max_body = reader.parsed(&table, "max_body", Absent::Default("1MiB"), value::body_size);
    let allow_headers =
        reader.texts(&table, "allow_headers", &[], "[\"x-request-id\"]", value::allowed_header);
    let keep_response = reader.boolean(&table, "keep_response", true);
    let proxy = reader.secret(&table, "proxy", Absent::Unset, url::proxy);
    // They come last, since they are tables of their own.
    let headers = headers(reader, &table);
    let names: Vec<&str> = headers.iter().flatten().map(|(name, _)| name.as_str()).collect();
    let oauth2 = oauth2(reader, &table, &names);
    Some(Http {
        base_url: base_url?,
        timeout: timeout?,
        max_connection_age: max_connection_age?,
        max_body: max_body?,
        allow_headers: allow_headers?,
        keep_response: keep_response?,
        proxy,
        oauth2: oauth2?,
        headers: headers?,
    })
}

fn headers<'v>(reader: &mut Reader<'v>, http: &Table<'v>) -> Option<Vec<(String, Secret)>> {
    let table = reader.table(http, "headers");
    let stem = |key: &str| key.strip_suffix("_file").unwrap_or(key).to_ascii_lowercase();
    let mut headers = Some(Vec::new());
    for (name, spellings) in Reader::spellings(&table, stem) {
        let named = value::fixed_header(&name);
        if let Err(problem) = &named {
            spellings.iter().for_each(|key| reader.wrong_key(&table, key, problem));
        }
        let secret = reader.secret_under(&table, &name, &spellings, Absent::Unset, value::header_value);
        match (&mut headers, named, secret) {
            (Some(headers), Ok(name), Some(secret)) => headers.push((name, secret)),
            _ => headers = None,
        }
    }
    headers
}
