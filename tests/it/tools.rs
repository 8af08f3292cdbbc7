//! The commands and the publisher that people use by hand.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::api::{Answer, Api};
use crate::support::daemon::run_cli;
use crate::support::site::{Site, compare};
use crate::support::{blocking, count};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn pipe_needs_no_server_and_keeps_the_pace() {
    let api = Api::start();
    api.script("/gone", [Answer::status(410)]);
    let mut lines: String = (0..50).map(|n| format!("{{\"id\": \"job-{n}\", \"body\": {n}}}\n")).collect();
    lines += "{\"id\": \"gone\", \"path\": \"gone\"}\n{\"nope\": 1}\n{\"id\": \"up\", \"path\": \"../up\"}\n";
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("jobs.ndjson");
    std::fs::write(&file, &lines).unwrap();
    let args = ["pipe", "--rate", "50/s", "--to", &api.url(), file.to_str().unwrap()];
    let output = run_cli(&args, b"").await;

    assert_eq!(output.code, 1, "not everything was delivered: {}", output.stderr);
    assert!(output.stderr.contains("line 52: unknown key `nope`"), "{}", output.stderr);
    let arrivals = api.arrivals();
    let good: Vec<_> = arrivals.iter().filter(|a| a.id().starts_with("job-")).cloned().collect();
    assert!(compare("job", 50, &good).is_clean());
    assert_eq!(arrivals.len(), 51);
    let span = count::span(&api.stamps());
    assert!(span >= Duration::from_millis(950) && span < Duration::from_secs(3), "51 at 50/s: {span:?}");

    let outcomes: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len(), 52);
    let of = |id: &str| outcomes.iter().find(|outcome| outcome["id"] == id).unwrap();
    assert_eq!((&of("job-7")["outcome"], &of("job-7")["line"]), (&"delivered".into(), &8.into()));
    assert_eq!((&of("gone")["outcome"], &of("gone")["status"]), (&"dead".into(), &410.into()));
    assert_eq!((&of("up")["outcome"], &of("up")["reason"]), (&"rejected".into(), &"forbidden-path".into()));
    // The slots that the jobs were released at lie exactly one interval apart.
    let mut slots: Vec<i64> = outcomes
        .iter()
        .filter_map(|outcome| outcome["released_at"].as_str())
        .map(|at| at.parse::<jiff::Timestamp>().unwrap().as_microsecond())
        .collect();
    slots.sort_unstable();
    let odd: Vec<i64> =
        slots.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| gap % 20_000 != 0 || *gap == 0).collect();
    assert!(odd.is_empty(), "slots on no common grid: {odd:?}");
}

#[tokio::test]
async fn pipe_reads_stdin_and_sends_below_a_url_without_a_slash() {
    let api = Api::start();
    let url = format!("{}hook", api.url());
    let jobs = b"{\"id\": \"a\"}\n\n{\"id\": \"b\", \"path\": \"x?y=1\", \"headers\": {\"X-Any\": \"1\"}}";
    let output = run_cli(&["pipe", "--rate", "100/s", "--to", &url], jobs).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    let arrivals = api.arrivals();
    let paths: Vec<&str> = arrivals.iter().map(|arrival| arrival.path.as_str()).collect();
    assert_eq!(paths, ["/hook", "/hook/x?y=1"]);
    assert_eq!(arrivals[1].header("x-any"), Some("1"));
}

#[tokio::test]
async fn wrong_usage_exits_with_2() {
    for args in [
        &["pipe", "--rate", "fast", "--to", "http://127.0.0.1:1/"][..],
        &["pipe", "--rate", "1/s", "--to", "ftp://127.0.0.1/"],
        &["pipe", "--rate", "1/s", "--to", "http://127.0.0.1:1/", "no-such-file"],
        &["nonsense"],
    ] {
        let output = run_cli(args, b"").await;
        assert_eq!(output.code, 2, "{args:?}: {}", output.stderr);
        assert!(!output.stderr.is_empty());
    }
}

#[tokio::test]
async fn published_lines_arrive_and_bad_ones_are_named() {
    let site = Site::shared("publish", "rate = '500/s'").await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("jobs.ndjson");
    let lines = "{\"id\": \"job-0\", \"path\": \"a\", \"method\": \"PUT\", \"body\": {\"n\": 1}}\n\
                 {\"id\": \"job-1\", \"priority\": 7, \"lane\": \"acme\"}\n\
                 not JSON\n\
                 {\"id\": \"job-2\", \"path\": \"../up\"}\n\
                 {\"id\": \"job-2\", \"downstream\": \"other\"}\n\
                 {\"id\": \"job-2\"}\n";
    std::fs::write(&file, lines).unwrap();
    // Before the daemon ever ran: publish declares the queues itself.
    let output = site.cli(&["-o", "json", "publish", "billing", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    for line in ["line 3: not JSON", "line 4: forbidden-path", "line 5: is for `other`"] {
        assert!(output.stderr.contains(line), "{line} in {}", output.stderr);
    }
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&report["published"], &report["bad_lines"]), (&3.into(), &3.into()));

    let equal = site.cli(&["publish", "billing", "--count", "40", "--body", "hello"]).await;
    assert_eq!((equal.code, equal.stdout.trim()), (0, "published 40 job(s) to billing"));
    assert_eq!(site.cli(&["publish", "nobody", "--count", "1"]).await.code, 2);

    let replica = site.replica().await;
    let arrivals = site.api.wait_for(43, LONG).await;
    let put = arrivals.iter().find(|arrival| arrival.id() == "job-0").unwrap();
    assert_eq!((put.method.as_str(), put.path.as_str(), &put.body[..]), ("PUT", "/a", &b"{\"n\": 1}"[..]));
    assert_eq!(put.header("content-type"), Some("application/json"));
    assert_eq!(arrivals.iter().filter(|arrival| &arrival.body[..] == b"hello").count(), 40);
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn the_publisher_in_python_is_understood() {
    let site = Site::shared("python", "rate = '500/s'").await;
    let replica = site.replica().await;
    let (url, exchange) = (site.amqp.clone(), format!("{}.jobs", site.prefix));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/publishers/publish.py");
    let output = blocking(move || {
        // Debian's own Python: the one that has Debian's python3-pika.
        std::process::Command::new("/usr/bin/python3")
            .args([script, "billing", "--count", "25", "--lane", "acme", "--body", "{\"from\": \"python\"}"])
            .args(["--url", &url, "--exchange", &exchange])
            .stdin(Stdio::null())
            .output()
            .expect("python3")
    })
    .await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let arrivals = site.api.wait_for(25, LONG).await;
    assert!(arrivals.iter().all(|arrival| &arrival.body[..] == b"{\"from\": \"python\"}"));
    assert!(arrivals.iter().all(|arrival| uuid::Uuid::parse_str(arrival.id()).is_ok()));
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn shipped_configurations_pass_the_check() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("config/paced.toml"), root.join("deploy/paced.toml")];
    for entry in std::fs::read_dir(root.join("config/examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    assert!(files.len() >= 5, "{files:?}");
    // The README's, with the secret that it names.
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let snippets = readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let snippet = snippets.into_iter().find(|toml| toml.contains("[downstreams.")).unwrap();
    files.push(folder.path().join("paced.toml"));
    std::fs::write(files.last().unwrap(), snippet).unwrap();
    std::fs::write(folder.path().join("billing.token"), "Bearer x\n").unwrap();
    for file in files {
        let output = run_cli(&["check", "-c", file.to_str().unwrap()], b"").await;
        assert_eq!(output.code, 0, "{}: {}", file.display(), output.stderr);
    }
}

#[tokio::test]
async fn ten_mistakes_are_ten_lines() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("paced.toml");
    let text = "[amqp]\n\
                url = \"amqp://user:hunter2@\"\n\
                [store]\n\
                url = \"redis+cluster://:hunter2@host\"\n\
                [shutdown]\n\
                drain_timeout = \"soon\"\n\
                [downstreams.a]\n\
                rate = \"fast\"\n\
                horizn = \"1s\"\n\
                concurrency = 0\n\
                [downstreams.a.http]\n\
                base_url = \"https://user:hunter2@host/x\"\n\
                allow_headers = [\"host\"]\n\
                [downstreams.b__c]\n\
                rate = \"1/s\"\n\
                http.base_url = \"http://host/\"\n\
                [downstreams.d]\n\
                rate = \"1/s\"\n";
    std::fs::write(&file, text).unwrap();
    let output = run_cli(&["check", "-c", file.to_str().unwrap()], b"").await;
    assert_eq!(output.code, 78);
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 10, "{}", output.stderr);
    for line in &lines {
        let rest = line.strip_prefix(&format!("{}:", file.display())).expect(line);
        let mut parts = rest.splitn(4, ':');
        let mut number = || parts.next().unwrap().parse::<u32>().expect(line);
        assert!(number() > 0 && number() > 0, "{line}");
        assert!(!parts.next().unwrap().trim().is_empty() && parts.next().unwrap().contains("; "), "{line}");
    }
    assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
}
