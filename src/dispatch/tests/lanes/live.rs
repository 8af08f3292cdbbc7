//! Weights and pauses that operators set for one tenant while its jobs wait.

use super::*;
use crate::terms::{SetValue, Terms};
use crate::time::Micros;

const SECOND: Duration = Duration::from_secs(1);

fn set<T>(to: T, now: Micros, lasts: Option<Duration>) -> SetValue<T> {
    SetValue { to, until: lasts.map(|lasts| now.plus(lasts)), reason: None, by: None, set_at: now }
}

/// Changes the terms in the store, as an operator does through any replica.
async fn change(bench: &Bench, change: impl FnOnce(&mut Terms, Micros)) {
    let record = bench.store.inner().read_record("billing").await.unwrap();
    let mut terms = Terms::parse(&record.terms.expect("terms")).unwrap();
    change(&mut terms, record.now);
    let text = terms.to_text();
    let change = Change::Terms { of: record.status.generation, text: &text };
    bench.store.inner().update_record("billing", change).await.unwrap();
}

/// How many of the jobs that were sent from this one on are of a tenant.
fn of(bench: &Bench, from: usize, tenant: &str) -> usize {
    bench.sink.ids()[from..].iter().filter(|id| id.starts_with(&format!("{tenant}/"))).count()
}

#[tokio::test(start_paused = true)]
async fn a_weight_that_is_set_counts_at_once_and_until_its_end() {
    let mut bench = bench("100/s", &[]);
    for tenant in ["a", "b"] {
        publish(&bench, tenant, "e", 2000);
    }
    let _running = bench.start();
    bench.sink.arrived(100).await;
    change(&bench, |terms, now| terms.set_weight("a", set(3, now, Some(10 * SECOND))).unwrap()).await;
    tokio::time::sleep(SECOND).await;
    let before = bench.sink.count();
    bench.sink.arrived(before + 400).await;
    assert!((294..=306).contains(&(400 - of(&bench, before, "b"))), "{} of b", of(&bench, before, "b"));
    tokio::time::sleep(10 * SECOND).await;
    let before = bench.sink.count();
    bench.sink.arrived(before + 400).await;
    assert!((194..=206).contains(&of(&bench, before, "b")), "{} of b", of(&bench, before, "b"));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_paused_stops_at_once_and_others_go_on() {
    let mut bench = bench("100/s", &[]);
    for tenant in ["a", "b"] {
        for endpoint in ["x", "y"] {
            publish(&bench, tenant, endpoint, 2000);
        }
    }
    let _running = bench.start();
    bench.sink.arrived(100).await;
    change(&bench, |terms, now| terms.pause_value("a", set((), now, None)).unwrap()).await;
    tokio::time::sleep(SECOND / 5).await;
    let before = bench.sink.count();
    tokio::time::sleep(10 * SECOND).await;
    let went = bench.sink.count() - before;
    assert_eq!(of(&bench, before, "a"), 0);
    assert!((990..=1010).contains(&went), "the other one has all slots: {went}");
    change(&bench, |terms, _| assert!(terms.resume_value("a").is_some())).await;
    tokio::time::sleep(SECOND).await;
    let before = bench.sink.count();
    bench.sink.arrived(before + 400).await;
    assert!((194..=206).contains(&of(&bench, before, "a")), "{} of a", of(&bench, before, "a"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_a_tenant_ends_at_its_end() {
    let mut bench = bench("100/s", &[]);
    publish(&bench, "a", "e", 400);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(10).await;
    change(&bench, |terms, now| terms.pause_value("a", set((), now, Some(5 * SECOND))).unwrap()).await;
    tokio::time::sleep(SECOND).await;
    let snapshot = bench.view().snapshot();
    assert_eq!(snapshot.binding, crate::dispatch::Binding::Paused { until: None });
    let before = bench.sink.count();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(bench.sink.count(), before);
    bench.sink.arrived(400).await;
    let took = start.elapsed();
    assert!((8 * SECOND..10 * SECOND).contains(&took), "a pause of 5 s and 4 s at 100/s: {took:?}");
}

/// Otherwise all jobs of the window might be those of a tenant that nobody lets go.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_paused_does_not_fill_the_window() {
    let mut bench = bench("100/s", &[]);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.prefetch = 100;
    bench.bound_window(100);
    publish(&bench, "a", "e", 10);
    let _running = bench.start();
    bench.sink.accepted(10).await;
    change(&bench, |terms, now| terms.pause_value("a", set((), now, None)).unwrap()).await;
    tokio::time::sleep(SECOND).await;
    publish(&bench, "a", "f", 600);
    (0..50).for_each(|tenant| publish(&bench, &format!("other-{tenant}"), "e", 1));
    let start = Instant::now();
    bench.sink.accepted(60).await;
    assert!(start.elapsed() < 60 * SECOND, "they waited for {:?}", start.elapsed());
}

/// Nobody knows how long an operator's pause lasts. So no job is refused for it before its time is over.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_tenant_that_is_paused_do_not_give_up_early() {
    let mut bench = bench("100/s", &[]);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.max_wait = Some(600 * SECOND);
    publish(&bench, "a", "e", 10);
    let _running = bench.start();
    bench.sink.accepted(10).await;
    change(&bench, |terms, now| terms.pause_value("a", set((), now, None)).unwrap()).await;
    tokio::time::sleep(SECOND).await;
    publish(&bench, "a", "f", 200);
    tokio::time::sleep(5 * SECOND).await;
    let all = bench.ledger.all();
    let stays = all.iter().filter_map(|(_, settled)| match settled {
        Settled::Parked(stay) => Some(stay.until.since(crate::time::wall_now())),
        _ => None,
    });
    let stays: Vec<Duration> = stays.collect();
    assert_eq!(stays.len(), 200, "{all:?}");
    let half = 290 * SECOND..=300 * SECOND;
    assert!(stays.iter().all(|stay| half.contains(stay)), "half of the time that they have: {stays:?}");
}
