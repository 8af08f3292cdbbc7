//! Sentinels: they report the master, and replace one that fails.

use std::net::TcpListener;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Reserve, Scope, Store};
use paced::{RedisOptions, RedisStore, StoreError};
use tokio::time::Instant;

use super::failover::{fail, keep_asking};
use super::patient;
use crate::support::servers::{Redis, Sentinels, free_port};
use crate::support::{LONG, until};

fn limits() -> LimitSet {
    LimitSet::new(vec![Limit::leaky_bucket("rate", "20/s".parse().unwrap(), 1).unwrap()]).unwrap()
}

fn call(limits: &LimitSet) -> Reserve<'_> {
    let scope = Scope { downstream: "billing", key: "" };
    let costs = Costs::Each(&[1]);
    Reserve::new(scope, limits, costs, Duration::from_secs(5))
}

#[tokio::test]
async fn a_master_that_is_killed_is_replaced_and_no_slot_comes_twice() {
    let set = Sentinels::dedicated().await;
    let kill = async |billing: &_| {
        set.kill_master().await;
        fail(billing).await;
    };
    let [billing] = keep_asking(&set.url(), ["billing"], kill).await;
    billing.assert_failed_over();
    let master = set.master().await;
    assert_ne!(master, 0);

    // The old master returns, and becomes a replica.
    set.servers[0].start().await;
    set.demote().await;
    let demoted = async || {
        let role = set.servers[0].info_value(&["INFO", "replication"], "role").await;
        role.as_deref() == Some("slave")
    };
    until("the old master is a replica", LONG, demoted).await;
    let (store, limits) = (RedisStore::connect(&set.url(), patient()).await.unwrap(), limits());
    store.reserve(call(&limits)).await.unwrap();

    // One sentinel that answers is enough.
    set.sentinels[0].kill().await;
    set.sentinels[1].freeze();
    for _ in 0..3 {
        let store = RedisStore::connect(&set.url(), patient()).await.unwrap();
        store.reserve(call(&limits)).await.unwrap();
    }
    set.sentinels[1].thaw();
}

/// The old master still answers until the sentinels demote it, so connections to it are kept.
#[tokio::test]
async fn a_planned_failover_is_followed() {
    let set = Sentinels::dedicated().await;
    let fail_over = async |_: &_| set.replace_master().await;
    let [billing] = keep_asking(&set.url(), ["billing"], fail_over).await;
    billing.assert_fenced_once();
    assert_ne!(set.master().await, 0);
}

#[tokio::test]
async fn a_master_that_sentinels_do_not_know_is_reported() {
    let set = Sentinels::dedicated().await;
    let options = patient;
    let error = RedisStore::connect(&set.url_for("another"), options()).await.unwrap_err().to_string();
    assert!(error.contains("no master `another`; correct MASTER_NAME"), "{error}");

    // A server is no sentinel, and a sentinel is no server.
    let port = set.servers[0].port();
    let url = format!("redis+sentinel://127.0.0.1:{port}/pace-master");
    let error = RedisStore::connect(&url, options()).await.unwrap_err().to_string();
    assert!(error.contains("is it a sentinel?"), "{error}");

    // One password is the master's alone, or the sentinels' alone.
    set.servers[0].command(&["CONFIG", "SET", "requirepass", "hunter2"]).await.unwrap();
    let error = RedisStore::connect(&set.url(), options()).await.unwrap_err().to_string();
    assert!(error.contains("it needs a password"), "{error}");
    let with = set.url().replace("redis+sentinel://", "redis+sentinel://:hunter2@");
    let store = RedisStore::connect(&with, options()).await.unwrap();
    assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
    for sentinel in &set.sentinels {
        sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">hunter3"]).await.unwrap();
    }
    let error = RedisStore::connect(&with, options()).await.unwrap_err().to_string();
    assert!(error.contains("?sentinel_user=USER&sentinel_password=PASSWORD"), "{error}");
    RedisStore::connect(&format!("{with}?sentinel_password=hunter3"), options()).await.unwrap();
}

#[tokio::test]
async fn sentinels_that_are_all_away_are_reported_in_time() {
    let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = silent.each_ref().map(|listener| listener.local_addr().unwrap().port());
    let url = |ports: &[u16]| {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://u:hunter2@{}/m", hosts.join(","))
    };
    // They accept connections, and answer nothing.
    tokio::time::pause();
    let start = Instant::now();
    let error = RedisStore::connect(&url(&ports), RedisOptions::default()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    tokio::time::resume();
    let ports = [(); 3].map(|()| free_port());
    let error = RedisStore::connect(&url(&ports), RedisOptions::default()).await.unwrap_err();
    let names_port = ports.iter().any(|port| error.to_string().contains(&port.to_string()));
    assert!(matches!(error, StoreError::Unreachable { .. }) && names_port, "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_master_that_is_made_a_replica_is_left_until_it_is_a_master_again() {
    let (redis, other) = (Redis::dedicated().await, Redis::dedicated().await);
    let (store, limits) = (RedisStore::connect(&redis.url(), patient()).await.unwrap(), limits());
    let before = store.reserve(call(&limits)).await.unwrap();
    redis.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await.unwrap();
    other.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await.unwrap();
    // It loads nothing meanwhile.
    redis.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]).await.unwrap();
    // First by its answer READONLY on the open connection, then by its INFO.
    for hint in ["ReadOnly", "it is a replica"] {
        let error = store.reserve(call(&limits)).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unreachable { detail, .. } if detail.contains(hint)), "{error}");
    }
    redis.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await.unwrap();
    let synced = async || {
        let link = redis.info_value(&["INFO", "replication"], "master_link_status").await;
        link.as_deref() == Some("up")
    };
    until("it has taken over the other's data: none", LONG, synced).await;
    redis.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    let after = store.reserve(call(&limits)).await.unwrap();
    assert!(after.stamp.epoch > before.stamp.epoch && after.slots.is_empty(), "a loss, fenced: {after:?}");
}
