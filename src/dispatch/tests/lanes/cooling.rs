//! Cool-downs: one job at a time is tried, of any lane.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_cool_down_is_probed_by_jobs_of_lanes() {
    let mut bench = limited("50/s");
    let open = Instant::now() + Duration::from_secs(20);
    bench.sink.answer_by(move |_| (Instant::now() < open).then(|| throttled(None)));
    spread(&bench, 0..10);
    let _running = bench.start();
    acked(&bench, 60).await;
    let tries = bench.sink.count();
    assert!(tries <= 60 + 30, "{tries} for 60 jobs: one probe at a time");
}

/// That the plan of one tenant is used up is known to the store alone when a job of that tenant is to be the probe.
#[tokio::test(start_paused = true)]
async fn a_used_up_plan_of_one_tenant_keeps_no_other_tenant_in_a_cool_down() {
    let store = Arc::new(MemoryStore::new());
    let [mut other, mut bench] = [(); 2].map(|()| {
        let mut bench = bench("50/s", &[]);
        plan(&mut bench, "free", leaky("plan.free.l", "1/d", 1));
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::ZERO));
        bench
    });
    other.publish(on("free", job("a", "e", 0)));
    let ended = other.start();
    other.end();
    ended.await.unwrap();
    let open = Instant::now() + 5 * SECOND;
    bench.sink.answer_by(move |_| (Instant::now() < open).then(|| throttled(None)));
    publish(&bench, "b", "e", 5);
    let _running = bench.start();
    bench.sink.arrived(1).await;
    tokio::time::sleep(SECOND / 2).await;
    // Its tenant was granted least, so that it is first.
    bench.publish(on("free", job("a", "e", 1)));
    let went = tokio::time::timeout(60 * SECOND, bench.sink.accepted(5)).await;
    assert!(went.is_ok(), "{:?} in {} calls", bench.sink.ids(), calls(&bench));
    assert!(calls(&bench) < 100, "{} calls", calls(&bench));
    assert_eq!(sent(&bench, "a/", open), [0; 0]);
}
