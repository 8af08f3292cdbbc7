//! A command that is killed while it brings parked jobs home.

use super::*;
use crate::park::waiting;

const PLAN: &str = "[plans.free]\n\
                    limits = [{ algorithm = 'fixed-window', anchor = 'first-hit', rate = '1/30d', name = 'monthly' }]";

#[tokio::test]
async fn a_kill_while_parked_jobs_come_home_leaves_each_there_or_brings_it_home_once() {
    // Before any is rejected, and when some are.
    let points = [("unpark:rejecting", false), ("unpark:rejecting=2", true)];
    each(&[Window::Wide], &points, async |kill, some_are_home| {
        let site = kill.site("killunpark", PLAN).await;
        let replica = site.replica().await;
        let of_plan = |job: Job| job.header("paced-plan", "free");
        site.publish(Job::many("job", JOBS).into_iter().map(of_plan).collect()).await;
        let all_wait = async || waiting(&site).await as usize + site.api.count() == JOBS;
        until("all but those that the plan allows to wait", LONG, all_wait).await;
        assert_eq!(replica.stop().await, 0);
        let (before, sent) = (waiting(&site).await, site.api.count());

        let killed = site.cli_with(&["unpark", "billing"], &[(FAIL_AT, kill.point)]).await;
        assert_ne!(killed.code, 0, "{kill:?}: {killed:?}");
        let home = format!("{}.home.billing", site.prefix);
        let at_home = async || publish::depth(&site.amqp, &home).await.unwrap_or(0);
        // The broker gives back what was not rejected once it knows of the end.
        until("each to be in one of the queues", LONG, async || {
            waiting(&site).await + at_home().await == before
        })
        .await;
        assert_eq!(at_home().await > 0, some_are_home, "{kill:?}");
        let rest = site.cli(&["unpark", "billing"]).await;
        assert_eq!(rest.code, 0, "{kill:?}: {rest:?}");
        site.depth(&home, before, LONG).await;
        assert_eq!(waiting(&site).await, 0, "{kill:?}");

        let raised = site.config().replace("'1/30d'", "'1000/30d'");
        let replica = Paced::start(&raised, &["-v"], &[]).await;
        let arrivals = site.api.wait_for(JOBS, LONG).await;
        site.depth(&home, 0, LONG).await;
        assert_eq!(replica.stop().await, 0);
        kill.print_log(&replica);
        assert!(sent <= 1 && site.api.count() == JOBS, "{kill:?}: each once");
        let ids: BTreeSet<&str> = arrivals.iter().map(|arrival| arrival.id()).collect();
        assert_eq!(ids.len(), JOBS, "{kill:?}: {ids:?}");
    })
    .await;
}
