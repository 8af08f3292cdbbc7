//! A Redis Cluster: three masters with a replica each.

use std::time::Duration;

use super::super::{LONG, poll, real_now, until};
use super::{Redis, free_port};

/// After this long without an answer, in ms, a node counts as failed: first while the cluster forms (short, so that gossip
/// is fast), then for good (so long that a busy machine does not reach it).
const NODE_TIMEOUT: [&str; 2] = ["1000", "30000"];
/// A manual failover is given up by Redis after this long.
const FAILOVER: Duration = Duration::from_secs(10);

/// Three masters, then the replica of each in the same order.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// A cluster for the caller alone; it ends with the last clone.
    pub async fn dedicated() -> Self {
        Self::with(String::new).await
    }

    /// As [`Cluster::dedicated`], with more options, which are computed for each node.
    pub async fn with(more: impl Fn() -> String + Clone + Send + Sync + 'static) -> Self {
        let options = move || {
            let (bus, more) = (free_port(), more());
            format!(
                "--cluster-enabled yes --cluster-port {bus} --cluster-node-timeout {} \
                 --cluster-replica-no-failover yes --cluster-replica-validity-factor 0 \
                 --repl-diskless-sync-delay 0 {more}",
                NODE_TIMEOUT[0]
            )
        };
        let node = || Redis::with(options.clone());
        let (a, b, c, d, e, f) = tokio::join!(node(), node(), node(), node(), node(), node());
        let cluster = Self { nodes: vec![a, b, c, d, e, f] };
        cluster.form().await;
        cluster
    }

    /// Replicas take over only on a command ([`Cluster::hand_over`], `CLUSTER FAILOVER TAKEOVER`), unless the test wants it
    /// otherwise ([`Cluster::fail_over_by_itself`]).
    async fn form(&self) {
        let (masters, replicas) = self.nodes.split_at(3);
        for (index, (node, slots)) in
            masters.iter().zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]]).enumerate()
        {
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await.unwrap();
            node.command(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]).await.unwrap();
        }
        let known = async |node: &Redis| node.info_value(&["CLUSTER", "INFO"], "cluster_known_nodes").await;
        let all_known = async || {
            for node in &self.nodes {
                if known(node).await.as_deref() != Some("6") {
                    return None;
                }
            }
            Some(())
        };
        // A node gives up a handshake that takes a second.
        let start = real_now();
        loop {
            self.meet().await;
            if poll(Duration::from_secs(5), all_known).await.is_some() {
                break;
            }
            assert!(start.elapsed() < LONG, "each node knows all others");
        }
        for (replica, master) in replicas.iter().zip(masters) {
            let id = master.command(&["CLUSTER", "MYID"]).await.unwrap();
            let id = id.lines().last().unwrap().to_owned();
            // The node may not know its master completely yet.
            let follow = async || replica.command(&["CLUSTER", "REPLICATE", &id]).await.is_ok();
            until("a replica follows its master", LONG, follow).await;
        }
        self.whole().await;
        for node in &self.nodes {
            node.command(&["CONFIG", "SET", "cluster-node-timeout", NODE_TIMEOUT[1]]).await.unwrap();
        }
        self.whole().await;
    }

    /// Has replicas take over by themselves, after a second without their master: on a quiet machine only.
    pub async fn fail_over_by_itself(&self) {
        for node in &self.nodes {
            for [name, value] in
                [["cluster-node-timeout", NODE_TIMEOUT[0]], ["cluster-replica-no-failover", "no"]]
            {
                node.command(&["CONFIG", "SET", name, value]).await.unwrap();
            }
        }
    }

    /// Introduces all nodes to the first one.
    async fn meet(&self) {
        for node in &self.nodes[1..] {
            let bus = node.command(&["CONFIG", "GET", "cluster-port"]).await.unwrap();
            let (bus, port) = (bus.lines().last().unwrap().to_owned(), node.port().to_string());
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await.unwrap();
        }
    }

    /// Has a replica and its master, which answers, change places.
    pub async fn hand_over(&self, to: usize) {
        let start = real_now();
        let is_master = async || {
            let role = self.nodes[to].info_value(&["INFO", "replication"], "role").await;
            (role.as_deref() == Some("master")).then_some(())
        };
        loop {
            // It is refused while the two have lost sight of each other.
            let _ = self.nodes[to].command(&["CLUSTER", "FAILOVER"]).await;
            if poll(FAILOVER, is_master).await.is_some() {
                return;
            }
            assert!(start.elapsed() < 3 * LONG, "the replica takes over");
        }
    }

    /// Waits until every node that answers sees all slots served, and three masters with a replica each.
    pub async fn whole(&self) {
        let whole = async || {
            for node in &self.nodes {
                let state = node.info_value(&["CLUSTER", "INFO"], "cluster_state").await;
                let link = node.info_value(&["INFO", "replication"], "master_link_status").await;
                let nodes = node.command(&["CLUSTER", "NODES"]).await.unwrap_or_default();
                let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
                if state.as_deref() != Some("ok") || link.as_deref() == Some("down") || replicas != 3 {
                    return false;
                }
            }
            true
        };
        until("the cluster is whole", LONG, whole).await;
    }

    /// The index in `nodes` of the master of this key's slot, as a node reports that answers; waits while there is
    /// none, in the middle of a failover.
    pub async fn master_of(&self, key: &str) -> usize {
        let master = poll(LONG, async || self.seen_as_master_of(key).await).await;
        master.unwrap_or_else(|| panic!("{key} has no master"))
    }

    async fn seen_as_master_of(&self, key: &str) -> Option<usize> {
        for node in &self.nodes {
            let Ok(slot) = node.command(&["CLUSTER", "KEYSLOT", key]).await else { continue };
            let slot: u16 = slot.trim().trim_start_matches(':').parse().unwrap();
            let nodes = node.command(&["CLUSTER", "NODES"]).await.unwrap();
            for line in nodes.lines().filter(|line| line.contains("master")) {
                let mut words = line.split(' ');
                let port = words.nth(1).and_then(|at| at.split(['@', ':']).nth(1)).unwrap();
                let serves = words.skip(6).any(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let range = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
                    range.is_some_and(|(first, last)| (first..=last).contains(&slot))
                });
                if serves {
                    let port: u16 = port.parse().unwrap();
                    return self.nodes.iter().position(|node| node.port() == port);
                }
            }
        }
        None
    }

    /// `redis+cluster://` with all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }
}
