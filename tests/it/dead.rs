//! `paced dead`, as people use it.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::api::Answer;
use crate::support::daemon::{Output, binary, on_a_terminal as terminal};
use crate::support::publish::{self, Job};
use crate::support::site::Site;
use crate::support::{LONG, blocking, until};

/// A site whose queues exist, with dead letters of these ids.
async fn site(topic: &str, letters: Vec<Job>) -> Site {
    let site = Site::shared(topic, "rate = '500/s'").await;
    let declared = site.cli(&["publish", "billing", "--count", "1"]).await;
    assert_eq!(declared.code, 0, "{}", declared.stderr);
    publish::drain(&site.amqp, &site.queue()).await;
    let count = u32::try_from(letters.len()).unwrap();
    publish::publish_to(&site.amqp, "", &site.dead_queue(), letters).await;
    site.depth(&site.dead_queue(), count, LONG).await;
    site
}

/// `count` letters with the ids `job-0` and on.
fn some(count: usize) -> Vec<Job> {
    Job::many("job", count).into_iter().map(|job| job.header("paced-reason", "status")).collect()
}

#[track_caller]
fn ids(output: &Output) -> Vec<String> {
    assert_eq!(output.code, 0, "{}", output.stderr);
    let lines = output.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

/// A command of `paced dead` that runs until it is ended.
struct Running {
    child: Child,
    _folder: TempDir,
}

impl Running {
    fn start(site: &Site, args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, site.config()).unwrap();
        let mut command = Command::new(binary());
        command.arg("-c").arg(file).arg("dead").args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), _folder: folder }
    }

    /// Sends a signal, and returns the exit code and what was printed.
    async fn end(self, signal: Signal) -> (Option<i32>, String, String) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let output = blocking(move || self.child.wait_with_output().unwrap()).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

#[tokio::test]
async fn letters_are_filtered_and_shown() {
    let long_ago = "1600000000000";
    let letters = vec![
        Job::new("a").header("paced-reason", "expired").header("paced-routing-key", "billing.eu"),
        Job::new("b").header("paced-reason", "status").header("paced-status", "422").body("one\ntwo"),
        Job::new("c").header("paced-reason", "status").header("paced-status", "400").body(b"\xff".to_vec()),
        Job::new("d").header("paced-reason", "status").header("paced-dead-at", long_ago),
    ];
    let letters = letters.into_iter().map(|letter| letter.header("paced-path", "p").header("mine", "kept"));
    let site = site("filters", letters.collect()).await;
    let filters: [(&[&str], &[&str]); 9] = [
        (&["--reason", "status"], &["b", "c", "d"]),
        (&["--status", "422"], &["b"]),
        (&["--key", "billing.eu"], &["a"]),
        (&["--key", "billing"], &[]),
        (&["--older-than", "1d"], &["d"]),
        (&["--newer-than", "1d"], &[]),
        (&["--id", "c"], &["c"]),
        (&["--reason", "status", "--limit", "2"], &["b", "c"]),
        (&["--reason", "status", "--status", "200"], &[]),
    ];
    for (filter, expected) in filters {
        let args: Vec<&str> =
            ["-o", "json", "dead", "list", "billing"].iter().chain(filter).copied().collect();
        assert_eq!(ids(&site.cli(&args).await), expected, "{filter:?}");
    }
    let wrong = site.cli(&["dead", "list", "billing", "--older-than", "soon"]).await;
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    let none = site.cli(&["dead", "list", "billing", "--id", "z"]).await;
    assert_eq!((none.code, none.stdout.trim()), (0, "no dead letters of billing match"));

    let shown = site.cli(&["dead", "show", "billing", "b"]).await;
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    for line in
        ["reason              status", "status              422", "header              mine: kept", "  two"]
    {
        assert!(shown.stdout.lines().any(|shown| shown == line), "{line} in {}", shown.stdout);
    }
    let binary = site.cli(&["-o", "json", "dead", "show", "billing", "c"]).await;
    let binary: Value = serde_json::from_str(&binary.stdout).unwrap();
    assert_eq!((&binary["job"], &binary["body_base64"]), (&Value::Null, &"/w==".into()));
    let wrong: [(&[&str], i32); 5] = [
        (&["dead", "show", "billing", "z"], 1),
        (&["dead", "show", "billing", "b", "--id", "c"], 2),
        (&["dead", "show"], 2),
        (&["dead", "list", "billing", "--unroutable"], 2),
        (&["dead", "replay", "billing", "--to", "billing"], 2),
    ];
    for (args, code) in wrong {
        let output = site.cli(args).await;
        assert_eq!(output.code, code, "{args:?}: {}", output.stderr);
    }
    site.depth(&site.dead_queue(), 4, LONG).await;

    // A letter that is shown as a job can be published.
    let shown = site.cli(&["-o", "json", "dead", "show", "billing", "--status", "422"]).await;
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&shown["headers"]["mine"], &shown["report"]["status"]), (&"kept".into(), &422.into()));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("job.ndjson");
    std::fs::write(&file, shown["job"].to_string()).unwrap();
    let published = site.cli(&["publish", "billing", file.to_str().unwrap()]).await;
    assert_eq!(published.code, 0, "{}", published.stderr);
    let jobs = publish::drain(&site.amqp, &site.queue()).await;
    assert_eq!((jobs[0].id(), &jobs[0].body[..]), ("b", &b"one\ntwo"[..]));
    assert_eq!(jobs[0].headers.get("paced-path").map(String::as_str), Some("p"));
}

#[tokio::test]
async fn a_purge_needs_a_yes() {
    let mut letters = some(10);
    letters.push(Job::new("other").header("paced-reason", "expired"));
    let site = site("purging", letters).await;
    let refused = site.cli(&["dead", "purge", "billing"]).await;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("--yes"), "{}", refused.stderr);
    site.depth(&site.dead_queue(), 11, LONG).await;

    let purged = site.cli(&["dead", "purge", "billing", "--yes", "--limit", "3"]).await;
    assert_eq!(
        (purged.code, purged.stdout.trim()),
        (0, "purged 3 of 11 dead letter(s)"),
        "{}",
        purged.stderr
    );
    let purged = site.cli(&["-o", "json", "dead", "purge", "billing", "--yes", "--reason", "expired"]).await;
    let report: Value = serde_json::from_str(&purged.stdout).unwrap();
    assert_eq!(report, serde_json::json!({ "found": 8, "purged": 1, "kept": 7 }));
    let left = site.cli(&["-o", "json", "dead", "list", "billing"]).await;
    assert_eq!(ids(&left), (3..10).map(|n| format!("job-{n}")).collect::<Vec<_>>());
    let purged = site.cli(&["dead", "purge", "billing", "--yes"]).await;
    assert_eq!((purged.code, purged.stdout.trim()), (0, "purged 7 of 7 dead letter(s)"));
    site.depth(&site.dead_queue(), 0, LONG).await;
}

/// Runs the command on a terminal of its own, and types this.
async fn on_a_terminal(site: &Site, command: &str, typed: &'static [u8]) -> (Option<i32>, String) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, site.config()).unwrap();
    let line = format!("{} -c {} dead {command}", binary().display(), file.display());
    terminal(folder.path(), &line, typed).await
}

#[tokio::test]
async fn a_purge_on_a_terminal_asks_and_removes_what_it_counted() {
    let mut letters = some(4);
    letters.insert(1, Job::new("other").header("paced-reason", "expired"));
    let site = site("asking", letters).await;
    let (code, output) = on_a_terminal(&site, "purge billing --reason status", b"n\n").await;
    assert!(output.contains("Purge 4 of 5 dead letters of billing? [y/N]"), "{output}");
    assert_eq!(code, Some(2), "{output}");
    site.depth(&site.dead_queue(), 5, LONG).await;
    let (code, output) = on_a_terminal(&site, "purge billing --reason status", b"y\n").await;
    assert!(output.contains("purged 4 of 5 dead letter(s)"), "{output}");
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = on_a_terminal(&site, "purge billing --limit 3", b"y\n").await;
    assert!(output.contains("Purge 1 dead letter of billing? [y/N]"), "{output}");
    assert_eq!(code, Some(0), "{output}");
    site.depth(&site.dead_queue(), 0, LONG).await;
    let (code, output) = on_a_terminal(&site, "purge billing", b"").await;
    assert!(output.contains("no dead letters of billing to purge"), "{output}");
    assert_eq!(code, Some(0), "{output}");
}

#[tokio::test]
async fn a_replay_that_is_killed_loses_nothing() {
    let site = site("killed", some(200)).await;
    let replay = Running::start(&site, &["replay", "billing", "--rate", "10/s"]);
    until("some are replayed", LONG, async || {
        publish::depth(&site.amqp, &site.queue()).await.is_some_and(|jobs| jobs >= 5)
    })
    .await;
    let (code, ..) = replay.end(Signal::KILL).await;
    assert_eq!(code, None);
    let (jobs, dead) = (site.queue(), site.dead_queue());
    until("all come back", LONG, async || {
        let (jobs, dead) = (publish::depth(&site.amqp, &jobs).await, publish::depth(&site.amqp, &dead).await);
        jobs.unwrap_or(0) + dead.unwrap_or(0) >= 200
    })
    .await;
    let mut found = publish::drain(&site.amqp, &jobs).await;
    assert!(found.len() < 200, "it was killed too late");
    found.extend(publish::drain(&site.amqp, &dead).await);
    assert!(found.len() <= 201, "one may be there twice");
    let ids: std::collections::BTreeSet<&str> = found.iter().map(|message| message.id()).collect();
    assert_eq!(ids.len(), 200);
}

#[tokio::test]
async fn a_replay_that_is_interrupted_ends_in_order() {
    let site = site("interrupted", some(200)).await;
    let replay = Running::start(&site, &["-o", "json", "replay", "billing", "--rate", "10/s"]);
    until("some are replayed", LONG, async || {
        publish::depth(&site.amqp, &site.queue()).await.is_some_and(|jobs| jobs >= 5)
    })
    .await;
    let (code, stdout, stderr) = replay.end(Signal::INT).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("stopped"), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let replayed = usize::try_from(report["replayed"].as_u64().unwrap()).unwrap();
    assert!((5..200).contains(&replayed), "{report}");
    assert_eq!(publish::drain(&site.amqp, &site.queue()).await.len(), replayed);
    let left = site.cli(&["-o", "json", "dead", "list", "billing", "--limit", "200"]).await;
    assert_eq!(ids(&left), (replayed..200).map(|n| format!("job-{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn misspelt_jobs_are_brought_to_their_downstream() {
    let site = site("biling", vec![]).await;
    site.api.rule(|_| Answer::ok());
    publish::publish(&site.amqp, &site.prefix, "biling", some(5)).await;
    let queue = format!("{}.unroutable", site.prefix);
    site.depth(&queue, 5, LONG).await;
    let table = site.cli(&["dead", "list", "--unroutable"]).await;
    assert_eq!(table.code, 0, "{}", table.stderr);
    assert!(table.stdout.contains("ROUTING KEY") && table.stdout.contains("biling"), "{}", table.stdout);
    let shown = site.cli(&["-o", "json", "dead", "show", "--unroutable", "job-3"]).await;
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&shown["report"]["routing_key"], &shown["job"]["id"]), (&"biling".into(), &"job-3".into()));

    let replay = site.cli(&["dead", "replay", "--unroutable"]).await;
    assert_eq!((replay.code, replay.stdout.trim()), (1, "replayed 0 of 5 unroutable message(s)"));
    assert!(replay.stderr.contains("--to DOWNSTREAM"), "{}", replay.stderr);
    let purge = site.cli(&["dead", "purge", "--unroutable", "--yes", "--id", "job-0"]).await;
    assert_eq!((purge.code, purge.stdout.trim()), (0, "purged 1 of 5 unroutable message(s)"));
    let replay = site.cli(&["dead", "replay", "--unroutable", "--to", "billing", "--rate", "100/s"]).await;
    assert_eq!(
        (replay.code, replay.stdout.trim()),
        (0, "replayed 4 of 4 unroutable message(s)"),
        "{}",
        replay.stderr
    );
    site.depth(&queue, 0, LONG).await;
    let replica = site.replica().await;
    let arrivals = site.api.wait_for(4, LONG).await;
    let mut ids: Vec<&str> = arrivals.iter().map(|arrival| arrival.id()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["job-1", "job-2", "job-3", "job-4"]);
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn a_daemon_warns_once_of_an_older_queue_of_unroutable_messages() {
    let site = Site::shared("older", "rate = '500/s'").await;
    let queue = format!("{}.unroutable", site.prefix);
    publish::declare_quorum(&site.amqp, &queue).await;
    let replica = site.replica().await;
    let log = replica.log();
    let warned = log.iter().filter(|line| line.contains("exists with other arguments"));
    assert_eq!(warned.count(), 1, "{}", log.join("\n"));
    publish::publish(&site.amqp, &site.prefix, "biling", some(2)).await;
    site.depth(&queue, 2, LONG).await;
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn a_letter_keeps_the_beginning_of_the_answer_and_its_job_does_not() {
    let site = Site::shared("answer", "rate = '500/s'").await;
    let answer = format!("no\n\u{1b}[2Jsuch customer{}", "x".repeat(3000));
    let beginning = answer[..1024].to_owned();
    site.api.rule(move |arrival| match arrival.path.as_str() {
        "/silent" => Answer::status(404),
        _ => Answer::status(422).body(answer.clone()),
    });
    // A producer may send the header, which means nothing.
    let asking = |id: &str| Job::new(id).header("paced-path", id).header("paced-response", "forged");
    let shown = async |site: &Site, id: &str| {
        let shown = site.cli(&["-o", "json", "dead", "show", "billing", id]).await;
        assert_eq!(shown.code, 0, "{}", shown.stderr);
        serde_json::from_str::<Value>(&shown.stdout).unwrap()
    };
    let replica = site.replica().await;
    site.publish(vec![asking("answered"), asking("silent")]).await;
    site.depth(&site.dead_queue(), 2, LONG).await;
    assert_eq!(replica.stop().await, 0);
    assert!(site.api.arrivals().iter().all(|arrival| arrival.header("paced-response").is_none()));

    let letter = shown(&site, "answered").await;
    assert_eq!(letter["report"]["response"], beginning.as_str());
    assert_eq!(letter["headers"]["paced-response"], beginning.as_str());
    let silent = shown(&site, "silent").await;
    assert_eq!(
        (&silent["report"]["response"], &silent["headers"]["paced-response"]),
        (&Value::Null, &Value::Null)
    );
    let text = site.cli(&["dead", "show", "billing", "answered"]).await.stdout;
    let lines = ["response", "  no", &format!("  \\u{{1b}}[2Jsuch customer{}", "x".repeat(1004))];
    for line in lines {
        assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
    }
    assert!(!text.contains('\u{1b}') && !text.contains("forged"), "{text:?}");

    let replay = site.cli(&["dead", "replay", "billing"]).await;
    assert_eq!(replay.code, 0, "{}", replay.stderr);
    let jobs = publish::drain(&site.amqp, &site.queue()).await;
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        let ours = job.headers.keys().filter(|name| name.starts_with("paced-"));
        assert_eq!(ours.collect::<Vec<_>>(), ["paced-path"], "{}", job.id());
    }

    let site = Site { http: "keep_response = false".to_owned(), ..site };
    let replica = site.replica().await;
    site.publish(vec![asking("unkept")]).await;
    site.depth(&site.dead_queue(), 1, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let letter = shown(&site, "unkept").await;
    assert_eq!((&letter["report"]["status"], &letter["report"]["response"]), (&422.into(), &Value::Null));
    assert_eq!(letter["headers"]["paced-response"], Value::Null);
}
