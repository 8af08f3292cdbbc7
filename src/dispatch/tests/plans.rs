//! Plans: jobs obey the downstream's limits and their plan's, and do not hold up jobs of other plans.

use super::parts::{ScriptedParking, at_most};
use super::*;
use crate::dispatch::{OnLimit, Options, ParkReason, Stay};
use crate::job::PlanRules;
use crate::limit::{Edges, Limit, LimitSet};

mod home;
mod parking;

fn leaky(name: &str, rate: &str, burst: u32) -> Limit {
    Limit::leaky_bucket(name, rate.parse().unwrap(), burst).unwrap()
}

/// A downstream, and plans with one limit each.
fn bench(rate: &str, plans: Vec<(&str, Limit)>) -> Bench {
    let mut bench = Bench::new(rate, QUICK);
    set_plans(&mut bench.options, plans);
    bench
}

fn set_plans(options: &mut Options, plans: Vec<(&str, Limit)>) {
    for (name, limit) in plans {
        let name = name.to_owned();
        options.rules.plans.push(PlanRules { name, max_cost: at_most(100) });
        let limits = options.limits.iter().cloned().chain([limit]).collect();
        options.plans.push(LimitSet::new(limits).unwrap());
    }
}

fn on(plan: &str, message: Message) -> Message {
    let header = ("paced-plan".to_owned(), Value::Text(plan.to_owned().into()));
    Message { headers: vec![header], ..message }
}

/// Publishes this many jobs of a plan; their ids begin with its name.
fn publish(bench: &Bench, plan: &str, jobs: usize) {
    for job in 0..jobs {
        let message = message(&format!("{plan}{job}"));
        bench.publish(if plan == "none" { message } else { on(plan, message) });
    }
}

/// The instants at which jobs of a plan were sent, in ms from `start`.
fn millis(bench: &Bench, plan: &str, start: Instant) -> Vec<u128> {
    let sent = bench.sink.sent.lock().unwrap();
    sent.iter().filter(|sent| sent.id.starts_with(plan)).map(|sent| (sent.at - start).as_millis()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_is_used_up_holds_up_no_other() {
    let window = Limit::fixed_window("plan.free.window", 3, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window), ("pro", leaky("plan.pro.l", "50/s", 1))]);
    publish(&bench, "free", 20);
    publish(&bench, "pro", 100);
    publish(&bench, "none", 100);
    let start = Instant::now();
    let done = bench.start();
    bench.ledger.count(203).await;
    assert_eq!(millis(&bench, "free", start).len(), 3);
    let pro = millis(&bench, "pro", start);
    assert!(pro.windows(2).all(|pair| pair[1] - pair[0] >= 20), "{pro:?}");
    assert!(pro.last() <= Some(&2300), "100 at 50/s: {pro:?}");
    let all = bench.sink.millis(start);
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 10), "both levels: {all:?}");
    assert!(all.last() <= Some(&2300), "203 at 100/s: {all:?}");
    bench.stop.cancel();
    done.await.unwrap();
    // Jobs that wait are given back.
    let back = bench.ledger.all().into_iter().filter(|(_, how)| *how == Settled::Back);
    assert_eq!(back.count(), 17);
}

#[tokio::test(start_paused = true)]
async fn each_plan_keeps_its_pace_and_no_slot_of_the_downstream_is_lost() {
    let slow = |name: &str| leaky(&format!("plan.{name}.l"), "5/s", 1);
    let mut bench =
        bench("100/s", vec![("a", slow("a")), ("b", slow("b")), ("c", slow("c")), ("d", slow("d"))]);
    for plan in ["a", "b", "c", "d"] {
        publish(&bench, plan, 51);
    }
    publish(&bench, "none", 796);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    for plan in ["a", "b", "c", "d"] {
        let sent = millis(&bench, plan, start);
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] >= 200), "{sent:?}");
        // These are 50 intervals of 200 ms.
        assert!((10_000..10_700).contains(sent.last().unwrap()), "{plan}: {:?}", sent.last());
    }
    let all = bench.sink.millis(start);
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{all:?}");
    assert!(millis(&bench, "none", start).last() <= Some(&10_700), "1000 at 100/s");
}

#[tokio::test(start_paused = true)]
async fn plans_share_what_the_downstream_allows() {
    let wide = |name: &str| leaky(&format!("plan.{name}.l"), "1000/s", 1);
    let mut bench = bench("100/s", vec![("a", wide("a")), ("b", wide("b"))]);
    for plan in ["none", "a", "b"] {
        publish(&bench, plan, 300);
    }
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(300).await;
    for plan in ["none", "a", "b"] {
        let share = millis(&bench, plan, start).len();
        assert!((80..=120).contains(&share), "{plan} had {share} of 300");
    }
    bench.end();
    done.await.unwrap();
    let took = bench.sink.millis(start).last().copied().unwrap();
    assert!(took <= 9100, "900 at 100/s took {took} ms");
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 600, "{calls} calls for 900 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first_in_every_plan() {
    let wide = |name: &str| leaky(&format!("plan.{name}.l"), "1000/s", 1);
    let mut bench = bench("10/s", vec![("a", wide("a")), ("b", wide("b"))]);
    bench.options.horizon = Duration::from_millis(10);
    publish(&bench, "a", 3);
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.publish(Message { priority: Some(5), ..on("b", message("b-five")) });
    bench.publish(Message { priority: Some(9), ..on("a", message("a-nine")) });
    bench.publish(Message { priority: Some(7), ..message("none-seven") });
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["a0", "a-nine", "none-seven", "b-five", "a1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn replicas_share_the_state_of_a_plan() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [0, 1].map(|_| {
        let mut bench = bench("100/s", vec![("a", leaky("plan.a.l", "10/s", 1))]);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        publish(&bench, "a", 100);
        bench
    });
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    let sent = |bench: &Bench| bench.sink.count();
    while benches.iter().map(sent).sum::<usize>() < 100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut all: Vec<u128> = benches.iter().flat_map(|bench| bench.sink.millis(start)).collect();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 99), "{all:?}");
    assert!(start.elapsed() < Duration::from_millis(10_800), "100 at 10/s: {:?}", start.elapsed());
    for bench in &benches {
        assert!((25..=75).contains(&sent(bench)), "{}", sent(bench));
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_lose_little_between_plans() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [1, 2].map(|millis| {
        let slow = |name: &str| leaky(&format!("plan.{name}.l"), "5/s", 1);
        let mut bench = bench("100/s", vec![("a", slow("a")), ("b", slow("b")), ("c", slow("c"))]);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(millis)));
        for plan in ["a", "b", "c"] {
            publish(&bench, plan, 100);
        }
        publish(&bench, "none", 1000);
        bench
    });
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let of = |plan: &str| {
        let mut all: Vec<u128> = benches.iter().flat_map(|bench| millis(bench, plan, start)).collect();
        all.sort_unstable();
        all
    };
    for plan in ["a", "b", "c"] {
        let sent = of(plan);
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] >= 199), "{sent:?}");
        assert!(sent.len() >= 42, "{plan} had {} of 50", sent.len());
    }
    let all = of("");
    assert!(all.len() >= 930 && all.len() <= 1002, "{} of 1000", all.len());
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_policed_with_its_downstream() {
    let mut bench = bench("10/s", vec![("a", leaky("plan.a.l", "1/s", 2))]);
    bench.options.limits = LimitSet::new(vec![leaky("leaky-bucket-0", "10/s", 5)]).unwrap();
    (bench.options.plans, bench.options.rules.plans) = (Vec::new(), Vec::new());
    set_plans(&mut bench.options, vec![("a", leaky("plan.a.l", "1/s", 2))]);
    bench.options.on_limit = OnLimit::Reject;
    publish(&bench, "a", 4);
    publish(&bench, "none", 4);
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let ids = bench.sink.ids();
    let on_a = ids.iter().filter(|id| id.starts_with('a')).count();
    assert_eq!((ids.len(), on_a), (5, 2), "{ids:?}");
    let letter = bench.ledger.letter("a3");
    assert_eq!(letter.reason, Reason::Rejected);
    assert!(letter.detail.contains("`plan.a.l`"), "{}", letter.detail);
    assert!(bench.ledger.letter("none3").detail.contains("`leaky-bucket-0`"));
}

#[tokio::test(start_paused = true)]
async fn a_default_plan_holds_for_jobs_that_name_none() {
    let mut bench =
        bench("100/s", vec![("a", leaky("plan.a.l", "10/s", 1)), ("b", leaky("plan.b.l", "50/s", 1))]);
    bench.options.rules.lanes.default_plan = Some(0);
    publish(&bench, "none", 10);
    publish(&bench, "b", 10);
    bench.publish(on("c", message("stray")));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let (none, b) = (millis(&bench, "none", start), millis(&bench, "b", start));
    assert!(none.windows(2).all(|pair| pair[1] - pair[0] >= 100) && none.len() == 10, "{none:?}");
    assert!(b.last() <= Some(&300), "{b:?}");
    let letter = bench.ledger.letter("stray");
    assert_eq!(letter.reason, Reason::MalformedHeader);
    assert!(letter.detail.contains("send one of a, b"), "{}", letter.detail);
}

#[tokio::test(start_paused = true)]
async fn plans_with_quotas_keep_the_pace_of_the_downstream() {
    let day = Duration::from_secs(86_400);
    let quota = |name: &str| Limit::quota(name, 1_000_000, Edges::aligned(day, 0).unwrap()).unwrap();
    let mut bench = bench("1000/s", vec![("a", quota("plan.a.q")), ("b", quota("plan.b.q"))]);
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), 2 * QUICK));
    for plan in ["a", "b"] {
        publish(&bench, plan, 1000);
    }
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let (took, calls) = (start.elapsed(), bench.store.calls.load(Ordering::SeqCst));
    assert!(took < Duration::from_millis(2100), "2000 at 1000/s took {took:?}");
    assert!(calls <= 200, "{calls} calls for 2000 jobs");
    let sent: Vec<String> = bench.sink.ids()[..1000].to_vec();
    let on_a = sent.iter().filter(|id| id.starts_with('a')).count();
    assert!((400..=600).contains(&on_a), "{on_a} of 1000");
}

/// The plan's own limit makes the job wait for long, and it takes no slot of the downstream's meanwhile.
#[tokio::test(start_paused = true)]
async fn a_costly_job_of_a_plan_holds_up_no_other() {
    let own = Limit::gcra("plan.free.g", "1/s".parse().unwrap(), 20).unwrap();
    let mut bench = bench("20/s", vec![("free", own)]);
    for id in ["free0", "free1"] {
        let mut costly = on("free", message(id));
        costly.headers.push(("paced-cost".to_owned(), Value::Integer(20)));
        bench.publish(costly);
    }
    publish(&bench, "none", 100);
    let start = Instant::now();
    let _done = bench.start();
    bench.ledger.count(102).await;
    let (free, none) = (millis(&bench, "free", start), millis(&bench, "none", start));
    assert!(none.last() <= Some(&6500), "100 at 20/s, and 20 units before: {none:?}");
    assert!(free[1] >= free[0] + 20_000 && free[1] < free[0] + 21_500, "{free:?}");
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_is_rejected_all_the_time_holds_up_no_other() {
    let hourly = Limit::fixed_window("plan.a.w", 1, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("1/s", vec![]);
    bench.options.limits = LimitSet::new(vec![leaky("leaky-bucket-0", "1000/s", 1000)]).unwrap();
    set_plans(&mut bench.options, vec![("a", hourly), ("b", leaky("plan.b.l", "1000/s", 1000))]);
    bench.options.on_limit = OnLimit::Reject;
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), 2 * QUICK));
    let done = bench.start();
    // A job of the exhausted plan arrives every ms, also while the store is asked about the last one.
    for job in 0..200 {
        bench.publish(on("a", message(&format!("a{job}"))));
        if job % 10 == 0 {
            bench.publish(on("b", message(&format!("b{job}"))));
        }
        tokio::time::sleep(QUICK).await;
    }
    let sent = bench.sink.ids().iter().filter(|id| id.starts_with('b')).count();
    assert!(sent >= 18, "{sent} of 20, the last of which came 10 ms ago");
    bench.end();
    done.await.unwrap();
}

/// The replica gets its share as it does without plans: its calls must not come too late each time.
#[tokio::test(start_paused = true)]
async fn a_replica_far_from_the_store_gets_its_share_of_a_plan() {
    for (rate, own) in [("200/s", "100000/s"), ("1000/s", "2000/s"), ("2/s", "1000/s")] {
        let store = Arc::new(MemoryStore::new());
        let jobs = if rate == "2/s" { 100 } else { 1000 };
        let mut benches = [1, 15].map(|millis| {
            let mut bench = bench(rate, vec![("a", leaky("plan.a.l", own, 1))]);
            bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(millis)));
            publish(&bench, "a", jobs);
            bench
        });
        let _running = benches.each_mut().map(Bench::start);
        let [near, far] = &benches;
        let done = || near.sink.count() + far.sink.count();
        while done() < jobs {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let share = far.sink.count() * 100 / done();
        assert!((30..=70).contains(&share), "{share} % of {rate} for the far one");
    }
}

/// The next slot of an exhausted plan does not delay jobs of other plans that come later.
#[tokio::test(start_paused = true)]
async fn a_plan_that_is_used_up_stops_nobody_who_comes_later() {
    let window = Limit::fixed_window("plan.free.window", 3, Duration::from_secs(3600)).unwrap();
    let mut bench = bench("100/s", vec![("free", window), ("pro", leaky("plan.pro.l", "50/s", 1))]);
    publish(&bench, "free", 20);
    let _done = bench.start();
    bench.sink.arrived(3).await;
    for job in 0..20 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..300))).await;
        let published = Instant::now();
        bench.publish(on("pro", message(&format!("pro{job}"))));
        bench.sink.arrived(4 + job).await;
        assert!(published.elapsed() <= Duration::from_millis(100), "job {job}: {:?}", published.elapsed());
    }
}
