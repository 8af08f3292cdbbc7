//! A stop: jobs that wait are given back, and sends in progress may end.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_stop_gives_back_what_waits_and_finishes_what_is_being_sent() {
    let mut bench = Bench::new("100/s", Duration::from_secs(5));
    bench.publish_many(0..30);
    let done = bench.start();
    bench.sink.arrived(3).await;
    bench.stop.cancel();
    assert_eq!(done.await.unwrap().unfinished, 0);
    let sent = bench.sink.ids();
    assert!(sent.len() < 30);
    for id in 0..30 {
        let id = id.to_string();
        let settled = bench.ledger.of(&id);
        if sent.contains(&id) {
            assert!(matches!(settled[..], [Settled::Acked(_)]), "{id}: {settled:?}");
        } else {
            assert_eq!(settled, [Settled::Back], "{id}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_in_time_and_says_what_it_left() {
    let mut bench = Bench::new("100/s", Duration::from_secs(60));
    bench.publish_many(0..2);
    let done = bench.start();
    bench.sink.arrived(2).await;
    let start = Instant::now();
    bench.stop.cancel();
    assert_eq!(done.await.unwrap().unfinished, 2);
    assert_eq!(start.elapsed(), Duration::from_secs(25));
    assert!(bench.ledger.all().is_empty(), "neither acked nor given back: the broker delivers them again");
}

#[tokio::test(start_paused = true)]
async fn a_failure_during_the_drain_goes_back() {
    let mut bench = Bench::new("100/s", Duration::from_secs(1));
    bench.sink.answer("0", retry(503));
    bench.publish_many(0..1);
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.stop.cancel();
    done.await.unwrap();
    assert_eq!(bench.ledger.of("0"), [Settled::Back]);
}
