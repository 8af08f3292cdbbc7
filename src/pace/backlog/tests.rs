use super::*;
use crate::pace::Caller;

const MS: Duration = Duration::from_millis(1);

fn seqs(callers: Vec<Caller>) -> Vec<u64> {
    callers.into_iter().map(|caller| caller.seq()).collect()
}

fn popped(backlog: &mut Backlog<Caller>, lane: LaneId) -> Vec<u64> {
    seqs(std::iter::from_fn(|| backlog.pop(lane)).collect())
}

#[test]
fn within_a_lane_the_higher_priority_goes_first_and_who_comes_back_takes_its_old_place() {
    let (mut backlog, plan) = (Backlog::new(1), LaneId::of_plan(Some(0)));
    for (seq, priority, lane) in [
        (0, 0, LaneId::DOWNSTREAM),
        (1, 9, LaneId::DOWNSTREAM),
        (2, 255, LaneId::DOWNSTREAM),
        (3, 9, plan),
        (4, 0, LaneId::DOWNSTREAM),
    ] {
        backlog.push(Caller::new(seq).priority(priority).lane(lane));
    }
    assert_eq!((backlog.ready(LaneId::DOWNSTREAM), backlog.ready(plan), backlog.len()), (4, 1, 5));
    let first = backlog.pop(LaneId::DOWNSTREAM).unwrap();
    assert_eq!(first.seq(), 1, "255 counts as 9, and came later");
    backlog.push(first);
    assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [1, 2, 0, 4]);
    assert_eq!(popped(&mut backlog, plan), [3]);
    assert!(backlog.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_may_go_later_and_who_waits_for_a_window_is_promoted_in_time() {
    let (mut backlog, start) = (Backlog::new(0), Instant::now());
    let early = 10 * MS;
    backlog.push_later(start + 50 * MS, Caller::new(0));
    backlog.put_aside(start + 55 * MS, Caller::new(1));
    assert_eq!(backlog.wake_at(early), Some(start + 45 * MS), "so much before the window ends");
    backlog.tick(start + 44 * MS, early);
    assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [0; 0]);
    backlog.tick(start + 45 * MS, early);
    assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [1]);
    assert_eq!(backlog.wake_at(early), Some(start + 50 * MS));
    backlog.tick(start + 50 * MS, early);
    let waited = backlog.pop(LaneId::DOWNSTREAM).unwrap();
    assert_eq!(waited.since(), start + 50 * MS, "it waits for a slot since it may go");
    assert_eq!(backlog.wake_at(early), None);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_is_found_among_all_priorities_and_those_put_aside() {
    let (mut backlog, later) = (Backlog::new(1), Instant::now() + MS);
    assert_eq!(backlog.oldest(), None);
    backlog.push(Caller::new(7).priority(9));
    backlog.push(Caller::new(5));
    backlog.push(Caller::new(6).lane(LaneId::of_plan(Some(0))));
    backlog.push_later(later, Caller::new(1));
    assert_eq!((backlog.oldest(), backlog.next_due()), (Some(5), Some(later)));
    backlog.put_aside(later, Caller::new(2));
    assert_eq!((backlog.oldest(), backlog.later().count()), (Some(2), 1));
}

#[tokio::test(start_paused = true)]
async fn all_that_were_put_aside_come_back_together() {
    let (mut backlog, start) = (Backlog::new(0), Instant::now());
    (0..3).for_each(|seq| backlog.put_aside(start + 500 * MS, Caller::new(seq)));
    backlog.take_back(start + 499 * MS);
    assert_eq!(backlog.ready(LaneId::DOWNSTREAM), 0);
    backlog.take_all_back();
    assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_no_longer_is_found_wherever_it_is() {
    let (mut backlog, later) = (Backlog::new(1), Instant::now() + MS);
    let plan = LaneId::of_plan(Some(0));
    backlog.push(Caller::new(0).priority(4).lane(plan));
    backlog.push_later(later, Caller::new(1));
    backlog.put_aside(later, Caller::new(2));
    for (lane, priority, seq) in [(LaneId::DOWNSTREAM, 4, 0), (plan, 3, 0), (plan, 4, 1_000)] {
        assert!(backlog.remove(lane, priority, seq).is_none(), "another one");
    }
    for (lane, priority, seq) in [(plan, 4, 0), (LaneId::DOWNSTREAM, 0, 1), (LaneId::DOWNSTREAM, 0, 2)] {
        assert_eq!(backlog.remove(lane, priority, seq).map(|caller| caller.seq()), Some(seq));
    }
    assert!(backlog.is_empty());
    backlog.push(Caller::new(3).cost(2));
    assert!(backlog.pop_if(LaneId::DOWNSTREAM, |caller| caller.cost() == 1.into()).is_none());
    assert!(backlog.pop_if(plan, |_| true).is_none());
    let popped = backlog.pop_if(LaneId::DOWNSTREAM, |caller| caller.cost() == 2.into());
    assert_eq!((popped.map(|caller| caller.seq()), backlog.len()), (Some(3), 0));
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_is_found_in_time_wherever_it_is() {
    let (mut backlog, start, plan) = (Backlog::new(1), Instant::now(), LaneId::of_plan(Some(0)));
    let caller = |seq, end: u32| Caller::new(seq).end(start + end * MS, false);
    let ended = |backlog: &mut Backlog<Caller>, at: u32| {
        backlog.tick(start + at * MS, Duration::ZERO);
        seqs(std::iter::from_fn(|| backlog.take_ended(start + at * MS)).collect())
    };
    assert!(!backlog.has_ends());
    backlog.push(caller(0, 30).priority(9));
    backlog.push(caller(1, 20).lane(plan));
    backlog.push(caller(2, 40));
    backlog.push(Caller::new(3));
    backlog.push_later(start + 500 * MS, caller(4, 50));
    backlog.put_aside(start + 500 * MS, caller(5, 60));
    assert_eq!(backlog.wake_at(Duration::ZERO), Some(start + 20 * MS));
    assert_eq!(ended(&mut backlog, 19), [0; 0]);
    assert_eq!(ended(&mut backlog, 30), [1, 0]);
    assert_eq!(backlog.end_of_last(LaneId::DOWNSTREAM), None, "that one waits as long as it takes");
    assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [2, 3]);
    assert_eq!(backlog.wake_at(Duration::ZERO), Some(start + 50 * MS), "who has a slot gives up no more");
    assert_eq!(ended(&mut backlog, 55), [4]);
    assert_eq!(ended(&mut backlog, 60), [5]);
    assert!(backlog.is_empty() && !backlog.has_ends());
    (6..10).for_each(|seq| backlog.push(Caller { is_live: seq == 7, ..caller(seq, 70) }));
    backlog.drop_stale();
    assert_eq!(ended(&mut backlog, 70), [7]);
    backlog.push(caller(10, 80));
    backlog.push(caller(10, 90));
    assert_eq!(ended(&mut backlog, 80), [0; 0], "the later one of the same position counts");
    assert_eq!((backlog.wake_at(Duration::ZERO), ended(&mut backlog, 90)), (Some(start + 90 * MS), vec![10]));
    backlog.put_aside(start + 500 * MS, caller(11, 100));
    backlog.take_back(start + 500 * MS);
    assert_eq!((backlog.ready(LaneId::DOWNSTREAM), ended(&mut backlog, 100)), (1, vec![11]));
    backlog.push(caller(12, 110));
    backlog.put_aside(start + 500 * MS, caller(13, 110));
    assert_eq!((backlog.drain().len(), backlog.has_ends()), (2, false));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_taken_wherever_they_are() {
    let (mut backlog, later) = (Backlog::new(1), Instant::now() + MS);
    backlog.push(Caller::new(0));
    backlog.push(Caller::new(1).lane(LaneId::of_plan(Some(0))).end(later, false));
    backlog.push_later(later, Caller::new(2));
    backlog.put_aside(later, Caller::new(3));
    backlog.push(Caller::new(4));
    assert_eq!(seqs(backlog.take(|caller| caller.seq() > 0 && caller.seq() < 4)), [1, 2, 3]);
    assert!(!backlog.has_ends());
    assert_eq!(seqs(backlog.drain()), [0, 4]);
}

#[tokio::test(start_paused = true)]
async fn stale_waiters_are_dropped_wherever_they_are() {
    let (mut backlog, later) = (Backlog::new(0), Instant::now() + MS);
    for seq in 0..3000 {
        let caller = Caller { is_live: seq % 3 == 0, ..Caller::new(seq) };
        match seq % 5 {
            0 => backlog.push_later(later, caller),
            1 => backlog.put_aside(later, caller),
            _ => backlog.push(caller),
        }
        assert_eq!(backlog.is_crowded(), seq >= 1023);
    }
    backlog.drop_stale();
    assert_eq!((backlog.len(), backlog.is_crowded()), (1000, false));
    (3000..3999).for_each(|seq| backlog.push(Caller::new(seq)));
    assert!(!backlog.is_crowded(), "as many more, before it is looked again");
    backlog.push(Caller::new(4000));
    assert!(backlog.is_crowded());
    assert_eq!(backlog.drain().len(), 2000);
}

#[tokio::test(start_paused = true)]
async fn those_that_may_wait_elsewhere_are_taken_from_the_end() {
    let (mut backlog, start) = (Backlog::new(0), Instant::now());
    for seq in 0..8 {
        let caller = Caller { is_movable: seq % 4 != 3, ..Caller::new(seq) };
        backlog.push_later(start + (10 + u32::try_from(seq).unwrap() / 2) * MS, caller);
    }
    assert_eq!(backlog.last_due(), Some(start + 13 * MS), "that of 6");
    assert_eq!(taken(&mut backlog, start + 12 * MS, 9), [6]);
    assert_eq!(taken(&mut backlog, start, 2), [4, 5]);
    backlog.tick(start + 10 * MS, Duration::ZERO);
    assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [0, 1]);
    assert_eq!(backlog.last_due(), Some(start + 11 * MS));
    backlog.push_later(start + 20 * MS, Caller { is_live: false, is_movable: true, ..Caller::new(9) });
    backlog.drop_stale();
    assert_eq!(taken(&mut backlog, start, 9), [2], "the others must stay");
    assert_eq!((backlog.len(), backlog.last_due()), (2, None));
}

/// The positions of the last ones that become ready after `after`, at most this many.
fn taken(backlog: &mut Backlog<Caller>, after: Instant, most: usize) -> Vec<u64> {
    seqs(backlog.take_last(after, most).into_iter().map(|(_, caller)| caller).collect())
}

#[tokio::test(start_paused = true)]
async fn rows_that_the_last_waiter_has_left_are_noted() {
    let lane = LaneId::at(0).in_row(5);
    let ways: [fn(&mut Backlog<Caller>, LaneId); 7] = [
        |backlog, lane| assert!(backlog.pop_last(lane).is_some()),
        |backlog, lane| assert!(backlog.pop_if(lane, |_| true).is_some()),
        |backlog, lane| assert!(backlog.remove(lane, 0, 1).is_some()),
        |backlog, _| assert!(backlog.take_ended(Instant::now()).is_some()),
        |backlog, _| assert_eq!(backlog.take(|_| true).len(), 1),
        |backlog, _| assert_eq!(backlog.drain().len(), 1),
        |backlog, _| backlog.drop_stale(),
    ];
    for leave in ways {
        let mut backlog = Backlog::new(0).with_rows_for_lanes();
        for seq in 0..2 {
            let caller = Caller { is_live: false, ..Caller::new(seq) };
            backlog.push(caller.lane(lane).end(Instant::now(), false));
        }
        assert_eq!(backlog.take_touched(), [5].into());
        assert!(backlog.pop(lane).is_some());
        assert!(!backlog.has_touched(), "another one is there");
        leave(&mut backlog, lane);
        assert!(backlog.is_empty());
        assert_eq!(backlog.take_touched(), [5].into());
    }
}
