//! The features of the published systems that paced must equal, item by item, as far as they concern algorithms: each
//! test names the system and the row. Each runs on memory and on Redis, which must agree in every answer and every
//! state.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Decision, Limit, LimitSet};
use paced::store::{Cancel, Check, Granted, MemoryStore, RedisStore, Reserve, Reserved, Scope, Store};
use paced::time::{ManualClock, Micros};
use paced::{Rate, RedisOptions};

use crate::support::servers::{self, Redis};
use crate::support::unique;

mod others;
mod throttlekit;

/// A multiple of a minute since the epoch.
const START: i64 = 1_760_000_040_000_000;

/// Both stores on a clock that the test sets.
struct Both {
    memory: MemoryStore,
    shared: RedisStore,
    clock: Arc<ManualClock>,
    redis: &'static Redis,
    downstream: String,
}

impl Both {
    async fn new() -> Self {
        let redis = servers::redis().await;
        let clock = Arc::new(ManualClock::new(Micros(START)));
        let timeout = Duration::from_secs(60);
        let options = RedisOptions::default().with_timeouts(timeout, timeout);
        let shared = RedisStore::open(&redis.url(), options).unwrap().with_test_clock(clock.clone());
        let memory = MemoryStore::with_clock(clock.clone());
        Self { memory, shared, clock, redis, downstream: unique("systems") }
    }

    /// Sets the clock to this many ms after the start.
    fn at(&self, ms: i64) -> &Self {
        self.clock.set(Micros(START + ms * 1000));
        self
    }

    fn scope<'a>(&'a self, key: &'a str) -> Scope<'a> {
        Scope { downstream: &self.downstream, key }
    }

    /// Runs a call on both stores, and asserts that the answers and the states are equal.
    async fn same<T: PartialEq + std::fmt::Debug>(&self, limits: &LimitSet, key: &str, answers: [T; 2]) -> T {
        let [memory, shared] = answers;
        assert_eq!(memory, shared);
        assert_eq!(self.dump(limits, key), self.shared.dump(self.scope(key), limits).await.unwrap());
        memory
    }

    fn dump(&self, limits: &LimitSet, key: &str) -> Vec<String> {
        self.memory.dump(self.scope(key), limits)
    }

    /// The states of the limits alone: the record follows the clock.
    fn states(&self, limits: &LimitSet) -> Vec<String> {
        self.dump(limits, "").split_off(1)
    }

    async fn checks(&self, limits: &LimitSet, key: &str, costs: Costs<'_>) -> Vec<Decision> {
        let call = Check { scope: self.scope(key), limits, costs, generation: 0 };
        let answers = [self.memory.check(call).await.unwrap(), self.shared.check(call).await.unwrap()];
        let checked = self.same(limits, key, answers).await;
        checked.verdicts.into_iter().map(|verdict| limits.decision(checked.stamp.now, verdict)).collect()
    }

    async fn check(&self, limits: &LimitSet, cost: u32) -> Decision {
        self.checks(limits, "", Costs::Each(&[cost])).await.remove(0)
    }

    /// How many of this many checks of cost 1 are allowed.
    async fn allowed(&self, limits: &LimitSet, jobs: usize) -> usize {
        let decisions = self.checks(limits, "", Costs::Each(&vec![1; jobs])).await;
        decisions.iter().filter(|decision| decision.allowed).count()
    }

    async fn reserve(&self, limits: &LimitSet, costs: &[u32], ahead: Duration) -> Reserved {
        let costs = Costs::Each(costs);
        let call = Reserve::new(self.scope(""), limits, costs, ahead);
        let answers = [self.memory.reserve(call).await.unwrap(), self.shared.reserve(call).await.unwrap()];
        self.same(limits, "", answers).await
    }

    async fn cancel(&self, limits: &LimitSet, granted: &Granted) -> bool {
        let Granted { slot, charged, before, after } = granted;
        let call = Cancel {
            scope: self.scope(""),
            limits,
            lane: None,
            slot: *slot,
            charged,
            before,
            after,
            is_unused: false,
        };
        let answers = [self.memory.cancel(call).await.unwrap(), self.shared.cancel(call).await.unwrap()];
        self.same(limits, "", answers).await
    }

    async fn reset(&self, limits: &LimitSet) {
        self.memory.reset(self.scope(""), limits).await.unwrap();
        self.shared.reset(self.scope(""), limits).await.unwrap();
        self.same(limits, "", [(), ()]).await;
    }

    /// The TTL of the state of a limit of the whole downstream in Redis.
    async fn ttl(&self, name: &str) -> Duration {
        let key = format!("paced:{{{}}}:l:{name}", self.downstream);
        let answer = self.redis.command(&["PTTL", &key]).await.unwrap();
        let ms: i64 = answer.trim_start_matches(':').trim().parse().unwrap();
        Duration::from_millis(u64::try_from(ms).unwrap_or_else(|_| panic!("{key} does not expire: {ms}")))
    }
}

fn one(limit: Limit) -> LimitSet {
    LimitSet::new(vec![limit]).unwrap()
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Slots in ms after the start.
fn slots(reserved: &Reserved) -> Vec<i64> {
    reserved.slots.iter().map(|slot| (slot.0 - START) / 1000).collect()
}
