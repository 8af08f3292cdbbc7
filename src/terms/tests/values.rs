//! What operators set for values of the part by which lanes share.

use super::*;

fn set<T>(to: T, until: Option<i64>) -> SetValue<T> {
    let (reason, by) = (Some("they asked".to_owned()), Some("ops".to_owned()));
    SetValue { to, until: until.map(Micros), reason, by, set_at: Micros(5) }
}

/// Acme has a weight until 17 and is paused, and another value is paused until 9.
fn with_values() -> Terms {
    let mut terms = usual();
    terms.set_weight("acme", set(5, Some(17))).unwrap();
    terms.pause_value("acme", set((), None)).unwrap();
    terms.pause_value("a=\"b", set((), Some(9))).unwrap();
    terms
}

#[test]
fn values_are_kept_in_a_version_of_their_own() {
    let terms = with_values();
    let text = terms.to_text();
    let values = r#""values":{"weights":{"acme":{"to":5,"until":17,"reason":"they asked","by":"ops","set_at":5}},"pauses":{"#;
    assert!(text.starts_with(r#"{"version":4,"#) && text.contains(values), "{text}");
    assert_eq!(Terms::parse(&text).as_ref(), Ok(&terms));
    assert_eq!(terms.fingerprint(), usual().fingerprint(), "the file is the same");
    assert!(usual().to_text().starts_with(r#"{"version":1,"#), "replicas of an earlier version read it");
}

#[test]
fn what_is_set_applies_until_its_end_and_is_removed_then() {
    let terms = with_values();
    let weights = |at| terms.values().weights_at(Micros(at)).collect::<Vec<_>>();
    let paused = |at| terms.values().paused_at(Micros(at)).collect::<Vec<_>>();
    assert_eq!((weights(16), paused(8)), (vec![("acme", 5)], vec!["a=\"b", "acme"]));
    assert_eq!((weights(17), paused(9)), (vec![], vec!["acme"]));
    assert_eq!([8, 9, 17].map(|at| terms.next_end(Micros(at)).map(|end| end.0)), [Some(9), Some(17), None]);
    assert_eq!(terms.expired(Micros(8)), None);
    let left = terms.expired(Micros(17)).unwrap();
    assert!(left.values().weights().is_empty() && left.values().pauses().len() == 1);
    let mut resumed = left;
    assert!(resumed.resume_value("acme").is_some() && resumed.resume_value("acme").is_none());
    assert!(resumed.values().is_empty());
    assert_eq!(resumed, usual());
}

#[test]
fn a_load_keeps_what_is_set() {
    let own = Terms::new(LimitSet::new(every()).unwrap(), BTreeMap::new(), Some(4));
    let Load::Replace(after) = Terms::load(Some(&with_values()), &own) else { panic!("not loaded") };
    assert_eq!(after.values(), with_values().values());
}

#[test]
fn there_is_a_most_of_values() {
    let mut terms = usual();
    for value in 0..MAX_VALUES {
        terms.pause_value(&value.to_string(), set((), None)).unwrap();
    }
    assert_eq!(terms.pause_value("one more", set((), None)), Err(TermsError::TooManyValues));
    terms.pause_value("7", set((), Some(3))).unwrap();
    assert_eq!(terms.values().pauses()["7"].until, Some(Micros(3)), "one of them may be set again");
}
