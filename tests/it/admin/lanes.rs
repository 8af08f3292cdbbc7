//! `paced lane`: one tenant is paused, resumed and given another weight through any replica, while others continue.

use super::api::{AdminReplica, TOKEN};
use super::*;

fn of(lane: &str, jobs: usize) -> Vec<Job> {
    let jobs = Job::many(&format!("{lane}-"), jobs).into_iter();
    jobs.map(|job| job.header("paced-lane", lane)).collect()
}

#[tokio::test]
async fn a_tenant_is_paused_and_resumed_in_all_replicas_and_others_go_on() {
    let keys = "rate = '100/s'\nlanes.by = { tenant = 'header:paced-lane' }";
    let site = Site::shared("lanelive", keys).await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    let paused = one.tool(TOKEN, &["lane", "pause", "billing", "a", "--reason", "they asked"]).await;
    assert_eq!(paused.code, 0, "{paused:?}");
    assert!(paused.stdout.starts_with("a: paused until it is resumed, set by "), "{paused:?}");
    for replica in [&one, &other] {
        replica.paced.wait_line("limits changed: weights or pauses of lanes", LONG).await;
        let is_known = async || replica.metric("paced_paused_values").await == 1.0;
        until("the metric has it", LONG, is_known).await;
    }
    site.publish(of("a", 20)).await;
    site.publish(of("b", 40)).await;
    let arrivals = site.api.wait_for(40, LONG).await;
    assert!(arrivals.iter().all(|arrival| arrival.id().starts_with("b-")), "{arrivals:?}");
    let set = other.tool(TOKEN, &["lane", "set", "billing", "a", "--weight", "3", "--for", "1h"]).await;
    assert_eq!(set.code, 0, "{set:?}");
    let listed = one.tool(TOKEN, &["-o", "json", "lane", "list", "billing"]).await;
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let values = listed["values"].as_array().unwrap();
    assert_eq!(values.len(), 2, "{listed}");
    assert_eq!((&values[0]["weight"], &values[1]["weight"]), (&3.into(), &Value::Null), "{listed}");
    assert_eq!(other.tool(TOKEN, &["lane", "resume", "billing", "a"]).await.code, 0);
    site.api.wait_for(60, LONG).await;
    let unset = one.tool(TOKEN, &["lane", "unset", "billing", "a"]).await;
    assert_eq!((unset.code, unset.stdout.as_str()), (0, "a: as in the configuration\n"), "{unset:?}");
    let history = one.tool(TOKEN, &["history", "billing"]).await.stdout;
    for change in ["lane pause", "lane set", "lane resume", "lane unset"] {
        assert!(history.contains(change), "{change}: {history}");
    }
    for wrong in [&["lane", "set", "billing", "a", "--weight", "0"][..], &["lane", "pause", "other", "a"]] {
        assert_eq!(one.tool(TOKEN, wrong).await.code, 2, "{wrong:?}");
    }
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn nothing_is_set_for_a_value_where_there_are_no_lanes() {
    let site = Site::shared("laneless", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    for order in [&["lane", "pause", "billing", "a"][..], &["lane", "set", "billing", "a", "--weight", "3"]] {
        let refused = replica.tool(TOKEN, order).await;
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains("it has no lanes"), "{refused:?}");
    }
    let unset = replica.tool(TOKEN, &["lane", "resume", "billing", "a"]).await;
    assert_eq!(unset.code, 0, "what was set before the lanes were removed can be unset: {unset:?}");
    let terms = replica.tool(TOKEN, &["terms", "show", "billing"]).await;
    assert!(
        terms.stdout.contains("version       1 (") || terms.stdout.contains("version       2 ("),
        "{terms:?}"
    );
    assert_eq!(replica.paced.stop().await, 0);
}
