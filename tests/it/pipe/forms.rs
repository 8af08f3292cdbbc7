//! The forms of what a pipe reads and writes: CSV, the bodies of answers, reports of failures.

use serde_json::Value;

use super::outcomes;
use crate::support::api::{Answer, Api};
use crate::support::daemon::{Output, run_cli};

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
async fn columns_that_are_none_are_told_before_anything_is_sent() {
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
    assert_eq!(output.stderr.lines().count(), 203, "nothing is said twice: {}", output.stderr);
    let summary = "delivered 0, dead 300, rejected 0, bad lines 300, left 0\n";
    assert!(output.stderr.ends_with(summary), "{}", output.stderr);
    let all = run(&["-v"]).await;
    assert_eq!((reports(&all.stderr, ": status: "), reports(&all.stderr, ": not JSON")), (300, 300));
    assert_eq!(run(&["-q"]).await.stderr, "");
}
