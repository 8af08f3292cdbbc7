//! Counts that an operator resets while jobs wait.

use tokio::time::sleep;

use super::pauses::{all_millis, densest, replicas, update_record};
use super::*;
use crate::store::Change;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn resets_under_load_keep_the_pace() {
    for burst in [1, 10] {
        let mut benches = replicas("200/s", burst, 400);
        let limits: Vec<Limit> = benches[0].options.limits.iter().cloned().collect();
        let start = Instant::now();
        let _running = benches.each_mut().map(Bench::start);
        for number in 0..60 {
            sleep(Duration::from_millis(37 + number * 11 % 90)).await;
            update_record(&benches[number as usize % 4], Change::Reset { limits: &limits }).await;
        }
        for bench in &benches {
            bench.ledger.count(400).await;
        }
        let all = all_millis(&benches, start);
        assert_eq!(all.len(), 1600, "each once");
        // The burst at the start counts as one.
        let paced = &all[burst as usize - 1..];
        assert!(densest(paced, 1000) <= 201, "burst {burst}: {} in a second", densest(paced, 1000));
        assert!(densest(paced, 100) <= 21, "burst {burst}: {} in 100 ms", densest(paced, 100));
        assert!(all[1599] <= 8_400, "burst {burst}: resets cost no slots, and it took {} ms", all[1599]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_end_of_a_window_goes_on_at_once() {
    let window = || Limit::fixed_window("window", 40, 3600 * SECOND).unwrap();
    let mut benches = replicas("200/s", 1, 40);
    for bench in &mut benches {
        let pace = bench.options.limits.iter().next().cloned();
        bench.options.limits = LimitSet::new(pace.into_iter().chain([window()]).collect()).unwrap();
    }
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    sleep(10 * SECOND).await;
    assert_eq!(all_millis(&benches, start).len(), 40, "the window is used up");
    update_record(&benches[0], Change::Reset { limits: &[window()] }).await;
    sleep(2 * SECOND).await;
    let all = all_millis(&benches, start);
    assert_eq!(all.len(), 80);
    assert!(all[40] <= 10_100, "the first of them after {} ms", all[40]);
    assert!(densest(&all[40..], 100) <= 21, "{all:?}");
    assert!(
        benches.iter().filter(|bench| bench.sink.millis(start).len() > 10).count() > 2,
        "all were notified"
    );
}
