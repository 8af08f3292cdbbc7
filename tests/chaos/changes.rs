//! Fifty downstreams come and go under load: the one that stays keeps its pace, no job is lost or sent twice, and nothing is left
//! behind.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::LONG;
use crate::rig::{Chaos, RATE, REPLICAS, Rig};
use crate::support::api::{Answer, Api};
use crate::support::daemon::Paced;
use crate::support::publish::{Job, depth, publish_to};
use crate::support::servers::{Redis, rabbit};
use crate::support::{eventually, until};

const OTHERS: usize = 50;
/// How often they come and go. The allocator keeps some memory of the first few rounds.
const ROUNDS: usize = 8;
const FIRST_ROUNDS: usize = 5;
/// The jobs of the downstream that stays of which a replica is never short: a half of a round takes less than ten seconds.
const BACKLOG: usize = 2000;
/// The jobs of each of them in one round. Some of them wait while it goes.
const EACH: usize = 20;
/// How much more memory a replica may have after the last round than after the first ones. A tenth of a megabyte for each
/// downstream of the rounds between would be more.
const MORE_MEMORY: usize = 12 << 20;

/// The way in which they come and go.
#[derive(Clone, Copy, Debug)]
enum By {
    /// New files, and a SIGHUP to each replica.
    Hangup,
    /// Files in a directory that all replicas watch.
    Files,
}

/// What a replica holds of the machine.
#[derive(Clone, Copy, Debug)]
struct Held {
    connections: usize,
    memory: usize,
}

fn held(replica: &Paced, broker: u16) -> Held {
    let status = std::fs::read_to_string(format!("/proc/{}/status", replica.pid())).unwrap();
    let number = |name: &str| -> usize {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    Held { connections: replica.ports_to(broker).len(), memory: number("VmRSS:") * 1024 }
}

/// The downstreams that come and go.
struct Others {
    by: By,
    dir: PathBuf,
    /// The table of the downstream that stays, and what belongs to it.
    stays: String,
    api: Api,
}

impl Others {
    fn table(&self, n: usize) -> String {
        format!("[downstreams.d{n}]\nrate = '1000/s'\nhttp.base_url = '{}'\n", self.api.url())
    }

    /// Has all of them be there, or none.
    fn change(&self, rig: &mut Rig, are_there: bool) {
        match self.by {
            By::Hangup => {
                rig.site.downstream.clone_from(&self.stays);
                for n in (0..OTHERS).filter(|_| are_there) {
                    write!(rig.site.downstream, "\n{}", self.table(n)).unwrap();
                }
                rig.reload();
            }
            By::Files => {
                for n in 0..OTHERS {
                    let file = self.dir.join(format!("d{n}.toml"));
                    if are_there {
                        let new = self.dir.join(".new");
                        std::fs::write(&new, self.table(n)).unwrap();
                        std::fs::rename(new, file).unwrap();
                    } else {
                        std::fs::remove_file(file).unwrap();
                    }
                }
            }
        }
    }

    /// Publishes jobs for all of them, once they have queues.
    async fn publish(&self, rig: &Rig, round: usize) {
        for n in 0..OTHERS {
            let queue = format!("{}.jobs.d{n}", rig.site.prefix);
            until("a queue", LONG, async || depth(&rig.site.amqp, &queue).await.is_some()).await;
            publish_to(&rig.site.amqp, "", &queue, Job::many(&format!("{round}-{n}"), EACH)).await;
        }
    }
}

/// Waits until each replica has logged this so often.
async fn logged(rig: &Rig, text: &str, times: usize) {
    for replica in &rig.replicas {
        let count = || replica.log().iter().filter(|line| line.contains(text)).count();
        eventually(text, LONG, || count() >= times).await;
    }
}

async fn come_and_go(name: &'static str, by: By) {
    let (chaos, redis) = (Chaos::begin(name), Redis::dedicated().await);
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("downstreams.d");
    std::fs::create_dir(&dir).unwrap();
    let dynamic = format!("rate = '{RATE}'\n[dynamic]\ndir = '{}'", dir.display());
    let mut rig = Rig::with(chaos, &dynamic, [&redis.url(); REPLICAS]).await;
    let others = Others { by, dir, stays: rig.site.downstream.clone(), api: Api::start() };
    // Some are being sent while they go.
    others.api.rule(|_| Answer::ok().after(std::time::Duration::from_millis(20)));
    let port = rabbit().await.port();
    let mut jobs = rig.refill(0, BACKLOG).await;
    rig.reach(BACKLOG / 10).await;
    let mut after_first = Vec::new();
    for round in 1..=ROUNDS {
        jobs = rig.refill(jobs, BACKLOG).await;
        others.change(&mut rig, true);
        logged(&rig, "the downstream was added", round * OTHERS).await;
        others.publish(&rig, round).await;
        others.api.wait_for((round * OTHERS * EACH) - OTHERS * EACH / 2, LONG).await;
        jobs = rig.refill(jobs, BACKLOG).await;
        others.change(&mut rig, false);
        logged(&rig, "the downstream is served no more", round * OTHERS).await;
        if round == FIRST_ROUNDS {
            after_first = rig.replicas.iter().map(|replica| held(replica, port)).collect();
        }
    }
    // A check of a queue has a connection for a moment.
    for (replica, first) in rig.replicas.iter().zip(&after_first) {
        let are_as_before = || held(replica, port).connections == first.connections;
        eventually("the connections are as before", LONG, are_as_before).await;
    }
    let at_the_end: Vec<Held> = rig.replicas.iter().map(|replica| held(replica, port)).collect();
    // What was given back goes once they are there again.
    others.change(&mut rig, true);
    let all = ROUNDS * OTHERS * EACH;
    let arrivals = others.api.wait_for(all, LONG).await;
    let run = rig.finish_some(jobs).await;
    let distinct: HashSet<&str> = arrivals.iter().map(|arrival| arrival.id()).collect();
    let of_others = others.api.count();
    eprintln!("{name}: {of_others} jobs of {OTHERS} others; held {after_first:?}, at the end {at_the_end:?}");
    run.assert_once();
    run.assert_paced();
    assert_eq!((distinct.len(), of_others), (all, all), "each job once");
    for (first, last) in after_first.iter().zip(&at_the_end) {
        assert!(last.memory <= first.memory + MORE_MEMORY, "{first:?}, {last:?}");
    }
}

#[tokio::test]
async fn fifty_come_and_go_by_sighup() {
    come_and_go("changes-sighup", By::Hangup).await;
}

#[tokio::test]
async fn fifty_come_and_go_by_files() {
    come_and_go("changes-files", By::Files).await;
}
