//! A store in a file, by processes as they are: its pace survives restarts and kills, and one process at a time uses it.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Edges};
use paced::store::{Reserve, Scope, Store as _};
use paced::{FileStore, Limit, LimitSet, Shaper, ShaperBuilder};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::examples::example;
use crate::support::LONG;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::site::{NAME, Site};

/// How often a process is killed.
const KILLS: usize = 20;
/// The time between two slots at 200/s, in µs.
const APART: i64 = 5000;

/// Runs a program with the pace of this file, kills it once it has printed this many slots, and returns all that it has printed.
async fn run_and_kill(path: &Path, lines: usize) -> Vec<i64> {
    let mut command = example("embed");
    command.arg(format!("file:{}", path.display())).args(["1000000", "200/s"]).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut slots = Vec::new();
    while let Some(line) = tokio::time::timeout(LONG, output.next_line()).await.unwrap().unwrap() {
        slots.push(line.parse().unwrap());
        if slots.len() == lines {
            program.start_kill().unwrap();
        }
    }
    assert!(slots.len() >= lines, "it ended by itself after {} slots", slots.len());
    program.wait().await.unwrap();
    slots
}

/// All slots of all runs are at least an interval apart, for a kill at any point.
#[tokio::test]
async fn no_kill_of_a_program_adds_a_slot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pace");
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for _ in 0..KILLS {
        all.extend(run_and_kill(&path, rng.usize(1..=60)).await);
    }
    all.sort_unstable();
    for pair in all.windows(2) {
        assert!(pair[1] - pair[0] >= APART, "{} µs apart, of {} slots", pair[1] - pair[0], all.len());
    }
}

/// A site whose pace is kept in a file of this folder.
async fn site(topic: &str, folder: &Path, downstream: &str) -> Site {
    let mut site = Site::shared(topic, downstream).await;
    site.store = format!("file:{}", folder.join("pace").display());
    site
}

/// The units of `quota-0` that are left in this file.
async fn left(folder: &Path, count: u64, most: usize) -> usize {
    let store = FileStore::open(folder.join("pace")).unwrap();
    let edges = Edges::first_hit(Duration::from_secs(86_400)).unwrap();
    let limits = LimitSet::new(vec![Limit::quota("quota-0", count, edges).unwrap()]).unwrap();
    let (scope, costs) = (Scope { downstream: NAME, key: "" }, vec![1; most]);
    let call = Reserve::new(scope, &limits, Costs::Each(&costs), Duration::ZERO);
    let left = store.reserve(call).await.unwrap().slots.len();
    store.finish().await.unwrap();
    left
}

#[tokio::test]
async fn ten_a_day_are_ten_over_stops_and_kills() {
    let folder = tempfile::tempdir().unwrap();
    let limits = "limits = [{ algorithm = 'quota', rate = '10/day', reset = 'rolling' }]";
    let site = site("lasting", folder.path(), limits).await;
    for (run, jobs) in [3, 3, 20].into_iter().enumerate() {
        let sent = (3 * (run + 1)).min(9) + usize::from(run == 2);
        let replica = site.replica().await;
        site.publish((0..jobs).map(|job| Job::new(format!("job-{run}-{job}"))).collect()).await;
        site.api.wait_for(sent, LONG).await;
        if run == 1 {
            replica.kill9();
        } else {
            assert_eq!(replica.stop().await, 0);
        }
    }
    let replica = site.replica().await;
    assert_eq!(replica.stop().await, 0);
    assert_eq!(site.api.count(), 10);
    assert_eq!(left(folder.path(), 10, 5).await, 0);
    assert_eq!(left(folder.path(), 11, 5).await, 1, "what is kept is the quota's state");
}

#[tokio::test]
async fn one_process_at_a_time_uses_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let site = site("lasting-lock", folder.path(), "rate = '100/s'").await;
    let first = site.replica().await;
    let holder = format!("process {} uses it", first.pid());
    let second = Paced::start(&site.config(), &[], &[]).await;
    let line = second.wait_line("the store decides nothing until it has its file", LONG).await;
    assert!(line.contains(&holder), "{line}");
    for command in [&["check", "--online"][..], &["pipe", "--downstream", NAME]] {
        let refused = site.cli(command).await;
        assert_eq!(refused.code, 69, "{}", refused.stderr);
        assert!(refused.stderr.contains(&holder), "{}", refused.stderr);
    }
    assert_eq!(first.stop().await, 0);
    site.publish(Job::many("job", 5)).await;
    site.api.wait_for(5, LONG).await;
    assert_eq!(second.stop().await, 0);
    let checked = site.cli(&["check", "--online"]).await;
    let ok = format!("store ok: {}", site.store);
    assert!(checked.code == 0 && checked.stdout.contains(&ok), "{}{}", checked.stdout, checked.stderr);
}

#[tokio::test]
async fn a_file_that_is_no_store_is_left_alone_and_holds_the_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let site = site("lasting-foreign", folder.path(), "rate = '100/s'").await;
    let file = folder.path().join("pace");
    std::fs::write(&file, "not a store\n").unwrap();
    let replica = Paced::start(&site.config(), &[], &[]).await;
    let line = replica.wait_line("the store decides nothing until it has its file", LONG).await;
    assert!(line.contains("it is no store of paced"), "{line}");
    replica.wait_ready().await;
    site.publish(Job::many("job", 3)).await;
    let checked = site.cli(&["check", "--online"]).await;
    assert_eq!(checked.code, 69, "{}", checked.stderr);
    assert_eq!((site.api.count(), std::fs::read_to_string(&file).unwrap().as_str()), (0, "not a store\n"));
    // Once somebody has moved it away, the jobs go.
    std::fs::rename(&file, folder.path().join("other")).unwrap();
    site.api.wait_for(3, LONG).await;
    assert_eq!(replica.stop().await, 0);
}

/// A configuration is read without its store, which other processes may have; in one process all shapers share a store.
#[tokio::test]
async fn shapers_of_a_configuration_share_one_store() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("paced.toml");
    let downstream = |name: &str| {
        format!("[downstreams.{name}]\nrate = '1000/s'\nhttp.base_url = 'http://127.0.0.1:1/'\n")
    };
    let text = format!("[store]\nurl = 'file:pace'\n{}{}", downstream("a"), downstream("b"));
    std::fs::write(&config, text).unwrap();
    let builder = |name| ShaperBuilder::from_config(&config, name).unwrap();
    let (a, b) = (builder("a"), builder("b"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is opened or locked");
    let store = Arc::new(FileStore::open(folder.path().join("pace")).unwrap());
    for builder in [a, b] {
        let shaper = builder.store(Arc::clone(&store)).build().unwrap();
        shaper.acquire("any").await.unwrap();
    }
    let error = Shaper::from_config(&config, "a").unwrap_err().to_string();
    assert!(error.contains("in one process all share a FileStore"), "{error}");
    store.finish().await.unwrap();
    Shaper::from_config(&config, "a").unwrap().acquire("any").await.unwrap();
}
