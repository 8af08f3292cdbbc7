//! Jobs for later.

use super::*;
use crate::dispatch::ParkReason;

/// More jobs for later than the window holds keep none for now back, and each goes when its time has come.
#[tokio::test(start_paused = true)]
async fn jobs_for_later_hold_no_place() {
    let at = wall_now().plus(Duration::from_secs(3600)).0 / 1_000_000;
    let later = format!("{{\"id\": \"later\", \"not_before\": {at}}}\n").repeat(WINDOW + 10);
    let input = format!("{later}{{\"id\": \"now\"}}\n");
    let (mut source, writer) =
        open_lines(io::Cursor::new(input), tokio::io::sink(), Notices::default().notify()).await;
    let (begin, progress) = (tokio::time::Instant::now(), writer.progress());
    let running = tokio::spawn(writer.run());
    let first = source.next().await.expect("a job");
    assert_eq!(first.message.message_id.as_deref(), Some("now"));
    assert!(begin.elapsed() < Duration::from_secs(1), "paused time stood still");
    ack(first);
    for _ in 0..WINDOW + 10 {
        ack(source.next().await.expect("a job"));
    }
    assert!(begin.elapsed() >= Duration::from_secs(3598), "{:?}", begin.elapsed());
    assert_eq!(progress.entries(), Some(WINDOW as u64 + 11));
    assert!(source.next().await.is_none());
    drop(source);
    assert_eq!(running.await.expect("no panic").expect("written").delivered, WINDOW as u64 + 11);
}

fn in_seconds(seconds: u64) -> i64 {
    wall_now().plus(Duration::from_secs(seconds)).0 / 1_000_000
}

fn id(delivery: &Delivery) -> &str {
    delivery.message.message_id.as_deref().expect("an id")
}

/// One that has waited comes with the time at which it was read, so that it goes before those that were read since.
#[tokio::test(start_paused = true)]
async fn a_job_for_later_keeps_its_place_in_the_order_of_the_input() {
    let at = in_seconds(3600);
    let input = format!("{{\"id\": \"later\", \"not_before\": {at}}}\n{{\"id\": \"now\"}}\n");
    let (mut source, writer) =
        open_lines(io::Cursor::new(input), tokio::io::sink(), Notices::default().notify()).await;
    let before = wall_now();
    let now = source.next().await.expect("a job");
    assert_eq!((id(&now), &now.stay), ("now", &None));
    assert_eq!(writer.progress().waiting(), 1);
    let read = wall_now();
    let later = source.next().await.expect("a job");
    assert_eq!(id(&later), "later");
    let stay = later.stay.as_ref().expect("it has waited");
    assert!(before <= stay.first_seen && stay.first_seen <= read, "{stay:?}");
    assert_eq!((stay.until, stay.reason), (Micros(at * 1_000_000), ParkReason::NotBefore));
    assert_eq!((stay.attempts, stay.throttled, stay.refused, stay.unreadable), (0, 0, 0, 0));
    assert_eq!(writer.progress().waiting(), 0);
    ack(now);
    ack(later);
    drop(source);
    assert!(writer.run().await.expect("written").is_clean());
}

/// What is to be refused is refused at once, and what expires before its time has come goes when it does.
#[tokio::test(start_paused = true)]
async fn bad_jobs_for_later_do_not_wait_for_their_time() {
    let (near, far, year) = (in_seconds(60), in_seconds(3600), in_seconds(367 * 86_400));
    let input = [
        format!("{{\"id\": \"path\", \"not_before\": {far}, \"path\": \"../x\"}}\n"),
        format!("{{\"id\": \"year\", \"not_before\": {year}}}\n"),
        format!("{{\"id\": \"cost\", \"not_before\": {far}, \"cost\": 7}}\n"),
        format!("{{\"id\": \"ends\", \"not_before\": {far}, \"deadline\": {near}}}\n"),
        "{\"id\": \"now\"}\n".to_owned(),
    ];
    let (mut source, _writer) =
        open_lines(io::Cursor::new(input.concat()), tokio::io::sink(), Notices::default().notify()).await;
    let begin = tokio::time::Instant::now();
    for expected in ["path", "year", "cost", "now"] {
        assert_eq!(id(&source.next().await.expect("a job")), expected);
    }
    assert!(begin.elapsed() < Duration::from_secs(1), "paused time stood still");
    assert_eq!(id(&source.next().await.expect("a job")), "ends");
    let waited = begin.elapsed();
    assert!(waited > Duration::from_secs(50) && waited < Duration::from_secs(70), "{waited:?}");
    assert!(source.next().await.is_none());
}

/// More of them than there are places, while the files take no more: those in the files go in time, and so does one for now
/// once those before it in the input found room.
#[tokio::test(start_paused = true)]
async fn jobs_for_later_that_find_no_room_in_files_do_not_stop_the_others() {
    let (soon, far) = (in_seconds(60), in_seconds(86_400));
    let line = |id: &str, at: i64| format!("{{\"id\": \"{id}\", \"not_before\": {at}}}\n");
    let count = WINDOW + 10;
    let input = [
        "{\"id\": \"now\"}\n".to_owned(),
        line("soon", soon).repeat(count),
        line("far", far).repeat(count),
        "{\"id\": \"last\"}\n".to_owned(),
    ];
    let (mut source, writer) =
        open_lines(io::Cursor::new(input.concat()), tokio::io::sink(), Notices::default().notify()).await;
    source.later.limit_jobs(count as u64);
    let (begin, progress) = (tokio::time::Instant::now(), writer.progress());
    let running = tokio::spawn(writer.run());
    ack(source.next().await.expect("a job"));
    let mut far = Vec::new();
    for _ in 0..WINDOW / 2 {
        let delivery = source.next().await.expect("a job");
        assert_eq!(id(&delivery), "far", "they wait with a place");
        far.push(delivery);
    }
    assert!(poll(pin!(source.next())).is_pending(), "the input is read no further");
    assert_eq!(progress.waiting(), count as u64 + 1);
    assert!(begin.elapsed() < Duration::from_secs(1), "paused time stood still");
    for _ in 0..count {
        let delivery = source.next().await.expect("a job");
        assert_eq!(id(&delivery), "soon");
        ack(delivery);
    }
    assert_eq!(id(&source.next().await.expect("a job")), "last");
    assert!(begin.elapsed() < Duration::from_secs(70), "{:?}", begin.elapsed());
    far.into_iter().for_each(ack);
    for _ in 0..count - WINDOW / 2 {
        let delivery = source.next().await.expect("a job");
        assert_eq!(id(&delivery), "far");
        ack(delivery);
    }
    assert!(begin.elapsed() > Duration::from_secs(86_390));
    assert!(source.next().await.is_none());
    drop(source);
    assert_eq!(running.await.expect("no panic").expect("written").delivered, 2 * count as u64 + 1);
}

/// Jobs for later get a part of the places and bytes; a job that is due needs no share of that part.
#[tokio::test(start_paused = true)]
async fn large_jobs_for_later_leave_room_for_the_bodies_of_others() {
    let at = in_seconds(3600);
    let large =
        format!("{{\"id\": \"far\", \"not_before\": {at}, \"body\": \"{}\"}}\n", "x".repeat(MAX_LINE - 100));
    let (mut source, _writer) =
        open_lines(io::Cursor::new(large.repeat(3)), tokio::io::sink(), Notices::default().notify()).await;
    source.later.limit_jobs(0);
    let begin = tokio::time::Instant::now();
    let first_two = [source.next().await.expect("a job"), source.next().await.expect("a job")];
    assert!(poll(pin!(source.next())).is_pending(), "they have half of 64 MiB");
    assert!(begin.elapsed() < Duration::from_secs(1), "paused time stood still");
    let third = source.next().await.expect("a job");
    assert!(begin.elapsed() > Duration::from_secs(3590));
    assert_eq!(
        (id(&third), first_two.map(|delivery| id(&delivery).to_owned())),
        ("far", ["far", "far"].map(str::to_owned))
    );
}

/// A job that was read and waits for room for its body counts as one that is left.
#[tokio::test]
async fn a_job_that_waits_for_room_is_counted() {
    let input = format!("{{\"body\": \"{}\"}}\n", "x".repeat(MAX_LINE - 100)).repeat(5);
    let (mut source, writer) =
        open_lines(io::Cursor::new(input), tokio::io::sink(), Notices::default().notify()).await;
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(source.next().await.expect("a job"));
    }
    assert_eq!(writer.progress().waiting(), 0);
    assert!(poll(pin!(source.next())).is_pending(), "64 MiB are read");
    assert_eq!(writer.progress().waiting(), 1);
}
