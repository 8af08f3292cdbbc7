//! The settlement of a job: it is tried again, settled, or refused.

use bytes::Bytes;

use super::*;
use crate::dispatch::Report;
use crate::sink::{Outcome, Response};

#[tokio::test(start_paused = true)]
async fn a_failed_job_is_tried_again_at_a_new_slot() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.sink.answer("0", retry(503));
    bench.sink.answer("0", retry(503));
    bench.publish_many(0..1);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [0, 1001, 2002], "1 ms of sending and 1 s of backoff each");
    let [Settled::Acked(report)] = &bench.ledger.of("0")[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!((report.attempts, report.status), (3, Some(200)));
}

#[tokio::test(start_paused = true)]
async fn the_last_failure_and_a_final_status_are_dead_letters() {
    let mut bench = Bench::new("10/s", QUICK);
    for _ in 0..3 {
        bench.sink.answer("0", retry(503));
    }
    bench.sink.answer("1", dead(404));
    bench.publish_many(0..3);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let [Settled::Dead(letter)] = &bench.ledger.of("0")[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!(letter.reason, Reason::AttemptsExhausted);
    assert_eq!((letter.report.attempts, letter.report.status), (3, Some(503)));
    let [Settled::Dead(letter)] = &bench.ledger.of("1")[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!((letter.reason, letter.report.attempts), (Reason::Status, 1));
    assert!(matches!(bench.ledger.of("2")[..], [Settled::Acked(_)]));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_has_the_answer_that_its_job_died_of() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.max_throttled = Some(1);
    let response_of = |status, excerpt: &'static str| {
        let excerpt = Bytes::from_static(excerpt.as_bytes());
        Some(Response { status, excerpt, ..Response::default() })
    };
    let failed = |excerpt| {
        let (detail, response) = ("status 503".to_owned(), response_of(503, excerpt));
        Outcome::Retry { reason: "status", detail, status: Some(503), after: None, response }
    };
    for excerpt in ["first", "second", "third"] {
        bench.sink.answer("worn", failed(excerpt));
    }
    bench.sink.answer("silent", failed("first"));
    bench.sink.answer("silent", failed("second"));
    let detail = "no answer".to_owned();
    let timed_out = Outcome::Retry { reason: "timeout", detail, status: None, after: None, response: None };
    bench.sink.answer("silent", timed_out);
    let (reason, detail) = (Reason::Status, "status 404".to_owned());
    let response = response_of(404, "no such thing");
    bench.sink.answer("final", Outcome::Dead { reason, detail, status: Some(404), response });
    let (detail, response) = ("slow down".to_owned(), response_of(200, "not now"));
    bench.sink.answer(
        "throttled",
        Outcome::Throttled { detail, status: 200, after: None, is_final: false, response },
    );
    let jobs = [
        ("worn", Some(503), "third"),
        ("silent", None, ""),
        ("final", Some(404), "no such thing"),
        // The status of a success does not show the death, but the body does.
        ("throttled", None, "not now"),
    ];
    jobs.iter().for_each(|(id, ..)| bench.publish(message(id)));
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    for (id, status, response) in jobs {
        let letter = bench.ledger.letter(id);
        assert_eq!((letter.report.status, &letter.response[..]), (status, response.as_bytes()), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_downstream_that_asks_for_patience_costs_no_attempt() {
    for (max_throttled, times, delivered) in [(None, 20, true), (Some(5), 4, true), (Some(5), 5, false)] {
        let mut bench = Bench::new("10/s", QUICK);
        bench.options.retry.max_throttled = max_throttled;
        for _ in 0..times {
            bench.sink.answer("0", throttled(None));
        }
        bench.sink.answer("0", retry(500));
        bench.sink.answer("0", retry(500));
        bench.publish_many(0..1);
        let done = bench.start();
        bench.end();
        done.await.unwrap();
        match &bench.ledger.of("0")[..] {
            [Settled::Acked(report)] if delivered => assert_eq!(report.attempts, times + 3),
            [Settled::Dead(letter)] if !delivered => {
                assert_eq!(letter.reason, Reason::AttemptsExhausted);
                assert_eq!((letter.report.attempts, letter.report.status), (times, Some(429)));
            }
            other => panic!("{max_throttled:?}, {times}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_downstream_that_cannot_be_reached_costs_no_attempt_unless_somebody_waits_for_the_outcome() {
    for outlast in [true, false] {
        let mut bench = Bench::new("10/s", QUICK);
        bench.options.retry.outlast = outlast;
        for _ in 0..4 {
            bench.sink.answer("0", unreachable());
        }
        bench.publish_many(0..1);
        let done = bench.start();
        bench.end();
        done.await.unwrap();
        match &bench.ledger.of("0")[..] {
            [Settled::Acked(report)] if outlast => assert_eq!(report.attempts, 1),
            [Settled::Dead(letter)] if !outlast => {
                assert_eq!((letter.reason, letter.report.attempts), (Reason::AttemptsExhausted, 3));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bad_messages_never_reach_the_sink_and_block_nobody() {
    let mut bench = Bench::new("100/s", QUICK);
    let header = |name: &str, value: Value| vec![(name.to_owned(), value)];
    let text = |text: &'static str| Value::Text(text.into());
    for good in 0..20 {
        bench.publish(message(&format!("good{good}")));
        let bad = message(&format!("bad{good}"));
        bench.publish(match good % 3 {
            0 => Message { headers: header("paced-nope", text("x")), ..bad },
            1 => Message { headers: header("paced-path", text("../x")), ..bad },
            _ => Message { content: Bytes::from(vec![0; 101]).into(), ..bad },
        });
    }
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert!(bench.sink.ids().iter().all(|id| id.starts_with("good")));
    assert_eq!(bench.sink.millis(start).last(), Some(&190), "no slot was spent on them");
    for bad in 0..20 {
        let expected = [Reason::UnknownHeader, Reason::ForbiddenPath, Reason::BodyTooLarge][bad % 3];
        let settled = bench.ledger.of(&format!("bad{bad}"));
        let [Settled::Dead(letter)] = &settled[..] else { panic!("{settled:?}") };
        assert_eq!(letter.reason, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn deadlines_and_starts_are_kept() {
    let mut bench = Bench::new("100/s", QUICK);
    let millis = |at: i64| Value::Integer((wall_now().0 / 1000 + at).into());
    let header = |name: &str, value: Value| vec![(name.to_owned(), value)];
    bench.publish(Message { headers: header("paced-deadline", millis(-1000)), ..message("past") });
    bench.publish(Message { headers: header("paced-not-before", millis(60_000)), ..message("later") });
    bench.publish(message("now"));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["now", "later"]);
    let waited = bench.sink.millis(start)[1];
    assert!((59_000..=60_020).contains(&waited), "{waited}");
    let [Settled::Dead(letter)] = &bench.ledger.of("past")[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!(letter.reason, Reason::Expired);
}

#[tokio::test(start_paused = true)]
async fn what_expires_while_it_waits_takes_no_slot() {
    let mut bench = Bench::new("1/s", QUICK);
    let deadline = wall_now().0 / 1000 + 500;
    bench.options.horizon = QUICK;
    bench.publish_many(0..1);
    for id in 1..=20 {
        let headers = vec![("paced-deadline".to_owned(), Value::Integer(deadline.into()))];
        bench.publish(Message { headers, ..message(&id.to_string()) });
    }
    bench.publish(message("good"));
    let done = bench.start();
    bench.sink.arrived(1).await;
    let start = Instant::now();
    tokio::time::sleep(Duration::from_millis(501)).await;
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "good"]);
    assert!(start.elapsed() <= Duration::from_millis(1100), "one slot later: {:?}", start.elapsed());
    assert_eq!(bench.ledger.all().iter().filter(|(_, how)| matches!(how, Settled::Dead(_))).count(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_nobody_takes_holds_up_no_other_job() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.concurrency = 1;
    bench.publish(Message { reply_to: Some(NOWHERE.to_owned()), ..message("stuck") });
    bench.publish_many(0..5);
    let _running = bench.start();
    tokio::time::timeout(Duration::from_secs(60), bench.ledger.count(5)).await.expect("the others continue");
    assert_eq!(bench.ledger.of("stuck"), [], "neither acked nor lost");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_an_outcome_gets_one() {
    let mut bench = Bench::new("100/s", QUICK);
    let asking = |id: &str| Message { reply_to: Some("replies".to_owned()), ..message(id) };
    bench.sink.answer("dead", dead(404));
    bench.publish(asking("good"));
    bench.publish(asking("dead"));
    bench.publish(Message { headers: vec![("paced-nope".to_owned(), Value::Bool(true))], ..asking("bad") });
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let reply = |id: &str| match &bench.ledger.of(id)[..] {
        [Settled::Replied(reply), Settled::Acked(_) | Settled::Dead(_)] => reply.clone(),
        other => panic!("{id}: {other:?}"),
    };
    assert_eq!((reply("good").trim(), reply("dead").trim()), ("200", "404"));
    assert!(reply("bad").starts_with("0 unknown-header: "), "{}", reply("bad"));
}

#[tokio::test(start_paused = true)]
async fn stale_retries_do_not_keep_a_dispatcher_whose_source_has_ended() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.backoff.min = Duration::from_secs(3600);
    bench.sink.answer("0", retry(503));
    bench.publish_many(0..1);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.tickets.live.store(false, Ordering::SeqCst);
    bench.end();
    done.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// It is unknown whether the work was done: each repetition may do it again.
#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_can_read_is_asked_for_once_more() {
    let mut bench = Bench::new("100/s", QUICK);
    let unreadable = || Outcome::Unreadable { detail: "the answer cannot be parsed: x".to_owned() };
    bench.sink.answer("once", unreadable());
    bench.sink.answer("always", unreadable());
    bench.sink.answer("always", unreadable());
    bench.publish(message("once"));
    bench.publish(message("always"));
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["once", "always", "once", "always"]);
    assert!(matches!(bench.ledger.of("once")[..], [Settled::Acked(Report { attempts: 2, .. })]));
    let letter = bench.ledger.letter("always");
    assert_eq!((letter.reason, letter.report.attempts, letter.report.status), (Reason::Status, 2, None));
    assert_eq!(letter.detail, "api:443: the answer cannot be parsed: x", "it names the host");
}
