//! Tests of the choice of lanes, the instants of requests, and the reach of slots.

use super::*;
use crate::pace::{Caller, PlanLimits, tests};

const MS: Duration = Duration::from_millis(1);
const OWN: LaneId = LaneId::DOWNSTREAM;

/// Returns the lane of one of two plans.
fn plan(number: usize) -> LaneId {
    LaneId::of_plan(Some(number))
}

/// Returns settings of 100/s, with a plan of 10/s and one of the whole pace.
fn settings() -> Settings {
    let settings = tests::settings("100/s");
    let with = |rate: &str| {
        let own = Limit::leaky_bucket("plan", rate.parse().unwrap(), 1).unwrap();
        let limits = settings.limits.listed().cloned().chain([own]).collect();
        PlanLimits { name: rate.to_owned(), limits: LimitSet::new(limits).unwrap() }
    };
    Settings { plans: vec![with("10/s"), with("100/s")], ..settings.clone() }
}

/// Returns a backlog of callers of priority 0 in these lanes, in this order.
fn backlog(lanes: &[LaneId]) -> Backlog<Caller> {
    let mut backlog = Backlog::new(2);
    for (seq, lane) in (0..).zip(lanes) {
        backlog.push(Caller::new(seq).lane(*lane));
    }
    backlog
}

fn next(schedule: &Schedule, backlog: &Backlog<Caller>) -> Option<LaneId> {
    schedule.next(backlog, Instant::now()).map(|next| next.lane)
}

#[tokio::test(start_paused = true)]
async fn nobody_waits() {
    let schedule = Schedule::new(&settings());
    assert_eq!(next(&schedule, &backlog(&[])), None);
    assert_eq!(schedule.wake_at(&backlog(&[]), Instant::now()), None);
}

#[tokio::test(start_paused = true)]
async fn equals_share_evenly_whatever_each_call_brings() {
    let (mut schedule, backlog) = (Schedule::new(&settings()), backlog(&[OWN, plan(1)]));
    let mut turns = vec![];
    for units in [8, 3, 3, 3, 1, 1] {
        let lane = next(&schedule, &backlog).unwrap();
        schedule.on_granted(lane, units, None);
        turns.push(lane);
    }
    // The first lane gets 8, then the other until it has more; of two with as much, the waiter that came first.
    assert_eq!(turns, [OWN, plan(1), plan(1), plan(1), OWN, OWN]);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_was_empty_gains_nothing_by_it() {
    let mut schedule = Schedule::new(&settings());
    let alone = backlog(&[OWN]);
    for _ in 0..100 {
        assert_eq!(next(&schedule, &alone), Some(OWN));
        schedule.on_granted(OWN, 1, None);
    }
    let both = backlog(&[OWN, plan(1)]);
    let mut granted = [0; 2];
    for _ in 0..10 {
        let lane = next(&schedule, &both).unwrap();
        granted[usize::from(lane == plan(1))] += 1;
        schedule.on_granted(lane, 1, None);
    }
    assert_eq!(granted, [5, 5], "not all ten to the newcomer");
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first_and_ends_the_batch_of_the_others() {
    let schedule = Schedule::new(&settings());
    let mut backlog = backlog(&[OWN]);
    backlog.push(Caller::new(7).lane(plan(1)).priority(9));
    let next = schedule.next(&backlog, Instant::now()).unwrap();
    assert_eq!((next.lane, next.rank), (plan(1), 9), "down to where the other's first one is");
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_its_own_limits_refuse_sleeps_while_others_go_on() {
    let (mut schedule, now) = (Schedule::new(&settings()), Instant::now());
    let both = backlog(&[plan(0), OWN]);
    assert_eq!(next(&schedule, &both), Some(plan(0)), "it came first");
    schedule.sleep(plan(0), now + 100 * MS);
    assert_eq!(next(&schedule, &both), Some(OWN));
    assert_eq!(schedule.waiting(&both, now), 1);
    // Its slot may be requested shortly before it comes, if no other lane has waiters.
    let alone = backlog(&[plan(0)]);
    assert_eq!((next(&schedule, &alone), schedule.wake_at(&alone, now)), (None, Some(now + 80 * MS)));
    tokio::time::advance(80 * MS).await;
    assert_eq!(next(&schedule, &alone), Some(plan(0)));
    // It may also be requested when the downstream's next slot is as late.
    schedule.on_next_slot(OWN, now + 100 * MS);
    assert_eq!(schedule.waiting(&both, Instant::now()), 2);
}

#[tokio::test(start_paused = true)]
async fn no_slot_is_taken_that_a_sleeping_lane_waits_for() {
    let (mut schedule, now) = (Schedule::new(&settings()), Instant::now());
    let both = backlog(&[plan(0), OWN]);
    let reach = schedule.next(&backlog(&[OWN]), now).unwrap().ahead;
    schedule.sleep(plan(0), now + 30 * MS);
    let ahead = schedule.next(&both, now).unwrap().ahead;
    assert_eq!((reach > 30 * MS, ahead), (true, 30 * MS - Duration::from_micros(1)));
}

#[tokio::test(start_paused = true)]
async fn of_a_slow_lane_one_at_a_time_while_others_wait() {
    let schedule = Schedule::new(&settings());
    let count = |lanes: &[LaneId]| {
        let backlog = backlog(lanes);
        let next = schedule.next(&backlog, Instant::now()).unwrap();
        schedule.batch(next, backlog.ready(next.lane), 64).count
    };
    assert_eq!(count(&[plan(0), plan(0), plan(0), OWN]), 1, "more would leave slots between them unused");
    assert_eq!(count(&[OWN, OWN, OWN, plan(0)]), 2, "half a turn");
}

#[tokio::test(start_paused = true)]
async fn those_that_cost_much_are_barred_until_their_window_ends() {
    let (mut schedule, now) = (Schedule::new(&settings()), Instant::now());
    assert!(!schedule.take_bars_lifted());
    schedule.bar(OWN, 5, now + 100 * MS);
    assert_eq!(schedule.barred(OWN, 5, now), Some(now + 100 * MS));
    assert_eq!((schedule.barred(OWN, 4, now), schedule.barred(plan(0), 5, now)), (None, None));
    assert_eq!(schedule.barred(OWN, 9, now + 100 * MS), None, "the call reaches it");
    schedule.forget();
    assert_eq!(schedule.barred(OWN, 5, now), None);
    assert!(schedule.take_bars_lifted() && !schedule.take_bars_lifted(), "reported once");
}

#[tokio::test(start_paused = true)]
async fn a_small_call_waits_a_moment_for_more_concurrency() {
    let (mut schedule, now) = (Schedule::new(&settings()), Instant::now());
    let batch = |count, is_scarce| Batch { count, is_scarce };
    assert!(schedule.delays(OWN, batch(1, true), now));
    let until = schedule.batch_delay_until().unwrap();
    assert!(until > now && schedule.delays(OWN, batch(1, true), until - Duration::from_micros(1)));
    assert!(!schedule.delays(OWN, batch(1, true), until), "and no longer");
    assert_eq!(schedule.batch_delay_until(), None);
    assert!(!schedule.delays(OWN, batch(4, false), now) && schedule.delays(OWN, batch(0, false), now));
}

#[tokio::test(start_paused = true)]
async fn other_limits_keep_the_shares_and_void_what_was_learnt() {
    let (mut schedule, now) = (Schedule::new(&settings()), Instant::now());
    let both = backlog(&[OWN, plan(1)]);
    schedule.on_granted(OWN, 5, None);
    schedule.sleep(plan(1), now + 1000 * MS);
    schedule.set_replicas(4);
    schedule.follow(&settings(), false);
    assert_eq!(next(&schedule, &both), Some(plan(1)), "it has had less, and sleeps no more");
    assert_eq!(schedule.batching(OWN).replicas(), 4);
}

#[tokio::test(start_paused = true)]
async fn who_is_passed_on_comes_after_those_before_it_less_those_that_were_released() {
    let (mut schedule, start, apart) = (Schedule::new(&settings()), Instant::now(), 100 * MS);
    let mut seq = 0;
    let mut place = |after: u32| {
        seq += 1;
        let before = schedule.passed_on(plan(0), start + after * MS, apart).before(seq);
        schedule.pass_on(plan(0), seq);
        before
    };
    assert_eq!([place(0), place(0), place(50), place(99)], [0, 1, 2, 3]);
    assert_eq!([place(250), place(299), place(300)], [2, 3, 3], "one place less after each interval");
    assert_eq!([place(60_000), place(60_000)], [0, 1], "all were released");
    assert_eq!(place(0), 2, "a start that lies earlier releases nothing");
    let mut before = |lane, seq| schedule.passed_on(lane, start, apart).before(seq);
    assert_eq!(
        (before(plan(0), 10), before(plan(0), 11)),
        (0, 3),
        "none comes before who is older than the last"
    );
    assert_eq!(before(plan(1), 11), 0, "another lane");
    schedule.follow(&settings(), false);
    assert_eq!(schedule.passed_on(plan(0), start, apart).before(11), 0, "other limits");
}
