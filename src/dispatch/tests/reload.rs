//! Options that change while jobs are in progress.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_is_reloaded_counts_from_the_next_slot_on() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.publish_many(0..60);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(10).await;
    let limit = Limit::leaky_bucket("leaky-bucket-0", "100/s".parse().unwrap(), 1).unwrap();
    let mut options = bench.options.clone();
    options.limits = LimitSet::new(vec![limit]).unwrap();
    bench.control().reload(options);
    bench.end();
    assert_eq!(done.await.unwrap().unfinished, 0);
    let released = bench.sink.millis(start);
    assert_eq!(released.len(), 60);
    assert_eq!(released[..10], [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
    // One job was held already, and the next slot of the old pace is taken.
    let fast = &released[12..];
    assert!(fast.windows(2).all(|pair| pair[1] - pair[0] == 10), "{released:?}");
    assert!(released[12] <= 1200, "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn places_and_attempts_follow_what_is_reloaded() {
    let mut bench = Bench::new("1000/s", Duration::from_millis(100));
    bench.options.concurrency = 2;
    bench.publish_many(0..30);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(4).await;
    let mut options = bench.options.clone();
    options.concurrency = 20;
    bench.control().reload(options);
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.most.load(Ordering::SeqCst), 20);
    assert!(start.elapsed() < Duration::from_millis(700), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dispatcher_takes_turns_during_every_wait_until_its_end() {
    let mut bench = Bench::new("1/h", QUICK);
    bench.publish_many(0..5);
    let done = bench.start();
    let control = bench.control();
    for _ in 0..3 {
        tokio::time::timeout(QUICK, control.turn()).await.expect("a turn at once");
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    bench.end();
    assert_eq!(done.await.unwrap().unfinished, 0);
    assert!(tokio::time::timeout(Duration::from_secs(3600), control.turn()).await.is_err());
}
