//! Jobs that wait for a plan come back when that changes.

use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::park::waiting;
use crate::support::api::Arrival;
use crate::support::until;

/// The ids of these, in their order.
fn ids(arrivals: &[Arrival]) -> Vec<String> {
    arrivals.iter().map(|arrival| arrival.id().to_owned()).collect()
}

/// The ids of these jobs.
fn jobs(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("job-{number}")).collect()
}

#[tokio::test]
async fn jobs_of_a_plan_that_is_used_up_go_when_that_changes() {
    // One at a time, so that they arrive in the order in which they go.
    let plan = "rate = '100/s'\nconcurrency = 1\n[plans.free]\n\
                limits = [{ algorithm = 'fixed-window', anchor = 'first-hit', rate = '20/30d', name = 'monthly' }]";
    let site = Site::shared("unparked", plan).await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    let replicas = [&one.paced, &other.paced];
    let of_plan = |job: Job| job.header("paced-plan", "free");
    site.publish(Job::many("job", 100).into_iter().map(of_plan).collect()).await;
    // A unit of the window is lost with a slot that a busy machine misses.
    let missed = site.used_up(20, &replicas, LONG).await;
    until("the others to wait", LONG, async || waiting(&site).await as usize + site.api.count() == 100).await;
    let mut sent = 20 - missed;
    assert_eq!(site.api.count(), sent);
    // Those were missing until now.
    until("the broker's count", LONG, async || {
        let downstream = one.downstream().await;
        let within = json!([{ "seconds": 4096, "jobs": 100 - sent }]);
        downstream["parked_for_limits"] == 100 - sent && downstream["parked_for_limits_within"] == within
    })
    .await;
    let output = one.tool(TOKEN, &["status", "billing"]).await;
    let text = format!("parked for a limit or a pause, and back: {} within 4096 s", 100 - sent);
    assert!(output.stdout.contains(&text), "{output:?}");

    let output = one.tool(TOKEN, &["reset", "billing", "--yes"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let missed = site.used_up(40, &replicas, LONG).await;
    sent = 40 - missed;
    // The others came home for nothing.
    until("the others to wait", LONG, async || waiting(&site).await as usize == 100 - sent).await;
    assert_eq!(site.api.count(), sent);

    // By hand they come back too, for nothing; a replica may just have learnt of the reset, and take them before.
    until("jobs to come back by hand", LONG, async || {
        let output = site.cli(&["-o", "json", "unpark", "billing"]).await;
        let answer: Value = serde_json::from_str(&output.stdout).unwrap();
        answer["unparked"].as_u64().is_some_and(|jobs| jobs > 0)
    })
    .await;
    until("them to wait", LONG, async || waiting(&site).await as usize == 100 - sent).await;

    let args = ["rate", "set", "billing", "1000/30d", "--limit", "plan.free.monthly"];
    let output = other.tool(TOKEN, &args).await;
    assert_eq!(output.code, 0, "{output:?}");
    let arrivals = site.api.wait_for(100, LONG).await;
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
    let mut all = ids(&arrivals);
    all.sort_by_key(|id| id["job-".len()..].parse::<usize>().unwrap());
    assert_eq!(all, jobs(0..100), "each once");
    assert_eq!((waiting(&site).await, site.api.count()), (0, 100));
}

/// With one replica they go in their order.
#[tokio::test]
async fn jobs_that_come_back_keep_their_order() {
    let plan = "rate = '100/s'\nconcurrency = 1\n[plans.free]\n\
                limits = [{ algorithm = 'fixed-window', anchor = 'first-hit', rate = '5/30d', name = 'monthly' }]";
    let site = Site::shared("unparkorder", plan).await;
    let one = AdminReplica::with_token(&site).await;
    let of_plan = |job: Job| job.header("paced-plan", "free");
    site.publish(Job::many("job", 60).into_iter().map(of_plan).collect()).await;
    until("all but a few to wait", LONG, async || waiting(&site).await as usize + site.api.count() == 60)
        .await;
    let output =
        one.tool(TOKEN, &["rate", "set", "billing", "1000/30d", "--limit", "plan.free.monthly"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    // A new one does not overtake what is here again.
    let home = format!("{}.home.billing", site.prefix);
    until("all to be back", LONG, async || waiting(&site).await == 0).await;
    site.depth(&home, 0, LONG).await;
    site.publish(vec![of_plan(Job::new("job-60"))]).await;
    let arrivals = site.api.wait_for(61, LONG).await;
    assert_eq!(one.paced.stop().await, 0);
    // A slot that a busy machine misses puts a job behind those that have theirs already: ten within the horizon.
    for (place, id) in ids(&arrivals).iter().enumerate() {
        let number: usize = id["job-".len()..].parse().unwrap();
        assert!(number.abs_diff(place) <= 11, "{id} is number {place}");
    }
}

/// The broker counts them, so that the status has them also where the store knows of none.
#[tokio::test]
async fn parked_jobs_are_counted_after_the_store_has_forgotten_them() {
    const JOBS: usize = 20;
    let plan = "rate = '100/s'\n[plans.free]\n\
                limits = [{ algorithm = 'fixed-window', anchor = 'first-hit', rate = '1/30d', name = 'monthly' }]";
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "forgotten", plan);
    let replica = AdminReplica::with_token(&site).await;
    let of_plan = |job: Job| job.header("paced-plan", "free");
    site.publish(Job::many("job", JOBS).into_iter().map(of_plan).collect()).await;
    until("the others to wait", LONG, async || waiting(&site).await as usize + site.api.count() == JOBS)
        .await;
    assert_eq!(replica.paced.stop().await, 0);
    redis.kill().await;
    redis.wipe().await;
    redis.start().await;
    let replica = AdminReplica::with_token(&site).await;
    until("the broker's count", LONG, async || {
        let parked = waiting(&site).await;
        parked > 0 && replica.downstream().await["parked_for_limits"] == parked
    })
    .await;
    until("the text", LONG, async || {
        let parked = waiting(&site).await;
        let text = format!("{parked} parked in the broker, {parked} of these for a limit or a pause");
        replica.tool(TOKEN, &["status"]).await.stdout.contains(&text)
    })
    .await;
    assert_eq!(replica.paced.stop().await, 0);
}
