//! A stop: jobs that wait are given back, and sends in progress may end.

use tokio_util::sync::CancellationToken;

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

/// The slots that are held come for a quarter of a second more, or for as long as the drain may take; no others are asked for.
#[tokio::test(start_paused = true)]
async fn jobs_whose_slots_come_soon_after_a_stop_are_sent() {
    for (drain_timeout, last) in [(25_000, 250), (100, 100)] {
        let mut bench = Bench::new("20/s", QUICK);
        bench.options.horizon = Duration::from_secs(2);
        bench.options.drain_timeout = Duration::from_millis(drain_timeout);
        bench.publish_many(0..100);
        let start = Instant::now();
        let done = bench.start();
        bench.sink.arrived(3).await;
        let calls = bench.store.calls.load(Ordering::SeqCst);
        bench.stop.cancel();
        bench.publish_many(100..101);
        done.await.unwrap();
        let expected: Vec<u128> = (0..).map(|slot| 50 * slot).take_while(|at| *at <= 100 + last).collect();
        assert_eq!(bench.sink.millis(start), expected);
        // What goes back to the store is no call for slots, but the probe that ends the lease counts as one.
        assert!(bench.store.calls.load(Ordering::SeqCst) - calls <= 1);
        assert_eq!(bench.ledger.of("100"), [Settled::Back]);
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

/// One that ends alone has as long as a request may take. Nothing is sent twice for a drain that was too short.
#[tokio::test(start_paused = true)]
async fn while_the_process_runs_on_a_send_may_take_as_long_as_a_request() {
    // When the process is stopped after the end of the dispatcher, in seconds; how many have not ended, and when it ends.
    for (stopped_after, unfinished, ends) in [(None, 0, 60), (Some(5), 2, 30), (Some(50), 0, 60)] {
        let mut bench = Bench::new("100/s", Duration::from_secs(60));
        bench.publish_many(0..2);
        let stop = CancellationToken::new();
        let done = bench.start_among(Duration::from_secs(65), stop.clone());
        bench.sink.arrived(2).await;
        let start = Instant::now();
        bench.stop.cancel();
        if let Some(after) = stopped_after {
            tokio::time::sleep(Duration::from_secs(after)).await;
            stop.cancel();
        }
        assert_eq!(done.await.unwrap().unfinished, unfinished, "{stopped_after:?}");
        assert_eq!((start.elapsed() + QUICK).as_secs(), ends, "{stopped_after:?}");
        let settled = bench.ledger.all().len();
        assert_eq!(settled, 2 - unfinished, "{stopped_after:?}");
    }
    // A request that takes longer than it may is not waited for.
    let mut bench = Bench::new("100/s", Duration::from_secs(600));
    bench.publish_many(0..1);
    let done = bench.start_among(Duration::from_secs(65), CancellationToken::new());
    bench.sink.arrived(1).await;
    bench.stop.cancel();
    assert_eq!(done.await.unwrap().unfinished, 1);
}

/// The work of such a job is done or under way: handed over once more, it would be done twice.
#[tokio::test(start_paused = true)]
async fn successes_that_still_arrive_count_as_delivered_when_the_drain_ends() {
    for (is_stream, ends) in [(true, 0), (false, 24_500)] {
        let mut bench = Bench::new("100/s", QUICK);
        bench.sink.answer_endlessly(is_stream);
        bench.publish_many(0..2);
        let done = bench.start();
        bench.sink.arrived(2).await;
        tokio::time::sleep(QUICK * 2).await;
        assert!(bench.ledger.all().is_empty(), "they are waited for");
        let start = Instant::now();
        bench.stop.cancel();
        assert_eq!(done.await.unwrap().unfinished, 0);
        assert_eq!(start.elapsed().as_millis() / 500 * 500, ends, "a stream of events: {is_stream}");
        for id in ["0", "1"] {
            assert!(matches!(bench.ledger.of(id)[..], [Settled::Acked(_)]), "{id}");
        }
    }
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
