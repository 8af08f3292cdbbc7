//! Tests of a replica that is killed, and of one that is stopped.

use std::time::Duration;

use crate::support::api::{Answer, stamp};
use crate::support::daemon::Paced;
use crate::support::eventually;
use crate::support::publish::Job;
use crate::support::site::{Site, compare};
use crate::{LONG, NOISE, assert_paced};

/// A request that came longer than this before the kill was answered and acked: 20 ms for the
/// answer, 10 ms until acks are flushed, the rest for a busy machine.
const UNSETTLED: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_killed_replica_loses_nothing_and_doubles_only_what_was_being_sent() {
    let site = Site::shared("kill9", "rate = '200/s'\nconcurrency = 16").await;
    site.api.watch_stalls();
    site.api.rule(|_| Answer::ok().after(Duration::from_millis(20)));
    let named = |name: &str| format!("{}headers = {{ x-replica = '{name}' }}\n", site.config());
    let (one, other) = (named("victim"), named("survivor"));
    let (victim, survivor) = tokio::join!(Paced::spawn(&one), Paced::spawn(&other));
    site.publish(Job::many("job", 1000)).await;
    site.api.wait_for(300, LONG).await;
    victim.kill9();
    let killed = stamp();
    victim.wait_exit(LONG).await;
    let delivered = || compare("job", 1000, &site.api.arrivals()).lost.is_empty();
    eventually("every job is delivered", LONG, delivered).await;
    assert_eq!(survivor.stop().await, 0);
    site.depth(&site.queue(), 0, LONG).await;

    let arrivals = site.api.arrivals();
    let tally = compare("job", 1000, &arrivals);
    assert!(tally.lost.is_empty() && tally.strange.is_empty(), "{tally:?}");
    assert!(tally.doubled.len() <= 16, "more than it can have had in flight: {:?}", tally.doubled);
    for (id, times) in &tally.doubled {
        let mut copies = arrivals.iter().filter(|arrival| arrival.id() == id);
        let first = copies.next().unwrap();
        assert_eq!(*times, 2, "{id}");
        assert_eq!(first.header("x-replica"), Some("victim"), "{id}");
        let before = Duration::from_nanos(killed.saturating_sub(first.at));
        assert!(before < UNSETTLED, "{id} was sent {before:?} before the kill, and not acked");
    }
    let share = arrivals.iter().filter(|arrival| arrival.header("x-replica") == Some("victim")).count();
    assert!(share > 30, "it took part: {share}");
    assert_paced(&site.api, "200/s".parse().unwrap(), NOISE);
}

#[tokio::test]
async fn a_replica_that_stands_still_for_seconds_loses_nothing_doubles_nothing_and_goes_on() {
    const JOBS: usize = 2000;
    const FIRST: usize = 150;
    let site = Site::shared("freeze", "rate = '200/s'\nqueue.prefetch = 300").await;
    site.api.watch_stalls();
    let named = ["frozen", "second", "third", "fourth"]
        .map(|name| format!("{}headers = {{ x-replica = '{name}' }}\n", site.config()));
    let [frozen, b, c, d] = &named;
    // Its window has grown before the others start, so that it holds jobs however the broker distributes the rest; and
    // the others have enough jobs for the whole stop.
    let frozen = Paced::spawn(frozen).await;
    let mut jobs = Job::many("job", JOBS);
    let rest = jobs.split_off(FIRST);
    site.publish(jobs).await;
    site.api.wait_for(FIRST, LONG).await;
    let (b, c, d) = tokio::join!(Paced::spawn(b), Paced::spawn(c), Paced::spawn(d));
    site.publish(rest).await;
    site.api.wait_for(FIRST + 200, LONG).await;
    frozen.freeze();
    // The wait covers the jobs that the others may release in 5 s.
    let stopped = (stamp(), site.api.count());
    site.api.wait_for(stopped.1 + 1000, LONG).await;
    let thawed = stamp();
    frozen.thaw();
    let delivered = || compare("job", JOBS, &site.api.arrivals()).lost.is_empty();
    eventually("every job is delivered", LONG, delivered).await;
    for replica in [&frozen, &b, &c, &d] {
        assert_eq!(replica.stop().await, 0);
    }
    site.depth(&site.queue(), 0, LONG).await;

    let arrivals = site.api.arrivals();
    let tally = compare("job", JOBS, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    // Four daemons at once keep the API from two cores for longer than one does.
    assert_paced(&site.api, "200/s".parse().unwrap(), 2 * NOISE);
    let stood = Duration::from_nanos(thawed - stopped.0);
    assert!(stood > Duration::from_millis(4900), "it stood still for {stood:?}");
    let of_frozen = |from: u64, to: u64| {
        let own = arrivals.iter().filter(|arrival| arrival.header("x-replica") == Some("frozen"));
        own.filter(|arrival| (from..to).contains(&arrival.at)).count()
    };
    let on_the_way = u64::try_from(NOISE.as_nanos()).unwrap();
    assert!(of_frozen(0, stopped.0) > 10, "it took part");
    assert_eq!(of_frozen(stopped.0 + on_the_way, thawed), 0, "while it stood still");
    // It held these jobs all the time, so that no other replica could release them.
    assert!(of_frozen(thawed, u64::MAX) > 50, "it goes on");
}
