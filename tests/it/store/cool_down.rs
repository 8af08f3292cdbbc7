//! The cool-down of a downstream: both stores answer alike, and Redis keeps it no longer than it counts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use paced::store::{
    Change, CoolDown, CoolDownCall, LONGEST_PAUSE, MemoryStore, RecordState, RedisStore, Store,
};
use paced::time::{ManualClock, Micros};
use paced::{RedisOptions, StoreError};
use tokio::time::timeout;

use super::patient;
use super::record::attentive;
use crate::support::servers::{Redis, redis};
use crate::support::{LONG, unique};

const TODAY: Micros = Micros(1_760_000_000_000_000);
const REPLICAS: [&str; 3] = ["one", "zwei: ä", "three"];
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(30);

fn refused(replica: &str) -> Change<'_> {
    Change::CoolDown(CoolDownCall::Refused { replica, first: FIRST, most: MOST })
}

fn again(replica: &str) -> Change<'_> {
    Change::CoolDown(CoolDownCall::Again { replica, first: FIRST, most: MOST })
}

fn probe(replica: &str) -> Change<'_> {
    Change::CoolDown(CoolDownCall::Probe { replica, ttl: TTL })
}

fn over(replica: &str) -> Change<'_> {
    Change::CoolDown(CoolDownCall::Over { replica })
}

fn options(prefix: &str) -> RedisOptions {
    patient().with_key_prefix(prefix)
}

/// How often the drawn calls had each result.
#[derive(Debug, Default)]
struct Tally {
    waits: usize,
    /// Waits of a higher level, and those of the same one.
    doubled: usize,
    repeated: usize,
    probes: usize,
    over: usize,
    ended: usize,
    steps: usize,
}

impl Tally {
    fn count(&mut self, change: Option<Change<'_>>, before: &Option<CoolDown>, after: &Option<CoolDown>) {
        use CoolDownCall as Call;
        match (change, before, after) {
            (Some(Change::CoolDown(Call::Refused { .. })), None, Some(_)) => self.waits += 1,
            (Some(Change::CoolDown(Call::Refused { .. })), Some(before), Some(after)) => {
                self.doubled += usize::from(after.level > before.level);
            }
            (Some(Change::CoolDown(Call::Again { .. })), before, after) if before != after => {
                self.repeated += 1;
            }
            (Some(Change::CoolDown(Call::Probe { replica, .. })), _, Some(after)) => {
                self.probes += usize::from(after.holder.as_deref() == Some(replica));
            }
            (Some(Change::CoolDown(Call::Over { .. })), Some(_), None) => self.over += 1,
            (None, Some(_), None) => self.ended += 1,
            _ => {}
        }
    }

    fn least(&self) -> usize {
        let all = [self.waits, self.doubled, self.repeated, self.probes, self.over, self.ended, self.steps];
        all.into_iter().min().unwrap()
    }
}

fn draw(rng: &mut fastrand::Rng) -> Option<Change<'static>> {
    // A colon in a name is refused by both.
    let replica = REPLICAS[if rng.u8(..40) == 0 { 1 } else { rng.usize(..2) * 2 }];
    let first = Duration::from_micros(rng.u64(1000..5_000_000));
    let most = first + Duration::from_micros(rng.u64(..60_000_000));
    let ttl = Duration::from_micros(rng.u64(100_000..20_000_000));
    let call = match rng.u8(..20) {
        0..6 => CoolDownCall::Refused { replica, first, most },
        6..14 => CoolDownCall::Probe { replica, ttl },
        14..16 => CoolDownCall::Again { replica, first, most },
        16 => CoolDownCall::Over { replica },
        17 => return Some(Change::Penalize(most)),
        18 => return (rng.u8(..5) == 0).then_some(Change::Resume),
        _ => return None,
    };
    Some(Change::CoolDown(call))
}

fn move_clock(clock: &ManualClock, rng: &mut fastrand::Rng) -> bool {
    use paced::time::Clock as _;
    let by = match rng.u8(..24) {
        0..8 => 0,
        8..14 => rng.i64(0..2_000_000),
        14..20 => rng.i64(0..20_000_000),
        20 => rng.i64(0..200_000_000),
        21 => rng.i64(-100_000..0),
        _ => rng.i64(-300_000_000..0),
    };
    clock.set(Micros(clock.now().0 + by));
    by < -100_000
}

#[tokio::test]
async fn both_stores_cool_down_alike_in_any_order() {
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::with_clock(clock.clone());
    let shared = RedisStore::connect(&redis().await.url(), patient()).await.unwrap();
    let shared = shared.with_test_clock(clock.clone());
    let seed = std::env::var("PACED_PARITY_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("PACED_PARITY_SEED={seed}");
    let (mut rng, mut tally) = (fastrand::Rng::with_seed(seed), Tally::default());
    for _ in 0..60 {
        clock.set(TODAY);
        let (name, mut before) = (unique("cooling"), None);
        let answer = async |store: &dyn Store, change: Option<Change<'static>>| {
            let answer = match change {
                Some(change) => store.update_record(&name, change).await,
                None => store.read_record(&name).await,
            };
            answer.map_err(|error| error.to_string())
        };
        for _ in 0..100 {
            tally.steps += usize::from(move_clock(&clock, &mut rng));
            let change = draw(&mut rng);
            let expected: Result<RecordState, String> = answer(&memory, change).await;
            assert_eq!(answer(&shared, change).await, expected, "seed {seed}: {change:?} after {before:?}");
            let Ok(RecordState { now, status, cool_down, .. }) = expected else { continue };
            tally.count(change, &before, &cool_down);
            if let Some(CoolDown { at, until, holder, .. }) = &cool_down {
                assert!(*at <= now.plus(2 * MOST) && *until <= now.plus(TTL), "{cool_down:?} at {now}");
                assert_eq!(holder.is_none(), until.0 == 0);
                // A `Resume` ends both.
                assert!(status.penalty >= *at, "{status:?}, {cool_down:?}");
            }
            before = cool_down;
        }
    }
    assert!(tally.least() > 2, "{tally:?}");
}

#[tokio::test]
async fn both_stores_refuse_the_same_arguments() {
    let memory = MemoryStore::new();
    let shared = RedisStore::open(&redis().await.url(), patient()).unwrap();
    for store in [&memory as &dyn Store, &shared] {
        for change in [
            over(""),
            over("a:b"),
            over("a\nb"),
            Change::CoolDown(CoolDownCall::Probe { replica: "one", ttl: Duration::ZERO }),
            Change::CoolDown(CoolDownCall::Probe { replica: "one", ttl: LONGEST_PAUSE }),
            Change::CoolDown(CoolDownCall::Refused { replica: "one", first: Duration::ZERO, most: MOST }),
            Change::CoolDown(CoolDownCall::Refused { replica: "one", first: MOST, most: FIRST }),
            Change::CoolDown(CoolDownCall::Again { replica: "one", first: FIRST, most: LONGEST_PAUSE }),
        ] {
            let refused = store.update_record("billing", change).await;
            assert!(matches!(refused, Err(StoreError::Invalid(_))), "{change:?}: {refused:?}");
        }
    }
}

async fn ttl(redis: &Redis, key: &str) -> i64 {
    let answer = redis.command(&["PTTL", key]).await.unwrap();
    answer.trim().trim_start_matches(':').parse().unwrap()
}

#[tokio::test]
async fn redis_keeps_a_cool_down_a_minute_longer_than_it_lasts() {
    let (redis, prefix) = (redis().await, unique("cool"));
    let clock = Arc::new(ManualClock::new(TODAY));
    let store = RedisStore::connect(&redis.url(), options(&prefix)).await.unwrap();
    let store = store.with_test_clock(clock.clone());
    let key = format!("{prefix}:{{billing}}:cool-down");
    let update = async |at_ms: i64, change: Change<'_>| {
        clock.set(Micros(TODAY.0 + at_ms * 1000));
        store.update_record("billing", change).await.unwrap()
    };
    for (at_ms, change, expected) in [
        // The longer of the wait and of the lease counts.
        (0, refused("one"), Some(61_000)),
        (1000, probe("one"), Some(90_000)),
        (1500, refused("one"), Some(62_000)),
        (3500, probe("three"), Some(90_000)),
        (4000, again("three"), Some(62_000)),
        (6000, probe("three"), Some(90_000)),
        (6001, over("three"), None),
        (6001, refused("three"), Some(61_000)),
        (6001, Change::Resume, None),
    ] {
        update(at_ms, change).await;
        let left = ttl(redis, &key).await;
        match expected {
            Some(expected) => {
                assert!((expected - 25_000..=expected + 1).contains(&left), "{change:?}: {left}")
            }
            None => assert_eq!(left, -2, "{change:?}"),
        }
    }
    // A slow machine changes nothing about what is stored.
    update(7000, refused("one")).await;
    let stored = redis.command(&["GETRANGE", &key, "0", "-1"]).await.unwrap();
    assert!(stored.contains(&format!("0:{}:0:0:", TODAY.0 + 8_000_000)), "{stored}");
    // The server's own expiry ends it too.
    redis.command(&["PEXPIRE", &key, "1"]).await.unwrap();
    while ttl(redis, &key).await != -2 {}
    assert_eq!(store.read_record("billing").await.unwrap().cool_down, None);
}

#[tokio::test]
async fn a_key_that_others_wrote_is_ignored_or_bounded() {
    let (redis, prefix) = (redis().await, unique("odd"));
    let store = RedisStore::connect(&redis.url(), options(&prefix)).await.unwrap();
    let clock = Arc::new(ManualClock::new(TODAY));
    let store = store.with_test_clock(clock);
    let key = format!("{prefix}:{{billing}}:cool-down");
    let put = async |text: &str| {
        redis.command(&["SET", &key, text]).await.unwrap();
        store.read_record("billing").await.unwrap().cool_down
    };
    for odd in ["", "x", "1:2:3", "0:1:2:0:one", &format!("-1:{}:0:0:", TODAY.0), &"x".repeat(1 << 16)] {
        assert_eq!(put(odd).await, None, "{odd:.20}");
    }
    // Everything lies too far ahead, as after a step back that nobody could see.
    let far = put(&format!("{n}:{n}:{n}:{n}:one", n = "9".repeat(30))).await.unwrap();
    let (hour, lease) = (TODAY.plus(Duration::from_secs(3600)), TODAY.plus(Duration::from_secs(600)));
    assert_eq!((far.level, far.at, far.until), (u32::MAX, hour, lease));
    assert_eq!(store.update_record("billing", refused("two")).await.unwrap().cool_down, Some(far));
    let state = store.update_record("billing", refused("one")).await.unwrap().cool_down.unwrap();
    assert_eq!((state.level, state.at, state.holder), (u32::MAX, TODAY.plus(MOST), None));
    // Another type is an error, as at the other keys of the record.
    redis.command(&["DEL", &key]).await.unwrap();
    redis.command(&["LPUSH", &key, "no text"]).await.unwrap();
    let error = store.read_record("billing").await.unwrap_err().to_string();
    assert!(error.contains("WRONGTYPE"), "{error}");
}

#[tokio::test]
async fn others_hear_of_each_change() {
    let redis = redis().await;
    let store = async || RedisStore::connect(&redis.url(), patient()).await.unwrap();
    let (one, two, name) = (store().await, store().await, unique("cooled"));
    let clock = Arc::new(ManualClock::new(TODAY));
    let two = two.with_test_clock(clock.clone());
    let mut changes = attentive(&one, &two, &name).await;
    let update = async |change| two.update_record(&name, change).await.unwrap().cool_down;
    for (at_ms, change, is_news) in [
        (0, refused("one"), true),
        (0, refused("three"), false),
        (999, probe("one"), false),
        (1000, probe("one"), true),
        (1000, probe("one"), false),
        (1001, probe("three"), false),
        (1001, again("one"), true),
        (2001, probe("three"), true),
        (2002, over("one"), false),
        (2002, over("three"), true),
        (2002, over("three"), false),
    ] {
        clock.set(Micros(TODAY.0 + at_ms * 1000));
        update(change).await;
        if is_news {
            timeout(LONG, changes.next()).await.unwrap_or_else(|_| panic!("{change:?} is not notified"));
        }
    }
    // Another change is notified after all of these, and once: what changed nothing was not published.
    update(Change::Pause { span: None, note: "" }).await;
    timeout(LONG, changes.next()).await.expect("the pause is notified");
    assert!(changes.next().now_or_never().is_none(), "once");
}

/// Replicas of an older version know of no cool-down, and keep to the penalty.
#[tokio::test]
async fn the_penalty_lasts_as_long_as_the_wait() {
    let redis = redis().await;
    let (store, name) = (RedisStore::connect(&redis.url(), patient()).await.unwrap(), unique("kept"));
    let state = store.update_record(&name, refused("one")).await.unwrap();
    let cool_down = state.cool_down.unwrap();
    assert_eq!((cool_down.at, cool_down.at), (state.now.plus(FIRST), state.status.penalty));
    let read = store.read_record(&name).await.unwrap();
    assert_eq!((read.cool_down, read.status), (Some(cool_down), state.status));
}
