//! Rates that change again and again while a window is full.

use super::api::AdminReplica;
use super::*;
use crate::support::publish::depth;

#[tokio::test]
async fn however_often_the_rate_changes_there_is_never_a_second_window() {
    const JOBS: usize = 1000;
    // The window for a minute at 2/s, and that at 5/m.
    const WIDE: usize = 120;
    let site = Site::shared("toggles", "rate = '2/s'\nqueue.prefetch = 500").await;
    let replica = AdminReplica::with_token(&site).await;
    site.publish(Job::many("job", JOBS)).await;
    // Jobs that arrived were taken from the queue before, so that those which arrive between the two counts can only make
    // this less.
    let unacked = async || {
        let ready = depth(&site.amqp, &site.queue()).await.unwrap();
        JOBS.saturating_sub(site.api.count() + usize::try_from(ready).unwrap())
    };
    until("a window that is full", LONG, async || unacked().await >= WIDE - 5).await;
    for toggle in 0..20 {
        let rate = if toggle % 2 == 0 { r#"{"rate": "5/m"}"# } else { r#"{"rate": "2/s"}"# };
        assert_eq!(replica.send(Method::PUT, "/rate", &[], rate).await.0, 200);
        for _ in 0..3 {
            let unacked = unacked().await;
            assert!(unacked <= WIDE + 5, "{unacked} after {toggle} changes");
        }
    }
    until("a window that is full", LONG, async || unacked().await >= WIDE - 5).await;
    assert_eq!(replica.paced.stop().await, 0);
}
