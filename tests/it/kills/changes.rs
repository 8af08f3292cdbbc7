//! A change by the admin API that is cut off at one of its steps: it is not made, or the log has it.
//!
//! At a step the daemon is killed, or the answer to the request that makes the change is lost.

use std::path::Path;

use hyper::Method;
use paced::store::Status;
use paced::{RedisStore, Store as _};
use serde_json::Value;

use crate::admin::api::{AdminReplica, TOKEN};
use crate::admin::terms::store;
use crate::support::client::Client;

use super::*;

/// Part of the configuration of each site: what is set for one tenant needs lanes.
const LANES: &str = "lanes.by = { tenant = 'header:paced-lane' }";
/// A body with nothing but a reason.
const WHY: &str = r#"{"reason": "why"}"#;
const SET_RATE: &str = r#"{"rate": "7/s", "reason": "why"}"#;
const OF_ACME: &str = r#"{"value": "acme", "reason": "why"}"#;
const SET_WEIGHT: &str = r#"{"value": "acme", "weight": 5, "reason": "why"}"#;
const ALL_LETTERS: &str = r#"{"all": true, "audit": "why"}"#;
/// How many dead letters there are before a change of them.
const LETTERS: u32 = 3;

/// How much of a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    /// Some letters are replayed or removed, or the last one is published and still a letter.
    Partial,
    Whole,
}

/// A point at which the daemon is killed, and how much of the change is made by then.
type Step = (&'static str, Effect);

/// A change by the API.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// The method, and the path below that of the downstream.
    request: &'static str,
    body: &'static str,
    /// The request and the body of another change, without which this one would change nothing.
    after: Option<(&'static str, &'static str)>,
    /// The points between its beginning and its end.
    steps: &'static [Step],
}

impl Case {
    const fn new(request: &'static str, body: &'static str) -> Self {
        Self { request, body, after: None, steps: &[] }
    }

    const fn after(self, request: &'static str, body: &'static str) -> Self {
        Self { after: Some((request, body)), ..self }
    }

    const fn steps(self, steps: &'static [Step]) -> Self {
        Self { steps, ..self }
    }

    fn is_of_letters(&self) -> bool {
        self.request.contains("/dead/")
    }

    /// All points at which the daemon is killed.
    fn all_steps(&self) -> impl Iterator<Item = Step> {
        // The change before it passes the same points.
        let [begun, made] = match self.after {
            Some(_) => ["change:begun=2", "change:made=2"],
            None => ["change:begun", "change:made"],
        };
        [(begun, Effect::None), (made, Effect::Whole)].into_iter().chain(self.steps.iter().copied())
    }
}

/// Each request of the API that changes something.
static CASES: [Case; 14] = [
    Case::new("POST /pause", WHY),
    Case::new("POST /resume", WHY).after("POST /pause", WHY),
    Case::new("POST /reset", WHY),
    Case::new("POST /cancel", r#"{"ids": ["a"], "reason": "why"}"#).steps(&[("cancel:kept", Effect::Whole)]),
    Case::new("PUT /rate", SET_RATE),
    Case::new("DELETE /rate", WHY).after("PUT /rate", SET_RATE),
    Case::new("PUT /values", SET_WEIGHT),
    Case::new("DELETE /values", OF_ACME).after("PUT /values", SET_WEIGHT),
    Case::new("POST /values/pause", OF_ACME),
    Case::new("POST /values/resume", OF_ACME).after("POST /values/pause", OF_ACME),
    Case::new("POST /terms/force", WHY),
    Case::new("POST /terms/drop", WHY).after("PUT /rate", SET_RATE),
    Case::new("POST /dead/replay", ALL_LETTERS).steps(&[
        ("replay:publish", Effect::None),
        ("replay:confirmed", Effect::Partial),
        ("letter:removed", Effect::Partial),
    ]),
    Case::new("POST /dead/purge", ALL_LETTERS).steps(&[
        ("purge:remove", Effect::None),
        ("purge:remove=2", Effect::Partial),
        ("letter:removed", Effect::Partial),
    ]),
];

/// What a change may concern, as the servers have it.
#[derive(Debug, PartialEq, Eq)]
struct State {
    status: Status,
    terms: Option<String>,
    letters: Option<u32>,
}

impl State {
    async fn of(site: &Site, store: &RedisStore) -> Self {
        let record = store.read_record("billing").await.unwrap();
        let letters = publish::depth(&site.amqp, &site.dead_queue()).await;
        Self { status: record.status, terms: record.terms, letters }
    }
}

/// The configuration of a replica of the site.
fn config(site: &Site) -> String {
    format!("[admin]\nlisten = '127.0.0.1:0'\ntoken = '{TOKEN}'\n{}", site.config())
}

/// Sends a change to a replica. Returns the status and the text of the answer, if there is one.
async fn send(replica: &Paced, (request, body): (&str, &'static str)) -> Option<(u16, String)> {
    let line = replica.wait_line("probes and metrics are served", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let (method, path) = request.split_once(' ').unwrap();
    let url = format!("http://{}/api/v1/downstreams/billing{path}", line["address"].as_str().unwrap());
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let method: Method = method.parse().unwrap();
    Client::new().send(method, &url, &headers, body).await.ok().map(|reply| (reply.status, reply.text))
}

/// Makes the change before the one of the case, and letters if it is one of letters. Returns the state after that.
async fn prepare(site: &Site, store: &RedisStore, replica: &Paced, case: &Case) -> State {
    // A replica that is ready may be about to write its terms.
    until("terms in the store", LONG, async || store.read_record("billing").await.unwrap().terms.is_some())
        .await;
    if case.is_of_letters() {
        publish::publish_to(&site.amqp, "", &site.dead_queue(), Job::many("dead", LETTERS as usize)).await;
        site.depth(&site.dead_queue(), LETTERS, LONG).await;
    }
    if let Some(before) = case.after {
        let answer = send(replica, before).await;
        assert!(answer.as_ref().is_some_and(|(status, _)| *status == 200), "{case:?}: {answer:?}");
    }
    State::of(site, store).await
}

/// The lines about changes in the log of a replica.
fn lines(replica: &Paced) -> Vec<Value> {
    let lines = replica.log().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    lines.filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with("admin: "))).collect()
}

/// A request that changes something is a row of the table in docs/operations.md: a test of the daemon compares that table with its
/// routes.
#[test]
fn each_request_that_changes_something_is_cut_off() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let requests = docs.lines().filter_map(|line| line.strip_prefix("| `")?.split("` |").next());
    let changes: BTreeSet<String> = requests
        .filter(|request| request.contains(" /api/") && !request.starts_with("GET "))
        .map(|request| request.replace("/api/v1/downstreams/NAME", ""))
        .collect();
    assert_eq!(changes, CASES.iter().map(|case| case.request.to_owned()).collect());
}

#[tokio::test]
async fn a_kill_in_a_change_leaves_it_unmade_or_in_the_log() {
    let scenes =
        CASES.iter().flat_map(|case| case.all_steps().map(move |(point, effect)| (point, (case, effect))));
    each(&[Window::One], &scenes.collect::<Vec<_>>(), async |kill, (case, effect)| {
        let site = kill.site("killchange", LANES).await;
        let (store, replica) = (store(&site).await, kill.replica(&config(&site)).await);
        let before = prepare(&site, &store, &replica, case).await;
        assert_eq!(send(&replica, (case.request, case.body)).await, None, "{kill:?}: {case:?}");
        kill.wait_exit(&replica).await;
        let is_as_before = async || State::of(&site, &store).await == before;
        match effect {
            // The broker gives letters back once it knows of the end.
            Effect::None => until("the state before", LONG, is_as_before).await,
            // One letter is removed at most, and the broker may not know yet that it is.
            Effect::Partial => {
                let left = async || State::of(&site, &store).await.letters;
                until("most of the letters", LONG, async || {
                    left().await.is_some_and(|left| left >= LETTERS - 1)
                })
                .await;
            }
            Effect::Whole => assert!(!is_as_before().await, "{kill:?}: {case:?}"),
        }
        let log = lines(&replica);
        let line = log.last().unwrap();
        assert_eq!(
            (&line["message"], &line["reason"]),
            (&"admin: changing".into(), &"why".into()),
            "{log:?}"
        );
        assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        // The change before it has an end.
        assert_eq!(log.len(), if case.after.is_some() { 3 } else { 1 }, "{log:?}");
    })
    .await;
}

/// The change is made, and the daemon cannot know that.
#[tokio::test]
async fn a_change_whose_answer_is_lost_is_logged_as_unknown() {
    let (letters, others): (Vec<&Case>, Vec<&Case>) = CASES.iter().partition(|case| case.is_of_letters());
    // Letters that are given back come late: those of another change must not count.
    let sites = letters.into_iter().map(|case| vec![case]).chain([others]);
    stream::iter(sites.map(lose_answers)).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

async fn lose_answers(cases: Vec<&Case>) {
    let site = Site::shared("loseanswer", &format!("rate = '100/s'\n{LANES}")).await;
    let folder = tempfile::TempDir::new().unwrap();
    let lose = folder.path().join("lose");
    let envs = [("PACED_TEST_LOSE", lose.to_str().unwrap())];
    let (store, replica) = (store(&site).await, AdminReplica::with_envs(&config(&site), &envs).await);
    for case in &cases {
        let before = prepare(&site, &store, &replica.paced, case).await;
        lose_answer(&replica, case, &lose).await;
        if case.is_of_letters() {
            // It ends at the first letter; the broker gets back the others that it held.
            site.depth(&site.dead_queue(), LETTERS - 1, LONG).await;
        } else {
            assert_ne!(State::of(&site, &store).await, before, "{case:?}");
        }
    }
    are_logged_as_unknown(&replica, cases.len()).await;
}

/// The same where the store is a file.
#[tokio::test]
async fn a_change_in_a_file_whose_answer_is_lost_is_logged_as_unknown() {
    let mut site = Site::shared("losefile", &format!("rate = '100/s'\n{LANES}")).await;
    let folder = tempfile::TempDir::new().unwrap();
    let (lose, state) = (folder.path().join("lose"), folder.path().join("state"));
    site.store = format!("file:{}", state.display());
    let envs = [("PACED_TEST_LOSE", lose.to_str().unwrap())];
    let replica = AdminReplica::with_envs(&config(&site), &envs).await;
    let cases: Vec<&Case> = CASES.iter().filter(|case| !case.is_of_letters()).collect();
    for case in &cases {
        if let Some(before) = case.after {
            let answer = send(&replica.paced, before).await;
            assert!(answer.as_ref().is_some_and(|(status, _)| *status == 200), "{case:?}: {answer:?}");
        }
        lose_answer(&replica, case, &lose).await;
    }
    are_logged_as_unknown(&replica, cases.len()).await;
}

/// Sends the change, and loses the answer to what it does.
async fn lose_answer(replica: &AdminReplica, case: &Case, lose: &Path) {
    std::fs::write(lose, "").unwrap();
    let (status, text) = send(&replica.paced, (case.request, case.body)).await.unwrap();
    std::fs::remove_file(lose).unwrap();
    assert!(
        status == 503 && text.contains("it may have been changed: check whether it was"),
        "{case:?}: {text}"
    );
}

async fn are_logged_as_unknown(replica: &AdminReplica, changes: usize) {
    let unknown = replica.audit("admin: unknown whether changed", changes).await;
    assert!(unknown.iter().all(|line| line["reason"] == "why" && line["by"] == "127.0.0.1"), "{unknown:?}");
    assert_eq!(replica.paced.stop().await, 0);
}
