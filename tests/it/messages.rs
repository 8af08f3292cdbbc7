//! Messages of producers: good and malformed ones, replies, and replayed dead letters.

use std::collections::BTreeMap;

use lapin::types::AMQPValue;

use crate::support::LONG;
use crate::support::api::Answer;
use crate::support::publish::{Job, Taken};
use crate::support::site::Site;

async fn site(topic: &str) -> Site {
    let rules = "rate = '500/s'
        [downstreams.billing.retry]
        max_attempts = 2
        min_backoff = '10ms'";
    let site = Site::shared(topic, rules).await;
    Site {
        http: "max_body = '1KiB'\nallow_headers = ['x-good']\nmethods = ['POST', 'PUT']\n\
               [reply]\nallow = ['replies-']"
            .to_owned(),
        ..site
    }
}

/// Every kind of malformed message that there is a reason for, by id; twice where that is easy.
fn bad() -> Vec<(&'static str, Job)> {
    let long = AMQPValue::LongLongInt;
    let job = |id: &str| Job::new(id);
    vec![
        ("malformed-header", job("m0").header("paced-cost", "three")),
        ("malformed-header", job("m1").header_value("paced-cost", AMQPValue::Double(1.5))),
        ("malformed-header", job("m2").header("paced-cost", "0")),
        ("malformed-header", job("m3").header("paced-method", "BREW")),
        ("malformed-header", job("m4").header("paced-not-before", "tomorrow")),
        ("malformed-header", job("m5").header_value("paced-lane", AMQPValue::Boolean(true))),
        ("malformed-header", job("m6").header("paced-lane", &"x".repeat(129))),
        ("malformed-header", job("m7").header("http-x-good", "a\r\nhost: evil")),
        ("malformed-header", job("m8").header("paced-deadline", "soon")),
        ("malformed-header", job("m9").header_value("paced-path", long(7))),
        ("unknown-header", job("u2").header("paced-", "")),
        ("header-not-allowed", job("h3").header("http-transfer-encoding", "chunked")),
        ("forbidden-path", job("p8").header("paced-path", "a b")),
        ("forbidden-path", job("p9").header("paced-path", "a/./b")),
        ("unknown-header", job("u0").header("paced-retries", "3")),
        ("unknown-header", job("u1").header("paced-plans", "pro")),
        ("malformed-header", job("m11").header("paced-method", "DELETE")),
        ("malformed-header", job("m10").header("paced-plan", "pro")),
        ("header-not-allowed", job("h0").header("http-x-bad", "1")),
        ("header-not-allowed", job("h1").header("http-authorization", "Bearer x")),
        ("header-not-allowed", job("h2").header("http-host", "evil")),
        ("forbidden-path", job("p0").header("paced-path", "../admin")),
        ("forbidden-path", job("p1").header("paced-path", "a/%2e%2e/%2E%2e/admin")),
        ("forbidden-path", job("p2").header("paced-path", "//evil.example/")),
        ("forbidden-path", job("p3").header("paced-path", "http://evil.example/")),
        ("forbidden-path", job("p4").header("paced-path", "a\\b")),
        ("forbidden-path", job("p5").header("paced-path", "a#b")),
        ("forbidden-path", job("p6").header("paced-path", "a%2fb")),
        ("forbidden-path", job("p7").header("paced-path", "a%00b")),
        ("body-too-large", job("b0").body(vec![b'x'; 1025])),
        ("body-too-large", job("b1").body(vec![b'x'; 100_000])),
        ("bad-id", job("white space")),
        ("bad-id", job("umlaut-\u{fc}")),
        ("cost-too-large", job("c0").header("paced-cost", "4000000000")),
        ("cost-too-large", job("c1").header_value("paced-cost", long(i64::MAX))),
        ("expired", job("e0").header("paced-deadline", "2020-01-01T00:00:00Z")),
        ("expired", job("e1").header_value("paced-deadline", long(1_600_000_000_000))),
        ("malformed-header", job("m12").header_value("paced-not-before", long(3600))),
        ("expired", job("e2").header_value("paced-deadline", AMQPValue::Timestamp(1_600_000_000))),
        ("expired", job("e3").header_value("paced-deadline", long(1_600_000_000))),
        ("status", job("s0").header("paced-path", "missing")),
        ("status", job("s1").header("paced-path", "moved")),
        ("attempts-exhausted", job("a0").header("paced-path", "down")),
        ("attempts-exhausted", job("a1").header("paced-path", "cut")),
    ]
}

fn answers(site: &Site) {
    site.api.rule(|arrival| match arrival.path.as_str() {
        "/missing" => Answer::status(404),
        "/moved" => Answer::status(302).header("location", "http://127.0.0.1:1/"),
        "/down" => Answer::status(503),
        "/cut" => Answer::hang_up(),
        _ => Answer::ok(),
    });
}

fn text(letter: &Taken, name: &str) -> String {
    match letter.properties.headers().as_ref().and_then(|headers| headers.inner().get(name)) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        Some(AMQPValue::LongLongInt(number)) => number.to_string(),
        other => panic!("{name} of {}: {other:?}", letter.id()),
    }
}

#[tokio::test]
async fn bad_messages_lie_in_the_dead_queue_and_good_ones_arrive() {
    let site = site("bad").await;
    answers(&site);
    let replica = site.replica().await;
    let bad = bad();
    assert!(bad.len() >= 39, "40 with the one that has no id");
    let mut jobs = Job::many("good", 200);
    for (place, (_, job)) in bad.iter().enumerate() {
        jobs.insert(place * 5, job.clone());
    }
    // One more has no id.
    jobs.insert(50, Job { id: None, ..Job::default() }.header("paced-nonsense", "1"));
    site.publish(jobs).await;

    // Two bad ones are sent once, and two twice.
    site.api.wait_for(206, LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
    let letters = site.dead(u32::try_from(bad.len() + 1).unwrap(), LONG).await;
    let arrivals = site.api.arrivals();
    let good: Vec<&str> = arrivals.iter().map(|a| a.id()).filter(|id| id.starts_with("good-")).collect();
    assert_eq!(good.len(), 200, "each good one once");
    let refused = |id: &str| {
        !["status", "attempts-exhausted"]
            .iter()
            .any(|reason| bad.iter().any(|(its, job)| its == reason && job.id.as_deref() == Some(id)))
    };
    let reached: Vec<&str> =
        arrivals.iter().map(|a| a.id()).filter(|id| !id.starts_with("good-") && refused(id)).collect();
    assert!(reached.is_empty(), "no refused message reaches the API: {reached:?}");

    let reasons: BTreeMap<String, String> =
        letters.iter().map(|letter| (letter.id().to_owned(), text(letter, "paced-reason"))).collect();
    for (reason, job) in &bad {
        let id = job.id.as_deref().unwrap();
        assert_eq!(reasons.get(id).map(String::as_str), Some(*reason), "{id}");
    }
    for letter in &letters {
        assert!(!text(letter, "paced-detail").is_empty());
        assert_eq!(text(letter, "paced-routing-key"), "billing");
        assert!(text(letter, "paced-dead-at").parse::<i64>().unwrap() > 1_700_000_000_000);
    }
    let attempts = |id: &str| {
        let letter = letters.iter().find(|letter| letter.id() == id).unwrap();
        text(letter, "paced-attempts")
    };
    assert_eq!((attempts("m0"), attempts("s0"), attempts("a0")), ("0".into(), "1".into(), "2".into()));
    assert_eq!(replica.stop().await, 0, "the replica lived through all of it");
}

#[tokio::test]
async fn replay_brings_repaired_jobs_through() {
    let site = site("replay").await;
    answers(&site);
    let replica = site.replica().await;
    let jobs = vec![
        Job::new("path").header("paced-path", "../up").header("x-foreign", "kept"),
        Job::new("down").header("paced-path", "down").body("precious"),
        Job::new("unknown").header("paced-retries", "3"),
    ];
    site.publish(jobs).await;
    site.depth(&site.dead_queue(), 3, LONG).await;

    let listed = site.cli(&["-o", "json", "dead", "list", "billing"]).await;
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    assert_eq!(listed.stdout.lines().count(), 3);
    let table = site.cli(&["dead", "list", "billing"]).await.stdout;
    assert!(table.contains("forbidden-path") && table.contains("attempts-exhausted"), "{table}");
    site.depth(&site.dead_queue(), 3, LONG).await;

    // Without repairs, they come straight back.
    let replay = site.cli(&["dead", "replay", "billing", "--reason", "unknown-header"]).await;
    assert_eq!((replay.code, replay.stdout.trim()), (0, "replayed 1 of 3 dead letter(s)"));
    site.depth(&site.dead_queue(), 3, LONG).await;

    // The API recovers; the path and the header are repaired.
    let before = site.api.count();
    site.api.rule(|_| Answer::ok());
    for args in [
        &["--reason", "attempts-exhausted"][..],
        &["--id", "path", "--set-header", "paced-path=up"],
        &["--id", "unknown", "--unset-header", "paced-retries"],
    ] {
        let all: Vec<&str> = ["dead", "replay", "billing"].iter().chain(args).copied().collect();
        let replay = site.cli(&all).await;
        assert_eq!(replay.code, 0, "{}", replay.stderr);
        assert!(replay.stdout.starts_with("replayed 1 of"), "{}", replay.stdout);
    }
    let arrivals = site.api.wait_for(before + 3, LONG).await;
    let seen: BTreeMap<&str, (&str, &[u8])> =
        arrivals[before..].iter().map(|a| (a.id(), (a.path.as_str(), &a.body[..]))).collect();
    assert_eq!(seen["down"], ("/down", &b"precious"[..]));
    assert_eq!(seen["path"].0, "/up");
    assert_eq!(seen["unknown"].0, "/");
    assert_eq!(replica.stop().await, 0);
    site.depth(&site.dead_queue(), 0, LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
}

#[tokio::test]
async fn what_the_contract_names_reaches_the_api() {
    let site = site("contract").await;
    let replica = site.replica().await;
    let mut job = Job::new("id-1")
        .body("{}")
        .header("paced-method", "put")
        .header("paced-path", "/orders/7?dry=1")
        .header("paced-lane", "acme")
        .header("http-X-Good", "yes")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    job.properties = job.properties.with_content_type("application/json".into());
    site.publish(vec![job, Job { id: None, ..Job::default() }]).await;
    let arrivals = site.api.wait_for(2, LONG).await;
    let known = arrivals.iter().find(|a| a.id() == "id-1").unwrap();
    assert_eq!((known.method.as_str(), known.path.as_str()), ("PUT", "/orders/7?dry=1"));
    assert_eq!(known.header("content-type"), Some("application/json"));
    assert_eq!(known.header("x-good"), Some("yes"));
    assert!(known.header("traceparent").is_some());
    assert!(known.header("paced-lane").is_none());
    let assigned = arrivals.iter().find(|a| a.id() != "id-1").unwrap();
    assert_eq!(uuid::Uuid::parse_str(assigned.id()).unwrap().get_version_num(), 7);
    assert_eq!(assigned.method, "POST");
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn a_reply_is_there_before_the_ack() {
    let site = site("reply").await;
    site.api.rule(|arrival| match arrival.path.as_str() {
        "/no" => Answer::status(404).body("no such thing"),
        _ => Answer::ok().header("x-answer", "42").body("done"),
    });
    let replies = format!("replies-{}", site.prefix);
    let (connection, channel) = crate::support::publish::open(&site.amqp).await;
    let options = lapin::options::QueueDeclareOptions::default();
    channel.queue_declare(replies.as_str().into(), options, Default::default()).await.unwrap();
    let replica = site.replica().await;
    let asking = |id: &str, path: &str| {
        let mut job = Job::new(id).header("paced-path", path);
        job.properties = job.properties.with_reply_to(replies.as_str().into()).with_correlation_id(id.into());
        job
    };
    site.publish(vec![asking("yes", "yes"), asking("no", "no")]).await;
    site.depth(&replies, 2, LONG).await;
    let mut answers = BTreeMap::new();
    for reply in crate::support::publish::drain(&site.amqp, &replies).await {
        let id = reply.properties.correlation_id().as_ref().unwrap().to_string();
        answers.insert(id, serde_json::from_slice::<serde_json::Value>(&reply.body).unwrap());
    }
    assert_eq!((&answers["yes"]["status"], &answers["yes"]["body"]), (&200.into(), &"done".into()));
    assert_eq!(answers["yes"]["headers"]["x-answer"], "42");
    assert_eq!((&answers["no"]["status"], &answers["no"]["body"]), (&404.into(), &"no such thing".into()));
    connection.close(200, "OK".into()).await.unwrap();
    assert_eq!(replica.stop().await, 0);
}

/// Without `lanes.by` there are no lanes. The replica and the command warn once of a producer that names some.
#[tokio::test]
async fn who_names_lanes_where_there_are_none_is_warned_once() {
    let site = site("lanes").await;
    let replica = site.replica().await;
    let jobs =
        (0..20).map(|job| Job::new(format!("lane-{job}")).header("paced-lane", &format!("tenant-{job}")));
    site.publish(jobs.collect()).await;
    site.api.wait_for(20, LONG).await;
    let published = site.cli(&["publish", "billing", "--count", "1", "--body", "{}", "--lane", "acme"]).await;
    assert_eq!(published.code, 0, "{}", published.stderr);
    assert_eq!(published.stderr.matches("--lane has no effect").count(), 1, "{}", published.stderr);
    site.api.wait_for(21, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let warning = "paced-lane, which has no effect without lanes.by";
    assert_eq!(replica.log().iter().filter(|line| line.contains(warning)).count(), 1);
}
