//! What waits long for a limit of its lane is parked, and leaves the window to others.

use super::*;

/// A window of 100 jobs whose source can park.
fn small(rate: &str, limits: &[(Limit, &[usize])]) -> Bench {
    let mut bench = bench(rate, limits);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.prefetch = 100;
    bench.bound_window(100);
    bench
}

fn parked(bench: &Bench) -> usize {
    bench.ledger.all().into_iter().filter(|(_, how)| matches!(how, Settled::Parked(_))).count()
}

#[tokio::test(start_paused = true)]
async fn what_waits_long_for_its_lane_is_parked_and_leaves_the_window_to_others() {
    let mut bench = small("100/s", &[(leaky("lane.l", "1/min", 1), &[0, 1])]);
    publish(&bench, "slow", "e", 300);
    (0..50).for_each(|endpoint| publish(&bench, "other", &endpoint.to_string(), 1));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let others = sent(&bench, "other", start);
    assert!(others.len() == 50 && others.last() < Some(&3_000_000), "{others:?}");
    assert_eq!(parked(&bench) + sent(&bench, "slow", start).len(), 300);
    assert!(parked(&bench) >= 297, "{}", parked(&bench));
}

/// A store that is slow, or a long cool-down, must not fill the window with what waits for its lane anyway.
#[tokio::test(start_paused = true)]
async fn what_comes_while_a_call_is_under_way_is_parked_too() {
    let mut bench = small("100/s", &[(leaky("lane.l", "1/min", 1), &[0, 1])]);
    publish(&bench, "slow", "e", 1);
    let _running = bench.start();
    bench.sink.arrived(1).await;
    bench.store.farther.store(30_000_000, Ordering::SeqCst);
    publish(&bench, "other", "e", 1);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let before = calls(&bench);
    publish(&bench, "slow", "f", 50);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(calls(&bench), before, "it is still under way");
    assert!(parked(&bench) >= 47, "{}", parked(&bench));
}

/// Each of its lanes has one job, which goes as soon as its tenant's limit allows one.
#[tokio::test(start_paused = true)]
async fn a_tenant_with_many_lanes_leaves_the_window_to_others() {
    for is_of_plan in [false, true] {
        let limits: [(Limit, &[usize]); 1] = [(leaky("lane.t", "1/s", 1), &[0])];
        let mut bench = small("100/s", &limits[..usize::from(!is_of_plan)]);
        plan(&mut bench, "free", leaky("plan.free.l", "1/s", 1));
        let message = |message| if is_of_plan { on("free", message) } else { message };
        for endpoint in 0..600 {
            bench.publish(message(job("wide", &endpoint.to_string(), 0)));
        }
        (0..50).for_each(|tenant| bench.publish(message(job(&format!("other-{tenant}"), "e", 0))));
        let start = Instant::now();
        let done = bench.start();
        bench.end();
        done.await.unwrap();
        let others = sent(&bench, "other", start);
        assert!(others.len() == 50 && others.last() < Some(&5_000_000), "{others:?}");
        let wide = sent(&bench, "wide", start).len();
        assert_eq!(parked(&bench) + wide, 600);
        assert!((2..=70).contains(&wide), "{wide} go within hold_max");
    }
}
