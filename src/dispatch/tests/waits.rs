//! How long jobs wait: for their first slot, at most until `max_wait`, and for another attempt.

use super::*;
use crate::dispatch::{Backoff, RetryPolicy};
use crate::sink::{AnswerPolicy, Outcome};

const SECOND: Duration = Duration::from_secs(1);

/// The ids of the jobs that became dead letters for this reason.
fn dead_of(bench: &Bench, reason: Reason) -> Vec<String> {
    let is_meant = |settled: &Settled| matches!(settled, Settled::Dead(letter) if letter.reason == reason);
    bench.ledger.all().into_iter().filter(|(_, settled)| is_meant(settled)).map(|(id, _)| id).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_that_would_wait_for_too_long_are_refused_at_once() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.max_wait = Some(5 * SECOND);
    bench.publish_many(0..150);
    let start = Instant::now();
    let done = bench.start();
    bench.ledger.count(90).await;
    assert!(start.elapsed() < SECOND, "what cannot go in time gets its answer at once");
    let refused = dead_of(&bench, Reason::QueueFull);
    bench.end();
    done.await.unwrap();
    let (at_once, refused) = (refused.len(), dead_of(&bench, Reason::QueueFull));
    assert!(
        refused.len() <= at_once + 2,
        "the others have slots in time, but for those at the edge: {refused:?}"
    );
    let (sent, all) = (bench.sink.ids(), 150);
    assert!((48..=52).contains(&sent.len()), "{}", sent.len());
    assert_eq!(sent.len() + refused.len(), all);
    let first: Vec<String> = (0..sent.len()).map(|id| id.to_string()).collect();
    assert_eq!(sent, first, "those at the end of the queue are refused");
    assert!(bench.sink.millis(start).iter().all(|at| *at <= 5000));
    let letter = bench.ledger.letter("149");
    assert_eq!(letter.report.attempts, 0);
    assert!(letter.detail.contains("max_wait (5s); try again in "), "{}", letter.detail);
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_no_longer_because_it_was_made_earlier() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.max_wait = Some(10 * SECOND);
    let made = |id: &str, ago: u64| {
        let now = u64::try_from(wall_now().0 / 1_000_000).unwrap();
        Message { timestamp: Some(now - ago), ..message(id) }
    };
    bench.publish(made("old", 3600));
    bench.publish(Message { timestamp: Some(0), ..message("without-a-clock") });
    bench.publish(made("new", 2));
    let ahead = Message { timestamp: Some(u64::MAX), ..message("ahead") };
    bench.publish(ahead);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["without-a-clock", "new", "ahead"]);
    assert_eq!(dead_of(&bench, Reason::QueueFull), ["old"]);
}

#[tokio::test(start_paused = true)]
async fn the_wait_of_a_job_begins_when_it_may_go_and_ends_with_its_first_attempt() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.max_wait = Some(2 * SECOND);
    let start = Instant::now();
    let millis = i128::from(wall_now().plus(30 * SECOND).0 / 1000);
    let headers = vec![("paced-not-before".to_owned(), Value::Integer(millis))];
    bench.publish(Message { headers, ..message("later") });
    bench.sink.answer("tried", throttled(Some(20 * SECOND)));
    bench.publish(message("tried"));
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["tried", "tried", "later"]);
    let released = bench.sink.millis(start);
    assert!(matches!(released[..], [0, 20_000..=20_200, 29_000..=30_200]), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_bound_of_the_wait_counts_for_the_jobs_that_come_then() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.publish_many(0..50);
    let done = bench.start();
    bench.ledger.count(1).await;
    let mut options = bench.options.clone();
    options.max_wait = Some(2 * SECOND);
    bench.control().reload(options);
    bench.ledger.count(2).await;
    bench.publish_many(50..60);
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.count(), 50);
    assert_eq!(dead_of(&bench, Reason::QueueFull).len(), 10);
}

#[tokio::test(start_paused = true)]
async fn statuses_are_tried_again_as_configured() {
    let mut bench = Bench::new("100/s", QUICK);
    let (on, never) = ("404".parse().unwrap(), "429".parse().unwrap());
    bench.options.retry.answers = AnswerPolicy { on, never, ..AnswerPolicy::default() };
    let after = Some(5 * SECOND);
    bench.sink.answer("again", dead(404));
    bench.sink.answer("final", retry(503));
    let detail = "status 429".to_owned();
    bench
        .sink
        .answer("pauses", Outcome::Throttled { detail, status: 429, after, is_final: false, response: None });
    for id in ["again", "final", "pauses"] {
        bench.publish(message(id));
    }
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["again", "final", "pauses", "again"]);
    let mut dead = dead_of(&bench, Reason::Status);
    dead.sort_unstable();
    assert_eq!(dead, ["final", "pauses"]);
    let last = bench.sink.millis(start)[3];
    assert!(last >= 5000, "the downstream asked all to wait, also if that job ends: {last}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_too_old_is_not_tried_again() {
    let mut bench = Bench::new("100/s", QUICK);
    let policy = RetryPolicy { max_attempts: 1000, max_age: Some(30 * SECOND), ..bench.options.retry };
    bench.options.retry = policy;
    let now = u64::try_from(wall_now().0 / 1_000_000).unwrap();
    bench.sink.answer("old", retry(503));
    bench.sink.answer("young", retry(503));
    bench.publish(Message { timestamp: Some(now - 60), ..message("old") });
    bench.publish(Message { timestamp: Some(now), ..message("young") });
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let letter = bench.ledger.letter("old");
    assert_eq!((letter.reason, letter.report.attempts), (Reason::AttemptsExhausted, 1));
    assert!(letter.detail.contains("retry.max_age (30s)"), "{}", letter.detail);
    assert_eq!(bench.sink.ids(), ["old", "young", "young"]);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_in_a_backoff_ends_it() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.backoff = Backoff { min: 20 * SECOND, max: 20 * SECOND };
    bench.sink.answer("expires", retry(503));
    let (start, deadline) = (Instant::now(), wall_now().0 / 1000 + 500);
    let headers = vec![("paced-deadline".to_owned(), Value::Integer(deadline.into()))];
    bench.publish(Message { headers, ..message("expires") });
    let done = bench.start();
    bench.sink.arrived(1).await;
    // By then it waits for its next attempt.
    tokio::time::sleep_until(start + Duration::from_millis(499)).await;
    assert_eq!(dead_of(&bench, Reason::Expired), [""; 0]);
    bench.ledger.count(1).await;
    assert!(start.elapsed() < SECOND, "it does not wait for an attempt that it cannot have");
    bench.end();
    done.await.unwrap();
    let letter = bench.ledger.letter("expires");
    assert_eq!((letter.reason, letter.report.attempts), (Reason::Expired, 1));
    assert_eq!(bench.sink.ids(), ["expires"]);
}

#[tokio::test(start_paused = true)]
async fn jobs_whose_connection_was_lost_stand_before_nobody() {
    let mut bench = Bench::new("1/s", QUICK);
    bench.options.max_wait = Some(90 * SECOND);
    bench.publish_many(0..60);
    let done = bench.start();
    bench.ledger.count(1).await;
    bench.reconnect();
    // Each waits here twice now, and both together are more than go in time.
    for id in 1..60 {
        bench.publish_again(message(&id.to_string()), &id.to_string());
    }
    bench.end();
    done.await.unwrap();
    assert_eq!(dead_of(&bench, Reason::QueueFull), [""; 0]);
    let ids: Vec<String> = (0..60).map(|id| id.to_string()).collect();
    assert_eq!(bench.sink.ids(), ids);
}

/// Whether the loop takes a turn within this time, asked again and again for ten minutes.
async fn turns_within(bench: &Bench, span: Duration) -> bool {
    let end = Instant::now() + 600 * SECOND;
    while Instant::now() < end {
        if tokio::time::timeout(span, bench.control().turn()).await.is_err() {
            return false;
        }
        tokio::time::sleep(5 * SECOND).await;
    }
    true
}

#[tokio::test(start_paused = true)]
async fn a_loop_turns_during_every_wait_of_its_jobs() {
    let mut idle = Bench::new("100/s", QUICK);
    let _idle = idle.start();
    assert!(turns_within(&idle, SECOND).await, "nothing to do");

    let mut used = Bench::new("100/s", QUICK);
    let pace = used.options.limits.iter().next().unwrap().clone();
    let day = Limit::fixed_window("day", 5, 86_400 * SECOND).unwrap();
    used.options.limits = LimitSet::new(vec![pace, day]).unwrap();
    used.publish_many(0..10);
    let _used = used.start();
    used.sink.arrived(5).await;
    assert!(turns_within(&used, SECOND).await, "a quota that is used up");
    used.store.away.store(true, Ordering::SeqCst);
    assert!(turns_within(&used, SECOND).await, "the store is away besides");

    let mut busy = Bench::new("100/s", 3_600 * SECOND);
    busy.options.concurrency = 1;
    busy.publish_many(0..10);
    let _busy = busy.start();
    busy.sink.arrived(1).await;
    assert!(turns_within(&busy, SECOND).await, "an API that does not answer");

    let mut paused = Bench::new("100/s", QUICK);
    let pause = Change::Pause { span: None, note: "" };
    paused.store.update_record("billing", pause).await.unwrap();
    paused.publish_many(0..10);
    let _paused = paused.start();
    assert!(turns_within(&paused, SECOND).await, "a pause");
    assert!(paused.sink.ids().is_empty());
}
