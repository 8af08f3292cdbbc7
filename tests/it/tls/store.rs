//! Redis over TLS.

use std::time::Duration;

use paced::store::{RedisOptions, RedisStore, Store as _};
use paced::{Shaper, StoreError};

use super::*;
use crate::support::servers::{Cluster, Redis, free_port};
use crate::support::{LONG, unique, until};

/// The time-outs of the store; an attempt that meets them is repeated where the test waits.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The options by which a Redis listens with TLS on this port too, and wants certificates of its clients.
fn listens(files: &Files, port: u16, server: &str) -> String {
    let path = |name: String| files.path(&name).display().to_string();
    format!(
        "--tls-port {port} --tls-cert-file '{}' --tls-key-file '{}' --tls-ca-cert-file '{}' --tls-auth-clients yes",
        path(format!("{server}.pem")),
        path(format!("{server}-key.pem")),
        path("ca.pem".to_owned())
    )
}

pub(super) async fn redis(files: &Files) -> (Redis, u16) {
    let port = free_port();
    let options = listens(files, port, "server");
    (Redis::with(move || options.clone()).await, port)
}

pub(super) fn options(tls: Tls) -> RedisOptions {
    RedisOptions::default().with_timeouts(TIMEOUT, TIMEOUT).with_key_prefix(unique("tls")).with_tls(tls)
}

#[tokio::test]
async fn a_store_with_a_private_authority_and_certificates_on_both_sides() {
    let files = Files::new();
    let (redis, port) = redis(&files).await;
    let url = format!("rediss://localhost:{port}");
    let store = RedisStore::connect(&url, options(files.tls("ca.pem", Some("client")))).await.unwrap();
    // The connection for changes is another one.
    let _changes = store.changes("billing");
    let listens = async || {
        redis.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.is_ok_and(|list| list.contains("sub=1"))
    };
    until("the store listens for changes", LONG, listens).await;
    let shaper = Shaper::builder("billing", "1000/s".parse().unwrap()).store(store).build().unwrap();
    for _ in 0..20 {
        shaper.schedule("", async {}).await.unwrap();
    }

    // A server that ends is found again.
    redis.kill().await;
    redis.start().await;
    let again = async || shaper.schedule("", async {}).await.is_ok();
    until("the store is back", LONG, again).await;
}

#[tokio::test]
async fn refusals_of_and_by_a_redis_are_distinguished() {
    let files = Files::new();
    let (redis, port) = redis(&files).await;
    let connect = async |host: &str, port: u16, tls: Tls| {
        let url = format!("rediss://{host}:{port}");
        match RedisStore::connect(&url, options(tls)).await {
            Err(StoreError::Unreachable { detail, .. }) => detail,
            other => panic!("{other:?}"),
        }
    };
    for (host, tls, expected) in [
        (
            "localhost",
            files.tls("theirs.pem", Some("client")),
            "signed by an authority that is not in ca_file",
        ),
        ("127.0.0.1", files.tls("ca.pem", Some("client")), "is for localhost, not for 127.0.0.1"),
        ("localhost", files.tls("ca.pem", None), "requires a client certificate; set cert_file and key_file"),
        (
            "localhost",
            files.tls("ca.pem", Some("stranger")),
            "does not trust the authority of the client certificate in cert_file",
        ),
        ("localhost", files.tls("ca.pem", Some("late")), "the client certificate in cert_file has expired"),
    ] {
        let detail = connect(host, port, tls).await;
        assert!(detail.contains(expected), "{expected}: {detail}");
    }

    files.ours.issue_expired(&["localhost"]).put(files.folder.path(), "server");
    let path = |name: &str| files.path(name).display().to_string();
    let (certificate, key) = (path("server.pem"), path("server-key.pem"));
    redis.command(&["CONFIG", "SET", "tls-cert-file", &certificate, "tls-key-file", &key]).await.unwrap();
    let detail = connect("localhost", port, files.tls("ca.pem", Some("client"))).await;
    assert!(detail.contains("the server's certificate expired at 2021-01-01T00:00:00Z"), "{detail}");

    let error = RedisStore::open(&redis.url(), options(files.tls("ca.pem", None))).unwrap_err();
    assert!(matches!(error, StoreError::Invalid(_)) && error.to_string().contains("rediss"), "{error}");
}

#[tokio::test]
async fn sentinels_and_their_master_over_tls() {
    let files = Files::new();
    files.ours.issue(&["localhost", "127.0.0.1"]).put(files.folder.path(), "node");
    let (master, sentinel) = (free_port(), free_port());
    let options_of_master = listens(&files, master, "node") + " --tls-replication yes";
    let _master = Redis::with(move || options_of_master.clone()).await;
    let lines = listens(&files, sentinel, "node").replace("--", "\n").replace('\'', "\"");
    let lines = format!("{lines}\ntls-replication yes\nsentinel monitor main 127.0.0.1 {master} 1");
    let _sentinel = Redis::sentinel(lines).await;
    let url = format!("rediss+sentinel://localhost:{sentinel}/main");
    let store = RedisStore::connect(&url, options(files.tls("ca.pem", Some("client")))).await.unwrap();
    store.ping().await.unwrap();
    let error = RedisStore::connect(&url, options(files.tls("ca.pem", None))).await.unwrap_err().to_string();
    assert!(error.contains("requires a client certificate"), "{error}");
}

#[tokio::test]
async fn a_cluster_over_tls() {
    let files = Files::new();
    files.ours.issue(&["cluster.internal"]).put(files.folder.path(), "node");
    let tls = listens(&files, 0, "node").replacen("--tls-port 0 ", "", 1);
    let options_of_nodes =
        move || format!("--tls-port {} --tls-cluster yes --tls-replication yes {tls}", free_port());
    let cluster = Cluster::with(options_of_nodes).await;
    let mut hosts = Vec::new();
    for node in &cluster.nodes {
        let answer = node.command(&["CONFIG", "GET", "tls-port"]).await.unwrap();
        hosts.push(format!("127.0.0.1:{}", answer.lines().last().unwrap()));
    }
    let url = format!("rediss+cluster://{}", hosts[..2].join(","));
    let by_name = |client: Option<&str>| {
        let named = files.tls("ca.pem", client).options().clone().with_server_name("cluster.internal");
        options(Tls::load(named).unwrap())
    };
    // All masters are asked for their clocks.
    let store = RedisStore::connect(&url, by_name(Some("client"))).await.unwrap();
    let shaper = Shaper::builder("billing", "1000/s".parse().unwrap()).store(store).build().unwrap();
    for _ in 0..20 {
        shaper.schedule("", async {}).await.unwrap();
    }
    for (options, expected) in [
        (by_name(None), "requires a client certificate"),
        (options(files.tls("ca.pem", Some("client"))), "is for cluster.internal, not for 127.0.0.1"),
    ] {
        let error = RedisStore::connect(&url, options).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
