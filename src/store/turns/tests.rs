//! Tests of the queue of turns.

use super::*;

const MS: Duration = Duration::from_millis(1);
const NOW: Micros = Micros(1_760_000_000_000_000);

const fn asker(waiting: u64) -> Asker {
    Asker {
        turn: None,
        reach: Duration::from_millis(100),
        waiting,
        own: 1,
        interval: Duration::MAX,
        goes_on: false,
        farthest: Duration::from_secs(3600),
    }
}

const fn wants(units: u64, cost: u32) -> Option<Wants> {
    Some(Wants { units, cost })
}

fn turn(next: NextTurn) -> Turn {
    match next {
        NextTurn::At(turn) => turn,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_turn_is_what_lies_in_0_4_of_the_reach() {
    assert_eq!(units(100 * MS, 5 * MS), 8);
    assert_eq!(units(500 * MS, 5 * MS), 40);
    assert_eq!([units(100 * MS, 70 * MS), units(100 * MS, 3600 * MS)], [1, 1]);
    assert_eq!(units(100 * MS, Duration::ZERO), 1024, "a burst has no end");
    assert_eq!(lead(125 * MS), 75 * MS);
}

#[test]
fn turns_follow_each_other_and_none_begins_before_the_next_free_slot() {
    let mut queue = Queue::default();
    assert_eq!(queue.extend_reach(NOW, 100 * MS), 100 * MS);
    let mut book = |free, left, cost| {
        let slots = (NOW.plus(free), 5 * MS);
        let turn = turn(queue.next_turn(NOW, &asker(left), slots, wants(left, cost), false));
        (turn.begins.since(NOW), turn.units, turn.ask_at().since(NOW))
    };
    assert_eq!(book(100 * MS, 50, 1), (100 * MS, 8, 40 * MS));
    assert_eq!(book(100 * MS, 3, 1), (140 * MS, 3, 80 * MS), "no more than wait");
    assert_eq!(book(100 * MS, 2, 20), (155 * MS, 20, 95 * MS), "one job at least");
    assert_eq!(book(400 * MS, 50, 1), (400 * MS, 8, 340 * MS), "others took slots beyond the queue");
}

#[test]
fn no_turn_is_booked_where_no_slot_is_ever_free() {
    let (mut queue, asker) = (Queue::default(), Asker { farthest: Duration::MAX, ..asker(10) });
    queue.extend_reach(NOW, 100 * MS);
    for spacing in [Duration::ZERO, 5 * MS] {
        let next = queue.next_turn(NOW, &asker, (Micros::MAX, spacing), wants(10, 1), false);
        assert_eq!((next, queue.end), (NextTurn::Later(Micros::MAX), Micros(0)), "others can book");
    }
}

#[test]
fn a_call_takes_what_is_free_up_to_the_end_of_its_turn() {
    let turn = Turn { begins: NOW.plus(100 * MS), units: 8, spacing: 5 * MS, lead: 60 * MS };
    let until = |late: u32| turn.until(turn.ask_at().plus(MS * late)).since(turn.begins);
    let half = Duration::from_micros(2500);
    // The last of eight slots lies 35 ms behind the first.
    assert_eq!([until(0), until(10)], [40 * MS - half; 2]);
    assert_eq!(until(30), 60 * MS - half, "who is later takes others' as far ahead, but less");
    let early = turn.until(turn.ask_at().minus(5 * MS));
    assert_eq!(early.since(turn.begins), 35 * MS - half);
}

#[test]
fn the_end_of_a_window_makes_no_turn_long() {
    let (mut queue, minute) = (Queue::default(), Duration::from_secs(60));
    queue.extend_reach(NOW, 100 * MS);
    let asker = Asker { interval: Duration::from_secs(6), ..asker(50) };
    let booked = turn(queue.next_turn(NOW, &asker, (NOW, minute), wants(50, 3), false));
    assert_eq!((booked.spacing, queue.end.since(NOW)), (asker.interval, 3 * asker.interval));
}

#[test]
fn what_is_too_far_off_is_not_booked() {
    let mut queue = Queue::default();
    queue.extend_reach(NOW, 100 * MS);
    let hour = Duration::from_secs(3600);
    let far = NOW.plus(hour);
    let mut book = |farthest| {
        let asker = Asker { farthest, ..asker(5) };
        (queue.next_turn(NOW, &asker, (far, hour), wants(5, 1), false), queue.end)
    };
    assert_eq!(book(hour - MS), (NextTurn::Later(far), Micros(0)), "nobody waits behind it");
    assert!(matches!(book(hour).0, NextTurn::At(_)));
    let booking = Booking { reach: 100 * MS, next: NextTurn::Later(far) };
    assert_eq!(booking.lease_ttl(NOW), LONGEST_TURN_LEASE);
}

#[test]
fn slow_limits_book_far_ahead_but_for_those_by_a_calendar() {
    let ahead = |limits| {
        let limits = LimitSet::new(limits).unwrap();
        booking_ahead(&limits, limits.iter().map(|limit| limit.rate().interval()).max().unwrap()).as_secs()
    };
    let leaky = |rate: &str| Limit::leaky_bucket("l", rate.parse().unwrap(), 1).unwrap();
    let day = crate::limit::Calendar::new(crate::limit::calendar::Unit::Day, 0).unwrap();
    let quota = Limit::quota("q", 10, Edges::Calendar(day)).unwrap();
    assert_eq!([ahead(vec![leaky("200/s")]), ahead(vec![leaky("10/h")])], [300, 360_000]);
    assert_eq!(ahead(vec![leaky("10/h"), quota]), 300);
}

#[test]
fn the_farthest_reach_counts_for_a_while() {
    let mut queue = Queue::default();
    let mut extend_reach =
        |seconds, reach| queue.extend_reach(NOW.plus(Duration::from_secs(seconds)), MS * reach);
    assert_eq!(extend_reach(0, 100), 100 * MS);
    assert_eq!([extend_reach(1, 175), extend_reach(2, 100), extend_reach(30, 100)], [175 * MS; 3]);
    assert_eq!(extend_reach(31, 100), 100 * MS, "nobody needed more for 30 s");
}

#[test]
fn a_turn_that_is_not_used_up_goes_on() {
    let mut queue = Queue::default();
    queue.extend_reach(NOW, 100 * MS);
    let held = turn(queue.next_turn(NOW, &asker(50), (NOW.plus(100 * MS), 5 * MS), wants(50, 1), false));
    let asker = Asker { turn: Some(held), goes_on: true, ..asker(50) };
    let at = held.ask_at();
    let book = |queue: &mut Queue, free| {
        queue.next_turn(at, &asker, (held.begins.plus(MS * free), 5 * MS), wants(40, 1), true)
    };
    assert_eq!(book(&mut queue, 35), NextTurn::None);
    assert_eq!(turn(book(&mut queue, 40)).begins, held.begins.plus(40 * MS));
}

const S: Duration = Duration::from_secs(1);

/// A queue of turns of one slot, a second apart; and these turns.
fn seconds(count: u32) -> (Queue, Vec<Turn>) {
    let mut queue = Queue::default();
    queue.extend_reach(NOW, 100 * MS);
    let asker = Asker { interval: S, ..asker(1) };
    let book = |_| turn(queue.next_turn(NOW, &asker, (NOW.plus(S), S), wants(1, 1), false));
    let turns = (0..count).map(book).collect();
    (queue, turns)
}

/// A call of who holds this turn and has `left` units, at an instant when the next slot is `free`.
fn call(
    queue: &mut Queue,
    held: &Turn,
    now: Micros,
    (free, left): (Micros, u64),
    is_granted: bool,
) -> NextTurn {
    let asker = Asker { turn: Some(*held), interval: S, ..asker(left) };
    queue.next_turn(now, &asker, (free, S), wants(left, 1).filter(|_| left > 0), is_granted)
}

#[test]
fn who_calls_before_its_turn_keeps_it() {
    let (mut queue, turns) = seconds(4);
    let (before, last) = (queue, &turns[3]);
    for is_granted in [false, true] {
        let next = call(&mut queue, last, NOW.plus(S), (turns[1].begins, 5), is_granted);
        assert_eq!((next, queue), (NextTurn::At(*last), before));
    }
    // At its turn it was granted a slot: it gets another turn.
    let at = last.ask_at().minus(last.lead / 4);
    assert!(last.is_due(at) && !last.is_due(at.minus(Duration::from_micros(1))));
    let next = turn(call(&mut queue, last, at, (last.end(), 5), true));
    assert_eq!(next.begins, before.end);
}

#[test]
fn who_gets_no_slot_at_its_turn_keeps_the_rest_of_it() {
    let mut queue = Queue::default();
    queue.extend_reach(NOW, 100 * MS);
    let held = turn(queue.next_turn(NOW, &asker(50), (NOW.plus(100 * MS), 5 * MS), wants(50, 1), false));
    let mut rest = |late: u32| {
        let (free, asker) = (held.begins.plus(MS * late), Asker { turn: Some(held), ..asker(50) });
        let rest = turn(queue.next_turn(held.ask_at(), &asker, (free, 5 * MS), wants(50, 1), false));
        (rest.begins.since(held.begins), rest.units)
    };
    let later = Duration::from_millis;
    assert_eq!([rest(0), rest(12), rest(37)], [(later(0), 8), (later(12), 6), (later(37), 1)]);
    assert_eq!(rest(38).1, 8, "it is over: another one is booked");
}

#[test]
fn a_turn_that_was_discarded_is_not_kept() {
    let (mut queue, turns) = seconds(3);
    queue.forget_turns();
    let next = turn(call(&mut queue, &turns[2], NOW, (turns[0].begins, 5), false));
    assert_eq!(next.begins, turns[0].begins);
}

#[test]
fn a_turn_that_is_given_back_goes_to_the_next_who_books() {
    let (mut queue, turns) = seconds(5);
    let mut give_back = |number: usize| {
        assert_eq!(call(&mut queue, &turns[number], NOW, (turns[0].begins, 0), false), NextTurn::None);
        (queue.end, queue.vacancy)
    };
    let (begins, ends) = (|number: usize| turns[number].begins, |number: usize| turns[number].end());
    let none = (Micros(0), Micros(0));
    assert_eq!(give_back(4), (ends(3), none), "the tail");
    assert_eq!(give_back(2), (ends(3), (begins(2), ends(2))), "a gap");
    assert_eq!(give_back(1), (ends(3), (begins(1), ends(2))), "a longer gap");
    assert_eq!(give_back(3), (begins(1), none), "the tail, with the gap before it");

    let (mut queue, turns) = seconds(5);
    let book = |queue: &mut Queue, units| {
        let asker = Asker { interval: S, ..asker(units) };
        turn(queue.next_turn(NOW, &asker, (NOW.plus(S), S), wants(units, 1), false)).begins
    };
    for number in [1, 3] {
        call(&mut queue, &turns[number], NOW, (turns[0].begins, 0), false);
    }
    assert_eq!(queue.vacancy, (turns[1].begins, turns[1].end()), "the earliest is remembered");
    assert_eq!(book(&mut queue, 1), turns[1].begins);
    assert_eq!((queue.vacancy, book(&mut queue, 1)), (none, turns[4].end()));
    // One that lies behind the next slot is of no use.
    call(&mut queue, &turns[2], NOW, (turns[0].begins, 0), false);
    let asker = Asker { interval: S, ..asker(1) };
    let next = queue.next_turn(NOW, &asker, (turns[2].end(), S), wants(1, 1), false);
    assert_eq!((turn(next).begins, queue.vacancy), (turns[4].end().plus(S), none));
}

#[test]
fn who_goes_on_keeps_its_turn_for_others_of_its_jobs() {
    let (mut queue, turns) = seconds(2);
    let before = queue;
    let asker = Asker { turn: Some(turns[0]), interval: S, goes_on: true, ..asker(1) };
    assert_eq!(queue.next_turn(NOW, &asker, (turns[0].begins, S), None, false), NextTurn::None);
    assert_eq!(queue, before);
}

#[test]
fn turns_follow_slots_that_lie_later_than_was_planned() {
    let begins = |late: u32| {
        let (mut queue, turns) = seconds(2);
        let asker = Asker { interval: S, ..asker(1) };
        let free = turns[0].begins.plus(MS * late);
        turn(queue.next_turn(NOW, &asker, (free, S), wants(1, 1), false)).begins.since(turns[1].end())
    };
    assert_eq!([begins(60), begins(61), begins(500)], [Duration::ZERO, 61 * MS, 500 * MS]);
    assert_eq!(begins(501), Duration::ZERO, "they are earlier");
}
