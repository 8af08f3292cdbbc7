//! A replica that ceases to tell of itself is named by the others, and one that ends in order is not.

use super::api::{AdminReplica, TOKEN};
use super::*;

#[tokio::test]
async fn a_replica_that_hangs_is_named_until_it_goes_on() {
    let site = Site::shared("silence", "rate = '100/s'").await;
    let config = format!("{}{ADMIN}token = '{TOKEN}'\n", site.config());
    let one = AdminReplica::hasty(&config, 4).await;
    let (hangs, ends) = tokio::join!(AdminReplica::hasty(&config, 4), AdminReplica::hasty(&config, 4));
    let heard = async |text: &str| one.tool(TOKEN, &["status"]).await.stdout.contains(text);
    until("all are known", LONG, async || heard(": 3 replica(s), ").await).await;
    assert_eq!(ends.paced.stop().await, 0);
    hangs.paced.freeze();
    let process = format!("process {}", hangs.paced.pid());
    let line = one.paced.wait_line("replicas have not been heard from for", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let named = line["replicas"].as_str().unwrap();
    assert!(named.contains(&process), "{line}");
    assert_eq!(named.matches("process").count(), 1, "the one that has ended is not named: {line}");
    until("it is counted", LONG, async || one.metric("paced_silent_replicas").await == 1.0).await;
    until("it is not among those that run", LONG, async || {
        heard(": 1 replica(s) and 1 NOT HEARD FROM, ").await
    })
    .await;
    let table = one.tool(TOKEN, &["status"]).await.stdout;
    let named = |line: &str| line.contains(&process) && line.contains("has not been heard from for");
    assert!(table.lines().any(named), "{table}");
    hangs.paced.thaw();
    one.paced.wait_line("heard from again", LONG).await;
    until("it runs", LONG, async || heard(": 2 replica(s), ").await).await;
    assert_eq!(one.metric("paced_silent_replicas").await, 0.0);
    assert_eq!((one.paced.stop().await, hangs.paced.stop().await), (0, 0));
}
