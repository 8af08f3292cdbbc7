//! A downstream that no replica serves any more is named, and what it has left is moved and deleted.

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::daemon::Output;
use crate::support::publish::{depth, publish, publish_to};
use crate::support::servers::redis;
use crate::support::{real_now, scaled};

const NAMED: &str = "no replica serves these downstreams any more";
const OVER: &str = "these downstreams are served again, or were deleted";

/// The divisor of the intervals; `PACED_ORPHANS_HASTE=1` takes the usual ones.
fn haste() -> u32 {
    scaled("PACED_ORPHANS_HASTE", 10)
}

/// The configuration of a replica that serves `old` too.
fn with_old(site: &Site) -> String {
    let old = format!(
        "[downstreams.old]\nrate = '500/s'\n[downstreams.old.http]\nbase_url = '{}'\n",
        site.api.url()
    );
    format!("{}{old}{ADMIN}token = '{TOKEN}'\n", site.config())
}

fn without_old(site: &Site) -> String {
    format!("{}{ADMIN}token = '{TOKEN}'\n", site.config())
}

/// A tool with the configuration without `old`, and with the same divisor.
async fn tool(site: &Site, args: &[&str]) -> Output {
    site.cli_with(args, &[("PACED_TEST_HASTE", &haste().to_string())]).await
}

#[track_caller]
fn ended(output: &Output, code: i32, text: &str) {
    let all = format!("{}{}", output.stdout, output.stderr);
    assert!(output.code == code && all.contains(text), "not {code} with {text}: {output:?}");
}

#[tokio::test]
async fn a_downstream_that_is_taken_out_of_the_file_is_named_until_it_is_deleted() {
    let site = Site::shared("orphans", "rate = '500/s'").await;
    let former = AdminReplica::hasty(&with_old(&site), haste()).await;
    assert_eq!(former.paced.stop().await, 0);
    let ended_at = real_now();
    publish(&site.amqp, &site.prefix, "old", Job::many("job", 3)).await;
    let letter = Job::new("letter").header("paced-reason", "status").header("paced-routing-key", "old.x");
    publish_to(&site.amqp, "", &format!("{}.dead.old", site.prefix), vec![letter]).await;

    let replica = AdminReplica::hasty(&without_old(&site), haste()).await;
    let line: Value = serde_json::from_str(&replica.paced.wait_line(NAMED, LONG).await).unwrap();
    println!("it is named {:?} after its last replica has ended", ended_at.elapsed());
    assert_eq!((&line["level"], &line["downstreams"]), (&"WARN".into(), &"old".into()), "{line}");
    until("it is counted", LONG, async || replica.metric("paced_orphans").await == 1.0).await;
    until("the status names it", LONG, async || {
        replica.tool(TOKEN, &["status"]).await.stdout.contains("\nold: no replica serves it (last served ")
    })
    .await;
    ended(&replica.tool(TOKEN, &["status", "old"]).await, 0, "old: no replica serves it (last served ");
    let answer: Value =
        serde_json::from_str(&replica.tool(TOKEN, &["-o", "json", "status"]).await.stdout).unwrap();
    assert_eq!(answer["orphans"][0]["name"], "old", "{answer}");

    // A store that loses it gets the report again.
    let key = format!("{}:{{~fleet}}:served:{}", site.prefix, site.prefix);
    let redis = redis().await;
    redis.command(&["DEL", &key]).await.unwrap();
    until("it is known again", LONG, async || {
        !redis.command(&["ZSCORE", &key, "old"]).await.unwrap().starts_with("$-1")
    })
    .await;

    moved_and_deleted(&site).await;
    let line: Value = serde_json::from_str(&replica.paced.wait_line(OVER, LONG).await).unwrap();
    assert_eq!((&line["level"], &line["downstreams"]), (&"INFO".into(), &"old".into()), "{line}");
    until("it is not counted any more", LONG, async || replica.metric("paced_orphans").await == 0.0).await;
    let lines = replica.paced.log().into_iter().filter(|line| line.contains(NAMED)).count();
    assert_eq!(lines, 1, "it is named once");
    assert_eq!(replica.paced.stop().await, 0);
}

/// Moves the jobs of `old` and its letter to `billing`, and deletes its queues.
async fn moved_and_deleted(site: &Site) {
    let old = |kind: &str| format!("{}.{kind}.old", site.prefix);
    let listed = tool(site, &["-o", "json", "dead", "list", "old"]).await;
    ended(&listed, 0, "\"id\":\"letter\"");
    for (args, code, text) in [
        (&["dead", "list", "older"][..], 2, "no downstream `older` in the configuration; it has billing"),
        (&["dead", "replay", "old"], 2, "--to DOWNSTREAM"),
        (&["downstream", "drain", "older"], 2, "no downstream `older`"),
        (&["downstream", "drain", "old", "--to", "older"], 2, "no downstream `older`"),
        (&["downstream", "drain", "billing", "--to", "billing"], 2, "`billing` is in the configuration"),
        (&["downstream", "delete", "older", "--yes"], 2, "no downstream `older`"),
        (&["downstream", "delete", "old"], 2, "--yes"),
        (&["downstream", "delete", "old", "--yes"], 1, &format!("3 message(s) in {}", old("jobs"))),
        (&["-o", "json", "downstream", "drain", "old"], 0, "\"ready\":3}"),
        (&["downstream", "drain", "old", "--to", "billing"], 0, "moved 3 job(s) of old to billing"),
        (&["-o", "json", "downstream", "drain", "old", "--to", "billing"], 0, "\"moved\":0"),
        (&["downstream", "delete", "old", "--yes"], 1, &format!("1 message(s) in {}", old("dead"))),
    ] {
        ended(&tool(site, args).await, code, text);
    }
    let mut ids: Vec<String> =
        site.api.wait_for(3, LONG).await.iter().map(|arrival| arrival.id().to_owned()).collect();
    ids.sort();
    assert_eq!(ids, ["job-0", "job-1", "job-2"]);

    // It takes no jobs any more.
    publish(&site.amqp, &site.prefix, "old", Job::many("late", 1)).await;
    site.depth(&format!("{}.unroutable", site.prefix), 1, LONG).await;
    ended(&tool(site, &["dead", "replay", "old", "--to", "billing"]).await, 0, "replayed 1 of 1");
    site.api.wait_for(4, LONG).await;
    // That the letter is gone may be seen a little later.
    site.depth(&old("dead"), 0, LONG).await;
    ended(&tool(site, &["downstream", "delete", "old", "--yes"]).await, 0, "old: deleted ");
    for kind in ["jobs", "home", "dead"] {
        assert_eq!(depth(&site.amqp, &old(kind)).await, None, "{kind}");
    }
    ended(&tool(site, &["downstream", "delete", "old", "--yes"]).await, 2, "no downstream `old`");
}

#[tokio::test]
async fn what_a_replica_serves_is_neither_moved_nor_deleted() {
    let site = Site::shared("served", "rate = '500/s'").await;
    let replica = AdminReplica::hasty(&with_old(&site), haste()).await;
    for args in
        [&["downstream", "delete", "old", "--yes"][..], &["downstream", "drain", "old", "--to", "billing"]]
    {
        ended(&site.cli(args).await, 1, "a replica has served `old` in the last 20 s");
    }
    // It continues as before.
    publish(&site.amqp, &site.prefix, "old", Job::many("job", 5)).await;
    site.api.wait_for(5, LONG).await;
    assert_eq!(replica.metric("paced_orphans").await, 0.0);
    assert_eq!(replica.paced.stop().await, 0);
}
