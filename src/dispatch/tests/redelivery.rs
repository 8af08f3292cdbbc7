//! Messages that are delivered again while they are being sent.

use bytes::Bytes;

use super::*;

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
