//! Tombstones of cancelled jobs: both stores keep them alike, Redis with little work, and each replica restores them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{
    Change, LONGEST_TOMBSTONE, MAX_TOMBSTONES, MemoryStore, RedisStore, Reserve, Scope, Store, Tombstone,
    TombstoneCall, TombstoneReply,
};
use paced::time::{ManualClock, Micros};
use tokio::time::timeout;

use super::inside::Work;
use super::patient;
use super::record::attentive;
use crate::support::servers::{Redis, redis};
use crate::support::{LONG, unique};

const START: Micros = Micros(1_760_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn ids(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn numbered(from: usize, count: usize) -> Vec<Arc<str>> {
    (from..from + count).map(|number| Arc::from(format!("job-{number}"))).collect()
}

/// Both stores, on one clock.
async fn stores() -> ([Arc<dyn Store>; 2], Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    let shared = RedisStore::open(&redis().await.url(), patient()).unwrap().with_test_clock(clock.clone());
    ([Arc::new(MemoryStore::with_clock(clock.clone())), Arc::new(shared)], clock)
}

async fn worker(redis: &Redis) -> RedisStore {
    RedisStore::connect(&redis.url(), patient()).await.unwrap()
}

/// Everything after this version, page by page.
async fn all(store: &dyn Store, name: &str, after: u64) -> Vec<Tombstone> {
    let (mut at, mut all) = (after, Vec::new());
    loop {
        let reply = store.tombstones(name, TombstoneCall::Read { after: at }).await.unwrap();
        all.extend(reply.page);
        at = reply.up_to;
        if at == reply.status.tombstones {
            return all;
        }
    }
}

/// Returns the part of a reply on which two stores must agree. They began at different instants.
fn comparable(reply: TombstoneReply) -> TombstoneReply {
    TombstoneReply { epoch: Micros(0), ..reply }
}

#[tokio::test]
async fn both_stores_keep_the_same_tombstones() {
    let (stores, clock) = stores().await;
    for seed in 0..40 {
        let (mut rng, name) = (fastrand::Rng::with_seed(seed), unique("graves"));
        let mut now = START;
        let mut seen = 0;
        for step in 0..60 {
            now = Micros(now.0 + rng.i64(0..600_000_000) - i64::from(rng.u8(..8) == 0) * 700_000_000);
            clock.set(now);
            let some: Vec<Arc<str>> = numbered(0, 12).into_iter().filter(|_| rng.u8(..3) == 0).collect();
            let recalled: Vec<Tombstone> = some
                .iter()
                .map(|id| Tombstone {
                    id: Arc::clone(id),
                    until: Micros(now.0 + rng.i64(-1_000_000..4_000_000_000)),
                    is_undone: rng.bool(),
                })
                .collect();
            let call = match rng.u8(..10) {
                0..5 => TombstoneCall::Cancel { ids: &some, span: Duration::from_secs(rng.u64(1..4000)) },
                5 | 6 => TombstoneCall::Undo { ids: &some },
                7 => TombstoneCall::Recall { tombstones: &recalled },
                8 => TombstoneCall::Read { after: seen },
                _ => TombstoneCall::Read { after: 0 },
            };
            let [one, two] = &stores;
            let one = comparable(one.tombstones(&name, call).await.unwrap());
            let two = comparable(two.tombstones(&name, call).await.unwrap());
            assert_eq!(one, two, "seed {seed}, step {step}: {call:?}");
            seen = one.up_to;
        }
    }
}

#[tokio::test]
async fn the_latest_change_counts_and_every_answer_tells_of_it() {
    let ([memory, shared], clock) = stores().await;
    for store in [memory, shared] {
        clock.set(START);
        let name = unique("latest");
        let both = ids(&["a", "b"]);
        let first = store.tombstones(&name, TombstoneCall::Cancel { ids: &both, span: HOUR }).await.unwrap();
        assert_eq!((first.changed, first.before), (2, 0));
        assert_eq!(store.read_record(&name).await.unwrap().status, first.status);
        let rate = "100/s".parse().unwrap();
        let limits = LimitSet::new(vec![Limit::leaky_bucket("pace", rate, 1).unwrap()]).unwrap();
        let scope = Scope { downstream: &name, key: "" };
        for _ in 0..3 {
            // The first call creates the state, and later ones take the shortest way.
            let call = Reserve::new(scope, &limits, Costs::Each(&[1]), HOUR);
            assert_eq!(store.reserve(call).await.unwrap().stamp.status.tombstones, first.status.tombstones);
        }
        // A shorter time changes nothing.
        let minute = TombstoneCall::Cancel { ids: &both[..1], span: HOUR / 60 };
        assert_eq!(store.tombstones(&name, minute).await.unwrap().changed, 0);
        let undone = store.tombstones(&name, TombstoneCall::Undo { ids: &ids(&["a", "x"]) }).await.unwrap();
        assert_eq!(undone.changed, 1);
        assert!(undone.status.tombstones > first.status.tombstones);
        let changed = all(&*store, &name, first.up_to).await;
        let until = START.plus(HOUR + Duration::from_micros(1));
        assert_eq!(changed, [Tombstone { id: Arc::from("a"), until, is_undone: true }]);
        // A replica that does not know of the undo restores nothing.
        let known = [Tombstone { id: Arc::from("a"), until: START.plus(HOUR), is_undone: false }];
        let recall = TombstoneCall::Recall { tombstones: &known };
        assert_eq!(store.tombstones(&name, recall).await.unwrap().changed, 0);
        // Cancelled again, it ends later than it was undone, however short that is.
        let again = store.tombstones(&name, minute).await.unwrap();
        let until = START.plus(HOUR + Duration::from_micros(2));
        assert_eq!(
            all(&*store, &name, undone.up_to).await,
            [Tombstone { id: Arc::from("a"), until, is_undone: false }]
        );
        assert_eq!(again.changed, 1);
        // A tombstone that has ended makes room, and is not listed.
        clock.set(START.plus(2 * HOUR));
        store.tombstones(&name, TombstoneCall::Undo { ids: &both }).await.unwrap();
        assert_eq!(all(&*store, &name, 0).await, []);
    }
}

#[tokio::test]
async fn no_more_are_kept_than_there_may_be() {
    let ([memory, shared], clock) = stores().await;
    for store in [memory, shared] {
        clock.set(START);
        let name = unique("full");
        for from in (0..MAX_TOMBSTONES).step_by(1000) {
            let call = TombstoneCall::Cancel { ids: &numbered(from, 1000), span: HOUR };
            assert_eq!(store.tombstones(&name, call).await.unwrap().changed, 1000);
        }
        let one = ids(&["one"]);
        let more = TombstoneCall::Cancel { ids: &one, span: HOUR };
        let error = store.tombstones(&name, more).await.unwrap_err().to_string();
        assert!(error.contains("more than 100000 cancelled jobs"), "{error}");
        // Those that are there can be changed.
        let longer = TombstoneCall::Cancel { ids: &numbered(0, 1000), span: 2 * HOUR };
        assert_eq!(store.tombstones(&name, longer).await.unwrap().changed, 1000);
        let kept: BTreeMap<_, _> = all(&*store, &name, 0)
            .await
            .into_iter()
            .map(|tombstone| (tombstone.id, tombstone.until))
            .collect();
        assert_eq!(kept.len(), MAX_TOMBSTONES);
        clock.set(START.plus(HOUR));
        assert_eq!(store.tombstones(&name, more).await.unwrap().changed, 1, "others have ended");
    }
}

#[tokio::test]
async fn who_works_on_a_downstream_hears_of_it() {
    let redis = redis().await;
    let (one, two, name) = (worker(redis).await, worker(redis).await, unique("notified"));
    let mut changes = attentive(&one, &two, &name).await;
    let a = ids(&["a"]);
    for call in [TombstoneCall::Cancel { ids: &a, span: HOUR }, TombstoneCall::Undo { ids: &a }] {
        two.tombstones(&name, call).await.unwrap();
        timeout(LONG, changes.next()).await.unwrap_or_else(|_| panic!("{call:?} is not notified"));
    }
    two.tombstones(&name, TombstoneCall::Undo { ids: &a }).await.unwrap();
    two.tombstones(&name, TombstoneCall::Read { after: 0 }).await.unwrap();
    two.update_record(&name, Change::Pause { span: None, note: "" }).await.unwrap();
    timeout(LONG, changes.next()).await.expect("the pause is notified");
    assert!(futures_util::FutureExt::now_or_never(changes.next()).is_none(), "what changes nothing is not");
}

async fn ttl(redis: &Redis, key: &str) -> u64 {
    let answer = redis.command(&["PTTL", key]).await.unwrap();
    answer.trim().trim_start_matches(':').parse().unwrap()
}

#[tokio::test]
async fn the_keys_expire_with_the_last_tombstone() {
    let redis = Redis::dedicated().await;
    let store = worker(&redis).await;
    let cancel = async |id: &str, span| {
        let call = TombstoneCall::Cancel { ids: &ids(&[id]), span };
        store.tombstones("billing", call).await.unwrap()
    };
    cancel("a", HOUR).await;
    cancel("b", 2 * HOUR).await;
    store.tombstones("billing", TombstoneCall::Undo { ids: &ids(&["b"]) }).await.unwrap();
    cancel("c", HOUR).await;
    let expected = 2 * 3_600_000 + 60_000;
    for key in ["paced:{billing}:cancelled", "paced:{billing}:cancelled-until"] {
        let ttl = ttl(&redis, key).await;
        assert!((expected - 600_000..=expected + 1).contains(&ttl), "{key}: {ttl} ms");
    }
    cancel("d", LONGEST_TOMBSTONE).await;
    assert!(ttl(&redis, "paced:{billing}:cancelled").await > 365 * 86_400_000);
    // The record of an earlier version of paced has no number for them.
    redis.command(&["SET", "older", "x"]).await.unwrap();
    let cut = "local r = redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], r:sub(1, 160))";
    redis.command(&["EVAL", cut, "1", "paced:{billing}:record"]).await.unwrap();
    let record = store.read_record("billing").await.unwrap();
    assert_eq!(record.status.tombstones, 0, "it is still read");
}

/// Redis does nothing else meanwhile, so no call may do more work, however many tombstones there are.
#[tokio::test]
async fn a_full_call_does_as_much_however_many_there_are() {
    let redis = Redis::dedicated().await;
    // Time stands still, so no call has a later instant to note.
    let store = worker(&redis).await.counting_rounds().with_test_clock(Arc::new(ManualClock::new(START)));
    let work = async |call: TombstoneCall<'_>| Work::of(&redis, store.tombstones("billing", call)).await.0;
    let cancel = async |from| {
        let ids = numbered(from, 1000);
        work(TombstoneCall::Cancel { ids: &ids, span: HOUR }).await
    };
    let read = async || work(TombstoneCall::Read { after: 0 }).await;
    let (first, page) = (cancel(0).await, read().await);
    for from in (1000..49_000).step_by(1000) {
        let ids = numbered(from, 1000);
        store.tombstones("billing", TombstoneCall::Cancel { ids: &ids, span: HOUR }).await.unwrap();
    }
    let (last, page_of_many) = (cancel(49_000).await, read().await);
    for (few, many) in [(first, last), (page, page_of_many)] {
        assert_eq!((many.rounds, many.commands), (few.rounds, few.commands), "{few:?}, then {many:?}");
        assert!(many.bytes <= 2 * few.bytes + 1000, "{few:?}, then {many:?}");
    }
    assert!(first.rounds <= 1100 && first.commands <= 1100, "{first:?}");
}
