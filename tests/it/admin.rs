//! Probes and metrics of the real daemon: they agree with what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use crate::support::api::{Answer, Gate};
use crate::support::client::Client;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::servers::{Redis, free_port, rabbit};
use crate::support::site::Site;
use crate::support::{LONG, blocking, poll, until};

pub mod api;
mod audit;
mod cancel;
mod find;
mod lanes;
mod letters;
mod load;
pub mod metrics;
mod names;
mod orphans;
mod parked;
mod pauses;
mod rates;
mod redelivery;
mod resets;
mod status;
mod strays;
mod stuck;
pub mod terms;
mod tls;
mod toggles;
mod tokens;
mod top;
mod unpark;

/// The table `[admin]`, on any free port.
const ADMIN: &str = "[admin]\nlisten = '127.0.0.1:0'\n";

/// A daemon whose pages are read.
struct Watched {
    paced: Paced,
    address: String,
}

impl Watched {
    /// Starts a daemon with the site's configuration, without waiting until it is ready.
    async fn start(site: &Site) -> Self {
        let paced = Paced::start(&format!("{}{ADMIN}", site.config()), &[], &[]).await;
        let line = paced.wait_line("probes and metrics are served", LONG).await;
        let line: Value = serde_json::from_str(&line).unwrap();
        Self { address: line["address"].as_str().unwrap().to_owned(), paced }
    }

    /// The status and the text of a page.
    async fn get(&self, path: &str) -> (u16, String) {
        let reply = Client::new().get(&format!("http://{}{path}", self.address)).await.unwrap();
        (reply.status, reply.text)
    }

    /// Waits for this status of `/readyz?verbose`, and returns its text.
    async fn readyz(&self, status: u16) -> String {
        let mut last = (0, String::new());
        until(&format!("/readyz says {status}"), LONG, async || {
            last = self.get("/readyz?verbose").await;
            last.0 == status
        })
        .await;
        last.1
    }
}

#[tokio::test]
async fn nothing_listens_unless_it_is_configured() {
    let site = Site::shared("adminoff", "rate = '100/s'").await;
    let off = site.replica().await;
    assert_eq!(off.ports_to(0), [0; 0]);
    let on = Watched::start(&site).await;
    let port: u16 = on.address.rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!(on.paced.ports_to(0), [port]);
    assert_eq!((off.stop().await, on.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn what_is_not_a_page_is_refused_on_the_wire() {
    let site = Site::shared("pages", "rate = '100/s'").await;
    let watched = Watched::start(&site).await;
    let client = Client::new();
    let url = |path: &str| format!("http://{}{path}", watched.address);
    let head = client.send(Method::HEAD, &url("/metrics"), &[], "").await.unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(head.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(head.text, "");
    // This request has a client of its own, since its connection is closed afterwards.
    let post = Client::new().send(Method::POST, &url("/metrics"), &[], "x".repeat(1 << 20)).await;
    // The server may close it before the whole body is sent.
    assert!(post.is_err() || post.is_ok_and(|reply| reply.status == 405));
    let reply = client.get(&url("/api")).await.unwrap();
    assert_eq!(reply.status, 404);
    let names: BTreeSet<&str> = reply.headers.keys().map(|name| name.as_str()).collect();
    assert!(names.is_subset(&BTreeSet::from(["content-length", "date", "connection"])), "{names:?}");
    assert_eq!(watched.paced.stop().await, 0);
}

#[tokio::test]
async fn an_address_that_cannot_be_had_ends_the_start() {
    let site = Site::shared("taken", "rate = '100/s'").await;
    let taken = Watched::start(&site).await;
    let start = async |listen: &str| {
        let listen = format!("admin.listen={listen}");
        let paced = Paced::start(&site.config(), &["--set", &listen], &[]).await;
        (paced.wait_exit(LONG).await, paced.log().join("\n"))
    };
    let (exit, log) = start(&taken.address).await;
    assert_eq!(exit, 1, "a restart may help: {log}");
    assert!(log.contains(&format!("admin.listen: cannot listen on {}", taken.address)), "{log}");
    assert!(log.contains("choose another port") && !log.contains("RabbitMQ"), "{log}");
    // An address of TEST-NET-1, which nobody has.
    let (exit, log) = start("192.0.2.1:9750").await;
    assert_eq!(exit, 78, "{log}");
    assert!(log.contains("use an address of this machine"), "{log}");
    assert_eq!(taken.paced.stop().await, 0);
    assert!(!taken.paced.log().join("\n").contains("may read the metrics"));
}

#[tokio::test]
async fn who_lets_the_network_read_is_warned() {
    let site = Site::shared("open", "rate = '100/s'").await;
    let paced = Paced::start(&site.config(), &["--set", "admin.listen=0.0.0.0:0"], &[]).await;
    let line = paced.wait_line("may read the metrics", LONG).await;
    assert!(line.contains("\"WARN\"") && line.contains("0.0.0.0:"), "{line}");
    assert_eq!(paced.stop().await, 0);
}
