//! Jobs that must wait for long are parked, and come back with what was known of them.

use super::*;
use crate::dispatch::tests::parts::ScriptedParking;
use crate::dispatch::tests::pauses::update_record;
use crate::dispatch::{ParkReason, Stay};

/// A message that may be released after this time.
pub(super) fn not_before(id: &str, wait: Duration) -> Message {
    let millis = i128::from(wall_now().plus(wait).0 / 1000);
    Message { headers: vec![("paced-not-before".to_owned(), Value::Integer(millis))], ..message(id) }
}

/// The stay of a job of this id; there must be no other settlement of it.
#[track_caller]
fn stay(bench: &Bench, id: &str) -> Stay {
    match &bench.ledger.of(id)[..] {
        [Settled::Parked(stay)] => stay.clone(),
        other => panic!("{id}: {other:?}"),
    }
}

fn parking(rate: &str) -> Bench {
    let mut bench = Bench::new(rate, QUICK);
    bench.tickets.parking = ScriptedParking::Done;
    bench
}

#[tokio::test(start_paused = true)]
async fn a_job_for_much_later_is_parked_and_one_for_soon_is_held() {
    let mut bench = parking("10/s");
    bench.publish(not_before("far", Duration::from_secs(61)));
    bench.publish(not_before("near", Duration::from_secs(59)));
    bench.publish(message("now"));
    let before = wall_now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["now", "near"]);
    let stay = stay(&bench, "far");
    assert_eq!((stay.reason, stay.attempts, stay.assigned_id), (ParkReason::NotBefore, 0, None));
    let wait = stay.until.since(before);
    assert!(wait > Duration::from_secs(60) && wait <= Duration::from_secs(61), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_parked_is_held() {
    for way in [ScriptedParking::Absent, ScriptedParking::Refused] {
        let mut bench = parking("10/s");
        bench.tickets.parking = way;
        let start = Instant::now();
        bench.publish(not_before("far", Duration::from_secs(100)));
        let done = bench.start();
        bench.end();
        done.await.unwrap();
        let released = bench.sink.millis(start);
        assert!(matches!(released[..], [99_000..=100_100]), "{way:?}: {released:?}");
        let settled = bench.ledger.of("far");
        let asked = settled.iter().filter(|settled| matches!(settled, Settled::Parked(_))).count();
        assert_eq!(asked, usize::from(way == ScriptedParking::Refused), "it is asked once: {settled:?}");
        assert!(matches!(settled.last(), Some(Settled::Acked(_))), "{way:?}: {settled:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_came_home_is_held_for_the_rest_and_keeps_its_attempts() {
    let mut bench = parking("10/s");
    let (start, now) = (Instant::now(), wall_now());
    let stay = |wait, attempts| Stay {
        until: now.plus(wait),
        reason: ParkReason::Retry,
        attempts,
        throttled: 0,
        refused: 0,
        unreadable: 0,
        first_seen: now,
        assigned_id: None,
        versions: None,
    };
    // The last of its three attempts.
    bench.sink.answer("tried", retry(503));
    bench.publish_parked(message("tried"), stay(Duration::from_secs(5), 2));
    bench.publish_parked(message("due"), stay(Duration::ZERO, 0));
    bench.publish_parked(message("again"), stay(Duration::from_secs(3600), 1));
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert!(matches!(released[..], [0, 4_900..=5_100]), "{released:?}");
    let letter = bench.ledger.letter("tried");
    assert_eq!((letter.reason, letter.report.attempts), (Reason::AttemptsExhausted, 3));
    let again = self::stay(&bench, "again");
    assert_eq!((again.attempts, again.first_seen), (1, now), "one stay was not long enough");
}

#[tokio::test(start_paused = true)]
async fn a_retry_much_later_is_parked_with_its_attempts() {
    let mut bench = parking("10/s");
    let asked = Duration::from_secs(120);
    bench.sink.answer("slow", retry(503));
    bench.sink.answer("slow", throttled(Some(asked)));
    bench.publish(message("slow"));
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let stay = stay(&bench, "slow");
    assert_eq!((stay.reason, stay.attempts, stay.throttled), (ParkReason::Retry, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_given_here_stays_the_jobs() {
    let mut bench = parking("10/s");
    bench.publish(Message { message_id: None, ..not_before("", Duration::from_secs(3600)) });
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let id = stay(&bench, "").assigned_id.unwrap();
    assert_eq!(id.len(), 36, "{id}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_parks_what_was_tried_and_gives_back_the_rest() {
    let mut bench = parking("10/s");
    bench.options.retry.backoff.min = Duration::from_secs(30);
    bench.options.retry.backoff.max = Duration::from_secs(30);
    bench.sink.answer("tried", retry(503));
    bench.publish(message("tried"));
    bench.publish(not_before("fresh", Duration::from_secs(30)));
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.stop.cancel();
    done.await.unwrap();
    let stay = stay(&bench, "tried");
    assert_eq!((stay.reason, stay.attempts), (ParkReason::Restart, 1));
    assert_eq!(bench.ledger.of("fresh"), [Settled::Back]);
}

#[tokio::test(start_paused = true)]
async fn a_time_too_far_away_is_a_malformed_header() {
    let mut bench = parking("10/s");
    bench.publish(not_before("year", Duration::from_secs(366 * 86_400 - 60)));
    bench.publish(not_before("more", Duration::from_secs(367 * 86_400)));
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(stay(&bench, "year").reason, ParkReason::NotBefore);
    let letter = bench.ledger.letter("more");
    assert_eq!(letter.reason, Reason::MalformedHeader);
    assert!(letter.detail.contains("366 days"), "{}", letter.detail);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_came_home_has_its_old_place() {
    let mut bench = parking("10/s");
    bench.publish_many(0..3);
    let stay = Stay {
        until: wall_now(),
        reason: ParkReason::Limit,
        attempts: 0,
        throttled: 0,
        refused: 0,
        unreadable: 0,
        first_seen: wall_now().minus(Duration::from_secs(60)),
        assigned_id: None,
        versions: None,
    };
    bench.publish_parked(message("old"), stay);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let ids = bench.sink.ids();
    let place = ids.iter().position(|id| id == "old");
    assert!(place.is_some_and(|place| place < 3), "before what came after it: {ids:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_every_wait() {
    let mut bench = parking("10/s");
    let within = |id: &str, wait: u64, deadline: u64| {
        let millis = |seconds| i128::from(wall_now().plus(Duration::from_secs(seconds)).0 / 1000);
        let headers = [("paced-not-before", wait), ("paced-deadline", deadline)];
        let headers = headers.map(|(name, after)| (name.to_owned(), Value::Integer(millis(after))));
        Message { headers: headers.into(), ..message(id) }
    };
    bench.publish(within("far", 7200, 3600));
    bench.publish(within("soon", 7200, 0));
    let start = Instant::now();
    let done = bench.start();
    bench.ledger.count(2).await;
    let wait = stay(&bench, "far").until.since(wall_now());
    assert!(wait > Duration::from_secs(3590) && wait <= Duration::from_secs(3601), "{wait:?}");
    assert_eq!(bench.ledger.letter("soon").reason, Reason::Expired);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    bench.end();
    done.await.unwrap();
}

const MINUTE: Duration = Duration::from_secs(60);

/// RabbitMQ takes back what is unacked for 30 minutes.
#[tokio::test(start_paused = true)]
async fn jobs_that_the_downstreams_own_limit_holds_for_long_are_parked_until_it_has_slots() {
    let mut bench = parking("1/h");
    bench.publish_many(0..3);
    let (start, wall) = (Instant::now(), wall_now());
    let done = bench.start();
    bench.ledger.count(3).await;
    let took = start.elapsed();
    assert!(took >= 20 * MINUTE && took < 22 * MINUTE, "{took:?}");
    for id in ["1", "2"] {
        let stay = stay(&bench, id);
        let wait = stay.until.since(wall);
        assert!(wait > 59 * MINUTE && wait < 61 * MINUTE, "{id}: {wait:?}");
        assert_eq!((stay.reason, stay.attempts), (ParkReason::Limit, 0));
    }
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0"]);
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_downstream_that_is_paused_for_long_are_parked_for_a_short_time() {
    let mut bench = parking("10/s");
    let (start, wall) = (Instant::now(), wall_now());
    let done = bench.start();
    update_record(&bench, Change::Pause { span: None, note: "" }).await;
    bench.publish_many(0..3);
    bench.ledger.count(3).await;
    let took = start.elapsed();
    assert!(took >= 20 * MINUTE && took < 22 * MINUTE, "{took:?}");
    for id in ["0", "1", "2"] {
        let wait = stay(&bench, id).until.since(wall) - took;
        assert!(wait > MINUTE && wait < 3 * MINUTE, "{id}: {wait:?}");
    }
    bench.end();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_not_held_for_long_or_were_refused_are_not_parked() {
    let mut bench = parking("1/m");
    bench.publish_many(0..20);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.count(), 20, "each waits for less than 20 minutes");

    let mut bench = parking("1/h");
    bench.tickets.parking = ScriptedParking::Refused;
    bench.publish_many(0..2);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert!(matches!(released[..], [0..=100, 3_599_000..=3_601_000]), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_parked_for_a_limit_goes_when_that_is_reset() {
    let window = Limit::first_hit_window("window", 3, 60 * MINUTE).unwrap();
    let mut bench = parking("100/s");
    let limits = bench.options.limits.iter().cloned().chain([window.clone()]).collect();
    bench.options.limits = LimitSet::new(limits).unwrap();
    bench.tickets.parking = ScriptedParking::Refused;
    bench.publish_many(0..20);
    let _running = bench.start();
    tokio::time::sleep(25 * MINUTE).await;
    assert_eq!(bench.sink.count(), 3, "the others were held for 20 minutes, and wait for the next window");
    update_record(&bench, Change::Reset { limits: &[window] }).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.sink.count(), 6);
}
