//! Messages that are delivered again while their jobs are being parked, and the copies that these are parked as.

use super::*;
use crate::dispatch::tests::parts::ScriptedParking;
use crate::dispatch::{ParkReason, Stay};
use crate::time::Micros;

/// A stay of a job that was not tried, until then.
fn stay(until: Micros, reason: ParkReason) -> Stay {
    Stay {
        until,
        reason,
        attempts: 0,
        throttled: 0,
        refused: 0,
        unreadable: 0,
        first_seen: wall_now(),
        assigned_id: None,
        versions: None,
    }
}

/// In an hour, in whole milliseconds, as brokers keep it.
fn in_an_hour() -> Micros {
    Micros((wall_now().0 / 1000 + 3_600_000) * 1000)
}

/// A job that may go from then on.
fn later(at: Micros) -> impl Fn() -> Message {
    let headers = vec![("paced-not-before".to_owned(), Value::Integer((at.0 / 1000).into()))];
    move || Message { headers: headers.clone(), ..message("a") }
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_what_was_parked_for_a_limit_waits_for_itself() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.backoff = Backoff { min: Duration::from_secs(600), max: Duration::from_secs(600) };
    bench.sink.answer("a", retry(503));
    let now = wall_now();
    let stay = || stay(now, ParkReason::Limit);
    bench.publish_parked(message("a"), stay());
    let _running = bench.start();
    bench.sink.arrived(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    bench.reconnect();
    bench.tickets.parking = ScriptedParking::Done;
    bench.source.parking.can_park.store(true, Ordering::SeqCst);
    bench.publish_parked_again(message("a"), "again", stay());
    bench.ledger.count(1).await;
    let again = bench.ledger.of("again");
    let [Settled::Parked(stay)] = &again[..] else { panic!("{again:?}") };
    assert_eq!((stay.reason, stay.attempts), (ParkReason::Retry, 1));
}

#[tokio::test(start_paused = true)]
async fn what_comes_again_while_it_is_parked_is_acked_and_parked_once() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.tickets.parking = ScriptedParking::Slow;
    let job = later(in_an_hour());
    bench.publish(job());
    let _running = bench.start();
    bench.ledger.count(1).await;
    bench.reconnect();
    bench.publish_again(job(), "again");
    bench.ledger.count(2).await;
    assert!(matches!(bench.ledger.of("again")[..], [Settled::Discarded(_)]), "{:?}", bench.ledger);
    assert!(matches!(bench.ledger.of("a")[..], [Settled::Parked(_)]));
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_not_taken_for_the_message_that_is_being_parked() {
    let at = in_an_hour();
    // That one came as it was published, or is a copy itself, for the same time.
    for came in [None, Some(stay(at, ParkReason::NotBefore))] {
        let (mut bench, job) = (Bench::new("100/s", QUICK), later(at));
        bench.tickets.parking = ScriptedParking::Slow;
        match came.clone() {
            Some(stay) => bench.publish_parked(job(), stay),
            None => bench.publish(job()),
        }
        let _running = bench.start();
        bench.ledger.count(1).await;
        let parked = bench.ledger.of("a");
        let [Settled::Parked(stay)] = &parked[..] else { panic!("{parked:?}") };
        // Another replica brought it home and gave it back, before the confirm is here.
        let until = Micros((stay.until.0 + 999) / 1000 * 1000);
        bench.another_channel();
        bench.publish_parked_again(job(), "copy", Stay { until, ..stay.clone() });
        tokio::time::sleep(Duration::from_secs(10)).await;
        let copy = bench.ledger.of("copy");
        assert!(matches!(copy[..], [Settled::Parked(_)]), "it is all that is left: {came:?} {copy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_again_while_an_equal_job_is_parked_is_given_back() {
    let (mut bench, job) = (Bench::new("100/s", QUICK), later(in_an_hour()));
    bench.tickets.parking = ScriptedParking::Slow;
    bench.publish(job());
    let _running = bench.start();
    bench.ledger.count(1).await;
    // The channel of the first one lives, and it is acked.
    bench.another_channel();
    bench.publish_again(job(), "equal");
    bench.ledger.count(2).await;
    assert_eq!(bench.ledger.of("equal"), [Settled::Back]);
}
