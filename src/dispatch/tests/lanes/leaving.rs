//! Jobs that leave without a slot. The dispatcher does not ask again and again for a lane without jobs, and the lanes
//! behind it continue.

use super::*;
use crate::store::TombstoneCall;

const SECOND: Duration = Duration::from_secs(1);

async fn cancel(bench: &Bench, id: &str) {
    let call = TombstoneCall::Cancel { ids: &[Arc::from(id)], span: 3600 * SECOND };
    bench.store.inner().tombstones("billing", call).await.unwrap();
}

/// Lets the instant pass at which the lane would have been asked for, in the middle of `time`.
async fn rests(bench: &Bench, time: Duration) {
    let polls = bench.pass(time).await;
    assert!(polls < 400, "polled {polls} times in {time:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_once_the_last_job_has_left() {
    for ends in [false, true] {
        let mut bench = bench("1/m", &[]);
        bench.options.max_wait = ends.then_some(20 * SECOND);
        publish(&bench, "a", "e", 2);
        let _running = bench.start();
        bench.sink.arrived(1).await;
        tokio::time::sleep(10 * SECOND).await;
        if !ends {
            cancel(&bench, "a/e/1").await;
        }
        tokio::time::sleep(49 * SECOND).await;
        assert_eq!(bench.ledger.all().len(), 2, "the second job has left");
        rests(&bench, 2 * SECOND).await;
        publish(&bench, "b", "e", 1);
        bench.pass(SECOND).await;
        assert_eq!(bench.sink.ids(), ["a/e/0", "b/e/0"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_waits_behind_one_whose_job_was_cancelled_goes_on() {
    let mut bench = bench("6/m", &[(leaky("lane.t", "5/s", 1), &[0])]);
    publish(&bench, "a", "x", 3);
    publish(&bench, "a", "y", 1);
    let _running = bench.start();
    bench.sink.arrived(1).await;
    tokio::time::sleep(SECOND).await;
    cancel(&bench, "a/y/0").await;
    tokio::time::sleep(8 * SECOND).await;
    rests(&bench, 2 * SECOND).await;
    assert_eq!(bench.sink.ids(), ["a/x/0", "a/x/1"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_once_all_jobs_of_a_lane_are_parked() {
    let mut bench = bench("100/s", &[(leaky("lane.l", "1/h", 1), &[0, 1])]);
    bench.tickets.parking = ScriptedParking::Done;
    publish(&bench, "a", "e", 5);
    let _running = bench.start();
    tokio::time::sleep(3599 * SECOND).await;
    assert_eq!(bench.ledger.all().len(), 5, "one went, and the others are parked");
    rests(&bench, 2 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn whichever_jobs_leave_the_others_go_on() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let tenants = leaky("lane.t", "10/s", random.u32(1..4));
        let lanes = leaky("lane.l", "6/s", random.u32(1..3));
        let mut bench = bench("40/s", &[(tenants, &[0]), (lanes, &[0, 1])]);
        let mut ids = vec![];
        for number in 0..60 {
            let (tenant, endpoint) = (random.u8(0..3), random.u8(0..4));
            let job = job(&tenant.to_string(), &endpoint.to_string(), number);
            ids.extend(job.message_id.clone());
            bench.publish(Message { priority: Some(random.u8(0..3)), ..job });
        }
        let _running = bench.start();
        let mut polls = 0;
        for _ in 0..20 {
            polls += bench.pass(Duration::from_millis(random.u64(1..150))).await;
            cancel(&bench, &ids[random.usize(0..ids.len())]).await;
        }
        polls += bench.pass(8 * SECOND).await;
        let settled = bench.ledger.all().len();
        assert_eq!(settled, ids.len(), "seed {seed}: the others stand");
        assert!(polls < 4000, "seed {seed}: polled {polls} times");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_went_back_is_there_for_the_next_job_of_its_lane() {
    let mut bench = bench("1/s", &[(leaky("lane.l", "1/h", 1), &[0, 1])]);
    bench.options.horizon = 10 * SECOND;
    for tenant in ["a", "b", "c"] {
        publish(&bench, tenant, "e", 1);
    }
    let _running = bench.start();
    tokio::time::sleep(SECOND / 100).await;
    let before = calls(&bench);
    tokio::time::sleep(SECOND / 20).await;
    assert_eq!(calls(&bench), before, "all hold slots by now");
    cancel(&bench, "c/e/0").await;
    tokio::time::sleep(SECOND / 10).await;
    assert!(matches!(bench.ledger.of("c/e/0")[..], [Settled::Discarded(_)]));
    bench.publish(job("c", "e", 1));
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(bench.sink.ids(), ["a/e/0", "b/e/0", "c/e/1"]);
}

/// Its slot is kept until the answer to a call is there. By then a new lane may have the place of one without jobs.
#[tokio::test(start_paused = true)]
async fn the_slot_of_a_cancelled_job_goes_to_no_other_lane() {
    // As many as it takes until lanes without jobs are forgotten, and then some.
    const LANES: usize = 1100;
    let millis = Duration::from_millis;
    let mut bench = bench("20/s", &[(leaky("lane.l", "1/h", 1), &[0, 1])]);
    bench.options.horizon = 10 * SECOND;
    (0..12).for_each(|endpoint| publish(&bench, "old", &endpoint.to_string(), 1));
    let _running = bench.start();
    tokio::time::sleep(millis(10)).await;
    assert_eq!(calls(&bench), 1, "all hold slots by now");
    bench.store.farther.store(400_000, Ordering::SeqCst);
    publish(&bench, "next", "e", 1);
    tokio::time::sleep(millis(5)).await;
    assert_eq!(calls(&bench), 2, "it is under way");
    bench.store.farther.store(0, Ordering::SeqCst);
    cancel(&bench, "old/11/0").await;
    tokio::time::sleep(millis(100)).await;
    assert!(matches!(bench.ledger.of("old/11/0")[..], [Settled::Discarded(_)]));
    (0..LANES).for_each(|endpoint| publish(&bench, "new", &endpoint.to_string(), 2));
    let all = bench.sink.arrived(11 + 1 + LANES);
    assert!(tokio::time::timeout(600 * SECOND, all).await.is_ok(), "{} were sent", bench.sink.count());
    tokio::time::sleep(5 * SECOND).await;
    let ids = bench.sink.ids();
    let new = ids.iter().filter(|id| id.starts_with("new/"));
    let mut lanes: Vec<&str> = new.filter_map(|id| Some(id.rsplit_once('/')?.0)).collect();
    lanes.sort_unstable();
    let sent = lanes.len();
    lanes.dedup();
    assert_eq!((sent, lanes.len()), (LANES, LANES), "each has one an hour");
}
