//! Jobs of plans that are used up for long are parked.

use super::*;

/// The stays of the parked jobs of a plan, in the order in which they were parked.
pub(super) fn parked(bench: &Bench, plan: &str) -> Vec<Stay> {
    let all = bench.ledger.all().into_iter().filter(|(id, _)| id.starts_with(plan));
    all.filter_map(|(_, how)| if let Settled::Parked(stay) = how { Some(stay) } else { None }).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_plan_that_is_used_up_are_parked_until_it_is_whole() {
    let window = Limit::first_hit_window("plan.free.window", 3, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window)]);
    bench.tickets.parking = ScriptedParking::Done;
    publish(&bench, "free", 700);
    publish(&bench, "none", 20);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "nothing waits here: {:?}", start.elapsed());
    assert_eq!((millis(&bench, "free", start).len(), millis(&bench, "none", start).len()), (3, 20));
    let parked = parked(&bench, "free");
    assert_eq!(parked.len(), 697);
    let (now, hour) = (wall_now(), Duration::from_secs(3600));
    let waits: Vec<_> = parked.iter().map(|stay| stay.until.since(now)).collect();
    assert!(parked.iter().all(|stay| stay.reason == ParkReason::Limit));
    // Three come back in each hour, the first ones first. When the window ends is known only after the first call.
    assert!(waits[0] > Duration::from_secs(60) && waits[2] <= hour, "{waits:?}");
    assert!(waits.is_sorted_by(|one, next| *next + hour >= *one), "{waits:?}");
    let last = waits.last().unwrap();
    assert!(*last > hour * 230 && *last < hour * 234, "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_plan_keeps_what_it_releases_soon_and_parks_the_rest_one_after_the_other() {
    let mut bench = bench("100/s", vec![("slow", leaky("plan.slow.l", "1/s", 1))]);
    bench.tickets.parking = ScriptedParking::Done;
    publish(&bench, "slow", 200);
    publish(&bench, "none", 100);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert!(millis(&bench, "none", start).last() <= Some(&1500), "{:?}", millis(&bench, "none", start));
    let sent = millis(&bench, "slow", start).len();
    let parked = parked(&bench, "slow");
    assert_eq!((sent, sent + parked.len()), (61.min(sent).max(60), 200));
    let waits: Vec<_> = parked.windows(2).map(|pair| pair[1].until.since(pair[0].until)).collect();
    assert!(waits.iter().all(|apart| *apart <= Duration::from_millis(1100)), "{waits:?}");
    let span = parked.last().unwrap().until.since(parked[0].until);
    assert!(span >= Duration::from_secs(130), "{span:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_within_a_second_is_held() {
    let window = Limit::first_hit_window("plan.free.window", 1, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window)]);
    bench.options.hold_max = Duration::from_secs(1);
    bench.tickets.parking = ScriptedParking::Done;
    publish(&bench, "free", 1);
    let _running = bench.start();
    bench.sink.arrived(1).await;
    let deadline = i128::from(wall_now().plus(Duration::from_millis(900)).0 / 1000);
    let mut ends = on("free", message("ends"));
    ends.headers.push(("paced-deadline".to_owned(), Value::Integer(deadline)));
    bench.publish(ends);
    bench.ledger.count(2).await;
    // It was not parked before.
    assert_eq!(bench.ledger.letter("ends").reason, Reason::Expired);
}

#[tokio::test(start_paused = true)]
async fn where_limits_police_nothing_is_parked_for_them() {
    let mut bench = bench("100/s", vec![("slow", leaky("plan.slow.l", "1/min", 1))]);
    bench.options.on_limit = OnLimit::Reject;
    bench.tickets.parking = ScriptedParking::Done;
    publish(&bench, "slow", 40);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(parked(&bench, "slow").len(), 0);
    let rejected = bench.ledger.all().into_iter().filter(|(_, how)| matches!(how, Settled::Dead(_))).count();
    assert!(rejected >= 38, "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_refused_take_no_place_among_those_that_are_parked() {
    let mut bench = bench("1000/s", vec![("free", leaky("plan.free.l", "1/s", 1))]);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.max_wait = Some(Duration::from_secs(600));
    publish(&bench, "free", 3000);
    let done = bench.start();
    let counted = |bench: &Bench| {
        let all = bench.ledger.all();
        let count = |is_meant: fn(&Settled) -> bool| all.iter().filter(|(_, how)| is_meant(how)).count();
        (count(|how| matches!(how, Settled::Parked(_))), count(|how| matches!(how, Settled::Dead(_))))
    };
    // 30 of the 60 that are held have gone.
    bench.ledger.count(2970).await;
    let (parked, refused) = counted(&bench);
    assert!((530..=550).contains(&parked), "{parked} of 3000 go within 600 s and not within 60 s");
    assert!((2390..=2410).contains(&refused), "{refused}");
    for job in 0..50 {
        bench.publish(on("free", message(&format!("later{job}"))));
    }
    bench.ledger.count(2970 + 20).await;
    let (parked_then, refused_then) = counted(&bench);
    assert!(parked_then >= parked + 15 && refused_then <= refused + 5, "{parked_then} {refused_then}");
    bench.stop.cancel();
    done.await.unwrap();
}

/// The jobs of a slow plan fill the window, and the others wait behind them.
#[tokio::test(start_paused = true)]
async fn a_slow_plan_leaves_a_full_window_to_others() {
    let mut bench = bench("100/s", vec![("slow", leaky("plan.slow.l", "1/s", 1))]);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.prefetch = 50;
    bench.bound_window(50);
    publish(&bench, "slow", 60);
    publish(&bench, "none", 200);
    let (start, wall) = (Instant::now(), wall_now());
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let none = millis(&bench, "none", start);
    assert!(none.len() == 200 && none.last() <= Some(&2300), "{none:?}");
    let all = bench.ledger.all().into_iter();
    let waits: Vec<(f64, f64)> = all
        .filter_map(|(id, how)| {
            let Settled::Parked(stay) = how else { return None };
            assert_eq!(stay.reason, ParkReason::Limit);
            Some((id.strip_prefix("slow")?.parse().ok()?, stay.until.since(wall).as_secs_f64()))
        })
        .collect();
    assert!(waits.len() >= 50, "{waits:?}");
    assert!(
        waits.iter().all(|(place, wait)| (place - wait).abs() < 3.0),
        "each when its turn comes: {waits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_comes_back_to_a_plan_in_vain_does_not_do_so_all_the_time() {
    let mut bench = bench("100/s", vec![("slow", leaky("plan.slow.l", "1/s", 1))]);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.prefetch = 10;
    publish(&bench, "slow", 4);
    publish(&bench, "none", 50);
    let _running = bench.start();
    tokio::time::sleep(QUICK).await;
    let now = wall_now();
    let stay = Stay {
        until: now,
        reason: ParkReason::Limit,
        attempts: 0,
        throttled: 0,
        refused: 0,
        unreadable: 0,
        first_seen: now,
        assigned_id: None,
        versions: None,
    };
    for back in 0..4 {
        bench.publish_parked(on("slow", message(&format!("back{back}"))), stay.clone());
    }
    bench.ledger.count(50).await;
    let parked = parked(&bench, "back");
    assert!(parked.len() >= 2, "{parked:?}");
    for stay in parked {
        let wait = stay.until.since(now);
        assert!(wait >= Duration::from_secs(10) && wait < Duration::from_secs(11), "{wait:?}");
    }
}

/// A plan that releases more than the downstream does: its jobs wait for the downstream's own slots, and block no
/// other job.
#[tokio::test(start_paused = true)]
async fn a_plan_that_waits_for_the_downstream_alone_keeps_its_jobs() {
    let mut bench = bench("10/s", vec![("quick", leaky("plan.quick.l", "20/s", 1))]);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.prefetch = 100;
    bench.bound_window(100);
    publish(&bench, "quick", 400);
    let start = Instant::now();
    let _running = bench.start();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(parked(&bench, "quick").is_empty());
    let sent = millis(&bench, "quick", start).len();
    assert!((99..=101).contains(&sent), "{sent} in 10 s");
}
