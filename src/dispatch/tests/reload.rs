//! Options that change while jobs are in progress.

use futures_util::FutureExt as _;

use super::*;
use crate::dispatch::Options;
use crate::dispatch::control::ControlEnd;

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

/// Another downstream may consume a queue since, which then takes no replies.
#[tokio::test(start_paused = true)]
async fn the_queues_that_take_replies_follow_what_is_reloaded() {
    let mut bench = Bench::new("1000/s", QUICK);
    let done = bench.start();
    let asking = |id: &str| Message { reply_to: Some("orders".to_owned()), ..message(id) };
    bench.publish(asking("before"));
    bench.ledger.count(2).await;
    let mut options = bench.options.clone();
    options.rules.reply.consumed = Arc::new(["orders".to_owned()].into());
    bench.control().reload(options);
    bench.publish(asking("after"));
    bench.end();
    done.await.unwrap();
    assert!(matches!(&bench.ledger.of("before")[..], [Settled::Replied(_), Settled::Acked(_)]));
    assert!(matches!(bench.ledger.of("after").last(), Some(Settled::Dead(_))));
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

#[test]
fn options_are_taken_once_and_the_last_of_several_applies() {
    let mut end = ControlEnd::default();
    let control = end.control();
    for concurrency in [1, 2] {
        let options = Bench::new("10/s", Duration::ZERO).options;
        control.reload(Options { concurrency, ..options });
    }
    assert!(end.changed().now_or_never().is_some());
    assert_eq!(end.take().and_then(|given| given.options).map(|options| options.concurrency), Some(2));
    assert!(control.turn().now_or_never().is_none());
    assert!(end.changed().now_or_never().is_some());
    assert!(end.take().is_none() && end.changed().now_or_never().is_none());
}
