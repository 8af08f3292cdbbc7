//! Daemons whose store or broker goes or refuses, and those that hang, stand still or stop.

use lapin::types::AMQPValue;
use paced::{FileStore, Store as _};

use super::*;
use crate::support::api::{Answer, Gate, stamp};
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::proxy::Proxy;
use crate::support::publish::{self, Job};
use crate::support::servers::{Redis, rabbit};
use crate::support::site::Site;

/// The name of the downstream of a site.
const BILLING: &str = "billing";

/// The first line of a store's file of a later version, with its checksum.
const NEWER: &[u8] = b"2855954e2628cf07 {\"paced_store\":{\"version\":99,\"begun\":0}}\n";

/// The status and the text of a page.
async fn get(replica: &AdminReplica, page: &str) -> (u16, String) {
    let reply = replica.client.get(&format!("{}{page}", replica.base)).await.unwrap();
    (reply.status, reply.text)
}

/// Asserts that it is alive, even if it is not ready.
async fn assert_alive(replica: &AdminReplica) {
    assert_eq!(get(replica, "/livez").await, (200, "ok\n".to_owned()));
}

/// Waits until it is ready, and says so of each part.
async fn is_ready(replica: &AdminReplica, downstreams: &[&str]) {
    let downstreams = downstreams.iter().map(|name| format!("[+]downstream/{name} ok\n"));
    let good = downstreams.fold("[+]amqp ok\n[+]store ok\n".to_owned(), |text, more| text + &more);
    let good = good + "[+]draining ok\nreadyz check passed\n";
    until("it is ready", LONG, async || get(replica, "/readyz?verbose").await == (200, good.clone())).await;
    assert_eq!(get(replica, "/readyz").await, (200, "ok\n".to_owned()));
    assert_alive(replica).await;
}

#[tokio::test]
async fn a_store_that_goes_is_shown_with_every_setting_of_on_unavailable() {
    const POLICIES: [&str; 3] = ["hold", "local", "open"];
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "statestore", "rate = '100/s'");
    let downstream = |policy: &&str| {
        format!(
            "[downstreams.{policy}]\nrate = '1/s'\non_unavailable = '{policy}'\nhttp.base_url = '{}'\n",
            site.api.url()
        )
    };
    let config = site.config();
    let (head, _) = config.split_once("[downstreams").unwrap();
    let config = format!("{head}{}{}", admin(), POLICIES.iter().map(downstream).collect::<String>());
    let replica = AdminReplica::with_config(&config).await;
    let publish = async |policy: &str, count| {
        publish::publish(&site.amqp, &site.prefix, policy, Job::many(policy, count)).await;
    };
    is_ready(&replica, &POLICIES).await;
    // Each has shared the limits with the others by then.
    for policy in POLICIES {
        publish(policy, 1).await;
    }
    site.api.wait_for(3, LONG).await;
    // The store counts jobs that are parked; what it said does not count when it has been away for a while.
    let tomorrow = AMQPValue::LongLongInt(wall_now().0 / 1000 + 86_400_000);
    for policy in POLICIES {
        let later = Job::new(format!("{policy}-later")).header_value("paced-not-before", tomorrow.clone());
        publish::publish(&site.amqp, &site.prefix, policy, vec![later]).await;
    }
    let all_parked = |state: &Value| {
        POLICIES.iter().all(|policy| values(state, ".downstreams[].parked", policy) == [&Value::from(1)])
    };
    until("one is parked of each", LONG, async || {
        let text = replica.tool(TOKEN, &["-o", "json", "status"]).await.stdout;
        all_parked(&serde_json::from_str(&text).unwrap())
    })
    .await;
    let (states, host) = (of("store"), format!("127.0.0.1:{}", redis.port()));

    redis.freeze();
    publish("hold", 60).await;
    let frozen = Made::new(state(&states, "frozen-store"), "hold", &*host);
    are_shown(&replica, 0, vec![frozen]).await;
    assert_alive(&replica).await;
    redis.thaw();
    is_ready(&replica, &POLICIES).await;

    redis.kill().await;
    for policy in ["local", "open"] {
        publish(policy, 60).await;
    }
    let made = POLICIES.map(|policy| Made::new(state(&states, policy), policy, &*host));
    are_shown(&replica, 0, made.into()).await;
    assert_eq!(get(&replica, "/readyz").await.0, 503);
    assert_alive(&replica).await;
    redis.start().await;
    is_ready(&replica, &POLICIES).await;
    // A failed call is logged in full only after one that succeeded.
    let held = || site.api.arrivals().iter().filter(|arrival| arrival.id().starts_with("hold-")).count();
    let are_granted = async || {
        let before = held();
        eventually("slots are granted again", LONG, || held() > before + 1).await;
    };
    are_granted().await;

    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    publish("hold", 60).await;
    let full = Made::new(state(&states, "full-store"), "hold", &*host);
    are_shown(&replica, 0, vec![full]).await;
    assert_alive(&replica).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    is_ready(&replica, &POLICIES).await;
    are_granted().await;

    redis.command(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]).await.unwrap();
    publish("hold", 60).await;
    let refused = Made::new(state(&states, "refused-store"), "hold", &*host);
    are_shown(&replica, 0, vec![refused]).await;
    assert_alive(&replica).await;
    redis.command(&["ACL", "SETUSER", "default", "+@all"]).await.unwrap();
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_shown() {
    let (folder, states) = (tempfile::tempdir().unwrap(), of("file"));
    let (file, next) = (folder.path().join("pace"), folder.path().join("pace.paced-new"));
    let mut site = Site::shared("statefile", "rate = '100/s'").await;
    site.store = format!("file:{}", file.display());
    let shows = async |replica: &AdminReplica, since: usize, id: &str| {
        site.publish(Job::many(id, 100)).await;
        are_shown(replica, since, vec![Made::new(state(&states, id), BILLING, "")]).await;
        assert_alive(replica).await;
    };
    let held = FileStore::open(&file).unwrap();
    let replica = AdminReplica::with_token(&site).await;
    shows(&replica, 0, "held-file").await;
    held.finish().await.unwrap();
    is_ready(&replica, &[BILLING]).await;
    site.api.wait_for(100, LONG).await;

    // The next write is to be a new file, whose place is taken.
    std::fs::create_dir(&next).unwrap();
    std::fs::remove_file(&file).unwrap();
    shows(&replica, replica.paced.log().len(), "unwritten-file").await;
    std::fs::remove_dir(&next).unwrap();
    is_ready(&replica, &[BILLING]).await;
    assert_eq!(replica.paced.stop().await, 0);

    let mut damaged = std::fs::read(&file).unwrap();
    let second = damaged.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    damaged[second] ^= 1;
    let others = [("foreign-file", &b"a letter"[..]), ("damaged-file", &damaged[..]), ("newer-file", NEWER)];
    for (id, bytes) in others {
        std::fs::write(&file, bytes).unwrap();
        let replica = AdminReplica::with_token(&site).await;
        shows(&replica, 0, id).await;
        std::fs::remove_file(&file).unwrap();
        is_ready(&replica, &[BILLING]).await;
        assert_eq!(replica.paced.stop().await, 0);
    }
}

#[tokio::test]
async fn a_broker_that_goes_is_shown() {
    let mut site = Site::shared("statebroker", "rate = '100/s'").await;
    let port = rabbit().await.port();
    let proxy = Proxy::start(port, Duration::ZERO).unwrap();
    let host = format!("127.0.0.1:{}", proxy.port());
    site.amqp = site.amqp.replace(&format!("127.0.0.1:{port}"), &host);
    let replica = AdminReplica::with_token(&site).await;
    is_ready(&replica, &[BILLING]).await;
    // Nothing listens there any more.
    drop(proxy);
    let states = of("broker");
    are_shown(&replica, 0, vec![Made::new(state(&states, "broker"), BILLING, &*host)]).await;
    assert_alive(&replica).await;
    let log = replica.paced.log().join("\n");
    assert!(log.contains(&host) && !log.contains("guest:"), "{log}");
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_queue_that_does_not_confirm_is_shown() {
    let site = Site::shared("stateleader", "rate = '100/s'").await;
    site.api.rule(|_| Answer::status(404));
    let replica = AdminReplica::with_token(&site).await;
    // The channel of the first letter knows its queue, so that the next ones are sent to its former leader.
    site.publish(Job::many("first", 1)).await;
    site.depth(&site.dead_queue(), 1, LONG).await;
    let (rabbit, states) = (rabbit().await, of("leader"));
    let member = rabbit.stop_member(&site.dead_queue()).await;
    site.publish(Job::many("late", 3)).await;
    are_shown(&replica, 0, vec![Made::new(state(&states, "leaderless"), BILLING, "")]).await;
    assert_alive(&replica).await;
    rabbit.restart_member(&member).await;
    replica.paced.wait_line("confirms what is published to this queue again", LONG).await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_broker_where_nothing_can_be_parked_is_shown() {
    let site = Site::shared("statepark", "rate = '100/s'").await;
    // A publisher declares what jobs need, and not what parking needs.
    site.declare().await;
    let config = site.config().replacen("[amqp]\n", "[amqp]\ndeclare = false\n", 1) + &admin();
    let replica = AdminReplica::with_config(&config).await;
    let tomorrow = AMQPValue::LongLongInt(wall_now().0 / 1000 + 24 * 3_600_000);
    let later = |job: Job| job.header_value("paced-not-before", tomorrow.clone());
    site.publish(Job::many("later", 3).into_iter().map(later).collect()).await;
    let states = of("parking");
    are_shown(&replica, 0, vec![Made::new(state(&states, "unparkable"), BILLING, "")]).await;
    assert_alive(&replica).await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_pause_that_has_ended_is_shown_at_once() {
    let site = Site::shared("stateresume", "rate = '1/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let done = async |change: &[&str]| assert_eq!(replica.tool(TOKEN, change).await.code, 0);
    site.publish(Job::many("job", 500)).await;
    done(&["pause", BILLING]).await;
    until("jobs wait for the end of the pause", LONG, async || {
        let look = Look::at(&replica, 0).await;
        let of = |path| values(&look.state, path, BILLING).first().copied().cloned().unwrap_or_default();
        of(".downstreams[].binding.reason") == "paused"
            && of(".downstreams[].waiting").as_u64() > Some(0)
            && look.samples("paced_paused", BILLING) == [1.0]
    })
    .await;
    done(&["resume", BILLING]).await;
    let first = Look::at(&replica, 0).await;
    let states = of("resume");
    let made = Made::new(state(&states, "resumed"), BILLING, "");
    assert_eq!(first.lacks_in_json(&made), Vec::<String>::new(), "{:#}", first.state);
    assert!(!first.table.contains("paused"), "{}", first.table);
    are_shown(&replica, 0, vec![made]).await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_dispatcher_that_hangs_is_shown() {
    let site = Site::shared("statestuck", "rate = '100/s'").await;
    let folder = tempfile::tempdir().unwrap();
    let held = folder.path().join("held");
    let envs = [("PACED_TEST_HASTE", "20"), ("PACED_TEST_HOLD", held.to_str().unwrap())];
    let replica = AdminReplica::with_envs(&format!("{}{}", site.config(), admin()), &envs).await;
    std::fs::write(&held, "").unwrap();
    let states = of("stuck");
    are_shown(&replica, 0, vec![Made::new(state(&states, "stuck"), BILLING, "")]).await;
    std::fs::remove_file(&held).unwrap();
    until("it is alive again", LONG, async || get(&replica, "/livez").await.0 == 200).await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_machine_that_stalls_is_shown() {
    let site = Site::shared("statestall", "rate = '50/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    site.publish(Job::many("job", 3_000)).await;
    until("slots are missed", LONG, async || {
        // It holds slots while it sends.
        site.api.wait_for(site.api.count() + 1, LONG).await;
        replica.paced.freeze();
        let begun = stamp();
        until("slots pass", LONG, async || stamp() > begun + 300_000_000).await;
        replica.paced.thaw();
        replica.paced.slots_missed().await > 0
    })
    .await;
    let states = of("stall");
    are_shown(&replica, 0, vec![Made::new(state(&states, "stalled"), BILLING, "")]).await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_daemon_that_drains_says_so_to_the_end() {
    let site = Site::shared("readydrain", "rate = '100/s'").await;
    let gate = Gate::closed();
    site.api.rule({
        let gate = gate.clone();
        move |_| Answer::ok().gated(&gate)
    });
    let replica = AdminReplica::with_token(&site).await;
    is_ready(&replica, &[BILLING]).await;
    site.publish(Job::many("job", 1)).await;
    site.api.wait_for(1, LONG).await;
    replica.paced.term();
    let states = of("drain");
    are_shown(&replica, 0, vec![Made::new(state(&states, "draining"), BILLING, "")]).await;
    assert_alive(&replica).await;
    gate.open();
    assert_eq!(replica.paced.wait_exit(LONG).await, 0);
    assert!(Client::new().get(&format!("{}/livez", replica.base)).await.is_err());
}
