//! `paced check`: what it warns of, its JSON, and its exit codes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::daemon::{Output, run_cli};
use crate::support::proxy::Proxy;
use crate::support::servers::{Redis, rabbit, redis};
use crate::support::site::Site;
use crate::support::unique;

/// Runs the command on this configuration; its name is `FILE` in what is returned.
async fn run(text: &str, args: &[&str]) -> Output {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, text).unwrap();
    let name = file.to_str().unwrap();
    let mut all = vec!["-c", name];
    all.extend(args);
    let Output { code, stdout, stderr } = run_cli(&all, b"").await;
    Output { code, stdout: stdout.replace(name, "FILE"), stderr: stderr.replace(name, "FILE") }
}

const INEFFECTIVE: &str =
    "[downstreams.a]\nrate = '50/s'\nlimits = [{ rate = '5/s' }]\nhttp.base_url = 'http://127.0.0.1:1/'\n";

#[tokio::test]
async fn warnings_are_one_line_each_and_change_no_exit_code() {
    let output = run(INEFFECTIVE, &["check"]).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", output.stderr);
    assert!(lines[0].starts_with("FILE:2:8: downstreams.a.rate: warning: no effect, since `leaky-bucket-1`"));
    assert!(output.stdout.contains("configuration ok: 1 downstream(s): a"), "{}", output.stdout);
    // Other commands do not repeat them.
    assert_eq!(run(INEFFECTIVE, &["config", "show"]).await.stderr, "");
}

#[tokio::test]
async fn a_forecast_says_when_jobs_would_be_through() {
    const PACE: &str =
        "[downstreams.a]\nrate = '10/s'\nmax_wait = '5s'\nhttp.base_url = 'http://127.0.0.1:1/'\n";
    let at = ["--at", "2030-01-01T00:00:00Z"];
    let json = async |more: &[&str]| {
        let output = run(PACE, &[&["-o", "json", "forecast", "-D", "a"][..], &at, more].concat()).await;
        let found: Value =
            serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{}", output.stderr));
        (output.code, found)
    };
    let start = 1_893_456_000_000_i64;
    let (code, found) = json(&["--count", "100"]).await;
    assert_eq!((code, &found["jobs"], &found["first"]), (0, &json!(51), &json!(start)));
    assert_eq!(found["through_at"], json!(start + 5000));
    assert_eq!((&found["dead"][0]["reason"], &found["dead"][0]["jobs"]), (&json!("queue-full"), &json!(49)));
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("jobs.csv");
    std::fs::write(&file, "No,cost\na,1\n,,\nb,many\nc,2\n").unwrap();
    let (code, found) = json(&[file.to_str().unwrap(), "--csv", "--id", "No"]).await;
    assert_eq!((code, &found["jobs"], &found["bad_lines"]), (1, &json!(2), &json!(1)));
    let file = folder.path().join("jobs.ndjson");
    std::fs::write(&file, "nonsense\n".repeat(300)).unwrap();
    let output = run(PACE, &["forecast", "-D", "a", file.to_str().unwrap()]).await;
    assert_eq!((output.code, output.stderr.lines().count()), (1, 101), "{}", output.stderr);
    let output = run(PACE, &[&["forecast", "-D", "a", "--count", "11"][..], &at].concat()).await;
    let through = "11 job(s): the first at 2030-01-01 00:00:00";
    assert!(output.code == 0 && output.stdout.starts_with(through), "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("leaky-bucket-0 (10/s) binds 10 job(s)"), "{}", output.stdout);
    for (more, problem) in [(&["--count", "0"][..], "0 is not in 1.."), (&[], "FILE")] {
        let output = run(PACE, &[&["forecast", "-D", "a"][..], more].concat()).await;
        assert_eq!(output.code, 2, "{}", output.stderr);
        assert!(output.stderr.contains(problem), "{}", output.stderr);
    }
    let lanes = format!("{PACE}lanes.by = {{ tenant = 'plan' }}\n");
    let output = run(&lanes, &["forecast", "-D", "a", "--count", "1"]).await;
    assert!(output.code == 2 && output.stderr.contains("the downstream has lanes"), "{}", output.stderr);
}

#[tokio::test]
async fn the_check_says_what_jobs_of_lanes_may_cost() {
    let text = "[plans.free]\nlimits = [{ algorithm = 'gcra', rate = '9/s', burst = 3 }]\n[downstreams.a]\nrate = '50/s'\n\
                http.base_url = 'http://127.0.0.1:1/'\nlanes.by = { tenant = 'plan' }\n\
                lanes.limits = [{ algorithm = 'gcra', rate = '9/s', burst = 5 }]\n";
    let output = run(text, &["-o", "json", "check"]).await;
    let found: Value = serde_json::from_str(&output.stdout).unwrap();
    let a = &found["downstreams"]["a"];
    assert_eq!((&a["max_cost"], &a["plans"]), (&json!(5), &json!({ "free": { "max_cost": 3 } })), "{found}");
}

#[tokio::test]
async fn the_check_and_the_configuration_as_json() {
    let output = run(INEFFECTIVE, &["-o", "json", "check"]).await;
    let found: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((output.code, &found["ok"]), (0, &json!(true)));
    assert_eq!(
        found["downstreams"],
        json!({ "a": {
            "max_cost": 300,
            "methods": ["POST", "PUT", "PATCH", "DELETE", "GET", "HEAD"],
            "plans": {},
            "costs": {},
        } })
    );
    assert_eq!((found["warnings"].as_array().unwrap().len(), &found["errors"]), (1, &json!([])));
    assert_eq!(found["files"], json!(["FILE"]));
    assert!(found.get("broker").is_none(), "nobody asked for it");

    let wrong = run(&INEFFECTIVE.replace("'50/s'", "50"), &["-o", "json", "check"]).await;
    let found: Value = serde_json::from_str(&wrong.stdout).unwrap();
    assert_eq!((wrong.code, &found["ok"]), (78, &json!(false)));
    let problem =
        "FILE:2:8: downstreams.a.rate: an integer where a rate belongs; write its unit too, such as \"50/s\"";
    assert_eq!((&found["errors"], wrong.stderr.trim_end()), (&json!([problem]), problem));

    let shown = run(INEFFECTIVE, &["-o", "json", "config", "show"]).await;
    let entries: Vec<Value> = shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| entries.iter().find(|entry| entry["key"] == key).cloned().unwrap();
    assert_eq!(
        of("downstreams.a.rate"),
        json!({ "key": "downstreams.a.rate", "value": "50/s", "source": "FILE:2:8" })
    );
    assert_eq!(
        (&of("downstreams.a.concurrency")["value"], &of("amqp.declare")["value"]),
        (&json!(64), &json!(true))
    );
    assert_eq!(of("downstreams.a.limits")["value"][0]["rate"], "5/s");
}

#[tokio::test]
async fn a_store_that_is_far_or_forgets_is_warned_of() {
    let own = Redis::dedicated().await;
    own.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await.unwrap();
    own.command(&["CONFIG", "SET", "appendonly", "no"]).await.unwrap();
    let proxy = Proxy::start(own.port(), Duration::from_millis(40)).unwrap();
    let mut site =
        Site::shared("far", "limits = [{ algorithm = 'quota', rate = '1000/day' }]\nhorizon = '20ms'").await;
    site.store = format!("redis://127.0.0.1:{}", proxy.port());
    let checked = site.cli(&["-o", "json", "check", "--online"]).await;
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    let found: Value = serde_json::from_str(&checked.stdout).unwrap();
    let warnings: Vec<&str> =
        found["warnings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for part in [
        ":5:7: store.url: warning: may evict the state of limits (allkeys-lru)",
        "store.url: warning: forgets with a restart what was used of `quota-0` of billing; set appendonly yes",
        ":9:11: downstreams.billing.horizon: warning: below the ",
    ] {
        assert_eq!(
            warnings.iter().filter(|warning| warning.contains(part)).count(),
            1,
            "{part}: {warnings:?}"
        );
        assert_eq!(checked.stderr.matches(part).count(), 1, "reported once: {}", checked.stderr);
    }
    assert_eq!(checked.stderr.matches("may evict").count(), 1, "{}", checked.stderr);
    assert!(found["store"]["round_trip_us"].as_u64().unwrap() >= 40_000, "{found}");
    assert!(found["broker"]["server"].as_str().unwrap().starts_with("RabbitMQ"), "{found}");

    own.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await.unwrap();
    own.command(&["CONFIG", "SET", "appendonly", "yes"]).await.unwrap();
    site.store = own.url();
    site.downstream = site.downstream.replace("'20ms'", "'5s'");
    let checked = site.cli(&["check", "--online"]).await;
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{}", checked.stdout);
}

#[tokio::test]
async fn the_broker_and_the_store_end_alike() {
    let (broker, store) = (rabbit().await, redis().await);
    let user = unique("denied");
    store.command(&["ACL", "SETUSER", &user, "on", ">pw", "~*", "-@all", "+ping"]).await.unwrap();
    let (amqp, redis) = (broker.port(), store.port());
    for (key, url, code) in [
        ("amqp", "amqp://127.0.0.1:1".to_owned(), 69),
        ("store", "redis://127.0.0.1:1".to_owned(), 69),
        ("amqp", format!("amqp://nobody:wrong@127.0.0.1:{amqp}"), 77),
        ("store", format!("redis://nobody:wrong@127.0.0.1:{redis}"), 77),
        ("store", format!("redis://{user}:pw@127.0.0.1:{redis}"), 77),
        ("amqp", "amqp://".to_owned(), 78),
        ("store", "redis://".to_owned(), 78),
    ] {
        let site = Site::shared("exits", "rate = '1/s'").await;
        let set = format!("{key}.url={url}");
        let checked = site.cli(&["check", "--online", "--set", &set]).await;
        assert_eq!(checked.code, code, "{url}: {}", checked.stderr);
        assert!(!checked.stderr.is_empty());
    }
}
