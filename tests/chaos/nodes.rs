//! A node of a cluster of brokers goes, and comes back.

use std::collections::HashSet;
use std::time::Duration;

use crate::LONG;
use crate::rig::{Chaos, JOBS, Rig, rest};
use crate::support::api::{Arrival, stamp};
use crate::support::eventually;
use crate::support::servers::Rabbit;
use crate::watch::nanos;

/// How long a node is away. Two members of a queue need each other, so that nothing is taken or acknowledged meanwhile.
const AWAY: Duration = Duration::from_secs(5);
/// How long before a node goes a job may have been sent whose ack it has not written.
const UNWRITTEN: Duration = Duration::from_millis(500);
/// How long after a node answers again the queue may be without a leader.
const ELECTED: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_node_of_a_cluster_of_brokers_goes_and_comes() {
    let mut chaos = Chaos::begin("nodes");
    let moments = chaos.moments(2);
    let first = Rabbit::dedicated().await;
    let nodes = [first.beside().await, first];
    let rig = Rig::between(chaos, &nodes).await;
    rig.publish().await;
    let mut away = Vec::new();
    // Each node goes once: those that replicas are connected to, and the leader of the queue.
    for (node, moment) in nodes.iter().zip(moments) {
        rig.reach(moment).await;
        node.kill().await;
        let began = rest(AWAY).await;
        node.start().await;
        away.push(began - nanos(UNWRITTEN)..stamp() + nanos(ELECTED));
    }
    let come = || rig.site.api.arrivals().iter().map(Arrival::id).collect::<HashSet<_>>().len() == JOBS;
    eventually("all jobs have come", LONG, come).await;
    let run = rig.end(JOBS).await;
    eprintln!("{run}");
    let unwritten = away.into_iter().map(|period| run.count(period)).sum();
    run.assert_none_lost(unwritten);
    run.assert_paced();
}
