//! A job is found by its id, wherever it waits, and the place of one that waits for a slot is known.

use super::parking::not_before;
use super::parts::ScriptedParking;
use super::*;
use crate::dispatch::{Backoff, Found, FoundJob, JobPlace, ParkReason, Question, Stay};
use crate::store::TombstoneCall;

const SECOND: Duration = Duration::from_secs(1);

async fn find(bench: &Bench, id: &str) -> Found {
    bench.control().find(Question::Id(id.to_owned())).await
}

/// The one job with this id.
async fn job(bench: &Bench, id: &str) -> FoundJob {
    let found = find(bench, id).await;
    let [job] = &found.jobs[..] else { panic!("{id}: {found:?}") };
    job.clone()
}

#[tokio::test(start_paused = true)]
async fn a_job_is_found_wherever_it_waits() {
    let mut bench = Bench::new("10/s", 100 * SECOND);
    bench.options.horizon = SECOND;
    bench.publish_many(0..20);
    bench.publish(not_before("later", 30 * SECOND));
    let start = Instant::now();
    let _done = bench.start();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(job(&bench, "0").await.place, JobPlace::Working);
    let JobPlace::Slot(at) = job(&bench, "5").await.place else { panic!("it has no slot") };
    let slot = start + Duration::from_millis(500);
    assert!(at >= slot && at <= slot + 2 * QUICK, "{:?}", at.saturating_duration_since(slot));
    let last = job(&bench, "19").await;
    let ahead = |job: &FoundJob| job.turn.as_ref().map(|turn| turn.ahead);
    assert!((1..19).contains(&ahead(&last).unwrap()), "{last:?}");
    assert_eq!((last.id.as_str(), last.place), ("19", JobPlace::Waiting));
    assert_eq!((last.attempts, last.first_seen.is_some()), (Some(0), true));
    let other = job(&bench, "18").await;
    assert_eq!((other.place, ahead(&other)), (JobPlace::Waiting, ahead(&last).map(|ahead| ahead - 1)));
    let JobPlace::Delayed(due) = job(&bench, "later").await.place else { panic!("it waits for no time") };
    assert!(due > start + 28 * SECOND && due < start + 31 * SECOND);
    assert_eq!(find(&bench, "none").await, Found::default());
}

#[tokio::test(start_paused = true)]
async fn all_with_one_id_are_found_up_to_a_bound() {
    let mut bench = Bench::new("1/h", 100 * SECOND);
    for _ in 0..15 {
        bench.publish(message("same"));
    }
    let _done = bench.start();
    tokio::time::sleep(SECOND).await;
    let found = find(&bench, "same").await;
    assert_eq!(found.jobs.len(), 10);
    assert!(found.jobs.iter().all(|job| job.place == JobPlace::Waiting), "{found:?}");
    let turns: Vec<Option<usize>> =
        found.jobs.iter().map(|job| job.turn.as_ref().map(|turn| turn.ahead)).collect();
    assert_eq!(turns.iter().flatten().count(), 1, "of the first one alone: {turns:?}");
    assert_eq!(turns.iter().flatten().next(), Some(&0), "{turns:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_parked_is_remembered_until_it_comes_back() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.tickets.parking = ScriptedParking::Done;
    bench.publish(not_before("far", 3600 * SECOND));
    let _done = bench.start();
    tokio::time::sleep(SECOND).await;
    let found = find(&bench, "far").await;
    let parked = found.parked.unwrap();
    assert_eq!((found.jobs.len(), parked.reason), (0, ParkReason::NotBefore));
    assert!(parked.until.since(parked.at) > 3500 * SECOND, "{parked:?}");
    let [Settled::Parked(stay)] = &bench.ledger.of("far")[..] else { panic!("{:?}", bench.ledger) };
    let stay = Stay { until: wall_now().plus(30 * SECOND), ..stay.clone() };
    bench.publish_parked(message("far"), stay);
    tokio::time::sleep(SECOND).await;
    let found = find(&bench, "far").await;
    assert_eq!(found.parked, None, "it came back");
    assert!(matches!(found.jobs[..], [FoundJob { place: JobPlace::Delayed(_), .. }]), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_parked_is_not_remembered_as_parked() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.tickets.parking = ScriptedParking::Refused;
    bench.publish(not_before("far", 3600 * SECOND));
    let _done = bench.start();
    tokio::time::sleep(SECOND).await;
    let found = find(&bench, "far").await;
    assert_eq!(found.parked, None);
    assert!(matches!(found.jobs[..], [FoundJob { place: JobPlace::Delayed(_), .. }]), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_and_an_id_that_is_cancelled_are_told_apart() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.retry.backoff = Backoff { min: 30 * SECOND, max: 30 * SECOND };
    bench.sink.answer("again", retry(500));
    bench.publish(message("again"));
    let start = Instant::now();
    let _done = bench.start();
    tokio::time::sleep(SECOND).await;
    let again = job(&bench, "again").await;
    assert!(matches!(again.place, JobPlace::Retrying(due) if due > start + SECOND), "{again:?}");
    assert_eq!(again.attempts, Some(1));
    let ids: [Arc<str>; 1] = [Arc::from("again")];
    let cancel = TombstoneCall::Cancel { ids: &ids, span: 60 * SECOND };
    bench.store.inner().tombstones("billing", cancel).await.unwrap();
    tokio::time::sleep(SECOND).await;
    let found = find(&bench, "again").await;
    assert_eq!(
        found,
        Found { is_cancelled: true, ..Found::default() },
        "it is settled, and its id is remembered"
    );
}
