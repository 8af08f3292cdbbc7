//! Certificates of the broker and the store, and paced's own for them, that are replaced while jobs flow.

use std::collections::BTreeSet;

use paced::amqp::{Amqp, Error, check_online};
use paced::store::{RedisStore, Store as _};
use tokio::sync::MutexGuard;

use super::broker::Node;
use super::*;
use crate::support::api::{Answer, Api, Gate};
use crate::support::count::Tally;
use crate::support::daemon::Paced;
use crate::support::prometheus::Scrape;
use crate::support::publish::{self, Job};
use crate::support::servers::Redis;
use crate::support::site::{NAME, compare};
use crate::support::{LONG, eventually, unique, until};

/// More than are sent while certificates are replaced.
const JOBS: usize = 800;
/// Jobs that flow while the connections to the broker are closed.
const CUT: usize = 1000;
/// The most jobs that are sent at once.
const AT_ONCE: usize = 8;
/// The most jobs that are held unacked.
const HELD: usize = 16;
/// The number of messages that consumers of the node hold unacked.
const UNACKED: &str = "lists:sum([Count || [{messages_unacknowledged, Count}] <- \
                       rabbit_channel:info_all([messages_unacknowledged])])";

/// A daemon with its servers, all of which use the files of the node.
struct Bench {
    node: MutexGuard<'static, Node>,
    redis: Redis,
    rediss: u16,
    api: Api,
    prefix: String,
    config: String,
    paced: Paced,
}

impl Bench {
    async fn start() -> Self {
        let node = Node::alone().await;
        let (files, amqps) = (&node.files, node.port);
        let path = files.folder.path();
        put(path, "ours.pem", &files.ours.pem);
        files.ours.issue(&["paced"]).put(path, "old");
        let (redis, rediss) = super::store::redis(files).await;
        let (api, prefix) = (Api::start(), unique("servers"));
        let config = format!(
            "[amqp]\nurl = 'amqps://localhost:{amqps}/%2f'\nprefix = '{prefix}'\n[amqp.tls]\n{tls}\
             [store]\nurl = 'rediss://localhost:{rediss}'\nkey_prefix = '{prefix}'\n[store.tls]\n{tls}\
             [admin]\nlisten = '127.0.0.1:0'\n\
             [downstreams.{NAME}]\nrate = '10/s'\nconcurrency = {AT_ONCE}\nqueue.prefetch = {HELD}\n\
             http = {{ base_url = '{api}', timeout = '5m' }}\n",
            tls = files.lines(),
            api = api.url(),
        );
        let paced = Paced::hasty(&config, 10).await;
        Self { node, redis, rediss, api, prefix, config, paced }
    }

    async fn publish(&self, stem: &str, count: usize) {
        publish::publish(&self.node.rabbit.url(), &self.prefix, NAME, Job::many(stem, count)).await;
    }

    /// Has files replaced, and waits until the daemon has read those of both connections again.
    async fn reads(&self, replace: impl FnOnce()) {
        let count =
            || self.paced.log().iter().filter(|line| line.contains("certificates read again")).count();
        let before = count();
        replace();
        eventually("the daemon reads the files again", LONG, || count() >= before + 2).await;
    }

    /// Has both servers read their files again, for the connections that they accept from then on.
    async fn servers_read(&self) {
        self.node.reads_files().await;
        let path = |name: &str| self.node.files.path(name).display().to_string();
        let (certificate, key, authority) = (path("server.pem"), path("server-key.pem"), path("ca.pem"));
        let set = ["CONFIG", "SET", "tls-cert-file", &certificate, "tls-key-file", &key];
        self.redis.command(&[&set[..], &["tls-ca-cert-file", &authority]].concat()).await.unwrap();
    }

    /// Replaces the certificates of all, and their authority, as docs/tls.md says.
    async fn replace(&self) {
        let (path, ours, theirs) =
            (self.node.files.folder.path(), &self.node.files.ours, &self.node.files.theirs);
        let both = format!("{}{}", ours.pem, theirs.pem);
        self.reads(|| drop(put(path, "ca.pem", &both))).await;
        self.servers_read().await;
        theirs.issue(&["localhost"]).put(path, "server");
        self.reads(|| drop(theirs.issue(&["paced"]).put(path, "client"))).await;
        self.servers_read().await;
        self.reads(|| drop(put(path, "ca.pem", &theirs.pem))).await;
        self.servers_read().await;
    }

    /// Checks that the servers show the new certificates to new connections, and accept nobody of the old authority.
    async fn only_the_new_ones_connect(&self) {
        let options = |tls| super::broker::options("localhost", self.node.port, tls);
        let findings = check_online(&options(self.node.files.tls("theirs.pem", Some("stranger")))).await;
        assert!(findings.errors.is_empty(), "{:?}", findings.errors);
        let url = format!("rediss://localhost:{}", self.rediss);
        let connect = async |tls| RedisStore::connect(&url, super::store::options(tls)).await;
        let store = connect(self.node.files.tls("theirs.pem", Some("stranger"))).await.unwrap();
        store.ping().await.unwrap();
        for (authority, client, expected) in [
            ("ours.pem", "stranger", "signed by an authority that is not in ca_file"),
            ("theirs.pem", "old", "does not trust the authority of the client certificate"),
        ] {
            let tls = || self.node.files.tls(authority, Some(client));
            let Err(Error::Unreachable { detail, .. }) = Amqp::publishing(options(tls())).await else {
                panic!("RabbitMQ: {expected}")
            };
            assert!(detail.contains(expected), "{expected}: {detail}");
            let detail = connect(tls()).await.unwrap_err().to_string();
            assert!(detail.contains(expected), "{expected}: {detail}");
        }
    }

    async fn metric(&self, name: &str) -> usize {
        let sum = Scrape::read(&self.paced.metrics().await).sum(name).unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let sum = sum as usize;
        sum
    }

    /// The connections of the daemon at the store, by their numbers.
    async fn at_the_store(&self) -> BTreeSet<String> {
        let list = self.redis.command(&["CLIENT", "LIST"]).await.unwrap();
        let here = format!(" laddr=127.0.0.1:{} ", self.rediss);
        let number = |line: &str| Some(line[line.find("id=")?..].split(' ').next()?.to_owned());
        list.lines().filter(|line| line.contains(&here)).filter_map(number).collect()
    }

    /// Closes the connections of the daemon to the store, and waits for new ones.
    async fn cut_the_store(&self) {
        let before = self.at_the_store().await;
        assert!(!before.is_empty());
        let here = format!("127.0.0.1:{}", self.rediss);
        self.redis.command(&["CLIENT", "KILL", "LADDR", &here]).await.unwrap();
        until("the store is connected again", LONG, async || {
            let after = self.at_the_store().await;
            !after.is_empty() && after.is_disjoint(&before)
        })
        .await;
    }

    /// Has the broker close the connections of the daemon, and waits until it consumes again.
    async fn cut_the_broker(&self) {
        let count = || self.paced.log().iter().filter(|line| line.contains("consuming again")).count();
        let before = count();
        self.node.rabbit.close_connections("/").await;
        eventually("it consumes again", LONG, || count() > before).await;
    }

    /// Closes the connections to the broker while the API holds its answers back, and lets these go once every job that
    /// is unacked was delivered again.
    async fn cut_the_broker_while_sending(&self) {
        let gate = Gate::closed();
        self.api.rule({
            let gate = gate.clone();
            move |_| Answer::ok().gated(&gate)
        });
        gate.wait_for(AT_ONCE, LONG).await;
        let answered = self.api.count() - AT_ONCE;
        let queue = format!("{}.jobs.{NAME}", self.prefix);
        until("the broker has processed every ack", LONG, async || {
            let ready = publish::depth(&self.node.rabbit.url(), &queue).await.unwrap_or_default();
            let unacked = self.node.rabbit.eval(UNACKED).await.parse::<u32>().unwrap();
            usize::try_from(ready + unacked).unwrap() == JOBS - answered
        })
        .await;
        let received = self.metric("paced_jobs_received_total").await;
        let unacked = received - answered;
        assert!((AT_ONCE..=HELD).contains(&unacked), "{unacked}");
        self.cut_the_broker().await;
        until("all come again", LONG, async || {
            self.metric("paced_jobs_received_total").await >= received + unacked
        })
        .await;
        self.api.rule(|_| Answer::ok());
        gate.open();
    }

    /// Has the daemon continue with this rate.
    async fn set_rate(&self, rate: &str) {
        let count = || self.paced.log().iter().filter(|line| line.contains("configuration reloaded")).count();
        let before = count();
        std::fs::write(self.paced.config_file(), self.config.replace("10/s", rate)).unwrap();
        self.paced.hangup();
        eventually("the rate is another one", LONG, || count() > before).await;
    }

    /// Compares the jobs of this stem with the requests so far.
    fn tally(&self, stem: &str, count: usize) -> Tally {
        let mut arrivals = self.api.arrivals();
        arrivals.retain(|arrival| arrival.id().starts_with(stem));
        compare(stem, count, &arrivals)
    }
}

#[tokio::test]
async fn certificates_of_broker_and_store_are_replaced_under_load() {
    let bench = Bench::start().await;
    bench.publish("job", JOBS).await;
    eventually("the first jobs", LONG, || bench.api.count() > 10).await;

    // Open connections are kept.
    let before = bench.at_the_store().await;
    bench.replace().await;
    bench.only_the_new_ones_connect().await;
    assert_eq!(bench.metric("paced_amqp_reconnects_total").await, 0);
    assert!(bench.at_the_store().await.is_superset(&before));
    assert!(bench.api.count() < JOBS, "jobs flowed all the time");

    // Those that are closed are opened anew with the new certificates, and trust the new authority alone. What is being
    // sent meanwhile is not sent again.
    bench.cut_the_store().await;
    bench.cut_the_broker_while_sending().await;
    bench.set_rate("1000/s").await;
    eventually("all jobs", LONG, || bench.api.count() >= JOBS).await;
    until("all are settled", LONG, async || bench.metric("paced_jobs_in_flight").await == 0).await;
    assert_eq!(bench.tally("job", JOBS), Tally::default());

    // Jobs that the API has answered and whose acks the broker has not received are sent again: at most what is held unacked.
    bench.set_rate("10/s").await;
    bench.publish("cut", CUT).await;
    eventually("jobs flow", LONG, || bench.api.count() > JOBS + 20).await;
    bench.cut_the_broker().await;
    assert!(bench.api.count() < JOBS + CUT, "jobs flow all the time");
    bench.set_rate("1000/s").await;
    eventually("all jobs", LONG, || bench.tally("cut", CUT).lost.is_empty()).await;
    assert_eq!(bench.paced.stop().await, 0);
    let tally = bench.tally("cut", CUT);
    assert!(tally.doubled.len() <= HELD && tally.doubled.iter().all(|(_, times)| *times == 2), "{tally:?}");
    assert!(bench.tally("job", JOBS).is_clean());
}
