//! A cluster: each downstream's keys lie on the master of one slot, and each master has a link of its own.
//!
//! A failed call is told to its caller, who asks again, and the nodes are asked anew where slots are before
//! the next one. Only a call that another node has refused, MOVED, goes on to the right one by itself: it
//! has not run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::PubSub;
use redis::{ConnectionInfo, FromRedisValue};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::address::Address;
use super::dial::{Dial, first};
use super::link::{Failure, Link};
use super::scripts::Call;
use super::slots::{Topology, slot};
use super::trouble::At;
use crate::store::StoreError;
use crate::time::Micros;

/// Nodes are not asked for their slots more often than this.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Cluster {
    dial: Dial,
    seeds: Vec<Address>,
    /// To every node; its address is another one for each.
    login: ConnectionInfo,
    at: At,
    map: StdMutex<Map>,
    asked: Mutex<Asked>,
}

/// Which node has which slots, as far as is known.
#[derive(Default)]
struct Map {
    /// First and last slot; ascending.
    ranges: Vec<(u16, u16, Arc<Node>)>,
    /// What redirections have told since.
    moved: HashMap<u16, Arc<Node>>,
    /// All that may know better: masters, replicas and seeds.
    known: Vec<Address>,
    gap: Option<u16>,
}

struct Node {
    address: Address,
    link: Link,
    /// A call has failed there since its slots were asked for.
    suspect: AtomicBool,
}

/// The last time that nodes were asked for their slots.
#[derive(Default)]
struct Asked {
    at: Option<Instant>,
    failure: Option<StoreError>,
    /// How often: another node is first each time, since one may be wrong for long.
    turn: usize,
}

impl Cluster {
    pub(super) fn new(dial: Dial, seeds: Vec<Address>, login: ConnectionInfo) -> Self {
        let names: Vec<String> = seeds.iter().map(Address::to_string).collect();
        let (map, asked) = (StdMutex::default(), Mutex::default());
        Self { dial, seeds, login, at: At(names.join(",")), map, asked }
    }

    /// How nodes are connected to.
    pub(super) const fn dial(&self) -> &Dial {
        &self.dial
    }

    /// The seeds, without credentials.
    pub(super) const fn at(&self) -> &At {
        &self.at
    }

    /// As [`Link::invoke`], on the node of the downstream.
    pub(super) async fn invoke<'c, T: FromRedisValue>(
        &self,
        downstream: &str,
        call: impl Fn(i64) -> Call<'c> + Send + Sync,
    ) -> Result<T, StoreError> {
        let slot = slot(downstream);
        let node = self.node(slot).await?;
        let moved = match node.link.invoke(&call).await {
            Err(Failure { moved: Some(moved), .. }) => moved,
            other => return node.heed(other),
        };
        let Some(address) = Address::redirected(&moved, &node.address) else {
            return node.heed(Err(node.link.at().unexpected(format!("MOVED to {moved}")).into()));
        };
        let node = self.redirect(slot, address);
        node.heed(node.link.invoke(&call).await.map_err(|failure| match failure.moved {
            // They disagree, as they do for a moment in a failover.
            Some(to) => node.link.at().unreachable(format!("slot {slot} is moving to {to}")).into(),
            None => failure,
        }))
    }

    /// As [`Link::read`], on the node of the downstream.
    pub(super) async fn read<T: FromRedisValue>(
        &self,
        downstream: &str,
        asked: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let node = self.node(slot(downstream)).await?;
        node.heed(node.link.read(asked).await.map_err(Failure::from))
    }

    /// The clock of one of the masters, once all of them have answered: each slot must have one.
    pub(super) async fn time(&self) -> Result<Micros, StoreError> {
        let is_known = {
            let map = self.map();
            let suspect = |node: &Arc<Node>| node.suspect.load(Ordering::Acquire);
            !map.ranges.is_empty() && map.gap.is_none() && !map.ranges.iter().any(|(.., node)| suspect(node))
        };
        if !is_known {
            self.refresh().await?;
        }
        let (masters, gap) = {
            let map = self.map();
            let by_address: HashMap<_, _> =
                map.ranges.iter().map(|(.., node)| (node.address.clone(), node.clone())).collect();
            (by_address.into_values(), map.gap)
        };
        if let Some(gap) = gap {
            return Err(self.at.unreachable(format!("no master serves slot {gap} of the cluster")));
        }
        let mut asked = JoinSet::new();
        for node in masters {
            asked.spawn(async move { node.heed(node.link.time().await.map_err(Failure::from)) });
        }
        let mut time = Err(self.at.unreachable("no master of the cluster is known"));
        while let Some(answer) = asked.join_next().await {
            time =
                Ok(answer
                    .unwrap_or_else(|_| Err(self.at.unreachable("asking for its clock was broken off")))?);
        }
        time
    }

    /// A connection of its own that hears what is published on the channel, to any node: each tells all
    /// others what is published there.
    pub(super) async fn listen(&self, channel: &str) -> Result<PubSub, StoreError> {
        let turn = self.asked.lock().await.next();
        let listen = |info| self.dial.clone().listen(info, channel.to_owned());
        let asked = self.candidates(turn).into_iter().map(listen).collect();
        first(asked).await.map_err(|errors| self.none(&errors))
    }

    /// The node that has a slot; asked for anew if calls to it have failed.
    async fn node(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        let known = self.map().node(slot);
        if let Some(node) = known.filter(|node| !node.suspect.load(Ordering::Acquire)) {
            return Ok(node);
        }
        self.refresh().await?;
        let known = self.map().node(slot);
        known.ok_or_else(|| self.at.unreachable(format!("no master serves slot {slot} of the cluster")))
    }

    /// Asks nodes where the slots are; who waited for somebody else to do so shares the answer.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut asked = self.asked.lock().await;
        if asked.at.is_some_and(|at| at.elapsed() < PAUSE) {
            return asked.failure.clone().map_or(Ok(()), Err);
        }
        let turn = asked.next();
        let questions = self.candidates(turn).into_iter().map(|info| ask(self.dial.clone(), info)).collect();
        let answer = first(questions).await;
        asked.at = Some(Instant::now());
        let result = answer.map(|topology| self.learn(topology)).map_err(|errors| self.none(&errors));
        asked.failure = result.as_ref().err().cloned();
        result
    }

    /// All nodes that are known, another one first each time.
    fn candidates(&self, turn: usize) -> Vec<ConnectionInfo> {
        let mut known = self.map().known.clone();
        for seed in &self.seeds {
            if !known.contains(seed) {
                known.push(seed.clone());
            }
        }
        let start = turn % known.len().max(1);
        known.rotate_left(start);
        known.iter().map(|address| address.with(&self.login)).collect()
    }

    /// Links to nodes that stay masters are kept.
    fn learn(&self, topology: Topology) {
        let mut map = self.map();
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

    /// Takes in what a node has told: the slot is at this address.
    fn redirect(&self, slot: u16, address: Address) -> Arc<Node> {
        let mut map = self.map();
        let known = map.ranges.iter().map(|(.., node)| node).chain(map.moved.values());
        let known = known.into_iter().find(|node| node.address == address).cloned();
        let node = known.unwrap_or_else(|| self.link(&address));
        map.moved.insert(slot, node.clone());
        node
    }

    fn link(&self, address: &Address) -> Arc<Node> {
        let link = Link::fixed(self.dial.clone(), address.with(&self.login));
        Arc::new(Node { address: address.clone(), link, suspect: AtomicBool::new(false) })
    }

    /// No node answers: one that refuses says more than those that are away.
    fn none(&self, errors: &[StoreError]) -> StoreError {
        let answered = errors.iter().find(|error| !error.is_away());
        let cause = answered.or(errors.first()).cloned();
        cause.unwrap_or_else(|| self.at.unreachable("there is no node to ask"))
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Map {
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
    /// Whatever fails there: the slots are asked for anew before the next call.
    fn heed<T>(&self, result: Result<T, Failure>) -> Result<T, StoreError> {
        result.map_err(|failure| {
            self.suspect.store(true, Ordering::Release);
            failure.error
        })
    }
}

impl Asked {
    fn next(&mut self) -> usize {
        self.turn = self.turn.wrapping_add(1);
        self.turn - 1
    }
}

async fn ask(dial: Dial, info: ConnectionInfo) -> Result<Topology, StoreError> {
    let address = Address::of(&info);
    let at = At(address.to_string());
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let answer = dial.ask(info, question).await.map_err(|error| match error.code() {
        Some("ERR") => at.refused(format!("{error}; a server that is no cluster has the URL redis://")),
        _ => at.explain(&error),
    })?;
    Topology::parse(&answer, &address).map_err(|detail| at.refused(detail))
}
