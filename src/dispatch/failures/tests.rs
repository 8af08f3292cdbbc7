use super::*;
use crate::job::Reason;
use crate::sink::{Receipt, Response};

const SECOND: Duration = Duration::from_secs(1);

fn failed(kind: &str) -> Ending {
    Ending::Failed(Box::new(Attempt { kind: kind.to_owned(), detail: format!("{kind} it was") }))
}

/// The line that this end of an attempt causes, as text.
fn line(failures: &mut Failures, ending: Ending, at: Instant) -> String {
    text(failures.ended(ending, at))
}

fn text(line: Option<Line>) -> String {
    match line {
        None => String::new(),
        Some(Line::Begins(outage)) => format!("begins: {}", outage.kind),
        Some(Line::GoesOn(outage)) => format!("goes on: {} {}", outage.kind, outage.attempts),
        Some(Line::IsOver(outage)) => format!("over: {}", outage.attempts),
    }
}

#[tokio::test(start_paused = true)]
async fn each_arrow_of_the_table() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    assert_eq!(line(&mut failures, failed("500"), start), "");
    assert_eq!(line(&mut failures, failed("500"), start), "");
    assert!(failures.outage().is_none());
    assert_eq!(line(&mut failures, failed("timeout"), start + SECOND), "begins: timeout");
    assert_eq!(failures.outage().map(|outage| outage.since), Some(start));
    assert_eq!(line(&mut failures, failed("connect"), start + 2 * SECOND), "");
    assert_eq!(failures.wake_at(), Some(start + 61 * SECOND));
    assert_eq!(text(failures.tick(start + 60 * SECOND)), "");
    assert_eq!(text(failures.tick(start + 61 * SECOND)), "goes on: connect 4");
    assert_eq!(failures.wake_at(), Some(start + 121 * SECOND));
    assert_eq!(line(&mut failures, Ending::Delivered, start + 62 * SECOND), "");
    assert_eq!(line(&mut failures, Ending::Delivered, start + 62 * SECOND), "");
    assert_eq!(line(&mut failures, Ending::Delivered, start + 62 * SECOND), "over: 4");
    assert_eq!((failures.wake_at(), failures.outage()), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_success_and_then_nothing_ends_it() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    (0..3).for_each(|_| drop(failures.ended(failed("500"), start)));
    assert_eq!(line(&mut failures, Ending::Delivered, start), "");
    assert_eq!(failures.wake_at(), Some(start + QUIET));
    assert_eq!(line(&mut failures, failed("500"), start + SECOND), "", "it goes on");
    assert_eq!(failures.wake_at(), Some(start + INTERVAL));
    assert_eq!(line(&mut failures, Ending::Delivered, start + 2 * SECOND), "");
    assert_eq!(text(failures.tick(start + 2 * SECOND + QUIET)), "over: 4");
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_and_answers_by_turns_is_told_of_once_a_minute() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    let mut lines = Vec::new();
    for second in 0..120 {
        let at = start + second * SECOND;
        (0..3).for_each(|_| lines.extend(failures.ended(failed("503"), at)));
        assert!(failures.outage().is_some(), "people see it all the same");
        (0..3).for_each(|_| lines.extend(failures.ended(Ending::Delivered, at)));
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn single_failures_among_successes_are_none_of_the_downstream() {
    let (mut failures, now) = (Failures::default(), Instant::now());
    for _ in 0..10 {
        assert_eq!(failures.ended(failed("500"), now), None);
        assert_eq!(failures.ended(failed("500"), now), None);
        assert_eq!(failures.ended(Ending::Other, now), None);
        assert_eq!(failures.ended(Ending::Delivered, now), None);
    }
    assert_eq!((failures.outage(), failures.wake_at()), (None, None));
}

#[tokio::test(start_paused = true)]
async fn the_last_kinds_are_remembered_newest_first() {
    let (mut failures, now) = (Failures::default(), Instant::now());
    for kind in ["500", "timeout", "500", "1", "2", "3", "4"] {
        failures.ended(failed(kind), now);
    }
    let recent: Vec<(&str, u64)> =
        failures.recent().map(|failure| (failure.kind.as_str(), failure.count)).collect();
    assert_eq!(recent, [("4", 1), ("3", 1), ("2", 1), ("1", 1), ("500", 2)]);
}

#[test]
fn what_counts_as_a_failure_of_the_downstream() {
    let retry = |status| Outcome::Retry {
        reason: "timeout",
        detail: "d".to_owned(),
        status,
        after: None,
        response: None,
    };
    let dead =
        |status| Outcome::Dead { reason: Reason::Status, detail: "d".to_owned(), status, response: None };
    let is_failed = |outcome: &Outcome, expected: &str| match Ending::of(outcome) {
        Ending::Failed(attempt) => assert_eq!(attempt.kind, expected),
        other => panic!("{outcome:?}: {other:?}"),
    };
    is_failed(&retry(None), "timeout");
    is_failed(&retry(Some(502)), "502");
    is_failed(&dead(Some(501)), "501");
    is_failed(&Outcome::Unreachable { detail: "x".repeat(1000) }, "connect");
    is_failed(&Outcome::Unreadable { detail: String::new() }, "answer");
    let throttled = Outcome::Throttled { detail: "d".to_owned(), status: 503, after: None, response: None };
    for works in [throttled, retry(Some(408)), dead(Some(404))] {
        assert!(matches!(Ending::of(&works), Ending::Refused(_)), "{works:?}");
    }
    for other in [Outcome::Missed, dead(None)] {
        assert_eq!(Ending::of(&other), Ending::Other);
    }
    assert_eq!(Ending::of(&Outcome::Delivered(Receipt::new(Response::default()))), Ending::Delivered);
    let Ending::Failed(long) = Ending::of(&Outcome::Unreachable { detail: "\u{e9}".repeat(1000) }) else {
        panic!()
    };
    assert_eq!(long.detail.len(), MAX_DETAIL);
}

#[tokio::test(start_paused = true)]
async fn an_outage_soon_after_another_one_is_told_of_all_the_same() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    let three = |failures: &mut Failures, ending: fn() -> Ending, second: u32| -> Vec<String> {
        let ended = (0..3).map(|_| line(failures, ending(), start + second * SECOND));
        ended.filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(three(&mut failures, || failed("500"), 0), ["begins: 500"]);
    assert_eq!(three(&mut failures, || Ending::Delivered, 5), ["over: 3"]);
    assert!(three(&mut failures, || failed("timeout"), 30).is_empty());
    assert!(!failures.is_told(), "dead letters are told of one by one");
    assert_eq!(failures.wake_at(), Some(start + 60 * SECOND));
    assert_eq!(text(failures.tick(start + 60 * SECOND)), "begins: timeout");
    assert!(failures.is_told());
    assert_eq!(text(failures.tick(start + 120 * SECOND)), "", "nothing was tried meanwhile");
    assert_eq!(line(&mut failures, failed("500"), start + 130 * SECOND), "");
    assert_eq!(text(failures.tick(start + 180 * SECOND)), "goes on: 500 4");
    assert_eq!(three(&mut failures, || Ending::Delivered, 200), ["over: 4"]);
}
