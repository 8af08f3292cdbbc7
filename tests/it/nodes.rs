//! A broker of several nodes: one that is down, one that does not answer, one that goes.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::daemon::Paced;
use crate::support::proxy::Proxy;
use crate::support::publish::Job;
use crate::support::servers::{free_port, rabbit};
use crate::support::site::Site;
use crate::support::{LONG, eventually};

/// The configuration of the site, whose broker is at these ports.
async fn config(site: &Site, ports: &[u16]) -> String {
    let list: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let alone = format!("127.0.0.1:{}", rabbit().await.port());
    let several = site.amqp.replace(&alone, &list.join(","));
    assert_ne!(several, site.amqp);
    site.config().replace(&site.amqp, &several)
}

async fn arrived(site: &Site, id: &str) {
    site.publish(vec![Job::new(id)]).await;
    let has_come = || site.api.arrivals().iter().any(|arrival| arrival.id() == id);
    eventually(id, LONG, has_come).await;
}

#[tokio::test]
async fn nodes_that_are_down_or_silent_are_passed_over() {
    let site = Site::shared("nodesdown", "rate = '200/s'").await;
    let live = Proxy::start(rabbit().await.port(), Duration::ZERO).unwrap();
    // It takes connections, and never says anything.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [silent.local_addr().unwrap().port(), free_port(), live.port()];
    let config = config(&site, &ports).await;
    // Each connection chooses by itself.
    for n in 0..3 {
        let replica = Paced::spawn(&config).await;
        arrived(&site, &format!("job-{n}")).await;
        assert_eq!(replica.stop().await, 0);
        let log = replica.log().join("\n");
        assert!(!log.contains("no connection to RabbitMQ"), "{log}");
    }
}

#[tokio::test]
async fn where_the_node_in_use_goes_another_one_is_used() {
    let site = Site::shared("nodesgo", "rate = '200/s'").await;
    let port = rabbit().await.port();
    let nodes = [0; 2].map(|_| Proxy::start(port, Duration::ZERO).unwrap());
    let replica = Paced::spawn(&config(&site, &[nodes[0].port(), nodes[1].port()]).await).await;
    arrived(&site, "before").await;
    for (n, node) in nodes.iter().enumerate() {
        site.depth(&site.queue(), 0, LONG).await;
        node.cut();
        arrived(&site, &format!("without-{n}")).await;
        node.restore();
    }
    assert_eq!(replica.stop().await, 0);
    let ids: BTreeSet<String> = site.api.arrivals().iter().map(|arrival| arrival.id().to_owned()).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
}
