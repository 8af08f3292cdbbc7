//! A Redis Cluster: three masters with a replica each.

use std::time::Duration;

use super::super::{poll, until};
use super::{Redis, free_port};

/// How long gossip may take on a machine that compiles at the same time.
const FORMING: Duration = Duration::from_secs(60);

/// After this long without an answer a master counts as failed.
const NODE_TIMEOUT: &str = "1000";

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
                "--cluster-enabled yes --cluster-port {bus} --cluster-node-timeout {NODE_TIMEOUT} \
                 --cluster-replica-validity-factor 0 --repl-diskless-sync-delay 0 {more}"
            )
        };
        let node = || Redis::with(options.clone());
        let (a, b, c, d, e, f) = tokio::join!(node(), node(), node(), node(), node(), node());
        let cluster = Self { nodes: vec![a, b, c, d, e, f] };
        cluster.form().await;
        cluster
    }

    async fn form(&self) {
        let (masters, replicas) = self.nodes.split_at(3);
        for (index, (node, slots)) in
            masters.iter().zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]]).enumerate()
        {
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await.unwrap();
            node.command(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]).await.unwrap();
        }
        for node in &self.nodes[1..] {
            let bus = node.command(&["CONFIG", "GET", "cluster-port"]).await.unwrap();
            let (bus, port) = (bus.lines().last().unwrap().to_owned(), node.port().to_string());
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await.unwrap();
        }
        let known = async |node: &Redis| node.told(&["CLUSTER", "INFO"], "cluster_known_nodes").await;
        let all_known = async || {
            for node in &self.nodes {
                if known(node).await.as_deref() != Some("6") {
                    return false;
                }
            }
            true
        };
        until("each node knows all others", FORMING, all_known).await;
        for (replica, master) in replicas.iter().zip(masters) {
            let id = master.command(&["CLUSTER", "MYID"]).await.unwrap();
            let id = id.lines().last().unwrap().to_owned();
            // The node may not know its master completely yet.
            let follow = async || replica.command(&["CLUSTER", "REPLICATE", &id]).await.is_ok();
            until("a replica follows its master", FORMING, follow).await;
        }
        self.whole().await;
    }

    /// Waits until every node that answers sees all slots served, and three masters with a replica each.
    pub async fn whole(&self) {
        let whole = async || {
            for node in &self.nodes {
                let state = node.told(&["CLUSTER", "INFO"], "cluster_state").await;
                let link = node.told(&["INFO", "replication"], "master_link_status").await;
                let nodes = node.command(&["CLUSTER", "NODES"]).await.unwrap_or_default();
                let replicas = nodes.lines().filter(|line| line.contains("slave ")).count();
                if state.as_deref() != Some("ok") || link.as_deref() == Some("down") || replicas != 3 {
                    return false;
                }
            }
            true
        };
        until("the cluster is whole", FORMING, whole).await;
    }

    /// The index in `nodes` of the master of this key's slot, as a node reports that answers; waits while there is
    /// none, in the middle of a failover.
    pub async fn master_of(&self, key: &str) -> usize {
        let master = poll(FORMING, async || self.seen_as_master_of(key).await).await;
        master.unwrap_or_else(|| panic!("{key} has no master"))
    }

    async fn seen_as_master_of(&self, key: &str) -> Option<usize> {
        for node in &self.nodes {
            let Ok(slot) = node.command(&["CLUSTER", "KEYSLOT", key]).await else { continue };
            let slot: u16 = slot.trim().trim_start_matches(':').parse().unwrap();
            let nodes = node.command(&["CLUSTER", "NODES"]).await.unwrap();
            for line in nodes.lines().filter(|line| line.contains("master ")) {
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
