use std::time::Duration;

use super::super::ring;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rings_in_order_and_never_early() {
    let clock = ThreadClock::start().unwrap();
    let start = Instant::now();
    let (tell, mut rung) = tokio::sync::mpsc::unbounded_channel();
    // The latest first: each next one is an earlier instant than the thread sleeps for.
    for millis in (1..=20).rev() {
        let (mut alarm, tell) = (clock.alarm(), tell.clone());
        tokio::spawn(async move {
            alarm.set(Some(start + Duration::from_millis(millis * 5)));
            ring(&mut *alarm).await;
            tell.send((millis, start.elapsed())).unwrap();
        });
    }
    drop(tell);
    let mut seen = Vec::new();
    while let Some((millis, elapsed)) = rung.recv().await {
        assert!(elapsed >= Duration::from_millis(millis * 5), "{millis}: {elapsed:?}");
        seen.push(millis);
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dropped_alarm_leaves_nothing() {
    let clock = ThreadClock::start().unwrap();
    let mut alarm = clock.alarm();
    alarm.set(Some(Instant::now() + Duration::from_secs(3600)));
    assert!(tokio::time::timeout(Duration::from_millis(5), ring(&mut *alarm)).await.is_err());
    assert_eq!(clock.handle.shared.lock().queue.len(), 1);
    drop(alarm);
    assert_eq!(clock.handle.shared.lock().queue.len(), 0);
    assert_eq!(clock.handle.shared.lock().queue.first(), None);
    clock.until(Instant::now()).await;
}
