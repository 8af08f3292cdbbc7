//! Tests of a RabbitMQ that becomes unavailable, or is not available yet.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::LONG;
use crate::support::api::{Answer, Gate};
use crate::support::daemon::{Paced, run_cli};
use crate::support::eventually;
use crate::support::publish::Job;
use crate::support::servers::{Rabbit, free_port, redis};
use crate::support::site::{Site, compare};

#[tokio::test]
async fn consumption_goes_on_after_a_restart_of_the_broker() {
    let rabbit = Rabbit::dedicated().await;
    let mut site = Site::on(&rabbit, redis().await, "broker", "rate = '1000/s'");
    site.http = "timeout = '5m'".to_owned();
    // It stands still in mid-run, with requests in flight, until the broker has stopped.
    let (gate, asked) = (Gate::closed(), AtomicUsize::new(0));
    let held = gate.clone();
    site.api.rule(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0..300 => Answer::ok(),
        _ => Answer::ok().gated(&held),
    });
    let (first, second) = tokio::join!(site.replica(), site.replica());
    site.publish(Job::many("job", 600)).await;
    gate.wait_for(1, LONG).await;
    rabbit.stop().await;
    let at_stop = site.api.count();
    gate.open();
    rabbit.start().await;
    let delivered = || compare("job", 600, &site.api.arrivals()).lost.is_empty();
    eventually("every job is delivered", LONG, delivered).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    site.depth(&site.queue(), 0, LONG).await;

    let tally = compare("job", 600, &site.api.arrivals());
    assert!(tally.lost.is_empty() && tally.strange.is_empty(), "{tally:?}");
    // At most the deliveries that were not yet acked when the broker was killed are redelivered.
    assert!(tally.doubled.len() <= 2 * 64, "{} doubled", tally.doubled.len());
    assert!(at_stop <= 300 + 2 * 64, "it was stopped in mid-run: {at_stop}");
}

#[tokio::test]
async fn a_daemon_waits_for_a_broker_that_is_not_there() {
    let mut site = Site::shared("absent", "rate = '100/s'").await;
    let port = free_port();
    site.amqp = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    let replica = Paced::start(&site.config(), &[], &[]).await;
    let line = replica.wait_line("no connection to RabbitMQ", LONG).await;
    assert!(line.contains(&format!("127.0.0.1:{port}")), "names the address: {line}");
    let log = replica.log().join("\n");
    assert!(!log.contains("guest:guest"), "no password: {log}");
    assert_eq!(replica.exited(), None);
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn commands_tell_when_the_servers_are_away() {
    let mut site = Site::shared("check", "rate = '100/s'").await;
    let online = site.cli(&["check", "--online"]).await;
    assert_eq!(online.code, 0, "{}", online.stderr);
    let (good_amqp, good_store) = (site.amqp.clone(), site.store.clone());

    site.amqp = format!("amqp://user:hunter2@127.0.0.1:{}/%2f", free_port());
    for args in
        [&["check", "--online"][..], &["publish", "billing", "--count", "1"], &["dead", "list", "billing"]]
    {
        let output = site.cli(args).await;
        assert_eq!(output.code, 69, "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains("127.0.0.1"), "names the address: {}", output.stderr);
        assert!(!format!("{}{}", output.stdout, output.stderr).contains("hunter2"));
    }
    site.amqp = good_amqp;
    site.store = format!("redis://:hunter2@127.0.0.1:{}", free_port());
    let output = site.cli(&["check", "--online"]).await;
    assert_eq!(output.code, 69, "{}", output.stderr);
    assert!(output.stderr.contains("127.0.0.1") && !output.stderr.contains("hunter2"), "{}", output.stderr);
    site.store = good_store;
    assert_eq!(site.cli(&["check"]).await.code, 0);
    assert_eq!(run_cli(&["check", "-c", "no-such-file.toml"], b"").await.code, 78);
}
