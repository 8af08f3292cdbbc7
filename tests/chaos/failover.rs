//! The server that holds the state dies, and its replica takes over.

use std::time::Duration;

use crate::LONG;
use crate::rig::{Chaos, Rig};
use crate::support::api::stamp;
use crate::support::servers::{Cluster, Sentinels};
use crate::support::site::NAME;
use crate::support::until;
use crate::verdict::Run;
use crate::watch::nanos;

/// The time until releases resume once there is a new master.
const RESUMED: Duration = Duration::from_secs(2);
/// A master counts as failed after a second of silence, and is replaced no sooner.
const DEAF: Duration = Duration::from_secs(1);

/// Asserts that each job came once and soon, at the pace, for any grants of the old master.
#[track_caller]
fn assert_followed(run: &Run, killed: u64, promoted: u64) {
    run.assert_once();
    run.assert_paced();
    let (away, resumed) = (Duration::from_nanos(promoted - killed), run.resumed_after(promoted));
    eprintln!("a new master after {away:?}; the first request {resumed:?} later");
    assert!(resumed <= RESUMED, "{resumed:?} after there was a new master; {run}");
    run.assert_no_gap_over(away + RESUMED);
    // Slots granted before may still be used: those of a horizon.
    let held = run.count(killed + nanos(Duration::from_millis(150))..killed + nanos(DEAF));
    assert_eq!(held, 0, "released without a slot; {run}");
}

#[tokio::test]
async fn a_master_of_a_cluster_is_killed() {
    let mut chaos = Chaos::begin("cluster");
    let moment = chaos.moments(1)[0];
    let cluster = Cluster::dedicated().await;
    cluster.fail_over_by_itself().await;
    let tag = format!("{{{NAME}}}");
    let master = cluster.master_of(&tag).await;
    let rig = Rig::at(chaos, &cluster.url()).await;
    rig.publish().await;
    rig.reach(moment).await;
    cluster.nodes[master].kill().await;
    let killed = stamp();
    let follows = async || cluster.master_of(&tag).await == master + 3;
    until("the replica is the master", LONG, follows).await;
    let promoted = stamp();
    assert_followed(&rig.finish().await, killed, promoted);
}

#[tokio::test]
async fn a_master_behind_sentinels_is_killed() {
    let mut chaos = Chaos::begin("sentinel");
    let moment = chaos.moments(1)[0];
    let set = Sentinels::dedicated().await;
    set.fail_after("1000").await;
    let rig = Rig::at(chaos, &set.url()).await;
    rig.publish().await;
    rig.reach(moment).await;
    set.servers[0].kill().await;
    let killed = stamp();
    until("a replica is the master", LONG, async || set.master().await != 0).await;
    let promoted = stamp();
    assert_followed(&rig.finish().await, killed, promoted);
}
