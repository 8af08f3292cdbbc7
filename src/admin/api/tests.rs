//! The API over a store in memory, without a connection.

use axum::Router;
use axum::body::to_bytes;
use axum::http::HeaderMap;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use paced::amqp;
use paced::config::{Admin, Secret};
use paced::limit::{Limit, LimitSet};
use paced::store::{Change, LONGEST_TOMBSTONE, MemoryStore, Store, TombstoneCall};
use paced::terms::{Replica, Terms};
use paced::time::{ManualClock, Micros};
use serde_json::{Value, json};
use tokio::sync::watch;

mod tasks;
mod wire;

use super::*;
use crate::admin::access::Access;
use crate::admin::connections::{Connection, Connections};
use crate::admin::routes::router;
use crate::status::{Asks, Broker, Dispatchers, Identity, Observer, OwnTerms, Parts};

/// The time in µs, a whole number of ms.
const NOW: i64 = 1_800_000_000_000_000;

struct Bench {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    own: watch::Sender<OwnTerms>,
    pages: Router,
    changes: TaskTracker,
    _connection: Connection,
}

fn terms(rate: &str) -> Terms {
    let limit = Limit::leaky_bucket("leaky-bucket-0", rate.parse().unwrap(), 5).unwrap();
    let plan = Limit::gcra("plan.pro.gcra-0", "5/s".parse().unwrap(), 2).unwrap();
    let plans = [("pro".to_owned(), LimitSet::new(vec![limit.clone(), plan]).unwrap())];
    Terms::new(LimitSet::new(vec![limit]).unwrap(), plans.into(), Some(7))
}

/// A replica on another machine.
fn replica(id: &str) -> Replica {
    Replica { id: id.to_owned(), host: "api-7".to_owned() }
}

/// A handle on an observer of a daemon without dispatchers.
fn watching(store: Arc<dyn Store>, terms: watch::Receiver<OwnTerms>) -> Watch {
    let parts = Parts {
        identity: Identity { id: "me".to_owned(), ..Identity::default() },
        dispatchers: Dispatchers::default(),
        broker: Broker {
            status: paced::amqp::Status::default(),
            depths: paced::amqp::Depths::default(),
            prefix: "paced".to_owned(),
        },
        store,
        store_kind: "memory",
        terms,
        can_change: Arc::default(),
        asks: Asks::default(),
    };
    Observer::start(parts).watch()
}

/// The API over this store, without a broker.
fn of_store(store: Arc<dyn Store>, own: watch::Receiver<OwnTerms>) -> Api {
    let watch = watching(Arc::clone(&store), own.clone());
    let options = amqp::Options {
        address: "amqp://127.0.0.1:1".parse().unwrap(),
        prefix: "paced".to_owned(),
        declare: false,
        window_bytes: 0,
        rung_unit: amqp::RUNG_UNIT,
        haste: 1,
        downstreams: Vec::new(),
    };
    let letters = Letters::new(watch::channel(Arc::new(options)).1);
    Api::new(Operations::new(store, own), watch, letters, Dispatchers::default())
}

/// The API of a downstream `billing` over a store in memory. Must be called on a tokio runtime.
pub(in crate::admin) fn in_memory() -> Api {
    let all = Arc::new([("billing".to_owned(), terms("50/s"))].into());
    of_store(Arc::new(MemoryStore::new()), watch::channel(all).1)
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Micros(NOW)));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        let all = Arc::new([("billing".to_owned(), terms("50/s"))].into());
        let (own, receiver) = watch::channel(all);
        let access = Access::new(&Admin { token: Some(Secret::hidden("token")), ..Admin::default() });
        let operations = of_store(Arc::clone(&store), receiver);
        let changes = operations.changes();
        let pages = router(api(operations), &Arc::new(access));
        let connection = Connections::default().open("127.0.0.1:1".parse().unwrap()).unwrap();
        let pages = pages.layer(Extension(connection.peer.clone()));
        Self { store, clock, own, pages, changes, _connection: connection }
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> (u16, HeaderMap, Value) {
        let (status, headers, text) = self.send_text(method, path, body).await;
        (status, headers, serde_json::from_str(&text).unwrap_or_default())
    }

    async fn send_text(&self, method: &str, path: &str, body: &str) -> (u16, HeaderMap, String) {
        let request = axum::http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("authorization", "Bearer token")
            .header("content-type", "application/json")
            .body(Body::from(body.to_owned()))
            .unwrap();
        let (head, body) =
            TowerToHyperService::new(self.pages.clone()).call(request).await.unwrap().into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (head.status.as_u16(), head.headers, String::from_utf8(body.into()).unwrap())
    }

    /// Sends a request below the downstream's path; the status must be 200.
    async fn ok(&self, method: &str, what: &str, body: &str) -> Value {
        let path = format!("/api/v1/downstreams/billing{what}");
        let (status, headers, body) = self.send(method, &path, body).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["cache-control"], "no-store");
        body
    }

    async fn wrong(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (status, _, body) = self.send(method, path, body).await;
        (status, body["error"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned())
    }
}

#[tokio::test]
async fn a_downstream_is_shown_as_its_file_has_it_until_the_store_has_terms() {
    let bench = Bench::new();
    let file = bench.ok("GET", "", "").await;
    assert_eq!(
        file,
        json!({
            "name": "billing",
            "now": NOW / 1000,
            "replica": Replica::of_this_process().id,
            "generation": 0,
            "file": null,
            "own_limits": null,
            "revision": 7,
            "paused": false,
            "pause": null,
            "penalty": null,
            "limits": [{ "name": "leaky-bucket-0", "algorithm": "leaky-bucket", "rate": "50/s", "burst": 5 }],
            "plans": { "pro": [{ "name": "plan.pro.gcra-0", "algorithm": "gcra", "rate": "5/s", "burst": 2 }] },
            "overrides": [],
        })
    );
    // The observer has not read its record, and nothing else is asked for a list.
    let (status, headers, answer) = bench.send("GET", "/api/v1/downstreams", "").await;
    assert_eq!((status, &headers["retry-after"]), (503, &"1".parse().unwrap()), "{answer}");
    bench.own.send_replace(Arc::new([("billing".to_owned(), terms("70/s"))].into()));
    assert_eq!(bench.ok("GET", "", "").await["limits"][0]["rate"], "70/s", "reloaded");
    let stored = terms("20/s").to_text();
    bench.store.update_record("billing", Change::Terms { of: 0, text: &stored }).await.unwrap();
    let answer = bench.ok("GET", "", "").await;
    assert_eq!((&answer["limits"][0]["rate"], &answer["generation"]), (&json!("20/s"), &json!(1)));
    let own = json!([
        { "name": "leaky-bucket-0", "algorithm": "leaky-bucket", "rate": "70/s", "burst": 5 },
        { "name": "plan.pro.gcra-0", "algorithm": "gcra", "rate": "5/s", "burst": 2 },
    ]);
    assert_eq!(answer["own_limits"], own, "the file of this replica says otherwise");
}

#[tokio::test]
async fn limits_are_shown_with_their_origin_and_since_when() {
    let bench = Bench::new();
    let (loader, other) = (replica("x"), Replica::of_this_process());
    let stored = terms("50/s").put_in_force(None, Micros(NOW - 5_000_000), &loader);
    bench.store.update_record("billing", Change::Terms { of: 0, text: &stored.to_text() }).await.unwrap();
    let answer = bench.ok("GET", "/rate", "").await;
    let at = NOW / 1000;
    assert_eq!(answer["file"], json!({ "replica": "x", "host": "api-7", "since": at - 5_000 }));
    let from = json!({ "replica": "x", "host": "api-7" });
    assert_eq!((&answer["limits"][0]["since"], &answer["limits"][0]["from"]), (&json!(at - 5_000), &from));
    let answer = bench.ok("PUT", "/rate", r#"{"rate": "20/s", "for": "1h"}"#).await;
    let here = json!({ "replica": other.id, "host": other.host });
    assert_eq!((&answer["limits"][0]["since"], &answer["limits"][0]["from"]), (&json!(at), &here));
    assert_eq!(
        (&answer["plans"]["pro"][0]["since"], &answer["plans"]["pro"][0]["from"]),
        (&json!(at - 5_000), &from)
    );
    assert_eq!(answer["file"]["replica"], "x", "the file is the same");
    bench.clock.set(Micros(NOW + 7_200_000_000));
    let answer = bench.ok("GET", "/rate", "").await;
    assert_eq!(answer["limits"][0]["since"], at + 3_600_000, "since the rate has ended");
}

#[tokio::test]
async fn pauses_begin_and_end() {
    let bench = Bench::new();
    let answer = bench.ok("POST", "/pause", r#"{"for": "10m", "reason": "they asked"}"#).await;
    let at = NOW / 1000;
    let pause = json!({ "until": at + 600_000, "by": "127.0.0.1", "reason": "they asked", "at": at });
    assert_eq!((&answer["paused"], &answer["pause"]), (&json!(true), &pause));
    bench.clock.set(Micros(NOW + 5_000_000));
    let pause = json!({ "until": null, "by": "127.0.0.1", "reason": null, "at": at + 5_000 });
    assert_eq!(bench.ok("POST", "/pause", "").await["pause"], pause);
    assert_eq!(bench.ok("GET", "", "").await["pause"], pause);
    // Notes of another form.
    for note in ["", "no JSON", "[]", r#"{"by": 7}"#] {
        bench.store.update_record("billing", Change::Pause { span: None, note }).await.unwrap();
        let answer = bench.ok("GET", "", "").await;
        assert_eq!(
            (&answer["pause"]["by"], &answer["pause"]["reason"]),
            (&Value::Null, &Value::Null),
            "{note}"
        );
    }
    assert_eq!(bench.ok("GET", "", "").await["pause"]["at"], at + 5_000);
    bench.clock.set(Micros(NOW));
    assert_eq!(bench.ok("GET", "", "").await["pause"]["at"], Value::Null, "the clock has stepped back");
    let answer = bench.ok("POST", "/resume", "{}").await;
    assert_eq!((&answer["paused"], &answer["pause"]), (&json!(false), &Value::Null));

    bench.store.update_record("billing", Change::Penalize(std::time::Duration::from_secs(3))).await.unwrap();
    let answer = bench.ok("GET", "", "").await;
    assert_eq!(
        (&answer["paused"], &answer["penalty"]),
        (&json!(true), &json!({ "until": NOW / 1000 + 3000 }))
    );
    bench.clock.set(Micros(NOW + 3_000_000));
    assert_eq!(bench.ok("GET", "", "").await["penalty"], Value::Null, "it is over");
}

#[tokio::test]
async fn rates_are_set_for_a_while_and_unset() {
    let bench = Bench::new();
    let answer = bench.ok("PUT", "/rate", r#"{"rate": "20/s", "for": "2h", "reason": "trial"}"#).await;
    let this = Replica::of_this_process();
    assert_eq!(
        answer["limits"][0],
        json!({
            "name": "leaky-bucket-0", "algorithm": "leaky-bucket", "rate": "20/s", "burst": 5,
            "file_rate": "50/s", "since": NOW / 1000, "from": { "replica": this.id, "host": this.host },
        })
    );
    let until = NOW / 1000 + 7_200_000;
    let set = json!({
        "limit": "leaky-bucket-0", "rate": "20/s", "until": until, "reason": "trial", "by": "127.0.0.1",
        "set_at": NOW / 1000, "idle": false
    });
    assert_eq!((&answer["overrides"], &answer["generation"]), (&json!([set]), &json!(1)));
    let answer = bench.ok("PUT", "/rate", r#"{"rate": "9/s", "limit": "plan.pro.gcra-0"}"#).await;
    assert_eq!(answer["plans"]["pro"][0]["rate"], "9/s");
    assert_eq!(bench.ok("GET", "/rate", "").await["overrides"][1]["until"], Value::Null);

    bench.clock.set(Micros(NOW + 7_200_000_000));
    let answer = bench.ok("GET", "/rate", "").await;
    assert_eq!(
        (&answer["limits"][0]["rate"], answer["overrides"].as_array().unwrap().len()),
        (&json!("50/s"), 1)
    );
    let answer = bench.ok("DELETE", "/rate", r#"{"limit": "plan.pro.gcra-0"}"#).await;
    assert_eq!((&answer["overrides"], &answer["generation"]), (&json!([]), &json!(3)));
    let stored = bench.store.read_record("billing").await.unwrap().terms.unwrap();
    let stored = Terms::parse(&stored).unwrap();
    assert!(
        stored.has_limits_of(&terms("50/s")) && stored.overrides().is_empty(),
        "what is over is gone too"
    );
    let answer = bench.ok("DELETE", "/rate", "").await;
    assert_eq!(answer["generation"], 3, "nothing was set, so nothing changes");
}

#[tokio::test]
async fn counts_begin_at_0_of_one_limit_or_all() {
    let bench = Bench::new();
    let reset = async || bench.store.read_record("billing").await.unwrap().status.reset;
    assert_eq!(reset().await, 0);
    let answer = bench.ok("POST", "/reset", r#"{"limit": "plan.pro.gcra-0", "reason": "trial"}"#).await;
    assert_eq!(answer["reset"], json!(["plan.pro.gcra-0"]));
    let first = reset().await;
    assert!(first > 0);
    let answer = bench.ok("POST", "/reset", "").await;
    assert_eq!(answer["reset"], json!(["leaky-bucket-0", "plan.pro.gcra-0"]));
    assert!(reset().await > first);
}

#[tokio::test]
async fn jobs_are_cancelled_for_a_while_and_not_any_more() {
    let bench = Bench::new();
    let answer = bench.ok("POST", "/cancel", r#"{"ids": ["a", "b"], "reason": "they asked"}"#).await;
    assert_eq!(answer["cancelled"], json!({ "ids": 2, "changed": 2 }));
    let answer = bench.ok("POST", "/cancel", r#"{"ids": ["b", "c"], "for": "1h"}"#).await;
    assert_eq!(answer["cancelled"], json!({ "ids": 2, "changed": 1 }), "one is cancelled for longer already");
    let answer = bench.ok("POST", "/cancel", r#"{"ids": ["a", "x"], "undo": true}"#).await;
    assert_eq!(answer["cancelled"], json!({ "ids": 2, "changed": 1 }), "the other one never was");
    let page = bench.store.tombstones("billing", TombstoneCall::Read { after: 0 }).await.unwrap().page;
    let kept: Vec<(&str, bool)> = page.iter().map(|kept| (&*kept.id, kept.is_undone)).collect();
    assert_eq!(kept, [("b", false), ("c", false), ("a", true)]);
    assert_eq!(page[0].until, Micros(NOW).plus(LONGEST_TOMBSTONE));
    assert_eq!(page[1].until, Micros(NOW).plus(std::time::Duration::from_secs(3600)));
}

#[tokio::test]
async fn two_who_change_the_terms_at_once_both_get_their_way() {
    let bench = Bench::new();
    let set = |rate: u32, limit: &str| format!(r#"{{"rate": "{rate}/s", "limit": "{limit}"}}"#);
    let (one, other) = (set(20, "leaky-bucket-0"), set(9, "plan.pro.gcra-0"));
    tokio::join!(bench.ok("PUT", "/rate", &one), bench.ok("PUT", "/rate", &other));
    let answer = bench.ok("GET", "/rate", "").await;
    assert_eq!((answer["overrides"].as_array().unwrap().len(), &answer["generation"]), (2, &json!(2)));
}

#[tokio::test]
async fn a_wrong_request_is_refused_and_changes_nothing() {
    let bench = Bench::new();
    const RATE: &str = "/api/v1/downstreams/billing/rate";
    const CANCEL: &str = "/api/v1/downstreams/billing/cancel";
    let many = json!({ "ids": vec!["a"; 1001] }).to_string();
    for (method, path, body, status, expected) in [
        ("GET", "/api/v1/downstreams/other", "", 404, "no such downstream; this daemon has billing"),
        ("POST", "/api/v1/downstreams/other/pause", "", 404, "no such downstream"),
        ("PUT", "/api/v1/downstreams/other/rate", r#"{"rate": "1/s"}"#, 404, "no such downstream"),
        ("GET", "/api/v1", "", 404, "see /api/v1/downstreams"),
        ("GET", "/api/v1/downstreams/billing/x", "", 404, "see /api/v1/downstreams"),
        ("POST", RATE, "", 405, "header `allow`"),
        ("GET", "/api/v1/downstreams/billing/pause", "", 405, "header `allow`"),
        ("PUT", RATE, "{", 400, "body: "),
        ("PUT", RATE, r#"{"rate": "fast"}"#, 400, "rate: `fast` is no rate"),
        ("PUT", RATE, r#"{"rate": "7/week"}"#, 400, "write days"),
        (
            "PUT",
            RATE,
            r#"{"rate": "7/s", "limit": "x"}"#,
            400,
            "there are `leaky-bucket-0`, `plan.pro.gcra-0`",
        ),
        ("DELETE", RATE, r#"{"limit": "x"}"#, 400, "no limit is called `x`"),
        (
            "POST",
            "/api/v1/downstreams/billing/reset",
            r#"{"limit": "x"}"#,
            400,
            "there are `leaky-bucket-0`, `plan.pro.gcra-0`",
        ),
        ("POST", "/api/v1/downstreams/other/reset", "", 404, "no such downstream"),
        ("POST", "/api/v1/downstreams/other/cancel", r#"{"ids": ["a"]}"#, 404, "no such downstream"),
        ("POST", CANCEL, r#"{"ids": ["a b"]}"#, 400, "`a b` is no job id"),
        ("POST", CANCEL, r#"{"ids": ["a"], "for": "400d"}"#, 400, "use at most 366d"),
        ("POST", CANCEL, many.as_str(), 400, "1001 ids in one call; at most 1000 fit"),
        ("GET", CANCEL, "", 405, "header `allow`"),
        ("GET", "/api/v1/downstreams/billing/reset", "", 405, "header `allow`"),
    ] {
        let answer = bench.wrong(method, path, body).await;
        assert_eq!(answer.0, status, "{method} {path} {body}: {}", answer.1);
        assert!(answer.1.contains(expected), "{method} {path} {body}: {}", answer.1);
    }
    let (_, headers, _) = bench.send("POST", RATE, "").await;
    assert_eq!(headers["allow"], "GET,HEAD,PUT,DELETE");
    assert_eq!(bench.ok("GET", "", "").await["generation"], 0);

    let text = terms("50/s").to_text().replace("\"version\":1", "\"version\":9");
    bench.store.update_record("billing", Change::Terms { of: 0, text: &text }).await.unwrap();
    let (status, answer) = bench.wrong("PUT", RATE, r#"{"rate": "7/s"}"#).await;
    assert!(status == 409 && answer.contains("run the same version"), "{status} {answer}");
    // Requests that do not need the terms still work.
    let answer = bench.ok("POST", "/pause", "").await;
    assert_eq!(answer["pause"]["until"], Value::Null);
    assert!(answer["error"].as_str().unwrap().contains("run the same version"), "{answer}");
    let kept = bench.store.read_record("billing").await.unwrap();
    assert_eq!(kept.terms, Some(text), "what is not understood is not overwritten");
}
