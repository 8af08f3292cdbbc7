//! `paced reset` while jobs are on their way.

use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::api::stamp;
use crate::support::count;
use crate::support::site::compare;

#[tokio::test]
async fn resets_under_load_keep_the_pace() {
    const JOBS: usize = 300;
    let site = Site::shared("resetload", "rate = '200/s'\nqueue.prefetch = 100").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    let begin = stamp();
    site.publish(Job::many("job", JOBS)).await;
    for number in 1..=5 {
        site.api.wait_for(number * 50, LONG).await;
        let replica = if number % 2 == 0 { &one } else { &other };
        assert_eq!(replica.send(Method::POST, "/reset", &[], "").await.0, 200);
    }
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(compare("job", JOBS, &arrivals).is_clean());
    // Each reset may bring one job forward.
    count::assert_never_ahead(&site.api.stamps(), begin, "200/s".parse().unwrap(), 10);
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn what_was_used_up_is_free_again_for_every_replica() {
    let limits = "rate = '20/s'\nqueue.prefetch = 100\n\
                  limits = [{ algorithm = 'fixed-window', rate = '30/30d', name = 'monthly' }]";
    let site = Site::shared("resetwindow", limits).await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    let replicas = [&one.paced, &other.paced];
    site.publish(Job::many("job", 70)).await;
    let missed = site.used_up(30, &replicas, LONG).await;
    for (args, message) in [
        (&["reset", "billing"][..], "add --yes"),
        (&["reset", "billing", "--limit", "daily", "--yes"], "there are `leaky-bucket-0`, `monthly`"),
        (&["reset", "biling", "--yes"], "no such downstream; this daemon has billing"),
    ] {
        let output = one.tool(TOKEN, args).await;
        assert!(output.code == 2 && output.stderr.contains(message), "{args:?} {output:?}");
    }
    let output = one.tool("wrong", &["reset", "billing", "--yes"]).await;
    assert_eq!(output.code, 77, "{output:?}");
    // The pace alone releases no more of the month.
    let output = one.tool(TOKEN, &["reset", "billing", "--limit", "leaky-bucket-0", "--yes"]).await;
    assert_eq!(output.stdout, "billing: the counts of `leaky-bucket-0` begin at 0\n", "{output:?}");
    assert_eq!(site.api.count() + missed, 30);

    let args = ["-o", "json", "reset", "billing", "--limit", "monthly", "--yes", "--reason", "they asked"];
    let output = other.tool(TOKEN, &args).await;
    let answer: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&answer["name"], &answer["reset"]), (&json!("billing"), &json!(["monthly"])));
    site.used_up(60, &replicas, LONG).await;
    let output = one.tool(TOKEN, &["reset", "billing", "--yes"]).await;
    assert_eq!(
        output.stdout, "billing: the counts of `leaky-bucket-0`, `monthly` begin at 0\n",
        "{output:?}"
    );
    let arrivals = site.api.wait_for(70, LONG).await;
    assert!(compare("job", 70, &arrivals).is_clean());

    let audit = other.audit("admin: changed", 1).await;
    let field = |name: &str| audit[0][name].as_str().unwrap_or_default();
    assert_eq!((field("change"), field("reason"), field("downstream")), ("reset", "they asked", "billing"));
    assert!(field("before").starts_with("reset ") && field("after").ends_with(" of monthly"), "{audit:?}");
    for replica in [&one, &other] {
        replica.paced.wait_line("reset: the counts of limits start at 0 again", LONG).await;
        assert_eq!(replica.paced.stop().await, 0);
    }
}
