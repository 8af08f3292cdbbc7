//! `paced pipe` for real work: interrupted, killed and resumed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::api::{Answer, Api, Gate};
use crate::support::daemon::{Output, binary, run_cli};
use crate::support::{LONG, apart, eventually, poll, until};

mod forms;

/// A folder with an input, and where the outcomes go.
struct Files {
    folder: TempDir,
}

impl Files {
    fn of(lines: &str) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("jobs.ndjson"), lines).unwrap();
        Self { folder }
    }

    /// An input of this number of jobs, named `job-N` from 0.
    fn of_jobs(count: usize) -> Self {
        Self::of(&(0..count).map(|n| format!("{{\"id\": \"job-{n}\", \"body\": {n}}}\n")).collect::<String>())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn outcomes(&self) -> Vec<Value> {
        outcomes(&self.text("out.ndjson"))
    }

    /// A pipe that continues from `out.ndjson`, with these programs before it.
    async fn start(&self, before: &[&str], api: &Api, rate: &str, more: &[&str]) -> Pipe {
        let mut words: Vec<String> = ["setpriv", "--pdeathsig", "KILL", "--"].map(str::to_owned).to_vec();
        words.extend(before.iter().map(|word| (*word).to_owned()));
        words.push(binary().to_str().unwrap().to_owned());
        words.extend(["pipe", "--rate", rate, "--to", &api.url(), "--resume"].map(str::to_owned));
        words.push(self.path("out.ndjson").to_str().unwrap().to_owned());
        words.push(self.path("jobs.ndjson").to_str().unwrap().to_owned());
        words.extend(more.iter().map(|word| (*word).to_owned()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_remove("RUST_LOG").env("NO_COLOR", "1").stdin(Stdio::null());
        command.stdout(File::create(self.path("stdout")).unwrap());
        let stderr = self.path("stderr");
        command.stderr(File::create(&stderr).unwrap());
        // The process dies with the thread that spawns it, and this one never ends.
        let child = apart(async move { command.spawn().unwrap() }).await;
        Pipe { child, stderr }
    }
}

/// Has the API answer this many requests from now on, and hold the answers of all others.
fn answers(api: &Api, count: usize) -> Gate {
    let (gate, arrived) = (Gate::closed(), AtomicUsize::new(0));
    let held = gate.clone();
    api.rule(move |_| match arrived.fetch_add(1, Ordering::Relaxed) < count {
        true => Answer::ok(),
        false => Answer::ok().gated(&held),
    });
    gate
}

fn outcomes(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// A pipe that runs. It is killed when dropped.
struct Pipe {
    child: Child,
    stderr: PathBuf,
}

impl Pipe {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// Sends a signal that has it stop, and waits until it is stopping.
    async fn stop(&self, signal: Signal) {
        self.signal(signal);
        eventually("the signal is taken", LONG, || self.stderr().contains("stopping")).await;
    }

    /// Waits for its end: its exit code, `None` after a signal, and its output.
    async fn end(&mut self) -> (Option<i32>, String) {
        let child = &mut self.child;
        let status = poll(LONG, || std::future::ready(child.try_wait().unwrap())).await.expect("an end");
        (status.code(), self.stderr())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The figures of the last line: the number after each word.
fn figures(stderr: &str) -> BTreeMap<String, usize> {
    let line = stderr.lines().rfind(|line| line.starts_with("paced: delivered")).expect(stderr);
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let mut figures = BTreeMap::new();
    for (index, word) in words.iter().enumerate() {
        if let Ok(number) = word.parse() {
            let key = if words.get(index + 1) == Some(&"before") { "before" } else { words[index - 1] };
            figures.insert(key.to_owned(), number);
        }
    }
    figures
}

fn slot(outcome: &Value) -> i64 {
    outcome["released_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_microsecond()
}

/// How often each job arrived.
fn counts(api: &Api) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for arrival in api.arrivals() {
        *counts.entry(arrival.id().to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn interrupted_twice_and_resumed_twice_every_line_is_delivered_once() {
    const JOBS: usize = 2_000;
    let (api, files) = (Api::start(), Files::of_jobs(JOBS));
    let mut before = 0;
    for stop_at in [JOBS / 4, JOBS / 2] {
        let gate = answers(&api, stop_at - before);
        let mut pipe = files.start(&[], &api, "5000/s", &[]).await;
        gate.wait_for(1, LONG).await;
        pipe.stop(Signal::INT).await;
        gate.open();
        let (code, stderr) = pipe.end().await;
        let (sent, written) = (api.count(), files.outcomes().len());
        assert_eq!(code, Some(1), "{stderr}");
        assert_eq!(sent, written, "what was sent has its outcome: {stderr}");
        let figures = figures(&stderr);
        assert_eq!(figures["delivered"], sent - before, "{stderr}");
        assert_eq!(figures.get("before").copied().unwrap_or_default(), before, "{stderr}");
        assert_eq!(figures["left"], JOBS - sent, "{stderr}");
        before = sent;
    }
    let mut pipe = files.start(&[], &api, "5000/s", &[]).await;
    let (code, stderr) = pipe.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    let end = figures(&stderr);
    assert_eq!((end["delivered"], end["before"], end["left"]), (JOBS - before, before, 0), "{stderr}");

    let counts = counts(&api);
    assert_eq!(counts.len(), JOBS);
    assert!(counts.values().all(|count| *count == 1));
    let outcomes = files.outcomes();
    let lines: BTreeSet<u64> = outcomes.iter().map(|outcome| outcome["line"].as_u64().unwrap()).collect();
    assert_eq!((outcomes.len(), lines.len()), (JOBS, JOBS));
    assert!(outcomes.iter().all(|outcome| outcome["outcome"] == "delivered"));
    // Over all three runs no two slots are closer than an interval.
    let mut slots: Vec<i64> = outcomes.iter().map(slot).collect();
    slots.sort_unstable();
    assert!(slots.windows(2).all(|pair| pair[1] - pair[0] >= 200));
    let text = files.text("stdout");
    assert!(text.is_empty(), "the outcomes go to the file: {text}");
}

/// What is left makes the exit code 1, and not 75, whether it was read or not: nothing was cut off.
#[tokio::test]
async fn a_stop_with_jobs_left_says_so() {
    let body = "x".repeat(15 * 1024 * 1024);
    let lines: String = (0..6).map(|n| format!("{{\"id\": \"{n}\", \"body\": \"{body}\"}}\n")).collect();
    let (api, files) = (Api::start(), Files::of(&lines));
    let gate = answers(&api, 0);
    let mut pipe = files.start(&[], &api, "1000/s", &[]).await;
    // The fifth body has no room beside these.
    gate.wait_for(4, LONG).await;
    pipe.stop(Signal::INT).await;
    gate.open();
    let (code, stderr) = pipe.end().await;
    assert_eq!((code, api.count()), (Some(1), 4), "{stderr}");
    assert_eq!((figures(&stderr)["delivered"], figures(&stderr)["left"]), (4, 2), "{stderr}");

    let at = jiff::Timestamp::now().as_second() + 3600;
    let later = format!("{{\"id\": \"later\", \"not_before\": {at}}}\n");
    let (api, files) = (Api::start(), Files::of(&format!("{later}{{\"id\": \"now\"}}\n{later}")));
    let mut pipe = files.start(&[], &api, "1000/s", &[]).await;
    eventually("one is delivered", LONG, || files.outcomes().len() == 1).await;
    pipe.stop(Signal::INT).await;
    let (code, stderr) = pipe.end().await;
    assert_eq!((code, api.count()), (Some(1), 1), "{stderr}");
    assert_eq!((figures(&stderr)["delivered"], figures(&stderr)["left"]), (1, 2), "{stderr}");
}

#[tokio::test]
async fn after_a_kill_only_what_was_in_flight_is_repeated() {
    let (api, files) = (Api::start(), Files::of_jobs(600));
    let gate = answers(&api, 200);
    let mut pipe = files.start(&[], &api, "2000/s", &["--concurrency", "20"]).await;
    gate.wait_for(20, LONG).await;
    eventually("outcomes are written", LONG, || files.outcomes().len() == 200).await;
    pipe.signal(Signal::KILL);
    assert_eq!(pipe.end().await.0, None);
    let recorded: BTreeSet<String> =
        files.outcomes().iter().map(|outcome| outcome["id"].as_str().unwrap().to_owned()).collect();
    let in_flight: BTreeSet<String> = counts(&api).into_keys().filter(|id| !recorded.contains(id)).collect();
    assert_eq!((recorded.len(), in_flight.len()), (200, 20));
    // The outcome that it was just writing.
    let torn = format!("{}{{\"line\":201,\"id\":\"job-2", files.text("out.ndjson"));
    std::fs::write(files.path("out.ndjson"), torn).unwrap();
    gate.open();

    let mut pipe = files.start(&[], &api, "2000/s", &[]).await;
    let (code, stderr) = pipe.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("half written"), "{stderr}");
    let counts = counts(&api);
    assert_eq!(counts.len(), 600);
    let repeated = counts.into_iter().filter(|(_, count)| *count != 1);
    assert!(repeated.eq(in_flight.into_iter().map(|id| (id, 2))));
    let lines: BTreeSet<u64> =
        files.outcomes().iter().map(|outcome| outcome["line"].as_u64().unwrap()).collect();
    assert_eq!((files.outcomes().len(), lines.len()), (600, 600));
}

#[tokio::test]
async fn a_hangup_ends_it_in_order_unless_it_was_started_with_nohup() {
    let (api, files) = (Api::start(), Files::of_jobs(200));
    // The tests themselves may have been started with nohup.
    let gate = answers(&api, 20);
    let mut pipe =
        files.start(&["env", "--default-signal=HUP"], &api, "1000/s", &["--concurrency", "8"]).await;
    gate.wait_for(8, LONG).await;
    pipe.stop(Signal::HUP).await;
    gate.open();
    let (code, stderr) = pipe.end().await;
    let sent = api.count();
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("SIGHUP"), "{stderr}");
    assert_eq!((figures(&stderr)["delivered"], figures(&stderr)["left"]), (sent, 200 - sent), "{stderr}");

    let gate = answers(&api, 20);
    let mut pipe = files.start(&["nohup"], &api, "1000/s", &["--concurrency", "8"]).await;
    gate.wait_for(8, LONG).await;
    pipe.signal(Signal::HUP);
    gate.open();
    let (code, stderr) = pipe.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(api.count(), 200);
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once_with_its_figures() {
    let (api, files) = (Api::start(), Files::of_jobs(100));
    let gate = Gate::closed();
    let held = gate.clone();
    api.rule(move |arrival| match arrival.id() {
        "job-30" | "job-31" | "job-32" => Answer::ok().gated(&held),
        _ => Answer::ok(),
    });
    let mut pipe = files.start(&[], &api, "100/s", &[]).await;
    gate.wait_for(3, LONG).await;
    pipe.stop(Signal::INT).await;
    let is_quiet = || api.in_flight() == 3 && files.outcomes().len() + 3 == api.count();
    eventually("all others have their outcomes", LONG, is_quiet).await;
    pipe.signal(Signal::INT);
    let (code, stderr) = pipe.end().await;
    assert_eq!(code, Some(75), "{stderr}");
    let (figures, written) = (figures(&stderr), files.outcomes().len());
    assert_eq!((figures["delivered"], figures["off"]), (written, 3), "{stderr}");
    assert_eq!(figures["left"], 100 - written - 3, "{stderr}");
    assert_eq!(api.count(), written + 3);
}

async fn resume(out: &Path, file: &str, api: &Api, stdin: &str) -> Output {
    let (out, url) = (out.to_str().unwrap(), api.url());
    run_cli(&["pipe", "--rate", "500/s", "--to", &url, "--resume", out, file], stdin.as_bytes()).await
}

#[tokio::test]
async fn an_input_that_is_not_that_of_the_outcomes_is_refused() {
    let (api, files) = (Api::start(), Files::of_jobs(3));
    let (out, jobs) = (files.path("out.ndjson"), files.path("jobs.ndjson"));
    assert_eq!(resume(&out, jobs.to_str().unwrap(), &api, "").await.code, 0);
    let other = files.path("other.ndjson");
    std::fs::write(&other, "{\"id\": \"new\"}\n{\"id\": \"job-1\"}\n{\"id\": \"job-2\"}\n").unwrap();
    let before = files.text("out.ndjson");
    let refused = resume(&out, other.to_str().unwrap(), &api, "").await;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    let problem =
        "line 1 of the input is job new, and the outcome there is that of job job-0; give the input of";
    assert!(refused.stderr.contains(problem), "{}", refused.stderr);
    // The contents of stdin are not known beforehand.
    let shorter = resume(&out, "-", &api, "{\"id\": \"job-0\"}\n").await;
    assert_eq!(shorter.code, 2, "{}", shorter.stderr);
    assert!(shorter.stderr.contains("line 2 of the input is no job"), "{}", shorter.stderr);
    // The input in place of the outcomes stays as it is.
    let swapped = resume(&jobs, other.to_str().unwrap(), &api, "").await;
    assert_eq!(swapped.code, 2, "{}", swapped.stderr);
    assert!(swapped.stderr.contains("line 1 is no outcome of a pipe"), "{}", swapped.stderr);
    assert_eq!((api.count(), files.text("out.ndjson")), (3, before));
}

#[tokio::test]
async fn a_run_that_goes_on_keeps_the_pace() {
    let (api, files) = (Api::start(), Files::of_jobs(1));
    let (out, jobs) = (files.path("out.ndjson"), files.path("jobs.ndjson"));
    let run = async || {
        let (url, out) = (api.url(), out.to_str().unwrap());
        let args = ["pipe", "--rate", "1/h", "--on-limit", "reject", "--to", &url, "--resume", out];
        run_cli(&[&args[..], &[jobs.to_str().unwrap()]].concat(), b"").await
    };
    assert_eq!(run().await.code, 0);
    let text = files.text("jobs.ndjson") + "{\"id\": \"job-1\"}\n";
    std::fs::write(&jobs, text).unwrap();
    for _ in 0..3 {
        let refused = run().await;
        assert_eq!(refused.code, 1, "{}", refused.stderr);
        assert!(refused.stderr.contains("the limit `rate` is used up"), "{}", refused.stderr);
    }
    assert_eq!(api.count(), 1, "one request in an hour, over all runs");
}

#[tokio::test]
async fn what_failed_is_sent_again_under_the_same_id() {
    let (api, files) = (Api::start(), Files::of("{}\n{}\n"));
    api.script("/", [Answer::status(410)]);
    let (out, jobs) = (files.path("out.ndjson"), files.path("jobs.ndjson"));
    assert_eq!(resume(&out, jobs.to_str().unwrap(), &api, "").await.code, 1);
    let again = resume(&out, jobs.to_str().unwrap(), &api, "").await;
    assert_eq!(again.code, 0, "{}", again.stderr);
    let arrivals = api.arrivals();
    assert_eq!(arrivals.len(), 3);
    assert_eq!(arrivals[0].id(), arrivals[2].id(), "the id that the first run gave it");
    assert!(again.stderr.contains("delivered 1 and 1 before"), "{}", again.stderr);
}

#[tokio::test]
async fn a_terminal_shows_how_far_it_is() {
    let (api, files) = (Api::start(), Files::of_jobs(100));
    let paced = binary();
    let (url, jobs) = (api.url(), files.path("jobs.ndjson"));
    let text = format!("'{}' pipe --rate 50/s --to {url} '{}' > /dev/null", paced.display(), jobs.display());
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "60", "script", "-qec", &text, "/dev/null"]).stdin(Stdio::null());
    command.env("TERM", "xterm").env("COLUMNS", "120");
    let output = apart(async move { command.output().unwrap() }).await;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    for part in ["/100 (", " %), ", "% of 50/s, 00:00:0", " left", "delivered 100, dead 0"] {
        assert!(shown.contains(part), "{part} in {shown:?}");
    }
}

#[tokio::test]
async fn the_reload_of_the_tour_reaches_daemons_and_no_pipe() {
    let tour = include_str!("../../docs/tour.md");
    let line = tour.lines().find(|line| line.contains("# reads the file again")).unwrap();
    let pattern = line.strip_prefix("pkill -HUP -f '").and_then(|rest| rest.split('\'').next()).expect(line);
    let (api, files) = (Api::start(), Files::of_jobs(1000));
    let config = "[downstreams.a]\nrate = '1/s'\nhttp.base_url = 'http://127.0.0.1:1/'\n";
    std::fs::write(files.path("paced.toml"), config).unwrap();
    let mut pipe = files.start(&[], &api, "1/s", &[]).await;
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(binary())
        .args(["run", "-c"])
        .arg(files.path("paced.toml"));
    command.args(["--set", "amqp.url=amqp://127.0.0.1:1"]).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    let daemon = apart(async move { command.spawn().unwrap() }).await;
    let daemon = Pipe { child: daemon, stderr: files.path("stderr") };
    api.wait_for(1, LONG).await;
    // It is looked up and not signalled: there may be other daemons on this machine.
    let found = async || {
        let mut command = Command::new("pgrep");
        command.args(["-f", pattern]);
        let output = apart(async move { command.output().unwrap() }).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(|pid| pid.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    until("the daemon is found", LONG, async || found().await.contains(&daemon.child.id())).await;
    assert!(!found().await.contains(&pipe.child.id()));
    pipe.signal(Signal::INT);
    assert_eq!(pipe.end().await.0, Some(1));
}
