//! The reports of replicas to each other through a store: both stores keep them alike.

use std::sync::Arc;
use std::time::Duration;

use paced::store::{
    LONGEST_SUMMARY, MAX_PARKED_GROUPS, MAX_SERVED, MAX_SERVED_BATCH, MAX_SUMMARIES, MAX_SUMMARY_BYTES,
    MemoryStore, ParkedGroup, ParkedGroups, RedisStore, Served, ServedReply, Store, Unserved,
};
use paced::time::{ManualClock, Micros};
use paced::{RedisOptions, StoreError};

use super::patient;
use crate::support::servers::{self, Redis, redis};
use crate::support::{LONG, unique, until};

const START: Micros = Micros(1_760_000_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);

fn options(prefix: &str) -> RedisOptions {
    patient().with_key_prefix(prefix)
}

/// Both stores, each with a second handle, on one clock.
async fn stores(prefix: &str) -> (Vec<[Arc<dyn Store>; 2]>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    let memory = Arc::new(MemoryStore::with_clock(clock.clone()));
    let url = redis().await.url();
    let shared = || -> Arc<dyn Store> {
        Arc::new(RedisStore::open(&url, options(prefix)).unwrap().with_test_clock(clock.clone()))
    };
    (vec![[memory.clone(), memory], [shared(), shared()]], clock)
}

async fn connect(redis: &Redis, prefix: &str) -> RedisStore {
    RedisStore::connect(&redis.url(), options(prefix)).await.unwrap()
}

#[tokio::test]
async fn replicas_see_the_summaries_of_all_until_these_end() {
    let (stores, clock) = stores(&unique("seen")).await;
    for [one, two] in stores {
        clock.set(START);
        assert_eq!(two.summaries().await.unwrap(), [""; 0]);
        two.leave_summary("b", r#"{"b":1}"#, 2 * MINUTE).await.unwrap();
        one.leave_summary("a", r#"{"a":1}"#, MINUTE).await.unwrap();
        one.leave_summary("a-2", "später", MINUTE).await.unwrap();
        for store in [&one, &two] {
            assert_eq!(store.summaries().await.unwrap(), [r#"{"a":1}"#, "später", r#"{"b":1}"#]);
        }
        // A later summary replaces the one before, and its end.
        clock.set(START.plus(MINUTE / 2));
        one.leave_summary("a", "again", MINUTE).await.unwrap();
        clock.set(Micros(START.plus(MINUTE).0 - 1));
        assert_eq!(two.summaries().await.unwrap(), ["again", "später", r#"{"b":1}"#]);
        clock.set(START.plus(MINUTE));
        assert_eq!(two.summaries().await.unwrap(), ["again", r#"{"b":1}"#]);
        one.leave_summary("b", "", Duration::ZERO).await.unwrap();
        one.leave_summary("unknown", "", Duration::ZERO).await.unwrap();
        assert_eq!(two.summaries().await.unwrap(), ["again"], "one is withdrawn");
        clock.set(START.plus(2 * MINUTE));
        assert_eq!(two.summaries().await.unwrap(), [""; 0]);
    }
}

#[tokio::test]
async fn what_no_replica_leaves_is_refused() {
    let (stores, _) = stores(&unique("refused")).await;
    let longest = "x".repeat(MAX_SUMMARY_BYTES);
    for [store, other] in stores {
        let calls = [
            store.leave_summary("", "{}", MINUTE).await,
            store.leave_summary(&"r".repeat(65), "{}", MINUTE).await,
            store.leave_summary("one", "", MINUTE).await,
            store.leave_summary("one", &format!("{longest}x"), MINUTE).await,
            store.leave_summary("one", "{}", Duration::from_nanos(1)).await,
            store.leave_summary("one", "{}", LONGEST_SUMMARY + MINUTE).await,
        ];
        for call in calls {
            assert!(matches!(call, Err(StoreError::Invalid(_))), "{call:?}");
        }
        assert_eq!(other.summaries().await.unwrap(), [""; 0]);
        // The longest ones come in several answers.
        for replica in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
            store.leave_summary(replica, &longest.replacen('x', replica, 1), MINUTE).await.unwrap();
        }
        let listed = other.summaries().await.unwrap();
        assert!(listed.iter().all(|summary| summary.len() == MAX_SUMMARY_BYTES));
        let first: String = listed.iter().map(|summary| &summary[..1]).collect();
        assert_eq!(first, "abcdefghi");
    }
}

#[tokio::test]
async fn of_too_many_summaries_those_that_end_last_are_listed() {
    let (stores, _) = stores(&unique("many")).await;
    for [one, two] in stores {
        for number in 0..MAX_SUMMARIES + 50 {
            // Those with the first names end last.
            let ttl = MINUTE + Duration::from_secs(if number < 100 { 60 } else { 0 });
            let name = format!("{number:04}");
            one.leave_summary(&name, &name, ttl).await.unwrap();
        }
        let listed = two.summaries().await.unwrap();
        assert_eq!(listed.len(), MAX_SUMMARIES);
        let expected = (0..100).chain(150..MAX_SUMMARIES + 50).map(|number| format!("{number:04}"));
        assert_eq!(listed, expected.collect::<Vec<_>>());
    }
}

async fn ttl(redis: &Redis, key: &str) -> i64 {
    let answer = redis.command(&["PTTL", key]).await.unwrap();
    answer.trim().trim_start_matches(':').parse().unwrap()
}

#[tokio::test]
async fn summaries_in_redis_end_by_themselves() {
    let (redis, prefix) = (redis().await, unique("ends"));
    let (one, two) = (connect(redis, &prefix).await, connect(redis, &prefix).await);
    one.leave_summary("gone", "gone", Duration::from_millis(300)).await.unwrap();
    two.leave_summary("here", "here", 10 * MINUTE).await.unwrap();
    let (seen, gone) = (format!("{prefix}:{{~fleet}}:seen"), format!("{prefix}:{{~fleet}}:summary:gone"));
    until("the first summary ends", LONG, async || two.summaries().await.unwrap() == ["here"]).await;
    until("its key ends", LONG, async || ttl(redis, &gone).await == -2).await;
    // The set has room for the last one, and ends by itself.
    one.leave_summary("short", "short", Duration::from_millis(300)).await.unwrap();
    let left = ttl(redis, &seen).await;
    assert!((60_000..=660_001).contains(&left), "{left} ms");
    assert_eq!(redis.command(&["ZSCORE", &seen, "gone"]).await.unwrap().trim(), "$-1", "it is removed");
}

/// Replicas read the summaries every few seconds, and mostly those of the same replicas.
#[tokio::test]
async fn one_call_reads_the_summaries_of_the_replicas_that_were_there_before() {
    let (redis, prefix) = (Redis::dedicated().await, unique("again"));
    let (one, two) = (connect(&redis, &prefix).await, connect(&redis, &prefix).await);
    let calls = async || -> usize {
        let stats = redis.info_value(&["INFO", "commandstats"], "cmdstat_evalsha").await.unwrap();
        stats.split(['=', ',']).nth(1).unwrap().parse().unwrap()
    };
    let read = async |expected: &[&str]| {
        let before = calls().await;
        assert_eq!(two.summaries().await.unwrap(), expected);
        calls().await - before
    };
    one.leave_summary("a", "a", MINUTE).await.unwrap();
    one.leave_summary("b", "b", MINUTE).await.unwrap();
    assert!(read(&["a", "b"]).await >= 2, "their names, and then they");
    one.leave_summary("b", "again", MINUTE).await.unwrap();
    assert_eq!(read(&["a", "again"]).await, 1);
    one.leave_summary("c", "c", MINUTE).await.unwrap();
    assert_eq!(read(&["a", "again", "c"]).await, 2, "a new one");
    one.leave_summary("a", "", Duration::ZERO).await.unwrap();
    assert_eq!(read(&["again", "c"]).await, 1, "one is gone");
    assert_eq!(read(&["again", "c"]).await, 1);
}

/// A stranger who may write these keys can put anything there. That costs no replica more than the list.
#[tokio::test]
async fn what_is_no_summary_is_not_listed() {
    let (redis, prefix) = (redis().await, unique("strange"));
    let store = connect(redis, &prefix).await;
    store.leave_summary("one", "one", MINUTE).await.unwrap();
    store.leave_summary("two", "two", MINUTE).await.unwrap();
    let key = |name: &str| format!("{prefix}:{{~fleet}}:{name}");
    let later = "99999999999999999";
    let long = "n".repeat(65);
    for name in [long.as_str(), "absent", "}{", ""] {
        redis.command(&["ZADD", &key("seen"), later, name]).await.unwrap();
    }
    let odd = "redis.call('ZADD', KEYS[1], ARGV[1], '\\255') redis.call('SET', KEYS[2], '\\255') \
               redis.call('SET', KEYS[3], ('x'):rep(1048577)) return 1";
    let words = ["EVAL", odd, "3", &key("seen"), &key("summary:two"), &key("summary:}{"), later];
    redis.command(&words).await.unwrap();
    assert_eq!(store.summaries().await.unwrap(), ["one"]);
}

#[tokio::test]
async fn a_cluster_keeps_the_summaries_on_one_master() {
    let (cluster, prefix) = (servers::cluster().await, unique("one-master"));
    let connect = async || RedisStore::connect(&cluster.url(), options(&prefix)).await.unwrap();
    let (one, two) = (connect().await, connect().await);
    for replica in ["a", "b", "c"] {
        one.leave_summary(replica, replica, MINUTE).await.unwrap();
    }
    assert_eq!(two.summaries().await.unwrap(), ["a", "b", "c"]);
    two.leave_summary("b", "", Duration::ZERO).await.unwrap();
    assert_eq!(one.summaries().await.unwrap(), ["a", "c"]);
    let master = &cluster.nodes[cluster.master_of("{~fleet}").await];
    let keys = master.command(&["KEYS", &format!("{prefix}:{{~fleet}}:*")]).await.unwrap();
    assert_eq!(keys.matches("{~fleet}").count(), 3, "{keys}");
}

#[tokio::test]
async fn replicas_count_parked_jobs_together() {
    let (stores, _) = stores(&unique("parked")).await;
    const MOST: i64 = (1 << 53) - 1;
    for [one, two] in stores {
        let count = async |jobs: i64| two.note_parked("billing", jobs).await.unwrap();
        assert_eq!(count(0).await, 0);
        assert_eq!(one.note_parked("billing", 5).await.unwrap(), 5);
        assert_eq!(one.note_parked("other", 7).await.unwrap(), 7);
        assert_eq!([count(2).await, count(-3).await, count(0).await], [7, 4, 4]);
        assert_eq!([count(-9).await, count(1).await], [0, 1], "it is never below 0");
        // Numbers that are exact in every store have an end.
        assert_eq!([count(i64::MAX).await, count(1).await, count(i64::MIN).await], [MOST, MOST, 0]);
        assert_eq!([count(i64::MAX).await, count(-1).await], [MOST, MOST - 1]);
        for name in ["", "a}b"] {
            assert!(matches!(one.note_parked(name, 1).await, Err(StoreError::Invalid(_))));
        }
    }
}

#[tokio::test]
async fn replicas_group_parked_jobs_by_hour_and_kind_together() {
    let (stores, _) = stores(&unique("parkedgroups")).await;
    let group = |hour, kind, jobs| ParkedGroup { hour, kind, jobs };
    for [one, two] in stores {
        let note = async |first_hour, changes: &[ParkedGroup]| {
            one.parked_groups("billing", ParkedGroups { first_hour, changes }).await.unwrap()
        };
        assert!(note(400_000, &[]).await.is_empty());
        let changes =
            [group(400_001, 2, 7), group(400_000, 255, 1), group(400_000, 0, 4), group(400_000, 0, -1)];
        let all = [group(400_000, 0, 3), group(400_000, 255, 1), group(400_001, 2, 7)];
        assert_eq!(note(400_000, &changes).await, all, "in their order");
        let read = ParkedGroups { first_hour: 400_000, changes: &[] };
        assert_eq!(two.parked_groups("billing", read).await.unwrap(), all, "for all replicas");
        assert!(two.parked_groups("other", read).await.unwrap().is_empty());
        let changes = [group(400_000, 0, -9), group(400_002, 1, -1), group(399_999, 1, 5)];
        assert_eq!(
            note(400_000, &changes).await,
            all[1..],
            "none is below 0, and none of an earlier hour is new"
        );
        assert_eq!(note(400_001, &[]).await, all[2..], "those of earlier hours are forgotten");
        let most = i64::try_from(MAX_PARKED_GROUPS).unwrap();
        let many: Vec<ParkedGroup> = (0..most).map(|n| group(400_002 + n, 3, i64::MAX)).collect();
        let groups = note(400_001, &many).await;
        assert_eq!(
            (groups.len(), groups[0], groups[1]),
            (MAX_PARKED_GROUPS, all[2], group(400_002, 3, (1 << 53) - 1))
        );
        let wrong = ParkedGroups { first_hour: -1, changes: &[] };
        assert!(matches!(one.parked_groups("billing", wrong).await, Err(StoreError::Invalid(_))));
        assert!(matches!(one.parked_groups("a}b", read).await, Err(StoreError::Invalid(_))));
    }
}

#[tokio::test]
async fn groups_of_parked_jobs_that_paced_did_not_write_do_not_count() {
    let (redis, prefix) = (redis().await, unique("oddgroups"));
    let store = connect(redis, &prefix).await;
    let key = format!("{prefix}:{{billing}}:parked-groups");
    let read = ParkedGroups { first_hour: 0, changes: &[] };
    for odd in ["many", "a text of twenty-four by", &"\u{7f}".repeat(48)] {
        redis.command(&["SET", &key, odd]).await.unwrap();
        assert!(store.parked_groups("billing", read).await.unwrap().is_empty(), "{odd}");
    }
    let change = [ParkedGroup { hour: 7, kind: 1, jobs: 2 }];
    let groups = store.parked_groups("billing", ParkedGroups { changes: &change, ..read }).await.unwrap();
    assert_eq!(groups, change);
    // A later version may keep more numbers of each group: how many, and then four of each of two groups.
    let later = [4.0_f64, 7.0, 2.0, 5.0, 3.0, 8.0, 2.0, 7.0, 3.0].map(f64::to_le_bytes).concat();
    redis.command(&["SET", &key, std::str::from_utf8(&later).unwrap()]).await.unwrap();
    let changes = [ParkedGroup { hour: 8, kind: 2, jobs: -1 }];
    let groups = store.parked_groups("billing", ParkedGroups { changes: &changes, ..read }).await.unwrap();
    let group = |hour, jobs| ParkedGroup { hour, kind: 2, jobs };
    assert_eq!(groups, [group(7, 5), group(8, 6)]);
    assert_eq!(store.parked_groups("billing", read).await.unwrap(), groups);
    let longest = 400 * 86_400_000;
    assert!((longest - 600_000..=longest).contains(&ttl(redis, &key).await));
}

#[tokio::test]
async fn the_count_of_parked_jobs_is_kept_for_long_after_it_changed() {
    let (redis, prefix) = (redis().await, unique("kept"));
    let store = connect(redis, &prefix).await;
    let key = format!("{prefix}:{{billing}}:parked");
    let longest = 400 * 86_400_000;
    let shorten = async || redis.command(&["PEXPIRE", &key, "60000"]).await.unwrap();
    assert_eq!(store.note_parked("billing", 0).await.unwrap(), 0);
    assert_eq!(ttl(redis, &key).await, -2, "reading creates no key");
    store.note_parked("billing", 3).await.unwrap();
    assert!((longest - 600_000..=longest).contains(&ttl(redis, &key).await));
    shorten().await;
    store.note_parked("billing", 0).await.unwrap();
    assert!(ttl(redis, &key).await <= 60_000, "reading keeps it no longer");
    store.note_parked("billing", -3).await.unwrap();
    assert!(ttl(redis, &key).await > 60_000);
    // A value that is no count is read as 0.
    for odd in ["many", "-5", "inf", "nan", "1e300"] {
        redis.command(&["SET", &key, odd]).await.unwrap();
        assert_eq!(store.note_parked("billing", 0).await.unwrap(), 0, "{odd}");
        assert_eq!(store.note_parked("billing", 2).await.unwrap(), 2, "{odd}");
    }
}

/// How many of the names were new, and which downstreams nobody serves, each with the seconds after [`START`].
async fn served(store: &Arc<dyn Store>, call: Served<'_>) -> (usize, Vec<(String, i64)>) {
    let ServedReply { new, unserved } = store.served(call).await.unwrap();
    let seconds = |at: Micros| (at.0 - START.0) / 1_000_000;
    (new, unserved.into_iter().map(|unserved| (unserved.name, seconds(unserved.served_at))).collect())
}

fn unserved(name: &str, served_at: Micros) -> Unserved {
    Unserved { name: name.to_owned(), served_at }
}

#[tokio::test]
async fn replicas_see_what_nobody_serves() {
    let (stores, clock) = stores(&unique("served")).await;
    for [one, two] in stores {
        let at = |second: u64| clock.set(START.plus(Duration::from_secs(second)));
        let call = Served { prefix: "p", unserved_for: MINUTE, ..Served::default() };
        let named = |all: &[(&str, i64)]| -> Vec<(String, i64)> {
            all.iter().map(|(name, second)| ((*name).to_owned(), *second)).collect()
        };
        at(0);
        assert_eq!(served(&one, Served { names: &["x2", "a", "x10", "a"], ..call }).await, (3, vec![]));
        assert_eq!(served(&two, Served { names: &["a", "b"], ..call }).await, (1, vec![]));
        at(30);
        assert_eq!(served(&two, Served { names: &["b"], ..call }).await, (0, vec![]));
        clock.set(Micros(START.plus(MINUTE).0 - 1));
        assert_eq!(served(&one, call).await, (0, vec![]));
        at(60);
        assert_eq!(served(&one, call).await, (0, named(&[("a", 0), ("x10", 0), ("x2", 0)])));
        let other = Served { prefix: "q", names: &["a"], ..call };
        assert_eq!(served(&one, other).await, (1, vec![]), "with another prefix they are others");
        // A known one stays as it is, and an unknown one gets the age that the call has.
        let recalled = [unserved("a", START.plus(MINUTE)), unserved("c", START.minus(MINUTE))];
        let all = named(&[("c", -60), ("a", 0), ("x10", 0), ("x2", 0)]);
        assert_eq!(served(&two, Served { recalled: &recalled, ..call }).await, (0, all));
        let all = named(&[("c", -60), ("x10", 0), ("x2", 0)]);
        assert_eq!(served(&two, Served { names: &["a"], ..call }).await, (0, all), "it is served again");
        for name in ["c", "x2", "never"] {
            served(&one, Served { forgotten: Some(name), ..call }).await;
        }
        at(90);
        assert_eq!(served(&two, call).await, (0, named(&[("x10", 0), ("b", 30)])));
        assert_eq!(served(&two, Served { names: &["c", "b"], ..call }).await, (1, named(&[("x10", 0)])));
        for call in [Served { names: &[""], ..call }, Served { prefix: "", ..call }] {
            assert!(matches!(one.served(call).await, Err(StoreError::Invalid(_))));
        }
    }
}

#[tokio::test]
async fn of_too_many_downstreams_those_that_were_served_last_are_remembered() {
    let (stores, clock) = stores(&unique("toomany")).await;
    for [one, two] in stores {
        let call = Served { prefix: "p", ..Served::default() };
        let last = MAX_SERVED / MAX_SERVED_BATCH;
        for batch in 0..=last {
            clock.set(START.plus(Duration::from_secs(batch as u64)));
            let names: Vec<String> =
                (0..MAX_SERVED_BATCH).map(|number| format!("{batch}-{number:03}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let half = if batch == last { MAX_SERVED_BATCH / 2 } else { MAX_SERVED_BATCH };
            assert_eq!(served(&one, Served { names: &names[..half], ..call }).await.0, half);
        }
        let (_, listed) = served(&two, call).await;
        let expected =
            (500..1500).map(|number| (format!("{}-{:03}", number / 1000, number % 1000), number / 1000));
        assert_eq!(listed, expected.collect::<Vec<_>>(), "as many as one answer has");
    }
}

#[tokio::test]
async fn the_names_in_redis_end_long_after_the_last_replica() {
    let (redis, prefix) = (redis().await, unique("names"));
    let store = connect(redis, &prefix).await;
    let call = Served { prefix: "p", ..Served::default() };
    let key = format!("{prefix}:{{~fleet}}:served:p");
    store.served(call).await.unwrap();
    assert_eq!(ttl(redis, &key).await, -2, "nothing is kept of nothing");
    store.served(Served { names: &["a"], ..call }).await.unwrap();
    let longest = 400 * 86_400_000;
    assert!((longest - 600_000..=longest).contains(&ttl(redis, &key).await));
    // What a stranger adds is not reported.
    let long = "n".repeat(65);
    for (score, name) in [("-inf", "minus"), ("5", long.as_str()), ("inf", "plus")] {
        redis.command(&["ZADD", &key, score, name]).await.unwrap();
    }
    redis.command(&["EVAL", "return redis.call('ZADD', KEYS[1], 5, '\\255')", "1", &key]).await.unwrap();
    let names: Vec<String> =
        store.served(call).await.unwrap().unserved.into_iter().map(|unserved| unserved.name).collect();
    assert_eq!(names, ["minus", "a"]);
    store.served(Served { forgotten: Some("a"), ..call }).await.unwrap();
    assert_eq!(redis.command(&["ZSCORE", &key, "a"]).await.unwrap().trim(), "$-1");
}
