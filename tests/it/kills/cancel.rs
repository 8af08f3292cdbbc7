//! A replica that is killed while it settles cancelled jobs.

use crate::support::daemon::run_cli;
use crate::support::servers::free_port;

use super::*;

/// Starts a replica that ends at the point, and cancels the jobs; returns whether the command could say that it did.
async fn cancelled(site: &Site, kill: &Kill, jobs: Option<Vec<Job>>) -> (Paced, bool) {
    let port = free_port();
    let admin = format!("[admin]\nlisten = '127.0.0.1:{port}'\ntoken = 'kills-0123456789abcdef'");
    let config = format!("{admin}\n{}", site.config());
    let replica = kill.replica(&config).await;
    if let Some(jobs) = jobs {
        site.publish(jobs).await;
        until("all jobs to be parked", LONG, async || parked(site).await == 10).await;
    }
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, &config).unwrap();
    let ids: Vec<String> = (0..JOBS).map(|n| format!("job-{n}")).collect();
    let mut args = vec!["-c", file.to_str().unwrap(), "cancel", "billing"];
    args.extend(ids.iter().map(String::as_str));
    let done = run_cli(&args, b"").await;
    (replica, done.code == 0)
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
        [("cancel:kept", NONE), ("reply:publish=4", NONE), ("cancel:settle=4", ONE), ("cancel:acked=4", ONE)];
    each(BOTH, &points, async |kill, more_replies| {
        let site = kill.site("killcancel", "").await;
        let (replica, is_told) = cancelled(&site, &kill, None).await;
        assert_eq!(is_told, kill.point != "cancel:kept", "{kill:?}");
        let jobs = with_reply(&site, Job::many("job", JOBS)).await;
        if is_told {
            site.publish(jobs).await;
            kill.wait_exit(&replica).await;
        } else {
            // A job that is cancelled in the store is never sent, although nobody was told so.
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
        ("cancel:acked=4", ONE),
    ];
    each(BOTH, &points, async |kill, more_replies| {
        let site = kill.site("killparked", "hold_max = '1s'").await;
        let jobs = with_reply(&site, later()).await;
        let (replica, is_told) = cancelled(&site, &kill, Some(jobs)).await;
        assert_eq!(is_told, kill.point != "cancel:kept", "{kill:?}");
        kill.wait_exit(&replica).await;
        all_are_cancelled(&site, &kill, &more_replies).await;
    })
    .await;
}
