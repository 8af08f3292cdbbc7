//! Throttling as APIs do it, on a real broker and a real store: the order of requests and their distances are judged, and
//! never how long something takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::LONG;
use crate::support::api::{Answer, Arrival};
use crate::support::publish::{self, Job};
use crate::support::site::Site;

const S: Duration = Duration::from_secs(1);

fn apart(arrivals: &[Arrival]) -> Vec<Duration> {
    arrivals.windows(2).map(|pair| Duration::from_nanos(pair[1].at.saturating_sub(pair[0].at))).collect()
}

/// A rule that gives the first requests one answer, and the others another one.
fn first(count: usize, answer: Answer) -> impl Fn(&Arrival) -> Answer + Send + Sync + 'static {
    let asked = AtomicUsize::new(0);
    move |_| if asked.fetch_add(1, Ordering::SeqCst) < count { answer.clone() } else { Answer::ok() }
}

/// GitHub's form: a 403 with `Retry-After`, here with a fraction. It kills no job, and nothing goes in the pause.
#[tokio::test]
async fn a_403_with_a_retry_after_pauses_and_kills_no_job() {
    let site = Site::shared("t403", "rate = '1/100ms'").await;
    site.api.rule(first(1, Answer::status(403).header("retry-after", "1.5")));
    let replica = site.replica().await;
    site.publish(Job::many("job", 5)).await;
    let arrivals = site.api.wait_for(6, LONG).await;
    assert!(apart(&arrivals)[0] >= 3 * S / 2 || apart(&arrivals)[1] >= S, "{:?}", apart(&arrivals));
    assert_eq!(replica.stop().await, 0);
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0));
}

/// Two replicas share one cool-down: of the refused ones each comes at least a second after the one before.
#[tokio::test]
async fn a_429_without_a_word_lets_one_probe_go_at_a_time_over_two_replicas() {
    let site =
        Site::shared("t429", "rate = '1/200ms'\n[downstreams.billing.retry]\nmax_cooldown = '1s'").await;
    site.api.rule(first(4, Answer::status(429)));
    let replicas = [site.replica().await, site.replica().await];
    site.publish(Job::many("job", 20)).await;
    let arrivals = site.api.wait_for(24, LONG).await;
    // A second request may be under way when the first one is answered.
    let apart = apart(&arrivals[..5]);
    assert!(apart[1..].iter().all(|apart| *apart >= 9 * S / 10), "{apart:?}");
    let first = arrivals[0].id();
    assert!(arrivals[2].id() != first, "another job goes as the probe");
    for replica in replicas {
        assert_eq!(replica.stop().await, 0);
    }
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0));
}

/// The work of a request that timed out is under way: the answer that says so is none of a dead job.
#[tokio::test]
async fn a_conflict_after_an_own_time_out_is_tried_again() {
    let retry = "rate = '100/s'\n[downstreams.billing.retry]\nmin_backoff = '10ms'\nmax_backoff = '20ms'";
    let mut site = Site::shared("t409", retry).await;
    "timeout = '500ms'".clone_into(&mut site.http);
    let slow = Answer::ok().after(Duration::from_secs(600));
    site.api.script("/", [slow, Answer::status(409), Answer::status(423), Answer::ok()]);
    let replica = site.replica().await;
    site.publish(Job::many("job", 1)).await;
    site.api.wait_for(4, LONG).await;
    // Without a time-out before, it is final.
    site.api.script("/", [Answer::status(409)]);
    site.publish(Job::many("other", 1)).await;
    let letters = site.dead(1, LONG).await;
    assert_eq!(letters[0].id(), "other-0");
    assert_eq!(replica.stop().await, 0);
}

/// What a rule says counts before all else, and a wait may be in the body.
#[tokio::test]
async fn a_rule_finds_the_wait_in_the_body() {
    let rules = "rate = '100/s'\n[downstreams.billing.retry]\nanswers = [\n\
                 { status = 400, body = { pointer = '/code', equals = 'busy' }, is = 'throttled', wait = 'body:/seconds' },\n\
                 { status = 409, is = 'delivered' },\n]";
    let site = Site::shared("trule", rules).await;
    let busy = Answer::status(400).body(r#"{"code": "busy", "seconds": 1.5}"#);
    site.api.script("/", [busy, Answer::status(409)]);
    let replica = site.replica().await;
    site.publish(Job::many("job", 1)).await;
    let arrivals = site.api.wait_for(2, LONG).await;
    assert!(apart(&arrivals)[0] >= 3 * S / 2, "{:?}", apart(&arrivals));
    assert_eq!(replica.stop().await, 0);
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0));
    assert_eq!(publish::depth(&site.amqp, &site.queue()).await, Some(0), "it was delivered by the rule");
}

/// `paced explain-answer` says what the daemon does.
#[tokio::test]
async fn an_answer_is_explained() {
    let rules = "rate = '1/s'\n[downstreams.billing.retry]\nanswers = [{ header = { name = 'x-busy' }, is = 'throttled', wait = '5s' }]";
    let site = Site::shared("texplain", rules).await;
    let explained = async |args: &[&str]| {
        let output = site.cli(&[&["explain-answer", "billing"], args].concat()).await;
        (output.code, output.stdout)
    };
    let by_rule = explained(&["--status", "404", "--header", "X-Busy: 1"]).await;
    assert_eq!(by_rule, (0, "throttled: all jobs wait, then this one is tried again\nwait: 5s\nbecause: rule 1 of retry.answers\n".to_owned()));
    let json = explained(&["-o", "json", "--status", "503", "--header", "Retry-After: 2.0"]).await;
    assert_eq!(
        json.1,
        "{\"because\":\"it says so itself (docs/retries.md, Throttling)\",\"is\":\"throttled\",\"wait_ms\":2000}\n"
    );
    let (code, text) = explained(&["--status", "409", "--after-timeout"]).await;
    assert!(code == 0 && text.starts_with("retry: "), "{text}");
    assert_eq!(explained(&["--status", "99"]).await.0, 2);
    assert_eq!(explained(&["--status", "404", "--body", "/no/such/file"]).await.0, 2);
}
