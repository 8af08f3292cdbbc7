//! The JSON of the API as text, against `wire.txt`: names, order, nulls, absent fields and numbers.
//!
//! `PACED_WRITE_SNAPSHOTS=1` writes the file anew. Clients depend on it: a change of it is a change of the API.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

/// The file, and the requests whose answers it has.
const FILE: &str = "src/admin/api/tests/wire.txt";
const BILLING: &str = "/api/v1/downstreams/billing";
const REQUESTS: [(&str, &str, &str); 58] = [
    ("GET", "", ""),
    ("GET", "/rate", ""),
    ("PUT", "/rate", r#"{"rate": "20/s", "for": "2h", "reason": "trial"}"#),
    ("PUT", "/rate", r#"{"rate": "1000 per 5 minutes", "limit": "plan.pro.gcra-0"}"#),
    ("GET", "", ""),
    ("GET", "/rate", ""),
    ("DELETE", "/rate", r#"{"limit": "plan.pro.gcra-0", "reason": "it is over"}"#),
    ("POST", "/pause", r#"{"for": "10m", "reason": "they \"asked\""}"#),
    ("POST", "/pause", ""),
    ("GET", "", ""),
    ("POST", "/resume", r#"{"reason": null}"#),
    ("POST", "/reset", r#"{"limit": "plan.pro.gcra-0"}"#),
    ("POST", "/reset", "{}"),
    ("POST", "/cancel", r#"{"ids": ["a", "b"], "for": "1h", "reason": "they asked"}"#),
    ("POST", "/cancel", r#"{"ids": ["a", "x"], "undo": true}"#),
    ("GET", "/changes", ""),
    ("GET", "/terms", ""),
    ("POST", "/terms/force", r#"{"reason": "back"}"#),
    ("POST", "/terms/drop", "{}"),
    ("PUT", "/values", r#"{"value": "acme", "weight": 5, "for": "2h", "reason": "trial"}"#),
    ("POST", "/values/pause", r#"{"value": "acme"}"#),
    ("POST", "/values/resume", r#"{"value": "acme", "reason": "they paid"}"#),
    ("DELETE", "/values", r#"{"value": "acme"}"#),
    // What is refused.
    ("GET", "/../other", ""),
    ("GET", "/../other/status", ""),
    ("POST", "/rate", ""),
    ("GET", "/nothing", ""),
    ("PUT", "/rate", ""),
    ("PUT", "/rate", "{"),
    ("PUT", "/rate", "[]"),
    ("PUT", "/rate", "null"),
    ("PUT", "/rate", r#"{"rate": 20}"#),
    ("PUT", "/rate", r#"{"rate": "fast"}"#),
    ("PUT", "/rate", r#"{"rate": "fast", "for": 5}"#),
    ("PUT", "/rate", r#"{"rate": "fast", "for": "5"}"#),
    ("PUT", "/rate", r#"{"rate": "20/s", "for": "5 min", "reason": "a\nb"}"#),
    ("PUT", "/rate", r#"{"rate": "20/s", "reason": "a\nb"}"#),
    ("PUT", "/rate", r#"{"rate": "20/s", "rate": "30/s"}"#),
    ("PUT", "/rate", r#"{"rate": "20/s", "until": 5}"#),
    ("PUT", "/rate", r#"{"rate": "20/s", "limit": "x"}"#),
    ("DELETE", "/rate", r#"{"rate": "20/s"}"#),
    ("PUT", "/values", r#"{"value": "acme", "weight": 0}"#),
    ("POST", "/pause", r#"{"for": "0s"}"#),
    ("POST", "/pause", r#"{"for": "10 min"}"#),
    ("POST", "/pause", r#"{"for": 10}"#),
    ("POST", "/pause", r#"{"until": 10}"#),
    ("POST", "/resume", r#"{"for": "1s"}"#),
    ("POST", "/reset", r#"{"limits": []}"#),
    ("POST", "/cancel", ""),
    ("POST", "/cancel", r#"{"ids": []}"#),
    ("POST", "/cancel", r#"{"ids": [1]}"#),
    ("POST", "/cancel", r#"{"ids": ["a"], "undo": 1}"#),
    ("POST", "/cancel", r#"{"ids": ["a"], "for": "1s", "undo": true}"#),
    ("POST", "/cancel", r#"{"ids": ["a"], "for": "1", "undo": true}"#),
    ("POST", "/dead/replay", r#"{"rate": "fast", "all": true}"#),
    ("POST", "/dead/purge", r#"{"rate": "1/s", "all": true}"#),
    ("POST", "/dead/purge", r#"{"reason": null}"#),
    ("POST", "/dead/purge", r#"{"state": 5, "limit": "x"}"#),
];

/// The requests whose answers need a broker or a running dispatcher: `it::admin` checks those.
const ELSEWHERE: [&str; 10] = [
    "GET /api/v1/downstreams",
    "GET /api/v1/downstreams/{name}/dead",
    "GET /api/v1/downstreams/{name}/dead/letter",
    "GET /api/v1/downstreams/{name}/job",
    "GET /api/v1/downstreams/{name}/status",
    "GET /api/v1/events",
    "GET /api/v1/history",
    "GET /api/v1/status",
    "POST /api/v1/downstreams/{name}/dead/purge",
    "POST /api/v1/downstreams/{name}/dead/replay",
];

/// A downstream with the limits of another replica's file in force, under other limits of its own.
async fn bench() -> Bench {
    let bench = Bench::new();
    let stored = terms("50/s").put_in_force(None, Micros(NOW - 5_000_000), &replica("x"));
    bench.store.update_record("billing", Change::Terms { of: 0, text: &stored.to_text() }).await.unwrap();
    bench.own.send_replace(Arc::new([("billing".to_owned(), terms("70/s"))].into()));
    bench.clock.set(Micros(NOW + 1_000_000));
    bench
}

/// The text of an answer, with fixed names for this replica and its machine.
async fn answer(bench: &Bench, (method, path, body): (&str, &str, &str)) -> String {
    let path = match path.strip_prefix("/..") {
        Some(path) => format!("/api/v1/downstreams{path}"),
        None => format!("{BILLING}{path}"),
    };
    let (status, _, text) = bench.send_text(method, &path, body).await;
    let this = Replica::of_this_process();
    let text = text.replace(&this.id, "0000me00").replace(&format!("\"{}\"", this.host), "\"here\"");
    // The same within a text of terms.
    let text = text.replace(&format!("\\\"{}\\\"", this.host), "\\\"here\\\"");
    format!("{method} {path} {body}\n{status} {text}")
}

#[tokio::test]
async fn answers_are_the_same_texts() {
    let (bench, untouched) = (bench().await, Bench::new());
    let mut found = answer(&untouched, ("GET", "", "")).await;
    for request in REQUESTS {
        let _ = write!(found, "\n{}", answer(&bench, request).await);
    }
    // The terms of a newer version, and a pause that the API asked for.
    let text = terms("50/s").to_text().replace("\"version\":1", "\"version\":9");
    untouched.store.update_record("billing", Change::Terms { of: 0, text: &text }).await.unwrap();
    let penalty = Change::Penalize(std::time::Duration::from_secs(3));
    untouched.store.update_record("billing", penalty).await.unwrap();
    for method in ["GET", "PUT"] {
        let (what, body) = if method == "GET" { ("", "") } else { ("/rate", r#"{"rate": "7/s"}"#) };
        let _ = write!(found, "\n{}", answer(&untouched, (method, what, body)).await);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("PACED_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(&file, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap();
    for (found, expected) in found.split("\n\n").zip(expected.split("\n\n")) {
        assert_eq!(found, expected);
    }
    assert_eq!(found, expected);
}

#[tokio::test]
async fn each_request_has_an_answer_in_the_file() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap();
    let answered = |request: &str| {
        let request = request.replace("{name}", "billing");
        let is_meant = |block: &&str| block.starts_with(&format!("{request} "));
        text.split("\n\n").filter(is_meant).any(|block| block.lines().any(|line| line.starts_with("200 ")))
    };
    let requests = api(in_memory()).into_iter().map(|route| format!("{} {}", route.method, route.path));
    let mut missing: Vec<String> = requests.filter(|request| !answered(request)).collect();
    missing.sort_unstable();
    assert_eq!(missing, ELSEWHERE);
}
