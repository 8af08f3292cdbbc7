//! The downstream throttles one tenant: the others continue.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A downstream whose tenants wait alone, or whose lanes do. It throttles jobs whose ids begin so, for a while.
fn throttling(
    rate: &str,
    parts: &[usize],
    prefix: &'static str,
    lasts: Duration,
    after: Option<u64>,
) -> Bench {
    let mut bench = bench(rate, &[]);
    bench.options.lanes.as_mut().unwrap().pause_per = parts.to_vec();
    let open = Instant::now() + lasts;
    let after = after.map(Duration::from_secs);
    bench
        .sink
        .answer_by(move |id| (id.starts_with(prefix) && Instant::now() < open).then(|| throttled(after)));
    bench
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_throttled_stops_no_other() {
    for (after, most_tries) in [(Some(60), 6 + 10), (None, 14 + 10)] {
        let mut bench = throttling("100/s", &[0], "bad/", 300 * SECOND, after);
        for endpoint in ["x", "y"] {
            publish(&bench, "bad", endpoint, 100);
        }
        for tenant in ["a", "b", "c", "d", "e"] {
            publish(&bench, tenant, "e", 400);
        }
        let start = Instant::now();
        let _running = bench.start();
        bench.sink.accepted(2000).await;
        let took = start.elapsed();
        assert!(took < Duration::from_millis(20_400), "2 % more than 20 s are allowed: {took:?}");
        tokio::time::sleep(299 * SECOND - took).await;
        let tries = sent(&bench, "bad/", start).len();
        assert!(tries <= most_tries, "{tries} tries with {after:?}");
        acked(&bench, 2200).await;
        let took = start.elapsed();
        assert!(took < 370 * SECOND, "its own 200 take 2 s once it is open: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_wait_as_the_parts_say() {
    for (parts, waits) in [(&[0][..], true), (&[0, 1][..], false), (&[1][..], false)] {
        let mut bench = throttling("50/s", parts, "a/x", 600 * SECOND, Some(60));
        publish(&bench, "a", "x", 1);
        let _running = bench.start();
        bench.sink.arrived(1).await;
        tokio::time::sleep(SECOND).await;
        publish(&bench, "a", "y", 20);
        publish(&bench, "b", "x", 20);
        publish(&bench, "c", "z", 20);
        tokio::time::sleep(10 * SECOND).await;
        let ids = bench.sink.ids();
        let count = |prefix: &str| ids.iter().filter(|id| id.starts_with(prefix)).count();
        let of_endpoint = if parts == [1] { 0 } else { 20 };
        assert_eq!(count("a/y"), if waits { 0 } else { 20 }, "{parts:?}");
        assert_eq!((count("b/x"), count("c/z")), (of_endpoint, 20), "{parts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn slots_that_a_paused_tenant_holds_are_not_used() {
    let mut bench = throttling("10/s", &[0], "a/", SECOND / 20, Some(5));
    bench.options.horizon = 10 * SECOND;
    publish(&bench, "a", "e", 20);
    let start = Instant::now();
    let _running = bench.start();
    acked(&bench, 20).await;
    let sent = sent(&bench, "a/", start);
    assert!(sent[0] < 50_000 && sent[1] >= 5_000_000, "{sent:?}");
    assert_eq!(sent.len(), 21, "the first one went twice");
}

/// Otherwise it would pause its tenant each time that it is tried.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_throttled_alone_pauses_its_tenant_once() {
    let mut bench = throttling("20/s", &[0], "a/poison", 3600 * SECOND, Some(10));
    publish(&bench, "a", "poison", 1);
    publish(&bench, "a", "e", 600);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.accepted(600).await;
    let took = start.elapsed();
    assert!(took < 42 * SECOND, "a pause of 10 s and 30 s at 20/s: {took:?}");
    assert!(sent(&bench, "a/poison", start).len() > 2, "it was tried meanwhile");
}

/// The backlog of a paused tenant leaves the window to others, whether the API says how long it lasts or not.
#[tokio::test(start_paused = true)]
async fn a_paused_tenant_does_not_fill_the_window() {
    for after in [Some(300), None] {
        let mut bench = throttling("100/s", &[0], "bad/", 3600 * SECOND, after);
        bench.tickets.parking = ScriptedParking::Done;
        bench.options.prefetch = 100;
        bench.bound_window(100);
        publish(&bench, "bad", "e", 600);
        (0..50).for_each(|tenant| publish(&bench, &format!("other-{tenant}"), "e", 1));
        let start = Instant::now();
        let _running = bench.start();
        bench.sink.accepted(50).await;
        let took = start.elapsed();
        assert!(took < 60 * SECOND, "with {after:?} they waited for {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn which_tenants_wait_alone_is_reloaded() {
    let mut bench = throttling("50/s", &[], "a/", 3600 * SECOND, Some(20));
    publish(&bench, "a", "e", 1);
    let _running = bench.start();
    bench.sink.arrived(1).await;
    publish(&bench, "b", "e", 10);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(bench.sink.count(), 1, "all wait");
    let mut options = bench.options.clone();
    options.lanes.as_mut().unwrap().pause_per = vec![0];
    bench.control().reload(options);
    bench.sink.accepted(10).await;
    bench.sink.arrived(12).await;
    let before = bench.sink.count();
    publish(&bench, "b", "e", 10);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(bench.sink.count(), before + 10, "only the first tenant waits");
}

/// A window that the downstream needs a minute for is not left to a tenant that is paused for less than that.
#[tokio::test(start_paused = true)]
async fn a_pause_that_is_shorter_than_a_slow_window_stops_no_other() {
    let mut bench = throttling("10/s", &[0], "bad/", 3600 * SECOND, Some(30));
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.prefetch = 600;
    bench.bound_window(600);
    publish(&bench, "bad", "e", 3000);
    (0..50).for_each(|tenant| publish(&bench, &format!("other-{tenant}"), "e", 1));
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.accepted(50).await;
    let took = start.elapsed();
    assert!(took < 20 * SECOND, "they waited for {took:?}");
}

/// Most cool-downs end sooner than a job is taken to wait for the probes before it.
#[tokio::test(start_paused = true)]
async fn no_job_gives_up_early_for_a_cool_down() {
    for parking in [ScriptedParking::Done, ScriptedParking::Absent] {
        let mut bench = throttling("100/s", &[0], "a/", SECOND / 2, None);
        bench.tickets.parking = parking;
        bench.options.max_wait = Some(60 * SECOND);
        publish(&bench, "a", "e", 200);
        let _running = bench.start();
        tokio::time::sleep(30 * SECOND).await;
        let all = bench.ledger.all();
        assert_eq!(all.len(), 200);
        let dead = all.iter().filter(|(_, settled)| matches!(settled, Settled::Dead(_))).count();
        assert_eq!(dead, 0, "{all:?}");
    }
}

/// An API that lets two jobs of a tenant go in a second, and names a second whenever there are more.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_paused_for_a_second_again_and_again_does_not_fill_the_window() {
    let mut bench = bench("100/s", &[]);
    bench.options.lanes.as_mut().unwrap().pause_per = vec![0];
    let (start, counted) = (Instant::now(), Mutex::new((0, 0)));
    bench.sink.answer_by(move |id| {
        let mut counted = counted.lock().unwrap();
        let second = start.elapsed().as_secs();
        if !id.starts_with("bad/") {
            return None;
        }
        *counted = if counted.0 == second { (second, counted.1 + 1) } else { (second, 1) };
        (counted.1 > 2).then(|| throttled(Some(SECOND)))
    });
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.prefetch = 600;
    bench.bound_window(600);
    publish(&bench, "bad", "e", 3000);
    (0..50).for_each(|tenant| publish(&bench, &format!("other-{tenant}"), "e", 1));
    let _running = bench.start();
    let others = || bench.sink.ids().iter().filter(|id| id.starts_with("other")).count();
    while others() < 50 {
        tokio::time::sleep(SECOND).await;
        assert!(start.elapsed() < 60 * SECOND, "{} of 50 others after {:?}", others(), start.elapsed());
    }
}
