//! Messages that are delivered again while they are being sent.

use bytes::Bytes;

use super::*;
use crate::dispatch::{Backoff, Drained};

mod parked;

const TAKES: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn what_is_delivered_again_waits_for_the_send_that_is_under_way() {
    let mut bench = Bench::new("100/s", TAKES);
    let job = || Message { reply_to: Some("replies".to_owned()), ..message("a") };
    bench.publish(job());
    let _running = bench.start();
    bench.sink.arrived(1).await;
    let start = Instant::now();
    bench.reconnect();
    bench.publish_again(job(), "again");
    bench.publish(message("b"));
    bench.sink.arrived(2).await;
    assert!(start.elapsed() < Duration::from_millis(100), "it holds up nobody");
    bench.ledger.count(3).await;
    assert_eq!(bench.sink.ids(), ["a", "b"]);
    let again = bench.ledger.of("again");
    let [Settled::Replied(_), Settled::Acked(report)] = &again[..] else { panic!("{again:?}") };
    assert_eq!((report.attempts, bench.ledger.of("a")), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_send_that_fails_goes_on_as_the_message_that_was_delivered_again() {
    let mut bench = Bench::new("100/s", TAKES);
    bench.sink.answer("a", retry(503));
    bench.sink.answer("b", dead(400));
    bench.publish(message("a"));
    bench.publish(message("b"));
    let _running = bench.start();
    bench.sink.arrived(2).await;
    bench.reconnect();
    bench.publish_again(message("a"), "a again");
    bench.publish_again(message("b"), "b again");
    bench.ledger.count(2).await;
    assert_eq!(bench.sink.ids(), ["a", "b", "a"]);
    let again = bench.ledger.of("a again");
    let [Settled::Acked(report)] = &again[..] else { panic!("{again:?}") };
    assert_eq!(report.attempts, 2, "the first attempt counts");
    assert_eq!(bench.ledger.letter("b again").reason, Reason::Status);
}

#[tokio::test(start_paused = true)]
async fn each_send_stands_for_one_message() {
    // Jobs without an id are distinguished by all other fields.
    for id in [Some("a".to_owned()), None] {
        let mut bench = Bench::new("100/s", TAKES);
        let job = || Message { message_id: id.clone(), ..message("") };
        bench.publish(job());
        bench.publish(job());
        let _running = bench.start();
        bench.sink.arrived(2).await;
        // A message that comes through the same channel is another one.
        bench.publish_again(job(), "same channel");
        bench.sink.arrived(3).await;
        bench.reconnect();
        for label in ["first", "second", "third", "fourth"] {
            bench.publish_again(job(), label);
        }
        bench.publish(Message { content: Bytes::from_static(b"[]").into(), ..job() });
        bench.publish(job());
        bench.ledger.count(6).await;
        assert_eq!(bench.sink.count(), 3 + 1 + 2, "the fourth, and those that are new");
        for label in ["first", "second", "third", "fourth"] {
            assert!(matches!(bench.ledger.of(label)[..], [Settled::Acked(_)]), "{label}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_differs_is_sent() {
    let mut bench = Bench::new("100/s", TAKES);
    bench.publish(message("a"));
    let _running = bench.start();
    bench.sink.arrived(1).await;
    bench.reconnect();
    let text = |text: &'static str| Value::Text(Bytes::from_static(text.as_bytes()));
    let typed = Content { content_type: Some("text/csv".to_owned()), ..message("a").content };
    for (number, other) in [
        message("b"),
        Message { message_id: None, ..message("") },
        Message { content: Bytes::from_static(b"[]").into(), ..message("a") },
        Message { content: typed, ..message("a") },
        Message { reply_to: Some("replies".to_owned()), ..message("a") },
        Message { headers: vec![("paced-path".to_owned(), text("x"))], ..message("a") },
        Message { headers: vec![("paced-cost".to_owned(), Value::Integer(2))], ..message("a") },
    ]
    .into_iter()
    .enumerate()
    {
        bench.publish_again(other, "other");
        bench.sink.arrived(2 + number).await;
    }
    bench.publish_again(message("a"), "again");
    bench.ledger.count(8).await;
    assert_eq!(bench.sink.count(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_channel_is_lost_twice_is_still_sent_once() {
    let mut bench = Bench::new("100/s", TAKES);
    bench.publish(message("a"));
    let _running = bench.start();
    bench.sink.arrived(1).await;
    for (number, label) in ["second", "third", "fourth"].into_iter().enumerate() {
        bench.reconnect();
        bench.publish_again(message("a"), label);
        // A job behind it shows that it was taken in.
        bench.publish(message("next"));
        bench.sink.arrived(number + 2).await;
    }
    bench.ledger.count(2).await;
    assert_eq!(bench.sink.ids(), ["a", "next", "next", "next"]);
    let settled = ["a", "second", "third", "fourth"].map(|label| bench.ledger.of(label).len());
    assert_eq!(settled, [0, 0, 0, 1], "by the ticket that is still good");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_again_behind_its_deadline_waits_for_its_send_too() {
    let mut bench = Bench::new("100/s", TAKES);
    let deadline = wall_now().0 / 1000 + 500;
    let headers = vec![("paced-deadline".to_owned(), Value::Integer(deadline.into()))];
    let job = || Message { headers: headers.clone(), ..message("a") };
    bench.publish(job());
    let _running = bench.start();
    bench.sink.arrived(1).await;
    tokio::time::sleep(Duration::from_millis(501)).await;
    bench.reconnect();
    bench.publish_again(job(), "again");
    bench.ledger.count(1).await;
    assert!(matches!(bench.ledger.of("again")[..], [Settled::Acked(_)]), "{:?}", bench.ledger);
    bench.publish_again(job(), "late");
    bench.ledger.count(2).await;
    assert_eq!(bench.ledger.letter("late").reason, Reason::Expired);
}

/// A dispatcher and its source, which lost the channel of `a` while its reply waited.
async fn unreplied(reply_to: &str) -> (Bench, tokio_util::task::AbortOnDropHandle<Drained>) {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish(Message { reply_to: Some(reply_to.to_owned()), ..message("a") });
    let running = bench.start();
    bench.sink.arrived(1).await;
    // Its reply is not confirmed, as while the broker has an alarm, until its `consumer_timeout` ends the channel.
    tokio::time::sleep(Duration::from_secs(1800)).await;
    bench.reconnect();
    tokio::time::sleep(Duration::from_secs(10)).await;
    (bench, running)
}

#[tokio::test(start_paused = true)]
async fn what_was_delivered_and_not_acked_is_acked_when_it_comes_again() {
    let mut bench = Bench::new("100/s", TAKES);
    bench.publish(message("a"));
    let _running = bench.start();
    bench.sink.arrived(1).await;
    bench.reconnect();
    // It has ended by then, and found its channel lost.
    tokio::time::sleep(2 * TAKES).await;
    bench.publish_again(message("a"), "again");
    bench.ledger.count(1).await;
    let again = bench.ledger.of("again");
    let [Settled::Acked(report)] = &again[..] else { panic!("{again:?}") };
    assert_eq!((report.attempts, report.status, bench.sink.count()), (1, Some(200), 1));
    // That was all that this replica knew of it: the next one is another job.
    bench.reconnect();
    bench.publish_again(message("a"), "another");
    bench.ledger.count(2).await;
    assert_eq!(bench.sink.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_could_not_be_published_is_when_its_message_comes_again() {
    let asking = || Message { reply_to: Some(LATER.to_owned()), ..message("a") };
    let (bench, _running) = unreplied(LATER).await;
    bench.publish_again(asking(), "again");
    bench.ledger.count(2).await;
    let again = bench.ledger.of("again");
    let [Settled::Replied(reply), Settled::Acked(report)] = &again[..] else { panic!("{again:?}") };
    assert_eq!(
        (&reply[..3], report.attempts, report.status),
        ("200", 1, Some(200)),
        "the answer that it had"
    );
    assert_eq!((bench.sink.count(), bench.ledger.of("a")), (1, vec![]), "it is not sent again");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_replied_yet_is_not_acked_and_nobody_elses() {
    let (bench, _running) = unreplied(NOWHERE).await;
    // Another job with the same id is sent, and so is one that is not flagged; both may be a stranger's.
    let asking = || Message { reply_to: Some(NOWHERE.to_owned()), ..message("a") };
    bench.publish_again(Message { content: Bytes::from_static(b"[]").into(), ..asking() }, "other");
    bench.publish(asking());
    bench.sink.arrived(3).await;
    bench.publish_again(asking(), "again");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.sink.count(), 3, "it is not sent again");
    assert_eq!(bench.ledger.all(), [], "and not acked without the reply");
}

#[tokio::test(start_paused = true)]
async fn what_was_done_is_remembered_for_an_hour() {
    for (wait, sent) in [(3500, 1), (3700, 2)] {
        let mut bench = Bench::new("100/s", TAKES);
        bench.publish(message("a"));
        let _running = bench.start();
        bench.sink.arrived(1).await;
        bench.reconnect();
        tokio::time::sleep(Duration::from_secs(wait)).await;
        bench.publish_again(message("a"), "again");
        bench.ledger.count(1).await;
        assert_eq!(bench.sink.count(), sent, "{wait} s");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_count_on_and_the_wait_goes_on_when_a_message_comes_again() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.backoff = Backoff { min: Duration::from_secs(60), max: Duration::from_secs(60) };
    (0..3).for_each(|_| bench.sink.answer("a", retry(503)));
    bench.publish(message("a"));
    let _running = bench.start();
    let start = Instant::now();
    bench.sink.arrived(1).await;
    for (number, label) in ["second", "third"].into_iter().enumerate() {
        tokio::time::sleep(Duration::from_secs(5)).await;
        bench.reconnect();
        bench.publish_again(message("a"), label);
        bench.sink.arrived(number + 2).await;
    }
    bench.ledger.count(1).await;
    let letter = bench.ledger.letter("third");
    assert_eq!((letter.reason, letter.report.attempts), (Reason::AttemptsExhausted, 3));
    let waits: Vec<_> = bench.sink.millis(start).windows(2).map(|pair| (pair[1] - pair[0]) / 1000).collect();
    assert_eq!(waits, [60, 60]);
}

#[tokio::test(start_paused = true)]
async fn attempts_of_what_waits_here_are_nobody_elses() {
    let mut bench = Bench::new("100/s", QUICK);
    (0..6).for_each(|_| bench.sink.answer("a", retry(503)));
    bench.publish(message("a"));
    let _running = bench.start();
    bench.sink.arrived(1).await;
    // Its channel lives, as where the other one comes from another queue.
    tokio::time::sleep(Duration::from_millis(10)).await;
    bench.another_channel();
    bench.publish_again(message("a"), "stranger");
    bench.ledger.count(2).await;
    let attempts = |label| bench.ledger.letter(label).report.attempts;
    assert_eq!(bench.sink.count(), 6);
    assert_eq!((attempts("a"), attempts("stranger")), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_are_remembered() {
    let mut bench = Bench::new("1000/s", TAKES);
    bench.options.concurrency = 2000;
    bench.publish_many(0..1200);
    let _running = bench.start();
    bench.sink.arrived(1200).await;
    bench.reconnect();
    tokio::time::sleep(2 * TAKES).await;
    for id in 0..1200 {
        bench.publish_again(message(&id.to_string()), &format!("again {id}"));
    }
    bench.ledger.count(1200).await;
    assert_eq!(bench.sink.count(), 1200 + 200, "those that were sent first are forgotten");
}

/// A dispatcher and its source, which lost the channel of `a` before its dead letter.
async fn unburied() -> (Bench, tokio_util::task::AbortOnDropHandle<Drained>) {
    let mut bench = Bench::new("100/s", TAKES);
    bench.sink.answer("a", dead(400));
    bench.publish(message("a"));
    let running = bench.start();
    bench.sink.arrived(1).await;
    bench.reconnect();
    tokio::time::sleep(2 * TAKES).await;
    (bench, running)
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_owed_for_minutes() {
    for (wait, sent) in [(280, 1), (300, 2)] {
        let (bench, _running) = unburied().await;
        tokio::time::sleep(Duration::from_secs(wait)).await;
        bench.publish_again(message("a"), "again");
        bench.ledger.count(1).await;
        assert_eq!(bench.sink.count(), sent, "{wait} s");
        if sent == 1 {
            assert_eq!(bench.ledger.letter("again").reason, Reason::Status);
        } else {
            assert!(matches!(bench.ledger.of("again")[..], [Settled::Acked(_)]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_replayed_is_not_taken_for_the_dead_one() {
    let (mut bench, _running) = unburied().await;
    // Its letter was made elsewhere, and published as a job again.
    bench.publish(message("a"));
    bench.sink.arrived(2).await;
    bench.ledger.count(1).await;
    bench.reconnect();
    // The replay of another replica, which gave it back.
    bench.publish_again(message("a"), "given back");
    bench.ledger.count(2).await;
    assert_eq!(bench.sink.count(), 3);
    assert!(matches!(bench.ledger.of("given back")[..], [Settled::Acked(_)]));
}
