use super::*;
use crate::job::Reason;
use crate::sink::{MAX_EXCERPT, Receipt, Response};

const SECOND: Duration = Duration::from_secs(1);

fn failed(kind: &str) -> Ending {
    Ending::Failed(Box::new(Attempt {
        kind: kind.to_owned(),
        detail: format!("{kind} it was"),
        response: None,
    }))
}

/// The line that this end of an attempt causes, as text.
fn line(failures: &mut Failures, ending: Ending, at: Instant) -> String {
    text(failures.ended(ending, at))
}

fn text(line: Option<Line>) -> String {
    match line {
        None => String::new(),
        Some(Line::Begins(outage)) => format!("begins: {}", outage.kinds()),
        Some(Line::GoesOn(outage)) => format!("continues: {}", outage.kinds()),
        Some(Line::IsOver(outage)) => format!("over: {}", outage.attempts),
    }
}

#[tokio::test(start_paused = true)]
async fn each_arrow_of_the_table() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    assert_eq!(line(&mut failures, failed("500"), start), "");
    assert_eq!(line(&mut failures, failed("500"), start), "");
    assert!(failures.outage().is_none());
    assert_eq!(line(&mut failures, failed("timeout"), start + SECOND), "begins: 500 ×2, timeout ×1");
    assert_eq!(failures.outage().map(|outage| outage.since), Some(start));
    assert_eq!(line(&mut failures, failed("connect"), start + 2 * SECOND), "");
    assert_eq!(failures.wake_at(), Some(start + 61 * SECOND));
    assert_eq!(text(failures.tick(start + 60 * SECOND)), "");
    assert_eq!(text(failures.tick(start + 61 * SECOND)), "continues: 500 ×2, timeout ×1, connect ×1");
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
    assert_eq!(line(&mut failures, failed("500"), start + SECOND), "", "it continues");
    assert_eq!(failures.wake_at(), Some(start + INTERVAL));
    assert_eq!(line(&mut failures, Ending::Delivered, start + 2 * SECOND), "");
    assert_eq!(text(failures.tick(start + 2 * SECOND + QUIET)), "over: 4");
}

#[tokio::test(start_paused = true)]
async fn a_downstream_that_fails_and_answers_by_turns_is_logged_once_a_minute() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    let mut lines = Vec::new();
    for second in 0..120 {
        let at = start + second * SECOND;
        (0..3).for_each(|_| lines.extend(failures.ended(failed("503"), at)));
        assert!(failures.outage().is_some(), "people see it too");
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

#[tokio::test(start_paused = true)]
async fn the_kinds_of_an_outage_are_bounded_and_the_most_frequent_is_first() {
    let (mut failures, now) = (Failures::default(), Instant::now());
    for kind in ["1", "2", "3", "4", "5", "6", "7", "8", "2", "2", "5"] {
        failures.ended(failed(kind), now);
    }
    let outage = failures.outage().unwrap();
    assert_eq!(outage.kinds(), "other ×3, 2 ×3, 5 ×2, 1 ×1, 3 ×1, 4 ×1");
    assert_eq!(outage.kinds.iter().map(|known| known.count).sum::<u64>(), outage.attempts);
    (0..3).for_each(|_| drop(failures.ended(Ending::Delivered, now)));
    (0..3).for_each(|_| drop(failures.ended(failed("8"), now)));
    assert_eq!(failures.outage().unwrap().kinds(), "8 ×3", "each outage has its own");
}

#[tokio::test(start_paused = true)]
async fn three_throttled_in_a_row_begin_an_outage_and_one_among_successes_begins_none() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    let throttled = || Ending::of(&refused(429, b""), Some("api:443"));
    for _ in 0..10 {
        assert_eq!(failures.ended(throttled(), start), None);
        assert_eq!(failures.ended(throttled(), start), None);
        assert_eq!(failures.ended(Ending::Delivered, start), None);
    }
    assert!(failures.outage().is_none());
    assert_eq!(line(&mut failures, throttled(), start), "");
    assert_eq!(line(&mut failures, throttled(), start), "");
    assert_eq!(line(&mut failures, throttled(), start), "begins: 429 ×3");
    (0..408).for_each(|_| drop(failures.ended(throttled(), start)));
    (0..3).for_each(|_| drop(failures.ended(failed("timeout api:443"), start)));
    assert_eq!(text(failures.tick(start + INTERVAL)), "continues: 429 ×411, timeout api:443 ×3");
}

#[tokio::test(start_paused = true)]
async fn the_beginning_of_the_last_answer_of_each_kind_is_kept() {
    let (mut failures, now) = (Failures::default(), Instant::now());
    for outcome in [refused(429, b"old"), refused(503, b""), refused(429, &[b'x'; 3000])] {
        failures.ended(Ending::of(&outcome, None), now);
    }
    let kept: Vec<(&str, usize)> = failures
        .recent()
        .map(|failure| (failure.kind.as_str(), failure.response.as_ref().map_or(0, Bytes::len)))
        .collect();
    assert_eq!(kept, [("429", MAX_EXCERPT), ("503", 0)]);
    let unauthorized =
        Outcome::Unauthorized { detail: String::new(), status: 401, response: response(b"why") };
    let Ending::Refused(attempt) = Ending::of(&unauthorized, None) else { panic!() };
    assert_eq!(attempt.response.as_deref(), Some(&b"why"[..]));
}

fn response(excerpt: &'static [u8]) -> Option<Response> {
    Some(Response { excerpt: Bytes::from_static(excerpt), ..Response::default() })
}

/// An answer that throttles, with this body.
fn refused(status: u16, body: &'static [u8]) -> Outcome {
    let detail = "slow down".to_owned();
    Outcome::Throttled { detail, status, after: None, is_final: false, response: response(body) }
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
    let is_failed = |outcome: &Outcome, expected: &str| match Ending::of(outcome, Some("api:443")) {
        Ending::Failed(attempt) => assert_eq!(attempt.kind, expected),
        other => panic!("{outcome:?}: {other:?}"),
    };
    is_failed(&retry(None), "timeout api:443");
    is_failed(&retry(Some(502)), "502");
    is_failed(&dead(Some(501)), "501");
    is_failed(&Outcome::Unreachable { detail: "x".repeat(1000) }, "connect api:443");
    is_failed(&Outcome::Unreadable { detail: String::new() }, "answer api:443");
    let throttled = Outcome::Throttled {
        detail: "d".to_owned(),
        status: 503,
        after: None,
        is_final: false,
        response: None,
    };
    is_failed(&throttled, "503");
    for works in [retry(Some(408)), dead(Some(404))] {
        assert!(matches!(Ending::of(&works, None), Ending::Refused(_)), "{works:?}");
    }
    for other in [Outcome::Missed, dead(None)] {
        assert_eq!(Ending::of(&other, None), Ending::Other);
    }
    let delivered = Outcome::Delivered(Receipt::new(Response::default()));
    assert_eq!(Ending::of(&delivered, None), Ending::Delivered);
    let long = Outcome::Unreachable { detail: "\u{e9}".repeat(1000) };
    let Ending::Failed(long) = Ending::of(&long, None) else { panic!() };
    assert_eq!(long.kind, "connect", "of a sink that names no host");
    assert_eq!(long.detail.len(), MAX_DETAIL);
}

#[tokio::test(start_paused = true)]
async fn an_outage_soon_after_another_one_is_logged_too() {
    let (mut failures, start) = (Failures::default(), Instant::now());
    let three = |failures: &mut Failures, ending: fn() -> Ending, second: u32| -> Vec<String> {
        let ended = (0..3).map(|_| line(failures, ending(), start + second * SECOND));
        ended.filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(three(&mut failures, || failed("500"), 0), ["begins: 500 ×3"]);
    assert_eq!(three(&mut failures, || Ending::Delivered, 5), ["over: 3"]);
    assert!(three(&mut failures, || failed("timeout"), 30).is_empty());
    assert!(!failures.is_logged(), "dead letters are logged one by one");
    assert_eq!(failures.wake_at(), Some(start + 60 * SECOND));
    assert_eq!(text(failures.tick(start + 60 * SECOND)), "begins: timeout ×3");
    assert!(failures.is_logged());
    assert_eq!(text(failures.tick(start + 120 * SECOND)), "", "nothing was tried meanwhile");
    assert_eq!(line(&mut failures, failed("500"), start + 130 * SECOND), "");
    assert_eq!(text(failures.tick(start + 180 * SECOND)), "continues: timeout ×3, 500 ×1");
    assert_eq!(three(&mut failures, || Ending::Delivered, 200), ["over: 4"]);
}
