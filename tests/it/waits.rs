//! How long jobs wait, what becomes of those that would wait for too long, and which are tried again.

use std::time::Duration;

use lapin::types::AMQPValue;
use paced::time::wall_now;

use crate::pace::{begin_at_once, slots};
use crate::support::api::Answer;
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::site::{Site, slots_missed};
use crate::support::{LONG, until};

/// The present time, in ms since the epoch.
fn now() -> u64 {
    u64::try_from(wall_now().0 / 1000).unwrap()
}

/// The job, made at this time, in seconds.
fn made_at(mut job: Job, seconds: u64) -> Job {
    job.properties = job.properties.with_timestamp(seconds);
    job
}

/// Jobs that are made now, which is noted, in seconds.
fn made_now(made: &mut u64, count: usize) -> Vec<Job> {
    *made = now() / 1000;
    Job::many("job", count).into_iter().map(|job| made_at(job, *made)).collect()
}

/// Asserts that the slots of all jobs lie within this many seconds of the time at which they were made, and that none of
/// the slots within it was left out, of which there are `rate` a second and `most` in all: each but the last two was used
/// or missed. A second is allowed for what the replicas know of the store's clock. They have ended.
#[track_caller]
fn assert_in_time(
    replicas: &[&Paced],
    (count, missed): (usize, usize),
    (made, within): (u64, u64),
    (rate, most): (u64, usize),
) {
    let slots = slots(replicas);
    assert_eq!(slots.len(), count);
    let end = (made + within) * 1_000_000;
    let last = slots.last().copied().unwrap_or_default();
    assert!(last <= end + 1_000_000, "the last slot is {} us late", last - end - 1_000_000);
    // Where the first one was missed, there are fewer from the one on that was used.
    let first = slots.first().copied().unwrap_or(end);
    let in_time = usize::try_from(end.saturating_sub(first) * rate / 1_000_000).unwrap() + 1;
    let least = in_time.saturating_sub(2).min(most);
    // A replica that stands still for longer than the horizon of 500 ms misses what it holds, and asks for none meanwhile.
    if missed < usize::try_from(rate / 4).unwrap() {
        assert!(count + missed >= least, "{count} slots were used and {missed} missed, not {least}");
    }
}

#[tokio::test]
async fn with_a_backlog_of_thrice_the_longest_wait_each_job_goes_in_time_or_is_refused() {
    const JOBS: usize = 240;
    let limits = "rate = '40/s'\nmax_wait = '2s'\nhorizon = '500ms'\nqueue.prefetch = 120";
    let site = Site::shared("maxwait", limits).await;
    let mut made = 0;
    let replicas = begin_at_once::<2>(&site, JOBS / 2, || made_now(&mut made, JOBS)).await;
    let settled = || async {
        let dead = publish::depth(&site.amqp, &site.dead_queue()).await.unwrap_or(0);
        (site.api.count() + usize::try_from(dead).unwrap() == JOBS).then_some(dead)
    };
    let dead = crate::support::poll(LONG, settled).await.expect("each is released or refused, once");
    let arrivals = site.api.arrivals();
    assert!(arrivals.len() <= 121, "{} in 2 to 3 s at 40/s", arrivals.len());
    for letter in site.dead(dead, LONG).await {
        assert_eq!(letter.headers["paced-reason"], "queue-full");
        assert!(letter.headers["paced-detail"].contains("try again in "), "{:?}", letter.headers);
    }
    site.depth(&site.queue(), 0, LONG).await;
    let missed = slots_missed(&replicas.each_ref()).await;
    for replica in &replicas {
        assert_eq!(replica.stop().await, 0);
    }
    assert_in_time(&replicas.each_ref(), (arrivals.len(), missed), (made, 2), (40, JOBS));
}

/// Jobs behind the window are seen once there is room for them, and most of them are too late by then.
#[tokio::test]
async fn with_a_backlog_that_is_longer_than_the_window_each_job_goes_in_time_or_is_refused() {
    const JOBS: usize = 1500;
    for prefetch in [100, 1000] {
        let window = format!("prefetch = {prefetch}");
        let limits = format!("rate = '300/s'\nmax_wait = '2s'\nhorizon = '500ms'\nqueue.{window}");
        let site = Site::shared("behind", &limits).await;
        let mut made = 0;
        let [replica] = begin_at_once(&site, prefetch, || made_now(&mut made, JOBS)).await;
        let dead = async || publish::depth(&site.amqp, &site.dead_queue()).await.unwrap_or(0);
        until("each job to be released or refused", LONG, async || {
            site.api.count() + usize::try_from(dead().await).unwrap() >= JOBS
        })
        .await;
        let arrivals = site.api.arrivals();
        assert!(arrivals.len() <= 901, "a window of {prefetch}: {} in 2 to 3 s at 300/s", arrivals.len());
        let letters = site.dead(dead().await, LONG).await;
        assert!(letters.iter().all(|letter| letter.headers["paced-reason"] == "queue-full"));
        let ids = arrivals.iter().map(|arrival| arrival.id()).chain(letters.iter().map(publish::Taken::id));
        assert_eq!(ids.collect::<std::collections::BTreeSet<_>>().len(), JOBS);
        assert_eq!(arrivals.len() + letters.len(), JOBS, "each is released or refused, once");
        let missed = slots_missed(&[&replica]).await;
        assert_eq!(replica.stop().await, 0);
        // When jobs behind the window come depends on the broker.
        assert_in_time(&[&replica], (arrivals.len(), missed), (made, 2), (300, prefetch));
    }
}

#[tokio::test]
async fn deadlines_and_the_longest_wait_are_kept_in_a_pause() {
    let site =
        Site::shared("pausewait", "rate = '100/s'\nmax_wait = '1s'\n[reply]\nallow = ['replies-']").await;
    site.api.script("/", [Answer::status(429).header("retry-after", 300)]);
    let replica = site.replica().await;
    site.publish(Job::many("first", 1)).await;
    site.api.wait_for(1, LONG).await;
    replica.wait_line("paused", LONG).await;
    let at = i64::try_from(now() + 300).unwrap();
    let reply_to = format!("replies-{}", site.prefix);
    let (connection, channel) = publish::open(&site.amqp).await;
    let options = lapin::options::QueueDeclareOptions::default();
    channel.queue_declare(reply_to.as_str().into(), options, Default::default()).await.unwrap();
    let mut waits = Job::new("waits");
    waits.properties = waits.properties.with_reply_to(reply_to.as_str().into());
    let expires = Job::new("expires").header_value("paced-deadline", AMQPValue::LongLongInt(at));
    site.publish(vec![waits, expires]).await;
    let mut letters = site.dead(2, LONG).await;
    letters.sort_by(|one, other| one.id().cmp(other.id()));
    let reasons = letters.iter().map(|letter| (letter.id(), letter.headers["paced-reason"].as_str()));
    assert_eq!(reasons.collect::<Vec<_>>(), [("expires", "expired"), ("waits", "queue-full")]);
    let replies = publish::drain(&site.amqp, &reply_to).await;
    let reply: serde_json::Value = serde_json::from_slice(&replies[0].body).unwrap();
    assert!(reply["body"].as_str().unwrap().starts_with("queue-full: "), "{reply}");
    assert_eq!(reply["status"], 0);
    let after: u64 = reply["headers"]["retry-after"].as_str().unwrap().parse().unwrap();
    assert!((100..=300).contains(&after), "the rest of the pause: {after}");
    connection.close(200, "OK".into()).await.unwrap();
    assert_eq!(site.api.count(), 1, "the pause is not over");
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn an_answer_of_success_can_mean_that_the_api_throttles() {
    let when = "rate = '100/s'\n[downstreams.billing.retry]\nmax_attempts = 1\nmin_backoff = '10ms'\nmax_backoff = '20ms'\n\
                answers = [{ status = 200, body = { pointer = '/error/code', equals = 'rate_limited' }, is = 'throttled' }]";
    let site = Site::shared("bodywhen", when).await;
    let slow_down = || Answer::ok().body(r#"{"error": {"code": "rate_limited"}}"#);
    site.api.script("/", [slow_down(), slow_down().header("retry-after", 1), Answer::ok().body("{}")]);
    let replica = site.replica().await;
    site.publish(Job::many("job", 1)).await;
    let arrivals = site.api.wait_for(3, LONG).await;
    let pause = arrivals[2].wall.since(arrivals[1].wall);
    assert!(pause >= Duration::from_secs(1), "{pause:?}");
    assert_eq!(replica.stop().await, 0);
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0));
    assert_eq!(publish::depth(&site.amqp, &site.queue()).await, Some(0), "it was delivered in the end");
}

#[tokio::test]
async fn a_queue_that_was_used_as_it_is_is_declared_again_once_it_is_gone() {
    let site = Site::shared("anew", "rate = '100/s'").await;
    let queue = site.queue();
    let (connection, channel) = publish::open(&site.amqp).await;
    let durable = lapin::options::QueueDeclareOptions::durable();
    channel.queue_declare(queue.as_str().into(), durable, Default::default()).await.unwrap();
    let replica = site.replica().await;
    replica.wait_line("exists with other arguments", LONG).await;
    site.publish(Job::many("first", 5)).await;
    site.api.wait_for(5, LONG).await;
    channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
    replica.wait_line("consuming again", LONG).await;
    let check = site.cli(&["check", "--online"]).await;
    assert!(!check.stdout.contains("other arguments") && !check.stderr.contains("other arguments"));
    site.publish(Job::many("second", 5)).await;
    site.api.wait_for(10, LONG).await;
    connection.close(200, "OK".into()).await.unwrap();
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn the_configuration_says_which_answers_are_tried_again_and_how_often() {
    let retry = "rate = '100/s'\n[downstreams.billing.retry]\nmax_attempts = 2\non = [409, '5xx']\nnever = ['501-502']\n\
                 min_backoff = '10ms'\nmax_backoff = '20ms'\n[downstreams.billing.retry.status.503]\nmax_attempts = 5";
    let site = Site::shared("statuses", retry).await;
    site.api.rule(|arrival| Answer::status(arrival.id().parse().unwrap()));
    let replica = site.replica().await;
    site.publish([404, 408, 409, 500, 501, 503].map(|status: u16| Job::new(status.to_string())).into()).await;
    let letters = site.dead(6, LONG).await;
    let attempts = |id: &str| {
        let of = |letter: &&publish::Taken| {
            letter.properties.message_id().as_ref().is_some_and(|found| found.as_str() == id)
        };
        let headers = &letters.iter().find(of).unwrap().headers;
        (headers["paced-reason"].clone(), headers["paced-attempts"].parse().unwrap())
    };
    for (id, reason, count) in [
        ("404", "status", 1),
        ("408", "status", 1),
        ("409", "attempts-exhausted", 2),
        ("500", "attempts-exhausted", 2),
        ("501", "status", 1),
        ("503", "attempts-exhausted", 5),
    ] {
        assert_eq!(attempts(id), (reason.to_owned(), count), "{id}");
    }
    assert_eq!(site.api.count(), 12);
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn the_publisher_learns_of_a_full_queue() {
    let site = Site::shared("full", "rate = '100/s'\n[downstreams.billing.queue]\nmax_length = 10").await;
    let fits = site.cli(&["publish", "billing", "--count", "10", "--body", "x"]).await;
    assert_eq!(fits.code, 0, "{}", fits.stderr);
    // A quorum queue learns of its length a little late.
    let mut published = 10;
    until("the queue to be full", LONG, async || {
        // A job that the queue refuses is tried again, at first every second and for half a minute.
        let args = ["-o", "json", "publish", "billing", "--count", "3", "--body", "x"];
        let more = site.cli_with(&args, &[("PACED_TEST_IMPATIENCE", "10")]).await;
        assert!(more.code == 0 || more.stderr.contains("the queue is full"), "{}", more.stderr);
        let report: serde_json::Value = serde_json::from_str(&more.stdout).unwrap();
        published += u32::try_from(report["published"].as_u64().unwrap()).unwrap();
        more.code == 1
    })
    .await;
    site.depth(&site.queue(), published, LONG).await;
    let replica = site.replica().await;
    site.api.wait_for(usize::try_from(published).unwrap(), LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
    let fits = site.cli(&["publish", "billing", "--count", "1", "--body", "x"]).await;
    assert_eq!(fits.code, 0, "there is room again: {}", fits.stderr);
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_used_as_it_is() {
    let mut site = Site::shared("asitis", "rate = '100/s'").await;
    site.declare().await;
    let clean = site.cli(&["check", "--online"]).await;
    assert!(!clean.stderr.contains("other arguments"), "{}", clean.stderr);
    site.downstream = "rate = '100/s'\n[downstreams.billing.queue]\nmax_length = 1000".to_owned();
    let replica = site.replica().await;
    let warned = replica.wait_line("exists with other arguments", LONG).await;
    assert!(warned.contains(&site.queue()) && warned.contains("x-max-length"), "{warned}");
    site.publish(Job::many("job", 20)).await;
    site.api.wait_for(20, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let found = replica.log().iter().filter(|line| line.contains("exists with other arguments")).count();
    assert_eq!(found, 1, "one warning");
    let check = site.cli(&["check", "--online"]).await;
    assert_eq!(check.code, 0, "{}", check.stderr);
    let output = format!("{}{}", check.stdout, check.stderr);
    assert!(output.contains("rabbitmqctl set_policy") && output.contains("\"max-length\":1000"), "{output}");
    let published = site.cli(&["publish", "billing", "--count", "1", "--body", "x"]).await;
    assert_eq!(published.code, 0, "{}", published.stderr);
}

#[tokio::test]
async fn a_job_becomes_too_old_to_be_tried_again_in_a_pause() {
    let retry =
        "rate = '100/s'\n[downstreams.billing.retry]\nmax_age = '2s'\nmin_backoff = '1s'\nmax_backoff = '1s'";
    let site = Site::shared("tooold", retry).await;
    site.api.rule(|arrival| match arrival.id() {
        "pauses" => Answer::status(429).header("retry-after", 120),
        _ => Answer::status(500),
    });
    let replica = site.replica().await;
    site.publish(vec![Job::new("tried")]).await;
    site.api.wait_for(1, LONG).await;
    site.publish(vec![Job::new("pauses")]).await;
    // The one that pauses would be too old at the end of the pause, and is dead at once.
    let letters = site.dead(2, LONG).await;
    let is_tried = |letter: &&publish::Taken| letter.headers["paced-status"] == "500";
    let detail =
        letters.iter().find(|letter| !is_tried(letter)).map(|letter| &letter.headers["paced-detail"]);
    assert!(detail.is_some_and(|detail| detail.contains("retry.max_age (2s)")), "{letters:?}");
    assert!(letters.iter().all(|letter| letter.headers["paced-reason"] == "attempts-exhausted"));
    assert_eq!(replica.stop().await, 0);
}
