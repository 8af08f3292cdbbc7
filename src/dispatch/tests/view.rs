//! The view of a dispatcher: how many jobs wait for what, and what binds.

use std::sync::atomic::AtomicUsize;

use super::pauses::update_record;
use super::*;
use crate::dispatch::{Binding, Snapshot};
use crate::limit::Limit;
use crate::sink::{Outcome, Response};

const SECOND: Duration = Duration::from_secs(1);

/// Lets a dispatcher publish what it has, and returns it.
async fn snapshot(bench: &Bench) -> Arc<Snapshot> {
    tokio::time::sleep(Duration::from_millis(600)).await;
    bench.view().snapshot()
}

#[tokio::test(start_paused = true)]
async fn who_has_nothing_to_do_is_idle_and_makes_no_more_turns_for_it() {
    let mut bench = Bench::new("100/s", QUICK);
    let _done = bench.start();
    let first = snapshot(&bench).await;
    assert_eq!(first.binding, Binding::Idle);
    tokio::time::sleep(100 * SECOND).await;
    assert!(Arc::ptr_eq(&first, &bench.view().snapshot()), "nothing is published anew");
}

#[tokio::test(start_paused = true)]
async fn the_limit_that_holds_jobs_back_is_named_and_jobs_are_counted() {
    let mut bench = Bench::new("2/s", QUICK);
    bench.publish_many(0..10);
    let start = Instant::now();
    let _done = bench.start();
    let snapshot = snapshot(&bench).await;
    assert_eq!(snapshot.binding.limit(), Some("leaky-bucket-0"));
    let counts = snapshot.counts;
    assert_eq!((counts.waiting + counts.held, counts.delayed, counts.retrying), (8, 0, 0), "{counts:?}");
    assert!(snapshot.backlog.oldest.is_some() && snapshot.since >= start);
    assert_eq!((bench.view().totals().released(), bench.view().totals().delivered()), (2, 2));
    assert_eq!(snapshot.pace(), Some(2.0));
    assert_eq!(snapshot.delay(8), 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn of_several_limits_the_one_that_is_used_up_is_named_with_its_end() {
    let mut bench = Bench::new("100/s", QUICK);
    let pace = bench.options.limits.iter().next().unwrap().clone();
    let window = Limit::fixed_window("window", 5, 60 * SECOND).unwrap();
    bench.options.limits = LimitSet::new(vec![pace, window]).unwrap();
    bench.publish_many(0..10);
    // Not shortly before the window ends.
    let into = Duration::from_micros(wall_now().0.unsigned_abs() % 60_000_000);
    tokio::time::sleep(60 * SECOND - into).await;
    let _done = bench.start();
    let snapshot = snapshot(&bench).await;
    assert_eq!((snapshot.binding.limit(), snapshot.counts.waiting), (Some("window"), 5), "{snapshot:?}");
    let until = snapshot.binding.until().unwrap();
    assert!(until > Instant::now() && until <= Instant::now() + 60 * SECOND);
    assert_eq!(snapshot.pace(), Some(100.0), "a window is no pace, though it allows 5/m in the long run");
}

#[tokio::test(start_paused = true)]
async fn where_each_call_grants_all_that_it_asks_for_the_slowest_limit_is_named() {
    let mut bench = Bench::new("1000/s", QUICK);
    let fast = bench.options.limits.iter().next().unwrap().clone();
    let slow = Limit::leaky_bucket("slow", "200/s".parse().unwrap(), 1).unwrap();
    bench.options.limits = LimitSet::new(vec![fast, slow]).unwrap();
    bench.publish_many(0..1000);
    let _done = bench.start();
    for _ in 0..5 {
        assert_eq!(snapshot(&bench).await.binding.limit(), Some("slow"));
    }
}

#[tokio::test(start_paused = true)]
async fn concurrency_binds_where_sends_take_long() {
    let mut bench = Bench::new("1000/s", 100 * SECOND);
    bench.options.concurrency = 3;
    bench.publish_many(0..10);
    let _done = bench.start();
    let snapshot = snapshot(&bench).await;
    assert_eq!(snapshot.binding, Binding::Concurrency);
    assert_eq!((snapshot.counts.sending, snapshot.counts.waiting), (3, 7));
}

#[tokio::test(start_paused = true)]
async fn pauses_are_distinguished_and_end() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.sink.answer("0", throttled(Some(30 * SECOND)));
    bench.publish_many(0..100);
    let start = Instant::now();
    let _done = bench.start();
    let throttled = snapshot(&bench).await;
    assert!(
        matches!(throttled.binding, Binding::Throttled { until: Some(until) } if until > start + 29 * SECOND)
    );
    update_record(&bench, Change::Pause { span: None, note: "" }).await;
    assert_eq!(snapshot(&bench).await.binding, Binding::Paused { until: None });
    update_record(&bench, Change::Resume).await;
    bench.ledger.count(100).await;
    assert_eq!(snapshot(&bench).await.binding, Binding::Idle);
}

#[tokio::test(start_paused = true)]
async fn jobs_that_may_only_go_later_are_distinguished() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.backoff = crate::dispatch::Backoff { min: 30 * SECOND, max: 30 * SECOND };
    bench.sink.answer("again", retry(500));
    let later = Value::Integer((wall_now().0 / 1000 + 20_000).into());
    bench.publish(Message { headers: vec![("paced-not-before".to_owned(), later)], ..message("later") });
    bench.publish(message("again"));
    let start = Instant::now();
    let _done = bench.start();
    let snapshot = snapshot(&bench).await;
    assert_eq!((snapshot.counts.delayed, snapshot.counts.retrying, snapshot.counts.waiting), (1, 1, 0));
    let Binding::NotDue { until } = snapshot.binding else { panic!("{snapshot:?}") };
    assert!(until > start + 19 * SECOND && until < start + 21 * SECOND);
    assert_eq!(snapshot.failures.len(), 1);
    assert_eq!((snapshot.failures[0].kind.as_str(), snapshot.outage.is_some()), ("500", false));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_binds_and_says_why() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish_many(0..10);
    let _done = bench.start();
    let away = snapshot(&bench).await;
    assert_eq!(away.binding, Binding::Store { releases: false });
    assert!(away.store_error.is_some());
    bench.store.away.store(false, Ordering::SeqCst);
    bench.ledger.count(10).await;
    let back = snapshot(&bench).await;
    assert_eq!((&back.binding, &back.store_error), (&Binding::Idle, &None));
}

#[tokio::test(start_paused = true)]
async fn an_api_that_only_answers_429_is_shown_as_failing_with_its_answer() {
    let mut bench = Bench::new("100/s", QUICK);
    let answers = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&answers);
    bench.sink.answer_by(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let excerpt = bytes::Bytes::from_static(b"{\"error\": \"slow down\"}");
        let response = Some(Response { status: 429, excerpt, ..Response::default() });
        let detail = "the downstream answered 429 Too Many Requests".to_owned();
        Some(Outcome::Throttled { detail, status: 429, after: None, is_final: false, response })
    });
    bench.publish_many(0..20);
    let _done = bench.start();
    // The first probes of the cool-down.
    tokio::time::sleep(10 * SECOND).await;
    let snapshot = snapshot(&bench).await;
    let outage = snapshot.outage.as_ref().unwrap();
    let kinds: Vec<(&str, u64)> =
        outage.kinds.iter().map(|known| (known.kind.as_str(), known.count)).collect();
    let answers = u64::try_from(answers.load(Ordering::SeqCst)).unwrap();
    assert_eq!((kinds, outage.attempts), (vec![("429", answers)], answers));
    assert!(answers >= 3, "{answers}");
    let [failure] = snapshot.failures.as_slice() else { panic!("{snapshot:?}") };
    assert_eq!(failure.response.as_deref(), Some(&b"{\"error\": \"slow down\"}"[..]));
}

#[tokio::test(start_paused = true)]
async fn an_api_that_cannot_be_reached_is_shown_as_such() {
    let mut bench = Bench::new("100/s", QUICK);
    (0..10).for_each(|id| bench.sink.answer(&id.to_string(), unreachable()));
    bench.publish_many(0..10);
    let _done = bench.start();
    bench.sink.arrived(3).await;
    tokio::time::sleep(QUICK * 300).await;
    let snapshot = bench.view().snapshot();
    let outage = snapshot.outage.as_ref().unwrap();
    assert_eq!((outage.kind.as_str(), outage.attempts >= 3), ("connect api:443", true), "{snapshot:?}");
}
