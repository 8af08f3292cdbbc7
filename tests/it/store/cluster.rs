//! A Redis Cluster: each downstream on one master, and a master that fails.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Reserve, Scope, Store};
use paced::{RedisStore, StoreError};

use super::failover::{fail, keep_asking};
use super::patient;
use crate::support::publish::Job;
use crate::support::servers::{self, Cluster, Redis};
use crate::support::site::{Site, compare};
use crate::support::{LONG, poll};

fn limits(burst: u32) -> LimitSet {
    LimitSet::new(vec![Limit::leaky_bucket("rate", "20/s".parse().unwrap(), burst).unwrap()]).unwrap()
}

fn call<'a>(downstream: &'a str, limits: &'a LimitSet, costs: &'a [u32]) -> Reserve<'a> {
    let scope = Scope { downstream, key: "" };
    Reserve::new(scope, limits, Costs::Each(costs), Duration::from_secs(5))
}

/// The keys on each node, by the node's index.
async fn keys(cluster: &Cluster) -> BTreeMap<usize, Vec<String>> {
    let mut all = BTreeMap::new();
    for (index, node) in cluster.nodes[..3].iter().enumerate() {
        let answer = node.command(&["KEYS", "*"]).await.unwrap();
        let names = answer.lines().filter(|line| line.contains('{')).map(str::to_owned);
        all.insert(index, names.collect());
    }
    all
}

#[tokio::test]
async fn downstreams_are_spread_over_the_masters_and_each_lies_on_one() {
    let cluster = servers::cluster().await;
    // One seed is enough, and it may be a replica.
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[4].port());
    let store = RedisStore::connect(&url, patient()).await.unwrap();
    let limits = limits(1);
    let names: Vec<String> = (0..24).map(|n| format!("downstream-{n}")).collect();
    for name in &names {
        let reserved = store.reserve(call(name, &limits, &[1; 3])).await.unwrap();
        let expected: Vec<_> =
            (0..3).map(|k| reserved.stamp.now.plus(Duration::from_millis(50) * k)).collect();
        assert_eq!(reserved.slots, expected, "{name}");
    }
    let keys = keys(cluster).await;
    assert!(keys.values().all(|keys| keys.len() >= 4), "all three take part: {keys:?}");
    for name in &names {
        let tag = format!("{{{name}}}");
        let on: Vec<usize> = (0..3).filter(|node| keys[node].iter().any(|key| key.contains(&tag))).collect();
        assert_eq!(on, [cluster.master_of(&tag).await], "{name}");
        let of_it = keys[&on[0]].iter().filter(|key| key.contains(&tag)).count();
        assert_eq!(of_it, 2, "its record and its state");
    }

    // The slots of a downstream move to another master, which is detected at once, and fenced.
    let tag = "{downstream-0}";
    let (from, slot) =
        (cluster.master_of(tag).await, cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", tag]).await);
    let slot = slot.unwrap().trim().trim_start_matches(':').to_owned();
    let (from, to) = (&cluster.nodes[from], &cluster.nodes[(from + 1) % 3]);
    let id = async |node: &Redis| {
        node.command(&["CLUSTER", "MYID"]).await.unwrap().lines().last().unwrap().to_owned()
    };
    let (from_id, to_id) = (id(from).await, id(to).await);
    let before = store.reserve(call("downstream-0", &limits, &[1])).await.unwrap();
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await.unwrap();
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await.unwrap();
    let port = to.port().to_string();
    let names = ["paced:{downstream-0}:record", "paced:{downstream-0}:l:rate"];
    let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"];
    words.extend(names);
    from.command(&words).await.unwrap();
    // While the slots are moving the call has not run, and may be repeated.
    let error = store.reserve(call("downstream-0", &limits, &[1])).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { detail, .. } if detail.contains("Ask")), "{error}");
    for node in [to, from] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await.unwrap();
    }
    let after = store.reserve(call("downstream-0", &limits, &[1; 2])).await.unwrap();
    assert!(after.stamp.epoch > before.stamp.epoch, "another process has the state");
    let kept = after.stamp.now.plus(Duration::from_millis(500));
    assert!(after.slots[0] >= kept && after.slots[0] > before.slots[0], "the state moved with it: {after:?}");
}

/// The name of a downstream on another master than this one.
async fn elsewhere(cluster: &Cluster, master: usize) -> String {
    for name in (0..64).map(|n| format!("other-{n}")) {
        if cluster.master_of(&format!("{{{name}}}")).await != master {
            return name;
        }
    }
    panic!("all of them on one master")
}

#[tokio::test]
async fn a_master_that_is_killed_is_followed_by_its_replica_and_no_slot_comes_twice() {
    let cluster = Cluster::dedicated().await;
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await.unwrap();
    }
    let master = cluster.master_of("{billing}").await;
    let other = elsewhere(&cluster, master).await;
    let kill = async |billing: &_| {
        cluster.nodes[master].kill().await;
        fail(billing).await;
        // It would do so itself, once most masters have missed its master for long enough.
        cluster.nodes[master + 3].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await.unwrap();
    };
    let [billing, other] = keep_asking(&cluster.url(), ["billing", &other], kill).await;
    billing.assert_failed_over();
    other.assert_undisturbed();
    assert_eq!(cluster.master_of("{billing}").await, master + 3, "its replica");
}

#[tokio::test]
async fn a_planned_failover_and_the_way_back_are_followed() {
    let cluster = Cluster::dedicated().await;
    let master = cluster.master_of("{billing}").await;
    for (from, to) in [(master, master + 3), (master + 3, master)] {
        let hand_over = async |_: &_| cluster.hand_over(to).await;
        // The workers continue at once: the old master redirects them.
        let [billing] = keep_asking(&cluster.url(), ["billing"], hand_over).await;
        billing.assert_fenced_once();
        assert_eq!(cluster.master_of("{billing}").await, to, "from {from}");
        cluster.whole().await;
    }
}

#[tokio::test]
async fn the_daemon_and_its_check_take_the_url_of_a_cluster() {
    let cluster = Cluster::dedicated().await;
    let mut site = Site::shared("clustered", "rate = '100/s'").await;
    site.store = cluster.url().replace("://", "://:@");
    let checked = site.cli(&["check", "--online"]).await;
    assert_eq!(checked.code, 0, "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stdout.contains(&format!("store ok: {}\n", cluster.url())), "{}", checked.stdout);
    let replica = site.replica().await;
    site.publish(Job::many("job", 30)).await;
    let arrivals = site.api.wait_for(30, LONG).await;
    assert!(compare("job", 30, &arrivals).is_clean());
    assert_eq!(replica.stop().await, 0);
    for node in &cluster.nodes {
        node.kill().await;
    }
    let checked = site.cli(&["check", "--online"]).await;
    assert_eq!(checked.code, 69, "{}{}", checked.stdout, checked.stderr);
}

#[tokio::test]
async fn a_master_without_a_replica_that_stays_away_is_reported() {
    let cluster = Cluster::dedicated().await;
    let store = RedisStore::connect(&cluster.url(), patient()).await.unwrap();
    let limits = limits(1);
    let master = cluster.master_of("{billing}").await;
    store.reserve(call("billing", &limits, &[1])).await.unwrap();
    cluster.nodes[master + 3].kill().await;
    cluster.nodes[master].kill().await;
    let port = cluster.nodes[master].port().to_string();
    for _ in 0..3 {
        let error = store.reserve(call("billing", &limits, &[1])).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Unreachable { address, .. } if address.ends_with(&port)),
            "{error}"
        );
        let error = store.ping().await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Unreachable { address, .. } if address.ends_with(&port)),
            "{error}"
        );
    }
}

/// Every node answers CLUSTERDOWN for the slot: nothing has run, and the call may be repeated.
#[tokio::test]
async fn a_slot_that_nobody_serves_is_reported_and_its_calls_go_on_once_it_is_served_again() {
    let cluster = Cluster::dedicated().await;
    let store = RedisStore::connect(&cluster.url(), patient()).await.unwrap();
    let limits = limits(1);
    let master = cluster.master_of("{billing}").await;
    let other = elsewhere(&cluster, master).await;
    for node in &cluster.nodes {
        // The slots that are served continue.
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await.unwrap();
    }
    let before = store.reserve(call("billing", &limits, &[1])).await.unwrap();
    store.reserve(call(&other, &limits, &[1])).await.unwrap();
    let slot = cluster.nodes[master].command(&["CLUSTER", "KEYSLOT", "{billing}"]).await.unwrap();
    let slot = slot.trim().trim_start_matches(':').to_owned();
    for node in &cluster.nodes[..3] {
        node.command(&["CLUSTER", "DELSLOTS", &slot]).await.unwrap();
    }
    for _ in 0..3 {
        let error = store.reserve(call("billing", &limits, &[1])).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("Hash slot not served") || text.contains(&format!("serves slot {slot}")),
            "{text}"
        );
        store.reserve(call(&other, &limits, &[1])).await.unwrap();
    }
    cluster.nodes[master].command(&["CLUSTER", "ADDSLOTS", &slot]).await.unwrap();
    let is_served = async || store.reserve(call("billing", &limits, &[1])).await.ok();
    let after = poll(LONG, is_served).await.expect("the slot is served again");
    assert_eq!(after.stamp.epoch, before.stamp.epoch, "nothing was lost");
    assert!(after.slots[0] > before.slots[0], "{after:?}");
}

#[tokio::test]
async fn urls_of_the_wrong_kind_say_which_is_right() {
    let alone = Redis::dedicated().await;
    let url = alone.url().replace("redis://", "redis+cluster://u:hunter2@");
    let error = RedisStore::connect(&url, patient()).await.unwrap_err().to_string();
    assert!(error.contains("user or the password is wrong") && !error.contains("hunter2"), "{error}");
    let url = alone.url().replace("redis://", "redis+cluster://");
    let error = RedisStore::connect(&url, patient()).await.unwrap_err().to_string();
    assert!(error.contains("has the URL redis://"), "{error}");
}
