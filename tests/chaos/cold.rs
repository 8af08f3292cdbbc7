//! An API that is far away and closes each connection: the first jobs do not gather behind the first connections.

use std::time::Duration;

use serde_json::Value;

use crate::LONG;
use crate::rig::RATE;
use crate::support::api::Answer;
use crate::support::count::busiest;
use crate::support::daemon::{Paced, message};
use crate::support::proxy::Proxy;
use crate::support::publish::Job;
use crate::support::servers::{rabbit, redis};
use crate::support::site::Site;
use crate::support::tls;

/// How long a round trip to the API takes. A connection needs one more before its first request.
const FAR: Duration = Duration::from_millis(30);
const WINDOW: Duration = Duration::from_millis(100);
/// The most jobs that are handed over in a window: at 200/s, 21 that are on time and one that is late by an interval.
const MOST: usize = 22;
const JOBS: usize = 400;
/// The longest time for 400 jobs at 200/s, with the first connections and what a busy machine costs.
const WITHIN: Duration = Duration::from_millis(2300);

/// Returns when each job was handed over, in ns on the clock of the store: its slot, and how late it was.
fn handed_over(replica: &Paced) -> Vec<u64> {
    let log = replica.log();
    let jobs = log.iter().filter(|line| message(line).as_deref() == Some("job"));
    let mut all: Vec<u64> = jobs
        .map(|line| {
            let job: Value = serde_json::from_str(line).unwrap();
            let late = late(job["late"].as_str().unwrap());
            job["slot"].as_u64().unwrap() * 1000 + u64::try_from(late.as_nanos()).unwrap()
        })
        .collect();
    all.sort_unstable();
    all
}

/// Reads a duration as Rust writes it: `1.78ms`, `312µs`.
pub(crate) fn late(text: &str) -> Duration {
    let at = text.find(|letter: char| letter.is_alphabetic()).unwrap();
    let unit = match &text[at..] {
        "ns" => 1e-9,
        "µs" => 1e-6,
        "ms" => 1e-3,
        _ => 1.0,
    };
    Duration::from_secs_f64(text[..at].parse::<f64>().unwrap() * unit)
}

#[tokio::test]
async fn the_first_jobs_do_not_gather_behind_the_first_connections() {
    for round in 0..3 {
        let downstream = format!("rate = '{RATE}'\nqueue.prefetch = 200");
        let site = Site::on(rabbit().await, redis().await, "cold", &downstream);
        site.api.rule(|_| Answer::ok().header("connection", "close"));
        let front = tls::Front::start(site.api.port()).await;
        let way = Proxy::start(front.port(), FAR).unwrap();
        let far = format!("https://localhost:{}/", way.port());
        let config = site.config().replace(&site.api.url(), &far);
        let replica = Paced::start(&config, &["--log-jobs"], &[("SSL_CERT_FILE", tls::CA)]).await;
        replica.wait_ready().await;
        site.publish(Job::many("job", JOBS)).await;
        site.api.wait_for(JOBS, LONG).await;
        assert_eq!(replica.stop().await, 0);
        let all = handed_over(&replica);
        assert_eq!(all.len(), JOBS);
        let (most, took) = (busiest(&all, WINDOW), Duration::from_nanos(all[JOBS - 1] - all[0]));
        let first = all.iter().filter(|at| **at - all[0] < 100_000_000).count();
        let seen = busiest(&site.api.stamps(), WINDOW);
        eprintln!(
            "cold {round}: {first} handed over in the first {WINDOW:?}, {most} in any; {seen} seen at the API; {JOBS} in {took:?}"
        );
        assert!(most <= MOST && took <= WITHIN, "{most} in {WINDOW:?}; {JOBS} jobs in {took:?}");
    }
}
