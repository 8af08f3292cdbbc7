//! A store whose clock steps: Redis on libfaketime.

use std::time::Duration;

use crate::rig::{Chaos, Rig};
use crate::support::api::stamp;
use crate::support::servers::Redis;
use crate::verdict::{Excuse, Run};
use crate::watch::nanos;

/// How far ahead slots are granted.
const HORIZON: Duration = Duration::from_millis(100);
/// How many slots a forward step may grant twice, once: the slots of a horizon, and one more.
const TWICE: usize = 21;

/// Steps the clock of the store during the run, from `first` seconds ahead to `then`, and checks that it stepped;
/// `None` where there is no such clock.
async fn stepped(name: &'static str, steps: [i32; 2]) -> Option<(Run, Vec<u64>)> {
    let mut chaos = Chaos::begin(name);
    let moments = chaos.moments(steps.len());
    let redis = Redis::with_own_clock().await?;
    let rig = Rig::on(chaos, &redis).await;
    rig.publish().await;
    let (mut at, mut ahead) = (Vec::new(), 0);
    for (moment, step) in moments.into_iter().zip(steps) {
        rig.reach(moment).await;
        let before = offset(&redis).await;
        ahead += step;
        at.push(stamp());
        redis.set_clock(ahead).await;
        let moved = offset(&redis).await - before;
        assert!(
            (moved - f64::from(step)).abs() < 0.5,
            "the script's clock moved by {moved} s, not by {step}"
        );
    }
    Some((rig.finish().await, at))
}

/// How far the clock that scripts see is ahead of the machine's, in seconds.
async fn offset(redis: &Redis) -> f64 {
    let script = "local t = redis.call('TIME') return t[1] .. '.' .. string.format('%06d', t[2])";
    let answer = redis.command(&["EVAL", script, "0"]).await.unwrap();
    let store: f64 = answer.lines().nth(1).unwrap().parse().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "seconds of today: exact to the microsecond")]
    let own = paced::time::wall_now().0 as f64 / 1e6;
    store - own
}

/// Slots granted before a forward step may be used beside those granted after it, until all replicas have noticed the
/// step.
fn excuse(step: u64) -> Excuse {
    Excuse { at: step..step + nanos(2 * HORIZON), extra: TWICE }
}

#[tokio::test]
async fn the_clock_of_the_store_steps_back() {
    let Some((run, _)) = stepped("clock-back", [-2, -2]).await else { return };
    run.assert_once();
    run.assert_paced();
    run.assert_no_gap_over(Duration::from_millis(250));
}

#[tokio::test]
async fn the_clock_of_the_store_steps_forward() {
    let Some((run, at)) = stepped("clock-forward", [2, 2]).await else { return };
    run.assert_once();
    let excuses: Vec<Excuse> = at.into_iter().map(excuse).collect();
    run.assert_paced_but(&excuses);
    run.assert_no_gap_over(Duration::from_millis(250));
}

#[tokio::test]
async fn the_clock_of_the_store_steps_back_and_forward() {
    let Some((run, at)) = stepped("clock-both", [-2, 2]).await else { return };
    run.assert_once();
    run.assert_paced_but(&[excuse(at[1])]);
    run.assert_no_gap_over(Duration::from_millis(250));
}
