//! What requests cost the store, and what becomes of them without their client.

use super::*;

/// However many requests ask for a downstream, they read the store only a number of times in a second.
#[tokio::test(start_paused = true)]
async fn reads_of_the_store_are_bounded() {
    let bench = Bench::new();
    for second in 0..3 {
        let mut asked = 0;
        for number in 0..200 {
            let what = if number % 2 == 0 { "" } else { "/rate" };
            let (status, headers, answer) =
                bench.send("GET", &format!("/api/v1/downstreams/billing{what}"), "").await;
            match status {
                200 => asked += 1,
                // The observer of this bench has no records.
                503 => {
                    assert_eq!(headers["retry-after"], "1", "{answer}");
                    break;
                }
                other => panic!("{other} {answer}"),
            }
        }
        assert_eq!(asked, 50, "second {second}");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

/// A change continues without the client that asked for it.
#[tokio::test]
async fn a_change_is_made_though_its_request_is_given_up() {
    let bench = Bench::new();
    let mut pause = Box::pin(bench.ok("POST", "/pause", r#"{"reason": "gone"}"#));
    assert!(
        futures_util::poll!(&mut pause).is_pending(),
        "its body is read, and it is carried out elsewhere"
    );
    drop(pause);
    let is_paused = async || bench.store.read_record("billing").await.unwrap().status.is_stopped();
    while !is_paused().await {
        tokio::task::yield_now().await;
    }
    bench.changes.close();
    bench.changes.wait().await;
}

/// The history is only in the store, so a request for it waits for its turn.
#[tokio::test(start_paused = true)]
async fn a_read_of_the_history_waits() {
    let bench = Bench::new();
    let begun = tokio::time::Instant::now();
    for _ in 0..120 {
        let (status, _, answer) = bench.send("GET", "/api/v1/downstreams/billing/changes", "").await;
        assert_eq!(status, 200, "{answer}");
    }
    assert_eq!(begun.elapsed().as_secs(), 2, "50 a second");
}

/// Changes continue without their clients, so their number is bounded apart from the requests.
#[tokio::test(start_paused = true)]
async fn changes_in_progress_are_bounded() {
    let bench = Bench::new();
    let tasks: Vec<_> = (0..MAX_CHANGES).map(|_| bench.changes.spawn(std::future::pending::<()>())).collect();
    for (path, body) in [("pause", "{}"), ("dead/purge", r#"{"all": true}"#)] {
        let path = format!("/api/v1/downstreams/billing/{path}");
        let (status, headers, answer) = bench.send("POST", &path, body).await;
        assert_eq!((status, headers["retry-after"].to_str().unwrap()), (503, "1"), "{answer}");
        assert!(answer.to_string().contains("too many changes"), "{answer}");
    }
    assert!(!bench.store.read_record("billing").await.unwrap().status.is_stopped());
    tasks[0].abort();
    while bench.changes.len() == MAX_CHANGES {
        tokio::task::yield_now().await;
    }
    bench.ok("POST", "/pause", "{}").await;
}
