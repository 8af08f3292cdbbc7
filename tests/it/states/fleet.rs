//! Replicas of one downstream: what one says of the others, and of what they left in the store.

use super::*;
use crate::admin::terms::{newer_terms, store};
use crate::support::site::Site;

/// The divisor of the intervals. One that is larger would make a replica silent that is only slow.
const HASTE: u32 = 4;

#[tokio::test]
async fn what_becomes_of_other_replicas_is_shown() {
    let site = Site::shared("statefleet", "rate = '100/s'").await;
    let differs = format!("{}{}", site.config(), admin());
    let right = differs.replace("'100/s'", "'50/s'");
    let old = format!("[downstreams.old]\nrate = '1/s'\nhttp.base_url = '{}'\n", site.api.url());
    let hangs = AdminReplica::hasty(&differs, HASTE).await;
    // The last load wins.
    let (right, more) = (right.clone(), format!("{right}{old}"));
    let (one, ends) = tokio::join!(AdminReplica::hasty(&right, HASTE), AdminReplica::hasty(&more, HASTE));
    let states = of("fleet");
    let are_so = async |ids: &[&str], since| {
        let made = ids.iter().map(|id| {
            let downstream = if *id == "orphan" { "old" } else { "billing" };
            Made::new(state(&states, id), downstream, "")
        });
        are_shown(&one, since, made.collect()).await;
    };
    are_so(&["stray"], 0).await;

    // The one that has ended served another downstream, too.
    assert_eq!(ends.paced.stop().await, 0);
    hangs.paced.freeze();
    let (asked, ()) = tokio::join!(hangs.tool(TOKEN, &["status"]), are_so(&["frozen", "orphan"], 0));
    assert!(asked.code == 69 && asked.stderr.contains("sent no answer within 10s: it hangs"), "{asked:?}");
    let line = one.paced.wait_line("replicas have been silent for", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let named = line["replicas"].as_str().unwrap();
    let process = |replica: &AdminReplica| format!("process {}", replica.paced.pid());
    assert!(named.contains(&process(&hangs)) && !named.contains(&process(&ends)), "{line}");
    hangs.paced.thaw();
    one.paced.wait_line("report again", LONG).await;
    are_so(&["left"], 0).await;

    let since = one.paced.log().len();
    hangs.paced.kill9();
    are_so(&["killed"], since).await;
    newer_terms(&store(&site).await).await;
    are_so(&["terms"], since).await;
    assert_eq!(one.paced.stop().await, 0);
}
