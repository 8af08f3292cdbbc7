//! A replica that is killed while it settles cancelled jobs.

use crate::support::daemon::run_cli;
use crate::support::servers::free_port;

use super::*;

/// The site's configuration, with the admin server.
fn with_admin(site: &Site) -> String {
    let port = free_port();
    let admin = format!("[admin]\nlisten = '127.0.0.1:{port}'\ntoken = 'kills-0123456789abcdef'");
    format!("{admin}\n{}", site.config())
}

/// Cancels the jobs; returns whether the command could say that it did.
async fn cancel(config: &str) -> bool {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, config).unwrap();
    let ids: Vec<String> = (0..JOBS).map(|n| format!("job-{n}")).collect();
    let mut args = vec!["-c", file.to_str().unwrap(), "cancel", "billing"];
    args.extend(ids.iter().map(String::as_str));
    run_cli(&args, b"").await.code == 0
}

/// A site with a replica that ends at the point, where jobs were cancelled while they were parked for the first time; and
/// whether the command could say that it did. Where the machine was so slow that the jobs came home before, they wait for
/// longer on another site.
async fn cancelled_while_parked(kill: &Kill) -> (Site, Paced, bool) {
    for wait in WAITS[1..].iter().copied().map(Duration::from_secs) {
        let site = kill.site("killparked", "hold_max = '1s'").await;
        let config = with_admin(&site);
        let replica = kill.replica(&config).await;
        // No job comes home before a half of the wait.
        let home = real_now() + wait / 2;
        site.publish(with_reply(&site, later(wait)).await).await;
        while real_now() < home && parked(&site).await < 10 {}
        let is_told = cancel(&config).await;
        if real_now() < home {
            return (site, replica, is_told);
        }
    }
    panic!("{kill:?}: the jobs came home before they were cancelled");
}

/// Waits until no message is left, without any request, and with replies for all.
async fn all_are_cancelled(site: &Site, kill: &Kill, more_replies: &RangeInclusive<usize>) {
    let replica = site.replica().await;
    let mut ids = Vec::new();
    until("every job to be answered, and no message to be left", LONG, async || {
        ids.extend(replied(site).await);
        ids.iter().collect::<BTreeSet<_>>().len() == JOBS && left(site).await == 0
    })
    .await;
    assert_eq!(replica.stop().await, 0);
    assert_eq!(left(site).await, 0, "{kill:?}");
    assert_eq!(site.api.count(), 0, "{kill:?}: a cancelled job was sent");
    ids.extend(replied(site).await);
    kill.copies("replies", more_replies, ids.iter().map(String::as_str));
}

#[tokio::test]
async fn a_kill_while_jobs_are_cancelled_sends_none() {
    // First the reply is confirmed, then the job is acked.
    let points =
        [("cancel:kept", NONE), ("reply:publish=4", NONE), ("cancel:settle=4", ONE), ("cancel:acked=4", ANY)];
    each(BOTH, &points, async |kill, more_replies| {
        let site = kill.site("killcancel", "").await;
        let config = with_admin(&site);
        let replica = kill.replica(&config).await;
        let is_told = cancel(&config).await;
        assert_eq!(is_told, kill.point != "cancel:kept", "{kill:?}");
        let jobs = with_reply(&site, Job::many("job", JOBS)).await;
        if is_told {
            site.publish(jobs).await;
            kill.wait_exit(&replica).await;
        } else {
            // A job that is cancelled in the store is never sent, although nobody got an answer that says so.
            kill.wait_exit(&replica).await;
            site.publish(jobs).await;
        }
        all_are_cancelled(&site, &kill, &more_replies).await;
    })
    .await;
}

#[tokio::test]
async fn a_kill_while_parked_jobs_are_cancelled_sends_none() {
    let points = [
        ("cancel:kept", NONE),
        ("home:taken=4", NONE),
        ("reply:publish=4", NONE),
        ("cancel:settle=4", ONE),
        ("cancel:acked=4", ANY),
    ];
    each(BOTH, &points, async |kill, more_replies| {
        let (site, replica, is_told) = cancelled_while_parked(&kill).await;
        assert_eq!(is_told, kill.point != "cancel:kept", "{kill:?}");
        kill.wait_exit(&replica).await;
        all_are_cancelled(&site, &kill, &more_replies).await;
    })
    .await;
}
