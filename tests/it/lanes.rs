//! Lanes on real servers: none blocks another, also where the API throttles it, and they share by weight.

use crate::pace::{begin_at_once, slots};
use crate::support::LONG;
use crate::support::api::Answer;
use crate::support::publish::{self, Job};
use crate::support::site::{Site, slots_missed};

/// Jobs of a lane.
fn of(lane: &str, count: usize) -> Vec<Job> {
    Job::many(&format!("{lane}-"), count).into_iter().map(|job| job.header("paced-lane", lane)).collect()
}

/// How many of the first arrivals are of this lane.
fn share(site: &Site, first: usize, lane: &str) -> usize {
    let arrivals = site.api.arrivals();
    arrivals[..first].iter().filter(|arrival| arrival.id().starts_with(&format!("{lane}-"))).count()
}

#[tokio::test]
async fn a_lane_of_one_a_minute_with_500_jobs_at_the_head_blocks_no_other() {
    const OTHERS: usize = 400;
    let keys = "rate = '100/s'\nhorizon = '5s'\nqueue.prefetch = 900\nhold_max = '10m'\n\
                lanes.by = { tenant = 'header:paced-lane' }";
    let mut site = Site::shared("lane", keys).await;
    site.http = "[plans.slow]\nlimits = [{ rate = '1/m' }]".to_owned();
    let jobs = || {
        let slow = of("slow", 500).into_iter().map(|job| job.header("paced-plan", "slow"));
        slow.chain(["a", "b", "c", "d"].into_iter().flat_map(|lane| of(lane, OTHERS / 4))).collect()
    };
    let [replica] = begin_at_once(&site, 500 + OTHERS, jobs).await;
    site.api.wait_for(OTHERS + 1, LONG).await;
    let missed = slots_missed(&[&replica]).await;
    assert_eq!(share(&site, OTHERS + 1, "slow"), 1);
    for lane in ["a", "b", "c", "d"] {
        assert_eq!(share(&site, OTHERS + 1, lane), OTHERS / 4);
    }
    assert_eq!(replica.stop().await, 0);
    let slots = slots(&[&replica]);
    // Where a busy machine missed the first slot of the slow lane, its next one is a minute later: the last of all.
    let (took, all) = (slots[OTHERS - 1] - slots[0], u64::try_from(OTHERS + missed).unwrap());
    assert!(took <= all * 10_200, "{took} us for {all} slots of 10 ms");
    assert!(slots.windows(2).all(|pair| pair[1] - pair[0] >= 10_000), "the downstream's own limit");
}

#[tokio::test]
async fn three_saturated_lanes_share_by_weight() {
    const JOBS: usize = 450;
    let keys = "rate = '200/s'\nhorizon = '1s'\nqueue.prefetch = 900\nconcurrency = 300\nhold_max = '10m'\n\
                lanes.by = { tenant = 'header:paced-lane' }\nlanes.weights = { a = 5, b = 3 }";
    let site = Site::shared("weights", keys).await;
    let jobs = || ["c", "b", "a"].into_iter().flat_map(|lane| of(lane, 300)).collect();
    let [replica] = begin_at_once(&site, 900, jobs).await;
    site.api.wait_for(JOBS, LONG).await;
    // A slot that a busy machine missed counts for its lane.
    let missed = slots_missed(&[&replica]).await;
    for (lane, parts) in [("a", 5), ("b", 3), ("c", 1)] {
        let got = share(&site, JOBS, lane);
        // One point of all is 4 or 5 jobs.
        assert!(
            (JOBS * parts / 9).abs_diff(got) <= 4 + missed,
            "{lane} got {got} of {JOBS}, {missed} slots missed"
        );
    }
    assert_eq!(replica.stop().await, 0);
}

/// Its pause lasts for five minutes. The test does not wait for the end.
#[tokio::test]
async fn a_tenant_that_the_api_throttles_stops_no_other() {
    const OTHERS: usize = 200;
    let keys = "rate = '100/s'\nqueue.prefetch = 150\nlanes.by = { tenant = 'header:paced-lane' }\n\
                lanes.pause_per = ['tenant']";
    let site = Site::shared("throttled", keys).await;
    site.api.rule(|arrival| match arrival.id().starts_with("bad-") {
        true => Answer::status(429).header("retry-after", 300),
        false => Answer::ok(),
    });
    let jobs = || ["bad", "a", "b"].into_iter().flat_map(|lane| of(lane, OTHERS / 2)).collect();
    let replicas: [_; 2] = begin_at_once(&site, 150, jobs).await;
    let mut bad = 0;
    loop {
        let arrivals = site.api.wait_for(OTHERS + bad, LONG).await;
        let seen = arrivals.iter().filter(|arrival| arrival.id().starts_with("bad-")).count();
        if seen == bad {
            break;
        }
        bad = seen;
    }
    assert!((1..=40).contains(&bad), "{bad} of 100 were sent, some before the first answer");
    for replica in &replicas {
        let warned = |line: &&String| line.contains("throttles these lanes") && line.contains("tenant=bad");
        assert!(replica.log().iter().filter(warned).count() <= 1, "{}", replica.log().join("\n"));
    }
    assert!(replicas.iter().any(|replica| replica.log().join("\n").contains("throttles these lanes")));
    for replica in replicas {
        assert_eq!(replica.stop().await, 0);
    }
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0));
}
