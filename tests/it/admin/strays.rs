//! A replica whose file has other limits than those in force is named in the log of all, and by those who ask.

use super::api::{AdminReplica, TOKEN};
use super::*;

const DIFFERS: &str = "a replica's file has other limits than those in force";
const AGREES: &str = "the replica's file has the limits in force again";

/// The lines of the log of this replica that have this text.
fn lines(replica: &AdminReplica, text: &str) -> Vec<Value> {
    let lines = replica.paced.log().into_iter().filter(|line| line.contains(text));
    lines.map(|line| serde_json::from_str(&line).unwrap()).collect()
}

#[tokio::test]
async fn a_stray_is_named_in_the_log_of_all_when_it_begins_and_when_it_ends() {
    let site = Site::shared("strays", "rate = '100/s'").await;
    let right = format!("{}{ADMIN}token = '{TOKEN}'\n", site.config().replace("'100/s'", "'50/s'"));
    let stray = AdminReplica::hasty(&format!("{}{ADMIN}token = '{TOKEN}'\n", site.config()), 4).await;
    // The last load wins.
    let other = AdminReplica::hasty(&right, 4).await;
    until("the other file is in force", LONG, async || stray.get().await["limits"][0]["rate"] == "50/s")
        .await;
    let (state, others) = (stray.get().await, other.get().await);
    assert_eq!(state["file"]["replica"], others["replica"], "{state}");
    assert_eq!((&state["own_limits"][0]["rate"], &others["own_limits"]), (&"100/s".into(), &Value::Null));
    for replica in [&stray, &other] {
        replica.paced.wait_line(DIFFERS, LONG).await;
        let line = &lines(replica, DIFFERS)[0];
        assert_eq!((&line["level"], &line["downstreams"]), (&"WARN".into(), &"billing".into()), "{line}");
        assert_eq!((&line["replica"], line["host"].is_string()), (&state["replica"], true), "{line}");
    }
    let output = stray.tool(TOKEN, &["rate", "get", "billing"]).await;
    let own = "has other limits than those in force: leaky-bucket-0 100/s";
    assert!(output.code == 0 && output.stderr.contains(own), "{output:?}");
    let output = other.tool(TOKEN, &["rate", "get", "billing"]).await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    until("the status says so", LONG, async || {
        let output = other.tool(TOKEN, &["status", "billing"]).await;
        output.stdout.contains(" loaded a different configuration file")
    })
    .await;

    // A rate that is set makes other terms, by the same file.
    assert_eq!(other.tool(TOKEN, &["rate", "set", "billing", "20/s"]).await.code, 0);
    until("the rate is known", LONG, async || stray.metric("paced_rate_limit_jobs_per_second").await < 21.0)
        .await;
    std::fs::write(stray.paced.config_file(), &right).unwrap();
    stray.paced.hangup();
    for replica in [&stray, &other] {
        replica.paced.wait_line(AGREES, LONG).await;
        for text in [DIFFERS, AGREES] {
            let lines = lines(replica, text);
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert_eq!(lines[0]["replica"], state["replica"], "{lines:?}");
        }
    }
    assert_eq!(lines(&stray, "this replica's configuration differs from the terms in force").len(), 1);
    assert_eq!((stray.paced.stop().await, other.paced.stop().await), (0, 0));
}
