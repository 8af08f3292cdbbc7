//! Tests of a replica that is killed, and of one that is stopped.

use std::time::Duration;

use crate::support::LONG;
use crate::support::api::{Answer, Api, Gate, stamp};
use crate::support::daemon::Paced;
use crate::support::eventually;
use crate::support::publish::Job;
use crate::support::site::{Site, compare};
use crate::{UNDER_WAY, assert_paced};

/// How many requests between these instants came from this replica.
fn count_of(api: &Api, name: &str, (from, to): (u64, u64)) -> usize {
    let arrivals = api.arrivals();
    let own = arrivals.iter().filter(|arrival| arrival.header("x-replica") == Some(name));
    own.filter(|arrival| (from..to).contains(&arrival.at)).count()
}

#[tokio::test]
async fn a_killed_replica_loses_nothing_and_doubles_only_what_was_being_sent() {
    let mut site = Site::shared("kill9", "rate = '200/s'\nconcurrency = 16").await;
    site.http = "timeout = '5m'".to_owned();
    site.api.rule(|_| Answer::ok().after(Duration::from_millis(20)));
    let named = |name: &str| format!("{}headers = {{ x-replica = '{name}' }}\n", site.config());
    let (one, other) = (named("victim"), named("survivor"));
    let begun = stamp();
    let (victim, survivor) = tokio::join!(Paced::spawn(&one), Paced::spawn(&other));
    site.publish(Job::many("job", 600)).await;
    let took_part = || count_of(&site.api, "victim", (0, u64::MAX)) > 30;
    eventually("the victim takes part", LONG, took_part).await;
    // Each sends as many as it may, and has an answer to none of them: all others are acked long before.
    let gate = Gate::closed();
    let held = gate.clone();
    site.api.rule(move |_| Answer::ok().gated(&held));
    gate.wait_for(32, LONG).await;
    let sent = site.api.arrivals();
    let by_victim = sent.iter().filter(|arrival| arrival.header("x-replica") == Some("victim"));
    let unanswered: Vec<String> = by_victim.rev().take(16).map(|arrival| arrival.id().to_owned()).collect();
    victim.kill9();
    victim.wait_exit(LONG).await;
    let opened = stamp();
    gate.open();
    // What the victim had no answer to comes again. A survivor that is stopped before would give it back.
    let delivered = || {
        let tally = compare("job", 600, &site.api.arrivals());
        tally.lost.is_empty()
            && unanswered.iter().all(|id| tally.doubled.iter().any(|(twice, _)| twice == id))
    };
    eventually("every job is delivered", LONG, delivered).await;
    assert_eq!(survivor.stop().await, 0);
    site.depth(&site.queue(), 0, LONG).await;

    let arrivals = site.api.arrivals();
    let tally = compare("job", 600, &arrivals);
    assert!(tally.lost.is_empty() && tally.strange.is_empty(), "{tally:?}");
    assert!(tally.doubled.len() <= 16, "more than it can have had in flight: {:?}", tally.doubled);
    for (id, times) in &tally.doubled {
        let first = arrivals.iter().find(|arrival| arrival.id() == id).unwrap();
        assert_eq!(*times, 2, "{id}");
        assert_eq!(first.header("x-replica"), Some("victim"), "{id}");
    }
    assert_paced(&site.api, begun, "200/s", 0);
    assert_paced(&site.api, opened, "200/s", UNDER_WAY);
}

#[tokio::test]
async fn a_replica_that_stands_still_for_seconds_loses_nothing_doubles_nothing_and_goes_on() {
    const JOBS: usize = 1400;
    const FIRST: usize = 150;
    const LAST: usize = 400;
    let site = Site::shared("freeze", "rate = '200/s'\nqueue.prefetch = 300").await;
    let named = ["frozen", "second", "third", "fourth"]
        .map(|name| format!("{}headers = {{ x-replica = '{name}' }}\n", site.config()));
    let [frozen, b, c, d] = &named;
    // Its window has grown before the others start, so that it holds jobs however the broker distributes the rest; and
    // the others have enough jobs for the whole stop.
    let begun = stamp();
    let frozen = Paced::spawn(frozen).await;
    let mut jobs = Job::many("job", JOBS);
    let last = jobs.split_off(JOBS - LAST);
    let rest = jobs.split_off(FIRST);
    site.publish(jobs).await;
    site.api.wait_for(FIRST, LONG).await;
    let (b, c, d) = tokio::join!(Paced::spawn(b), Paced::spawn(c), Paced::spawn(d));
    site.publish(rest).await;
    site.api.wait_for(FIRST + 200, LONG).await;
    frozen.freeze();
    // Meanwhile the others release what takes at least 1.5 s.
    let stopped = (stamp(), site.api.count());
    site.api.wait_for(stopped.1 + 300, LONG).await;
    let thawed = stamp();
    frozen.thaw();
    // How many jobs it held depends on how the broker distributed them; of these it gets its part.
    site.publish(last).await;
    let delivered = || compare("job", JOBS, &site.api.arrivals()).lost.is_empty();
    eventually("every job is delivered", LONG, delivered).await;
    for replica in [&frozen, &b, &c, &d] {
        assert_eq!(replica.stop().await, 0);
    }
    site.depth(&site.queue(), 0, LONG).await;

    let arrivals = site.api.arrivals();
    let tally = compare("job", JOBS, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    assert_paced(&site.api, begun, "200/s", 0);
    assert_paced(&site.api, thawed, "200/s", UNDER_WAY);
    let of_frozen = |from: u64, to: u64| count_of(&site.api, "frozen", (from, to));
    assert!(of_frozen(0, stopped.0) > 10, "it took part");
    assert!(of_frozen(stopped.0, thawed) <= UNDER_WAY, "what was under way came while it stood still");
    assert!(of_frozen(thawed, u64::MAX) > 50, "it continues");
}
