//! Lanes by keys: none blocks another, and they share what the downstream allows.

use std::collections::BTreeMap;

use super::parts::{ScriptedParking, at_most};
use super::*;
use crate::dispatch::{LaneRules, OnUnavailable};
use crate::job::{LanePart, PlanRules};

mod cooling;
mod costly;
mod explained;
mod leaving;
mod live;
mod parking;
mod seen;
mod throttled;
mod turns;
mod windows;

const DEPTH: u16 = 20_000;

fn leaky(name: &str, rate: &str, burst: u32) -> Limit {
    Limit::leaky_bucket(name, rate.parse().unwrap(), burst).unwrap()
}

/// A downstream with lanes by tenant and endpoint; tenants share. Each limit of lanes has the parts whose values it holds
/// for.
fn bench(rate: &str, limits: &[(Limit, &[usize])]) -> Bench {
    let mut bench = Bench::new(rate, QUICK);
    let options = &mut bench.options;
    options.prefetch = DEPTH;
    options.rules.lanes.parts = vec![LanePart::Word(1), LanePart::Lane];
    let per = limits.iter().map(|(limit, parts)| (limit.name().to_owned(), parts.to_vec())).collect();
    options.lanes = Some(LaneRules {
        parts: vec!["tenant".to_owned(), "endpoint".to_owned()],
        fair_by: 0,
        per,
        starvation_guard: 50_000,
        ..LaneRules::default()
    });
    options.rules.plans.push(PlanRules { name: PlanRules::LANES.to_owned(), max_cost: at_most(1000) });
    options.rules.lanes.default_plan = Some(0);
    let set = options.limits.iter().cloned().chain(limits.iter().map(|(limit, _)| limit.clone())).collect();
    options.plans.push(LimitSet::new(set).unwrap());
    bench
}

/// Puts the jobs of a plan under this limit too, one state for each tenant.
fn plan(bench: &mut Bench, name: &str, limit: Limit) {
    let options = &mut bench.options;
    let set = options.plans[0].iter().cloned().chain([limit]).collect();
    options.plans.push(LimitSet::new(set).unwrap());
    options.rules.plans.push(PlanRules { name: name.to_owned(), max_cost: at_most(1000) });
}

fn weights(bench: &mut Bench, weights: &[(&str, u32)]) {
    let weights = weights.iter().map(|(tenant, weight)| ((*tenant).to_owned(), *weight));
    bench.options.lanes.as_mut().unwrap().weights = weights.collect();
}

fn job(tenant: &str, endpoint: &str, number: usize) -> Message {
    let lane = ("paced-lane".to_owned(), Value::Text(endpoint.to_owned().into()));
    let id = format!("{tenant}/{endpoint}/{number}");
    Message { routing_key: format!("billing.{tenant}.x"), headers: vec![lane], ..message(&id) }
}

fn on(plan: &str, mut message: Message) -> Message {
    message.headers.push(("paced-plan".to_owned(), Value::Text(plan.to_owned().into())));
    message
}

fn publish(bench: &Bench, tenant: &str, endpoint: &str, jobs: usize) {
    (0..jobs).for_each(|number| bench.publish(job(tenant, endpoint, number)));
}

/// The instants at which jobs whose ids begin so were sent, in µs from `start`.
fn sent(bench: &Bench, prefix: &str, start: Instant) -> Vec<u128> {
    let sent = bench.sink.sent.lock().unwrap();
    let own = sent.iter().filter(|sent| sent.id.starts_with(prefix));
    own.map(|sent| (sent.at - start).as_micros()).collect()
}

fn calls(bench: &Bench) -> usize {
    bench.store.calls.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn a_lane_of_one_a_minute_blocks_no_other() {
    let mut bench = bench("100/s", &[]);
    plan(&mut bench, "slow", leaky("plan.slow.l", "1/m", 1));
    (0..500).for_each(|number| bench.publish(on("slow", job("slow", "e", number))));
    for tenant in ["a", "b", "c", "d", "e"] {
        publish(&bench, tenant, "e", 400);
    }
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(2001).await;
    let took = start.elapsed();
    assert!(took < Duration::from_millis(20_400), "2 % more than 20 s are allowed: {took:?}");
    assert_eq!(sent(&bench, "slow", start).len(), 1);
    assert!(calls(&bench) < 1000, "{} calls", calls(&bench));
    bench.sink.arrived(2004).await;
    let slow = sent(&bench, "slow", start);
    assert!(slow.windows(2).all(|pair| (60_000_000..60_100_000).contains(&(pair[1] - pair[0]))), "{slow:?}");
    bench.stop.cancel();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn saturated_lanes_share_by_weight() {
    let mut bench = bench("500/s", &[]);
    weights(&mut bench, &[("a", 5), ("b", 3)]);
    for tenant in ["c", "b", "a"] {
        publish(&bench, tenant, "e", 4000);
    }
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(4500).await;
    for (tenant, share) in [("a", 5.0), ("b", 3.0), ("c", 1.0)] {
        #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
        let got = sent(&bench, tenant, start).len() as f64 / 4500.0;
        assert!((got - share / 9.0).abs() < 0.01, "{tenant} got {got}");
    }
    assert!(start.elapsed() < Duration::from_millis(9100), "{:?}", start.elapsed());
    assert!(calls(&bench) < 1500, "{} calls for 4500 jobs", calls(&bench));
    bench.stop.cancel();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_100_endpoints_gets_no_more_than_one_with_one() {
    let mut bench = bench("500/s", &[]);
    for endpoint in 0..100 {
        publish(&bench, "many", &endpoint.to_string(), 30);
    }
    publish(&bench, "one", "e", 3000);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(2000).await;
    let many = sent(&bench, "many", start).len();
    // Its jobs came first, so that a few of them went before the first one of the other tenant had come.
    assert!((980..=1030).contains(&many), "{many} of 2000");
    bench.stop.cancel();
    done.await.unwrap();
}

/// Jobs of three tenants with two endpoints each, whose tenants have 20/s.
fn spread(bench: &Bench, numbers: std::ops::Range<usize>) {
    for number in numbers {
        for (tenant, endpoint) in [("a", "x"), ("b", "x"), ("c", "x"), ("a", "y"), ("b", "y"), ("c", "y")] {
            bench.publish(job(tenant, endpoint, number));
        }
    }
}

fn limited(rate: &str) -> Bench {
    bench(rate, &[(leaky("lane.t", "20/s", 1), &[0]), (leaky("lane.l", "15/s", 2), &[0, 1])])
}

/// Waits until this number of jobs is settled, for an hour of paused time at most; none of them is dead.
async fn acked(bench: &Bench, jobs: usize) {
    let settled = tokio::time::timeout(Duration::from_secs(3600), bench.ledger.count(jobs)).await;
    let all = bench.ledger.all();
    assert!(settled.is_ok(), "{} of {jobs} jobs were settled within an hour", all.len());
    assert!(all.iter().all(|(_, how)| matches!(how, Settled::Acked(_))), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_and_a_lost_downstream_are_tried_by_jobs_of_lanes() {
    let second = Duration::from_secs(1);
    for is_refused in [true, false] {
        let mut bench = limited("50/s");
        bench.tickets.may_be_given_back = false;
        spread(&bench, 0..10);
        let _running = bench.start();
        bench.sink.accepted(20).await;
        let set = |bench: &Bench, value| {
            let flag =
                if is_refused { &bench.sink.secrets.accepts } else { &bench.sink.connections.reachable };
            flag.store(value, Ordering::SeqCst);
        };
        set(&bench, false);
        tokio::time::sleep(10 * second).await;
        let sent = bench.sink.count();
        tokio::time::sleep(4 * second).await;
        assert!(bench.sink.count() - sent <= 8, "one job at a time");
        set(&bench, true);
        acked(&bench, 60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_of_lanes_go_on_while_the_store_is_away() {
    for on_unavailable in [OnUnavailable::Local, OnUnavailable::Open, OnUnavailable::Hold] {
        let mut bench = limited("50/s");
        bench.options.on_unavailable = on_unavailable;
        spread(&bench, 0..100);
        let _running = bench.start();
        bench.sink.arrived(20).await;
        bench.store.away.store(true, Ordering::SeqCst);
        let before = bench.sink.count();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let meanwhile = bench.sink.count() - before;
        let expected = match on_unavailable {
            OnUnavailable::Local => 60..=110,
            OnUnavailable::Open => 500..=600,
            OnUnavailable::Hold => 0..=10,
        };
        assert!(expected.contains(&meanwhile), "{on_unavailable:?}: {meanwhile} in 2 s");
        bench.store.away.store(false, Ordering::SeqCst);
        acked(&bench, 600).await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_and_weights_of_lanes_are_reloaded() {
    let mut bench = bench("100/s", &[(leaky("lane.t", "2/s", 1), &[0])]);
    for tenant in ["a", "b"] {
        publish(&bench, tenant, "e", 400);
    }
    let done = bench.start();
    bench.sink.arrived(6).await;
    let mut options = bench.options.clone();
    let faster = options.limits.iter().cloned().chain([leaky("lane.t", "1000/s", 1)]).collect();
    options.plans[0] = LimitSet::new(faster).unwrap();
    options.lanes.as_mut().unwrap().weights = [("a".to_owned(), 3)].into();
    bench.control().reload(options);
    let before = bench.sink.count();
    let start = Instant::now();
    bench.sink.arrived(before + 400).await;
    assert!(start.elapsed() < Duration::from_secs(5), "400 at 100/s: {:?}", start.elapsed());
    let of_a = bench.sink.ids()[before..before + 400].iter().filter(|id| id.starts_with("a/")).count();
    assert!((294..=306).contains(&of_a), "three of four: {of_a}");
    bench.stop.cancel();
    done.await.unwrap();
}

/// The most slots that one call of two replicas is granted, of which one comes later.
async fn most_granted(in_lanes: bool) -> usize {
    let store = Arc::new(MemoryStore::new());
    let mut replicas = [0, 1].map(|_| {
        let mut bench = bench("200/s", &[(leaky("lane.l", "150/s", 100), &[0, 1])]);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(200)));
        if !in_lanes {
            let plain = Bench::new("200/s", QUICK).options;
            bench.options = crate::dispatch::Options { prefetch: DEPTH, ..plain };
        }
        spread(&bench, 0..150);
        bench
    });
    let mut running = vec![replicas[0].start()];
    replicas[0].sink.arrived(300).await;
    running.push(replicas[1].start());
    replicas.iter_mut().for_each(Bench::end);
    for done in running {
        done.await.unwrap();
    }
    replicas.iter().map(|bench| bench.store.most_granted.load(Ordering::SeqCst)).max().unwrap()
}

/// A call of lanes offers more jobs than it needs, since limits of lanes may refuse some; it is granted no more for that.
#[tokio::test(start_paused = true)]
async fn a_call_is_granted_no_more_than_one_without_lanes() {
    let (with, without) = (most_granted(true).await, most_granted(false).await);
    assert!(with <= without + 1, "{with} with lanes, {without} without");
}

#[tokio::test(start_paused = true)]
async fn a_limit_for_each_value_of_a_part_holds_over_its_lanes() {
    let (tenants, lanes) = (leaky("lane.t", "20/s", 1), leaky("lane.l", "2/s", 1));
    let mut bench = bench("1000/s", &[(tenants, &[0]), (lanes, &[0, 1])]);
    for endpoint in 0..40 {
        publish(&bench, "wide", &endpoint.to_string(), 10);
    }
    for tenant in 0..10 {
        publish(&bench, &format!("t{tenant}"), "e", 11);
    }
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let wide = sent(&bench, "wide", start);
    assert!(wide.windows(2).all(|pair| pair[1] - pair[0] >= 49_000), "20/s of the tenant: {wide:?}");
    assert!(wide.last().unwrap() < &21_000_000, "400 at 20/s: {:?}", wide.last());
    for tenant in 0..10 {
        let own = sent(&bench, &format!("t{tenant}/"), start);
        assert!(own.windows(2).all(|pair| pair[1] - pair[0] >= 499_000), "2/s of the lane: {own:?}");
        assert!(own.last().unwrap() < &5_300_000, "11 at 2/s: {own:?}");
    }
    assert!(calls(&bench) < 510, "{} calls for 510 jobs", calls(&bench));
}

#[tokio::test(start_paused = true)]
async fn many_slow_lanes_use_the_downstream_up() {
    let mut bench = bench("500/s", &[(leaky("lane.l", "5/s", 1), &[0, 1])]);
    for tenant in 0..200 {
        publish(&bench, &format!("t{tenant}"), "e", 20);
    }
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_millis(8250), "4000 at 500/s: {took:?}");
    assert!(calls(&bench) < 1000, "{} calls for 4000 jobs", calls(&bench));
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first_and_the_lowest_keeps_a_share() {
    let mut bench = bench("100/s", &[]);
    bench.options.horizon = Duration::from_millis(10);
    publish(&bench, "low", "e", 1000);
    (0..1000).for_each(|number| bench.publish(Message { priority: Some(9), ..job("high", "e", number) }));
    let done = bench.start();
    bench.sink.arrived(630).await;
    let low = sent(&bench, "low", Instant::now()).len();
    assert!((28..=32).contains(&low), "one of 21: {low} of 630");
    bench.stop.cancel();
    done.await.unwrap();
}
