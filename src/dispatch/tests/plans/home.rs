//! Jobs that were parked for a plan come home when that changes, and otherwise in their time.

use super::super::parking::not_before;
use super::super::pauses::update_record;
use super::parking::parked;
use super::*;

/// How often parked jobs were brought back, once all that was due is done.
async fn unparked(bench: &Bench) -> usize {
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.source.parking.unparked.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn parked_jobs_come_back_when_limits_change_and_not_otherwise() {
    let window = || Limit::fixed_window("plan.free.window", 3, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window())]);
    bench.tickets.parking = ScriptedParking::Done;
    publish(&bench, "free", 20);
    let _running = bench.start();
    bench.ledger.count(20).await;
    assert_eq!(unparked(&bench).await, 0);
    let before = parked(&bench, "free")[0].versions.clone();
    bench.control().reload(bench.options.clone());
    assert_eq!(unparked(&bench).await, 0, "the file is the same");
    update_record(&bench, Change::Reset { limits: &[window()] }).await;
    assert_eq!(unparked(&bench).await, 1, "the counts began at 0");
    let known = bench.source.parking.versions.lock().unwrap().clone();
    assert!(before.is_some() && known.is_some() && before != known, "{before:?} {known:?}");
    let mut other = bench.options.clone();
    other.plans[0] =
        LimitSet::new(other.limits.iter().cloned().chain([leaky("plan.free.l", "9/s", 1)]).collect())
            .unwrap();
    bench.control().reload(other);
    assert_eq!(unparked(&bench).await, 2, "the plan changed");
    update_record(&bench, Change::Pause { span: Some(Duration::from_secs(3600)), note: "" }).await;
    assert_eq!(unparked(&bench).await, 2, "a pause lets nothing go");
    update_record(&bench, Change::Resume).await;
    assert_eq!(unparked(&bench).await, 3, "it was lifted");
    let mut lower = bench.options.clone();
    let rows = lower.limits.iter().cloned().chain([leaky("plan.free.l", "8/s", 1)]).collect();
    lower.plans[0] = LimitSet::new(rows).unwrap();
    bench.control().reload(lower);
    assert_eq!(unparked(&bench).await, 3, "it became lower");
}

/// A plan of three an hour, which is used up, and 17 of its jobs that are being parked.
async fn used_up(
    how: ScriptedParking,
) -> (Bench, Limit, tokio_util::task::AbortOnDropHandle<crate::dispatch::Drained>) {
    let window = Limit::first_hit_window("plan.free.window", 3, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window.clone())]);
    bench.tickets.parking = how;
    publish(&bench, "free", 20);
    let running = bench.start();
    bench.ledger.count(20).await;
    (bench, window, running)
}

#[tokio::test(start_paused = true)]
async fn what_was_being_parked_for_a_limit_when_that_changed_comes_back_too() {
    let (bench, window, _running) = used_up(ScriptedParking::Slow).await;
    bench.publish(not_before("own", Duration::from_secs(7200)));
    bench.ledger.count(21).await;
    update_record(&bench, Change::Reset { limits: std::slice::from_ref(&window) }).await;
    let changed = unparked(&bench).await;
    assert!(changed >= 2, "at once, and when they are parked: {changed}");
    // The wait of this one is its own.
    bench.publish(not_before("other", Duration::from_secs(7200)));
    bench.ledger.count(22).await;
    update_record(&bench, Change::Reset { limits: &[window] }).await;
    assert_eq!(unparked(&bench).await, changed + 1);
}

#[tokio::test(start_paused = true)]
async fn what_waits_here_for_a_limit_goes_when_that_changes() {
    let (bench, window, _running) = used_up(ScriptedParking::Refused).await;
    unparked(&bench).await;
    assert_eq!(bench.sink.count(), 3);
    update_record(&bench, Change::Reset { limits: &[window] }).await;
    unparked(&bench).await;
    assert_eq!(bench.sink.count(), 6, "the counts began at 0");
}

/// A stay of a job that was parked for a limit.
fn limited(until: crate::time::Micros, first_seen: crate::time::Micros) -> Stay {
    Stay {
        until,
        reason: ParkReason::Limit,
        attempts: 0,
        throttled: 0,
        refused: 0,
        unreadable: 0,
        first_seen,
        assigned_id: None,
        versions: None,
    }
}

/// Has all come home that are parked, and waits until that many more are settled. Returns their number.
async fn bring_home(bench: &Bench) -> usize {
    let (stays, settled) = (parked(bench, "free"), bench.ledger.all().len());
    for (number, stay) in stays.iter().enumerate() {
        bench.publish_parked(on("free", message(&format!("home{number}"))), stay.clone());
    }
    bench.ledger.count(settled + stays.len()).await;
    stays.len()
}

#[tokio::test(start_paused = true)]
async fn those_that_come_back_in_vain_are_counted_once_for_those_behind_them() {
    let (bench, window, _running) = used_up(ScriptedParking::Done).await;
    update_record(&bench, Change::Reset { limits: &[window] }).await;
    unparked(&bench).await;
    assert_eq!(bring_home(&bench).await, 17);
    bench.publish(on("free", message("new")));
    bench.ledger.count(20 + 18).await;
    assert_eq!((parked(&bench, "home").len(), bench.sink.count()), (14, 6));
    let wait = parked(&bench, "new")[0].until.since(wall_now());
    let hour = Duration::from_secs(3600);
    assert!(wait > 3 * hour && wait < 6 * hour, "14 are before it, three an hour: {wait:?}");
}

#[tokio::test(start_paused = true)]
async fn those_that_somebody_brings_back_in_vain_wait_as_before() {
    let (bench, _, _running) = used_up(ScriptedParking::Done).await;
    let before = parked(&bench, "free");
    assert_eq!(bring_home(&bench).await, 17);
    let after = parked(&bench, "home");
    assert_eq!((after.len(), bench.sink.count()), (17, 3));
    for (before, after) in before.iter().zip(&after) {
        let apart = before.until.0.abs_diff(after.until.0);
        assert!(apart < 1_000_000 && before.versions == after.versions, "{before:?} {after:?}");
    }
    bench.publish(on("free", message("new")));
    bench.ledger.count(20 + 18).await;
    let wait = parked(&bench, "new")[0].until.since(wall_now());
    let hour = Duration::from_secs(3600);
    assert!(wait > 4 * hour && wait < 8 * hour, "17 are before it, three an hour: {wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_parked_for_a_limit_asks_again_whenever_it_comes_home() {
    let later = |hours: u64| wall_now().plus(Duration::from_secs(3600 * hours));
    let window = Limit::first_hit_window("plan.free.window", 3, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window)]);
    bench.tickets.parking = ScriptedParking::Done;
    // Its limit was raised, and nobody brought it back.
    bench.publish_parked(on("free", message("missed")), limited(later(700), wall_now()));
    let _running = bench.start();
    bench.ledger.count(1).await;
    assert_eq!(bench.sink.count(), 1);
    publish(&bench, "free", 20);
    bench.ledger.count(21).await;
    let (until, versions) = (later(700), parked(&bench, "free")[0].versions.clone());
    let vain = Stay { versions, ..limited(until, wall_now()) };
    bench.publish_parked(on("free", message("vain")), vain.clone());
    bench.ledger.count(22).await;
    let apart = parked(&bench, "vain")[0].until.0.abs_diff(until.0);
    assert!(apart < 1_000_000, "it is used up, and the job still waits: {apart} µs");
    // So long by other limits, or those of an earlier version of paced.
    for versions in [None, Some("1.2.3.4".to_owned())] {
        bench.publish_parked(on("free", message("other")), Stay { versions, ..vain.clone() });
    }
    bench.ledger.count(24).await;
    let other = parked(&bench, "other");
    assert!(other.iter().all(|stay| stay.until < later(20)), "{other:?}");
    assert!(other.iter().all(|stay| stay.versions == vain.versions), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_comes_home_before_the_limits_are_known_waits_by_these() {
    let later = |hours: u64| wall_now().plus(Duration::from_secs(3600 * hours));
    let window = Limit::first_hit_window("plan.free.window", 3, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window)]);
    bench.tickets.parking = ScriptedParking::Done;
    publish(&bench, "free", 20);
    // These were parked by other limits.
    let by_others = Stay { versions: Some("1.2.3.4.5".to_owned()), ..limited(later(700), wall_now()) };
    for early in 0..10 {
        bench.publish_parked(on("free", message(&format!("early{early}"))), by_others.clone());
    }
    let _running = bench.start();
    bench.ledger.count(30).await;
    let (early, others) = (parked(&bench, "early"), parked(&bench, "free"));
    assert!(early.len() >= 7 && early.len() + others.len() == 27, "{} {}", early.len(), others.len());
    assert!(early.iter().all(|stay| stay.until < later(20)), "{early:?}");
    assert!(early[0].versions.is_some() && early[0].versions == others[0].versions, "{early:?}");
}

#[tokio::test(start_paused = true)]
async fn those_that_come_back_after_the_record_was_lost_are_counted_once_for_those_behind_them() {
    let (bench, _, _running) = used_up(ScriptedParking::Done).await;
    let before = parked(&bench, "free")[0].versions.clone();
    bench.store.forget();
    // The replica learns of it, and the fence is over.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(bring_home(&bench).await, 17);
    bench.publish(on("free", message("new")));
    bench.ledger.count(20 + 18).await;
    let home = parked(&bench, "home");
    assert_eq!((home.len(), bench.sink.count()), (14, 6), "the counts began at 0");
    assert!(home[0].versions.is_some() && home[0].versions != before, "{before:?} {:?}", home[0].versions);
    let wait = parked(&bench, "new")[0].until.since(wall_now());
    let hour = Duration::from_secs(3600);
    assert!(wait > 3 * hour && wait < 6 * hour, "14 are before it, three an hour: {wait:?}");
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_here_are_counted_once_for_those_behind_them() {
    let (mut bench, _, _running) = used_up(ScriptedParking::Refused).await;
    for _ in 0..3 {
        update_record(&bench, Change::Pause { span: Some(Duration::from_secs(3600)), note: "" }).await;
        unparked(&bench).await;
        update_record(&bench, Change::Resume).await;
        unparked(&bench).await;
    }
    // They ask again and again without success.
    tokio::time::sleep(Duration::from_secs(600)).await;
    bench.tickets.parking = ScriptedParking::Done;
    bench.publish(on("free", message("new")));
    bench.ledger.count(21).await;
    let wait = parked(&bench, "new")[0].until.since(wall_now());
    let hour = Duration::from_secs(3600);
    assert!(wait > 4 * hour && wait < 8 * hour, "17 are before it, three an hour: {wait:?}");
}

/// Its message comes again while it is being parked, and the replica stops. Another replica is to ask for a slot.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_waits_for_a_limit_when_the_replica_stops_comes_home_at_once() {
    let window = Limit::first_hit_window("plan.free.window", 1, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window)]);
    bench.sink.answer("a", retry(503));
    bench.tickets.parking = ScriptedParking::LostLater;
    bench.publish(on("free", message("a")));
    let done = bench.start();
    bench.ledger.count(1).await;
    let before = parked(&bench, "a")[0].until.since(wall_now());
    assert!(before > Duration::from_secs(1800), "for the limit: {before:?}");
    bench.reconnect();
    bench.tickets.parking = ScriptedParking::Done;
    bench.publish_again(on("free", message("a")), "again");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(bench.ledger.of("again"), [], "the first one is still being parked");
    bench.stop.cancel();
    done.await.unwrap();
    let again = bench.ledger.of("again");
    let [Settled::Parked(stay)] = &again[..] else { panic!("{again:?}") };
    assert_eq!((stay.reason, stay.attempts), (ParkReason::Restart, 1));
    let wait = stay.until.since(wall_now());
    assert!(wait <= Duration::from_millis(1), "{wait:?}");
}

/// An attempt that fails while the replica stops keeps its wait, although the job has waited for a limit before.
#[tokio::test(start_paused = true)]
async fn a_retry_keeps_its_time_in_a_stop_after_a_wait_for_a_limit() {
    let mut bench = Bench::new("100/s", Duration::from_secs(1));
    let wait = Duration::from_secs(30);
    bench.options.retry.backoff = crate::dispatch::Backoff { min: wait, max: wait };
    bench.tickets.parking = ScriptedParking::Done;
    bench.sink.answer("a", retry(503));
    bench.publish_parked(message("a"), limited(wall_now(), wall_now()));
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.stop.cancel();
    done.await.unwrap();
    let stays = parked(&bench, "a");
    let [stay] = &stays[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!((stay.reason, stay.attempts), (ParkReason::Restart, 1));
    let left = stay.until.since(wall_now());
    assert!(left > wait / 2 && left <= wait, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_waits_for_a_limit_asks_for_a_slot_when_its_message_comes_again() {
    // The copy was not confirmed; or it cannot be parked, and waits here.
    for how in [ScriptedParking::Lost, ScriptedParking::Refused] {
        let window = Limit::first_hit_window("plan.free.window", 1, Duration::from_secs(3600)).unwrap();
        let mut bench = bench("100/s", vec![("free", window)]);
        bench.sink.answer("a", retry(503));
        bench.tickets.parking = how;
        bench.publish(on("free", message("a")));
        let _running = bench.start();
        bench.ledger.count(1).await;
        unparked(&bench).await;
        bench.reconnect();
        bench.tickets.parking = ScriptedParking::Done;
        bench.publish_again(on("free", message("a")), "again");
        bench.ledger.count(2).await;
        let again = bench.ledger.of("again");
        let [Settled::Parked(stay)] = &again[..] else { panic!("{how:?}: {again:?}") };
        // A change of the limit brings it home.
        assert_eq!((stay.reason, stay.attempts), (ParkReason::Limit, 1), "{how:?}");
        assert!(stay.versions.is_some(), "{how:?}");
    }
}
