//! The settings out of the merged tree: every key, its default and its range.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::{ConfigError, Kind};
use super::reader::{Absent, Entry, Found, Reader, Table};
use super::settings::{Admin, Amqp, Downstream, Http, Queue, Secret, Settings, Shutdown, Store};
use super::{url, value};
use crate::dispatch::RetryPolicy;
use crate::limit::{Limit, LimitSet};
use crate::rate::Rate;

const RATE_HINT: &str = "give a downstream a limit, such as rate = \"50/s\"";

/// None when something is wrong; the reader has all of it then.
pub(super) fn settings(reader: &mut Reader<'_>) -> Option<Settings> {
    let root = reader.root();
    let precision = reader.parsed(&root, "precision", Absent::Default("fine"), value::precision);
    let amqp = amqp(reader, &root);
    let store = store(reader, &root);
    let admin = admin(reader, &root);
    let shutdown = shutdown(reader, &root);
    let table = reader.table(&root, "downstreams");
    let names = table.keys();
    if names.is_empty() && (table.is_there() || !root.has("downstreams")) {
        reader.missing_table(&table, "add a downstream, such as [downstreams.billing]");
    }
    let mut downstreams = Some(BTreeMap::new());
    for name in names {
        let read = downstream(reader, &table, &name);
        match (&mut downstreams, read) {
            (Some(all), Some(read)) => drop(all.insert(name, read)),
            _ => downstreams = None,
        }
    }
    if let (Some(amqp), Some(downstreams)) = (&amqp, &downstreams) {
        reject_shared_queues(reader, &table, &amqp.prefix, downstreams);
    }
    Some(Settings {
        precision: precision?,
        amqp: amqp?,
        store: store?,
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
    Some(Amqp { url: url?, prefix: prefix?, declare: declare? })
}

fn store<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Store> {
    let table = reader.table(root, "store");
    let url = reader.secret(&table, "url", Absent::Default("memory:"), url::store);
    let key_prefix = reader.parsed(&table, "key_prefix", Absent::Default("paced"), value::prefix);
    Some(Store { url: url?, key_prefix: key_prefix? })
}

fn admin<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Admin {
    let table = reader.table(root, "admin");
    Admin { listen: reader.parsed(&table, "listen", Absent::Unset, value::listen) }
}

fn shutdown<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Shutdown> {
    let table = reader.table(root, "shutdown");
    let drain_timeout = reader.parsed(&table, "drain_timeout", Absent::Default("25s"), value::duration);
    Some(Shutdown { drain_timeout: drain_timeout? })
}

fn downstream<'v>(reader: &mut Reader<'v>, all: &Table<'v>, name: &str) -> Option<Downstream> {
    let table = reader.table(all, name);
    let named = value::downstream_name(name);
    if let Err(problem) = &named {
        reader.wrong_name(&table, problem);
    }
    let limits = limits(reader, &table);
    let horizon = |text: &str| value::duration_within(text, "1ms", "10s");
    let horizon = reader.parsed(&table, "horizon", Absent::Default("100ms"), horizon);
    let concurrency = reader.integer(&table, "concurrency", 64, 1..=65_535);
    let queue = queue(reader, &table);
    let http = http(reader, &table);
    let retry = retry(reader, &table);
    named.ok()?;
    Some(Downstream {
        limits: limits?,
        horizon: horizon?,
        concurrency: usize::try_from(concurrency?).ok()?,
        queue: queue?,
        http: http?,
        retry: retry?,
    })
}

/// Two downstreams on one queue would take each other's jobs.
fn reject_shared_queues<'v>(
    reader: &mut Reader<'v>,
    all: &Table<'v>,
    prefix: &str,
    downstreams: &BTreeMap<String, Downstream>,
) {
    // Those of paced's own names first: it is the given name that is to be changed.
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

/// `rate` first, then `limits`.
fn limits<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<LimitSet> {
    let rate = reader.parsed(table, "rate", Absent::Unset, value::rate);
    let mut limits = Vec::new();
    if table.has("rate") {
        limits.push(rate.and_then(|rate| limit(reader, (table, "rate"), rate, 1, 0)));
    }
    let mark = reader.entries.len();
    if let Some((array, tables)) = reader.tables(table, "limits") {
        let mut shown = Vec::new();
        for one in &tables {
            limits.push(further_limit(reader, one, limits.len()));
            shown.push(inline(reader.entries.split_off(mark)));
        }
        reader.note(table, "limits", format!("[{}]", shown.join(", ")), Some(&array));
        if limits.is_empty() && Reader::is_empty(&array) {
            reader.wrong(&array, format!("empty; {RATE_HINT}"));
        }
    } else if !table.has("rate") && !table.has("limits") {
        reader.missing(table, "rate", RATE_HINT);
    }
    LimitSet::new(limits.into_iter().collect::<Option<_>>()?).ok()
}

fn further_limit<'v>(reader: &mut Reader<'v>, table: &Table<'v>, ordinal: usize) -> Option<Limit> {
    let algorithm = reader.parsed(table, "algorithm", Absent::Default(value::LEAKY_BUCKET), value::algorithm);
    let rate =
        reader.parsed(table, "rate", Absent::Mistake("write such as rate = \"1000/minute\""), value::rate);
    let burst = reader.integer(table, "burst", 1, 1..=u32::MAX);
    algorithm?;
    let (rate, burst) = (rate?, burst?);
    let key = if table.has("burst") { "burst" } else { "rate" };
    limit(reader, (table, key), rate, burst, ordinal)
}

/// The name is the key of the limit's state: never its numbers, so that they may change. A mistake
/// is told at `key`.
fn limit<'v>(
    reader: &mut Reader<'v>,
    (table, key): (&Table<'v>, &str),
    rate: Rate,
    burst: u32,
    ordinal: usize,
) -> Option<Limit> {
    match Limit::leaky_bucket(format!("{}-{ordinal}", value::LEAKY_BUCKET), rate, burst) {
        Ok(limit) => Some(limit),
        Err(error) => {
            if let Some(found) = reader.given(table, key) {
                reader.wrong(&found, error.to_string());
            }
            None
        }
    }
}

fn inline(entries: Vec<Entry>) -> String {
    let pairs: Vec<String> =
        entries.into_iter().map(|entry| format!("{} = {}", entry.key, entry.value)).collect();
    format!("{{ {} }}", pairs.join(", "))
}

fn queue<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<Queue> {
    let table = reader.table(downstream, "queue");
    let name = reader.parsed(&table, "name", Absent::Unset, value::queue_name);
    let prefetch = reader.integer(&table, "prefetch", 1000, 1..=65_535);
    Some(Queue { name, prefetch: u16::try_from(prefetch?).ok()? })
}

fn http<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<Http> {
    const HINT: &str = "say where jobs go, such as base_url = \"https://api.example.com/v1/\"";
    let table = reader.table(downstream, "http");
    let base_url = reader.secret(&table, "base_url", Absent::Mistake(HINT), url::base);
    let timeout = |text: &str| value::duration_within(text, "1us", "365d");
    let timeout = reader.parsed(&table, "timeout", Absent::Default("30s"), timeout);
    let max_body = reader.parsed(&table, "max_body", Absent::Default("1MiB"), value::body_size);
    let allow_headers = reader.texts(&table, "allow_headers", value::allowed_header);
    let headers = headers(reader, &table);
    Some(Http {
        base_url: base_url?,
        timeout: timeout?,
        max_body: max_body?,
        allow_headers: allow_headers?,
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

fn retry<'v>(reader: &mut Reader<'v>, downstream: &Table<'v>) -> Option<RetryPolicy> {
    let table = reader.table(downstream, "retry");
    let max_attempts = reader.integer(&table, "max_attempts", 8, 1..=1000);
    let min_backoff = reader.parsed(&table, "min_backoff", Absent::Default("1s"), value::duration);
    let max_backoff = reader.parsed(&table, "max_backoff", Absent::Default("5m"), value::duration);
    let (min_backoff, max_backoff) = (min_backoff?, max_backoff?);
    if min_backoff > max_backoff {
        reject_backoffs(reader, &table, max_backoff);
        return None;
    }
    Some(RetryPolicy { max_attempts: max_attempts?, min_backoff, max_backoff })
}

/// Points at the one that was given; at the shortest if both were.
fn reject_backoffs<'v>(reader: &mut Reader<'v>, table: &Table<'v>, max_backoff: Duration) {
    let min: Option<Found<'v>> = reader.given(table, "min_backoff");
    let (found, problem) = match min {
        Some(found) => {
            (found, format!("over max_backoff ({max_backoff:?}); use at most that, or raise max_backoff"))
        }
        None => match reader.given(table, "max_backoff") {
            Some(found) => {
                (found, "under min_backoff (1s); use at least that, or lower min_backoff".to_owned())
            }
            None => return,
        },
    };
    let error = ConfigError::new(reader.place(&found), found.path, problem);
    reader.errors.push(error.of(Kind::Absence));
}
