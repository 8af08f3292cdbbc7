use paced::store::MAX_SUMMARY_BYTES;

use super::groups::{MANY, MOST_GROUPED};
use super::*;

#[test]
fn a_summary_is_read_as_it_was_written_and_one_of_another_form_is_left_out() {
    let identity = Identity { id: "one".to_owned(), pid: 7, ..Identity::default() };
    let mut summary = Summary::new(identity, 1_000);
    let mut own = Own::default();
    own.binding.reason = "limit".to_owned();
    (own.releases.released, own.releases.rate) = (12, 0.5);
    summary.downstreams.insert("billing".to_owned(), own);
    let text = summary.text();
    assert_eq!(Summary::read(&text), Some(summary));
    assert!(Summary::read(&text.replace("\"v\":1", "\"v\":2")).is_none());
    let long = "x".repeat(65);
    assert!(Summary::read(&text.replace("\"id\":\"one\"", &format!("\"id\":\"{long}\""))).is_none());
    assert!(Summary::read(&text.replacen('{', "{\"new\":[1],", 1)).is_some(), "a later one may say more");
    for text in ["", "{}", "[]", "{\"v\":1}"] {
        assert!(Summary::read(text).is_none(), "{text}");
    }
}

/// Replicas of other versions of paced read it, and write such texts.
#[test]
fn a_summary_is_the_same_text() {
    const FULL: &str = concat!(
        r#"{"v":1,"replica":{"id":"a","host":"h","pid":1,"version":"0.1.0","started_at":2},"at":3,"#,
        r#""amqp":true,"store":false,"downstreams":{"billing":{"#,
        r#""c":{"waiting":1,"delayed":2,"retrying":3,"held":4,"sending":5,"settling":6},"b":"limit","l":"m","s":7,"#,
        r#""u":8,"r":9,"d":10,"p":0.5,"n":11,"o":12,"q":{"p50_us":13,"p99_us":14},"a":{"p50_us":20,"p99_us":21},"#,
        r#""f":{"since":15,"kind":"500","detail":"d","attempts":16,"kinds":[{"kind":"500","count":16}]},"#,
        r#""fs":[{"at":17,"kind":"500","detail":"d","count":18,"response":"r"}],"#,
        r#""ls":[{"name":"tenant=a","waiting":22,"oldest":23,"reason":"turn"}],"e":"away","h":19},"#,
        r#""idle":{"b":"","s":0}}}"#,
    );
    let summary = Summary::read(FULL).unwrap();
    assert_eq!(summary.downstreams["idle"], Own::default());
    assert_eq!(summary.text(), FULL);
    let newer = FULL.replace(r#""started_at":2}"#, r#""started_at":2,"terms":4}"#);
    let summary = Summary::read(&newer).unwrap();
    assert_eq!((summary.replica.terms, summary.text()), (4, newer));
}

#[test]
fn a_goodbye_is_a_summary_of_nothing() {
    let goodbye = Summary::goodbye(Identity { id: "one".to_owned(), ..Identity::default() }, 5);
    let text = goodbye.text();
    assert!(
        text.ends_with(r#""amqp":false,"store":false,"g":true,"has_ended":true,"downstreams":{}}"#),
        "{text}"
    );
    assert_eq!(Summary::read(&text), Some(goodbye));
}

#[test]
fn a_long_summary_goes_without_answers_and_lanes_and_a_longer_one_without_failures() {
    let failure = |response: &str| Failure {
        at: 1,
        kind: "500".to_owned(),
        detail: "d".repeat(120),
        count: 2,
        response: Some(response.to_owned()),
    };
    let mut summary = Summary::new(Identity::default(), 0);
    let mut add = |downstreams: std::ops::Range<u32>| {
        for number in downstreams {
            let lanes = vec![Lane { name: "tenant=acme".to_owned(), waiting: 1, ..Lane::default() }];
            let own = Own { failures: vec![failure(&"x".repeat(1024)); 3], lanes, ..Own::default() };
            summary.downstreams.insert(format!("downstream-{number}"), own);
        }
        let text = summary.text();
        assert!(text.len() <= LONGEST, "{}", text.len());
        let read = Summary::read(&text).unwrap().downstreams.remove("downstream-0").unwrap();
        let has_answers = read.failures.iter().any(|failure| failure.response.is_some());
        (read.failures.len(), has_answers, read.lanes.len())
    };
    assert_eq!(add(0..100), (3, true, 1));
    assert_eq!(add(100..500), (3, false, 0));
    assert_eq!(add(500..2_000), (0, false, 0));
}

#[test]
fn the_busiest_lanes_of_each_downstream_are_reported_as_long_as_there_is_room() {
    let lane = |number: usize| Lane { name: format!("{number}{}", "x".repeat(399)), ..Lane::default() };
    let mut summary = Summary::new(Identity::default(), 0);
    let mut add = |downstreams: std::ops::Range<u32>| {
        for number in downstreams {
            let own = Own { lanes: (0..10).map(lane).collect(), ..Own::default() };
            summary.downstreams.insert(format!("downstream-{number}"), own);
        }
        let text = summary.text();
        let lanes = Summary::read(&text).unwrap().downstreams.remove("downstream-0").unwrap().lanes;
        (lanes.len(), lanes.first().is_none_or(|first| first.name.starts_with("0x")))
    };
    assert_eq!(add(0..13), (10, true));
    assert_eq!(add(13..100), (1, true));
    assert_eq!(add(100..200), (0, true));
    assert_eq!(summary.downstreams["downstream-0"].lanes.len(), 10, "all of its own are known here");
}

#[test]
fn thousands_of_downstreams_at_rest_are_reported_in_groups() {
    let mut summary = Summary::new(Identity::default(), 0);
    let name = |number: usize| format!("a-downstream-of-a-tenant-with-a-long-name-{number:05}");
    let own = |seconds: i64, released| Own {
        binding: Bound {
            reason: "idle".to_owned(),
            since: 1_764_000_000_007 + seconds * 1000,
            ..Bound::default()
        },
        releases: OwnReleases { released, delivered: released, ..OwnReleases::default() },
        file: u64::MAX,
        ..Own::default()
    };
    for number in 0..MANY - 1 {
        summary.downstreams.insert(name(number), own(0, 0));
    }
    assert!(!summary.text().contains(r#""i":"#), "as an earlier version reads it");
    for number in 0..10_000 {
        let released = u64::from(number % 3 == 0) * 7;
        summary.downstreams.insert(name(number), own(i64::from(number % 2 == 0) * 70_000, released));
    }
    let mut busy = own(5, 3);
    busy.counts.waiting = 1;
    summary.downstreams.insert("busy".to_owned(), busy);
    let text = summary.text();
    assert!(text.len() < 640_000, "{}", text.len());
    assert_eq!(Summary::read(&text).as_ref(), Some(&summary));
    // A reader of an earlier version finds the others.
    assert_eq!(serde_json::from_str::<Summary>(&text).unwrap().downstreams.len(), 1);
    // Less than a second is cut off.
    summary.downstreams.entry(name(1)).or_default().binding.since += 999;
    assert_eq!(Summary::read(&summary.text()).unwrap().downstreams[&name(1)], own(0, 0));
    // Anybody may write a summary.
    let too_many = vec![r#""a""#; MOST_GROUPED].join(",");
    assert!(Summary::read(&text.replacen(r#""n":["#, &format!(r#""n":[{too_many},"#), 1)).is_none());
    for (group, read) in [
        (r#"{"s":0,"n":["x"],"a":[0],"r":[0]}"#, Some(("idle", 0, None))),
        (
            r#"{"s":-9223372036854775808,"n":["x"],"a":[9223372036854775807],"r":[0],"u":[-1]}"#,
            Some(("idle", 0, None)),
        ),
        (r#"{"b":"paused","s":5,"n":["x"],"a":[1],"r":[0],"u":[2]}"#, Some(("paused", 1005, Some(2005)))),
        (r#"{"s":0,"n":["x"],"a":[],"r":[0]}"#, None),
    ] {
        let forged = format!(
            r#"{{"v":1,"replica":{{"id":"a","host":"h","pid":1,"version":"1","started_at":0}},"at":0,"amqp":true,"store":true,"downstreams":{{}},"i":[{group}]}}"#
        );
        let found = Summary::read(&forged).unwrap().downstreams.remove("x").map(|own| own.binding);
        match read {
            Some(_) if group.contains("-9223372036854775808") => assert!(found.is_some(), "no overflow"),
            Some((reason, since, until)) => {
                assert_eq!(found, Some(Bound { reason: reason.to_owned(), since, until, limit: None }));
            }
            None => assert_eq!(found, None, "lists that are too short leave it out"),
        }
    }
    let long = format!(r#""i":[{{"b":"{}","#, "x".repeat(33));
    assert!(Summary::read(&text.replacen(r#""i":[{"#, &long, 1)).is_none());
}

/// Such as at the start of a daemon, while the broker is away, or after all were paused.
#[test]
fn thousands_of_downstreams_that_hold_no_jobs_are_reported_in_groups_whatever_holds_them_back() {
    let mut summary = Summary::new(Identity::default(), 0);
    for number in 0..10_000 {
        let mut own = Own { file: u64::MAX, ..Own::default() };
        own.binding.reason = ["starting", "broker", "paused", "terms", IDLE][number % 5].to_owned();
        own.binding.since = 1_764_000_000_007;
        own.releases.released = 7;
        own.releases.delivered = 7;
        own.binding.until = (number % 10 == 2).then_some(own.binding.since + 90_000);
        summary.downstreams.insert(format!("a-downstream-of-a-tenant-with-a-long-name-{number:05}"), own);
    }
    let (text, left_out) = summary.text_that_fits();
    assert!(left_out == 0 && text.len() < 640_000, "{}", text.len());
    assert_eq!(Summary::read(&text), Some(summary));
}

#[test]
fn as_many_downstreams_with_jobs_as_a_store_keeps_are_reported() {
    let mut summary = Summary::new(Identity::default(), 0);
    for number in 0..10_000 {
        let mut own = Own { file: u64::MAX, ..Own::default() };
        (own.binding.reason, own.binding.since) = ("limit".to_owned(), 1_764_000_000_007);
        (own.counts.waiting, own.releases.released, own.releases.delivered) = (12_345, 1_234_567, 1_234_567);
        summary.downstreams.insert(format!("{number:05}-{}", "n".repeat(57)), own);
    }
    assert!(summary.text().len() > MAX_SUMMARY_BYTES);
    let (text, left_out) = summary.text_that_fits();
    assert!(text.len() <= MAX_SUMMARY_BYTES, "{}", text.len());
    let read = Summary::read(&text).unwrap().downstreams;
    assert_eq!(read.len(), 10_000 - left_out);
    assert!(read.len() > 4_000, "{}", read.len());
    assert!(read.iter().all(|(name, own)| summary.downstreams[name] == *own));
}

/// Names are of 63 bytes at most.
#[test]
fn ten_thousand_downstreams_that_failed_once_fit_into_what_a_store_keeps() {
    let name = |number: usize| format!("{number:05}-{}", "n".repeat(57));
    let failure = Failure {
        at: 1_764_000_000_000,
        kind: "connect api.example.com:443".to_owned(),
        detail: "d".repeat(120),
        count: 1,
        response: Some("r".repeat(1024)),
    };
    let mut resting = Own { failures: vec![failure], ..Own::default() };
    (resting.binding.reason, resting.binding.since) = ("idle".to_owned(), 1_764_000_000_000);
    (resting.releases.released, resting.releases.delivered, resting.releases.failed) = (12_345, 12_344, 1);
    let mut busy = resting.clone();
    busy.counts.waiting = 1;
    for are_busy in [0, 1_000] {
        let mut summary = Summary::new(Identity::default(), 0);
        for number in 0..10_000 {
            let own = if number < are_busy { &busy } else { &resting };
            summary.downstreams.insert(name(number), own.clone());
        }
        let text = summary.text();
        assert!(text.len() <= MAX_SUMMARY_BYTES, "{}", text.len());
        let read = Summary::read(&text).unwrap().downstreams;
        assert_eq!(read.len(), 10_000);
        let is_same = |number: usize, own: &Own| read[&name(number)].releases == own.releases;
        assert!((0..10_000).all(|number| is_same(number, if number < are_busy { &busy } else { &resting })));
        assert!(read.values().all(|own| own.failures.is_empty()), "there is no room for them");
    }
    // Where there is room, others see how they failed.
    let mut summary = Summary::new(Identity::default(), 0);
    for number in 0..MANY {
        let own = if number == 7 { resting.clone() } else { Own { failures: Vec::new(), ..resting.clone() } };
        summary.downstreams.insert(name(number), own);
    }
    assert_eq!(Summary::read(&summary.text()), Some(summary));
}

#[test]
fn an_idle_downstream_takes_few_bytes() {
    let mut summary = Summary::new(Identity::default(), 0);
    let empty = summary.text().len();
    let binding = Bound { reason: "idle".to_owned(), since: 1_764_000_000_000, ..Bound::default() };
    let own = Own { binding, file: u64::MAX, ..Own::default() };
    for number in 0..100 {
        summary.downstreams.insert(format!("downstream-{number:02}"), own.clone());
    }
    assert!((summary.text().len() - empty) / 100 < 100, "{}", summary.text().len());
}
