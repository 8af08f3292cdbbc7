//! Known pauses, usage and limits hold while the store is away.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_pause_counts_without_the_store_too() {
    for on_unavailable in [OnUnavailable::Local, OnUnavailable::Open] {
        let mut bench = Bench::new("100/s", QUICK);
        bench.options.on_unavailable = on_unavailable;
        bench.options.concurrency = 1;
        bench.publish_many(0..500);
        bench.sink.answer("100", throttled(Some(3 * SECOND)));
        let start = Instant::now();
        let _running = bench.start();
        bench.sink.arrived(50).await;
        away(std::slice::from_ref(&bench), true);
        bench.sink.arrived(101).await;
        let asked = (Instant::now() - start).as_millis();
        bench.sink.arrived(200).await;
        let released = bench.sink.millis(start);
        assert!(released[101] >= asked + 3001 && released[101] <= asked + 3020, "{released:?}");
        let calls = calls(std::slice::from_ref(&bench));
        assert!(calls < 200, "{calls}: it does not spin");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_used_of_a_window_stays_used() {
    let limit = Limit::fixed_window("w", 100, 10 * SECOND).unwrap();
    let mut benches = replicas(&limit, OnUnavailable::Local, 0);
    // The run starts at the edge of a window.
    let now = benches[0].store.inner().ping().await.unwrap();
    let edge = Duration::from_micros(10_000_000 - now.0.rem_euclid(10_000_000).unsigned_abs());
    tokio::time::sleep(edge).await;
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    for batch in 0..3 {
        for bench in &benches {
            bench.publish_many(batch * 5..batch * 5 + 5);
        }
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(all_millis(&benches, start).len(), 60);
    away(&benches, true);
    for bench in &benches {
        bench.publish_many(15..100);
    }
    tokio::time::sleep(6 * SECOND).await;
    let used = all_millis(&benches, start).len();
    assert!((85..=100).contains(&used), "{used} of 100");
    tokio::time::sleep(10 * SECOND).await;
    let all = all_millis(&benches, start);
    assert!((96..=100).contains(&between(&all, 10_000, 19_000)), "{}", between(&all, 10_000, 19_000));
}

#[tokio::test(start_paused = true)]
async fn policers_know_of_each_other_too() {
    let limit = Limit::fixed_window("w", 100, 3600 * SECOND).unwrap();
    let mut benches = replicas(&limit, OnUnavailable::Local, 0);
    for bench in &mut benches {
        bench.options.on_limit = OnLimit::Reject;
    }
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(90 * SECOND).await;
    away(&benches, true);
    // One job of each detects that the store is away, and waits for no answer.
    tokio::time::sleep(30 * SECOND).await;
    for bench in &benches {
        bench.publish_many(0..100);
    }
    for bench in &benches {
        bench.ledger.count(100).await;
    }
    let sent: Vec<usize> = benches.iter().map(|bench| bench.sink.count()).collect();
    assert_eq!(sent, [25; 4]);
}

#[tokio::test(start_paused = true)]
async fn other_options_count_while_the_store_is_away() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.on_unavailable = OnUnavailable::Open;
    bench.publish_many(0..100_000);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(20).await;
    away(std::slice::from_ref(&bench), true);
    bench.sink.arrived(1000).await;
    let mut options = bench.options.clone();
    options.on_unavailable = OnUnavailable::Local;
    bench.control().reload(options.clone());
    // It begins after at most a horizon and a slot.
    let from = (Instant::now() - start).as_millis() + 120;
    tokio::time::sleep(3 * SECOND).await;
    let local = between(&bench.sink.millis(start), from, from + 2000);
    assert!((195..=205).contains(&local), "{local} in 2 s of 100/s");
    options.on_unavailable = OnUnavailable::Hold;
    bench.control().reload(options);
    tokio::time::sleep(SECOND).await;
    let sent = bench.sink.count();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(bench.sink.count(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_is_set_for_a_while_ends_without_the_store_too() {
    let mut bench = Bench::new("20/s", QUICK);
    bench.options.on_unavailable = OnUnavailable::Local;
    bench.publish_many(0..1000);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(5).await;
    let mut terms = bench.options.terms();
    let looked = bench.store.inner().read_record("billing").await.unwrap();
    let rate = "100/s".parse().unwrap();
    let until = Some(looked.now.plus(3 * SECOND));
    terms.set_rate(None, Override { rate, until, reason: None, by: None, set_at: looked.now }).unwrap();
    let change = Change::Terms { of: looked.status.generation, text: &terms.to_text() };
    bench.store.inner().update_record("billing", change).await.unwrap();
    tokio::time::sleep(SECOND).await;
    away(std::slice::from_ref(&bench), true);
    tokio::time::sleep(6 * SECOND).await;
    let all = bench.sink.millis(start);
    let (fast, slow) = (between(&all, 1500, 3000), between(&all, 4000, 7000));
    assert!((148..=152).contains(&fast), "{fast} in 1.5 s of 100/s");
    assert!((58..=62).contains(&slow), "{slow} in 3 s of 20/s");
}
