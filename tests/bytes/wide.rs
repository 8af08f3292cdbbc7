//! Many downstreams at once: what they take in memory, how many connections, and how often their long jobs come.

use std::fmt::Write as _;
use std::time::Duration;

use crate::mix::{MIB, connections, peak_mib};
use crate::support::daemon::Paced;
use crate::support::publish::{Job, depth, publish_all};
use crate::support::servers::{rabbit, redis};
use crate::support::site::Site;
use crate::support::{scaled, until};

const LONG: Duration = Duration::from_secs(300);
/// The jobs of each downstream, all of which its window has places for.
const JOBS: usize = 1000;
const BODY: usize = 2048;
/// What counts for a job besides its body.
const BESIDES: usize = 2048;
/// The connections to the broker: one that consumes, and one that publishes.
const CONNECTIONS: usize = 2;

/// A site with additional downstreams, each with the configuration `with`. Together they hold `mib` MiB at most.
async fn site(topic: &str, downstreams: usize, mib: usize, with: &str) -> (Site, String) {
    let site = Site::on(rabbit().await, redis().await, topic, "rate = '1/h'");
    let mut config = site.config().replace("[amqp]\n", &format!("[amqp]\nwindow_bytes = '{mib}MiB'\n"));
    for n in 0..downstreams {
        let url = site.api.url();
        write!(config, "[downstreams.w{n}]\n{with}\nhttp.base_url = '{url}'\n").unwrap();
    }
    // It declares the queues.
    assert_eq!(Paced::spawn(&config).await.stop().await, 0);
    (site, config)
}

/// Publishes to each downstream this number of jobs, with bodies of this size.
async fn publish(site: &Site, downstreams: usize, jobs: usize, bytes: usize) {
    let body = vec![b'x'; bytes];
    for n in 0..downstreams {
        let all = Job::many(&format!("w{n}"), jobs).into_iter();
        let all = all.map(|job| (format!("w{n}"), Job { body: body.clone(), ..job }));
        publish_all(&site.amqp, &format!("{}.jobs", site.prefix), all.collect()).await;
    }
}

/// With 200 downstreams the bytes are those that paced has by default, and the whole daemon takes less than 300 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_downstreams_share_the_bytes_and_the_connections() {
    let downstreams = usize::try_from(scaled("PACED_WIDE_DOWNSTREAMS", 10)).unwrap();
    let (mib, most) = (downstreams * 6 / 5, 100 + downstreams);
    let with = format!("rate = '100/m'\nhold_max = '10m'\nqueue.prefetch = {JOBS}");
    let (site, config) = site("wide", downstreams, mib, &with).await;
    publish(&site, downstreams, JOBS, BODY).await;
    let ready = async || {
        let mut all = 0;
        for n in 0..downstreams {
            all += depth(&site.amqp, &format!("{}.jobs.w{n}", site.prefix)).await.unwrap() as usize;
        }
        all
    };
    let all = downstreams * JOBS;
    assert_eq!(ready().await, all);
    let paced = Paced::spawn(&config).await;
    let mut held = 0;
    until("the bytes to be used", LONG, async || {
        // Those that are on their way back into their queues are among them.
        held = all.saturating_sub(ready().await + site.api.count());
        held * (BODY + BESIDES) >= mib * MIB * 9 / 10
    })
    .await;
    let (peak, opened) = (peak_mib(&paced), connections(&paced).await.0);
    eprintln!(
        "{downstreams} downstreams: {held} of {all} jobs are held, peak {peak} MiB, {opened} connections"
    );
    assert!(peak < most, "{peak} MiB for {held} jobs");
    assert_eq!(opened, CONNECTIONS);
    assert_eq!(paced.stop().await, 0);
    let (left, sent) = (ready().await, site.api.count());
    assert_eq!(left + sent, all, "{left} are left, {sent} were sent");
}

/// All want more than there is: what one leaves is asked for by one, and not by each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_jobs_of_several_downstreams_come_twice_at_most() {
    const DOWNSTREAMS: usize = 6;
    const LONG_JOBS: usize = 20;
    let with = "rate = '20/s'\nqueue = { prefetch = 100, prefetch_bytes = '12MiB' }";
    let (site, config) = site("several", DOWNSTREAMS, 12, with).await;
    publish(&site, DOWNSTREAMS, LONG_JOBS, MIB).await;
    let paced = Paced::spawn(&config).await;
    let all = DOWNSTREAMS * LONG_JOBS;
    site.api.wait_for(all, LONG).await;
    // The connections show it as long as they last.
    let sent = connections(&paced).await.1 / MIB;
    assert_eq!((paced.stop().await, site.api.count()), (0, all), "each once");
    eprintln!("{DOWNSTREAMS} downstreams: {sent} MiB sent for {all} jobs of 1 MiB");
    assert!(sent <= 2 * all, "{sent} MiB for {all}");
}
