//! `paced cancel`: a cancelled job is never sent, wherever it waits, also if the store loses its state.

use lapin::types::AMQPValue;
use paced::time::wall_now;
use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::daemon::run_cli;
use crate::support::publish;
use crate::support::site::compare;

impl AdminReplica {
    /// The number of jobs with this outcome.
    async fn settled(&self, outcome: &str) -> usize {
        let reply = self.client.get(&format!("{}/metrics", self.base)).await.unwrap();
        let series = format!("paced_jobs_settled_total{{downstream=\"billing\",outcome=\"{outcome}\"}} ");
        let value = reply.text.lines().find_map(|line| line.strip_prefix(&series));
        value.unwrap_or_else(|| panic!("no {series}")).parse().unwrap()
    }

    async fn until_cancelled(&self, jobs: usize) {
        let mut last = 0;
        until(&format!("{jobs} cancelled jobs"), LONG, async || {
            last = self.settled("cancelled").await;
            last >= jobs
        })
        .await;
        assert_eq!(last, jobs);
    }

    async fn cancel(&self, args: &[&str]) -> String {
        let output = self.tool(TOKEN, &[&["cancel", "billing"], args].concat()).await;
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout
    }
}

/// A job that must not go before this long from now.
pub(super) fn later(id: &str, wait: Duration) -> Job {
    let at = i64::try_from(wait.as_millis()).unwrap() + wall_now().0 / 1000;
    Job::new(id).header_value("paced-not-before", AMQPValue::LongLongInt(at))
}

fn sent(site: &Site) -> Vec<String> {
    site.api.arrivals().iter().map(|arrival| arrival.id().to_owned()).collect()
}

#[tokio::test]
async fn a_cancelled_job_is_not_sent_from_the_queue_nor_from_where_it_is_held() {
    let site = Site::shared("cancelqueue", "rate = '100/s'\nqueue.prefetch = 5").await;
    let replica = AdminReplica::with_token(&site).await;
    // The tool waits for the replica only for a moment; then it does not know.
    let unknown = "billing: 1 id(s) are cancelled, and remembered whether or not such jobs wait now\n";
    let remembered = "billing: 1 id(s) are cancelled, and only remembered: this replica has no such job, but the queue or others may\n";
    until("it is said that the id is only remembered", LONG, async || {
        let text = replica.cancel(&["job-0"]).await;
        assert!(text == unknown || text == remembered, "{text}");
        text == remembered
    })
    .await;
    assert_eq!(replica.cancel(&["never", "ever"]).await, unknown.replace("1 id", "2 id"));
    assert_eq!(replica.tool(TOKEN, &["pause", "billing"]).await.code, 0);
    // Some of them are held here, behind the pause, and the others are in the queue.
    site.publish(Job::many("job", 30)).await;
    replica.until_cancelled(1).await;
    site.depth(&site.queue(), 24, LONG).await;
    let mut gone = vec!["job-0".to_owned()];
    loop {
        let id = format!("job-{}", gone.len());
        let text = replica.cancel(&[&id]).await;
        gone.push(id);
        replica.until_cancelled(gone.len()).await;
        if text == "billing: 1 id(s) are cancelled, of a job of this replica\n" {
            break;
        }
        assert!(text == unknown && gone.len() < 20, "{text}");
    }
    replica.cancel(&["job-29"]).await;
    gone.push("job-29".to_owned());
    assert_eq!(replica.tool(TOKEN, &["resume", "billing"]).await.code, 0);
    replica.until_cancelled(gone.len()).await;
    let left = 30 - gone.len();
    let mut ids = Vec::new();
    until("all others arrive", LONG, async || {
        ids = sent(&site);
        ids.len() >= left
    })
    .await;
    ids.sort_unstable();
    let mut expected: Vec<String> = (0..30).map(|n| format!("job-{n}")).collect();
    expected.retain(|id| !gone.contains(id));
    expected.sort_unstable();
    assert_eq!(ids, expected);
    site.depth(&site.queue(), 0, LONG).await;
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0), "no dead letters");
    until("all are settled", LONG, async || replica.settled("delivered").await == left).await;
    assert_eq!(replica.paced.stop().await, 0);
}

/// Neither by this run of a pipe nor by the next one, when nobody remembers any more that it was cancelled.
#[tokio::test]
async fn a_cancelled_job_of_a_file_is_not_sent() {
    let site = Site::shared("cancelpipe", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    replica.cancel(&["gone"]).await;
    let folder = tempfile::TempDir::new().unwrap();
    let (jobs, out) = (folder.path().join("jobs.ndjson"), folder.path().join("out.ndjson"));
    std::fs::write(&jobs, "{\"id\": \"gone\"}\n{\"id\": \"kept\"}\n").unwrap();
    let [jobs, out] = [&jobs, &out].map(|path| path.to_str().unwrap());
    let first = site.cli(&["pipe", "--downstream", "billing", "--resume", out, jobs]).await;
    assert_eq!(first.code, 1, "{}", first.stderr);
    let figures = "delivered 1, dead 0, rejected 0, cancelled 1, bad lines 0, left 0";
    assert!(first.stderr.contains(figures), "{}", first.stderr);
    replica.cancel(&["gone", "--undo"]).await;
    let again = site.cli(&["pipe", "--downstream", "billing", "--resume", out, jobs]).await;
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_eq!(sent(&site), ["kept"]);
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_cancelled_job_is_not_sent_when_it_comes_home() {
    let site = Site::shared("cancelpark", "rate = '100/s'\nhold_max = '1s'").await;
    let replica = AdminReplica::with_token(&site).await;
    // In a pause none is sent, however long the tools take. Jobs that come home may be parked again.
    assert_eq!(replica.tool(TOKEN, &["pause", "billing"]).await.code, 0);
    let wait = Duration::from_secs(5);
    site.publish(vec![later("gone", wait), later("kept", wait), later("undone", wait)]).await;
    until("all three are parked", LONG, async || replica.settled("parked").await >= 3).await;
    replica.cancel(&["gone", "undone"]).await;
    let output = replica.cancel(&["undone", "--undo"]).await;
    assert_eq!(output, "billing: 1 of 1 job(s) were cancelled, and are not any more\n");
    replica.until_cancelled(1).await;
    assert_eq!(replica.tool(TOKEN, &["resume", "billing"]).await.code, 0);
    until("the others arrive", LONG, async || site.api.count() == 2).await;
    let mut ids = sent(&site);
    ids.sort_unstable();
    assert_eq!(ids, ["kept", "undone"]);
    assert_eq!(replica.paced.stop().await, 0);
}

/// The done criterion: neither the queue nor a parked copy, neither an old replica nor a new one.
#[tokio::test]
async fn after_a_flush_every_replica_still_knows_what_was_cancelled() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "cancelflush", "rate = '100/s'\nhold_max = '1s'");
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    // In a pause none is sent, however long the tools take.
    assert_eq!(one.tool(TOKEN, &["pause", "billing"]).await.code, 0);
    site.publish(vec![later("home", Duration::from_secs(4))]).await;
    until("a copy is parked", LONG, async || {
        one.settled("parked").await + other.settled("parked").await >= 1
    })
    .await;
    one.cancel(&["home", "queued", "again", "last"]).await;
    one.cancel(&["again", "--undo"]).await;
    assert_eq!(one.tool(TOKEN, &["resume", "billing"]).await.code, 0);
    // Both know of it: each settles one of these.
    for id in ["queued", "queued", "queued", "queued"] {
        site.publish(vec![Job::new(id)]).await;
    }
    until("all four are settled, and perhaps the copy", LONG, async || {
        one.settled("cancelled").await + other.settled("cancelled").await >= 4
    })
    .await;

    redis.command(&["FLUSHALL"]).await.unwrap();
    site.publish(Job::many("job", 20)).await;
    site.publish(vec![Job::new("queued"), Job::new("again")]).await;
    site.api.wait_for(21, LONG).await;
    until("the copies are settled", LONG, async || {
        one.settled("cancelled").await + other.settled("cancelled").await == 6
    })
    .await;
    // A replica that starts now has it from the store, to which the others have reported it again.
    let count = ["ZCARD".to_owned(), format!("{}:{{billing}}:cancelled", site.prefix)];
    until("the store knows all four", LONG, async || {
        redis.command(&count.each_ref().map(String::as_str)).await.unwrap().trim() == ":4"
    })
    .await;
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
    site.publish(vec![Job::new("last"), Job::new("fresh")]).await;
    let fresh = AdminReplica::with_token(&site).await;
    site.api.wait_for(22, LONG).await;
    fresh.until_cancelled(1).await;
    let mut ids = sent(&site);
    ids.retain(|id| !id.starts_with("job-"));
    ids.sort_unstable();
    assert_eq!(ids, ["again", "fresh"]);
    assert_eq!(fresh.paced.stop().await, 0);
}

#[tokio::test]
async fn a_client_that_asked_for_the_outcome_gets_it() {
    let site = Site::shared("canceltell", "rate = '100/s'\n[reply]\nallow = ['replies-']").await;
    let replies = format!("replies-{}", site.prefix);
    let (connection, channel) = publish::open(&site.amqp).await;
    let options = lapin::options::QueueDeclareOptions::default();
    channel.queue_declare(replies.as_str().into(), options, Default::default()).await.unwrap();
    let replica = AdminReplica::with_token(&site).await;
    replica.cancel(&["asked"]).await;
    let mut job = Job::new("asked");
    job.properties = job.properties.with_reply_to(replies.as_str().into()).with_correlation_id("c-1".into());
    site.publish(vec![job]).await;
    site.depth(&replies, 1, LONG).await;
    let reply = publish::drain(&site.amqp, &replies).await.remove(0);
    assert_eq!(reply.properties.correlation_id().as_ref().unwrap().as_str(), "c-1");
    let outcome: Value = serde_json::from_slice(&reply.body).unwrap();
    let text = "cancelled: an operator cancelled the job before it was sent";
    assert_eq!(outcome, json!({ "status": 0, "headers": {}, "body": text }));
    replica.until_cancelled(1).await;
    connection.close(200, "OK".into()).await.unwrap();
    assert_eq!((replica.paced.stop().await, site.api.count()), (0, 0));
}

#[tokio::test]
async fn a_retry_is_cancelled_and_a_replayed_dead_letter_until_it_is_undone() {
    let retry = "rate = '100/s'\nhold_max = '10m'\n[downstreams.billing.retry]\nmax_attempts = 2\nmin_backoff = '200s'";
    let site = Site::shared("cancelretry", retry).await;
    site.api.rule(|arrival| Answer::status(if arrival.path == "/busy" { 503 } else { 410 }));
    let replica = AdminReplica::with_token(&site).await;
    site.publish(vec![Job::new("busy").header("paced-path", "busy"), Job::new("dead")]).await;
    site.api.wait_for(2, LONG).await;
    site.depth(&site.dead_queue(), 1, LONG).await;
    until("a retry waits", LONG, async || replica.settled("retried").await == 1).await;
    replica.cancel(&["busy", "dead"]).await;
    replica.until_cancelled(1).await;
    let replay = async || {
        let output = site.cli(&["dead", "replay", "billing"]).await;
        assert_eq!((output.code, output.stdout.as_str()), (0, "replayed 1 of 1 dead letter(s)\n"));
    };
    replay().await;
    replica.until_cancelled(2).await;
    assert_eq!(site.api.count(), 2);
    replica.cancel(&["dead", "--undo"]).await;
    site.publish(vec![Job::new("dead")]).await;
    site.api.wait_for(3, LONG).await;
    site.depth(&site.dead_queue(), 1, LONG).await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn who_may_cancel_and_what_is_answered() {
    let site = Site::shared("cancelapi", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let body = r#"{"ids": ["a"]}"#;
    for (headers, status) in [
        (&[("authorization", "")][..], 401),
        (&[("authorization", "Bearer wrong")], 401),
        (&[("origin", "https://evil.example")], 403),
        (&[("host", "evil.example")], 421),
        (&[("content-type", "text/plain")], 415),
    ] {
        assert_eq!(replica.send(Method::POST, "/cancel", headers, body).await.0, status, "{headers:?}");
    }
    let (status, answer) = replica.send(Method::POST, "/cancel", &[], body).await;
    assert_eq!((status, &answer["cancelled"]), (200, &json!({ "ids": 1, "changed": 1 })), "{answer}");
    let many: Vec<String> = (0..1001).map(|number| format!("job-{number}")).collect();
    let (status, answer) =
        replica.send(Method::POST, "/cancel", &[], &json!({ "ids": many }).to_string()).await;
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("at most 1000"), "{status} {answer}");
    for (token, args, code, message) in [
        ("wrong", &["cancel", "billing", "a"][..], 77, "the token is wrong"),
        (TOKEN, &["cancel", "biling", "a"], 2, "no such downstream"),
        (TOKEN, &["cancel", "billing"], 2, "required"),
        (TOKEN, &["cancel", "billing", "a", "--for", "soon"], 2, "is no duration"),
        (TOKEN, &["cancel", "billing", "a", "--for", "400d"], 2, "use at most 366d"),
        (TOKEN, &["cancel", "billing", "a b"], 2, "`a b` is no job id"),
        (TOKEN, &["cancel", "billing", "a", "--undo", "--for", "1h"], 2, "cannot be used with"),
        (TOKEN, &["cancel", "billing", "-"], 2, "stdin has no ids"),
    ] {
        let output = replica.tool(token, args).await;
        assert_eq!(output.code, code, "{args:?} {output:?}");
        assert!(output.stderr.contains(message), "{args:?} {output:?}");
    }
    // From stdin there may be more than fit into one request.
    let args = ["--admin", &replica.base, "--set", &format!("admin.token={TOKEN}"), "cancel", "billing", "-"];
    let output = run_cli(&args, many.join("\n").as_bytes()).await;
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (0, "billing: 1001 id(s) are cancelled, and remembered whether or not such jobs wait now\n"),
        "{output:?}"
    );
    let answer: Value =
        serde_json::from_str(&replica.cancel(&["a", "x", "--undo", "-o", "json"]).await).unwrap();
    assert_eq!(
        (&answer["name"], &answer["cancelled"]),
        (&json!("billing"), &json!({ "ids": 2, "changed": 1 }))
    );
    let lines = replica.audit("admin: changed", 4).await;
    assert_eq!(lines[0]["change"], "cancel");
    assert_eq!(lines[0]["after"], "1 of 1 cancelled for 366 days: a");
    assert_eq!(lines[3]["after"], "1 of 2 not cancelled any more: a, x");
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn a_long_list_of_cancelled_jobs_holds_nobody_up() {
    const CANCELLED: usize = 1500;
    let site = Site::shared("cancelmany", "rate = '500/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let ids: Vec<String> = (0..CANCELLED).map(|number| format!("gone-{number}")).collect();
    let args = ["--admin", &replica.base, "--set", &format!("admin.token={TOKEN}"), "cancel", "billing", "-"];
    let output = run_cli(&args, ids.join("\n").as_bytes()).await;
    assert_eq!(output.code, 0, "{output:?}");
    site.publish(Job::many("gone", CANCELLED)).await;
    site.publish(Job::many("job", 200)).await;
    let arrivals = site.api.wait_for(200, LONG).await;
    assert!(compare("job", 200, &arrivals).is_clean());
    replica.until_cancelled(CANCELLED).await;
    assert_eq!(site.api.count(), 200);
    assert_eq!(replica.paced.stop().await, 0);
}
