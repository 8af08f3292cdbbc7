//! A downstream that this replica cannot use: it takes no jobs, none is lost, and the other replicas continue.

use super::*;
use crate::store::{Lease, Sharing};

const SECOND: Duration = Duration::from_secs(1);

/// Publishes jobs and starts; the bench does not end by itself.
fn started(bench: &mut Bench, jobs: usize) -> tokio_util::task::AbortOnDropHandle<crate::dispatch::Drained> {
    bench.publish_many(0..jobs);
    bench.start()
}

fn set(flag: &std::sync::atomic::AtomicBool, value: bool) {
    flag.store(value, Ordering::SeqCst);
}

fn dead_letters(bench: &Bench) -> usize {
    bench.ledger.all().iter().filter(|(_, how)| matches!(how, Settled::Dead(_))).count()
}

fn given_back(bench: &Bench) -> usize {
    bench.ledger.all().iter().filter(|(_, how)| *how == Settled::Back).count()
}

fn acked(bench: &Bench) -> usize {
    bench.ledger.all().iter().filter(|(_, how)| matches!(how, Settled::Acked(_))).count()
}

/// The number of replicas that hold a lease, without this probe.
async fn leases(bench: &Bench) -> u32 {
    let limits = bench.options.limits.clone();
    let call = Reserve {
        sharing: Sharing::Lease(Lease { replica: "probe", ttl: QUICK }),
        ..Reserve::new(
            Scope { downstream: "billing", key: "" },
            &limits,
            crate::limit::Costs::Each(&[]),
            Duration::ZERO,
        )
    };
    bench.store.inner().reserve(call).await.unwrap().replicas.unwrap() - 1
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_a_way_to_its_downstream_gives_all_back_and_asks_for_nothing() {
    let mut bench = Bench::new("100/s", QUICK);
    set(&bench.sink.connections.reachable, false);
    let done = started(&mut bench, 50);
    bench.ledger.count(50).await;
    assert_eq!((given_back(&bench), bench.pauses()), (50, vec![true]), "once each, behind the stop");
    tokio::time::sleep(SECOND).await;
    assert_eq!(leases(&bench).await, 0, "the others have the whole pace");
    let calls = bench.store.calls.load(Ordering::SeqCst);
    bench.publish_many(50..60);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(bench.store.calls.load(Ordering::SeqCst), calls, "no slots");
    assert_eq!((bench.sink.count(), bench.ledger.all().len()), (0, 50), "nothing is taken");
    let tried = bench.sink.connections.tried.load(Ordering::SeqCst);
    assert!((30..=80).contains(&tried), "{tried} connections were tried in a minute");

    set(&bench.sink.connections.reachable, true);
    bench.sink.arrived(10).await;
    bench.ledger.count(60).await;
    assert_eq!((acked(&bench), dead_letters(&bench), bench.pauses()), (10, 0, vec![true, false]));
    assert_eq!(leases(&bench).await, 1);
    bench.end();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_must_not_go_back_is_held_and_goes_at_the_pace_once_there_is_a_connection() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.tickets.may_be_given_back = false;
    let _running = started(&mut bench, 1000);
    for outage in 1..=30 {
        bench.sink.arrived(outage * 20).await;
        set(&bench.sink.connections.reachable, false);
        tokio::time::sleep(20 * SECOND).await;
        let sent = bench.sink.count();
        tokio::time::sleep(20 * SECOND).await;
        assert_eq!(bench.sink.count(), sent);
        set(&bench.sink.connections.reachable, true);
    }
    let start = Instant::now();
    let left = 1000 - bench.sink.count();
    bench.ledger.count(1000).await;
    let took = start.elapsed();
    assert!(
        took <= 2 * SECOND + Duration::from_millis(10) * (u32::try_from(left).unwrap() + 20),
        "{took:?} for {left}"
    );
    assert_eq!((acked(&bench), given_back(&bench), dead_letters(&bench)), (1000, 0, 0));
    for (_, settled) in bench.ledger.all() {
        let Settled::Acked(report) = settled else { unreachable!() };
        assert_eq!(report.attempts, 1, "what never reached the downstream is no attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn the_other_replica_has_the_whole_pace() {
    let store = Arc::new(MemoryStore::new());
    let [mut good, mut bad] = [1, 1].map(|_| {
        let mut bench = Bench::new("200/s", QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(300)));
        bench
    });
    set(&bad.sink.connections.reachable, false);
    let _others = [started(&mut good, 2000), started(&mut bad, 500)];
    let start = Instant::now();
    good.sink.arrived(2000).await;
    let took = start.elapsed();
    assert!(took <= Duration::from_millis(10_500), "2000 jobs at 200/s in {took:?}");
    assert_eq!((given_back(&bad), dead_letters(&bad)), (500, 0));
}

#[tokio::test(start_paused = true)]
async fn one_job_that_is_refused_among_others_that_are_not_is_dead_and_nothing_stops() {
    let mut bench = Bench::new("200/s", QUICK);
    bench.sink.refuse(["13"]);
    let done = started(&mut bench, 1000);
    bench.ledger.count(1000).await;
    let letter = bench.ledger.letter("13");
    assert_eq!((letter.reason, letter.report.status), (Reason::Status, Some(401)));
    assert_eq!((acked(&bench), bench.pauses()), (999, vec![]));
    assert_eq!(bench.sink.ids().iter().filter(|id| *id == "13").count(), 2);
    bench.end();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn statuses_that_are_not_listed_are_about_the_job() {
    let mut bench = Bench::new("200/s", QUICK);
    bench.options.retry.answers.on_unauthorized = crate::sink::Statuses::NONE;
    set(&bench.sink.secrets.accepts, false);
    let done = started(&mut bench, 20);
    bench.end();
    done.await.unwrap();
    assert_eq!((dead_letters(&bench), bench.sink.count(), bench.pauses()), (20, 20, vec![]));
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_refused_for_a_while_bury_nothing() {
    for may_be_given_back in [true, false] {
        let mut bench = Bench::new("200/s", QUICK);
        bench.tickets.may_be_given_back = may_be_given_back;
        let _running = started(&mut bench, 400);
        bench.sink.accepted(100).await;
        set(&bench.sink.secrets.accepts, false);
        tokio::time::sleep(SECOND).await;
        let sent = bench.sink.count();
        tokio::time::sleep(4 * SECOND).await;
        let trials = bench.sink.count() - sent;
        assert!((1..=8).contains(&trials), "one job at a time: {trials}");
        assert!(bench.sink.secrets.reads.load(Ordering::SeqCst) >= 2, "before each");
        assert_eq!((acked(&bench), dead_letters(&bench)), (100, 0));
        set(&bench.sink.secrets.accepts, true);
        bench.ledger.count(400).await;
        let back = given_back(&bench);
        assert_eq!((acked(&bench), dead_letters(&bench)), (400 - back, 0));
        if may_be_given_back {
            assert!(back > 280, "{back}");
        } else {
            assert_eq!(back, 0);
        }
        assert_eq!(bench.pauses().last(), Some(&false), "it continues");
    }
}

#[tokio::test(start_paused = true)]
async fn new_secrets_are_used_as_soon_as_they_are_there() {
    let mut bench = Bench::new("200/s", QUICK);
    set(&bench.sink.secrets.accepts, false);
    set(&bench.sink.secrets.renewed, true);
    bench.tickets.may_be_given_back = false;
    let start = Instant::now();
    let _running = started(&mut bench, 50);
    bench.ledger.count(50).await;
    assert_eq!((acked(&bench), dead_letters(&bench)), (50, 0));
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_all_refused_for_their_own_fault_stop_the_others_for_a_while_only() {
    let mut bench = Bench::new("200/s", QUICK);
    let bad: Vec<String> = (0..20).map(|id| format!("bad{id}")).collect();
    bench.sink.refuse(bad.iter().map(String::as_str));
    bad.iter().for_each(|id| bench.publish(message(id)));
    let _running = bench.start();
    bench.sink.arrived(3).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(bench.pauses(), [true]);
    // The broker has good jobs after these.
    bench.publish_many(0..5);
    bench.sink.accepted(1).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((dead_letters(&bench), acked(&bench) + given_back(&bench)), (7, 18), "{:?}", bench.ledger);
    assert_eq!(bench.pauses().last(), Some(&false));
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_no_jobs_are_taken_gives_back_what_is_held() {
    for reachable in [true, false] {
        let mut bench = Bench::new("200/s", QUICK);
        bench.tickets.may_be_given_back = false;
        set(&bench.sink.connections.reachable, reachable);
        set(&bench.sink.secrets.accepts, false);
        let done = started(&mut bench, 50);
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(bench.ledger.all(), []);
        bench.stop.cancel();
        assert_eq!(done.await.unwrap().unfinished, 0);
        assert_eq!(given_back(&bench), 50);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_without_limits_either() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.on_unavailable = crate::dispatch::OnUnavailable::Open;
    bench.tickets.may_be_given_back = false;
    let _running = started(&mut bench, 100);
    bench.sink.arrived(10).await;
    set(&bench.store.away, true);
    set(&bench.sink.connections.reachable, false);
    tokio::time::sleep(30 * SECOND).await;
    let tried = bench.sink.connections.unreached.load(Ordering::SeqCst);
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(bench.sink.connections.unreached.load(Ordering::SeqCst), tried);
    set(&bench.sink.connections.reachable, true);
    bench.ledger.count(100).await;
    assert_eq!(acked(&bench), 100);
}

/// The widest window that was set on the source.
fn widest(bench: &Bench) -> Option<u16> {
    bench.source.windows.lock().unwrap().iter().max().copied()
}

#[tokio::test(start_paused = true)]
async fn a_trial_is_never_a_job_that_may_not_go_yet() {
    for may_be_given_back in [true, false] {
        let mut bench = Bench::new("200/s", QUICK);
        bench.tickets.may_be_given_back = may_be_given_back;
        set(&bench.sink.secrets.accepts, false);
        let start = (wall_now().0 / 1000 + 120_000).into();
        for id in 0..10 {
            let headers = vec![("paced-not-before".to_owned(), Value::Integer(start))];
            bench.publish(Message { headers, ..message(&format!("later{id}")) });
        }
        let _running = started(&mut bench, 3);
        tokio::time::sleep(100 * SECOND).await;
        let early = bench.sink.ids().iter().filter(|id| id.starts_with("later")).count();
        assert_eq!((early, dead_letters(&bench)), (0, 0));
        assert!(bench.sink.count() > 10, "the others are tried");
        set(&bench.sink.secrets.accepts, true);
        tokio::time::sleep(100 * SECOND).await;
        assert_eq!(acked(&bench) + given_back(&bench), 13, "{:?}", bench.ledger);
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_refused_leave_the_window_to_others() {
    for (rate, bad, window) in [("1/m", 1, 2), ("2/m", 2, 3), ("3/m", 3, 4)] {
        let mut bench = Bench::new(rate, QUICK);
        bench.options.retry.max_attempts = 8;
        let ids: Vec<String> = (0..bad).map(|id| format!("bad{id}")).collect();
        bench.sink.refuse(ids.iter().map(String::as_str));
        ids.iter().for_each(|id| bench.publish(message(id)));
        let _running = bench.start();
        tokio::time::sleep(600 * SECOND).await;
        assert!(widest(&bench) >= Some(window), "{rate}: {:?}", bench.source.windows);
        assert!(bench.sink.secrets.reads.load(Ordering::SeqCst) > 0, "{rate}");
        assert_eq!(bench.ledger.all(), [], "{rate}: it may be the credentials' fault");
        tokio::time::sleep(7200 * SECOND).await;
        assert_eq!(dead_letters(&bench), bad, "{rate}: in bounded time");
        bench.publish_many(0..1);
        bench.ledger.count(bad + 1).await;
        assert_eq!(acked(&bench), 1, "{rate}");
    }
}

#[tokio::test(start_paused = true)]
async fn long_jobs_that_are_all_refused_keep_others_out_for_a_short_while_only() {
    let mut bench = Bench::new("200/s", QUICK);
    let bad = ["bad0", "bad1", "bad2"];
    bench.sink.refuse(bad);
    bad.iter().for_each(|id| bench.publish(message(id)));
    let _running = bench.start();
    bench.sink.arrived(3).await;
    // No more fit before one of them is settled.
    bench.source.full.send_replace(true);
    bench.publish_many(0..1);
    let begun = Instant::now();
    bench.ledger.count(1).await;
    assert_eq!(dead_letters(&bench), 1, "one of the three");
    assert!(begun.elapsed() >= 60 * SECOND && begun.elapsed() < 120 * SECOND, "{:?}", begun.elapsed());
    bench.source.full.send_replace(false);
    let start = Instant::now();
    bench.sink.accepted(1).await;
    assert!(start.elapsed() < 20 * SECOND, "{:?}", start.elapsed());
    bench.ledger.count(4).await;
    assert_eq!((acked(&bench), dead_letters(&bench)), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_trial_whose_job_is_dead_is_followed_by_another_although_nothing_new_comes() {
    let mut bench = Bench::new("200/s", QUICK);
    let _running = started(&mut bench, 3);
    set(&bench.sink.secrets.accepts, false);
    tokio::time::sleep(20 * SECOND).await;
    ["0", "1"].into_iter().for_each(|id| bench.sink.answer(id, dead(400)));
    bench.ledger.count(2).await;
    set(&bench.sink.secrets.accepts, true);
    bench.ledger.count(3).await;
    assert_eq!((acked(&bench), dead_letters(&bench)), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_without_limits_too() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.on_unavailable = crate::dispatch::OnUnavailable::Open;
    bench.tickets.may_be_given_back = false;
    set(&bench.store.away, true);
    set(&bench.sink.secrets.accepts, false);
    let _running = started(&mut bench, 20);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(bench.pauses().first(), Some(&true));
    set(&bench.sink.secrets.accepts, true);
    bench.ledger.count(20).await;
    assert_eq!((acked(&bench), dead_letters(&bench)), (20, 0));
}

#[tokio::test(start_paused = true)]
async fn other_statuses_that_are_reloaded_end_the_stop() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.tickets.may_be_given_back = false;
    set(&bench.sink.secrets.accepts, false);
    let _running = started(&mut bench, 20);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(bench.ledger.all(), []);
    let mut options = bench.options.clone();
    options.retry.answers.on_unauthorized = crate::sink::Statuses::NONE;
    bench.control().reload(options);
    tokio::time::sleep(SECOND).await;
    assert_eq!(dead_letters(&bench), 20, "each answer is about its job now");
    assert_eq!(bench.pauses().last(), Some(&false));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_long_ago_says_nothing_once_there_was_another_answer() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.max_attempts = 10;
    bench.sink.answer("a", dead(401));
    bench.sink.answer("a", retry(503));
    bench.sink.answer("a", dead(401));
    bench.publish(message("a"));
    let _running = bench.start();
    bench.sink.arrived(1).await;
    // A success in between starts a new row.
    bench.publish(message("b"));
    bench.ledger.count(2).await;
    assert_eq!((acked(&bench), dead_letters(&bench)), (2, 0));
}
