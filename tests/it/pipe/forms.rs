//! The forms of what a pipe reads and writes: CSV, the bodies of answers, reports of failures.

use serde_json::Value;

use super::outcomes;
use crate::support::LONG;
use crate::support::api::{Answer, Api};
use crate::support::daemon::{Output, run_cli};
use crate::support::publish::Job;
use crate::support::site::Site;

#[tokio::test]
async fn outcomes_have_the_body_of_the_answer_where_it_is_wanted() {
    let api = Api::start();
    let longest = "ü".repeat(40_000);
    api.script("/text", [Answer::ok().body("{\"ok\": \"\u{1b}\"}")]);
    api.script("/bytes", [Answer::ok().body(&b"\xff\xfe"[..])]);
    api.script("/long", [Answer::ok().body(longest)]);
    api.script("/gone", [Answer::status(410).body("no such invoice")]);
    let lines: String = ["text", "bytes", "long", "gone", "../up", "empty"]
        .map(|path| format!("{{\"id\": \"{path}\", \"path\": \"{path}\"}}\n"))
        .concat();
    let run = async |more: &[&str]| {
        let (url, mut args) = (api.url(), vec!["pipe", "--rate", "500/s", "--to"]);
        args.push(&url);
        args.extend(more);
        outcomes(&run_cli(&args, lines.as_bytes()).await.stdout)
    };
    let outcomes = run(&["--with-body"]).await;
    let of = |id: &str| outcomes.iter().find(|outcome| outcome["id"] == id).unwrap();
    assert_eq!(of("text")["body"], "{\"ok\": \"\u{1b}\"}");
    assert_eq!((of("bytes").get("body"), &of("bytes")["body_base64"]), (None, &"//4=".into()));
    let (long, cut) = (of("long")["body"].as_str().unwrap(), &of("long")["body_cut"]);
    assert_eq!((long.len(), cut), (65_536, &true.into()), "64 KiB are kept");
    assert_eq!((&of("gone")["outcome"], &of("gone")["body"]), (&"dead".into(), &"no such invoice".into()));
    assert_eq!((&of("../up")["outcome"], &of("../up")["body"]), (&"rejected".into(), &Value::Null));
    assert_eq!(of("empty")["body"], "");
    assert!(outcomes.iter().all(|outcome| outcome["id"] == "long" || outcome.get("body_cut").is_none()));
    assert!(run(&[]).await.iter().all(|outcome| outcome.get("body").is_none()));
}

#[tokio::test]
async fn jobs_go_to_a_url_or_below_it_behind_its_query() {
    let api = Api::start();
    let to = format!("{}in/hook?key=hunter2", api.url());
    let paths = ["", "items/1", "?q=1", "items/1?q=1&r=2", "group%2Fproject", "?key=mine", "a%2F..%2F..%2Fb"];
    let lines: String = paths.map(|path| format!("{{\"path\": \"{path}\"}}\n")).concat();
    let args = ["pipe", "--rate", "500/s", "--concurrency", "1", "--encoded-slash", "--to", &to];
    let output = run_cli(&args, lines.as_bytes()).await;
    assert!(!output.stdout.contains("hunter2") && !output.stderr.contains("hunter2"), "{}", output.stderr);
    let seen: Vec<String> = api.arrivals().into_iter().map(|arrival| arrival.path).collect();
    let expected = [
        "/in/hook?key=hunter2",
        "/in/hook/items/1?key=hunter2",
        "/in/hook?key=hunter2&q=1",
        "/in/hook/items/1?key=hunter2&q=1&r=2",
        "/in/hook/group%2Fproject?key=hunter2",
    ];
    assert_eq!(seen, expected);
    let refused =
        outcomes(&output.stdout).iter().filter(|outcome| outcome["reason"] == "forbidden-path").count();
    assert_eq!((output.code, refused), (1, 2), "{}", output.stdout);
}

#[tokio::test]
async fn secrets_that_go_without_tls_to_another_host_are_warned_of() {
    for (to, header, problem) in [
        (
            "http://192.0.2.1/in?key=hunter2",
            "x-any:1",
            Some("the query goes to 192.0.2.1 without TLS; write https://"),
        ),
        (
            "http://api.invalid/",
            "Authorization:Bearer hunter2",
            Some("the header `authorization` goes to api.invalid"),
        ),
        ("http://api.invalid/", "x-any:hunter2", None),
        ("https://api.invalid/?key=hunter2", "authorization:hunter2", None),
        ("http://[::1]:9/?key=hunter2", "authorization:hunter2", None),
    ] {
        // There is no job, so that nothing is sent.
        let output = run_cli(&["pipe", "--rate", "1/s", "--to", to, "--header", header], b"").await;
        assert_eq!(output.code, 0, "{}", output.stderr);
        assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
        assert_eq!(output.stderr.contains("warning"), problem.is_some(), "{to}: {}", output.stderr);
        assert!(problem.is_none_or(|problem| output.stderr.contains(problem)), "{to}: {}", output.stderr);
    }
}

async fn csv(api: &Api, text: &str, more: &[&str]) -> Output {
    let (url, mut args) = (api.url(), vec!["pipe", "--csv", "--rate", "500/s", "--to"]);
    args.push(&url);
    args.extend(more);
    run_cli(&args, text.as_bytes()).await
}

#[tokio::test]
async fn jobs_come_from_csv() {
    let api = Api::start();
    let text = "\u{feff}id,path,method,cost,header:X-Any,header:content-type,body\r\n\
                a,x/1,PUT,2,one,text/plain,\"hello, \"\"you\"\"\nthere\"\r\n\
                \r\n\
                b,,,,,,\r\n\
                c,x,POST,many,,,\r\n\
                d,x\r\n";
    let output = csv(&api, text, &[]).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    let outcomes = outcomes(&output.stdout);
    let mut lines: Vec<(u64, &str)> = outcomes
        .iter()
        .map(|outcome| (outcome["line"].as_u64().unwrap(), outcome["id"].as_str().unwrap()))
        .collect();
    // Outcomes come in the order in which the API answers.
    lines.sort_unstable();
    assert_eq!(lines, [(2, "a"), (5, "b")], "{}", output.stderr);
    for line in ["line 6: `cost` must be a whole number", "line 7: 2 cells where there are 7 columns"] {
        assert!(output.stderr.contains(line), "{line} in {}", output.stderr);
    }
    let mut arrivals = api.arrivals();
    arrivals.sort_by(|one, other| one.id().cmp(other.id()));
    assert_eq!((arrivals[0].method.as_str(), arrivals[0].path.as_str()), ("PUT", "/x/1"));
    assert_eq!(&arrivals[0].body[..], b"hello, \"you\"\nthere");
    assert_eq!(arrivals[0].header("x-any"), Some("one"));
    assert_eq!(arrivals[0].header("content-type"), Some("text/plain"));
    assert_eq!((arrivals[1].method.as_str(), &arrivals[1].body[..]), ("POST", &b""[..]));
}

#[tokio::test]
async fn jobs_are_made_of_any_columns_by_templates() {
    let api = Api::start();
    let text = "customer_id,Name,tenant,No\r\n17,\"Ada, L.\",acme,a\r\n,,,\r\n1 8,Bob,,b\r\n,Eve,acme,c\r\n";
    let templates = [
        ["--path", "customers/{customer_id}?name={Name}"],
        ["--id", "No"],
        ["--header", "x-tenant:{tenant}"],
        ["--header", "x-meta:{\"a\": 1}"],
    ];
    let mut args: Vec<&str> = templates.concat();
    args.push("--body-from-row");
    let output = csv(&api, text, &args).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains("line 5: `customer_id` is empty"), "{}", output.stderr);
    assert!(output.stderr.contains("bad lines 1, blank rows 1, left 0"), "{}", output.stderr);
    assert!(!output.stderr.contains("by its name"), "{}", output.stderr);
    let mut arrivals = api.arrivals();
    arrivals.sort_by(|one, other| one.id().cmp(other.id()));
    assert_eq!(arrivals.len(), 2);
    let (a, b) = (&arrivals[0], &arrivals[1]);
    assert_eq!((a.id(), a.path.as_str()), ("a", "/customers/17?name=Ada%2C%20L."));
    assert_eq!((b.id(), b.path.as_str()), ("b", "/customers/1%208?name=Bob"));
    let body: Value = serde_json::from_slice(&a.body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"customer_id": "17", "Name": "Ada, L.", "tenant": "acme", "No": "a"})
    );
    assert_eq!(a.header("content-type"), Some("application/json"));
    assert_eq!((a.header("x-tenant"), b.header("x-tenant")), (Some("acme"), None));
    assert_eq!(a.header("x-meta"), Some("{\"a\": 1}"), "braces of its own");
    for (more, problem) in [
        (
            &["--path", "x/{nope}"][..],
            "no column `nope`, which a template names; there are customer_id, Name",
        ),
        (&["--path", "x/{nope"], "a brace without its other one"),
    ] {
        let output = csv(&api, text, more).await;
        assert_eq!(output.code, 2, "{}", output.stderr);
        assert!(output.stderr.contains(problem), "{}", output.stderr);
    }
    assert_eq!(api.count(), 2);
    let prices = csv(&api, "article,cost\r\na,2\r\n", &["--body-from-row"]).await;
    assert_eq!(prices.code, 0, "{}", prices.stderr);
    assert!(prices.stderr.contains("the column cost acts on each job by its name;"), "{}", prices.stderr);
}

#[tokio::test]
async fn unknown_columns_are_reported_before_anything_is_sent() {
    let api = Api::start();
    for (text, problem) in [
        ("id,bdy\na,b\n", "column 2: unknown name `bdy`; did you mean `body`?"),
        ("id,ID\n", "unknown name `ID`; did you mean `id`?"),
        ("", "no row of names of columns"),
    ] {
        let output = csv(&api, text, &[]).await;
        assert_eq!(output.code, 2, "{text}: {}", output.stderr);
        assert!(output.stderr.contains(problem), "{text}: {}", output.stderr);
    }
    assert_eq!(api.count(), 0);
}

/// Input that is not in the announced form ends it with one message, from a file and from stdin.
#[tokio::test]
async fn an_input_of_another_form_is_recognised_by_its_beginning() {
    let api = Api::start();
    let utf16: Vec<u8> =
        "\u{feff}{\"id\": \"a\"}\n".repeat(100).encode_utf16().flat_map(u16::to_le_bytes).collect();
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("input");
    for (bytes, csv, problem) in [
        (&utf16[..], false, "it is UTF-16"),
        (&utf16, true, "it is UTF-16"),
        (b"\x1f\x8b\x08\x00\n\n\n", false, "gunzip -c FILE | paced"),
        (b"id,path\na,b\nc,d\n", false, "add --csv"),
        (b"{\"id\": \"a\"}\n{}\n", true, "leave --csv out"),
        (b"[\n  {\"id\": \"a\"},\n  {\"id\": \"b\"}\n]\n", false, "jq -c '.[]' FILE | paced"),
        (b"id;body\na;b\n", true, "separated by semicolons"),
        (b"Nr.;Betrag (EUR)\na;b\n", true, "separated by semicolons"),
        (b"Order ID,Amount (EUR)\na,b\n", false, "add --csv"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let (url, path) = (api.url(), file.to_str().unwrap());
        for (from, stdin) in [(path, &b""[..]), ("-", bytes)] {
            let mut args = vec!["pipe", "--rate", "500/s", "--to", &url, from];
            if csv {
                args.extend(["--csv", "--body-from-row"]);
            }
            let output = run_cli(&args, stdin).await;
            assert_eq!((output.code, output.stderr.lines().count()), (2, 1), "{}", output.stderr);
            assert!(output.stderr.contains(problem), "{problem}: {}", output.stderr);
        }
    }
    assert_eq!(api.count(), 0);
}

/// A daemon and a pipe beside it keep the limits for their sum.
#[tokio::test]
async fn a_pipe_uses_the_limits_of_a_downstream() {
    let limits =
        "limits = [{ algorithm = 'token-bucket', rate = '1/d', capacity = 10 }]\non_limit = 'reject'";
    let site = Site { http: "allow_headers = ['x-any']".to_owned(), ..Site::shared("beside", limits).await };
    let replica = site.replica().await;
    site.publish(Job::many("queued", 6)).await;
    site.api.wait_for(6, LONG).await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("jobs.ndjson");
    let lines: String =
        (0..9).map(|n| format!("{{\"id\": \"piped-{n}\", \"path\": \"p\", \"body\": {{}}}}\n")).collect();
    std::fs::write(&file, lines).unwrap();
    let with = ["--with-body", "--header", "x-any:1", "--header", "content-type:text/plain"];
    let args = [&["pipe", "--downstream", "billing"][..], &with, &[file.to_str().unwrap()]].concat();
    let output = site.cli(&args).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    let outcomes = outcomes(&output.stdout);
    let count = |kind: &str| outcomes.iter().filter(|outcome| outcome["outcome"] == kind).count();
    assert_eq!((count("delivered"), count("rejected")), (4, 5), "{}", output.stderr);
    let arrivals = site.api.arrivals();
    assert_eq!(arrivals.len(), 10, "the quota of both");
    let piped = arrivals.iter().find(|arrival| arrival.id().starts_with("piped")).unwrap();
    assert_eq!((piped.path.as_str(), piped.header("x-any")), ("/p", Some("1")));
    assert_eq!(piped.header("content-type"), Some("text/plain"), "it takes precedence");
    assert!(outcomes.iter().all(|outcome| outcome.get("body").is_some()), "{}", output.stdout);
    for headers in [&["--header", "authorization:x"][..], &["--header", "x-any:1", "--header", "X-Any:2"]] {
        let never = site.cli(&[&["pipe", "--downstream", "billing"], headers].concat()).await;
        assert_eq!(never.code, 2, "{}", never.stderr);
    }
    let nobody = site.cli(&["pipe", "--downstream", "nobody"]).await;
    assert_eq!(nobody.code, 2, "{}", nobody.stderr);
    let alone = site.cli(&["--set", "store.url=memory:", "pipe", "--downstream", "billing"]).await;
    assert!(alone.code == 2 && alone.stderr.contains("no pace can be shared"), "{}", alone.stderr);
    assert_eq!(replica.stop().await, 0);
}

/// A pipe with an old file changes nothing for the daemons, unless it is asked to.
#[tokio::test]
async fn a_pipe_with_other_limits_than_those_in_force_sends_nothing() {
    let site = Site::shared("others", "rate = '50/s'").await;
    let replica = site.replica().await;
    site.publish(Job::many("queued", 1)).await;
    site.api.wait_for(1, LONG).await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("jobs.ndjson");
    std::fs::write(&file, "{\"id\": \"piped\"}\n").unwrap();
    let old = ["--set", "downstreams.billing.rate=20/s", "pipe", "--downstream", "billing"];
    let run = async |more: &[&str]| site.cli(&[&old[..], more, &[file.to_str().unwrap()]].concat()).await;
    let refused = run(&[]).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{}", refused.stderr);
    let changes = "leaky-bucket-0 50/s → 20/s";
    assert!(
        refused.stderr.contains(changes) && refused.stderr.contains("--force-limits"),
        "{}",
        refused.stderr
    );
    assert_eq!(site.api.count(), 1, "nothing was sent");
    let forced = run(&["--force-limits"]).await;
    assert_eq!((forced.code, outcomes(&forced.stdout).len()), (0, 1), "{}", forced.stderr);
    let said = format!("limits at `billing` changed for all replicas, for good: {changes}");
    assert!(forced.stderr.contains(&said) && !refused.stderr.contains(&said), "{}", forced.stderr);
    replica.wait_line("limits changed", LONG).await;
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn a_failure_is_reported_once_and_not_without_bound() {
    let api = Api::start();
    api.rule(|_| Answer::status(410));
    let mut lines: String = (0..300).map(|n| format!("{{\"id\": \"job-{n}\"}}\n")).collect();
    lines += &"nonsense\n".repeat(300);
    let url = api.url();
    let run = async |more: &[&str]| {
        let mut args = vec!["pipe", "--rate", "2000/s", "--to", &url];
        args.extend(more);
        run_cli(&args, lines.as_bytes()).await
    };
    let output = run(&[]).await;
    let reports = |stderr: &str, text: &str| stderr.lines().filter(|line| line.contains(text)).count();
    assert_eq!(reports(&output.stderr, ": status: "), 100, "{}", output.stderr);
    assert_eq!(reports(&output.stderr, ": not JSON"), 100);
    assert_eq!(reports(&output.stderr, "only counted; -v shows each"), 2);
    assert_eq!(output.stderr.lines().count(), 203, "nothing is reported twice: {}", output.stderr);
    let summary = "delivered 0, dead 300, rejected 0, bad lines 300, left 0\n";
    assert!(output.stderr.ends_with(summary), "{}", output.stderr);
    let all = run(&["-v"]).await;
    assert_eq!((reports(&all.stderr, ": status: "), reports(&all.stderr, ": not JSON")), (300, 300));
    assert_eq!(run(&["-q"]).await.stderr, "");
}
