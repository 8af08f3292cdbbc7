//! A broker that is lost and comes back: it is counted, and messages that are delivered again wait for the outcomes of
//! requests in progress.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::api::AdminReplica;
use super::*;
use crate::support::prometheus::Scrape;
use crate::support::proxy::Proxy;
use crate::support::servers::redis;
use crate::support::site::compare;

const JOBS: usize = 10;

/// A site whose broker is reached through a proxy.
async fn behind_a_proxy(topic: &str, downstream: &str) -> (Site, Proxy) {
    let broker = rabbit().await;
    let way = Proxy::start(broker.port(), Duration::ZERO).unwrap();
    let mut site = Site::on(broker, redis().await, topic, downstream);
    site.amqp = site.amqp.replace(&format!(":{}", broker.port()), &format!(":{}", way.port()));
    (site, way)
}

/// Makes the broker deliver jobs again while the API holds them; then the API answers the first request for each of
/// them with `first`, and all others with 200. There must be exactly this many requests, and no job left.
async fn lost_while_sending(topic: &str, first: fn() -> Answer, requests: usize) {
    let quick = "rate = '200/s'\nretry.min_backoff = '1ms'\nretry.max_backoff = '2ms'";
    let (mut site, way) = behind_a_proxy(topic, quick).await;
    "timeout = '300s'".clone_into(&mut site.http);
    let (gate, asked) = (Gate::closed(), AtomicUsize::new(0));
    site.api.rule({
        let gate = gate.clone();
        move |_| match asked.fetch_add(1, Ordering::SeqCst) {
            number if number < JOBS => first().gated(&gate),
            _ => Answer::ok(),
        }
    });
    let replica = AdminReplica::with_token(&site).await;
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(JOBS, LONG).await;
    way.cut();
    replica.paced.wait_line("not consuming", LONG).await;
    way.restore();
    replica.paced.wait_line("consuming again", LONG).await;
    until("all were delivered again", LONG, async || {
        replica.metric("paced_jobs_received_total").await >= 2.0 * JOBS as f64
    })
    .await;
    gate.open();
    site.api.wait_for(requests, LONG).await;
    assert_eq!(replica.paced.stop().await, 0);
    site.depth(&site.queue(), 0, LONG).await;
    let arrivals = site.api.arrivals();
    assert_eq!(arrivals.len(), requests);
    assert!(compare("job", JOBS, &arrivals[..JOBS]).is_clean());
    assert!(compare("job", JOBS, &arrivals[requests - JOBS..]).is_clean());
}

#[tokio::test]
async fn jobs_that_are_being_sent_are_not_sent_again() {
    lost_while_sending("again", Answer::ok, JOBS).await;
}

#[tokio::test]
async fn those_that_fail_are_tried_again_once_each() {
    lost_while_sending("againfail", || Answer::status(503), 2 * JOBS).await;
}

#[tokio::test]
async fn a_broker_that_comes_back_is_counted() {
    let (site, way) = behind_a_proxy("again", "rate = '100/s'").await;
    let watched = Watched::start(&site).await;
    let metric = async |name: &str| Scrape::read(&watched.get("/metrics").await.1).sum(name).unwrap();
    watched.readyz(200).await;
    way.cut();
    until("the loss is seen", LONG, async || metric("paced_amqp_connected").await == 0.0).await;
    until("the broker alone is away", LONG, async || {
        let text = watched.readyz(503).await;
        text.contains("[-]amqp failed: ") && text.contains("[+]store ok")
    })
    .await;
    way.restore();
    watched.readyz(200).await;
    assert_eq!(metric("paced_amqp_connected").await, 1.0);
    assert!(metric("paced_amqp_reconnects_total").await >= 2.0, "both connections");
    assert_eq!(watched.paced.stop().await, 0);
}
