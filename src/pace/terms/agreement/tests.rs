//! Tests of each transition of the table, and of the access that is wanted in each state.

use super::*;
use crate::pace::tests;
use crate::terms::Override;

const NOW: Micros = Micros(1_760_000_000_000_000);
const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

fn status(generation: u64) -> Status {
    Status { generation, ..Status::default() }
}

fn text(rate: &str) -> String {
    tests::settings(rate).terms().to_text()
}

/// Returns the text by which this process puts a file of this rate in force in place of `before`.
fn written(rate: &str, before: Option<&str>) -> String {
    let before = before.map(|before| Terms::parse(before).unwrap());
    let terms = tests::settings(rate).terms();
    terms.put_in_force(before.as_ref(), NOW, Replica::of_this_process()).to_text()
}

/// Returns the text as a later version of paced would write it.
fn unreadable() -> String {
    text("1/s").replacen("1", "9999", 1)
}

fn rate(settings: &Settings) -> f64 {
    settings.limits.rate().per_second()
}

/// Returns an agreement on 5/s whose terms of generation 3 are in force.
fn in_force() -> Agreement {
    let mut agreement = Agreement::new(tests::settings("5/s"));
    let adopted = agreement.on_record(status(3), Some(text("5/s")), NOW);
    assert_eq!(adopted.map(|adopted| rate(&adopted.settings)), Some(5.0));
    assert_eq!((agreement.state, agreement.settled(), agreement.wanted()), (State::InForce, Some(3), None));
    agreement
}

fn outdated() -> Agreement {
    let mut agreement = in_force();
    agreement.on_generation(4);
    assert_eq!(agreement.state, State::Outdated);
    agreement
}

fn lost() -> Agreement {
    let mut agreement = in_force();
    agreement.on_generation(2);
    assert_eq!(agreement.state, State::Lost);
    agreement
}

fn rejected() -> Agreement {
    let mut agreement = in_force();
    agreement.on_generation(4);
    assert!(agreement.on_record(status(4), Some(unreadable()), NOW).is_none());
    assert_eq!(agreement.state, State::Rejected);
    agreement
}

#[test]
fn a_replica_proposes_its_own_where_the_store_has_none() {
    let mut agreement = Agreement::new(tests::settings("5/s"));
    assert_eq!((agreement.state, agreement.wanted()), (State::Unknown, Some(Wanted::Read)));
    assert!(agreement.on_record(status(0), None, NOW).is_none());
    let wanted = Wanted::Write { of: 0, text: written("5/s", None) };
    assert_eq!((agreement.state, agreement.wanted()), (State::Unknown, Some(wanted)));
    assert_eq!(agreement.settled(), None, "nothing goes before they are in force");
    assert!(agreement.on_record(status(1), Some(written("5/s", None)), NOW).is_some());
    assert_eq!((agreement.settled(), agreement.wanted()), (Some(1), None));
}

#[test]
fn another_file_replaces_the_terms_unless_their_revision_is_higher() {
    let mut agreement = Agreement::new(tests::settings("5/s"));
    agreement.on_record(status(3), Some(text("7/s")), NOW);
    let replacing = written("5/s", Some(&text("7/s")));
    assert_eq!(agreement.wanted(), Some(Wanted::Write { of: 3, text: replacing.clone() }));
    let adopted = agreement.on_record(status(4), Some(replacing), NOW).unwrap();
    assert_eq!(
        (adopted.has_replaced, agreement.version().map(|(generation, _)| generation)),
        (Some(true), Some(4))
    );
    let adopted = agreement.on_record(status(5), Some(text("9/s")), NOW).unwrap();
    assert_eq!(adopted.has_replaced, None, "it knows those before");
    let stored = Settings { revision: Some(2), ..tests::settings("7/s") }.terms().to_text();
    let mut agreement = Agreement::new(tests::settings("5/s"));
    let adopted = agreement.on_record(status(3), Some(stored), NOW).unwrap();
    assert_eq!((rate(&adopted.settings), agreement.settled(), agreement.wanted()), (7.0, Some(3), None));
    assert_eq!(adopted.has_replaced, Some(false));
}

#[test]
fn somebody_else_was_faster_with_a_proposal() {
    let mut agreement = Agreement::new(tests::settings("5/s"));
    agreement.on_record(status(0), None, NOW);
    agreement.on_record(status(1), Some(text("7/s")), NOW);
    let wanted = Wanted::Write { of: 1, text: written("5/s", Some(&text("7/s"))) };
    assert_eq!(agreement.wanted(), Some(wanted), "not the one over generation 0");
}

#[test]
fn unknown_to_rejected() {
    let mut agreement = Agreement::new(tests::settings("5/s"));
    assert!(agreement.on_record(status(4), Some(unreadable()), NOW).is_none());
    assert_eq!(agreement.state, State::Rejected);
    assert_eq!((agreement.settled(), agreement.wanted()), (None, None), "it is read now and then anyway");
    assert!(agreement.on_record(status(0), None, NOW).is_none());
    assert_eq!(agreement.state, State::Unknown, "those terms are gone");
}

#[test]
fn in_force_to_outdated_by_a_later_generation_or_a_step() {
    let mut agreement = outdated();
    assert_eq!((agreement.settled(), agreement.wanted()), (None, Some(Wanted::Read)));
    agreement = in_force();
    agreement.on_step();
    assert_eq!(agreement.state, State::Outdated);
}

#[test]
fn outdated_to_in_force_with_others_or_the_same() {
    let mut agreement = outdated();
    let adopted = agreement.on_record(status(4), Some(text("9/s")), NOW).unwrap();
    assert_eq!((rate(&adopted.settings), agreement.settled()), (9.0, Some(4)));
    let mut agreement = in_force();
    agreement.on_step();
    assert!(agreement.on_record(status(3), Some(text("5/s")), NOW).is_none(), "nothing changes");
    assert_eq!(agreement.settled(), Some(3));
}

#[test]
fn in_force_or_outdated_to_lost() {
    assert_eq!(lost().settled(), None);
    for mut agreement in [in_force(), outdated()] {
        assert!(agreement.on_record(status(2), Some(text("5/s")), NOW).is_none());
        assert!(agreement.is_lost(), "an older generation");
    }
    for mut agreement in [in_force(), outdated()] {
        assert!(agreement.on_record(status(3), None, NOW).is_none());
        assert!(agreement.is_lost(), "no terms");
    }
    let mut agreement = in_force();
    agreement.on_loss();
    assert_eq!((agreement.is_lost(), agreement.memory()), (true, Some((3, text("5/s")))));
    // The store has lost a pause, but its terms are the same.
    assert!(agreement.on_record(status(3), Some(text("5/s")), NOW).is_none());
    assert!(agreement.is_lost(), "until the store has its record again");
}

#[test]
fn rejected_to_lost() {
    let mut agreement = rejected();
    agreement.on_generation(2);
    assert_eq!(agreement.state, State::Lost, "older than the terms that are known");
    let mut agreement = rejected();
    assert!(agreement.on_record(status(4), None, NOW).is_none());
    assert_eq!(agreement.state, State::Lost, "the terms are gone, and some are known");
}

#[test]
fn lost_until_the_store_was_told_again() {
    let mut agreement = lost();
    agreement.on_generation(3);
    agreement.on_step();
    assert!(agreement.is_lost());
    agreement.on_recalled();
    assert_eq!((agreement.state, agreement.settled()), (State::Outdated, None));
    agreement.on_record(status(3), Some(text("5/s")), NOW);
    assert_eq!(agreement.settled(), Some(3));
    // A pause was lost before any terms were known.
    let mut agreement = Agreement::new(tests::settings("5/s"));
    agreement.on_loss();
    agreement.on_recalled();
    assert_eq!(agreement.state, State::Unknown);
}

/// The store has lost its terms, a replica starts with another file, and then an older replica restores what it remembers.
#[test]
fn a_file_that_was_loaded_last_wins_over_older_terms_that_are_restored() {
    let at = |rate: &str, revision: Option<u64>, at: Micros| {
        let settings = Settings { revision, ..tests::settings(rate) };
        settings.terms().put_in_force(None, at, Replica::of_this_process()).to_text()
    };
    let (before, later) = (NOW.minus(MINUTE), NOW.plus(MINUTE));
    // Any replica that knows the newer file restores it, not only the one that loaded it.
    let knowing = |own: Option<u64>| {
        let mut agreement = Agreement::new(Settings { revision: own, ..tests::settings("9/s") });
        agreement.is_proposing = false;
        agreement.on_record(status(2), Some(at("9/s", own, NOW)), NOW).unwrap();
        assert_eq!((agreement.settled(), agreement.wanted()), (Some(2), None));
        agreement
    };
    let mut agreement = knowing(None);
    agreement.on_generation(7);
    assert!(agreement.on_record(status(7), Some(at("5/s", None, before)), NOW).is_none());
    let Some(Wanted::Write { of: 7, text }) = agreement.wanted() else { panic!() };
    assert_eq!(rate(&agreement.on_record(status(8), Some(text), NOW).unwrap().settings), 9.0);
    assert_eq!(agreement.wanted(), None);
    // A file that is loaded later counts, as does one of a higher revision.
    for (own, stored, loaded) in [(None, None, later), (Some(1), Some(2), before)] {
        let adopted = knowing(own).on_record(status(7), Some(at("5/s", stored, loaded)), later);
        assert_eq!(rate(&adopted.unwrap().settings), 5.0);
    }
    // Once the clock has stepped back, the file that is loaded then counts, whether this replica has seen the step or not,
    // and also when a rate was set over the old file meanwhile.
    let mut seen = knowing(None);
    seen.on_stepped_back();
    assert!(seen.on_record(status(3), Some(at("9/s", None, NOW)), before).is_some());
    for mut agreement in [seen, knowing(None)] {
        let adopted = agreement.on_record(status(7), Some(at("5/s", None, before)), before);
        assert_eq!(rate(&adopted.unwrap().settings), 5.0);
    }
}

#[test]
fn rejected_to_in_force_and_to_outdated() {
    let mut agreement = rejected();
    assert!(!agreement.is_usable(), "nobody knows what is in force");
    agreement.on_generation(4);
    assert_eq!(agreement.state, State::Rejected);
    assert!(agreement.on_record(status(5), Some(text("6/s")), NOW).is_some());
    assert_eq!(agreement.settled(), Some(5));
    let mut agreement = rejected();
    agreement.on_generation(5);
    assert_eq!((agreement.state, agreement.wanted()), (State::Outdated, Some(Wanted::Read)));
    let mut agreement = rejected();
    agreement.on_step();
    assert_eq!((agreement.state, agreement.is_usable()), (State::Outdated, false), "as little as before");
    agreement.on_loss();
    agreement.on_recalled();
    assert!(!agreement.is_usable() && agreement.on_record(status(4), Some(unreadable()), NOW).is_none());
    let mut agreement = Agreement::new(tests::settings("5/s"));
    agreement.on_record(status(4), Some(unreadable()), NOW);
    agreement.on_generation(5);
    assert_eq!(agreement.state, State::Unknown, "none were ever known");
    let mut agreement = rejected();
    let settings = agreement.give(tests::settings("8/s"), NOW);
    assert_eq!((agreement.state, rate(&settings)), (State::Outdated, 5.0), "as before, until all agree");
    assert_eq!(agreement.wanted(), Some(Wanted::Read), "to be proposed");
}

#[test]
fn a_reload_proposes_while_the_terms_in_force_count_on() {
    let mut agreement = in_force();
    let given = Settings { concurrency: 7, ..tests::settings("8/s") };
    let settings = agreement.give(given, NOW);
    assert_eq!((rate(&settings), settings.concurrency), (5.0, 7), "all but the limits counts at once");
    assert_eq!((agreement.settled(), agreement.wanted()), (Some(3), Some(Wanted::Read)));
    agreement.on_record(status(3), Some(text("5/s")), NOW);
    assert_eq!(agreement.wanted(), Some(Wanted::Write { of: 3, text: written("8/s", Some(&text("5/s"))) }));
    let adopted = agreement.on_record(status(4), Some(text("8/s")), NOW).unwrap();
    assert_eq!((rate(&adopted.settings), adopted.settings.concurrency), (8.0, 7));
}

#[test]
fn a_rate_that_an_operator_set_ends() {
    const SECOND: std::time::Duration = std::time::Duration::from_secs(1);
    let mut agreement = in_force();
    let mut terms = tests::settings("5/s").terms();
    let (rate_set, until) = ("20/s".parse().unwrap(), Some(NOW.plus(SECOND)));
    let rate_set = Override { rate: rate_set, until, reason: None, by: None, set_at: NOW };
    terms.set_rate(None, rate_set).unwrap();
    agreement.on_generation(4);
    let adopted = agreement.on_record(status(4), Some(terms.to_text()), NOW).unwrap();
    assert_eq!((rate(&adopted.settings), adopted.is_override), (20.0, true));
    assert_eq!(agreement.next_end(), Some(NOW.plus(SECOND)));
    assert!(agreement.expire(NOW, true).is_none() && agreement.without_expired(NOW).is_none(), "not yet");
    let end = NOW.plus(SECOND);
    assert_eq!(agreement.without_expired(end).map(|settings| rate(&settings)), Some(5.0));
    assert!(agreement.expire(end, false).is_none(), "the store gets a report first");
    let left = tests::settings("5/s").terms();
    let left = left.put_in_force(Some(&terms), end, Replica::of_this_process()).to_text();
    assert_eq!(agreement.wanted(), Some(Wanted::Write { of: 4, text: left }));
    assert_eq!(agreement.next_end(), None, "it is noticed once");
    let mut away = in_force();
    away.on_generation(4);
    away.on_record(status(4), Some(terms.to_text()), NOW);
    assert_eq!(away.expire(end, true).map(|settings| rate(&settings)), Some(5.0));
}

#[test]
fn one_that_does_not_propose_reads_until_it_can_go_by_the_terms() {
    let mut agreement = Agreement::new(tests::settings("5/s"));
    agreement.do_not_propose();
    assert_eq!(agreement.wanted(), Some(Wanted::Read));
    assert!(agreement.on_record(status(3), Some(unreadable()), NOW).is_none());
    assert!(agreement.is_rejected());
    agreement.on_generation(4);
    assert_eq!((agreement.state, agreement.wanted()), (State::Unknown, Some(Wanted::Read)));
    assert!(agreement.on_record(status(4), Some(text("7/s")), NOW).is_some());
    assert_eq!(agreement.settled(), Some(4), "its own 5/s are not proposed");
}

#[test]
fn one_that_does_not_propose_replaces_no_terms_that_others_write_at_the_same_instant() {
    let mut agreement = Agreement::new(tests::settings("5/s"));
    agreement.do_not_propose();
    for _ in 0..2 {
        assert!(agreement.on_record(status(0), None, NOW).is_none(), "the write may fail");
        assert_eq!(agreement.wanted(), Some(Wanted::Write { of: 0, text: written("5/s", None) }));
    }
    let mut first = agreement;
    let adopted = first.on_record(status(1), Some(text("7/s")), NOW).map(|adopted| rate(&adopted.settings));
    assert_eq!((adopted, first.settled(), first.wanted()), (Some(7.0), Some(1), None));
    first.give(tests::settings("8/s"), NOW);
    assert_eq!(first.wanted(), Some(Wanted::Read), "a reload is about its own limits");
}

#[test]
fn another_file_is_warned_of_once_however_many_rates_are_set() {
    let mut agreement = in_force();
    let own = tests::settings("5/s").terms();
    assert_eq!(agreement.fingerprint(), Some(own.fingerprint()));
    let mut other = tests::settings("7/s").terms();
    assert!(agreement.is_another_file(&other));
    let rate = "20/s".parse().unwrap();
    other.set_rate(None, Override { rate, until: None, reason: None, by: None, set_at: NOW }).unwrap();
    assert!(!agreement.is_another_file(&other), "it is the same file, with a rate over it");
    assert!(agreement.is_another_file(&tests::settings("8/s").terms()));
    assert!(!agreement.is_another_file(&own), "its own is in force again");
    assert!(agreement.is_another_file(&tests::settings("8/s").terms()));
    assert_eq!(rejected().fingerprint(), None, "nobody knows what is in force");
}
