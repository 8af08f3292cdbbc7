//! One downstream with its environment: names of its own on a broker and a store, and its API.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::api::{Answer, Api, Arrival, Gate};
use super::count::{Tally, tally};
use super::daemon::{Output, Paced, run_cli_with};
use super::publish::{self, Job, Taken};
use super::servers::{Rabbit, Redis, rabbit, redis};
use super::{pause, poll, real_now, unique};

/// The downstream's name.
pub const NAME: &str = "billing";

/// The environment of one test.
pub struct Site {
    /// The URL of the broker.
    pub amqp: String,
    /// The URL of the store.
    pub store: String,
    /// The prefix of every exchange, queue and key.
    pub prefix: String,
    /// The API that the downstream calls.
    pub api: Api,
    /// The table `[downstreams.billing]`, and tables below it except `http`.
    pub downstream: String,
    /// The table `[downstreams.billing.http]`, except `base_url`.
    pub http: String,
}

impl Site {
    /// A site on the servers that all tests of the binary share.
    pub async fn shared(topic: &str, downstream: &str) -> Self {
        Self::on(rabbit().await, redis().await, topic, downstream)
    }

    /// A site on these servers.
    pub fn on(rabbit: &Rabbit, redis: &Redis, topic: &str, downstream: &str) -> Self {
        let (amqp, store) = (rabbit.url(), redis.url());
        let (downstream, http) = (downstream.to_owned(), String::new());
        Self { amqp, store, prefix: unique(topic), api: Api::start(), downstream, http }
    }

    /// The configuration of each replica.
    pub fn config(&self) -> String {
        format!(
            "[amqp]\nurl = '{}'\nprefix = '{}'\n[store]\nurl = '{}'\nkey_prefix = '{}'\n\
             [downstreams.{NAME}]\n{}\n[downstreams.{NAME}.http]\nbase_url = '{}'\n{}\n",
            self.amqp,
            self.prefix,
            self.store,
            self.prefix,
            self.downstream,
            self.api.url(),
            self.http
        )
    }

    /// Declares what `paced run` declares, without a replica.
    pub async fn declare(&self) {
        let done = self.cli(&["publish", NAME, "--count", "0"]).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
    }

    /// Starts a replica and waits until it is ready.
    pub async fn replica(&self) -> Paced {
        Paced::spawn(&self.config()).await
    }

    /// Has the API hold all answers but the first `free` until the gate is opened, so that jobs cannot run out before a
    /// command counts, however long that takes: at most `free` and the concurrency of each replica arrive before.
    pub fn hold_after(&mut self, free: usize) -> Gate {
        "timeout = '300s'".clone_into(&mut self.http);
        let (gate, asked) = (Gate::closed(), AtomicUsize::new(0));
        let held = gate.clone();
        self.api.rule(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
            number if number < free => Answer::ok(),
            _ => Answer::ok().gated(&held),
        });
        gate
    }

    /// Waits until this many slots were granted to these replicas and used or missed; returns how many were missed. A
    /// missed slot is a unit of its window that is lost.
    pub async fn used_up(&self, units: usize, replicas: &[&Paced], within: Duration) -> usize {
        let start = real_now();
        loop {
            let missed = slots_missed(replicas).await;
            let used = self.api.count();
            if used + missed >= units {
                return missed;
            }
            assert!(start.elapsed() < within, "{used} requests and {missed} missed slots are not {units}");
            pause().await;
        }
    }

    /// Publishes with the test's own client.
    pub async fn publish(&self, jobs: Vec<Job>) {
        publish::publish(&self.amqp, &self.prefix, NAME, jobs).await;
    }

    /// Runs a command with the site's configuration.
    pub async fn cli(&self, args: &[&str]) -> Output {
        self.cli_with(args, &[]).await
    }

    /// As [`Site::cli`], with more environment variables.
    pub async fn cli_with(&self, args: &[&str], envs: &[(&str, &str)]) -> Output {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, self.config()).unwrap();
        let mut all = vec!["-c", file.to_str().unwrap()];
        all.extend(args);
        run_cli_with(folder.path(), &all, b"", envs).await
    }

    /// The queue of the jobs.
    pub fn queue(&self) -> String {
        format!("{}.jobs.{NAME}", self.prefix)
    }

    /// The queue of the dead letters.
    pub fn dead_queue(&self) -> String {
        format!("{}.dead.{NAME}", self.prefix)
    }

    /// Takes `count` dead letters, once they are there.
    pub async fn dead(&self, count: u32, within: Duration) -> Vec<Taken> {
        self.depth(&self.dead_queue(), count, within).await;
        publish::drain(&self.amqp, &self.dead_queue()).await
    }

    /// Waits until `queue` holds `count` messages that are ready.
    pub async fn depth(&self, queue: &str, count: u32, within: Duration) {
        let mut last = None;
        let reached =
            poll(within, || async { (publish::depth(&self.amqp, queue).await == Some(count)).then_some(()) })
                .await;
        if reached.is_none() {
            last = publish::depth(&self.amqp, queue).await;
        }
        assert!(reached.is_some(), "{queue} holds {last:?} messages, not {count}");
    }
}

/// The number of slots that these replicas were granted and did not use.
pub async fn slots_missed(replicas: &[&Paced]) -> usize {
    let mut missed = 0;
    for replica in replicas {
        missed += replica.slots_missed().await;
    }
    missed
}

/// Compares the ids that were published, `STEM-0` and on, with the requests.
pub fn compare(stem: &str, count: usize, arrivals: &[Arrival]) -> Tally {
    let ids: Vec<String> = (0..count).map(|n| format!("{stem}-{n}")).collect();
    tally(ids.iter().map(String::as_str), arrivals.iter().map(Arrival::id))
}
