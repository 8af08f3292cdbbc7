//! A user with no more permissions than docs/redis.md lists.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{
    Cancel, Change, Check, CoolDownCall, Lease, ParkedGroup, ParkedGroups, Recall, Reserve, Scope, Served,
    SharedHorizon, Sharing, Store, Tombstone, TombstoneCall, Unserved,
};
use paced::time::Micros;
use paced::{RedisOptions, RedisStore, StoreError};

use super::record::attentive;
use crate::support::LONG;
use crate::support::publish::Job;
use crate::support::servers::{self, Redis, Sentinels};
use crate::support::site::{Site, compare};

const DOCS: &str = include_str!("../../../docs/redis.md");

/// The rules that the page lists for this user, as arguments of ACL SETUSER, with this prefix of keys.
fn documented(user: &str, prefix: &str) -> Vec<String> {
    let start = format!("ACL SETUSER {user} ");
    let mut lines = DOCS.lines().skip_while(|line| !line.trim_start().starts_with(&start));
    let mut text = String::new();
    for line in lines.by_ref() {
        text += line.trim().trim_end_matches('\\');
        text += " ";
        if !line.ends_with('\\') {
            break;
        }
    }
    assert!(text.starts_with(&start), "docs/redis.md has no {start}");
    text.split_whitespace().map(|word| word.replace("paced:", &format!("{prefix}:"))).collect()
}

async fn grant(redis: &Redis, words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    redis.command(&words).await.unwrap();
}

fn options(prefix: &str) -> RedisOptions {
    super::patient().with_key_prefix(prefix)
}

/// Makes every call that there is, on each kind of limit.
async fn use_all(store: &RedisStore) -> Result<(), StoreError> {
    store.ping().await?;
    let second = Duration::from_secs(1);
    let recall = Recall { version: 9, generation: 9, terms: Some("terms"), ..Recall::default() };
    store.read_record("record").await?;
    for change in [
        Change::Penalize(Duration::from_micros(1)),
        Change::CoolDown(CoolDownCall::Refused { replica: "one", first: second, most: second }),
        Change::CoolDown(CoolDownCall::Probe { replica: "one", ttl: second }),
        Change::CoolDown(CoolDownCall::Over { replica: "one" }),
        Change::Pause { span: None, note: "{}" },
        Change::Pause { span: None, note: "" },
        Change::Resume,
        Change::Terms { of: 0, text: "terms" },
        // After this call the remembered terms of the same generation are compared.
        Change::Recall(recall),
        Change::Recall(recall),
    ] {
        store.update_record("record", change).await?;
    }
    store.leave_summary("one", "{}", Duration::from_secs(60)).await?;
    assert_eq!(store.summaries().await?, ["{}"]);
    store.leave_summary("one", "", Duration::ZERO).await?;
    store.note_parked("record", 2).await?;
    let parked = [ParkedGroup { hour: 1, kind: 1, jobs: 2 }];
    store.parked_groups("record", ParkedGroups { first_hour: 0, changes: &parked }).await?;
    let recalled = [Unserved { name: "old".to_owned(), served_at: Micros(1) }];
    let served = Served { prefix: "mine", names: &["record"], recalled: &recalled, ..Served::default() };
    assert_eq!(store.served(served).await?.unserved.len(), 2);
    store.served(Served { forgotten: Some("old"), ..served }).await?;
    let ids = [Arc::from("a"), Arc::from("b")];
    let tombstones = [Tombstone { id: Arc::from("c"), until: Micros::MAX, is_undone: false }];
    for call in [
        TombstoneCall::Cancel { ids: &ids[..1], span: Duration::from_micros(1) },
        // By now the first one has ended, and is removed.
        TombstoneCall::Cancel { ids: &ids[1..], span: Duration::from_secs(60) },
        TombstoneCall::Undo { ids: &ids },
        TombstoneCall::Recall { tombstones: &tombstones },
        TombstoneCall::Read { after: 0 },
    ] {
        store.tombstones("record", call).await?;
    }
    let rate = "1000/s".parse().unwrap();
    let every = [
        vec![Limit::leaky_bucket("bucket", rate, 1).unwrap()],
        vec![Limit::gcra("gcra", rate, 5).unwrap(), Limit::token_bucket("tokens", rate, 5).unwrap()],
        vec![Limit::sliding_log("log", 1000, second).unwrap()],
        vec![Limit::sliding_window("window", 1000, second, 10).unwrap()],
        vec![Limit::fixed_window("fixed", 1000, second).unwrap()],
    ];
    for limits in every {
        let limits = LimitSet::new(limits).unwrap();
        store.update_record("billing", Change::Reset { limits: limits.iter().as_slice() }).await?;
        for key in ["", "tenant-42"] {
            let (scope, costs) = (Scope { downstream: "billing", key }, Costs::Each(&[1; 3]));
            let lease = Sharing::Lease(Lease { replica: "one", ttl: Duration::from_secs(2) });
            for sharing in [Sharing::None, lease] {
                let ahead = Duration::from_secs(5);
                let call = Reserve { sharing, ..Reserve::new(scope, &limits, costs, ahead) };
                let reserved = store.reserve(call).await?;
                assert!(!reserved.slots.is_empty());
                let granted = reserved.granted(&limits, costs);
                let last = granted.last().unwrap();
                let cancel = Cancel {
                    scope,
                    limits: &limits,
                    lane: None,
                    slot: last.slot,
                    charged: &last.charged,
                    before: &last.before,
                    after: &last.after,
                    is_unused: false,
                };
                store.cancel(cancel).await?;
            }
            let shared = SharedHorizon { replica: "two", horizon: Duration::ZERO, waits_here: false };
            let sharing = Sharing::Horizon(shared);
            let call = Reserve { sharing, ..Reserve::new(scope, &limits, costs, Duration::from_secs(5)) };
            store.reserve(call).await?;
            store.check(Check { scope, limits: &limits, costs, generation: 0 }).await?;
            store.reset(scope, &limits).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough() {
    let redis = Redis::dedicated().await;
    let mut words = documented("paced", "mine");
    grant(&redis, &words).await;
    let url = redis.url().replace("redis://", "redis://paced:PASSWORD@");
    let store = RedisStore::connect(&url, options("mine")).await.unwrap();
    use_all(&store).await.unwrap();

    // INFO is permitted, so a loss is detected by the process too, not by the epoch alone.
    redis.kill().await;
    redis.start().await;
    grant(&redis, &words).await;
    let limits =
        LimitSet::new(vec![Limit::leaky_bucket("bucket", "20/s".parse().unwrap(), 1).unwrap()]).unwrap();
    let scope = Scope { downstream: "billing", key: "" };
    let (costs, ahead) = (Costs::Each(&[1]), Duration::from_secs(5));
    let call = Reserve::new(scope, &limits, costs, ahead);
    let stranger = RedisStore::connect(&url, options("mine")).await.unwrap();
    let after = stranger.reserve(call).await.unwrap();
    assert!(
        after.slots[0] >= after.stamp.now.plus(Duration::from_millis(500)),
        "a stranger has no epoch to know it by"
    );

    // Other keys are out of reach.
    let elsewhere = RedisStore::connect(&url, options("other")).await.unwrap();
    let error = elsewhere.reserve(call).await.unwrap_err().to_string();
    assert!(error.contains("grant the user what paced needs"), "{error}");

    // Without INFO nothing is known of the process, and everything else works.
    words.push("-info".to_owned());
    redis.command(&["ACL", "DELUSER", "paced"]).await.unwrap();
    grant(&redis, &words).await;
    let blind = RedisStore::connect(&url, options("mine")).await.unwrap();
    use_all(&blind).await.unwrap();
    let record = "return struct.unpack('<d', redis.call('GET', KEYS[1]), 17)";
    redis.command(&["DEL", "mine:{billing}:record"]).await.unwrap();
    blind.reserve(call).await.unwrap();
    let run = redis.command(&["EVAL", record, "1", "mine:{billing}:record"]).await.unwrap();
    assert_eq!(run.trim(), ":0", "no run is known");
}

#[tokio::test]
async fn each_right_that_is_documented_is_needed() {
    let redis = Redis::dedicated().await;
    let words = documented("paced", "paced");
    let rights: Vec<&String> = words.iter().filter(|word| word.starts_with('+')).collect();
    assert!(rights.len() > 10, "{rights:?}");
    // These permissions are needed only by the tests below, or their absence causes no failure: those of a cluster, and
    // those without which less is known.
    let other = ["+cluster|slots", "+info", "+publish", "+subscribe"];
    let url = redis.url().replace("redis://", "redis://paced:PASSWORD@");
    for right in rights.iter().filter(|right| !other.contains(&right.as_str())) {
        redis.command(&["ACL", "DELUSER", "paced"]).await.ok();
        grant(&redis, &words).await;
        redis.command(&["ACL", "SETUSER", "paced", &right.replacen('+', "-", 1)]).await.unwrap();
        redis.command(&["FLUSHALL"]).await.unwrap();
        redis.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        let url = url.clone();
        let used =
            tokio::spawn(async move { use_all(&RedisStore::connect(&url, options("paced")).await?).await });
        let error = used.await.unwrap().expect_err(right).to_string();
        assert!(error.contains("grant the user what paced needs"), "{right}: {error}");
    }
}

/// Asserts that one store is notified of changes that another one makes.
async fn receives_changes(url: &str) {
    let store = async || RedisStore::connect(url, options("paced")).await.unwrap();
    let (one, two) = (store().await, store().await);
    for downstream in ["a", "b", "c", "d"] {
        let mut changes = attentive(&one, &two, downstream).await;
        two.update_record(downstream, Change::Pause { span: None, note: "" }).await.unwrap();
        tokio::time::timeout(LONG, changes.next()).await.expect("the pause is notified");
    }
}

#[tokio::test]
async fn changes_are_heard_with_the_rights_that_are_documented() {
    let redis = Redis::dedicated().await;
    let words = documented("paced", "paced");
    grant(&redis, &words).await;
    let url = redis.url().replace("redis://", "redis://paced:PASSWORD@");
    receives_changes(&url).await;

    // Without these permissions everything else works.
    for right in ["-publish", "-subscribe"] {
        redis.command(&["ACL", "SETUSER", "paced", right]).await.unwrap();
        use_all(&RedisStore::connect(&url, options("paced")).await.unwrap()).await.unwrap();
    }
    // The channel of another prefix is out of reach too.
    let elsewhere = documented("paced", "elsewhere");
    redis.command(&["ACL", "DELUSER", "paced"]).await.unwrap();
    grant(&redis, &elsewhere).await;
    let words = ["--user", "paced", "--pass", "PASSWORD", "--no-auth-warning", "SUBSCRIBE", "paced:changes"];
    assert!(redis.cli(&words).await.contains("NOPERM"));
}

#[tokio::test]
async fn the_rights_are_enough_in_a_cluster() {
    let cluster = servers::cluster().await;
    let words = documented("paced", "paced");
    for node in &cluster.nodes {
        grant(node, &words).await;
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://paced:PASSWORD@");
    let store = RedisStore::connect(&url, options("paced")).await.unwrap();
    use_all(&store).await.unwrap();
    receives_changes(&url).await;
}

#[tokio::test]
async fn the_rights_are_enough_behind_sentinels() {
    let set = Sentinels::dedicated().await;
    let words = documented("paced", "paced");
    for server in &set.servers {
        grant(server, &words).await;
    }
    for sentinel in &set.sentinels {
        grant(sentinel, &documented("paced-sentinel", "paced")).await;
    }
    let url = set.url().replace("redis+sentinel://", "redis+sentinel://paced:PASSWORD@");
    let url = format!("{url}?sentinel_user=paced-sentinel&sentinel_password=PASSWORD");
    let store = RedisStore::connect(&url, options("paced")).await.unwrap();
    use_all(&store).await.unwrap();
    receives_changes(&url).await;
}

/// A missing permission that costs only information is warned of once.
#[tokio::test]
async fn rights_that_are_missing_and_not_needed_are_warned_of_once() {
    let redis = Redis::dedicated().await;
    let mut site = Site::shared("blind", "rate = '500/s'").await;
    let mut words = documented("paced", &site.prefix);
    words.extend(["-info", "-subscribe"].map(str::to_owned));
    grant(&redis, &words).await;
    site.store = redis.url().replace("redis://", "redis://paced:PASSWORD@");
    let replica = site.replica().await;
    site.publish(Job::many("job", 50)).await;
    let arrivals = site.api.wait_for(50, LONG).await;
    assert!(compare("job", 50, &arrivals).is_clean());
    replica.wait_line("seen with the next call only", LONG).await;
    // The connection breaks, and another one is opened, which causes no second warning.
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.ok();
    site.publish(Job::many("more", 50)).await;
    site.api.wait_for(100, LONG).await;
    let log = replica.log();
    for warning in ["grant +info", "seen with the next call only"] {
        let count = log.iter().filter(|line| line.contains("WARN") && line.contains(warning)).count();
        assert_eq!(count, 1, "{warning}: {}", log.join("\n"));
    }
    assert_eq!(replica.stop().await, 0);
}
