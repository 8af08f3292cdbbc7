//! Jobs that an operator cancels are not sent, wherever they wait, and cost no call to the store.

use super::steps::SteppingClock;
use super::*;
use crate::dispatch::tests::parts::ScriptedParking;
use crate::dispatch::{OnUnavailable, ParkReason, Report, Stay};
use crate::store::TombstoneCall;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn ids(ids: &[&str]) -> Vec<Arc<str>> {
    ids.iter().map(|id| Arc::from(*id)).collect()
}

async fn cancel(bench: &Bench, of: &[&str]) {
    let call = TombstoneCall::Cancel { ids: &ids(of), span: DAY };
    bench.store.inner().tombstones("billing", call).await.unwrap();
}

async fn undo(bench: &Bench, of: &[&str]) {
    bench.store.inner().tombstones("billing", TombstoneCall::Undo { ids: &ids(of) }).await.unwrap();
}

fn discarded(attempts: u32) -> Settled {
    Settled::Discarded(Report { attempts, ..Report::UNSENT })
}

fn distant(bench: &mut Bench, distance: Duration) {
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), distance));
}

/// A message that may be released after this time.
fn not_before(id: &str, wait: Duration) -> Message {
    let millis = i128::from(wall_now().plus(wait).0 / 1000);
    Message { headers: vec![("paced-not-before".to_owned(), Value::Integer(millis))], ..message(id) }
}

#[tokio::test(start_paused = true)]
async fn one_that_was_cancelled_before_it_came_is_not_sent_and_takes_no_slot() {
    let mut bench = Bench::new("10/s", QUICK);
    cancel(&bench, &["1", "3"]).await;
    bench.publish_many(0..5);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "2", "4"]);
    assert_eq!(bench.sink.millis(start), [0, 100, 200], "no slot is lost");
    for id in ["1", "3"] {
        assert_eq!(bench.ledger.of(id), [discarded(0)]);
    }
}

/// The slots come with the answer that also says that there are tombstones to read.
#[tokio::test(start_paused = true)]
async fn nothing_is_released_before_the_tombstones_are_known() {
    for distance in [1, 40] {
        let mut bench = Bench::new("1000/s", QUICK);
        distant(&mut bench, Duration::from_millis(distance));
        let all: Vec<String> = (0..2500).map(|id| id.to_string()).collect();
        for some in all.chunks(1000) {
            cancel(&bench, &some.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
        bench.publish_many(0..2502);
        let done = bench.start();
        bench.end();
        done.await.unwrap();
        assert_eq!(bench.sink.ids(), ["2500", "2501"]);
        assert_eq!(bench.store.tombstone_calls.load(Ordering::SeqCst), 3, "a page each");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_behind_a_pause_is_settled_at_once() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.store.inner().update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    bench.publish_many(0..3);
    bench.publish(not_before("later", 30 * SECOND));
    let done = bench.start();
    tokio::time::sleep(SECOND).await;
    let before = Instant::now();
    cancel(&bench, &["1", "later"]).await;
    bench.ledger.count(2).await;
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    assert_eq!((bench.ledger.of("1"), bench.ledger.of("later")), (vec![discarded(0)], vec![discarded(0)]));
    bench.store.inner().update_record("billing", Change::Resume).await.unwrap();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "2"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_holds_a_slot_is_stopped_and_its_slot_goes_to_the_next() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.horizon = SECOND;
    bench.publish_many(0..6);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(1).await;
    cancel(&bench, &["2", "4"]).await;
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "1", "3", "5"]);
    assert_eq!(bench.sink.millis(start), [0, 100, 200, 300]);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_its_connection_is_stopped() {
    let mut bench = Bench::new("1/s", QUICK);
    *bench.sink.connections.connects.lock().unwrap() = vec![Duration::from_millis(300)];
    bench.publish_many(0..2);
    let done = bench.start();
    tokio::time::sleep(Duration::from_millis(50)).await;
    cancel(&bench, &["0"]).await;
    bench.end();
    done.await.unwrap();
    assert_eq!((bench.sink.ids(), bench.ledger.of("0")), (vec!["1".to_owned()], vec![discarded(0)]));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_being_sent_is_not_stopped_but_is_not_sent_again() {
    let mut bench = Bench::new("10/s", SECOND);
    bench.sink.answer("0", retry(503));
    bench.publish_many(0..2);
    let done = bench.start();
    bench.sink.arrived(2).await;
    cancel(&bench, &["0", "1"]).await;
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "1"]);
    assert_eq!(bench.ledger.of("0"), [discarded(1)]);
    assert!(matches!(bench.ledger.of("1")[..], [Settled::Acked(_)]));
}

#[tokio::test(start_paused = true)]
async fn one_that_was_parked_is_discarded_when_it_comes_home() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.tickets.parking = ScriptedParking::Done;
    cancel(&bench, &["home", "tried"]).await;
    let stay = |attempts| Stay {
        until: wall_now().plus(SECOND),
        reason: ParkReason::Retry,
        attempts,
        throttled: 0,
        refused: 0,
        unreadable: 0,
        first_seen: wall_now(),
        assigned_id: None,
        versions: None,
    };
    let done = bench.start();
    bench.publish_parked(message("home"), stay(0));
    bench.publish_parked(message("tried"), stay(2));
    bench.publish_parked(message("other"), stay(0));
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["other"]);
    assert_eq!((bench.ledger.of("home"), bench.ledger.of("tried")), (vec![discarded(0)], vec![discarded(2)]));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_the_outcome_gets_it() {
    let mut bench = Bench::new("10/s", QUICK);
    cancel(&bench, &["asked"]).await;
    bench.publish(Message { reply_to: Some("replies".to_owned()), ..message("asked") });
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let reply = "0 cancelled: an operator cancelled the job before it was sent";
    assert_eq!(bench.ledger.of("asked"), [Settled::Replied(reply.to_owned()), discarded(0)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_undone_is_sent_again() {
    let mut bench = Bench::new("10/s", QUICK);
    cancel(&bench, &["a"]).await;
    let done = bench.start();
    bench.publish(message("a"));
    bench.ledger.count(1).await;
    undo(&bench, &["a"]).await;
    tokio::time::sleep(SECOND).await;
    bench.publish(message("a"));
    bench.end();
    done.await.unwrap();
    assert_eq!((bench.sink.count(), bench.ledger.of("a").len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_tombstone_ends_in_time() {
    let mut bench = Bench::new("10/s", QUICK);
    let call = TombstoneCall::Cancel { ids: &ids(&["a"]), span: 60 * SECOND };
    bench.store.inner().tombstones("billing", call).await.unwrap();
    let start = Instant::now();
    let done = bench.start();
    bench.publish(message("a"));
    tokio::time::sleep_until(start + 59 * SECOND).await;
    bench.publish(message("a"));
    tokio::time::sleep_until(start + 61 * SECOND).await;
    bench.publish(message("a"));
    bench.end();
    done.await.unwrap();
    let settled = bench.ledger.of("a");
    assert!(
        matches!(settled[..], [Settled::Discarded(_), Settled::Discarded(_), Settled::Acked(_)]),
        "{settled:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_costs_no_call_for_it() {
    let mut bench = Bench::new("100/s", QUICK);
    cancel(&bench, &["gone"]).await;
    bench.publish_many(0..100);
    let done = bench.start();
    bench.ledger.count(100).await;
    let calls = || {
        let store = &bench.store;
        [&store.calls, &store.record_calls, &store.tombstone_calls].map(|calls| calls.load(Ordering::SeqCst))
    };
    let before = calls();
    assert_eq!(before[2], 1, "they are read once");
    for _ in 0..100 {
        bench.publish(message("gone"));
    }
    bench.ledger.count(200).await;
    assert_eq!(calls(), before);
    bench.end();
    done.await.unwrap();
}

/// The store forgets everything while one replica knows what was cancelled.
#[tokio::test(start_paused = true)]
async fn a_store_that_forgets_gets_the_ids_again() {
    let mut benches = [Bench::new("10/s", QUICK), Bench::new("10/s", QUICK)];
    let store = Arc::new(MemoryStore::new());
    for bench in &mut benches {
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
    }
    cancel(&benches[0], &["1"]).await;
    undo(&benches[0], &["1"]).await;
    cancel(&benches[0], &["a", "b"]).await;
    let [one, two] = &mut benches;
    let done = one.start();
    one.publish(message("a"));
    one.ledger.count(1).await;
    // Both know of the new store only by its answers.
    let empty = Arc::new(MemoryStore::new());
    one.store.swap(&empty);
    two.store.swap(&empty);
    one.publish_many(0..2);
    one.publish(message("b"));
    one.ledger.count(4).await;
    assert_eq!(
        (one.sink.ids(), one.ledger.of("b")),
        (vec!["0".to_owned(), "1".to_owned()], vec![discarded(0)])
    );
    let page = empty.tombstones("billing", TombstoneCall::Read { after: 0 }).await.unwrap().page;
    assert_eq!(page.len(), 3, "{page:?}");
    // One that starts afterwards knows it from the store.
    two.publish(message("a"));
    two.publish(message("2"));
    let other = two.start();
    for bench in &mut benches {
        bench.end();
    }
    done.await.unwrap();
    other.await.unwrap();
    assert_eq!(
        (benches[1].sink.ids(), benches[1].ledger.of("a")),
        (vec!["2".to_owned()], vec![discarded(0)])
    );
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_those_that_are_known_count() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.on_unavailable = OnUnavailable::Open;
    cancel(&bench, &["1"]).await;
    bench.publish_many(0..1);
    let done = bench.start();
    bench.ledger.count(1).await;
    // There are others now, which this replica cannot read.
    bench.store.faults.deaf.store(true, Ordering::SeqCst);
    bench.store.away.store(true, Ordering::SeqCst);
    cancel(&bench, &["2"]).await;
    bench.publish_many(1..4);
    bench.end();
    bench.ledger.count(4).await;
    assert_eq!(
        (bench.sink.ids(), bench.ledger.of("1")),
        (vec!["0".into(), "2".into(), "3".into()], vec![discarded(0)])
    );
    bench.store.away.store(false, Ordering::SeqCst);
    done.await.unwrap();
}

/// Where the clock of the store steps, tombstones last by that clock.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_stores_clock_brings_none_back() {
    for step in [-3_600_000_000, 3_600_000_000] {
        let clock = Arc::new(SteppingClock::new());
        let mut bench = Bench::new("10/s", QUICK);
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        bench.store = Arc::new(FlakyStore::new(store, QUICK));
        cancel(&bench, &["1"]).await;
        bench.publish_many(0..1);
        let done = bench.start();
        bench.ledger.count(1).await;
        clock.step(step);
        bench.publish_many(1..3);
        bench.end();
        done.await.unwrap();
        assert_eq!(bench.sink.ids(), ["0", "2"], "{step}");
    }
}
