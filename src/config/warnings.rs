//! Warns of what is valid and will not do what it seems to.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::error::{ConfigError, Place};
use super::key::Key;
use super::limits::NamedLimit;
use super::reader::{Found, Reader, Table};
use super::secret::Secret;
use super::settings::{Downstream, Http, Store};
use super::source::Sources;
use super::url;
use crate::dispatch::{OnLimit, OnUnavailable};
use crate::limit::Limit;
use crate::terms::rate_text;

/// The time that an answer is taken to need: no API says how long it takes, and `http.timeout` is only the worst case.
const LATENCY: Duration = Duration::from_millis(100);

/// The time after which RabbitMQ takes back what is unacked, unless its `consumer_timeout` says otherwise.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Warns of what a downstream will not do.
pub(super) fn downstream<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    own: &[&NamedLimit<'v>],
    settings: &Downstream,
) {
    ineffective_limits(reader, own);
    bursts(reader, own, settings);
    concurrency(reader, table, settings);
}

/// Warns of plans whose limits all customers of a downstream share, since it has no lanes, although it can have some.
pub(super) fn shared_plans<'v, 'l>(
    reader: &mut Reader<'v>,
    downstreams: &BTreeMap<String, Downstream>,
    mut plans: impl Iterator<Item = &'l Vec<NamedLimit<'v>>>,
) where
    'v: 'l,
{
    let Some(first) = plans.find_map(|limits| limits.first()) else { return };
    // Jobs of lanes wait, and cost all limits the same.
    let can_have = |of: &Downstream| of.on_limit == OnLimit::Wait && of.costs.is_empty();
    let shared = downstreams.iter().filter(|(_, of)| of.lanes.rules.is_none() && can_have(of));
    let names: Vec<String> = shared.map(|(name, _)| format!("`{name}`")).collect();
    if !names.is_empty() {
        let (s, names) = (if names.len() == 1 { "" } else { "s" }, names.join(", "));
        let problem = format!(
            "all jobs of a plan share its limits in downstream{s} {names}; set lanes.by there, and each tenant has them for \
             itself"
        );
        reader.warn(&first.at, &problem);
    }
}

/// Warns of limits that never bind, since another one of them is never wider.
pub(super) fn ineffective_limits<'v>(reader: &mut Reader<'v>, limits: &[&NamedLimit<'v>]) {
    for (index, given) in limits.iter().enumerate() {
        let by = limits.iter().enumerate().find(|(other, by)| {
            // A limit with a cost of its own counts other units. If two limits make each other ineffective, the later one is
            // reported.
            *other != index
                && given.cost.is_none()
                && by.cost.is_none()
                && is_ineffective(&given.limit, &by.limit)
                && (*other < index || !is_ineffective(&by.limit, &given.limit))
        });
        // The same limit twice is charged twice, which is a limit of its own.
        let Some((_, by)) = by.filter(|(_, by)| by.limit.name() != given.limit.name()) else { continue };
        let (name, rate) = (by.limit.name().rsplit('.').next().unwrap_or_default(), rate_text(&by.limit));
        let count = match given.limit.is_even() && by.limit.is_even() && by.limit.burst() == 1 {
            true => format!(
                "remove one of them, or let `{name}` count: {{ algorithm = \"sliding-log\", rate = \"{rate}\" }}"
            ),
            false => "remove one of them".to_owned(),
        };
        reader.warn(
            &given.at,
            &format!("no effect, since `{name}` never allows more: the pace is {rate}; {count}"),
        );
    }
}

/// Whether `by` never allows what `limit` would not, for jobs that cost 1.
fn is_ineffective(limit: &Limit, by: &Limit) -> bool {
    if !limit.is_even() {
        return by.most_within(period(limit)) <= limit.burst();
    }
    // Around an edge a window may release twice its count.
    let at_once = if by.is_even() { by.burst() } else { by.most_within(Duration::from_micros(1)) };
    is_at_most(by, limit) && at_once <= limit.burst()
}

/// Whether the rate of `one` is at most that of `other`.
fn is_at_most(one: &Limit, other: &Limit) -> bool {
    let (one, other) = (one.rate(), other.rate());
    let product = |count: u64, period: u64| u128::from(count) * u128::from(period);
    product(one.count(), other.period_micros()) <= product(other.count(), one.period_micros())
}

/// The period of a window, in which it allows its burst.
fn period(limit: &Limit) -> Duration {
    let rate = limit.rate();
    let micros =
        u128::from(rate.period_micros()) * u128::from(limit.burst()) / u128::from(rate.count().max(1));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// Warns of bursts that hardly show, since a replica cannot send them much faster than the rate.
fn bursts<'v>(reader: &mut Reader<'v>, own: &[&NamedLimit<'v>], settings: &Downstream) {
    let (concurrency, prefetch) = (settings.concurrency as u64, u64::from(settings.queue.prefetch));
    let (most, key) = match concurrency <= prefetch {
        true => (concurrency, "concurrency"),
        false => (prefetch, "queue.prefetch"),
    };
    let latency = LATENCY.min(settings.http.timeout);
    for given in own {
        let (burst, twice) = (given.limit.burst(), 2 * given.limit.rate().units_in(latency));
        if let Some(found) = given.burst.as_ref().filter(|_| burst > most && twice > most) {
            let problem = format!(
                "a burst of {burst} cannot be used: a replica sends at most {most} at once ({key}), and no more until \
                 they are answered, in {latency:?} or so; raise that to {burst}, or lower this"
            );
            reader.warn(found, &problem);
        }
    }
}

/// Warns if the rate cannot be reached with the concurrency of the settings.
fn concurrency<'v>(reader: &mut Reader<'v>, table: &Table<'v>, settings: &Downstream) {
    let (rate, concurrency) = (settings.limits.rate(), settings.concurrency);
    let timeout = settings.http.timeout;
    let latency = LATENCY.min(timeout);
    let needed = rate.units_in(latency);
    if needed <= concurrency as u64 {
        return;
    }
    let bearable = Duration::from_secs_f64(concurrency as f64 / rate.per_second()).as_millis();
    let problem = format!(
        "{concurrency} sends at once keep {rate} only while answers take {bearable} ms or less (http.timeout allows \
         {timeout:?}), in a replica alone; for {latency:?} raise it to {needed}"
    );
    reader.warn_of_key(table, "concurrency", &problem);
}

/// Warns of jobs that stay unacked for longer than RabbitMQ bears, which then delivers them again.
pub(super) fn unacked<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    own: &[&NamedLimit<'v>],
    http: &Http,
    declare: bool,
) {
    const BACK: &str =
        "RabbitMQ takes back what is unacked for its consumer_timeout, 30m unless it says otherwise";
    if http.timeout >= CONSUMER_TIMEOUT {
        let table = reader.table(table, "http");
        let problem =
            format!("{BACK}, and the job is sent again meanwhile; stay below that, or raise it there");
        reader.warn_of_key(&table, "timeout", &problem);
    }
    if declare {
        // Jobs that are held for long are parked.
        return;
    }
    for given in own {
        let wait = if given.limit.is_even() { given.limit.rate().interval() } else { period(&given.limit) };
        if wait > CONSUMER_TIMEOUT {
            let problem = format!(
                "jobs wait unacked until it allows them, unless they can be parked, and {BACK}; with amqp.declare = \
                 false create what docs/parking.md lists, or raise consumer_timeout"
            );
            reader.warn(&given.at, &problem);
        }
    }
}

/// The longest period of a window that a store may forget with a restart without a warning.
const LONG_WINDOW: Duration = Duration::from_secs(3600);

impl Downstream {
    /// The name of the first limit that counts over more than an hour.
    pub fn long_window(&self) -> Option<&str> {
        let plans = self.plans.iter().flat_map(|plan| plan.limits.iter());
        // Units that come back within an hour are not much to forget.
        let mut long = self
            .limits
            .iter()
            .chain(plans)
            .filter(|limit| limit.burst() > limit.rate().units_in(LONG_WINDOW).max(1));
        long.next().map(Limit::name)
    }
}

/// Warns of a store that forgets with a restart what was used of limits that count over a long time.
pub(super) fn forgotten<'v>(
    reader: &mut Reader<'v>,
    root: &Table<'v>,
    store: &Store,
    downstreams: &BTreeMap<String, Downstream>,
) {
    if store.url.expose() != "memory:" {
        return;
    }
    let long = downstreams.iter().find_map(|(name, downstream)| Some((name, downstream.long_window()?)));
    if let Some((name, limit)) = long {
        let table = reader.table(root, "store");
        let problem = format!(
            "memory: forgets with a restart what was used of `{limit}` of {name}; write such as file:/var/lib/paced/store, or redis://HOST"
        );
        reader.warn_of_key(&table, "url", &problem);
    }
}

/// Warns of jobs that are released while the file of a store cannot be written: the next process knows nothing of them.
pub(super) fn unkept<'v>(
    reader: &mut Reader<'v>,
    (root, names): (&Table<'v>, &Table<'v>),
    store: &Store,
    downstreams: &BTreeMap<String, Downstream>,
) {
    if store.file.is_none() {
        return;
    }
    let own =
        downstreams.iter().map(|(name, downstream)| (reader.table(names, name), downstream.on_unavailable));
    let mut tables: Vec<(Table<'v>, OnUnavailable)> = own.collect();
    tables.push((reader.table(root, "store"), store.on_unavailable));
    for (table, policy) in &tables {
        if *policy != OnUnavailable::Hold && reader.given(table, "on_unavailable").is_some() {
            let problem = "what is released while the file of the store cannot be written is not kept in it, and a restart \
                           allows it once more; write hold";
            reader.warn_of_key(table, "on_unavailable", problem);
        }
    }
}

/// Warns of a password in a URL to which it crosses a network without TLS; `right` is what to do.
pub(super) fn password<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    key: &Key<'_>,
    url: Option<&Secret>,
    right: &str,
) {
    if let Some(url) = url.filter(|url| url::has_password(url.expose())) {
        clear_text(reader, table, key, url, "the password", right);
    }
}

/// Warns of `what`, a secret, that crosses a network without TLS to the URL under `key`; `right` is what to do. The host is
/// not named where the URL is from a file, of which nothing is shown.
pub(super) fn clear_text<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    key: &Key<'_>,
    url: &Secret,
    what: &str,
    right: &str,
) {
    let Some(host) = url::host_without_tls(url.expose()) else { return };
    let (key, host) = match url.file() {
        Some(_) => (format!("{}_file", key.name), "another host"),
        None => (key.name.to_owned(), &*host),
    };
    reader.warn_of_key(table, &key, &format!("{what} goes to {host} without TLS; {right}"));
}

/// The shortest token that cannot be guessed.
const MIN_TOKEN: usize = 16;

/// Warns of a secret file, read for `found`, that every user of this machine can read. Its name is not shown, since it
/// may be the secret itself, under the wrong key.
#[cfg(unix)]
pub(super) fn readable<'v>(reader: &mut Reader<'v>, found: &Found<'v>, file: &Path) {
    if let Some(mode) = mode_for_all(file) {
        let problem = format!(
            "every user of this machine can read the file it names (mode {mode:03o}); take that right away (chmod o-r), \
             or that of entering one of its directories"
        );
        reader.warn(found, &problem);
    }
}

#[cfg(not(unix))]
pub(super) const fn readable<'v>(_: &mut Reader<'v>, _: &Found<'v>, _: &Path) {}

/// The mode of a file that every user can read; `None` if not all can, or if that is not known. Links are followed. A
/// user who may not enter one of the directories above the file cannot read it either.
#[cfg(unix)]
fn mode_for_all(file: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let file = std::fs::canonicalize(file).ok()?;
    let mode = |path: &Path| std::fs::metadata(path).ok().map(|data| data.permissions().mode() & 0o777);
    let is_open = |dir: &Path| mode(dir).is_some_and(|mode| mode & 0o001 != 0);
    mode(&file).filter(|mode| mode & 0o004 != 0 && file.ancestors().skip(1).all(is_open))
}

/// Warns of a directory, named at `found`, that every user of this machine can write to. One who does decides where jobs go.
#[cfg(unix)]
pub(super) fn writable<'v>(reader: &mut Reader<'v>, found: &Found<'v>, dir: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(dir).map(|data| data.permissions().mode() & 0o777);
    if let Ok(mode) = mode
        && mode & 0o002 != 0
    {
        let problem = format!(
            "every user of this machine can write to the directory (mode {mode:03o}), and so decide where jobs go; take that \
             right away (chmod o-w)"
        );
        reader.warn(found, &problem);
    }
}

#[cfg(not(unix))]
pub(super) const fn writable<'v>(_: &mut Reader<'v>, _: &Found<'v>, _: &Path) {}

/// Warns of a token under `key` that may be guessed.
pub(super) fn short_token<'v>(reader: &mut Reader<'v>, table: &Table<'v>, key: &str, token: Option<&Secret>) {
    let Some(length) = token.map(|token| token.expose().chars().count()).filter(|length| *length < MIN_TOKEN)
    else {
        return;
    };
    for key in [key.to_owned(), format!("{key}_file")] {
        if let Some(found) = reader.given(table, &key) {
            let problem = format!(
                "a token of {length} character{} may be guessed; use {MIN_TOKEN} or more, such as from openssl rand -hex \
                 32",
                if length == 1 { "" } else { "s" }
            );
            reader.warn(&found, &problem);
        }
    }
}

/// Warns of environment variables that were meant as keys and are not read, since they have one underscore for two.
pub(super) fn environment(reader: &Reader<'_>, sources: &Sources) -> Vec<ConfigError> {
    let mut warnings = Vec::new();
    for (name, text) in &sources.env {
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("PACED_")) else { continue };
        if rest.contains("__") || is_of_a_service(rest, &text.to_string_lossy()) {
            continue;
        }
        let meant = rest.to_lowercase();
        let is_meant =
            |path: &&String| path.replace('.', "_") == meant && !reader.paths.opened.contains(*path);
        let Some(path) = reader.paths.asked.keys().find(is_meant) else { continue };
        let problem = match path.contains('.') {
            true => format!("not read; write PACED_{}", path.replace('.', "__").to_uppercase()),
            false => format!(
                "not read, since variables name a section; write {path} in a file, or --set {path}=..."
            ),
        };
        let place = Place { layer: usize::MAX, position: None, source: format!("env PACED_{rest}") };
        warnings.push(ConfigError::warning(place, path.clone(), &problem));
    }
    warnings
}

/// Whether Kubernetes sets such a variable, for a Service whose name begins with `paced`.
fn is_of_a_service(name: &str, text: &str) -> bool {
    let is_address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme));
    is_address || name.ends_with("SERVICE_HOST") || name.contains("SERVICE_PORT") || name.contains("PORT_")
}
