//! The stage for the tests of the live page: private servers, real daemons and an API that keeps a log.
//!
//! Takes orders from stdin, one JSON object a line, and answers each with one line of JSON on stdout. It ends with
//! stdin, and everything that it has started ends with it.

#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::types::AMQPValue;
use paced::time::wall_now;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use support::api::{Answer, Api, Arrival};
use support::daemon::{Paced, run_cli};
use support::publish::{self, Job};
use support::servers::{Rabbit, Redis, free_port};

/// The token for changes, wherever changes are allowed.
const TOKEN: &str = "correct-horse-battery";
/// The token for looking, where one is needed.
const READ_TOKEN: &str = "look-no-hands";
/// The downstreams of the daemon with many.
const MANY: usize = 500;

/// The statuses and bodies that the API answers with, by downstream. The others are answered by 200.
type Answers = Arc<Mutex<BTreeMap<String, (u16, String)>>>;

/// Everything that the tests can order about.
struct Stage {
    rabbit: Rabbit,
    redis: Redis,
    api: Api,
    answers: Answers,
    daemons: BTreeMap<String, Daemon>,
    published: usize,
}

/// A daemon, which may have ended.
struct Daemon {
    config: String,
    url: String,
    paced: Option<Paced>,
}

#[tokio::main]
async fn main() -> Result<(), String> {
    let (rabbit, redis) = (Rabbit::try_dedicated().await?, Redis::try_dedicated().await?);
    let mut stage = Stage::new(rabbit, redis)?;
    println!("{}", json!({ "token": TOKEN, "read_token": READ_TOKEN }));
    let mut orders = BufReader::new(stdin()).lines();
    while let Some(line) = orders.next_line().await.map_err(|error| error.to_string())? {
        let order: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        let answer = stage.carry_out(&order).await.unwrap_or_else(|error| json!({ "error": error }));
        println!("{answer}");
    }
    Ok(())
}

impl Stage {
    fn new(rabbit: Rabbit, redis: Redis) -> Result<Self, String> {
        let api = Api::try_start(0).map_err(|error| error.to_string())?;
        let answers = Answers::default();
        let rule = Arc::clone(&answers);
        api.rule(move |arrival| {
            let answers = rule.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = answers.get(downstream_of(arrival));
            answer.map_or_else(Answer::ok, |(status, body)| Answer::status(*status).body(body.clone()))
        });
        Ok(Self { rabbit, redis, api, answers, daemons: BTreeMap::new(), published: 0 })
    }

    async fn carry_out(&mut self, order: &Value) -> Result<Value, String> {
        let text = |name: &str| order[name].as_str().unwrap_or_default().to_owned();
        let name = text("name");
        match order["do"].as_str().unwrap_or_default() {
            "start" => self.start(&name).await,
            "stop" => self.stop(&name).await,
            "publish" => {
                let downstreams = order["downstreams"].as_array().cloned().unwrap_or_default();
                let count = order["count"].as_u64().and_then(|count| usize::try_from(count).ok());
                let first = self.published;
                for downstream in downstreams.iter().filter_map(Value::as_str) {
                    self.publish(prefix(&name), downstream, count.unwrap_or(1), &order["later"]).await;
                }
                Ok(json!({ "first": first }))
            }
            "answer" => {
                let status = order["status"].as_u64().and_then(|status| u16::try_from(status).ok());
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                match status {
                    Some(status) => answers.insert(text("downstream"), (status, text("body"))),
                    None => answers.remove(&text("downstream")),
                };
                Ok(json!({}))
            }
            "count" => {
                let wanted = text("downstream");
                let arrivals = self.api.arrivals();
                let count = arrivals.iter().filter(|arrival| downstream_of(arrival) == wanted).count();
                Ok(json!({ "count": count }))
            }
            "status" => self.status(&name, &text("downstream")).await,
            other => Err(format!("there is no order `{other}`")),
        }
    }

    /// Publishes jobs, which wait for as many seconds if `later` says so.
    async fn publish(&mut self, prefix: &str, downstream: &str, count: usize, later: &Value) {
        let first = self.published;
        self.published += count;
        let not_before = later.as_i64().map(|seconds| wall_now().0 / 1000 + 1000 * seconds);
        let job = |n: usize| {
            let job = Job::new(format!("job-{n}")).body("{}");
            match not_before {
                Some(at) => job.header_value("paced-not-before", AMQPValue::LongLongInt(at)),
                None => job,
            }
        };
        let jobs = (first..self.published).map(job).collect();
        publish::publish(&self.rabbit.url(), prefix, downstream, jobs).await;
    }

    /// Starts a daemon, or one that was stopped again, at the same address.
    async fn start(&mut self, name: &str) -> Result<Value, String> {
        if !self.daemons.contains_key(name) {
            let listen = format!("127.0.0.1:{}", free_port());
            let config = self.config(name, &listen)?;
            let url = format!("http://{listen}/");
            self.daemons.insert(name.to_owned(), Daemon { config, url, paced: None });
        }
        let Some(daemon) = self.daemons.get_mut(name) else { return Err(name.to_owned()) };
        if daemon.paced.is_none() {
            let paced = Paced::try_start(&daemon.config, &[], &[]).await?;
            paced.try_ready().await?;
            daemon.paced = Some(paced);
        }
        Ok(json!({ "url": daemon.url, "pid": daemon.paced.as_ref().map(Paced::pid) }))
    }

    async fn stop(&mut self, name: &str) -> Result<Value, String> {
        let running = self.daemons.get_mut(name).and_then(|daemon| daemon.paced.take());
        let paced = running.ok_or_else(|| format!("{name} does not run"))?;
        paced.term();
        Ok(json!({ "code": paced.wait_exit(Duration::from_secs(40)).await }))
    }

    /// What `paced status` says of a downstream.
    async fn status(&self, name: &str, downstream: &str) -> Result<Value, String> {
        let url = self.daemons.get(name).map(|daemon| daemon.url.as_str()).ok_or("no such daemon")?;
        let args = ["--set", "admin.token=unused", "--admin", url, "-o", "json", "status", downstream];
        let done = run_cli(&args, b"").await;
        serde_json::from_str(&done.stdout).map_err(|error| format!("{error}: {done:?}"))
    }

    /// The configuration of a daemon. `a` and `b` are replicas; the others are alone, on queues of their own.
    fn config(&self, name: &str, listen: &str) -> Result<String, String> {
        let prefix = prefix(name);
        let store = if prefix == "fleet" { self.redis.url() } else { "memory:".to_owned() };
        let (change, look) =
            (format!("token = '{TOKEN}'\nshow_bodies = true\n"), format!("read_token = '{READ_TOKEN}'\n"));
        let tokens = match name {
            "a" | "b" | "many" => change,
            "guarded" => change + &look,
            "open" => String::new(),
            other => return Err(format!("there is no daemon `{other}`")),
        };
        // The thread for precise releases takes more than a page does, and not always as much.
        let precision = if name == "many" { "coarse" } else { "fine" };
        let mut config = format!(
            "precision = '{precision}'\n[amqp]\nurl = '{}'\nprefix = '{prefix}'\n[store]\nurl = '{store}'\n\
             [admin]\nlisten = '{listen}'\n{tokens}",
            self.rabbit.url()
        );
        let downstreams: Vec<(String, &str)> = match name {
            "many" => (0..MANY).map(|n| (format!("partner-{n}"), "rate = '1/s'\n")).collect(),
            _ => FEW.iter().map(|(name, terms)| ((*name).to_owned(), *terms)).collect(),
        };
        for (downstream, terms) in downstreams {
            let url = format!("{}{downstream}/", self.api.url());
            let _ = writeln!(config, "[downstreams.{downstream}]\n{terms}http.base_url = '{url}'");
        }
        Ok(config)
    }
}

/// The downstreams of all daemons but that with many.
const FEW: [(&str, &str); 4] = [
    ("billing", "rate = '50/s'\n"),
    ("crm-sync", "rate = '1000/minute'\nretry.max_attempts = 2\nretry.max_backoff = '2s'\n"),
    ("exports", "rate = '100/s'\nqueue.prefetch = 50\n"),
    ("invoice-mailer", "rate = '10/s'\nlimits = [{ algorithm = 'quota', rate = '30000000/month' }]\n"),
];

/// The prefix of the queues of a daemon.
fn prefix(name: &str) -> &str {
    if name == "a" || name == "b" { "fleet" } else { name }
}

/// The downstream whose request this is: the first part of its path.
fn downstream_of(arrival: &Arrival) -> &str {
    arrival.path.trim_start_matches('/').split('/').next().unwrap_or_default()
}
