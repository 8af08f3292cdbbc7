use paced::store::{MemoryStore, Store as _};
use tokio::time::advance;

use super::*;

async fn read() -> Record {
    Record::new(Instant::now(), MemoryStore::new().read_record("billing").await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_asked_for_before_a_change_does_not_come_back() {
    let mut known = Known::default();
    let (before, other) = (known.changes("billing"), known.changes("mail"));
    let late = read().await;
    known.forget_record("billing", None);
    known.on_record("billing".to_owned(), before, late);
    known.on_left("billing".to_owned(), before, Vec::new());
    known.on_record("mail".to_owned(), other, read().await);
    assert_eq!(known.records.keys().collect::<Vec<_>>(), ["mail"], "of others the change says nothing");
    assert!(known.left.of("billing").is_none());
    let after = known.changes("billing");
    known.on_record("billing".to_owned(), after, read().await);
    assert!(known.records.contains_key("billing"));
}

#[test]
fn what_binds_follows_a_pause_that_was_just_ordered_or_ended() {
    let bound = |reason: &str| Binding { reason: reason.to_owned(), since: 50_000, ..Binding::default() };
    let pause = Pause { until: Some(90_000), at: Some(60_000), ..Pause::default() };
    let after = |reason: &str, pause: Option<&Pause>, now| {
        let mut binding = bound(reason);
        follow_pause(&mut binding, (pause, false), now);
        (binding.reason, binding.since, binding.until)
    };
    let paused = ("paused".to_owned(), 60_000, Some(90_000));
    for reason in ["limit", "concurrency", "not-due", "throttled", "starting"] {
        assert_eq!(after(reason, Some(&pause), 60_100), paused, "{reason}");
    }
    for reason in ["idle", "store", "broker", "unreachable", "unauthorized", "terms", "paused"] {
        assert_eq!(after(reason, Some(&pause), 60_100).0, reason, "what is worse is not hidden");
    }
    assert_eq!(after("paused", None, 60_000), (RESUMING.to_owned(), 60_000, None), "it was resumed");
    assert_eq!(after("paused", None, 50_100).0, "paused", "it has begun since the record was read");
    assert_eq!(after("limit", None, 60_000).0, "limit");
    let mut of_lanes = bound("paused");
    follow_pause(&mut of_lanes, (None, true), 60_000);
    assert_eq!(of_lanes.reason, "paused", "lanes are, and not the downstream");
    assert_eq!(after("limit", Some(&pause), 49_800).0, "limit", "it has begun since the record was read");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_was_ordered_here_is_shown_before_the_record_is_read() {
    let mut known = Known::default();
    let pause = Pause { by: Some("ops".to_owned()), at: Some(60_000), ..Pause::default() };
    let shown = |known: &Known, reason: &str| {
        let binding = Binding { reason: reason.to_owned(), ..Binding::default() };
        let mut downstream = Downstream { name: "billing".to_owned(), binding, ..Downstream::default() };
        known.describe(&mut downstream, &[], 70_000);
        (downstream.terms.pause.is_some(), downstream.binding.reason)
    };
    known.records.insert("billing".to_owned(), read().await);
    known.forget_record("billing", Some(Some(pause)));
    assert_eq!(shown(&known, "limit"), (true, "paused".to_owned()));
    known.forget_record("billing", Some(None));
    assert_eq!(shown(&known, "paused"), (false, RESUMING.to_owned()));
    let changes = known.changes("billing");
    known.on_record("billing".to_owned(), changes, read().await);
    assert!(known.ordered.is_empty(), "what the store says counts");
    known.forget_record("billing", None);
    assert_eq!(shown(&known, "paused").1, "paused", "nobody knows whether it was resumed");
}

#[tokio::test(start_paused = true)]
async fn an_order_and_a_record_that_are_old_or_whose_pause_is_over_do_not_count() {
    let shown = |known: &Known, reason: &str, at: Millis| {
        let binding = Binding { reason: reason.to_owned(), ..Binding::default() };
        let mut downstream = Downstream { name: "billing".to_owned(), binding, ..Downstream::default() };
        known.describe(&mut downstream, &[], at);
        (downstream.terms.pause.is_some(), downstream.binding.reason)
    };
    let is = |paused, reason: &str| (paused, reason.to_owned());
    let pause = Pause { at: Some(60_000), until: Some(90_000), ..Pause::default() };
    let mut known = Known::default();
    known.forget_record("billing", Some(Some(pause)));
    assert_eq!(shown(&known, "limit", 89_999), is(true, "paused"));
    assert_eq!(shown(&known, "limit", 90_000), is(false, "limit"), "the pause is over");
    assert_eq!(shown(&known, "paused", 90_000), is(false, "paused"), "there is another one");

    known.forget_record("billing", Some(None));
    assert_eq!(shown(&known, "paused", 70_000), is(false, RESUMING));
    advance(MAX_RECORD_AGE + Duration::from_secs(1)).await;
    assert_eq!(
        shown(&known, "paused", 150_000),
        is(false, "paused"),
        "another replica may have paused it since"
    );

    let store = MemoryStore::new();
    let mut state = store.read_record("billing").await.unwrap();
    let now = state.now.0 / 1000;
    state.status.pause.until = state.now.plus(Duration::from_secs(10));
    let record = Record::new(Instant::now(), state);
    let changes = known.changes("billing");
    known.on_record("billing".to_owned(), changes, record);
    assert_eq!(shown(&known, "limit", now + 9_000), is(true, "paused"));
    assert_eq!(shown(&known, "limit", now + 11_000), is(false, "limit"), "its pause is over");
}

#[tokio::test(start_paused = true)]
async fn a_count_of_a_store_that_does_not_answer_is_unknown_soon() {
    let mut known = Known::default();
    known.parked.insert("billing".to_owned(), Counted::new(5, Vec::new()));
    let parked = |known: &Known| {
        let mut downstream = Downstream { name: "billing".to_owned(), ..Downstream::default() };
        known.describe(&mut downstream, &[], 0);
        downstream.queues.parked
    };
    advance(COUNT_AGE + Duration::from_secs(1)).await;
    assert_eq!(parked(&known), Some(5));
    known.store_error = Some("away".to_owned());
    assert_eq!(parked(&known), None);
}

#[tokio::test(start_paused = true)]
async fn a_record_is_read_again_for_who_begins_to_look_and_soon_for_who_goes_on() {
    let (start, record) = (Instant::now(), read().await);
    assert!(record.is_current(Some(start), 0, false));
    assert!(!record.is_current(Some(start), 1, false), "other limits are in force");
    assert!(!record.is_current(Some(start), 0, true), "it is paused");
    advance(Duration::from_secs(1)).await;
    assert!(!record.is_current(Some(Instant::now()), 0, false), "somebody began to look after it");
    advance(RECORD_AGE).await;
    assert!(!record.is_current(Some(start), 0, false), "it may be paused and have no jobs");
}

/// If only jobs of paused tenants wait, the downstream is not paused, and `resume` would not help.
#[tokio::test(start_paused = true)]
async fn paused_lanes_are_not_taken_for_a_pause_that_was_just_ended() {
    let store = MemoryStore::new();
    let limit = paced::limit::Limit::leaky_bucket("l", "10/s".parse().unwrap(), 1).unwrap();
    let mut terms = Terms::new(LimitSet::new(vec![limit]).unwrap(), BTreeMap::new(), None);
    let now = store.read_record("billing").await.unwrap().now;
    let until = Some(now.plus(Duration::from_secs(60)));
    let set = paced::terms::SetValue { to: (), until, reason: None, by: None, set_at: now };
    terms.pause_value("acme", set).unwrap();
    let state = RecordState { terms: Some(terms.to_text()), ..store.read_record("billing").await.unwrap() };
    let record = Record::new(Instant::now(), state);
    assert!(record.is_current(None, 0, true), "it is not read again and again");
    let mut known = Known::default();
    known.on_record("billing".to_owned(), 0, record);
    let shown = |at: Millis| {
        let binding = Binding { reason: "paused".to_owned(), ..Binding::default() };
        let mut downstream = Downstream { name: "billing".to_owned(), binding, ..Downstream::default() };
        known.describe(&mut downstream, &[], at);
        (downstream.binding.reason.clone(), super::super::words::text(&downstream, at))
    };
    let (reason, words) = shown(now.0 / 1000);
    assert_eq!(reason, "paused");
    assert_eq!(words, "operators paused the lanes whose jobs wait: see `paced lane list billing`");
    assert_eq!(shown(now.0 / 1000 + 60_001).0, RESUMING, "that pause is over");
}
