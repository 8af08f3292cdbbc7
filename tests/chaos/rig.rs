//! The rig of every scenario: four replicas and 2 500 jobs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use paced::Rate;
use serde_json::Value;
use tempfile::TempDir;

use crate::LONG;
use crate::cold::late;
use crate::support::api::{Api, stamp};
use crate::support::daemon::{Output, Paced, binary, message, run_cli, scratch};
use crate::support::publish::Job;
use crate::support::servers::{Rabbit, Redis, free_port, rabbit, redis};
use crate::support::site::{NAME, Site};
use crate::support::unique;
use crate::verdict::{HandOver, Run};
use crate::watch::Watch;

/// The number of replicas that share the limit.
pub(crate) const REPLICAS: usize = 4;
/// The number of jobs.
pub(crate) const JOBS: usize = 2500;
/// The limit of most scenarios.
pub(crate) const RATE: &str = "200/s";
/// The header that names the replica of a request.
pub(crate) const REPLICA: &str = "x-replica";
/// Has a replica log each hand-over.
const LOG_HAND_OVERS: (&str, &str) = ("RUST_LOG", "info,paced::jobs=debug");
/// The token of the admin API.
const TOKEN: &str = "chaos-0123456789abcdef";

/// The seed of this run of a scenario: it decides when the faults come.
pub(crate) struct Chaos {
    pub(crate) name: &'static str,
    pub(crate) rng: fastrand::Rng,
}

impl Chaos {
    /// Starts a scenario with the seed of the environment, or a new one, and prints it.
    pub(crate) fn begin(name: &'static str) -> Self {
        let given = std::env::var("CHAOS_SEED").ok();
        let seed =
            given.map_or_else(|| fastrand::u64(..), |text| text.parse().expect("CHAOS_SEED: a number"));
        eprintln!("{name}: CHAOS_SEED={seed}");
        Self { name, rng: fastrand::Rng::with_seed(seed) }
    }

    /// `count` numbers of jobs at which a fault occurs: in order, far from the beginning, from the end, and from each
    /// other.
    pub(crate) fn moments(&mut self, count: usize) -> Vec<usize> {
        let (first, last) = (JOBS / 8, JOBS * 5 / 8);
        let stride = (last - first) / count;
        (0..count).map(|n| first + n * stride + self.rng.usize(..=stride / 2)).collect()
    }

    /// The number of a random replica.
    pub(crate) fn victim(&mut self) -> usize {
        self.rng.usize(..REPLICAS)
    }
}

/// Replicas that are ready, and the API that they call.
pub(crate) struct Rig {
    pub(crate) chaos: Chaos,
    pub(crate) site: Site,
    pub(crate) replicas: Vec<Paced>,
    /// The highest limit of the run.
    pub(crate) rate: Rate,
    /// The build that replicas are started of.
    pub(crate) program: PathBuf,
    /// The port of the first replica's admin API.
    admin: u16,
    watch: Watch,
    /// The hand-overs of replicas that were replaced.
    ended: Vec<(Timestamp, Duration)>,
}

impl Rig {
    /// Four replicas of 200/s on this store.
    pub(crate) async fn on(chaos: Chaos, redis: &Redis) -> Self {
        Self::at(chaos, &redis.url()).await
    }

    /// Four replicas of 200/s on the store at this URL.
    pub(crate) async fn at(chaos: Chaos, store: &str) -> Self {
        Self::with(chaos, &format!("rate = '{RATE}'"), [store; REPLICAS]).await
    }

    /// Four replicas of this downstream, each of which finds the store at a URL of its own.
    pub(crate) async fn with(chaos: Chaos, downstream: &str, stores: [impl fmt::Display; REPLICAS]) -> Self {
        let rig = Self::empty(chaos, rabbit().await.url(), stores[0].to_string(), downstream);
        rig.filled(stores.map(|store| format!("store.url={store}"))).await
    }

    /// Four replicas of this downstream that are another build.
    pub(crate) async fn running(program: PathBuf, chaos: Chaos, downstream: &str, redis: &Redis) -> Self {
        let rig = Self::empty(chaos, rabbit().await.url(), redis.url(), downstream);
        let setting = format!("store.url={}", redis.url());
        Self { program, ..rig }.filled([(); REPLICAS].map(|()| setting.clone())).await
    }

    /// Four replicas of 200/s on the nodes of a cluster of brokers; jobs are published to the first one.
    pub(crate) async fn between(chaos: Chaos, nodes: &[Rabbit]) -> Self {
        let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let all = format!("amqp.url=amqp://{}/%2f", addresses.join(","));
        let (amqp, store) = (nodes[0].url(), redis().await.url());
        let rig = Self::empty(chaos, amqp, store, &format!("rate = '{RATE}'"));
        rig.filled([(); REPLICAS].map(|()| all.clone())).await
    }

    fn empty(chaos: Chaos, amqp: String, store: String, downstream: &str) -> Self {
        let site = Site {
            amqp,
            store,
            prefix: unique(chaos.name),
            api: Api::start(),
            // The windows are small enough that jobs are left for the others while one replica is cut off.
            downstream: format!("queue.prefetch = 300\n{downstream}"),
            http: String::new(),
        };
        site.api.watch_stalls();
        Self {
            chaos,
            site,
            replicas: Vec::new(),
            rate: RATE.parse().unwrap(),
            program: binary(),
            admin: free_port(),
            watch: Watch::start(),
            ended: Vec::new(),
        }
    }

    /// Starts the replicas, each with this setting of its own.
    async fn filled(mut self, settings: [String; REPLICAS]) -> Self {
        for (number, setting) in settings.iter().enumerate() {
            let replica = self.start(number, &["--set", setting]).await;
            self.replicas.push(replica);
        }
        for replica in &self.replicas {
            replica.wait_ready().await;
        }
        self
    }

    /// Starts a replica that logs each hand-over.
    async fn start(&self, number: usize, args: &[&str]) -> Paced {
        Paced::try_start_binary(&self.program, &self.config(number), args, &[LOG_HAND_OVERS])
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The configuration of one replica, as the site has it now.
    pub(crate) fn config(&self, number: usize) -> String {
        let port = if number == 0 { self.admin } else { 0 };
        let site = self.site.config();
        format!(
            "[admin]\nlisten = '127.0.0.1:{port}'\ntoken = '{TOKEN}'\n{site}headers = {{ {REPLICA} = '{number}' }}\n"
        )
    }

    /// Ends a replica, and starts another one with the configuration that the site has now.
    pub(crate) async fn replace(&mut self, number: usize) {
        assert_eq!(self.replicas[number].stop().await, 0, "{}", self.log());
        self.again(number).await;
    }

    /// Kills a replica, and starts another one.
    pub(crate) async fn kill(&mut self, number: usize) {
        self.replicas[number].kill9();
        self.again(number).await;
    }

    /// Starts a replica in the place of one that has ended, whose hand-overs are kept.
    async fn again(&mut self, number: usize) {
        self.ended.extend(self.replicas[number].log().iter().filter_map(|line| hand_over(line)));
        self.replicas[number] = self.start(number, &[]).await;
        self.replicas[number].wait_ready().await;
    }

    /// Makes every replica read the configuration that the site has now; returns when they were signalled.
    pub(crate) fn reload(&self) -> u64 {
        for (number, replica) in self.replicas.iter().enumerate() {
            std::fs::write(replica.config_file(), self.config(number)).unwrap();
        }
        let signalled_at = stamp();
        self.replicas.iter().for_each(Paced::hangup);
        signalled_at
    }

    /// Runs a command against the first replica.
    pub(crate) async fn cli(&self, args: &[&str]) -> Output {
        let folder = TempDir::new_in(scratch().unwrap()).unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, self.config(0)).unwrap();
        let done = run_cli(&[&["-c", file.to_str().unwrap()], args].concat(), b"").await;
        assert_eq!(done.code, 0, "{args:?}: {}{}", done.stdout, done.stderr);
        done
    }

    /// Publishes the jobs.
    pub(crate) async fn publish(&self) {
        self.publish_some(JOBS).await;
    }

    /// Publishes this many jobs.
    pub(crate) async fn publish_some(&self, jobs: usize) {
        self.site.publish(Job::many("job", jobs)).await;
    }

    /// Publishes jobs after the first `jobs` until `backlog` of them wait; returns how many there are then.
    pub(crate) async fn refill(&self, jobs: usize, backlog: usize) -> usize {
        let wanted = jobs.max(self.site.api.count() + backlog);
        self.site.publish(Job::many("job", wanted).split_off(jobs)).await;
        wanted
    }

    /// Waits until the API has seen this many requests; returns when that was.
    pub(crate) async fn reach(&self, requests: usize) -> u64 {
        assert!(
            self.site.api.reaches(requests, LONG).await,
            "{} requests, not {requests}, came within {LONG:?}\n{}",
            self.site.api.count(),
            self.log()
        );
        stamp()
    }

    /// The warnings of the replicas.
    pub(crate) fn log(&self) -> String {
        let lines = self.replicas.iter().enumerate().flat_map(|(number, replica)| {
            let log = replica.log().into_iter();
            let is_told = |line: &String| !line.contains("\"INFO\"") && !line.contains("\"DEBUG\"");
            log.filter(is_told).map(move |line| format!("{number}: {line}"))
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits until every job is delivered, ends the replicas, and counts.
    pub(crate) async fn finish(self) -> Run {
        self.finish_some(JOBS).await
    }

    /// As [`Rig::finish`], for this many jobs.
    pub(crate) async fn finish_some(self, jobs: usize) -> Run {
        self.reach(jobs).await;
        self.end(jobs).await
    }

    /// Ends the replicas, which have no jobs left, and counts.
    pub(crate) async fn end(self, jobs: usize) -> Run {
        // Jobs that would come twice come before the replicas have ended.
        for replica in &self.replicas {
            assert_eq!(replica.stop().await, 0, "{}", self.log());
        }
        self.site.depth(&self.site.queue(), 0, LONG).await;
        let log = self.log();
        let logs = self.replicas.iter().flat_map(|replica| replica.log());
        let handed_over = logs.filter_map(|line| hand_over(&line)).chain(self.ended.iter().copied());
        let handed_over = on_the_clock_of_arrivals(handed_over);
        let what = (self.chaos.name, jobs, self.rate);
        let (name, api) = (self.chaos.name, self.site.api.longest_stall());
        eprintln!("{name}: the runtime of the API stood still for {api:?} at most, which excuses nothing");
        let stalls = self.watch.end();
        Run::new(what, (self.site.api.arrivals(), handed_over), stalls, log)
    }
}

/// Reads from a line of a replica's log when a job of the site was handed over, and how late. `None` if the line is another one. The time
/// is that of the wall clock, which no scenario moves.
fn hand_over(line: &str) -> Option<(Timestamp, Duration)> {
    if message(line).as_deref() != Some("released") {
        return None;
    }
    let line: Value = serde_json::from_str(line).unwrap();
    if line["downstream"].as_str().is_some_and(|downstream| downstream != NAME) {
        return None;
    }
    let late = late(line["late"].as_str().unwrap());
    // An older build has only the slot, by the clock of Redis, which in its runs is this machine's.
    let at = line["at"].as_i64().map_or_else(
        || Timestamp::from_microsecond(line["slot"].as_i64().unwrap()).unwrap() + late,
        |at| Timestamp::from_microsecond(at).unwrap(),
    );
    Some((at, late))
}

/// These in the unit and on the clock of [`stamp`].
fn on_the_clock_of_arrivals(hand_overs: impl Iterator<Item = (Timestamp, Duration)>) -> Vec<HandOver> {
    let (wall, own) = (Timestamp::now().as_nanosecond(), i128::from(stamp()));
    let at = |at: Timestamp| u64::try_from(own - (wall - at.as_nanosecond())).unwrap();
    hand_overs.map(|(time, late)| HandOver { at: at(time), late }).collect()
}

/// Lets a fault last for `span` of real time, and returns when that began.
pub(crate) async fn rest(span: Duration) -> u64 {
    let began = stamp();
    tokio::time::sleep(span).await;
    began
}
