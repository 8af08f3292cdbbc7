//! Jobs that cost more than a window has left, and those that cost less behind them.

use tokio::time::sleep;

use super::pauses::update_record;
use super::*;
use crate::dispatch::OnUnavailable;
use crate::store::Change;

const SECOND: Duration = Duration::from_secs(1);

fn window(period: Duration) -> Limit {
    Limit::first_hit_window("window", 10, period).unwrap()
}

/// Ten units in a window, and 100/s.
fn bench(period: Duration) -> Bench {
    let mut bench = Bench::new("100/s", QUICK);
    let pace = bench.options.limits.iter().next().cloned();
    bench.options.limits = LimitSet::new(pace.into_iter().chain([window(period)]).collect()).unwrap();
    bench
}

fn costs(id: &str, cost: i128) -> Message {
    Message { headers: vec![("paced-cost".to_owned(), Value::Integer(cost))], ..message(id) }
}

#[tokio::test(start_paused = true)]
async fn what_a_window_has_left_goes_to_jobs_that_cost_less() {
    let mut bench = bench(60 * SECOND);
    bench.publish_many(0..7);
    bench.publish(costs("five", 5));
    bench.publish(costs("two", 2));
    bench.publish_many(7..10);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let ids = ["0", "1", "2", "3", "4", "5", "6", "two", "7", "five", "8", "9"];
    assert_eq!(
        bench.sink.ids(),
        ids,
        "the window is used up, and the next one begins with who waited longest"
    );
    let released = bench.sink.millis(start);
    assert!(released[8] <= 200, "{} ms: no window is idle", released[8]);
    assert!((60_000..60_100).contains(&released[9]), "{} ms", released[9]);
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 15, "{calls} calls: nobody asks without use meanwhile");
}

#[tokio::test(start_paused = true)]
async fn who_comes_later_does_not_wait_behind_a_costly_job() {
    let mut bench = bench(3600 * SECOND);
    bench.publish_many(0..7);
    bench.publish(costs("five", 5));
    let start = Instant::now();
    let _running = bench.start();
    sleep(600 * SECOND).await;
    assert_eq!(bench.sink.count(), 7);
    bench.publish(message("later"));
    bench.sink.arrived(8).await;
    assert_eq!(bench.sink.ids()[7], "later");
    assert!((600_000..600_100).contains(&bench.sink.millis(start)[7]));
    bench.sink.arrived(9).await;
    assert!((3_600_000..3_600_100).contains(&bench.sink.millis(start)[8]), "as soon as there is a window");
}

#[tokio::test(start_paused = true)]
async fn a_costly_job_goes_at_once_when_the_counts_begin_at_0() {
    let mut bench = bench(3600 * SECOND);
    bench.publish_many(0..7);
    bench.publish(costs("five", 5));
    let start = Instant::now();
    let _running = bench.start();
    sleep(10 * SECOND).await;
    update_record(&bench, Change::Reset { limits: &[window(3600 * SECOND)] }).await;
    bench.sink.arrived(8).await;
    assert!(start.elapsed() < 11 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_costly_job_of_one_replica_idles_no_window_for_the_others() {
    let mut benches = [bench(60 * SECOND), bench(60 * SECOND)];
    benches[1].store = Arc::new(FlakyStore::new(benches[0].store.inner(), Duration::from_millis(1)));
    benches[0].publish_many(0..7);
    let start = Instant::now();
    let _one = benches[0].start();
    benches[0].sink.arrived(7).await;
    benches[1].publish(costs("five", 5));
    let _other = benches[1].start();
    sleep(SECOND).await;
    benches[0].publish_many(7..12);
    sleep(30 * SECOND).await;
    assert_eq!(benches[0].sink.count(), 10, "all that is left");
    assert_eq!(benches[1].sink.count(), 0);
    benches[1].sink.arrived(1).await;
    let first = benches[1].sink.millis(start)[0];
    assert!((60_000..60_200).contains(&first), "{first} ms: it has its part of the next window");
}

/// The only limit is a window, and the store is in this process, so each call is answered without any delay.
#[tokio::test(start_paused = true)]
async fn costly_jobs_ask_a_store_of_their_own_no_more_often_than_they_must() {
    let mut bench = Bench::new("1/s", QUICK);
    bench.options.limits = LimitSet::new(vec![window(60 * SECOND)]).unwrap();
    bench.options.on_unavailable = OnUnavailable::Local;
    bench.publish_many(0..7);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(7).await;
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish(costs("five", 5));
    bench.publish(costs("six", 5));
    bench.publish(message("one"));
    bench.sink.arrived(8).await;
    assert_eq!(bench.sink.ids()[7], "one");
    sleep(30 * SECOND).await;
    bench.store.away.store(false, Ordering::SeqCst);
    bench.sink.arrived(10).await;
    let released = bench.sink.millis(start);
    assert!(released[9] < 61_000, "{released:?}");
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls < 1000, "{calls} calls, the checks for it among them");
}

/// The round trip to the store varies between 1 ms and 4 ms. With either call first, a new window begins with the
/// job that has waited longest.
#[tokio::test(start_paused = true)]
async fn jobs_that_cost_less_take_no_new_window_from_a_costly_job() {
    for (before, after) in [(3000, 0), (0, 3000)] {
        let mut bench = bench(60 * SECOND);
        bench.store = Arc::new(FlakyStore::new(bench.store.inner(), QUICK));
        bench.store.farther.store(before, Ordering::SeqCst);
        bench.publish_many(0..7);
        let start = Instant::now();
        let _running = bench.start();
        bench.sink.arrived(7).await;
        bench.publish(costs("costly", 5));
        sleep(SECOND).await;
        bench.store.farther.store(after, Ordering::SeqCst);
        bench.publish_many(7..30);
        bench.sink.arrived(15).await;
        let (ids, released) = (bench.sink.ids(), bench.sink.millis(start));
        assert_eq!(ids[10], "costly", "{before} then {after} µs: {ids:?}");
        assert!((60_000..60_100).contains(&released[10]), "{} ms", released[10]);
    }
}
