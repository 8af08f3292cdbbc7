//! The servers, and what every scenario does with them.

use std::fmt::Write as _;
use std::future::ready;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::support::client::Client;
use crate::support::daemon::{Paced, run_cli, scratch};
use crate::support::prometheus::Scrape;
use crate::support::publish::{Job, open, publish_to};
use crate::support::servers::{Rabbit, Redis, free_port};
use crate::support::{apart, unique};

/// How many declarations or deletions are under way at a time.
const AT_A_TIME: usize = 64;

/// Private servers, which end with it.
pub struct Stage {
    pub rabbit: Rabbit,
    pub redis: Redis,
    /// The number of runs of each measurement.
    pub runs: usize,
    /// Whether this version of paced has `[admin]`.
    admin: bool,
}

/// The configuration of a daemon, apart from its downstreams.
#[derive(Clone, Debug)]
pub struct Site {
    pub amqp: String,
    pub store: String,
    /// The prefix of exchanges, queues and keys.
    pub prefix: String,
    /// If false, the queues exist already.
    pub declare: bool,
    /// The port for metrics, if they are served.
    pub admin: Option<u16>,
}

impl Stage {
    pub async fn build(runs: usize) -> Result<Self, String> {
        eprintln!("starting a private Redis and a private RabbitMQ (about 10 s)");
        let (redis, rabbit) = (Redis::try_dedicated().await?, Rabbit::try_dedicated().await?);
        Ok(Self { redis, rabbit, runs, admin: has_admin().await? })
    }

    /// A site with names of its own, and the Redis store.
    pub fn site(&self, topic: &str) -> Site {
        let (amqp, store) = (self.rabbit.url(), self.redis.url());
        Site { amqp, store, prefix: unique(topic), declare: true, admin: None }
    }

    /// As [`Stage::site`], with metrics if this version has them.
    pub fn site_with_metrics(&self, topic: &str) -> Site {
        Site { admin: self.admin.then(free_port), ..self.site(topic) }
    }

    /// Declares queues of this kind.
    pub async fn declare(&self, queues: Vec<String>, kind: Kind) -> Result<(), String> {
        let url = self.rabbit.url();
        let declare = async move {
            let (connection, channel) = open(&url).await;
            let mut declared = Vec::with_capacity(queues.len());
            for queue in queues {
                let mut arguments = FieldTable::default();
                arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.name().into()));
                let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
                declared.push(channel.queue_declare(queue.as_str().into(), options, arguments));
            }
            stream::iter(declared).buffered(AT_A_TIME).try_for_each(|_| ready(Ok(()))).await?;
            connection.close(200, "done".into()).await
        };
        apart(declare).await.map_err(|error| format!("a queue cannot be declared: {error}"))
    }

    /// Deletes queues, with what is in them.
    pub async fn delete(&self, queues: Vec<String>) -> Result<(), String> {
        let url = self.rabbit.url();
        let delete = async move {
            let (connection, channel) = open(&url).await;
            let mut deleted = Vec::with_capacity(queues.len());
            for queue in queues {
                deleted.push(channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()));
            }
            stream::iter(deleted).buffered(AT_A_TIME).try_for_each(|_| ready(Ok(()))).await?;
            connection.close(200, "done".into()).await
        };
        apart(delete).await.map_err(|error| format!("a queue cannot be deleted: {error}"))
    }

    /// Declares durable exchanges, which nothing is bound to.
    pub async fn declare_exchanges(&self, exchanges: Vec<String>) -> Result<(), String> {
        let url = self.rabbit.url();
        let declare = async move {
            let (connection, channel) = open(&url).await;
            let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            for exchange in exchanges {
                let arguments = FieldTable::default();
                channel
                    .exchange_declare(exchange.as_str().into(), ExchangeKind::Fanout, options, arguments)
                    .await?;
            }
            connection.close(200, "done".into()).await
        };
        apart(declare).await.map_err(|error| format!("an exchange cannot be declared: {error}"))
    }

    /// Publishes to a queue by its name, confirmed: `count` jobs with bodies of this size.
    pub async fn fill(&self, queue: &str, count: usize, size: usize) {
        let jobs = Job::many("job", count).into_iter().map(|job| job.body(vec![b'x'; size]));
        publish_to(&self.rabbit.url(), "", queue, jobs.collect()).await;
    }

    /// The number of scripts that Redis has run so far.
    pub async fn script_calls(&self) -> Result<f64, String> {
        self.calls(&["eval", "evalsha", "fcall"]).await
    }

    /// How often Redis has run these commands so far, also in scripts.
    pub async fn calls(&self, commands: &[&str]) -> Result<f64, String> {
        let info = self.redis.command(&["INFO", "commandstats"]).await;
        let info = info.map_err(|error| format!("no INFO from Redis: {error}"))?;
        let calls = |line: &str| {
            let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            commands
                .contains(&command)
                .then(|| figures.strip_prefix("calls=")?.split(',').next()?.parse::<f64>().ok())?
        };
        Ok(info.lines().filter_map(calls).sum())
    }
}

/// A kind of queue.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Quorum,
    Classic,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl Site {
    /// The configuration with these tables of downstreams.
    pub fn config(&self, downstreams: &str) -> String {
        let mut text = format!(
            "[amqp]\nurl = '{}'\nprefix = '{}'\ndeclare = {}\n[store]\nurl = '{}'\nkey_prefix = '{}'\n",
            self.amqp, self.prefix, self.declare, self.store, self.prefix
        );
        if let Some(port) = self.admin {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "[admin]\nlisten = '127.0.0.1:{port}'");
        }
        text + downstreams
    }

    /// Starts a daemon and waits until it is ready.
    pub async fn replica(&self, downstreams: &str) -> Result<Paced, String> {
        let paced = Paced::try_start(&self.config(downstreams), &[], &[]).await?;
        // A thousand downstreams may cause as many lines in the log.
        paced.try_ready().await.map_err(|error| error.lines().take(12).collect::<Vec<_>>().join("\n"))?;
        Ok(paced)
    }

    /// The daemon's metrics; `None` if it has none.
    pub async fn scrape(&self) -> Result<Option<Scrape>, String> {
        let Some(port) = self.admin else { return Ok(None) };
        let url = format!("http://127.0.0.1:{port}/metrics");
        let reply = Client::new().get(&url).await.map_err(|error| format!("{url}: {error}"))?;
        match reply.status {
            200 => Ok(Some(Scrape::read(&reply.text))),
            status => Err(format!("{url}: status {status}")),
        }
    }
}

/// Ends a daemon as a deployment does, so that it does not affect the next measurement.
pub async fn stop(paced: Paced) -> Result<(), String> {
    paced.term();
    match paced.wait_exit(Duration::from_secs(40)).await {
        0 => Ok(()),
        code => Err(format!("paced ended with {code}; its log:\n{}", paced.log().join("\n"))),
    }
}

/// Whether this version of paced knows `[admin]`: one without it rejects the table as an unknown key.
async fn has_admin() -> Result<bool, String> {
    let folder = tempfile::TempDir::new_in(scratch()?).map_err(|error| error.to_string())?;
    let file = folder.path().join("paced.toml");
    let text =
        "[admin]\nlisten = '127.0.0.1:9750'\n[downstreams.x]\nrate = '1/s'\nhttp.base_url = 'http://x/'\n";
    std::fs::write(&file, text).map_err(|error| error.to_string())?;
    let done = run_cli(&["check", "-c", &file.to_string_lossy()], b"").await;
    match done.code {
        0 => Ok(true),
        _ if done.stderr.contains("admin") => Ok(false),
        code => Err(format!("`paced check` ended with {code}:\n{}", done.stderr)),
    }
}
