//! Changes and a stop while more downstreams wait for their turn than begin at a time.

use std::time::Duration;

use super::*;
use crate::support::proxy::Proxy;

const ALL: usize = 80;
/// These are removed, and those from here to [`REPLACED`] get another API, before any of them has begun.
const REMOVED: usize = 10;
const REPLACED: usize = 20;
/// This many are added.
const ADDED: usize = 5;

/// A site of which each replica reaches the broker through a proxy that is cut, so that no downstream begins before it is restored.
async fn site(topic: &str) -> (Site, Proxy) {
    let (rabbit, site) = (rabbit().await, Site::shared(topic, "rate = '1000/s'").await);
    let proxy = Proxy::start(rabbit.port(), Duration::ZERO).unwrap();
    proxy.cut();
    (site, proxy)
}

/// The configuration with these downstreams of the given API, over the proxy.
fn config(site: &Site, proxy: &Proxy, port: u16, all: &[(std::ops::Range<usize>, &Api)]) -> String {
    let mut config = with(site, "").replace(&format!(":{port}"), &format!(":{}", proxy.port()));
    for (range, api) in all {
        for n in range.clone() {
            config +=
                &table(&format!("d{n}"), api, &format!("rate = '1000/s'\nqueue.name = '{}'", queue(site, n)));
        }
    }
    config
}

fn queue(site: &Site, n: usize) -> String {
    format!("{}-{n}", site.prefix)
}

#[tokio::test]
async fn what_changes_before_its_turn_has_come_counts() {
    let (site, proxy) = site("beginning").await;
    let (first, other, port) = (Api::start(), Api::start(), rabbit().await.port());
    let (_connection, channel) = publish::open(&site.amqp).await;
    for n in 0..ALL + ADDED {
        channel.queue_declare(queue(&site, n).into(), Default::default(), Default::default()).await.unwrap();
        publish::publish_to(&site.amqp, "", &queue(&site, n), Job::many(&format!("of-{n}"), 1)).await;
    }
    let paced = Paced::start(&config(&site, &proxy, port, &[(0..ALL, &first)]), &[], &[]).await;
    paced.wait_line("probes and metrics are served", LONG).await;
    let changed = [(REMOVED..REPLACED, &other), (REPLACED..ALL + ADDED, &first)];
    reload(&paced, &config(&site, &proxy, port, &changed), "configuration reloaded").await;
    assert!(paced.log().iter().any(|line| line.contains("the downstream was removed")));
    proxy.restore();
    let at = |from: usize, to: usize| (from..to).map(|n| format!("of-{n}-0")).collect::<BTreeSet<_>>();
    assert_eq!(ids(&first.wait_for(ALL + ADDED - REPLACED, LONG).await), at(REPLACED, ALL + ADDED));
    assert_eq!(ids(&other.wait_for(REPLACED - REMOVED, LONG).await), at(REMOVED, REPLACED));
    paced.wait_ready().await;
    // Nobody consumes those that were removed, and their jobs stay in their queues.
    for n in 0..REMOVED {
        let nobody = async || publish::counts(&site.amqp, &queue(&site, n)).await == Some((1, 0));
        until("a queue without a consumer", LONG, nobody).await;
    }
    assert_eq!((first.count(), other.count()), (ALL + ADDED - REPLACED, REPLACED - REMOVED));
    assert_eq!(paced.stop().await, 0);
}

#[tokio::test]
async fn a_stop_ends_those_that_have_not_begun() {
    let (site, proxy) = site("endbefore").await;
    let port = rabbit().await.port();
    let paced = Paced::start(&config(&site, &proxy, port, &[(0..ALL, &site.api)]), &[], &[]).await;
    paced.wait_line("probes and metrics are served", LONG).await;
    assert_eq!(paced.stop().await, 0);
}
