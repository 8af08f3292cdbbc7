//! A store that forgets, dies, or does not answer.

use std::time::Duration;

use crate::rig::{Chaos, REPLICAS, Rig, rest};
use crate::support::api::stamp;
use crate::support::proxy::Proxy;
use crate::support::servers::Redis;
use crate::verdict::Run;
use crate::watch::nanos;

/// How long the store is away.
const BLACKHOLE: Duration = Duration::from_secs(3);
/// The time until releases resume once the store is back.
const RESUMED: Duration = Duration::from_secs(2);
/// After a loss no slot comes before the fence, a horizon and an interval later; then each replica asks at its own
/// time.
const FENCED: Duration = Duration::from_millis(250);

/// Asserts that each job came once, at the pace.
#[track_caller]
fn assert_kept(run: &Run) {
    run.assert_once();
    run.assert_paced();
}

#[tokio::test]
async fn nothing_happens() {
    let chaos = Chaos::begin("calm");
    let redis = Redis::dedicated().await;
    let rig = Rig::on(chaos, &redis).await;
    rig.publish().await;
    let run = rig.finish().await;
    assert_kept(&run);
    run.assert_no_gap_over(Duration::from_millis(100));
}

#[tokio::test]
async fn all_is_flushed_three_times() {
    let mut chaos = Chaos::begin("flushall");
    let moments = chaos.moments(3);
    let redis = Redis::dedicated().await;
    let rig = Rig::on(chaos, &redis).await;
    rig.publish().await;
    for moment in moments {
        rig.reach(moment).await;
        redis.command(&["FLUSHALL"]).await.unwrap();
    }
    let run = rig.finish().await;
    assert_kept(&run);
    run.assert_no_gap_over(FENCED);
}

#[tokio::test]
async fn the_scripts_are_flushed() {
    let mut chaos = Chaos::begin("scriptflush");
    let moments = chaos.moments(3);
    let redis = Redis::dedicated().await;
    let rig = Rig::on(chaos, &redis).await;
    rig.publish().await;
    for moment in moments {
        rig.reach(moment).await;
        redis.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    }
    let run = rig.finish().await;
    assert_kept(&run);
    run.assert_no_gap_over(Duration::from_millis(100));
}

#[tokio::test]
async fn redis_is_killed_and_comes_back_empty() {
    let mut chaos = Chaos::begin("kill");
    let moment = chaos.moments(1)[0];
    let redis = Redis::dedicated().await;
    let rig = Rig::on(chaos, &redis).await;
    rig.publish().await;
    rig.reach(moment).await;
    redis.kill().await;
    redis.wipe().await;
    let away = rest(Duration::from_secs(2)).await;
    redis.start().await;
    let back = stamp();
    let run = rig.finish().await;
    assert_kept(&run);
    assert!(run.resumed_after(back) <= RESUMED, "after {:?}", run.resumed_after(back));
    run.assert_no_gap_over(Duration::from_nanos(back - away) + RESUMED);
    // Slots granted before may still be used: those of a horizon.
    let held = run.count(away + nanos(Duration::from_millis(150))..back);
    assert_eq!(held, 0, "released without a slot");
}

#[tokio::test]
async fn one_replica_cannot_reach_the_store() {
    let mut chaos = Chaos::begin("blackhole-one");
    let (moment, victim) = (chaos.moments(1)[0], chaos.victim());
    let redis = Redis::dedicated().await;
    let proxy = Proxy::start(redis.port(), Duration::ZERO).unwrap();
    let mut stores = [const { String::new() }; REPLICAS].map(|_| redis.url());
    stores[victim] = format!("redis://127.0.0.1:{}", proxy.port());
    let rig = Rig::with(chaos, "rate = '200/s'", stores).await;
    rig.publish().await;
    let silent = rig.reach(moment).await;
    proxy.silence();
    rest(BLACKHOLE).await;
    proxy.restore();
    let back = stamp();
    let run = rig.finish().await;
    assert_kept(&run);
    // The slots granted to the call in flight are lost.
    run.assert_no_gap_over(Duration::from_millis(100));
    let of_victim = |during: std::ops::Range<u64>| run.of(victim).filter(|at| during.contains(at)).count();
    assert!(of_victim(0..silent) > 20, "it took part");
    assert_eq!(of_victim(silent + nanos(Duration::from_millis(200))..back), 0, "without the store");
    let resumed = run.of(victim).find(|at| *at >= back).unwrap();
    assert!(resumed - back <= nanos(RESUMED), "{:?}", Duration::from_nanos(resumed - back));
}

#[tokio::test]
async fn no_replica_can_reach_the_store() {
    let mut chaos = Chaos::begin("blackhole-all");
    let moment = chaos.moments(1)[0];
    let redis = Redis::dedicated().await;
    let proxy = Proxy::start(redis.port(), Duration::ZERO).unwrap();
    let rig = Rig::at(chaos, &format!("redis://127.0.0.1:{}", proxy.port())).await;
    rig.publish().await;
    let silent = rig.reach(moment).await;
    proxy.silence();
    rest(BLACKHOLE).await;
    proxy.restore();
    let back = stamp();
    let run = rig.finish().await;
    assert_kept(&run);
    assert_eq!(run.count(silent + nanos(Duration::from_millis(200))..back), 0, "without the store");
    assert!(run.resumed_after(back) <= RESUMED, "after {:?}", run.resumed_after(back));
    for replica in 0..REPLICAS {
        let resumed = run.of(replica).find(|at| *at >= back).unwrap();
        assert!(resumed - back <= nanos(RESUMED), "{replica}: {:?}", Duration::from_nanos(resumed - back));
    }
}
