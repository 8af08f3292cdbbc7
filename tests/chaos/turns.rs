//! What faults cost, at slow limits: the slots that were due and that nobody used, and how long nobody released anything.
//! Eight replicas have more jobs than they release, at five rates at once.

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::future::join_all;

use crate::LONG;
use crate::rig::rest;
use crate::support::api::stamp;
use crate::support::count::gaps;
use crate::support::daemon::Paced;
use crate::support::eventually;
use crate::support::publish::{Job, publish_all};
use crate::support::servers::{Redis, rabbit};
use crate::support::site::Site;

const REPLICAS: usize = 8;
const S: Duration = Duration::from_secs(1);

/// The rates, each of a downstream of this name, and the distance between their slots.
const RATES: [(&str, &str, Duration); 5] = [
    ("d5s", "5/s", Duration::from_millis(200)),
    ("d1s", "1/s", S),
    ("d30m", "30/m", Duration::from_secs(2)),
    ("d6m", "6/m", Duration::from_secs(10)),
    ("d1m", "1/m", Duration::from_secs(60)),
];

/// How long slots are counted: at the slowest rate one comes in any case.
const SPAN: Duration = Duration::from_secs(90);

/// What the way to the API and a busy machine may add.
const NOISE: Duration = Duration::from_millis(300);

struct Fleet {
    site: Site,
    redis: Redis,
    config: String,
    replicas: Vec<Paced>,
}

/// What a fault cost at one rate.
struct Cost {
    apart: Duration,
    /// The slots that nobody used.
    lost: f64,
    /// By how much the longest time without a request exceeded the distance between slots.
    gap: Duration,
}

impl Fleet {
    /// Starts the replicas, and waits until some slots are used.
    async fn start(name: &str) -> Self {
        let redis = Redis::dedicated().await;
        let site = Site::on(rabbit().await, &redis, name, "rate = '1/s'");
        let mut config = site.config();
        for (downstream, rate, _) in RATES {
            let url = site.api.url();
            write!(
                config,
                "[downstreams.{downstream}]\nrate = '{rate}'\nhttp.base_url = '{url}{downstream}/'\n"
            )
            .unwrap();
        }
        let mut replicas = vec![Paced::spawn(&config).await];
        let jobs = RATES.iter().flat_map(|(downstream, ..)| {
            Job::many(downstream, 1000).into_iter().map(|job| ((*downstream).to_owned(), job))
        });
        publish_all(&site.amqp, &format!("{}.jobs", site.prefix), jobs.collect()).await;
        replicas.extend(join_all((1..REPLICAS).map(|_| Paced::spawn(&config))).await);
        let fleet = Self { site, redis, config, replicas };
        eventually("some slots", LONG, || fleet.stamps("d6m").len() > 1).await;
        fleet
    }

    /// When the requests of a downstream came.
    fn stamps(&self, downstream: &str) -> Vec<u64> {
        let arrivals = self.site.api.arrivals().into_iter();
        let path = format!("/{downstream}/");
        arrivals.filter(|arrival| arrival.path.starts_with(&path)).map(|arrival| arrival.at).collect()
    }

    async fn add(&mut self) {
        self.replicas.push(Paced::spawn(&self.config).await);
    }

    /// Kills the first replica.
    fn kill(&mut self) {
        self.replicas.remove(0).kill9();
    }

    /// Judges the time from `begun` on, at each rate.
    async fn costs(&self, name: &str, begun: u64) -> Vec<Cost> {
        rest(SPAN.saturating_sub(Duration::from_nanos(stamp() - begun))).await;
        let end = stamp();
        let judge = |(downstream, rate, apart): (&str, &str, Duration)| {
            let all = self.stamps(downstream).into_iter();
            let instants: Vec<u64> = all.filter(|at| (begun..end).contains(at)).collect();
            let whole = Duration::from_nanos(end - begun).as_secs_f64() / apart.as_secs_f64();
            let lost = (whole.floor() - instants.len() as f64).max(0.0);
            let all = [&[begun], &instants[..], &[end]].concat();
            let gap = Duration::from_nanos(gaps(&all).into_iter().max().unwrap()).saturating_sub(apart);
            eprintln!("| {name} | {rate} | {lost} lost | {} ms |", gap.as_millis());
            let is_early = |pair: &[u64]| Duration::from_nanos(pair[1] - pair[0]) + NOISE < apart;
            assert!(!instants.windows(2).any(is_early), "{rate}: one is early");
            Cost { apart, lost, gap }
        };
        RATES.into_iter().map(judge).collect()
    }

    /// Ends all replicas.
    async fn end(self) {
        join_all(self.replicas.iter().map(Paced::stop)).await;
    }
}

#[tokio::test]
async fn all_are_killed_and_started_again() {
    let mut fleet = Fleet::start("killed").await;
    (0..REPLICAS).for_each(|_| fleet.kill());
    rest(S).await;
    let down = stamp();
    fleet.add().await;
    // It may have released jobs before that was noticed.
    let up = stamp();
    fleet.replicas.extend(join_all((1..REPLICAS).map(|_| Paced::spawn(&fleet.config))).await);
    let name = "all killed, from when the first is up again";
    for (Cost { apart, lost, gap }, (downstream, rate, _)) in fleet.costs(name, up).await.iter().zip(RATES) {
        let first = fleet.stamps(downstream).into_iter().find(|at| *at >= down).unwrap();
        let first = Duration::from_nanos(first.saturating_sub(up));
        eprintln!("| {name} | {rate} | the first after {} ms |", first.as_millis());
        assert!(first <= S.max(*apart), "{rate}: the first after {first:?}");
        let longest = S.saturating_sub(*apart) + NOISE;
        assert!(*lost <= 2.0 && *gap <= longest, "{rate}: {lost} lost, a gap of {gap:?}");
    }
    fleet.end().await;
}

#[tokio::test]
async fn all_are_restarted_in_turn() {
    let mut fleet = Fleet::start("rolling").await;
    let begun = stamp();
    for _ in 0..REPLICAS {
        assert_eq!(fleet.replicas.remove(0).stop().await, 0);
        fleet.add().await;
        rest(S).await;
    }
    for Cost { apart, lost, gap } in fleet.costs("restarted in turn", begun).await {
        assert!(lost <= 2.0 && gap <= S + NOISE, "{apart:?}: {lost} lost, a gap of {gap:?}");
    }
    fleet.end().await;
}

#[tokio::test]
async fn all_read_the_same_file_again_and_again() {
    let fleet = Fleet::start("sighup").await;
    let begun = stamp();
    for _ in 0..12 {
        fleet.replicas.iter().for_each(Paced::hangup);
        rest(3 * S / 2).await;
    }
    for Cost { apart, lost, gap } in fleet.costs("SIGHUP each 1.5 s", begun).await {
        assert!(lost <= 1.0 && gap <= NOISE, "{apart:?}: {lost} lost, a gap of {gap:?}");
    }
    fleet.end().await;
}

#[tokio::test]
async fn calls_fail_now_and_then() {
    let fleet = Fleet::start("calls").await;
    let begun = stamp();
    for _ in 0..12 {
        fleet.redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await.unwrap();
        rest(3 * S / 2).await;
    }
    for Cost { apart, lost, gap } in fleet.costs("connections to Redis cut each 1.5 s", begun).await {
        // At 5/s some calls fail at their turns, and are made again some 100 ms later.
        assert!(lost <= 5.0 && gap <= S, "{apart:?}: {lost} lost, a gap of {gap:?}");
    }
    fleet.end().await;
}

#[tokio::test]
async fn one_is_killed_for_good_and_one_stands_still() {
    let mut fleet = Fleet::start("one").await;
    let begun = stamp();
    fleet.kill();
    rest(5 * S).await;
    fleet.replicas[0].freeze();
    rest(3 * S).await;
    fleet.replicas[0].thaw();
    for Cost { apart, lost, gap } in fleet.costs("one killed, one still for 3 s", begun).await {
        assert!(
            lost <= 4.0 && gap <= apart.min(2 * S) + S + NOISE,
            "{apart:?}: {lost} lost, a gap of {gap:?}"
        );
    }
    fleet.end().await;
}

#[tokio::test]
async fn one_crashes_again_and_again_and_six_for_good() {
    let mut fleet = Fleet::start("crashes").await;
    let begun = stamp();
    for _ in 0..6 {
        fleet.replicas.rotate_right(1);
        fleet.kill();
        fleet.add().await;
        rest(2 * S).await;
    }
    for Cost { apart, lost, gap } in fleet.costs("one crashes six times", begun).await {
        assert!(lost <= 7.0 && gap <= 5 * S, "{apart:?}: {lost} lost, a gap of {gap:?}");
    }
    let begun = stamp();
    (0..6).for_each(|_| fleet.kill());
    for Cost { apart, lost, gap } in fleet.costs("six of eight killed for good", begun).await {
        // Each held a slot or a turn. The others look after ten seconds at the latest.
        assert!(lost <= 7.0 && gap <= 11 * S, "{apart:?}: {lost} lost, a gap of {gap:?}");
    }
    fleet.end().await;
}
