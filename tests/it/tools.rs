//! The commands and the publisher, as people use them by hand.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::api::{Answer, Api};
use crate::support::daemon::{Paced, binary, run_cli};
use crate::support::proxy::Proxy;
use crate::support::servers::rabbit;
use crate::support::site::{Site, compare};
use crate::support::{LONG, blocking, poll, publish};

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

    let outcomes: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len(), 52);
    let of = |id: &str| outcomes.iter().find(|outcome| outcome["id"] == id).unwrap();
    assert_eq!((&of("job-7")["outcome"], &of("job-7")["line"]), (&"delivered".into(), &8.into()));
    assert_eq!((&of("gone")["outcome"], &of("gone")["status"]), (&"dead".into(), &410.into()));
    assert_eq!((&of("up")["outcome"], &of("up")["reason"]), (&"rejected".into(), &"forbidden-path".into()));
    // The slots of the jobs are never closer than one interval. A busy machine may miss some, which are reserved anew.
    let mut slots: Vec<i64> = outcomes
        .iter()
        .filter_map(|outcome| outcome["released_at"].as_str())
        .map(|at| at.parse::<jiff::Timestamp>().unwrap().as_microsecond())
        .collect();
    slots.sort_unstable();
    let gaps: Vec<i64> = slots.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 50);
    assert!(gaps.iter().all(|&gap| gap >= 20_000), "{gaps:?}");
}

#[tokio::test]
async fn pipe_reads_stdin_and_sends_below_a_url_without_a_slash() {
    let api = Api::start();
    let url = format!("{}hook", api.url());
    let jobs = b"{\"id\": \"a\"}\n\n{\"id\": \"b\", \"path\": \"x?y=1\", \"headers\": {\"X-Any\": \"1\"}}";
    let output = run_cli(&["pipe", "--rate", "100/s", "--to", &url], jobs).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    let mut arrivals = api.arrivals();
    arrivals.sort_by(|one, other| one.id().cmp(other.id()));
    let paths: Vec<&str> = arrivals.iter().map(|arrival| arrival.path.as_str()).collect();
    assert_eq!(paths, ["/hook", "/hook/x?y=1"]);
    assert_eq!(arrivals[1].header("x-any"), Some("1"));
}

#[tokio::test]
async fn publish_takes_csv_and_templates() {
    let site = Site {
        http: "allow_headers = ['x-tenant']".to_owned(),
        ..Site::shared("csv", "rate = '500/s'").await
    };
    let replica = site.replica().await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("jobs.csv");
    std::fs::write(&file, "customer_id,tenant,No\n17,acme,a\n,,\n18,,b\n,acme,c\n").unwrap();
    let path = file.to_str().unwrap();
    let template =
        ["--csv", "--path", "customers/{customer_id}", "--id", "No", "--header", "x-tenant:{tenant}"];
    let args = [&["-o", "json", "publish", "billing", path][..], &template, &["--body-from-row"]].concat();
    let output = site.cli(&args).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains("line 5: `customer_id` is empty"), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&report["published"], &report["bad_lines"]), (&2.into(), &1.into()));
    site.api.wait_for(2, LONG).await;
    let mut arrivals = site.api.arrivals();
    arrivals.sort_by(|one, other| one.id().cmp(other.id()));
    assert_eq!((arrivals[0].path.as_str(), arrivals[0].header("x-tenant")), ("/customers/17", Some("acme")));
    assert_eq!((arrivals[1].path.as_str(), arrivals[1].header("x-tenant")), ("/customers/18", None));
    assert_eq!(arrivals[1].header("content-type"), Some("application/json"));
    let one = ["publish", "billing", "--header", "x-tenant:acme", "--body", "{}"];
    let output = site.cli(&one).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    site.api.wait_for(3, LONG).await;
    let arrivals = site.api.arrivals();
    assert_eq!(arrivals[2].header("x-tenant"), Some("acme"));
    assert_eq!(arrivals[2].header("content-type"), Some("application/json"));
    let named = ["--csv", "--body-from-row", "--header", "content-type:application/vnd.api+json"];
    let output = site.cli(&[&["publish", "billing", path][..], &named].concat()).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    site.api.wait_for(6, LONG).await;
    for arrival in &site.api.arrivals()[3..] {
        assert_eq!(arrival.header("content-type"), Some("application/vnd.api+json"));
    }
    for more in [&["--csv"][..], &["--header", "cookie:a"]] {
        let refused = site.cli(&[&one[..], more].concat()).await;
        assert_eq!(refused.code, 2, "{}", refused.stderr);
    }
    // Once, and not for each row.
    let refused =
        site.cli(&["publish", "billing", path, "--csv", "--body-from-row", "--header", "x-any:1"]).await;
    assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{}", refused.stderr);
    assert!(refused.stderr.contains("--header x-any is not in `http.allow_headers`"), "{}", refused.stderr);
    std::fs::write(&file, "id,path\na,b\n").unwrap();
    let table = site.cli(&["publish", "billing", path]).await;
    assert_eq!(table.code, 2, "{}", table.stderr);
    assert!(table.stderr.contains("add --csv"), "{}", table.stderr);
    replica.stop().await;
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
    // The daemon never ran before, so publish declares the queues itself.
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
        // Debian's own Python, for which Debian's python3-pika is installed.
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
    // The configuration of the README, with the secret that it names.
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let snippets = readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let snippet = snippets.into_iter().find(|toml| toml.contains("[downstreams.")).unwrap();
    files.push(folder.path().join("paced.toml"));
    std::fs::write(files.last().unwrap(), snippet).unwrap();
    std::fs::write(folder.path().join("billing.token"), "Bearer x\n").unwrap();
    std::fs::write(folder.path().join("admin.token"), "0123456789abcdef\n").unwrap();
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
                url = \"redis+cluster://:hunter2@host/1\"\n\
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

#[tokio::test]
async fn a_reader_that_has_gone_is_no_failure() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, "[downstreams.a]\nrate = '1/s'\nhttp.base_url = 'http://127.0.0.1:1/'\n").unwrap();
    for args in [&["config", "show"][..], &["check"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(binary());
        command.arg("-c").arg(&file).args(args).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let output = blocking(move || command.output().unwrap()).await;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[tokio::test]
async fn lines_that_are_no_text_are_skipped_like_others() {
    let site = Site::shared("bytes", "rate = '500/s'").await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("jobs.ndjson");
    let lines = b"\xef\xbb\xbf{\"id\": \"a\"}\n{\"id\": \"\xff\"}\n\n{\"id\": \"b\"}\r\n";
    std::fs::write(&file, lines).unwrap();
    let output = site.cli(&["-o", "json", "publish", "billing", file.to_str().unwrap()]).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains("line 2: not JSON"), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&report["published"], &report["bad_lines"]), (&2.into(), &1.into()), "{}", output.stderr);
}

#[tokio::test]
async fn publish_stops_when_the_broker_is_lost() {
    let mut site = Site::shared("gone", "rate = '500/s'").await;
    let proxy = Proxy::start(rabbit().await.port(), Duration::ZERO).unwrap();
    let direct = std::mem::replace(&mut site.amqp, format!("amqp://127.0.0.1:{}/%2f", proxy.port()));
    let broken = async {
        let some = || async { publish::depth(&direct, &site.queue()).await.filter(|depth| *depth > 0) };
        poll(LONG, some).await.expect("the first jobs");
        proxy.cut();
    };
    let publish = ["publish", "billing", "--count", "5000000"];
    // It tries again for a second, not for half a minute.
    let (output, ()) = tokio::join!(site.cli_with(&publish, &[("PACED_TEST_IMPATIENCE", "30")]), broken);
    assert_eq!(output.code, 69, "{}", output.stderr);
    assert!(output.stderr.contains("gave up"), "{}", output.stderr);
    assert!(output.stderr.lines().count() < 10, "reported once: {}", output.stderr);
}

#[tokio::test]
async fn a_list_of_dead_letters_creates_nothing() {
    let site = Site::shared("nothing", "rate = '500/s'").await;
    let output = site.cli(&["dead", "list", "billing"]).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains(&site.dead_queue()), "{}", output.stderr);
    assert!(output.stderr.contains("`paced publish`"), "{}", output.stderr);
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, None);

    let name = format!("{}=x", "h".repeat(256));
    let output = site.cli(&["dead", "replay", "billing", "--set-header", &name]).await;
    assert_eq!(output.code, 2, "{}", output.stderr);
    assert!(output.stderr.contains("longer than 255 bytes"), "{}", output.stderr);
}

#[tokio::test]
async fn a_login_that_is_refused_after_a_loss_is_reported() {
    let mut site = Site::shared("login", "rate = '500/s'").await;
    let (broker, user) = (rabbit().await, site.prefix.clone());
    broker.add_user(&user, "before", [".*"; 3]).await;
    site.amqp = format!("amqp://{user}:before@127.0.0.1:{}", broker.port());
    let replica = Paced::spawn(&site.config()).await;
    broker.set_password(&user, "after").await;
    assert_eq!(broker.close_connections_of(&user).await, 2, "one for jobs, and one for letters");
    let line = replica.wait_line("refuses the login", LONG).await;
    assert!(!line.contains("before"), "{line}");
    assert_eq!(replica.stop().await, 0);
}
