//! `paced pause` and `resume` while jobs are on their way.

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::api::stamp;
use crate::support::count;
use crate::support::prometheus::Scrape;
use crate::support::site::compare;

const JOBS: usize = 300;

/// The jobs that may come at once: one, and what 300 ms have slots for, which may be under way.
const AHEAD: usize = 61;

impl AdminReplica {
    /// The value of a series of this replica.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let reply = self.client.get(&format!("{}/metrics", self.base)).await.unwrap();
        Scrape::read(&reply.text).sum(name).unwrap()
    }

    /// Whether it sends nothing, and holds no slot.
    async fn is_still(&self) -> bool {
        let reply = self.client.get(&format!("{}/metrics", self.base)).await.unwrap();
        let jobs = reply.text.lines().filter(|line| line.starts_with("paced_jobs_in_flight{"));
        let busy = jobs.filter(|line| !line.contains("state=\"lane\""));
        busy.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum::<f64>() == 0.0
    }
}

#[tokio::test]
async fn a_pause_stops_every_replica_until_it_is_resumed() {
    let mut site = Site::shared("pausestop", "rate = '200/s'\nqueue.prefetch = 100").await;
    let gate = site.hold_after(50);
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(50, LONG).await;
    // Each reports once a second what binds there, and at first that it does not consume yet.
    until("it reports jobs that wait", LONG, async || {
        let reason = one.downstream().await["binding"]["reason"].clone();
        reason == "limit" || reason == "concurrency"
    })
    .await;
    let output = one.tool(TOKEN, &["pause", "billing", "--reason", "they asked"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let state = one.downstream().await;
    assert_eq!(
        (&state["binding"]["reason"], &state["pause"]["reason"]),
        (&"paused".into(), &"they asked".into())
    );
    for replica in [&one, &other] {
        until("the pause is known", LONG, async || replica.metric("paced_paused").await == 1.0).await;
    }
    // Replicas that start later also know of it before they send anything.
    let late = AdminReplica::with_token(&site).await;
    until("the pause is known", LONG, async || late.metric("paced_paused").await == 1.0).await;
    gate.open();
    until("what was on its way is over", LONG, async || {
        site.api.in_flight() == 0 && one.is_still().await && other.is_still().await && late.is_still().await
    })
    .await;
    let (sent, still) = (site.api.count(), stamp());
    until("a while has passed", LONG, async || stamp() > still + 400_000_000).await;
    assert_eq!(site.api.count(), sent, "nothing is sent in a pause");
    assert!(JOBS - sent > JOBS / 4, "{sent} of {JOBS} jobs were sent before it");
    let resumed = stamp();
    other.downstream().await;
    assert_eq!(other.tool(TOKEN, &["resume", "billing"]).await.code, 0);
    let state = other.downstream().await;
    assert!(state["binding"]["reason"] != "paused" && state["pause"].is_null(), "{state}");
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(compare("job", JOBS, &arrivals).is_clean());
    count::assert_never_ahead(&site.api.stamps(), resumed, "200/s".parse().unwrap(), AHEAD);
    for replica in [&one, &other, &late] {
        until("it knows", LONG, async || replica.metric("paced_paused").await == 0.0).await;
        assert_eq!(replica.paced.stop().await, 0);
    }
}

#[tokio::test]
async fn a_pause_for_a_while_ends_by_itself_and_without_a_burst() {
    let mut site = Site::shared("pausefor", "rate = '200/s'\nqueue.prefetch = 100").await;
    let gate = site.hold_after(50);
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(50, LONG).await;
    let begin = stamp();
    assert_eq!(one.send(Method::POST, "/pause", &[], r#"{"for": "2s"}"#).await.0, 200);
    let known = stamp();
    gate.open();
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(compare("job", JOBS, &arrivals).is_clean());
    // Two seconds have slots for all that was left.
    let end = begin + 2_000_000_000;
    let meanwhile = site.api.stamps().iter().filter(|at| (known..end).contains(*at)).count();
    assert!(meanwhile <= AHEAD, "{meanwhile} in the pause");
    count::assert_never_ahead(&site.api.stamps(), end, "200/s".parse().unwrap(), AHEAD);
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn all_downstreams_are_paused_and_resumed_at_once() {
    let site = Site::shared("pauseall", "rate = '100/s'").await;
    let (url, more) = (site.api.url(), ["crm", "mails"]);
    let more = more.map(|name| format!("[downstreams.{name}]\nrate = '9/s'\nhttp.base_url = '{url}'\n"));
    let config = format!("{}{}{ADMIN}token = '{TOKEN}'\n", site.config(), more.concat());
    let replica = AdminReplica::with_config(&config).await;
    let paused = async || replica.metric("paced_paused").await;
    let output = replica.tool(TOKEN, &["pause", "--all", "--for", "1h", "--reason", "network"]).await;
    assert_eq!((output.code, output.stdout.lines().count()), (0, 3), "{output:?}");
    until("all are paused", LONG, async || paused().await == 3.0).await;
    let output = replica.tool(TOKEN, &["-o", "json", "resume", "--all"]).await;
    let names: Vec<Value> = output
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].clone())
        .collect();
    assert_eq!(
        (output.code, names),
        (0, vec!["billing".into(), "crm".into(), "mails".into()]),
        "{}",
        output.stderr
    );
    until("all are resumed", LONG, async || paused().await == 0.0).await;
    assert_eq!(replica.audit("admin: changed", 6).await[0]["reason"], "network");
    for args in [&["pause"][..], &["pause", "billing", "--all"]] {
        assert_eq!(replica.tool(TOKEN, args).await.code, 2, "{args:?}");
    }
    // Each is tried, though none may be changed.
    let refused = replica.tool("wrong", &["pause", "--all"]).await;
    assert_eq!((refused.code, refused.stderr.matches("was not changed").count()), (77, 3), "{refused:?}");
    assert_eq!(replica.paced.stop().await, 0);
}
