//! Downstreams that no replica serves any more.

use std::time::Duration;

use crate::LONG;
use crate::support::daemon::Paced;
use crate::support::real_now;
use crate::support::servers::{rabbit, redis};
use crate::support::site::Site;

/// The longest time until a downstream is named that nobody serves.
const NAMED: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_downstream_that_nobody_serves_is_named_within_a_minute() {
    let site = Site::on(rabbit().await, redis().await, "orphaned", "rate = '200/s'");
    let url = site.api.url();
    let old = format!("[downstreams.old]\nrate = '200/s'\n[downstreams.old.http]\nbase_url = '{url}'\n");
    let former = Paced::spawn(&format!("{}{old}", site.config())).await;
    let replica = site.replica().await;
    assert_eq!(former.stop().await, 0);
    let ended = real_now();
    let line = replica.wait_line("no replica serves these downstreams any more", LONG).await;
    let took = ended.elapsed();
    eprintln!("orphaned: it is named {took:?} after its last replica has ended");
    assert!(took < NAMED && line.contains("old"), "{took:?}: {line}");
    assert_eq!(replica.stop().await, 0);
}
