//! What faults cost slow limits: the slots that were due and that nobody used, and how long nobody released anything. Eight
//! replicas have more jobs than they release.

use std::time::Duration;

use futures_util::future::join_all;

use crate::LONG;
use crate::rig::rest;
use crate::support::api::stamp;
use crate::support::count::gaps;
use crate::support::daemon::Paced;
use crate::support::eventually;
use crate::support::publish::Job;
use crate::support::servers::{rabbit, redis};
use crate::support::site::Site;

const REPLICAS: usize = 8;
const S: Duration = Duration::from_secs(1);

/// The rates, and the distance between their slots.
const RATES: [(&str, Duration); 3] =
    [("5/s", Duration::from_millis(200)), ("1/s", S), ("30/m", Duration::from_secs(2))];

/// What the way to the API and a busy machine may add.
const NOISE: Duration = Duration::from_millis(300);

struct Fleet {
    site: Site,
    replicas: Vec<Paced>,
    apart: Duration,
}

impl Fleet {
    /// Starts the replicas, and waits until some slots are used.
    async fn start(name: &str, (rate, apart): (&str, Duration)) -> Self {
        let topic = format!("{name}-{}", rate.replace('/', ""));
        let site = Site::on(rabbit().await, redis().await, &topic, &format!("rate = '{rate}'"));
        site.declare().await;
        site.publish(Job::many("job", 600)).await;
        let replicas = join_all((0..REPLICAS).map(|_| site.replica())).await;
        let fleet = Self { site, replicas, apart };
        let before = fleet.site.api.count();
        eventually("some slots", LONG, || fleet.site.api.count() >= before + 10).await;
        fleet
    }

    /// Waits for `span`, and judges the time from `begun` on: returns the slots that nobody used, and by how much the longest
    /// wait for a request exceeded the distance between slots.
    async fn cost(&self, name: &str, begun: u64, span: Duration) -> (f64, Duration) {
        rest(span).await;
        let end = stamp();
        let instants: Vec<u64> =
            self.site.api.stamps().into_iter().filter(|at| (begun..end).contains(at)).collect();
        let whole = Duration::from_nanos(end - begun).as_secs_f64() / self.apart.as_secs_f64();
        let lost = (whole.floor() - instants.len() as f64).max(0.0);
        let all = [&[begun], &instants[..], &[end]].concat();
        let gap = Duration::from_nanos(gaps(&all).into_iter().max().unwrap()).saturating_sub(self.apart);
        eprintln!(
            "{name}, a slot in {:?}: {lost} lost, the longest gap {gap:?} longer than that",
            self.apart
        );
        assert!(
            instants.windows(2).all(|pair| Duration::from_nanos(pair[1] - pair[0]) + NOISE >= self.apart),
            "none is early"
        );
        (lost, gap)
    }

    /// Ends all replicas.
    async fn end(self) {
        join_all(self.replicas.iter().map(Paced::stop)).await;
    }
}

#[tokio::test]
async fn all_are_killed_and_started_again() {
    for rate in RATES {
        let mut fleet = Fleet::start("killed", rate).await;
        fleet.replicas.iter().for_each(Paced::kill9);
        fleet.replicas.clear();
        rest(S).await;
        fleet.replicas = join_all((0..REPLICAS).map(|_| fleet.site.replica())).await;
        let (lost, gap) = fleet.cost("all killed, from when they are up again", stamp(), 20 * S).await;
        assert!(lost <= 2.0 && gap + rate.1 <= S.max(rate.1) + NOISE, "{lost} lost, a gap of {gap:?}");
        fleet.end().await;
    }
}

#[tokio::test]
async fn all_are_restarted_in_turn() {
    for rate in RATES {
        let mut fleet = Fleet::start("rolling", rate).await;
        let begun = stamp();
        for _ in 0..REPLICAS {
            let ended = fleet.replicas.remove(0);
            assert_eq!(ended.stop().await, 0);
            fleet.replicas.push(fleet.site.replica().await);
            rest(S).await;
        }
        let (lost, gap) = fleet.cost("restarted in turn", begun, 10 * S).await;
        assert!(lost <= 3.0 && gap <= S + NOISE, "{lost} lost, a gap of {gap:?}");
        fleet.end().await;
    }
}

#[tokio::test]
async fn all_read_the_same_file_again_and_again() {
    for rate in RATES {
        let fleet = Fleet::start("sighup", rate).await;
        let begun = stamp();
        for _ in 0..8 {
            fleet.replicas.iter().for_each(Paced::hangup);
            rest(3 * S / 2).await;
        }
        let (lost, gap) = fleet.cost("SIGHUP each 1.5 s", begun, 8 * S).await;
        assert!(lost <= 1.0 && gap <= NOISE, "{lost} lost, a gap of {gap:?}");
        fleet.end().await;
    }
}

#[tokio::test]
async fn one_is_killed_for_good_and_one_stands_still() {
    for rate in RATES {
        let mut fleet = Fleet::start("one", rate).await;
        let begun = stamp();
        fleet.replicas.pop().unwrap().kill9();
        rest(5 * S).await;
        fleet.replicas[0].freeze();
        rest(3 * S).await;
        fleet.replicas[0].thaw();
        let (lost, gap) = fleet.cost("one killed, one still for 3 s", begun, 20 * S).await;
        assert!(lost <= 4.0 && gap <= rate.1 + S + NOISE, "{lost} lost, a gap of {gap:?}");
        fleet.end().await;
    }
}
