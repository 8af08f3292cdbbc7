//! Runs the examples as processes.

mod axum_limits;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::Command;

use crate::support::servers;

/// The binary of an example, which was built along with this test.
pub(super) fn example(name: &str) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "{} is missing: run `cargo build --example {name}` first", path.display());
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn two_processes_keep_one_exact_pace() {
    let redis = servers::redis().await;
    let embed = || {
        let mut command = example("embed");
        command.arg(redis.url()).arg("10");
        command.output()
    };
    let slots = |output: Output| -> Vec<i64> {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
    };
    // They share nothing where one begins after the other has ended: then both run again.
    for _ in 0..30 {
        let (one, two) = tokio::join!(embed(), embed());
        let (one, two) = (slots(one.unwrap()), slots(two.unwrap()));
        assert_eq!((one.len(), two.len()), (10, 10));
        let are_beside_each_other = one[0] < two[9] && two[0] < one[9];
        // A process that is late takes a later slot; the grid itself is tested where time is virtual.
        let mut all = [one, two].concat();
        all.sort_unstable();
        for pair in all.windows(2) {
            assert!(pair[1] - pair[0] >= 50_000, "{pair:?} of {all:?}");
        }
        if are_beside_each_other {
            return;
        }
    }
    panic!("the processes never ran beside each other");
}

#[tokio::test]
async fn embed_needs_no_store() {
    let output = example("embed").args(["memory:", "3"]).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 3);
}

/// The project's own vectors, and those beside the checkout, if there are any.
fn vectors() -> Vec<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/vectors/throttlekit.json");
    let own = [own("leaky_bucket.json"), own("policers.json")];
    own.into_iter().chain(shared.exists().then_some(shared)).collect()
}

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name)
}

async fn replay(file: &Path, store: &str) -> (Option<i32>, String) {
    let output = example("replay_vectors").arg(file).args(["--store", store]).output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// How many operations the suites of a file hold.
fn operations(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let vectors: serde_json::Value = serde_json::from_str(&text).unwrap();
    let suites = vectors["suites"].as_array().unwrap().iter();
    suites.map(|suite| suite["ops"].as_array().unwrap().len()).sum()
}

#[tokio::test]
async fn recorded_decisions_are_repeated() {
    let redis = servers::redis().await;
    for file in vectors() {
        let all = format!(" {} operations, 0 mismatches", operations(&file));
        for store in ["memory:", &redis.url()] {
            let (code, printed) = replay(&file, store).await;
            assert_eq!(code, Some(0), "{store}: {printed}");
            assert!(printed.contains(&all) && !printed.contains("skipped"), "{store}: {printed}");
        }
    }
}

#[tokio::test]
async fn a_different_decision_is_reported() {
    let (code, printed) = replay(&own("wrong.json"), "memory:").await;
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("thirds operation 1 ") && printed.contains("thirds operation 4 "), "{printed}");
    // The wait after a denial of a sliding window may be longer than the vector's, but not shorter.
    assert!(
        printed.contains("buckets operation 2 ") && !printed.contains("buckets operation 1 "),
        "{printed}"
    );
    assert!(printed.contains(" 3 mismatches"), "{printed}");
    let (code, _) = replay(Path::new("no-such-file"), "memory:").await;
    assert_eq!(code, Some(2));
}

/// docs/algorithms.md shows the output of the example `algorithms`.
#[tokio::test]
async fn the_page_on_algorithms_shows_what_its_example_prints() {
    let output = example("algorithms").output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/algorithms.md")).unwrap();
    let shown: Vec<&str> =
        page.split("```text\n").skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect();
    assert_eq!(shown.len(), 2, "two figures");
    for figure in shown {
        assert!(printed.contains(figure), "the page shows:\n{figure}\nthe example prints:\n{printed}");
    }
}

#[tokio::test]
async fn a_suite_that_is_no_limit_is_reported_and_another_strategy_is_skipped() {
    let (code, printed) = replay(&own("no_limits.json"), "memory:").await;
    assert_eq!(code, Some(1), "{printed}");
    for expected in [
        "uneven: a period of 100ms does not divide into 3 buckets of whole microseconds; use 2 or 4 buckets",
        "no burst: a burst of 0 lets nothing through",
        "half a unit: `limit` is 0.5, not a count",
        "3 suites, 0 operations, 3 mismatches",
        "skipped 1 suites of other: not in this version",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}
