//! A replica that is killed between any two steps loses no job, and each kill makes at most one more copy of one.
//!
//! Fewer copies cannot be promised. A kill gives every message back that the broker has seen no ack for, also if the
//! job was sent, or its copy or its reply was confirmed. What bounds the copies is therefore how many
//! messages are unsettled at the kill. With a window of one message that is one job, so one kill makes one copy at most.
//! With a wide window it is each of the held jobs, so each may come twice, but none comes three times.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use lapin::types::AMQPValue;
use paced::time::wall_now;

use crate::support::api::Answer;
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job, Taken};
use crate::support::site::Site;
use crate::support::{LONG, eventually, real_now, until};

mod cancel;
mod changes;
mod letters;
mod unpark;

/// The variable that names the point at which a process ends.
const FAIL_AT: &str = "PACED_TEST_FAIL_AT";
const JOBS: usize = 10;
/// How many seconds parked jobs wait: twice in the broker, or more often, since no more than a second of it is held. A busy machine
/// may need a longer wait to bring about what a scene wants.
const WAITS: [u64; 5] = [4, 8, 16, 32, 64];
/// How many scenes run at a time.
const AT_ONCE: usize = 8;

/// The windows of scenes in which a replica is killed.
const BOTH: &[Window] = &[Window::One, Window::Wide];

/// The number of copies that is certain.
const NONE: RangeInclusive<usize> = 0..=0;
const ONE: RangeInclusive<usize> = 1..=1;
/// An ack leaves a little after it was made: whether it reached the broker before the end is not known.
const ANY: RangeInclusive<usize> = 0..=1;

/// How many messages a replica may hold unsettled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    One,
    Wide,
}

impl Window {
    /// The end of a downstream's configuration.
    fn config(self) -> String {
        let prefetch = if self == Self::One { 1 } else { 1000 };
        format!("\n[downstreams.billing.queue]\nprefetch = {prefetch}")
    }
}

/// Where a kill happens, and what is printed if a test fails.
#[derive(Clone, Debug)]
struct Kill {
    point: &'static str,
    window: Window,
}

impl Kill {
    async fn site(&self, topic: &str, downstream: &str) -> Site {
        Site::shared(
            topic,
            &format!("rate = '100/s'\n{downstream}{}\n[reply]\nallow = ['replies-']", self.window.config()),
        )
        .await
    }

    /// A replica that ends at the point.
    async fn replica(&self, config: &str) -> Paced {
        let replica = Paced::start(config, &["-v"], &[(FAIL_AT, self.point)]).await;
        replica.wait_ready().await;
        replica
    }

    async fn wait_exit(&self, replica: &Paced) {
        self.assert_exit(replica, replica.wait_exit(LONG).await);
    }

    fn assert_exit(&self, replica: &Paced, exit: i32) {
        self.print_log(replica);
        assert_eq!(exit, -6, "{self:?}: it was to end there\n{}", replica.log().join("\n"));
    }

    /// Prints what a replica logged, which is seen where the test fails.
    fn print_log(&self, replica: &Paced) {
        eprintln!("{self:?}:\n{}", replica.log().join("\n"));
    }

    /// How often a job may have been parked before the kill: up to the fourteenth of ten jobs twice.
    fn times_parked(&self) -> usize {
        if self.point.ends_with("=14") { 2 } else { 1 }
    }

    /// Asserts that each of the jobs is there, and how many copies there are beyond the first of each: this many in a
    /// window of one message; in a wide one each job may have another for each time that it was parked, and one at least.
    /// A broker that has no processor time has not read the acks when the connection ends, and then never does.
    #[track_caller]
    fn copies<'a>(&self, what: &str, expected: &RangeInclusive<usize>, ids: impl Iterator<Item = &'a str>) {
        let mut counts = BTreeMap::<&str, usize>::new();
        ids.for_each(|id| *counts.entry(id).or_default() += 1);
        assert_eq!(counts.len(), JOBS, "{self:?}, {what}: {counts:?}");
        let most = 1 + self.times_parked();
        assert!(counts.values().all(|count| *count <= most), "{self:?}, {what}: {counts:?}");
        let more = counts.values().sum::<usize>() - JOBS;
        if self.window == Window::One {
            assert!(expected.contains(&more), "{self:?}, {what}: not {expected:?} more copies: {counts:?}");
        }
    }
}

/// Runs a scene for each point in each window. The rest of a point is what the scene expects.
async fn each<T: Clone>(windows: &[Window], points: &[(&'static str, T)], scene: impl AsyncFn(Kill, T)) {
    let scene = &scene;
    let kills = points.iter().flat_map(|(point, expected)| {
        windows.iter().map(|window| async { scene(Kill { point, window: *window }, expected.clone()).await })
    });
    stream::iter(kills.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// Runs replicas until each job has arrived at the API, apart from the first arrivals, and no message is left.
async fn finish(site: &Site, kill: &Kill, from: usize) {
    // The jobs that a replica holds when it stops go back to a queue, for the next one. A copy that is not due does so too.
    let start = real_now();
    loop {
        let replica = Paced::start(&site.config(), &["-v"], &[]).await;
        replica.wait_ready().await;
        until("every job to arrive, and no message to be left", LONG, async || {
            let arrivals = site.api.arrivals();
            let ids: BTreeSet<&str> = arrivals[from..].iter().map(|arrival| arrival.id()).collect();
            ids.len() == JOBS && left(site).await == 0
        })
        .await;
        let exit = replica.stop().await;
        kill.print_log(&replica);
        assert_eq!(exit, 0, "{kill:?}");
        let left = left(site).await;
        if left == 0 {
            return;
        }
        assert!(start.elapsed() < LONG, "{kill:?}: {left} messages are left");
    }
}

/// How many messages are ready in the queues of the site's jobs.
async fn left(site: &Site) -> u32 {
    let ready = async |queue: &str| publish::depth(&site.amqp, queue).await.unwrap_or(0);
    parked(site).await + ready(&site.queue()).await + ready(&format!("{}.home.billing", site.prefix)).await
}

/// How many jobs wait in the rungs that [`WAITS`] need.
async fn parked(site: &Site) -> u32 {
    let mut parked = 0;
    for seconds in [1, 2, 4, 8, 16, 32] {
        let rung = format!("{}.park.{seconds}s", site.prefix);
        parked += publish::depth(&site.amqp, &rung).await.unwrap_or(0);
    }
    parked
}

/// The jobs, for this long from now on.
fn later(wait: Duration) -> Vec<Job> {
    let at = wall_now().plus(wait).0 / 1000;
    let later = |job: Job| job.header_value("paced-not-before", AMQPValue::LongLongInt(at));
    Job::many("job", JOBS).into_iter().map(later).collect()
}

fn replies_queue(site: &Site) -> String {
    format!("replies-{}", site.prefix)
}

/// The jobs, which want replies to a queue that exists from then on.
async fn with_reply(site: &Site, jobs: Vec<Job>) -> Vec<Job> {
    let queue = replies_queue(site);
    publish::declare_quorum(&site.amqp, &queue).await;
    let reply = |mut job: Job| {
        let id = job.id.clone().unwrap();
        job.properties =
            job.properties.with_reply_to(queue.as_str().into()).with_correlation_id(id.as_str().into());
        job
    };
    jobs.into_iter().map(reply).collect()
}

/// The jobs that the replies are for.
async fn replied(site: &Site) -> Vec<String> {
    let replies = publish::drain(&site.amqp, &replies_queue(site)).await;
    let id = |reply: &Taken| reply.properties.correlation_id().as_ref().unwrap().to_string();
    replies.iter().map(id).collect()
}

#[tokio::test]
async fn a_kill_while_jobs_are_parked_loses_none() {
    // Ten are parked, come home, and are parked again, since they wait for longer than one stay.
    let points = [
        ("park:publish=4", NONE),
        ("park:confirmed=4", ONE),
        ("park:acked=4", ANY),
        ("home:taken=4", NONE),
        ("park:publish=14", NONE),
        ("park:confirmed=14", ONE),
        ("park:acked=14", ANY),
        ("home:taken=14", NONE),
        ("deliver:sent=4", ONE),
        ("deliver:acked=4", ANY),
    ];
    each(BOTH, &points, async |kill, expected| {
        let site = killed_while_parking(&kill).await;
        finish(&site, &kill, 0).await;
        let arrivals = site.api.arrivals();
        kill.copies("requests", &expected, arrivals.iter().map(|arrival| arrival.id()));
    })
    .await;
}

/// Whether the replica has parked a job twice. A broker that confirms late has brought it home by then, and one of the jobs
/// that came home and one of the others are parked at the same time.
fn has_parked_twice(replica: &Paced) -> bool {
    let mut parked = BTreeSet::new();
    let log = replica.log();
    let lines = log.iter().filter(|line| line.contains(r#""message":"parking""#));
    lines.map(|line| line.split(r#""id":""#).nth(1)).any(|rest| {
        let id = rest.and_then(|rest| rest.split('"').next());
        !parked.insert(id.expect("the line has the id of the job").to_owned())
    })
}

/// A site whose replica has ended at the point: before any request, or if that is one of delivery, after all jobs were
/// parked at the same time. Where the machine was too slow for that, they wait for longer on another site.
async fn killed_while_parking(kill: &Kill) -> Site {
    for wait in WAITS.map(Duration::from_secs) {
        let site = kill.site("killpark", "hold_max = '1s'").await;
        let replica = kill.replica(&site.config()).await;
        // No job comes home before a half of the wait.
        let home = real_now() + wait / 2;
        site.publish(later(wait)).await;
        let mut are_parked = false;
        while !are_parked && real_now() < home && replica.exited().is_none() {
            are_parked = parked(&site).await == 10;
        }
        let is_over = || replica.exited().is_some() || site.api.count() >= JOBS;
        eventually("the end of the replica, or all requests", wait + LONG, is_over).await;
        let exit = replica.stop().await;
        let is_meant = match kill.point {
            point if point.starts_with("deliver") => are_parked,
            point if point.starts_with("park:") && point.ends_with("=4") => {
                site.api.count() == 0 && !has_parked_twice(&replica)
            }
            _ => site.api.count() == 0,
        };
        if exit != 0 {
            kill.assert_exit(&replica, exit);
            if is_meant {
                return site;
            }
        }
    }
    panic!("{kill:?}: jobs were sent before the replica came to the point");
}

#[tokio::test]
async fn a_kill_while_a_stopping_replica_parks_loses_none() {
    // In a window of one message a replica has tried one job when it is stopped.
    let points = [("park:publish", NONE), ("park:confirmed", ONE), ("park:acked", ANY)];
    each(BOTH, &points, async |kill, expected| {
        let retry = "[downstreams.billing.retry]\nmin_backoff = '1s'\nmax_backoff = '1s'";
        let site = kill.site("killstop", retry).await;
        site.api.rule(|_| Answer::status(500));
        let replica = kill.replica(&site.config()).await;
        site.publish(Job::many("job", JOBS)).await;
        let tried = if kill.window == Window::One { 1 } else { JOBS };
        site.api.wait_for(tried, LONG).await;
        until("the answers", LONG, async || site.api.in_flight() == 0).await;
        replica.term();
        kill.wait_exit(&replica).await;
        let before = site.api.count();
        site.api.rule(|_| Answer::ok());
        finish(&site, &kill, before).await;
        let arrivals = site.api.arrivals();
        kill.copies("requests", &expected, arrivals[before..].iter().map(|arrival| arrival.id()));
    })
    .await;
}

#[tokio::test]
async fn a_kill_while_jobs_are_delivered_loses_none() {
    // The API has answered at each of these points. How many more requests there are, and replies:
    let points =
        [("reply:publish=4", (ONE, NONE)), ("deliver:sent=4", (ONE, ONE)), ("deliver:acked=4", (ANY, ANY))];
    each(BOTH, &points, async |kill, (more_requests, more_replies)| {
        let site = kill.site("killdeliver", "").await;
        let replica = kill.replica(&site.config()).await;
        site.publish(with_reply(&site, Job::many("job", JOBS)).await).await;
        kill.wait_exit(&replica).await;
        finish(&site, &kill, 0).await;
        let arrivals = site.api.arrivals();
        kill.copies("requests", &more_requests, arrivals.iter().map(|arrival| arrival.id()));
        kill.copies("replies", &more_replies, replied(&site).await.iter().map(String::as_str));
    })
    .await;
}

#[tokio::test]
async fn a_kill_while_jobs_are_dead_lettered_loses_none() {
    // The API has answered at each of these points. First the reply is confirmed, then the letter. How many more requests
    // there are, replies, and letters:
    let points = [
        ("reply:publish=4", (ONE, NONE, NONE)),
        ("dead:publish=4", (ONE, ONE, NONE)),
        ("dead:confirmed=4", (ONE, ONE, ONE)),
        ("dead:acked=4", (ANY, ANY, ANY)),
    ];
    each(BOTH, &points, async |kill, (more_requests, more_replies, more_letters)| {
        let site = kill.site("killdead", "").await;
        site.api.rule(|_| Answer::status(404));
        let replica = kill.replica(&site.config()).await;
        site.publish(with_reply(&site, Job::many("job", JOBS)).await).await;
        kill.wait_exit(&replica).await;
        finish(&site, &kill, 0).await;
        let arrivals = site.api.arrivals();
        kill.copies("requests", &more_requests, arrivals.iter().map(|arrival| arrival.id()));
        let letters = publish::drain(&site.amqp, &site.dead_queue()).await;
        kill.copies("letters", &more_letters, letters.iter().map(Taken::id));
        kill.copies("replies", &more_replies, replied(&site).await.iter().map(String::as_str));
    })
    .await;
}
