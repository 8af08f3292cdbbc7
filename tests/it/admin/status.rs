//! `paced status` and its API: what every downstream is doing, over all replicas, and what binds.

use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::api::Api;
use crate::support::publish;

impl AdminReplica {
    /// The state of the downstream as this replica reports it.
    pub(super) async fn downstream(&self) -> Value {
        let reply = self.client.get(&format!("{}/api/v1/status", self.base)).await.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text);
        let state: Value = serde_json::from_str(&reply.text).unwrap();
        state["downstreams"][0].clone()
    }

    /// Waits until the state of the downstream is as wanted, and returns it.
    async fn until(&self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let start = crate::support::real_now();
        until(what, LONG, async || {
            last = self.downstream().await;
            // Shortly before the end the state is shown, so that a failure says what it was.
            assert!(start.elapsed() < LONG - Duration::from_secs(1), "{what}: {last}");
            so(&last)
        })
        .await;
        last
    }
}

#[tokio::test]
async fn each_replica_tells_of_all_with_right_sums() {
    const JOBS: usize = 400;
    let site = Site::shared("statussum", "rate = '20/s'\nqueue.prefetch = 50").await;
    let [one, other] = [AdminReplica::with_token(&site).await, AdminReplica::with_token(&site).await];
    site.publish(Job::many("job", JOBS)).await;
    let sum = |state: &Value, name: &str| state[name].as_u64().unwrap_or_default();
    let seen = one
        .until("both replicas send jobs, and the limit binds", |state| {
            let shares = state["replicas"].as_array().unwrap();
            shares.len() == 2
                && shares.iter().all(|share| share["rate"].as_f64().unwrap() > 0.0)
                && state["binding"]["reason"] == "limit"
                // The store has answered what they are.
                && state["limits"][0].is_object()
        })
        .await;
    assert_eq!(seen["binding"]["limit"], "leaky-bucket-0");
    assert_eq!(seen["binding"]["text"], "the limit leaky-bucket-0 (20/s)", "{seen}");
    assert!(seen["through_at"].as_i64().is_some() || seen["queued"].is_null(), "{seen}");
    assert_eq!(one.send(Method::PUT, "/rate", &[], r#"{"rate": "1000/s"}"#).await.0, 200);
    for replica in [&one, &other] {
        let all = replica.until("all are delivered", |state| sum(state, "delivered") == JOBS as u64).await;
        assert_eq!(sum(&all, "released"), JOBS as u64, "{all}");
        let took = replica
            .until("the latency is reported", |state| state["latency"]["p99_us"].as_u64() > Some(0))
            .await;
        assert!(took["latency"]["p50_us"].as_u64() <= took["latency"]["p99_us"].as_u64(), "{took}");
    }
    assert_eq!(site.api.count(), JOBS);
    let output = other.tool(TOKEN, &["status"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("2 replica(s), RabbitMQ ok, store ok"), "{}", output.stdout);
    assert!(output.stdout.contains("billing"), "{}", output.stdout);
    let output = other.tool(TOKEN, &["-o", "json", "status", "billing"]).await;
    let answer: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(sum(&answer, "released"), JOBS as u64);
    let (status, answer) = other.send(Method::GET, "/status", &[], "").await;
    assert_eq!((status, sum(&answer, "released")), (200, JOBS as u64), "{answer}");
    assert_eq!(other.tool(TOKEN, &["status", "biling"]).await.code, 2);
    // One that stops takes its summary back.
    assert_eq!(other.paced.stop().await, 0);
    one.until("the other one is gone", |state| state["replicas"].as_array().unwrap().len() == 1).await;
    assert_eq!(one.paced.stop().await, 0);
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_explained() {
    let limits = "rate = '100/s'\nlimits = [{ algorithm = 'quota', rate = '5/day' }]";
    let site = Site::shared("statusquota", limits).await;
    let config = format!("{}{ADMIN}token = '{TOKEN}'\n", site.config());
    let replica = AdminReplica::hasty(&config, 5).await;
    site.publish(Job::many("job", 20)).await;
    let state = replica
        .until("the quota binds", |state| {
            state["binding"]["limit"] == "quota-1" && state["limits"][1]["remaining"] == 0
        })
        .await;
    let text = state["binding"]["text"].as_str().unwrap();
    assert!(text.starts_with("the limit quota-1 (5/d) is used up until 2"), "{text}");
    assert_eq!(state["limits"][1]["of"], 5);
    // The pace is no part of what the quota allows in the long run.
    assert_eq!(state["rate_limit"], 100.0, "{state}");
    let table = replica.tool(TOKEN, &["status"]).await.stdout;
    let cells: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
    assert_eq!((cells[0], &cells[2..4]), ("billing", &["100.0/s", "0/5"][..]), "{table}");
    let output = replica.tool(TOKEN, &["status", "billing"]).await.stdout;
    assert!(output.contains("\n  quota      quota-1 5/d, 0 of 5 left, whole again at 2"), "{output}");
    until("the five are used", LONG, async || site.api.count() + replica.paced.slots_missed().await == 5)
        .await;
    // One is of the store's clock and one of this process's, whose offset is known well.
    let at = |value: &Value| value.as_i64().unwrap();
    let apart = at(&state["binding"]["until"]) - at(&state["limits"][1]["whole_at"]);
    assert!(apart.abs() < 10_000, "{apart} ms: {state}");
    // On a slow machine there may be a line before, about the wait for the broker.
    let line = replica.paced.wait_line("\"limit\":\"quota-1\"", LONG).await;
    assert!(
        line.contains("the same reason has held jobs back for 10 s") && line.contains("\"reason\":\"limit\""),
        "{line}"
    );
    let metrics = replica.client.get(&format!("{}/metrics", replica.base)).await.unwrap().text;
    let left = "paced_limit_remaining{downstream=\"billing\",limit=\"quota-1\"} 0";
    assert!(metrics.lines().any(|line| line == left), "{metrics}");
    let pace = "paced_rate_limit_jobs_per_second{downstream=\"billing\",source=\"config\"} 100";
    assert!(metrics.lines().any(|line| line == pace), "{metrics}");
    let bound = "paced_binding_seconds_total{downstream=\"billing\",reason=\"limit\",limit=\"quota-1\"} ";
    let seconds = metrics.lines().find_map(|line| line.strip_prefix(bound)).unwrap();
    assert!(seconds.parse::<u64>().unwrap() >= 1, "{seconds}");
    assert_eq!(replica.paced.stop().await, 0);
}

/// Both lanes wait for minutes, so that the test sees them however slow the machine is.
#[tokio::test]
async fn the_busiest_lanes_of_all_replicas_are_shown_with_what_they_wait_for() {
    let keys = "rate = '100/s'\nhold_max = '10m'\nlanes.by = { tenant = 'header:paced-lane' }\n\
                lanes.limits = [{ rate = '6/m' }]";
    let site = Site::shared("statuslanes", keys).await;
    let [one, other] = [AdminReplica::with_token(&site).await, AdminReplica::with_token(&site).await];
    let of = |lane: &str, jobs| {
        let jobs = Job::many(&format!("{lane}-"), jobs).into_iter();
        jobs.map(|job| job.header("paced-lane", lane)).collect::<Vec<Job>>()
    };
    site.publish(of("a", 20)).await;
    site.publish(of("b", 40)).await;
    for replica in [&one, &other] {
        let state = replica
            .until("the jobs of both lanes at both replicas wait for their limit", |state| {
                let lanes = state["lanes"].as_array().map_or(&[][..], Vec::as_slice);
                let waiting: u64 = lanes.iter().filter_map(|lane| lane["waiting"].as_u64()).sum();
                waiting > 40 && lanes.iter().all(|lane| lane["limit"] == "lane.leaky-bucket-0")
            })
            .await;
        let names = [&state["lanes"][0]["name"], &state["lanes"][1]["name"]];
        assert_eq!(names, ["tenant=b", "tenant=a"], "{state}");
        assert!(state["lanes"][0]["oldest"].as_i64() >= state["oldest"].as_i64(), "{state}");
    }
    let output = one.tool(TOKEN, &["status", "billing"]).await.stdout;
    assert!(output.contains("\n  lane       tenant=b: "), "{output}");
    // Between two slots of the lane its next job waits for the limit.
    let holds = "billing: what holds it back: the limit lane.leaky-bucket-0 of its lane";
    let mut output = String::new();
    until("a job waits for the limit of its lane", LONG, async || {
        output = one.tool(TOKEN, &["explain", "billing", "--lane", "tenant=b"]).await.stdout;
        output.lines().nth(1) == Some(holds)
    })
    .await;
    let (_, place) = output.split_once(": it waits for a slot at replica ").unwrap_or_default();
    assert!(place.contains(" job(s) of its lane tenant=b there, and "), "{output}");
    let mut found = Value::Null;
    until("the API says the same", LONG, async || {
        let json = one.tool(TOKEN, &["-o", "json", "explain", "billing", "--lane", "tenant=b"]).await.stdout;
        found = serde_json::from_str(&json).unwrap();
        found["jobs"][0]["binding"]["limit"] == "lane.leaky-bucket-0"
    })
    .await;
    let job = &found["jobs"][0];
    assert_eq!((&job["place"], &job["turn"]["lane"]), (&json!("waiting"), &json!("tenant=b")), "{found}");
    assert!(job["at"].is_i64() && job["binding"]["of_lane"] == true, "{found}");
    let output = one.tool(TOKEN, &["explain", "billing", "--lane", "tenant=x"]).await;
    assert!(output.code == 0 && output.stdout.contains("no job of the lane `tenant=x` waits"), "{output:?}");
    for replica in [one, other] {
        assert_eq!(replica.paced.stop().await, 0);
    }
}

/// The lines of the log about the downstream, but those about what binds for long.
fn lines(replica: &AdminReplica) -> Vec<String> {
    let is_meant = |line: &String| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["downstream"] == "billing"
            && line["message"] != "the same reason has held jobs back for 10 s"
            && line["message"] != "nothing waits any more"
            // A busy store may be too late for a call.
            && !line["message"].as_str().unwrap().contains("store")
    };
    replica.paced.log().into_iter().filter(is_meant).collect()
}

#[tokio::test]
async fn an_api_that_answers_nothing_but_429_fails_and_its_answer_is_shown_without_harm() {
    let site = Site::shared("status429", "rate = '500/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    site.api.rule(|_| Answer::status(429).body("{\r\n  \"error\": \"\u{1b}[2Jslow down\"\r\n}"));
    site.publish(Job::many("job", 20)).await;
    let state = replica.until("the API fails", |state| !state["failing"].is_null()).await;
    let failing = &state["failing"];
    assert_eq!(
        (failing["kind"].as_str(), &failing["kinds"][0]["kind"]),
        (Some("429"), &json!("429")),
        "{state}"
    );
    assert_eq!(failing["kinds"][0]["count"], failing["attempts"], "{state}");
    let shown = "{\n  \"error\": \"\\u{1b}[2Jslow down\"\n}";
    assert_eq!(state["failures"][0]["response"], shown, "{state}");
    let line = replica.paced.wait_line("the downstream fails, attempt after attempt", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert!(line["kinds"].as_str().unwrap().starts_with("429 ×"), "{line}");
    let table = replica.tool(TOKEN, &["status"]).await.stdout;
    assert!(table.contains("  failing for ") && table.contains(": 429 ×"), "{table}");
    let one = replica.tool(TOKEN, &["status", "billing"]).await.stdout;
    let answer = "\n  response   {\n               \"error\": \"\\u{1b}[2Jslow down\"\n             }\n";
    assert!(one.contains("\n  fails      for ") && one.contains(answer), "{one}");
    site.api.rule(|_| Answer::ok());
    replica.until("the API works", |state| state["failing"].is_null() && state["delivered"] == 20).await;
    assert_eq!(replica.paced.stop().await, 0);
}

#[tokio::test]
async fn an_api_that_is_down_is_reported_in_few_lines_and_named_by_the_state() {
    for answers in [true, false] {
        let mut site = Site::shared(
            "statusdown",
            "rate = '500/s'\n[downstreams.billing.retry]\nmax_attempts = 2\nmin_backoff = '300ms'\nmax_backoff = '300ms'",
        )
        .await;
        // No other program gets this port while nothing listens there.
        let port = free_port();
        site.api = Api::try_start(port).unwrap();
        let replica = AdminReplica::with_token(&site).await;
        let before = lines(&replica).len();
        if answers {
            site.api.rule(|_| Answer::status(500));
        } else {
            let api = std::mem::replace(&mut site.api, Api::start());
            api.end();
        }
        site.publish(Job::many("job", 100)).await;
        let state = replica.until("the API fails", |state| !state["failing"].is_null()).await;
        let kind = if answers { "500".to_owned() } else { format!("connect 127.0.0.1:{port}") };
        assert_eq!(state["failing"]["kind"], kind, "{state}");
        if answers {
            site.depth(&site.dead_queue(), 100, LONG).await;
            site.api.rule(|_| Answer::ok());
            site.publish(Job::many("more", 10)).await;
        } else {
            replica
                .until("it is known as unreachable", |state| state["binding"]["reason"] == "unreachable")
                .await;
            let line = replica.paced.wait_line("the downstream cannot be reached from here", LONG).await;
            assert!(line.contains(&kind), "{line}");
            site.api = poll(LONG, || async { Api::try_start(port).ok() }).await.expect("its port");
        }
        let state = replica.until("the API works", |state| state["failing"].is_null()).await;
        assert!(
            state["failures"].as_array().unwrap().iter().any(|failure| failure["kind"] == kind),
            "{state}"
        );
        replica.paced.wait_line("the downstream works again", LONG).await;
        let lines = &lines(&replica)[before..];
        assert!(lines.len() <= 5, "{lines:#?}");
        let fails = lines.iter().any(|line| line.contains("the downstream fails, attempt after attempt"));
        assert!(fails, "{lines:#?}");
        assert!(lines.last().unwrap().contains("the downstream works again"), "{lines:#?}");
        assert_eq!(replica.paced.stop().await, 0);
        assert!(publish::depth(&site.amqp, &site.queue()).await.is_some());
    }
}

#[tokio::test]
async fn settled_jobs_are_logged_one_by_one_for_those_who_ask() {
    let site = Site::shared("statusjobs", "rate = '100/s'").await;
    site.api.rule(|arrival| if arrival.id() == "bad" { Answer::status(404) } else { Answer::ok() });
    for asks in [true, false] {
        let args: &[&str] = if asks { &["--log-jobs"] } else { &[] };
        let replica = Paced::start(&site.config(), args, &[]).await;
        replica.wait_ready().await;
        let stem = format!("good-{asks}");
        site.publish(Job::many(&stem, 2)).await;
        site.publish(vec![Job::new("bad")]).await;
        site.depth(&site.dead_queue(), if asks { 1 } else { 2 }, LONG).await;
        assert_eq!(replica.stop().await, 0);
        let lines: Vec<Value> =
            replica.log().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let jobs: Vec<&Value> = lines.iter().filter(|line| line["target"] == "paced::jobs").collect();
        assert_eq!(jobs.len(), if asks { 3 } else { 0 }, "{jobs:?}");
        let dead = lines.iter().find(|line| line["message"] == "dead-lettered").unwrap();
        assert_eq!(dead["id"], "bad", "{dead}");
        if asks {
            let bad = jobs.iter().find(|line| line["id"] == "bad").unwrap();
            assert_eq!(
                (&bad["outcome"], &bad["reason"], &bad["status"]),
                (&"dead".into(), &"status".into(), &404.into())
            );
            let good = jobs.iter().find(|line| line["id"] == "good-true-0").unwrap();
            assert_eq!((&good["outcome"], &good["attempts"]), (&"delivered".into(), &1.into()));
            assert!(good["waited"].is_string() && good["late"].is_string(), "{good}");
        }
    }
}
