//! Limits that police: a job is released at once, or is rejected.

use super::*;
use crate::dispatch::OnLimit;
use crate::limit::{Limit, LimitSet};

fn bench(limit: Limit) -> Bench {
    let mut bench = Bench::new("1/s", QUICK);
    bench.options.limits = LimitSet::new(vec![limit]).unwrap();
    bench.options.on_limit = OnLimit::Reject;
    bench
}

fn gcra(burst: u32) -> Limit {
    Limit::gcra("gcra-0", "10/s".parse().unwrap(), burst).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_rejected_at_once() {
    let mut bench = bench(gcra(20));
    bench.publish_many(0..50);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), (0..20).map(|id| id.to_string()).collect::<Vec<_>>());
    assert_eq!(bench.sink.millis(start), [0; 20], "nobody waits");
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    for id in 20..50 {
        let letter = bench.ledger.letter(&id.to_string());
        assert_eq!((letter.reason, letter.report.attempts), (Reason::Rejected, 0));
    }
    let detail = bench.ledger.letter("20").detail;
    let (before, at) = detail.split_once("it allows this job from ").unwrap();
    assert_eq!(before, "the limit `gcra-0` is used up; ");
    let at: jiff::Timestamp = at.strip_suffix(" on").unwrap().parse().unwrap();
    let ahead = at.as_microsecond() - wall_now().0;
    assert!((-1_000_000..=100_000).contains(&ahead), "{ahead} us from now: an interval after its check");
}

#[tokio::test(start_paused = true)]
async fn one_call_decides_for_many() {
    let mut bench = bench(gcra(5));
    bench.options.concurrency = 2000;
    bench.publish_many(0..1000);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!((bench.sink.count(), bench.ledger.all().len()), (5, 1000));
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 40, "{calls} calls: one for as many as are taken in at once");
}

#[tokio::test(start_paused = true)]
async fn no_more_are_asked_for_than_can_be_sent() {
    let mut bench = Bench::new("1/s", Duration::from_millis(100));
    bench.options.limits = LimitSet::new(vec![gcra(1000)]).unwrap();
    bench.options.on_limit = OnLimit::Reject;
    bench.options.concurrency = 10;
    bench.publish_many(0..100);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.count(), 100, "a job that finds no place waits for one");
    assert_eq!(bench.sink.most.load(Ordering::SeqCst), 10);
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_polices_as_a_meter_and_costs_count_in_full() {
    let mut bench = bench(Limit::leaky_bucket("leaky-bucket-0", "1/s".parse().unwrap(), 5).unwrap());
    let cost = |cost: i128| vec![("paced-cost".to_owned(), Value::Integer(cost))];
    bench.publish(Message { headers: cost(3), ..message("three") });
    bench.publish(Message { headers: cost(3), ..message("three-more") });
    bench.publish(Message { headers: cost(2), ..message("two") });
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["three", "two"], "what does not fit hinders no other");
    assert_eq!(bench.ledger.letter("three-more").reason, Reason::Rejected);
}

/// A leaky bucket that shapes charges any cost behind, and holds no more than its burst when it polices.
#[tokio::test(start_paused = true)]
async fn what_never_fits_is_no_job_and_holds_up_no_other() {
    let mut bench = bench(Limit::leaky_bucket("rate", "10/s".parse().unwrap(), 1).unwrap());
    bench.publish(message("one"));
    bench.publish(Message { headers: vec![("paced-cost".to_owned(), Value::Integer(5))], ..message("five") });
    let done = bench.start();
    bench.end();
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("nothing is held for ever").unwrap();
    assert_eq!(bench.sink.ids(), ["one"]);
    let letter = bench.ledger.letter("five");
    assert_eq!(letter.reason, Reason::CostTooLarge);
    assert_eq!(
        letter.detail,
        "`paced-cost` is 5; `max_cost` is 1, what the limit `rate` holds: split the job"
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_decided_again() {
    let mut bench = bench(Limit::fixed_window("window", 2, Duration::from_secs(3600)).unwrap());
    for id in ["0", "1"] {
        bench.sink.answer(id, retry(503));
    }
    bench.publish_many(0..1);
    let done = bench.start();
    bench.ledger.count(1).await;
    assert!(matches!(bench.ledger.of("0")[..], [Settled::Acked(_)]), "the second of two units");
    bench.publish_many(1..2);
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.ledger.letter("1").reason, Reason::Rejected);

    let mut bench = self::bench(Limit::fixed_window("window", 1, Duration::from_secs(3600)).unwrap());
    bench.sink.answer("0", retry(503));
    bench.publish_many(0..1);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let letter = bench.ledger.letter("0");
    assert_eq!((letter.reason, letter.report.attempts), (Reason::Rejected, 1));
    assert!(letter.detail.starts_with("the limit `window` is used up; "), "{}", letter.detail);
}

#[tokio::test(start_paused = true)]
async fn an_allowed_job_waits_for_its_connection_and_is_charged_once() {
    let mut bench = bench(gcra(1));
    *bench.sink.connections.connects.lock().unwrap() = vec![Duration::from_secs(20)];
    bench.publish_many(0..1);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [20_000]);
    assert_eq!(bench.store.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_rejected_because_the_store_is_away() {
    let mut bench = bench(gcra(5));
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish_many(0..10);
    let done = bench.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(bench.ledger.all().is_empty() && bench.sink.ids().is_empty());
    bench.store.away.store(false, Ordering::SeqCst);
    bench.end();
    done.await.unwrap();
    assert_eq!((bench.sink.count(), bench.ledger.all().len()), (5, 10));
}
