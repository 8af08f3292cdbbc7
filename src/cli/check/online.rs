//! Checks the servers that a configuration names.

use std::time::Duration;

use paced::amqp::{Findings, Server};
use paced::config::{Loaded, Settings};
use paced::store::Keeping;
use paced::{FileStore, RedisStore, Store as _, StoreError};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Report;
use crate::cli::exit::Exit;
use crate::cli::parts;
use crate::daemon::{Clients, Handles, MEMORY};

/// The answers of the store that are timed; the fastest counts, since others waited for something else.
const TIMED: usize = 5;

/// How long the store may take to be connected to, or to answer: a tool that is run once is more patient than a daemon.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn check(loaded: &Loaded, report: &mut Report) -> Result<(), Exit> {
    broker(&loaded.settings, report).await?;
    store(loaded, report).await?;
    tokens(&loaded.settings, report).await
}

/// Asks for a token of each client of OAuth2.
async fn tokens(settings: &Settings, report: &mut Report) -> Result<(), Exit> {
    let (mut clients, mut handles) = (Clients::default(), Handles::default());
    for (name, downstream) in &settings.downstreams {
        if let Err(error) = clients.of(name, &downstream.http, &mut handles) {
            report.error(format_args!("paced: downstreams.{name}.http.oauth2: {error}"), Exit::Config);
        }
    }
    let mut servers = Vec::new();
    for (settings, client) in clients.iter() {
        let (url, client_id) = (&settings.token_url, &settings.client_id);
        match client.check().await {
            Ok(()) => report.line(format_args!("token ok: {url} (client {client_id})"))?,
            Err(error) => report.error(format_args!("paced: {url}: {error}"), Exit::Unavailable),
        }
        servers.push(url.as_str());
    }
    if !servers.is_empty() {
        report.set("token_servers", json!(servers));
    }
    Ok(())
}

async fn broker(settings: &Settings, report: &mut Report) -> Result<(), Exit> {
    let options = parts::amqp(settings)?;
    let Findings { server, errors, warnings, .. } = paced::amqp::check_online(&options).await;
    errors.iter().for_each(|error| report.error(format_args!("paced: {error}"), Exit::from(error)));
    warnings.iter().for_each(|warning| report.warn(format_args!("paced: warning: {warning}")));
    if let Some(server) = &server {
        warn_of_bodies(server, settings, report);
    }
    if !errors.is_empty() {
        report.set("broker", Value::Null);
        return Ok(());
    }
    let url = settings.amqp.url.to_string();
    report.set("broker", json!({ "url": url, "server": server.as_ref().map(ToString::to_string) }));
    let server = server.map_or_else(String::new, |server| format!(" ({server})"));
    report.line(format_args!("broker ok: {url}{server}"))
}

/// Warns of bodies that a downstream allows and the broker does not.
fn warn_of_bodies(server: &Server, settings: &Settings, report: &mut Report) {
    let Some(bound) = server.max_message_size() else { return };
    for (name, downstream) in &settings.downstreams {
        let max_body = downstream.http.max_body;
        if max_body > bound {
            report.warn(format_args!(
                "paced: warning: downstreams.{name}.http.max_body is {max_body} bytes, and {server} takes messages of \
                 {bound} bytes at most unless its max_message_size says otherwise; raise that, or lower max_body"
            ));
        }
    }
}

async fn store(loaded: &Loaded, report: &mut Report) -> Result<(), Exit> {
    let settings = &loaded.settings;
    let url = settings.store.url.to_string();
    if settings.store.url.expose() == MEMORY {
        report.set("store", json!({ "url": url }));
        return report.line(format_args!("store ok: {url}"));
    }
    if let Some(file) = &settings.store.file {
        return match FileStore::probe(file) {
            Ok(()) => {
                report.set("store", json!({ "url": url }));
                report.line(format_args!("store ok: {url}"))
            }
            Err(error) => {
                report.set("store", Value::Null);
                report.error(format_args!("paced: {error}"), Exit::from(&error));
                Ok(())
            }
        };
    }
    let round_trip = match redis(loaded, report).await {
        Ok(round_trip) => round_trip,
        Err(error) => {
            report.set("store", Value::Null);
            report.error(format_args!("paced: {error}"), Exit::from(&error));
            return Ok(());
        }
    };
    let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    report.set("store", json!({ "url": url, "round_trip_us": micros }));
    report.line(format_args!("store ok: {url}"))?;
    for (name, downstream) in &settings.downstreams {
        if downstream.horizon <= round_trip {
            let (key, twice) = (format!("downstreams.{name}.horizon"), (2 * round_trip).as_millis());
            let problem = format!(
                "below the {micros} us that an answer of the store takes: replicas stretch it, and a loss of the store \
                 stops them for as long; raise it to {twice}ms, or move the store nearer"
            );
            report.warn(loaded.warning(&key, &problem));
        }
    }
    Ok(())
}

/// Asks the store, warns of its settings, and returns how long an answer takes.
async fn redis(loaded: &Loaded, report: &mut Report) -> Result<Duration, StoreError> {
    let settings = &loaded.settings;
    let options = settings.store.redis_options()?.with_timeouts(PATIENCE, PATIENCE);
    let store = RedisStore::open(settings.store.url.expose(), options)?;
    store.ping().await?;
    let mut fastest = Duration::MAX;
    for _ in 0..TIMED {
        let start = Instant::now();
        store.ping().await?;
        fastest = fastest.min(start.elapsed());
    }
    let mut problems = Vec::new();
    for name in settings.downstreams.keys() {
        let forgets = long_window(settings, name);
        for problem in kept(store.keeping(name).await?, forgets.as_deref()) {
            // Downstreams may be on one server, and then have the same problems.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }
    problems.iter().for_each(|problem| report.warn(loaded.warning("store.url", problem)));
    Ok(fastest)
}

/// The first limit of a downstream that counts over a long time.
fn long_window(settings: &Settings, name: &str) -> Option<String> {
    settings.downstreams[name].long_window().map(|limit| format!("`{limit}` of {name}"))
}

/// Returns what is wrong with how a store keeps the state of limits.
fn kept(keeping: Option<Keeping>, forgets: Option<&str>) -> Vec<String> {
    let Some(Keeping { evicts, appends, failed }) = keeping else {
        return vec![
            "does not tell what it does with keys, since the user may not ask for INFO; grant +info"
                .to_owned(),
        ];
    };
    let mut problems = Vec::new();
    if let Some(policy) = evicts {
        problems.push(format!(
            "may evict the state of limits ({policy}), whose counts then start at 0; set maxmemory-policy noeviction"
        ));
    }
    if let Some(what) = failed {
        problems.push(format!(
            "could not write {what} the last time, and may refuse calls; check its disk and its log"
        ));
    }
    if let Some(limit) = forgets.filter(|_| !appends) {
        problems.push(format!("forgets with a restart what was used of {limit}; set appendonly yes"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_should_not_do() {
        let keeping = |evicts: Option<&str>, appends, failed| {
            Some(Keeping { evicts: evicts.map(str::to_owned), appends, failed })
        };
        assert!(kept(keeping(None, true, None), Some("`quota-0` of a")).is_empty());
        assert!(kept(keeping(None, false, None), None).is_empty(), "a pace is kept too");
        let all = kept(keeping(Some("allkeys-lru"), false, Some("its log")), Some("`quota-0` of a"));
        assert_eq!(all.len(), 3);
        for (problem, part) in
            all.iter().zip(["(allkeys-lru)", "could not write its log", "used of `quota-0` of a"])
        {
            assert!(problem.contains(part) && problem.contains("; "), "{problem}");
        }
        assert!(kept(None, None)[0].contains("grant +info"));
    }
}
