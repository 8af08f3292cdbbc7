//! Tests of the knowledge of pauses, and of its changes.

use super::*;
use crate::store::Pause;

const SECOND: Duration = Duration::from_secs(1);
const EPOCH: Micros = Micros(1);
const NOW: Micros = Micros(1_760_000_000_000_000);

/// Returns a mapping of the store's clock, which shows `NOW` now.
fn slots() -> SlotClock {
    let slots = SlotClock::new();
    let now = Instant::now();
    let _ = slots.observe(now, NOW, EPOCH, now);
    slots
}

fn paused(span: Duration, version: u64) -> Status {
    Status { pause: Pause { until: NOW.plus(span), version }, ..Status::default() }
}

fn until(change: Option<PauseChange>) -> (Duration, &'static str, bool) {
    let Some(PauseChange::Until { end, why, is_news, .. }) = change else { panic!("{change:?}") };
    (end.left(), why, is_news)
}

#[tokio::test(start_paused = true)]
async fn none_to_paused_to_over() {
    let (mut pauses, slots) = (Pauses::default(), slots());
    pauses.follow(paused(SECOND, 7), NOW, EPOCH, &slots);
    assert_eq!(until(pauses.take_change()), (SECOND, "an operator paused it", true));
    assert!(pauses.is_paused() && !pauses.is_over());
    assert_eq!(pauses.take_change(), None, "it is acted upon once");
    tokio::time::advance(SECOND).await;
    assert!(pauses.is_over() && !pauses.is_paused());
    assert_eq!((pauses.take_change(), pauses.wake_at()), (Some(PauseChange::Over), None));
}

#[tokio::test(start_paused = true)]
async fn paused_to_resumed() {
    let (mut pauses, slots) = (Pauses::default(), slots());
    pauses.follow(paused(SECOND, 7), NOW, EPOCH, &slots);
    pauses.take_change();
    pauses.set_ask_from(Instant::now() + SECOND);
    let resumed = Status { pause: Pause { until: Micros(0), version: 8 }, ..Status::default() };
    assert_eq!(pauses.on_answer(&resumed), News { is_reset: false, is_forgotten: false });
    pauses.follow(resumed, NOW, EPOCH, &slots);
    assert_eq!((pauses.take_change(), pauses.ask_from()), (Some(PauseChange::Resumed), None));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_moves_a_little_is_the_same_and_one_that_moves_more_is_not() {
    let (mut pauses, start) = (Pauses::default(), Instant::now());
    assert!(pauses.penalize(Deadline::at(start + SECOND)));
    assert_eq!(until(pauses.take_change()), (SECOND, "it answered with Retry-After", true));
    pauses.set_ask_from(start + SECOND / 2);
    let step = Duration::from_millis(1);
    for steps in 1..=5 {
        pauses.penalize(Deadline::at(start + SECOND + step * steps));
        assert_eq!(pauses.take_change(), None);
        assert_eq!(pauses.ask_from(), Some(start + SECOND / 2 + step * steps), "many small steps count");
    }
    pauses.penalize(Deadline::at(start + 3 * SECOND));
    assert_eq!(until(pauses.take_change()), (3 * SECOND, "it answered with Retry-After", false));
}

#[tokio::test(start_paused = true)]
async fn the_store_is_told_of_a_pause_once_and_not_too_often() {
    let (mut pauses, start) = (Pauses::default(), Instant::now());
    let (first, second) = (Deadline::at(start + SECOND), Deadline::at(start + 2 * SECOND));
    pauses.penalize(first);
    assert_eq!((pauses.to_report(start), pauses.report_at()), (Some(first), Some(start)));
    pauses.penalize(second);
    pauses.on_confirmed(first);
    assert_eq!((pauses.to_report(start), pauses.report_at()), (None, Some(start + APART)), "the later one");
    assert_eq!(pauses.to_report(start + APART), Some(second));
    pauses.on_report_failed(start + SECOND);
    assert_eq!(pauses.to_report(start + APART), None);
    pauses.on_store_back();
    assert_eq!(pauses.to_report(start), Some(second));
    pauses.on_confirmed(second);
    assert_eq!(pauses.report_at(), None);
}

#[tokio::test(start_paused = true)]
async fn a_known_pause_is_no_news() {
    let (mut pauses, slots) = (Pauses::default(), slots());
    let status = Status { penalty: NOW.plus(SECOND), ..Status::default() };
    pauses.follow(status, NOW, EPOCH, &slots);
    let now = Instant::now();
    assert!(!pauses.penalize(Deadline::at(now + SECOND / 2)));
    assert!(pauses.penalize(Deadline::at(now + 2 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn resets_and_losses_are_noticed_after_the_first_answer() {
    let mut pauses = Pauses::default();
    let reset = |reset| Status { reset, ..Status::default() };
    assert_eq!(pauses.on_answer(&reset(5)), News { is_reset: false, is_forgotten: false });
    assert_eq!(pauses.on_answer(&reset(6)), News { is_reset: true, is_forgotten: false });
    pauses.follow(paused(SECOND, 7), NOW, EPOCH, &slots());
    assert_eq!(pauses.on_answer(&paused(SECOND, 6)), News { is_reset: false, is_forgotten: true });
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_overtaken_within_one_epoch_only() {
    let mut pauses = Pauses::default();
    assert!(!pauses.is_overtaken(NOW, EPOCH));
    pauses.follow(Status::default(), NOW, EPOCH, &slots());
    let earlier = NOW.minus(Duration::from_micros(1));
    assert!(pauses.is_overtaken(earlier, EPOCH) && !pauses.is_overtaken(NOW, EPOCH));
    assert!(!pauses.is_overtaken(earlier, Micros(2)));
}

#[tokio::test(start_paused = true)]
async fn what_the_downstream_asked_for_outlasts_a_forward_step_of_the_stores_clock() {
    let (mut pauses, slots) = (Pauses::default(), slots());
    let status = Status { penalty: NOW.plus(10 * SECOND), ..Status::default() };
    pauses.follow(status, NOW, EPOCH, &slots);
    let (now, ahead) = (Instant::now(), NOW.plus(9 * SECOND));
    let _ = slots.observe(now, ahead, EPOCH, now);
    pauses.follow(status, ahead, EPOCH, &slots);
    assert_eq!(until(pauses.take_change()).0, 10 * SECOND);
    assert!(pauses.to_report(now).is_some(), "it is reported again");
}

#[tokio::test(start_paused = true)]
async fn an_operators_pause_is_not_shortened_by_a_forward_step_of_the_stores_clock() {
    let (mut pauses, slots) = (Pauses::default(), slots());
    let status = paused(60 * SECOND, 7);
    pauses.follow(status, NOW, EPOCH, &slots);
    // The clock steps beyond the end of the pause.
    let stepped = NOW.plus(300 * SECOND);
    let now = Instant::now();
    let _ = slots.observe(now, stepped, EPOCH, now);
    pauses.follow(status, stepped, EPOCH, &slots);
    assert_eq!(pauses.current(), Some((Paused::Operator, Some(Deadline::at(Instant::now() + 60 * SECOND)))));
    assert!(pauses.closed().own.is_some(), "no slot before it is used");
    tokio::time::advance(59 * SECOND).await;
    pauses.follow(status, stepped.plus(59 * SECOND), EPOCH, &slots);
    assert!(pauses.end().is_some(), "each answer keeps it");
    let resumed = Status { pause: Pause { until: Micros(0), version: 8 }, ..Status::default() };
    pauses.on_answer(&resumed);
    pauses.follow(resumed, stepped.plus(59 * SECOND), EPOCH, &slots);
    assert_eq!(pauses.end(), None, "but a resume ends it");
}

#[tokio::test(start_paused = true)]
async fn what_a_store_is_reminded_of() {
    let (mut pauses, slots) = (Pauses::default(), slots());
    let stopped = Pause { until: Micros::MAX, version: 9 };
    let status = Status { penalty: NOW.plus(SECOND), pause: stopped, ..Status::default() };
    pauses.follow(status, NOW, EPOCH, &slots);
    let terms = Some((3, "text".to_owned()));
    let memory = pauses.memory(terms.clone());
    assert_eq!(memory, Memory { penalty: SECOND, pause: None, version: 9, terms });
}
