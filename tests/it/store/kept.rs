//! Records as each released version wrote them: this version continues with them.
//!
//! `tests/vectors/records` has a file for each version, of all that a scene left in Redis, and of what was read of it then.
//! The file of a version that is not released yet is written anew by `PACED_WRITE_RECORDS=1`; later it stays as it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paced::RedisStore;
use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{
    Change, CoolDownCall, ParkedGroup, ParkedGroups, Reserve, Scope, Store as _, TombstoneCall,
};
use paced::terms::{Override, Replica, Terms};
use paced::time::{ManualClock, Micros};
use serde::{Deserialize, Serialize};

use super::patient;
use crate::support::blocking;
use crate::support::servers::Redis;

const FOLDER: &str = "tests/vectors/records";
const PREFIX: &str = "kept";
const NOW: Micros = Micros(1_760_000_000_000_000);
/// The hour of that.
const HOUR: i64 = NOW.0 / 3_600_000_000;
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// The file of a version.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// When it was written, on the store's clock, in µs.
    at: i64,
    keys: BTreeMap<String, Key>,
    read: Read,
}

/// The value of a key; bytes are in base64.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Key {
    Text(String),
    Sorted(BTreeMap<String, String>),
}

/// What is read of a record.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Read {
    generation: u64,
    /// As this version writes them.
    terms: String,
    note: Option<String>,
    /// Whether an operator's pause has no end, and when the pause of the downstream ends.
    is_stopped: bool,
    penalty_until: i64,
    cools_down: bool,
    cancelled: Vec<String>,
    parked: i64,
    /// The hour, the kind and the jobs of each group.
    parked_groups: Vec<(i64, u8, i64)>,
    summaries: Vec<String>,
    served: Vec<String>,
    /// The next slots of each limit, after the pauses, in µs.
    slots: BTreeMap<String, Vec<i64>>,
}

/// A limit of each algorithm, each with the key that it is kept for.
fn limits() -> Vec<(Limit, &'static str)> {
    let rate = |text: &str| text.parse().unwrap();
    let quota = paced::limit::Edges::aligned(DAY, 0).unwrap();
    vec![
        (Limit::leaky_bucket("leaky-bucket-0", rate("7/m"), 3).unwrap(), ""),
        (Limit::gcra("gcra-0", rate("10/3s"), 5).unwrap(), ""),
        (Limit::token_bucket("token-bucket-0", rate("9/m"), 12).unwrap(), ""),
        (Limit::fixed_window("fixed-window-0", 8, 10 * MINUTE).unwrap(), ""),
        (Limit::sliding_window("sliding-window-0", 8, 10 * MINUTE, 10).unwrap(), ""),
        (Limit::sliding_log("sliding-log-0", 8, 10 * MINUTE).unwrap(), ""),
        (Limit::quota("quota-0", 8, quota).unwrap(), ""),
        (Limit::gcra("gcra-1", rate("1/m"), 1).unwrap(), "acme"),
    ]
}

fn terms() -> Terms {
    let own = Limit::leaky_bucket("leaky-bucket-0", "7/m".parse().unwrap(), 3).unwrap();
    let plan = Limit::gcra("plan.pro.gcra-0", "5/s".parse().unwrap(), 2).unwrap();
    let plans = [("pro".to_owned(), LimitSet::new(vec![own.clone(), plan]).unwrap())].into();
    let mut terms = Terms::new(LimitSet::new(vec![own]).unwrap(), plans, Some(7));
    let (reason, by) = (Some("they asked".to_owned()), Some("10.0.0.7".to_owned()));
    let rate = "6/m".parse().unwrap();
    terms.set_rate(None, Override { rate, until: Some(NOW.plus(DAY)), reason, by, set_at: NOW }).unwrap();
    let replica = Replica { id: "3f2a91bc".to_owned(), host: "api-7".to_owned() };
    terms.put_in_force(None, NOW, &replica)
}

fn store(redis: &Redis, clock: &Arc<ManualClock>) -> RedisStore {
    let store = RedisStore::open(&redis.url(), patient().with_key_prefix(PREFIX)).unwrap();
    store.with_test_clock(Arc::clone(clock) as _)
}

/// Slots of one limit, as many as possible.
async fn slots(store: &RedisStore, (limit, key): &(Limit, &str), jobs: usize) -> Vec<i64> {
    let set = LimitSet::new(vec![limit.clone()]).unwrap();
    let scope = Scope { downstream: "billing", key };
    let costs = vec![1; jobs];
    let reserved = store.reserve(Reserve::new(scope, &set, Costs::Each(&costs), 2 * DAY)).await.unwrap();
    reserved.slots.iter().map(|slot| slot.0).collect()
}

/// Leaves something of each kind in the store.
async fn scene(store: &RedisStore) {
    let text = terms().to_text();
    store.update_record("billing", Change::Terms { of: 0, text: &text }).await.unwrap();
    for limit in limits() {
        slots(store, &limit, 6).await;
    }
    let (replica, first, most) = ("3f2a91bc", MINUTE, 10 * MINUTE);
    let refused = CoolDownCall::Refused { replica, first, most };
    store.update_record("billing", Change::CoolDown(refused)).await.unwrap();
    let note = r#"{"by":"10.0.0.7","reason":"maintenance"}"#;
    store.update_record("billing", Change::Pause { span: None, note }).await.unwrap();
    let ids: Vec<Arc<str>> = ["invoice-1", "invoice-2"].map(Arc::from).into();
    store.tombstones("billing", TombstoneCall::Cancel { ids: &ids, span: 30 * DAY }).await.unwrap();
    store.note_parked("billing", 17).await.unwrap();
    let group = |hour, kind, jobs| ParkedGroup { hour: HOUR + hour, kind, jobs };
    let changes = [group(1, 3, 12), group(40, 0, 5)];
    store.parked_groups("billing", ParkedGroups { first_hour: HOUR, changes: &changes }).await.unwrap();
    store.leave_summary("3f2a91bc", r#"{"v":1}"#, 10 * MINUTE).await.unwrap();
    let served = paced::store::Served { prefix: "paced", names: &["billing"], ..Default::default() };
    store.served(served).await.unwrap();
}

/// Reads all that this version makes of what lies in the store.
async fn read(store: &RedisStore, clock: &ManualClock) -> Read {
    let record = store.read_record("billing").await.unwrap();
    let page = store.tombstones("billing", TombstoneCall::Read { after: 0 }).await.unwrap().page;
    let parked = store.note_parked("billing", 0).await.unwrap();
    let groups = ParkedGroups { first_hour: HOUR, changes: &[] };
    let groups = store.parked_groups("billing", groups).await.unwrap();
    let summaries = store.summaries().await.unwrap();
    // Those that nobody has served since are reported.
    clock.set(NOW.plus(10 * MINUTE));
    let served = paced::store::Served { prefix: "paced", unserved_for: MINUTE, ..Default::default() };
    let served = store.served(served).await.unwrap().unserved;
    let read = Read {
        generation: record.status.generation,
        terms: Terms::parse(record.terms.as_deref().unwrap()).unwrap().to_text(),
        note: record.note,
        is_stopped: record.status.is_stopped(),
        penalty_until: record.status.penalty.0,
        cools_down: record.cool_down.is_some(),
        cancelled: page.iter().map(|kept| kept.id.to_string()).collect(),
        parked,
        parked_groups: groups.into_iter().map(|group| (group.hour, group.kind, group.jobs)).collect(),
        summaries,
        served: served.into_iter().map(|unserved| unserved.name).collect(),
        slots: BTreeMap::new(),
    };
    store.update_record("billing", Change::Resume).await.unwrap();
    let mut all = BTreeMap::new();
    for limit in limits() {
        all.insert(limit.0.name().to_owned(), slots(store, &limit, 4).await);
    }
    Read { slots: all, ..read }
}

async fn dump(redis: &Redis) -> BTreeMap<String, Key> {
    let url = redis.url();
    blocking(move || {
        let mut link = redis::Client::open(url).unwrap().get_connection().unwrap();
        let mut command = |words: &[&str]| {
            let mut command = redis::Cmd::new();
            command.arg(words);
            command.query::<redis::Value>(&mut link).unwrap()
        };
        let keys: Vec<String> = redis::from_redis_value(command(&["KEYS", &format!("{PREFIX}:*")])).unwrap();
        let mut value = |key: &String| {
            let kind: String = redis::from_redis_value(command(&["TYPE", key])).unwrap();
            if kind == "string" {
                let text: Vec<u8> = redis::from_redis_value(command(&["GET", key])).unwrap();
                return Key::Text(STANDARD.encode(text));
            }
            assert_eq!(kind, "zset", "{key}");
            let all = command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
            let all: Vec<Vec<u8>> = redis::from_redis_value(all).unwrap();
            let pairs = all.chunks(2).map(|pair| (STANDARD.encode(&pair[0]), STANDARD.encode(&pair[1])));
            Key::Sorted(pairs.collect())
        };
        keys.iter().map(|key| (key.clone(), value(key))).collect()
    })
    .await
}

async fn load(redis: &Redis, keys: BTreeMap<String, Key>) {
    let (url, bytes) = (redis.url(), |text: &String| STANDARD.decode(text).unwrap());
    blocking(move || {
        let mut link = redis::Client::open(url).unwrap().get_connection().unwrap();
        for (key, value) in keys {
            let mut command = redis::Cmd::new();
            match value {
                Key::Text(text) => drop(command.arg("SET").arg(key).arg(bytes(&text))),
                Key::Sorted(all) => {
                    command.arg("ZADD").arg(key);
                    for (member, score) in &all {
                        command.arg(bytes(score)).arg(bytes(member));
                    }
                }
            }
            command.exec(&mut link).unwrap();
        }
    })
    .await;
}

/// What this version reads of these keys, in a server of its own.
async fn read_of(keys: BTreeMap<String, Key>, at: Micros) -> Read {
    let (redis, clock) = (Redis::dedicated().await, Arc::new(ManualClock::new(at)));
    load(&redis, keys).await;
    read(&store(&redis, &clock), &clock).await
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let all = std::fs::read_dir(folder).into_iter().flatten();
    let mut all: Vec<PathBuf> = all.map(|file| file.unwrap().path()).collect();
    all.sort();
    all
}

#[tokio::test]
async fn records_of_each_version_are_gone_on_with() {
    if std::env::var_os("PACED_WRITE_RECORDS").is_some() {
        let (redis, clock) = (Redis::dedicated().await, Arc::new(ManualClock::new(NOW)));
        scene(&store(&redis, &clock)).await;
        let keys = dump(&redis).await;
        let read = read_of(dump(&redis).await, NOW).await;
        let kept = serde_json::to_string_pretty(&Kept { at: NOW.0, keys, read }).unwrap() + "\n";
        let file = format!("{FOLDER}/{}.json", env!("CARGO_PKG_VERSION"));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, kept).unwrap();
    }
    let files = files();
    assert!(!files.is_empty());
    for file in files {
        let kept: Kept = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let Read { cancelled, slots, summaries, served, parked_groups, .. } = &kept.read;
        // The scene left something of each kind.
        assert!(
            cancelled.len() == 2 && parked_groups.len() == 2 && summaries.len() == 1 && served.len() == 1,
            "{}",
            file.display()
        );
        assert!(slots.values().all(|slots| !slots.is_empty()), "{slots:?}");
        assert_eq!(read_of(kept.keys, Micros(kept.at)).await, kept.read, "{}", file.display());
    }
}
