//! The dispatcher's rules, under paused time: every wait is exact, none is slept.

pub(super) mod parts;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Message, Reason, Value};
use crate::store::MemoryStore;
use crate::time::wall_now;
use parts::{Bench, FlakyStore, LateOnce, NOWHERE, Settled, dead, message, retry};

const QUICK: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn each_job_is_released_at_its_slot() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..200);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    assert_eq!(done.await.unwrap().unfinished, 0);
    let expected: Vec<u128> = (0..200).map(|slot| slot * 10).collect();
    assert_eq!(bench.sink.millis(start), expected);
    let ids: Vec<String> = (0..200).map(|id| id.to_string()).collect();
    assert_eq!(bench.sink.ids(), ids, "first in, first out");
    assert_eq!(bench.ledger.all().len(), 200);
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls < 60, "{calls} calls for 200 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_slow_limit_needs_nothing_special() {
    let mut bench = Bench::new("1/h", QUICK);
    bench.publish_many(0..4);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [0, 3_600_000, 7_200_000, 10_800_000]);
    assert!(bench.store.calls.load(Ordering::SeqCst) <= 8);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_sent_at_once_than_allowed_and_no_slot_is_wasted_on_the_rest() {
    let mut bench = Bench::new("1000/s", Duration::from_millis(100));
    bench.options.concurrency = 10;
    bench.publish_many(0..200);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.most.load(Ordering::SeqCst), 10);
    assert_eq!(bench.ledger.all().len(), 200);
    // 10 at once, 100 ms each: 20 rounds. Gathering and slots cost a little more.
    assert!(start.elapsed() < Duration::from_millis(2700), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.horizon = Duration::from_millis(10);
    bench.publish_many(0..5);
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.publish(Message { priority: Some(9), ..message("urgent") });
    bench.publish(Message { priority: Some(200), ..message("as-urgent") });
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "urgent", "as-urgent", "1", "2", "3", "4"]);
}

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
            _ => Message { body: vec![0; 101].into(), ..bad },
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
async fn a_missed_slot_is_given_up_and_reserved_anew() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.clock = Arc::new(LateOnce(Mutex::new(Some(Duration::from_millis(300)))));
    bench.publish_many(0..50);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert_eq!(bench.ledger.all().len(), 50);
    // At 50 ms the pacer looks up; the slots at 40 and 50 are still within the tolerance of 10 ms.
    assert_eq!(released[..4], [0, 50, 50, 60], "those at 10 to 30 were missed, not caught up");
    assert!(released[2..].windows(2).all(|pair| pair[1] - pair[0] >= 10), "never in a burst: {released:?}");
    let mut ids = bench.sink.ids();
    ids.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(ids, (0..50).map(|id| id.to_string()).collect::<Vec<_>>(), "each once");
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_lost_connection_are_never_released() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.publish_many(0..20);
    let done = bench.start();
    bench.sink.arrived(3).await;
    bench.live.store(false, Ordering::SeqCst);
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids().len(), 3);
    assert!(bench.ledger.all().len() <= 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_while_the_store_is_away() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish_many(0..5);
    let done = bench.start();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::task::yield_now().await;
    assert!(bench.sink.ids().is_empty());
    bench.store.away.store(false, Ordering::SeqCst);
    let start = Instant::now();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "1", "2", "3", "4"]);
    assert!(start.elapsed() < Duration::from_millis(2500), "asked again soon: {:?}", start.elapsed());
}

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

#[tokio::test(start_paused = true)]
async fn a_cost_is_charged_behind() {
    let mut bench = Bench::new("100/s", QUICK);
    let cost = |cost: i128| vec![("paced-cost".to_owned(), Value::Integer(cost))];
    bench.publish(Message { headers: cost(5), ..message("dear") });
    bench.publish(message("next"));
    bench.publish(Message { headers: cost(1001), ..message("too-dear") });
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [0, 50]);
    let [Settled::Dead(letter)] = &bench.ledger.of("too-dear")[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!(letter.reason, Reason::CostTooLarge);
}

#[tokio::test(start_paused = true)]
async fn an_idle_dispatcher_makes_no_calls() {
    let mut bench = Bench::new("100/s", QUICK);
    let done = bench.start();
    bench.publish_many(0..1);
    bench.ledger.count(1).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.store.calls.load(Ordering::SeqCst), 1);
    bench.end();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replicas_far_from_the_store_get_their_share() {
    for (rate, jobs) in [("2/s", 100), ("200/s", 1000)] {
        let store = Arc::new(MemoryStore::new());
        let mut benches = [1, 15].map(|millis| {
            let mut bench = Bench::new(rate, QUICK);
            bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(millis)));
            bench.publish_many(0..jobs);
            bench
        });
        let _running = benches.each_mut().map(Bench::start);
        let [near, far] = &benches;
        // As long as both have work.
        let done = || near.sink.ids().len() + far.sink.ids().len();
        while done() < jobs {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let share = far.sink.ids().len() * 100 / done();
        assert!((30..=70).contains(&share), "{share} % of {rate} for the far one");
    }
}

#[tokio::test(start_paused = true)]
async fn four_replicas_take_a_quarter_each_for_less_than_half_a_call_a_job() {
    // Of unequal distance to the store; the last is far.
    let store = Arc::new(MemoryStore::new());
    let mut benches = [200, 250, 300, 2200].map(|micros| {
        let mut bench = Bench::new("200/s", QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(micros / 2)));
        bench.publish_many(0..2000);
        bench
    });
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    let sent = |bench: &Bench| bench.sink.ids().len();
    while benches.iter().map(sent).sum::<usize>() < 2000 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(start.elapsed() < Duration::from_millis(10_200), "no slot is lost: {:?}", start.elapsed());
    for bench in &benches {
        assert!((400..=600).contains(&sent(bench)), "{}", sent(bench));
    }
    let calls: usize = benches.iter().map(|bench| bench.store.calls.load(Ordering::SeqCst)).sum();
    assert!(calls < 1000, "{calls} calls for 2000 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_left_alone_takes_all_slots() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [0, 1].map(|_| {
        let mut bench = Bench::new("200/s", QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench
    });
    benches[0].publish_many(0..1000);
    benches[1].publish_many(0..100);
    let start = Instant::now();
    let [alone, other] = benches.each_mut().map(|bench| {
        let done = bench.start();
        bench.end();
        done
    });
    let (_, _) = (alone.await.unwrap(), other.await.unwrap());
    assert!(start.elapsed() < Duration::from_millis(5600), "1100 slots take 5.5 s: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_fast_limit_is_asked_for_far_ahead_although_few_are_sent_at_once() {
    let mut bench = Bench::new("5000/s", QUICK);
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), QUICK));
    bench.publish_many(0..10_000);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_millis(2020), "10000 slots take 2 s: {took:?}");
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 500, "{calls} calls for 10000 jobs");
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
    // The wall clock is not paused: now it has passed the deadline.
    while wall_now().0 / 1000 <= deadline {
        std::thread::yield_now();
    }
    let start = Instant::now();
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
    tokio::time::timeout(Duration::from_secs(60), bench.ledger.count(5)).await.expect("the others go on");
    assert_eq!(bench.ledger.of("stuck"), [], "neither acked nor lost");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_an_outcome_gets_one() {
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
    bench.options.retry.min_backoff = Duration::from_secs(3600);
    bench.sink.answer("0", retry(503));
    bench.publish_many(0..1);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.live.store(false, Ordering::SeqCst);
    bench.end();
    done.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
