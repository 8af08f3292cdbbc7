//! A Redis Cluster: the keys of each downstream lie on the master of one slot, and each master has its own connection.
//!
//! A failed call is reported to its caller, which retries, and the slot map is refreshed before the next call. Only a
//! call that was refused with MOVED is sent on to the right node by itself, as it has not run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use redis::aio::PubSub;
use redis::{ConnectionInfo, FromRedisValue};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::address::Address;
use super::dial::{Dialer, first};
use super::errors::ServerAddress;
use super::link::{Failure, Link};
use super::scripts::Call;
use super::slots::{Topology, slot};
use crate::lock::lock;
use crate::store::StoreError;
use crate::time::Micros;

/// The least time between two refreshes of the slot map.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Cluster {
    dial: Dialer,
    seeds: Vec<Address>,
    /// The login to every node; the address in it is replaced for each.
    login: ConnectionInfo,
    at: ServerAddress,
    map: StdMutex<SlotMap>,
    last_refresh: Mutex<LastRefresh>,
}

/// The nodes that serve each slot, as far as is known.
#[derive(Default)]
struct SlotMap {
    /// First and last slot of each range, in ascending order.
    ranges: Vec<(u16, u16, Arc<Node>)>,
    /// The nodes of slots that redirections have named since the last refresh.
    moved: HashMap<u16, Arc<Node>>,
    /// All nodes that can be asked for the slot map: masters, replicas and seeds.
    known: Vec<Address>,
    gap: Option<u16>,
}

struct Node {
    address: Address,
    link: Arc<Link>,
    /// Whether a call to the node has failed since the last refresh.
    suspect: AtomicBool,
}

/// The last refresh of the slot map.
#[derive(Default)]
struct LastRefresh {
    at: Option<Instant>,
    failure: Option<StoreError>,
    /// The number of refreshes: each starts with another node, since one node may be wrong for long.
    rotation: usize,
}

impl Cluster {
    pub(super) fn new(dial: Dialer, seeds: Vec<Address>, login: ConnectionInfo) -> Self {
        let names: Vec<String> = seeds.iter().map(Address::to_string).collect();
        let (map, last_refresh) = (StdMutex::default(), Mutex::default());
        Self { dial, seeds, login, at: ServerAddress(names.join(",")), map, last_refresh }
    }

    /// How connections to nodes are opened.
    pub(super) const fn dial(&self) -> &Dialer {
        &self.dial
    }

    /// The addresses of the seeds, without credentials.
    pub(super) const fn at(&self) -> &ServerAddress {
        &self.at
    }

    /// As [`Link::invoke`], on the node that serves the downstream.
    pub(super) async fn invoke<'c, T: FromRedisValue>(
        self: &Arc<Self>,
        downstream: &str,
        call: impl Fn(i64) -> Call<'c> + Send + Sync,
    ) -> Result<T, StoreError> {
        let slot = slot(downstream);
        let node = self.node(slot).await?;
        let moved = match node.link.invoke(&call).await {
            Err(Failure { moved: Some(moved), .. }) => moved,
            other => return node.mark_if_failed(other),
        };
        let Some(address) = Address::redirected(&moved, &node.address) else {
            return node.mark_if_failed(Err(node.link.at().unexpected(format!("MOVED to {moved}")).into()));
        };
        let node = self.redirect(slot, address);
        node.mark_if_failed(node.link.invoke(&call).await.map_err(|failure| match failure.moved {
            // The nodes disagree, as they do for a moment in a failover.
            Some(to) => node.link.at().unreachable(format!("slot {slot} is moving to {to}")).into(),
            None => failure,
        }))
    }

    /// As [`Link::read`], on the node that serves the downstream.
    pub(super) async fn read<T: FromRedisValue>(
        self: &Arc<Self>,
        downstream: &str,
        commands: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let node = self.node(slot(downstream)).await?;
        node.mark_if_failed(node.link.read(commands).await.map_err(Failure::from))
    }

    /// The clock of one of the masters, once all of them have answered and each slot has one.
    pub(super) async fn time(self: &Arc<Self>) -> Result<Micros, StoreError> {
        let is_known = {
            let map = lock(&self.map);
            let suspect = |node: &Arc<Node>| node.suspect.load(Ordering::Acquire);
            !map.ranges.is_empty() && map.gap.is_none() && !map.ranges.iter().any(|(.., node)| suspect(node))
        };
        if !is_known {
            self.refresh().await?;
        }
        let (masters, gap) = {
            let map = lock(&self.map);
            let by_address: HashMap<_, _> =
                map.ranges.iter().map(|(.., node)| (node.address.clone(), node.clone())).collect();
            (by_address.into_values(), map.gap)
        };
        if let Some(gap) = gap {
            return Err(self.at.unreachable(format!("no master serves slot {gap} of the cluster")));
        }
        let mut answers = JoinSet::new();
        for node in masters {
            answers.spawn(async move { node.mark_if_failed(node.link.time().await.map_err(Failure::from)) });
        }
        let mut time = Err(self.at.unreachable("no master of the cluster is known"));
        while let Some(answer) = answers.join_next().await {
            time =
                Ok(answer
                    .unwrap_or_else(|_| Err(self.at.unreachable("asking for its clock was broken off")))?);
        }
        time
    }

    /// Opens a connection that subscribes to the channel, to any node: each node forwards to all others what is
    /// published there.
    pub(super) async fn listen(&self, channel: &str) -> Result<PubSub, StoreError> {
        let rotation = self.last_refresh.lock().await.next();
        let listen = |info| self.dial.clone().listen(info, channel.to_owned());
        let attempts = self.candidates(rotation).into_iter().map(listen).collect();
        first(attempts).await.map_err(|errors| self.no_answer(&errors))
    }

    /// The node that serves a slot. The slot map is refreshed first if calls to the node have failed.
    async fn node(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>, StoreError> {
        let known = lock(&self.map).node(slot);
        if let Some(node) = known.filter(|node| !node.suspect.load(Ordering::Acquire)) {
            return Ok(node);
        }
        self.refresh().await?;
        let known = lock(&self.map).node(slot);
        known.ok_or_else(|| self.at.unreachable(format!("no master serves slot {slot} of the cluster")))
    }

    /// Refreshes the slot map, on the runtime of the connections. Callers that waited for another refresh share its result.
    async fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        let cluster = Arc::clone(self);
        self.dial.home().run(async move { cluster.refresh_here().await }).await?
    }

    async fn refresh_here(&self) -> Result<(), StoreError> {
        let mut last = self.last_refresh.lock().await;
        if last.at.is_some_and(|at| at.elapsed() < MIN_REFRESH_INTERVAL) {
            return last.failure.clone().map_or(Ok(()), Err);
        }
        let rotation = last.next();
        let questions = self
            .candidates(rotation)
            .into_iter()
            .map(|info| ask_for_slots(self.dial.clone(), info))
            .collect();
        let answer = first(questions).await;
        last.at = Some(Instant::now());
        let result =
            answer.map(|topology| self.replace_slot_map(topology)).map_err(|errors| self.no_answer(&errors));
        last.failure = result.as_ref().err().cloned();
        result
    }

    /// All known nodes, starting with another one each time.
    fn candidates(&self, rotation: usize) -> Vec<ConnectionInfo> {
        let mut known = lock(&self.map).known.clone();
        for seed in &self.seeds {
            if !known.contains(seed) {
                known.push(seed.clone());
            }
        }
        let start = rotation % known.len().max(1);
        known.rotate_left(start);
        known.iter().map(|address| address.with(&self.login)).collect()
    }

    /// Replaces the slot map. Connections to nodes that stay masters are kept.
    fn replace_slot_map(&self, topology: Topology) {
        let mut map = lock(&self.map);
        let gap = topology.gap();
        let mut nodes: HashMap<Address, Arc<Node>> = HashMap::new();
        let old = std::mem::take(&mut *map);
        for node in old.ranges.into_iter().map(|(.., node)| node).chain(old.moved.into_values()) {
            node.suspect.store(false, Ordering::Release);
            nodes.insert(node.address.clone(), node);
        }
        let mut known = topology.replicas;
        for (first, last, address) in topology.ranges {
            if !known.contains(&address) {
                known.push(address.clone());
            }
            let node = nodes.entry(address).or_insert_with_key(|address| self.link(address));
            map.ranges.push((first, last, node.clone()));
        }
        (map.known, map.gap) = (known, gap);
    }

    /// Records a redirection: the slot is served at this address.
    fn redirect(&self, slot: u16, address: Address) -> Arc<Node> {
        let mut map = lock(&self.map);
        let known = map.ranges.iter().map(|(.., node)| node).chain(map.moved.values());
        let known = known.into_iter().find(|node| node.address == address).cloned();
        let node = known.unwrap_or_else(|| self.link(&address));
        map.moved.insert(slot, node.clone());
        node
    }

    fn link(&self, address: &Address) -> Arc<Node> {
        let link = Arc::new(Link::fixed(self.dial.clone(), address.with(&self.login)));
        Arc::new(Node { address: address.clone(), link, suspect: AtomicBool::new(false) })
    }

    /// The error when no node answers: a node that refuses is more informative than one that is away.
    fn no_answer(&self, errors: &[StoreError]) -> StoreError {
        let answered = errors.iter().find(|error| !error.is_away());
        let cause = answered.or(errors.first()).cloned();
        cause.unwrap_or_else(|| self.at.unreachable("there is no node to ask"))
    }
}

impl SlotMap {
    fn node(&self, slot: u16) -> Option<Arc<Node>> {
        if let Some(node) = self.moved.get(&slot) {
            return Some(node.clone());
        }
        let next = self.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, node) = self.ranges.get(next.checked_sub(1)?)?;
        (slot <= *last).then(|| node.clone())
    }
}

impl Node {
    /// After any failure the slot map is refreshed before the next call to this node.
    fn mark_if_failed<T>(&self, result: Result<T, Failure>) -> Result<T, StoreError> {
        result.map_err(|failure| {
            self.suspect.store(true, Ordering::Release);
            failure.error
        })
    }
}

impl LastRefresh {
    fn next(&mut self) -> usize {
        self.rotation = self.rotation.wrapping_add(1);
        self.rotation - 1
    }
}

async fn ask_for_slots(dial: Dialer, info: ConnectionInfo) -> Result<Topology, StoreError> {
    let address = Address::of(&info);
    let at = ServerAddress(address.to_string());
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let answer = dial.ask(info, question).await.map_err(|error| match error.code() {
        Some("ERR") => at.refused(format!("{error}; a server that is no cluster has the URL redis://")),
        _ => at.explain(&error),
    })?;
    Topology::parse(&answer, &address).map_err(|detail| at.refused(detail))
}
