//! What people see of lanes.

use super::*;
use crate::dispatch::Binding;

#[tokio::test(start_paused = true)]
async fn the_busiest_lanes_are_published_with_what_they_wait_for() {
    let mut bench = bench("10/s", &[]);
    plan(&mut bench, "slow", leaky("plan.slow.l", "1/m", 1));
    (0..50).for_each(|number| bench.publish(on("slow", job("slow", "e", number))));
    publish(&bench, "a", "e", 30);
    publish(&bench, "b", "e", 25);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(5).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let lanes = bench.view().snapshot().backlog.lanes.clone();
    let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(names, ["tenant=slow&endpoint=e", "tenant=a&endpoint=e", "tenant=b&endpoint=e"]);
    assert_eq!(lanes[0].waiting, 49, "one was sent");
    let Some(Binding::Limit { name, next: Some(next) }) = &lanes[0].binding else { panic!("{lanes:?}") };
    let apart = *next - start;
    assert!(name == "plan.slow.l" && apart >= Duration::from_secs(59), "{lanes:?}");
    assert!(lanes[1].binding.is_none() && lanes[2].binding.is_none(), "their turn: {lanes:?}");
    assert!(lanes[2].oldest > lanes[1].oldest && lanes[1].oldest > lanes[0].oldest, "{lanes:?}");
    bench.sink.arrived(56).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let lanes = bench.view().snapshot().backlog.lanes.clone();
    assert_eq!(lanes.len(), 1, "the others have no jobs any more: {lanes:?}");
}

#[tokio::test(start_paused = true)]
async fn without_lanes_there_are_no_busiest_ones() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.publish_many(0..50);
    let _running = bench.start();
    bench.sink.arrived(5).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let snapshot = bench.view().snapshot();
    assert!(snapshot.backlog.oldest.is_some() && snapshot.backlog.lanes.is_empty(), "{snapshot:?}");
}
