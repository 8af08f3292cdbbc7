//! A replica that is killed.

use std::time::Duration;

use crate::support::api::{Answer, stamp};
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::site::{Site, compare};
use crate::support::{count, eventually};
use crate::{LONG, NOISE};

/// A request that came longer than this before the kill was answered and acked: 20 ms for the
/// answer, 10 ms until acks are flushed, the rest for a busy machine.
const UNSETTLED: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_killed_replica_loses_nothing_and_doubles_only_what_was_being_sent() {
    let site = Site::shared("kill9", "rate = '200/s'\nconcurrency = 16").await;
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
    let rate = "200/s".parse().unwrap();
    for window in [Duration::from_secs(1), Duration::from_millis(100)] {
        let busiest = count::busiest(&site.api.stamps(), window);
        assert!(busiest <= count::allowed_with(rate, window, NOISE), "{busiest} in {window:?}");
    }
}
