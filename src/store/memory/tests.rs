use std::time::Duration;

use super::*;
use crate::limit::{Costs, Limit};
use crate::rate::Rate;
use crate::store::memory::downstream::{EXAMINED, SWEEP_THRESHOLD};
use crate::store::{Asker, Granted, NextTurn};
use crate::time::ManualClock;

mod cancel;
mod cool_down;
mod lanes;

const MS: i64 = 1000;
const START: i64 = 1_700_000_000_000_000;

struct Bench {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    limits: LimitSet,
}

impl Bench {
    /// A leaky bucket of 10/s with this burst, on a clock that starts at START.
    fn new(burst: u32) -> Self {
        let clock = Arc::new(ManualClock::new(Micros(START)));
        let rate = Rate::new(10, Duration::from_secs(1)).unwrap();
        let limits = LimitSet::new(vec![Limit::leaky_bucket("l", rate, burst).unwrap()]).unwrap();
        Self { store: MemoryStore::with_clock(clock.clone()), clock, limits }
    }

    async fn reserve(&self, key: &str, at: i64, costs: &[u32], ahead_ms: u64) -> Reserved {
        self.clock.set(Micros(at));
        let call = Reserve::new(
            Scope { downstream: "d", key },
            &self.limits,
            Costs::Each(costs),
            Duration::from_millis(ahead_ms),
        );
        self.store.reserve(call).await.unwrap()
    }

    /// Returns the slots granted, in ms after START, and the refused one.
    async fn slots(&self, at_ms: i64, jobs: usize, ahead_ms: u64) -> (Vec<i64>, Option<i64>) {
        let answer = self.reserve("", START + at_ms * MS, &vec![1; jobs], ahead_ms).await;
        let since = |slot: &Micros| (slot.0 - START) / MS;
        (answer.slots.iter().map(since).collect(), answer.refused.map(|refused| since(&refused.slot)))
    }
}

#[tokio::test]
async fn slots_are_an_interval_apart_and_a_refusal_takes_nothing() {
    let bench = Bench::new(1);
    assert_eq!(bench.slots(0, 5, 250).await, (vec![0, 100, 200], Some(300)));
    assert_eq!(bench.slots(0, 5, 250).await, (vec![], Some(300)));
    assert_eq!(bench.slots(120, 5, 250).await, (vec![300], Some(400)));
    assert_eq!(bench.slots(5000, 2, 0).await, (vec![5000], Some(5100)), "idle time is not saved up");
}

#[tokio::test]
async fn a_burst_goes_at_once_after_a_rest() {
    let bench = Bench::new(3);
    assert_eq!(bench.slots(0, 5, 1000).await, (vec![0, 0, 0, 100, 200], None));
    assert_eq!(bench.slots(400, 3, 1000).await, (vec![400, 400, 500], None));
}

#[tokio::test]
async fn a_clock_that_steps_back_does_not_stall_anyone() {
    let bench = Bench::new(1);
    assert_eq!(bench.slots(10_000, 2, 1000).await, (vec![10_000, 10_100], None));
    // The clock is 10 s back, so the slot after 10 100 ms, which is 10 200 ms, is now 200 ms.
    assert_eq!(bench.slots(0, 1, 0).await, (vec![], Some(200)));
    assert_eq!(bench.slots(300, 2, 1000).await, (vec![300, 400], None));
}

#[tokio::test]
async fn a_small_step_back_is_waited_for() {
    let bench = Bench::new(1);
    assert_eq!(bench.slots(1000, 1, 0).await, (vec![1000], None));
    assert_eq!(bench.slots(900, 1, 0).await, (vec![], Some(1100)));
}

#[tokio::test]
async fn only_the_tail_can_be_given_back() {
    let bench = Bench::new(1);
    let first = bench.reserve("", START, &[1, 1], 1000).await;
    let granted = first.granted(&bench.limits, Costs::Each(&[1, 1]));
    let (between, after) = (&granted[0].after, &granted[1].after);
    let cancel = |slot, before, after| {
        bench.store.cancel(Cancel {
            scope: Scope { downstream: "d", key: "" },
            limits: &bench.limits,
            lane: None,
            slot,
            charged: &[1],
            before,
            after,
            is_unused: false,
        })
    };
    assert!(
        !cancel(first.slots[0], &first.charges.before, between).await.unwrap(),
        "not the tail, not ahead"
    );
    assert!(cancel(first.slots[1], between, after).await.unwrap());
    assert!(!cancel(first.slots[1], between, after).await.unwrap(), "only once");
    assert_eq!(bench.slots(50, 1, 1000).await, (vec![100], None), "it can be taken again");
    bench.clock.set(Micros(START + 100 * MS));
    assert!(!cancel(first.slots[1], between, after).await.unwrap(), "not once it is due");
}

#[tokio::test]
async fn keys_are_apart_and_reset_forgets_one() {
    let bench = Bench::new(1);
    let first = |answer: Reserved| answer.slots[0].0 - START;
    assert_eq!(first(bench.reserve("a", START, &[1], 1000).await), 0);
    assert_eq!(first(bench.reserve("b", START, &[1], 1000).await), 0);
    bench.store.reset(Scope { downstream: "d", key: "a" }, &bench.limits).await.unwrap();
    assert_eq!(first(bench.reserve("a", START, &[1], 1000).await), 0);
    assert_eq!(first(bench.reserve("b", START, &[1], 1000).await), 100 * MS);
}

#[tokio::test]
async fn memory_is_bounded_by_the_keys_in_use() {
    let bench = Bench::new(1);
    // At any time 20 keys have been used in the last minute and a half, of 50 000 in all.
    for index in 0..50_000_i64 {
        bench.reserve(&index.to_string(), START + index * 5_000 * MS, &[1], 0).await;
    }
    assert!(bench.store.key_count("d") <= SWEEP_THRESHOLD, "{}", bench.store.key_count("d"));
    // Keys that are in use at the same time are kept, so that none loses its pace.
    let start = START + 1_000_000_000 * MS;
    for index in 0..5000 {
        bench.reserve(&format!("crowd-{index}"), start, &[1], 0).await;
    }
    for index in 0..5000 {
        assert_eq!(bench.reserve(&format!("crowd-{index}"), start, &[1], 0).await.slots, []);
    }
}

#[tokio::test]
async fn calls_that_cannot_be_exact_are_refused() {
    const MAX: usize = crate::limit::MAX_BATCH;
    let bench = Bench::new(1);
    let scope = Scope { downstream: "d", key: "" };
    let call = |costs, downstream| {
        let (costs, scope) = (Costs::Each(costs), Scope { downstream, ..scope });
        let (limits, ahead) = (&bench.limits, Duration::ZERO);
        bench.store.reserve(Reserve::new(scope, limits, costs, ahead))
    };
    let too_many = vec![1; MAX + 1];
    for (costs, name) in [(&too_many[..], "d"), (&[1][..], ""), (&[1][..], "a}b")] {
        assert!(matches!(call(costs, name).await, Err(StoreError::Invalid(_))), "{costs:?} {name}");
    }
    bench.clock.set(Micros::MAX);
    let far = call(&[1], "far").await.unwrap();
    bench.clock.set(Micros(START));
    assert_eq!(
        (far.slots, far.refused.map(|refused| refused.slot)),
        (vec![], Some(Micros::MAX)),
        "no slot beyond what is exact"
    );

    let daily = Limit::leaky_bucket("daily", Rate::new(1, Duration::from_secs(86_400)).unwrap(), 1).unwrap();
    let limits = LimitSet::new(vec![daily]).unwrap();
    let ahead = Duration::ZERO;
    let (highest, beyond) = ([limits.max_cost()], [limits.max_cost() + 1]);
    let call = |costs| {
        let costs = Costs::Each(costs);
        bench.store.reserve(Reserve::new(scope, &limits, costs, ahead))
    };
    assert_eq!(call(&highest).await.unwrap().slots, [Micros(START)]);
    assert!(matches!(call(&beyond).await, Err(StoreError::Invalid(_))));
}

/// Each slot that is taken drops entries that no later instant needs. When two slots are given back one after the
/// other, the frontier must not return to where a dropped entry counted.
#[tokio::test]
async fn slots_given_back_in_turn_do_not_forget_what_counted_before() {
    let second = Duration::from_secs(1);
    let limits = [
        Limit::sliding_log("log", 1, second).unwrap(),
        Limit::sliding_window("buckets", 1, second, 10).unwrap(),
    ];
    for limit in limits {
        let mut bench = Bench::new(1);
        bench.limits = LimitSet::new(vec![limit]).unwrap();
        let costs = Costs::Each(&[1, 1, 1]);
        let taken = bench.reserve("", START, &[1, 1, 1], 10_000).await;
        let granted = taken.granted(&bench.limits, costs);
        let scope = Scope { downstream: "d", key: "" };
        for last in granted.iter().skip(1).rev() {
            let Granted { slot, charged, before, after } = last;
            let call = Cancel {
                scope,
                limits: &bench.limits,
                lane: None,
                slot: *slot,
                charged,
                before,
                after,
                is_unused: false,
            };
            assert!(bench.store.cancel(call).await.unwrap());
        }
        let again = bench.reserve("", START + 1, &[1], 10_000).await;
        assert_eq!(again.slots, [taken.slots[1]], "{:?}", bench.limits);
    }
}

/// A turn that was booked behind a backlog must not delay its asker once the backlog is forgotten.
#[tokio::test]
async fn a_reset_forgets_booked_turns() {
    let bench = Bench::new(1);
    let scope = Scope { downstream: "d", key: "" };
    let (limits, ahead) = (&bench.limits, Duration::from_secs(60));
    let asker = Asker {
        turn: None,
        reach: Duration::from_millis(100),
        waiting: 1000,
        own: 1,
        interval: Duration::from_millis(100),
        goes_on: false,
        farthest: Duration::from_secs(300),
    };
    let book = async || {
        let call =
            Reserve { asker: Some(asker), ..Reserve::new(scope, limits, Costs::Each(&[1; 100]), ahead) };
        match bench.store.reserve(call).await.unwrap().booking.unwrap().next {
            NextTurn::At(turn) => turn.begins.since(bench.clock.now()),
            other => panic!("{other:?}"),
        }
    };
    bench.clock.set(Micros(START));
    assert_eq!(
        (book().await, book().await),
        (Duration::from_secs(10), Duration::from_secs(20)),
        "100 slots each"
    );
    bench.store.reset(scope, limits).await.unwrap();
    assert_eq!(book().await, Duration::from_secs(10));
}

/// Units that a window holds back wait for no turn: a turn that nobody can use would keep others from their slots.
#[tokio::test]
async fn who_waits_for_the_end_of_a_window_books_no_turn() {
    let bench = Bench::new(1);
    let window = Limit::first_hit_window("w", 10, Duration::from_secs(60)).unwrap();
    let limits = &LimitSet::new(vec![bench.limits.iter().next().unwrap().clone(), window]).unwrap();
    let scope = Scope { downstream: "d", key: "" };
    let booked = async |costs: &[u32], waiting| {
        let (reach, interval) = (Duration::from_millis(100), Duration::from_secs(6));
        let farthest = Duration::from_secs(300);
        let asker = Some(Asker { turn: None, reach, waiting, own: 2, interval, goes_on: false, farthest });
        let call = Reserve::new(scope, limits, Costs::Each(costs), Duration::from_millis(120));
        bench.store.reserve(Reserve { asker, ..call }).await.unwrap().booking.unwrap().next
    };
    bench.clock.set(Micros(START));
    assert_eq!(booked(&[7], 7).await, NextTurn::None);
    bench.clock.set(Micros(START + 10_000 * MS));
    assert_eq!(booked(&[5, 5, 6], 16).await, NextTurn::None, "all of them wait for the window");
    let NextTurn::At(turn) = booked(&[5, 5], 12).await else { panic!("two units need one") };
    assert_eq!((turn.begins, turn.units), (Micros(START + 10_000 * MS), 1));
}

/// Those of 50 000 keys that may be forgotten.
#[tokio::test]
async fn one_call_forgets_few_keys() {
    let bench = Bench::new(1);
    for index in 0..50_000 {
        bench.reserve(&index.to_string(), START, &[1], 0).await;
    }
    let held = bench.store.key_count("d");
    assert!(held >= 50_000, "all are in use: {held}");
    // All are whole again by now.
    let (mut before, mut most) = (held, 0);
    for index in 0..30_000 {
        bench.reserve(&format!("later-{index}"), START + 1_000_000 * MS, &[1], 0).await;
        let after = bench.store.key_count("d");
        (before, most) = (after, most.max(before.saturating_sub(after)));
    }
    assert!(most <= 16, "{most} keys are forgotten in one call");
    assert!(before < held, "they are forgotten in the end: {before}");
}

#[tokio::test]
async fn no_call_for_a_known_key_looks_at_all_others() {
    const KEYS: usize = 10_000;
    let bench = Bench::new(1);
    for index in 0..KEYS {
        let before = EXAMINED.get();
        bench.reserve(&index.to_string(), START, &[1], 0).await;
        let after = EXAMINED.get();
        assert!(after - before <= 16, "a new key examines {} others of {index}", after - before);
        bench.reserve("0", START, &[1], 0).await;
        assert_eq!(EXAMINED.get(), after, "with {} keys", index + 1);
    }
    assert!(EXAMINED.get() > KEYS, "that is counted");
}
