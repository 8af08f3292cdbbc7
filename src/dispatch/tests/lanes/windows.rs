//! Every window of every limit of both levels holds.

use std::collections::BTreeSet;

use super::*;

/// The number of random downstreams.
const SEEDS: u64 = 60;

/// A job that was sent: when, in µs, and which.
type Sent = (u128, String);

#[tokio::test(start_paused = true)]
async fn every_window_of_every_limit_holds() {
    for seed in 0..SEEDS {
        holds(&mut fastrand::Rng::with_seed(seed)).await;
    }
}

/// Sends random jobs of random lanes by one or two replicas, and checks each limit of both levels.
async fn holds(random: &mut fastrand::Rng) {
    let rate = |per_second: u32| format!("{per_second}/s");
    let own = random.u32(20..400);
    let (tenants, lanes) = (random.u32(5..200), random.u32(2..100));
    let (bursts, count) = ([random.u32(1..4), random.u32(1..4)], random.u32(3..20));
    let log = Limit::sliding_log("lane.log", count.into(), Duration::from_secs(1)).unwrap();
    let limits: [(Limit, &[usize]); 3] = [
        (leaky("lane.t", &rate(tenants), bursts[0]), &[0]),
        (leaky("lane.l", &rate(lanes), bursts[1]), &[0, 1]),
        (log, &[1]),
    ];
    let limits = &limits[..random.usize(0..=3)];
    let all = send(random, &rate(own), limits).await;
    paced("the downstream", &all.iter().map(|(at, _)| *at).collect::<Vec<_>>(), own, 1);
    for (place, (limit, parts)) in limits.iter().enumerate() {
        for (key, times) in by_state(&all, parts) {
            let what = format!("{} of {key:?}", limit.name());
            match place {
                0 => paced(&what, &times, tenants, bursts[0]),
                1 => paced(&what, &times, lanes, bursts[1]),
                _ => check(&what, &times, count as usize, 1_000_000),
            }
        }
    }
}

/// Sends random jobs, each once.
async fn send(random: &mut fastrand::Rng, own: &str, limits: &[(Limit, &[usize])]) -> Vec<Sent> {
    let (store, weight) = (Arc::new(MemoryStore::new()), random.u32(1..9));
    let replica = |_| {
        let mut bench = bench(own, limits);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::ZERO));
        weights(&mut bench, &[("0", weight)]);
        bench
    };
    let mut replicas: Vec<Bench> = (0..random.usize(1..=2)).map(replica).collect();
    let jobs = random.usize(50..300);
    let (tenants, endpoints) = (random.usize(1..8), random.usize(1..8));
    for number in 0..jobs {
        let (tenant, endpoint) = (random.usize(0..tenants), random.usize(0..endpoints));
        let job = job(&tenant.to_string(), &endpoint.to_string(), number);
        let job = Message { priority: Some(random.u8(0..=9)), ..job };
        replicas[random.usize(0..replicas.len())].publish(job);
    }
    let start = Instant::now();
    let running: Vec<_> = replicas.iter_mut().map(Bench::start).collect();
    replicas.iter_mut().for_each(Bench::end);
    for done in running {
        done.await.unwrap();
    }
    let mut all: Vec<Sent> = vec![];
    for bench in &replicas {
        let sent = bench.sink.sent.lock().unwrap();
        all.extend(sent.iter().map(|sent| ((sent.at - start).as_micros(), sent.id.clone())));
    }
    all.sort_unstable();
    assert_eq!(all.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len(), jobs, "each was sent");
    assert_eq!(all.len(), jobs, "once");
    if let [bench] = &replicas[..] {
        assert!(calls(bench) <= jobs + 10, "{} calls for {jobs} jobs", calls(bench));
    }
    all
}

/// When jobs of each state were sent: those with the same values in these parts.
fn by_state(all: &[Sent], parts: &[usize]) -> BTreeMap<Vec<String>, Vec<u128>> {
    let mut of_state = BTreeMap::<Vec<String>, Vec<u128>>::new();
    for (at, id) in all {
        let part = |of: &usize| id.split('/').nth(*of).unwrap().to_owned();
        of_state.entry(parts.iter().map(part).collect()).or_default().push(*at);
    }
    of_state
}

/// At most `count` jobs within any `span` of µs. A release is at most a millisecond late.
fn check(what: &str, times: &[u128], count: usize, span: u128) {
    let is_wrong = |pair: &[u128]| pair[count] - pair[0] + 1_100 < span;
    let wrong = times.windows(count + 1).find(|pair| is_wrong(pair));
    assert!(wrong.is_none(), "{what}: {} within {span} us: {wrong:?}", count + 1);
}

fn paced(what: &str, times: &[u128], per_second: u32, burst: u32) {
    for more in 1..=times.len().saturating_sub(burst as usize).min(5) {
        let span = more as u128 * 1_000_000 / u128::from(per_second);
        check(what, times, burst as usize - 1 + more, span);
    }
}
