//! `paced explain`: where a job is, and what it waits for.

use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::cancel::later;
use super::*;

impl AdminReplica {
    /// What this replica knows of the jobs with an id.
    async fn find(&self, id: &str) -> Value {
        let (status, answer) = self.send(Method::GET, &format!("/job?id={id}"), &[], "").await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Waits until the first job with this id is in this place here, and returns what is known.
    async fn until_in(&self, place: &str, id: &str) -> Value {
        let mut last = Value::Null;
        until(&format!("{id} is {place}"), LONG, async || {
            last = self.find(id).await;
            last["jobs"][0]["place"] == place
        })
        .await;
        last
    }
}

#[tokio::test]
async fn a_job_is_found_where_it_waits_and_where_it_is_parked() {
    let site = Site::shared("find", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    assert_eq!(replica.tool(TOKEN, &["pause", "billing", "--reason", "a test"]).await.code, 0);
    site.publish(Job::many("job", 4)).await;
    let [soon, hour] = [50, 3600].map(Duration::from_secs);
    site.publish(vec![later("soon/1", soon), later("parked", hour)]).await;
    let mut waiting = Value::Null;
    let held_back = |answer: &Value| {
        let text = answer["text"][1].as_str().unwrap_or_default();
        text.starts_with("what holds it back: paused by ") && text.ends_with("a test")
    };
    until("the job waits behind the pause", LONG, async || {
        waiting = replica.find("job-3").await;
        held_back(&waiting)
    })
    .await;
    // In a pause nobody knows when it goes.
    let job = &waiting["jobs"][0];
    assert_eq!((&job["place"], &job["id"], &job["at"]), (&json!("waiting"), &json!("job-3"), &Value::Null));
    assert_eq!((&job["turn"]["ahead"], &job["binding"]["reason"]), (&json!(3), &json!("paused")), "{job}");
    assert_eq!((&waiting["parked"], &waiting["cancelled"]), (&Value::Null, &json!(false)), "{waiting}");

    let soon = replica.until_in("delayed", "soon%2F1").await;
    let wait = soon["jobs"][0]["at"].as_i64().unwrap() - soon["now"].as_i64().unwrap();
    assert!(wait < 51_000 && soon["id"] == "soon/1", "{soon}");
    let output = replica.tool(TOKEN, &["explain", "billing", "soon/1"]).await;
    let expected = format!("billing: replica {} holds it until ", soon["replica"].as_str().unwrap());
    assert!(output.code == 0 && output.stdout.starts_with(&expected), "{output:?}");

    let mut parked = Value::Null;
    until("the job is parked", LONG, async || {
        parked = replica.find("parked").await;
        !parked["parked"].is_null()
    })
    .await;
    assert_eq!(
        (&parked["jobs"], &parked["parked"]["reason"]),
        (&json!([]), &json!("not-before")),
        "{parked}"
    );
    let wait = parked["parked"]["until"].as_i64().unwrap() - parked["now"].as_i64().unwrap();
    assert!((1..=3_600_000).contains(&wait), "{parked}");

    assert_eq!(replica.tool(TOKEN, &["cancel", "billing", "job-3"]).await.code, 0);
    let mut cancelled = Value::Null;
    until("the job is settled", LONG, async || {
        cancelled = replica.find("job-3").await;
        cancelled["jobs"] == json!([])
    })
    .await;
    assert_eq!(cancelled["cancelled"], true, "{cancelled}");

    let output = replica.tool(TOKEN, &["-o", "json", "explain", "billing", "nobody"]).await;
    let answer: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(
        (output.code, &answer["jobs"], &answer["cancelled"]),
        (0, &json!([]), &json!(false)),
        "{answer}"
    );
    assert!(answer["text"][0].as_str().unwrap().contains("does not hold it"), "{answer}");
    for args in [&["explain", "biling", "a"][..], &["explain", "billing", ""], &["explain", "billing"]] {
        assert_eq!(replica.tool(TOKEN, args).await.code, 2, "{args:?}");
    }
    assert_eq!(replica.paced.stop().await, 0);
}

/// Each of two replicas holds some of the jobs, and finds those of the other one too.
#[tokio::test]
async fn a_replica_asks_the_others_for_the_jobs_that_it_does_not_hold() {
    const JOBS: usize = 20;
    let site = Site::shared("findtwo", "rate = '100/s'\nqueue.prefetch = 10").await;
    let [one, other] = [AdminReplica::with_token(&site).await, AdminReplica::with_token(&site).await];
    assert_eq!(one.tool(TOKEN, &["pause", "billing"]).await.code, 0);
    let mut answer = Value::Null;
    until("each knows the other", LONG, async || {
        answer = one.find("none").await;
        answer["not_asked"].as_array().unwrap().len() == 1
    })
    .await;
    let others = other.find("none").await["replica"].clone();
    assert_eq!(answer["not_asked"][0], others, "{answer}");
    let text: Vec<&str> = answer["text"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(text.iter().any(|line| line.starts_with("these replicas were not asked")), "{answer}");

    site.publish(Job::many("job", JOBS)).await;
    site.depth(&site.queue(), 0, LONG).await;
    let mut elsewhere = None;
    until("the other replica holds one", LONG, async || {
        for n in 0..JOBS {
            let found = other.find(&format!("job-{n}")).await;
            if found["jobs"][0]["place"] == "waiting" {
                elsewhere = Some(n);
            }
        }
        elsewhere.is_some()
    })
    .await;
    let id = format!("job-{}", elsewhere.unwrap());
    assert_eq!(one.find(&id).await["jobs"], json!([]), "it asks nobody unless it is to");
    // A replica that is slow to read the question may answer the next one.
    let mut found = Value::Null;
    until("the other replica answers", LONG, async || {
        found = one.find(&format!("{id}&others=true")).await;
        found["jobs"][0]["replica"] == others
    })
    .await;
    let job = &found["jobs"][0];
    assert_eq!((&job["place"], &found["not_asked"]), (&json!("waiting"), &json!([])), "{found}");
    assert_eq!((&job["id"], &job["binding"]["reason"]), (&json!(id), &json!("paused")), "{found}");
    assert!(job["turn"]["before"].is_u64(), "{found}");
    let output = one.tool(TOKEN, &["explain", "billing", &id]).await;
    let expected = format!("billing: it waits for a slot at replica {}, behind ", others.as_str().unwrap());
    assert!(output.code == 0 && output.stdout.contains(&expected), "{output:?}");
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}
