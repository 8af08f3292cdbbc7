//! A window with few free places is for what can go soon: jobs that wait for anything but a slot are parked.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::parking::not_before;
use super::*;
use crate::dispatch::tests::parts::ScriptedParking;
use crate::dispatch::{Backoff, ParkReason, Stay};

const S: Duration = Duration::from_secs(1);

/// A bench whose source can park, and hands out no more messages than this before one is settled.
fn bench(rate: &str, prefetch: u16) -> Bench {
    let mut bench = Bench::new(rate, QUICK);
    bench.options.prefetch = prefetch;
    bench.bound_window(prefetch.into());
    bench.tickets.parking = ScriptedParking::Done;
    bench
}

/// The jobs that were parked, in that order.
fn stays(bench: &Bench) -> Vec<(String, Stay)> {
    let stay = |(id, settled)| if let Settled::Parked(stay) = settled { Some((id, stay)) } else { None };
    bench.ledger.all().into_iter().filter_map(stay).collect()
}

/// Brings parked jobs home, as the broker does.
#[derive(Default)]
struct Broker {
    jobs: HashMap<String, Message>,
    parked: BTreeMap<Instant, Vec<(String, Stay)>>,
    /// The number of settlements that were seen, and how many of these ended a job.
    seen: usize,
    ended: usize,
}

impl Broker {
    fn publish(&mut self, bench: &Bench, message: Message) {
        self.jobs.insert(message.message_id.clone().unwrap(), message.clone());
        bench.publish(message);
    }

    /// Works until this holds of the number of jobs that have ended.
    async fn work(&mut self, bench: &Bench, until: impl Fn(usize) -> bool) {
        while !until(self.ended) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for (id, settled) in bench.ledger.after(self.seen) {
                self.seen += 1;
                match settled {
                    Settled::Parked(stay) => {
                        let home = Instant::now() + longest_stay(stay.until.since(wall_now()));
                        self.parked.entry(home).or_default().push((id, stay));
                    }
                    _ => self.ended += 1,
                }
            }
            while let Some(first) = self.parked.first_entry().filter(|first| *first.key() <= Instant::now()) {
                for (id, stay) in first.remove() {
                    bench.publish_parked(self.jobs[&id].clone(), stay);
                }
            }
        }
    }
}

/// The longest stay, of a power of two in seconds, that leaves an eighth of the wait or five seconds; less where the wait is
/// little more than a second.
fn longest_stay(wait: Duration) -> Duration {
    let seconds = (wait - (wait / 8).min(5 * S).min(wait.saturating_sub(S))).as_secs();
    seconds.checked_ilog2().map_or(Duration::ZERO, |power| S * (1 << power))
}

/// How many of the jobs that were sent have an id that begins so.
fn sent(bench: &Bench, stem: &str) -> usize {
    bench.sink.sent.lock().unwrap().iter().filter(|sent| sent.id.starts_with(stem)).count()
}

#[tokio::test(start_paused = true)]
async fn jobs_for_soon_stand_before_nobody_and_go_in_time() {
    const LATER: usize = 3000;
    for hold_max in [60, 600] {
        let (mut bench, mut broker) = (bench("200/s", 1000), Broker::default());
        bench.options.hold_max = hold_max * S;
        (0..LATER).for_each(|n| broker.publish(&bench, not_before(&format!("later{n}"), 55 * S)));
        (0..100).for_each(|n| broker.publish(&bench, message(&format!("plain{n}"))));
        let start = Instant::now();
        let _running = bench.start();
        broker.work(&bench, |ended| ended >= 100).await;
        assert_eq!(sent(&bench, "plain"), 100);
        assert!(start.elapsed() < S, "{:?}", start.elapsed());
        broker.work(&bench, |ended| ended >= LATER + 100).await;
        let took = start.elapsed();
        assert!(took < 55 * S + S * LATER as u32 / 200 + S, "at the whole pace: {took:?}");
        let mut later = bench.sink.ids().split_off(100);
        later.sort();
        assert!(later.len() == LATER && later.is_sorted_by(|one, next| one < next), "each once");
        assert!(bench.sink.millis(start)[100..].iter().all(|at| *at >= 54_999), "none too early");
        let stays = stays(&bench).len();
        assert!(stays <= 4 * LATER, "{stays} stays");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenth_that_always_fails_holds_up_nobody() {
    let (mut bench, mut broker) = (bench("200/s", 1000), Broker::default());
    bench.options.retry.max_attempts = 8;
    bench.options.retry.backoff = Backoff { min: S, max: 300 * S };
    bench.sink.answer_by(|id| id.starts_with("bad").then(|| retry(503)));
    for number in 0..2000 {
        broker.publish(&bench, not_before(&format!("later{number}"), 55 * S));
        if number % 20 == 0 {
            broker.publish(&bench, message(&format!("bad{number}")));
        }
    }
    (0..100).for_each(|n| broker.publish(&bench, message(&format!("plain{n}"))));
    let start = Instant::now();
    let _running = bench.start();
    let sink = Arc::clone(&bench.sink);
    let plain = move || sink.sent.lock().unwrap().iter().filter(|sent| sent.id.starts_with("plain")).count();
    broker.work(&bench, |_| plain() >= 100).await;
    assert!(start.elapsed() < 3 * S, "{:?}", start.elapsed());
    broker.work(&bench, |ended| ended >= 2200).await;
    assert_eq!((sent(&bench, "later"), sent(&bench, "bad"), sent(&bench, "plain")), (2000, 800, 100));
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_longest_are_parked_until_a_fifth_of_the_window_is_free() {
    let mut bench = bench("100/s", 10);
    let before = wall_now();
    for number in 0..20_u32 {
        let wait = 3 + 7 * number % 20;
        bench.publish(not_before(&wait.to_string(), S * wait));
    }
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let mut parked = stays(&bench);
    parked.sort_by_key(|(_, stay)| stay.until);
    let waits: Vec<u64> = parked.iter().map(|(id, _)| id.parse().unwrap()).collect();
    assert_eq!(waits, (11..=22).collect::<Vec<_>>());
    for (id, stay) in &parked {
        let wait = stay.until.since(before).as_secs_f64();
        assert!((wait - id.parse::<f64>().unwrap()).abs() < 0.1, "{id}: {wait}");
        assert_eq!((stay.reason, stay.attempts), (ParkReason::NotBefore, 0));
    }
    assert_eq!(bench.sink.ids(), (3..=10).map(|wait| wait.to_string()).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_is_held_and_so_is_any_where_places_are_free() {
    let mut bench = bench("100/s", 10);
    (0..8).for_each(|n| bench.publish(not_before(&format!("long{n}"), 50 * S)));
    let _running = bench.start();
    tokio::time::sleep(40 * S).await;
    assert_eq!(bench.ledger.all(), [], "a fifth is free");
    tokio::time::sleep(11 * S).await;
    (0..10).for_each(|n| bench.publish(not_before(&format!("short{n}"), S * 19 / 10)));
    bench.publish_many(0..10);
    bench.ledger.count(28).await;
    assert_eq!(stays(&bench).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_little_more_than_a_second_is_one_stay() {
    let (mut bench, mut broker) = (bench("100/s", 100), Broker::default());
    bench.options.hold_max = S;
    broker.publish(&bench, not_before("far", Duration::from_millis(3140)));
    let start = Instant::now();
    let _running = bench.start();
    broker.work(&bench, |ended| ended >= 1).await;
    assert_eq!(stays(&bench).len(), 2, "of two seconds, and of the second that is left: {:?}", bench.ledger);
    assert!(bench.sink.millis(start)[0] >= 3139);
}

#[tokio::test(start_paused = true)]
async fn a_retry_leaves_a_full_window_with_its_attempts() {
    for (jobs, parked) in [(100, 1), (3, 0)] {
        let mut bench = bench("100/s", 10);
        bench.options.retry.backoff = Backoff { min: 30 * S, max: 30 * S };
        bench.sink.answer("0", retry(503));
        bench.publish_many(0..jobs);
        let done = bench.start();
        bench.end();
        done.await.unwrap();
        let stays = stays(&bench);
        assert_eq!((stays.len(), bench.sink.count()), (parked, jobs + 1 - parked));
        assert!(stays.iter().all(|(_, stay)| (stay.reason, stay.attempts) == (ParkReason::Retry, 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_leave_room_for_few_press_as_well() {
    let mut bench = bench("100/s", 1000);
    bench.source.most_at_once.store(5, Ordering::SeqCst);
    (0..20).for_each(|n| bench.publish(not_before(&n.to_string(), 30 * S)));
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!((stays(&bench).len(), bench.sink.count()), (16, 4));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_parks_nothing_is_asked_once_for_each_job() {
    let mut bench = bench("100/s", 10);
    bench.bound_window(100);
    bench.tickets.parking = ScriptedParking::Refused;
    (0..20).for_each(|n| bench.publish(not_before(&n.to_string(), 30 * S)));
    let start = Instant::now();
    let done = bench.start();
    tokio::time::sleep(10 * S).await;
    assert_eq!(stays(&bench).len(), 20);
    bench.end();
    done.await.unwrap();
    assert_eq!((stays(&bench).len(), bench.sink.count()), (20, 20));
    assert!(bench.sink.millis(start).iter().all(|at| *at >= 29_999), "none is brought forward");
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_wait_that_began_while_nothing_could_be_parked_is_not_brought_forward() {
    let mut bench = bench("10/s", 100);
    bench.options.hold_max = 10 * MINUTE;
    let before = wall_now();
    let _running = bench.start();
    bench.source.parking.can_park.store(false, Ordering::SeqCst);
    bench.publish(not_before("far", 120 * MINUTE));
    bench.publish(not_before("near", 28 * MINUTE));
    tokio::time::sleep(21 * MINUTE).await;
    assert_eq!(bench.ledger.all(), []);
    bench.source.parking.can_park.store(true, Ordering::SeqCst);
    bench.ledger.count(2).await;
    let stays: HashMap<String, Stay> = stays(&bench).into_iter().collect();
    for (id, wait) in [("far", 120 * MINUTE), ("near", 28 * MINUTE)] {
        let until = stays[id].until.since(before);
        assert!(until + QUICK >= wait && until <= wait + S, "{id}: {until:?}");
        assert_eq!(stays[id].reason, ParkReason::NotBefore);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_a_stop_interrupts_keeps_its_time() {
    let mut bench = Bench::new("10/s", 100 * QUICK);
    bench.tickets.parking = ScriptedParking::Done;
    bench.options.retry.backoff = Backoff { min: 30 * S, max: 30 * S };
    bench.sink.answer("tried", retry(503));
    bench.publish(message("tried"));
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.stop.cancel();
    done.await.unwrap();
    let [(_, stay)] = &stays(&bench)[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!((stay.reason, stay.attempts), (ParkReason::Restart, 1));
    let wait = stay.until.since(wall_now());
    assert!(wait > 29 * S && wait <= 30 * S, "{wait:?}");
}

/// A job of the property: how long it waits, and whether it always fails.
fn job() -> impl Strategy<Value = (u32, bool)> {
    (prop_oneof![2 => Just(0_u32), 3 => 3..120_u32], prop::bool::weighted(0.1))
}

/// With any waiting jobs, those that may go at once do so at the pace, and each job ends, once and not too early.
async fn holds_up_nobody(jobs: &[(u32, bool)], prefetch: u16, hold_max: u32) {
    let (mut bench, mut broker) = (bench("100/s", prefetch), Broker::default());
    bench.options.hold_max = S * hold_max;
    bench.options.retry.backoff = Backoff { min: 5 * S, max: 5 * S };
    bench.sink.answer_by(|id| id.starts_with("bad").then(|| retry(503)));
    let mut expected = BTreeMap::new();
    for (number, (wait, fails)) in jobs.iter().enumerate() {
        let id = format!("{}{number}", if *fails { "bad" } else { "good" });
        let message = if *wait == 0 { message(&id) } else { not_before(&id, S * *wait) };
        broker.publish(&bench, message);
        expected.insert(id, (*wait, if *fails { 3 } else { 1 }));
    }
    let start = Instant::now();
    let _running = bench.start();
    let worked = broker.work(&bench, |ended| ended >= jobs.len());
    tokio::time::timeout(400 * S, worked).await.expect("each job ends");
    let mut sent = BTreeMap::<String, Vec<Duration>>::new();
    for one in &*bench.sink.sent.lock().unwrap() {
        sent.entry(one.id.clone()).or_default().push(one.at - start);
    }
    for (id, (wait, attempts)) in &expected {
        let (sent, wait) = (&sent[id], S * *wait);
        assert_eq!(sent.len(), *attempts, "{id}");
        assert!(sent[0] + QUICK >= wait, "{id} went after {:?} of {wait:?}", sent[0]);
        // Others before it take slots; and when it comes home, some may hold its place that go within two seconds.
        let late = sent[0].saturating_sub(wait);
        assert!(late < if wait.is_zero() { 2 * S } else { 5 * S }, "{id} went {late:?} late");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_waiting_job_holds_up_others(
        jobs in prop::collection::vec(job(), 1..80),
        prefetch in 5..40_u16,
        hold_max in prop::sample::select(vec![1_u32, 10, 60, 600]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(holds_up_nobody(&jobs, prefetch, hold_max));
    }
}
