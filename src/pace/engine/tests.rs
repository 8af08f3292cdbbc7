//! Tests of the engine alone, with callers, a store in memory, and paused time.

use std::time::Duration;

use super::*;
use crate::limit::{Limit, LimitSet};
use crate::pace::pacing::Fallback;
use crate::pace::release::clock::TokioClock;
use crate::pace::{Caller, OnLimit, OnUnavailable, tests};
use crate::store::{Change, MemoryStore, RecordState, Stamp};

mod quiet;

const MS: Duration = Duration::from_millis(1);

/// Admits waiters up to this cost.
struct UpTo(u32);

impl Admission<Caller> for UpTo {
    fn admits(&self, caller: &Caller) -> bool {
        caller.cost().default_cost() <= self.0
    }
}

/// An engine with its driver, and the recorded effects.
struct Driven {
    engine: Engine<Caller>,
    wakeups: Wakeups,
    store: Arc<MemoryStore>,
    start: Instant,
    /// The numbers of the released waiters, each with the time since the start in ms.
    released: Vec<(u64, u128)>,
    refused: Vec<(u64, Refusal)>,
    /// The number of iterations of the driver.
    turns: usize,
}

impl Driven {
    fn new(settings: Settings) -> Self {
        let store = Arc::new(MemoryStore::new());
        let engine = Engine::new(settings, Arc::clone(&store) as Arc<dyn Store>);
        let wakeups = engine.wakeups(&TokioClock);
        Self { engine, wakeups, store, start: Instant::now(), released: vec![], refused: vec![], turns: 0 }
    }

    fn offer(&mut self, seqs: std::ops::Range<u64>) {
        seqs.for_each(|seq| self.engine.offer(Caller::new(seq)));
    }

    /// Drives the engine for this span.
    async fn run(&mut self, span: Duration) {
        let end = Instant::now() + span;
        let mut effects = vec![];
        while Instant::now() < end {
            self.turns += 1;
            self.engine.tick(Instant::now(), &UpTo(100));
            self.engine.take_effects(&mut effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Release(held) => {
                        let after = Instant::now() - self.start;
                        self.released.push((held.waiter.seq(), after.as_millis()));
                        self.engine.on_sent(Some(MS));
                    }
                    Effect::Refuse(caller, refusal) => self.refused.push((caller.seq(), refusal)),
                    Effect::Prepare { .. }
                    | Effect::Follow
                    | Effect::DropStale
                    | Effect::Cancelled
                    | Effect::Failing(_)
                    | Effect::Eased
                    | Effect::Recheck { .. } => {}
                }
            }
            self.engine.next(&mut self.wakeups, Some(end)).await;
        }
    }

    fn seqs(&self) -> Vec<u64> {
        self.released.iter().map(|(seq, _)| *seq).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn each_is_released_at_its_slot_and_nothing_turns_in_vain() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..100);
    driven.run(Duration::from_secs(1)).await;
    let expected: Vec<(u64, u128)> = (0..100).map(|seq| (seq, u128::from(seq) * 10)).collect();
    assert_eq!(driven.released, expected);
    // The driver iterates once for each slot, and a few times for each call.
    assert!(driven.turns < 200, "{} turns", driven.turns);
    driven.run(Duration::from_secs(60)).await;
    assert!(driven.engine.is_idle() && driven.turns < 210, "{} turns", driven.turns);
}

#[tokio::test(start_paused = true)]
async fn who_is_not_admitted_or_not_waited_for_gets_no_slot() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.engine.offer(Caller::new(0).cost(101));
    driven.engine.offer(Caller { is_live: false, ..Caller::new(1) });
    driven.offer(2..4);
    driven.run(100 * MS).await;
    assert_eq!(driven.refused, [(0, Refusal::NotAdmitted)]);
    assert_eq!(driven.released, [(2, 0), (3, 10)], "no slot was wasted on the others");
}

#[tokio::test(start_paused = true)]
async fn what_the_limits_do_not_allow_is_refused_where_they_police() {
    let settings = Settings { on_limit: OnLimit::Reject, ..tests::settings("10/s") };
    let mut driven = Driven::new(settings);
    driven.offer(0..2);
    driven.run(50 * MS).await;
    assert_eq!(driven.released, [(0, 0)]);
    let [(1, Refusal::Limited { lane: LaneId::DOWNSTREAM, limit: 0, earliest })] = driven.refused[..] else {
        panic!("{:?}", driven.refused)
    };
    let now = driven.store.ping().await.unwrap();
    assert_eq!(earliest.since(now), 50 * MS, "the next slot");
}

#[tokio::test(start_paused = true)]
async fn while_it_is_suspended_only_the_one_to_be_tried_goes() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..20);
    driven.run(45 * MS).await;
    assert_eq!(driven.seqs(), [0, 1, 2, 3, 4]);
    driven.engine.suspend(Abandoned::Unreachable);
    assert_eq!((driven.engine.release().held(), driven.engine.waiting()), (0, 15));
    driven.run(Duration::from_secs(5)).await;
    assert_eq!(driven.seqs().len(), 5);
    assert!(driven.engine.try_at().is_some_and(|at| at <= Instant::now()));
    driven.engine.try_one(Caller::new(100));
    assert_eq!(driven.engine.try_at(), None, "one at a time");
    driven.run(Duration::from_secs(1)).await;
    assert_eq!(driven.seqs()[5..], [100]);
    let turns = driven.turns;
    driven.run(Duration::from_secs(10)).await;
    assert!(driven.turns - turns < 20, "{} turns with nothing to do", driven.turns - turns);
    driven.engine.resume();
    driven.run(Duration::from_secs(1)).await;
    assert_eq!(driven.seqs()[6..], (5..20).collect::<Vec<u64>>());
}

#[tokio::test(start_paused = true)]
async fn a_pause_gives_up_what_is_held_and_keeps_the_order() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..10);
    driven.run(25 * MS).await;
    driven.engine.penalize(Deadline::at(Instant::now() + Duration::from_secs(1)));
    assert_eq!(driven.engine.release().held(), 0);
    driven.run(Duration::from_secs(2)).await;
    assert_eq!(driven.seqs(), (0..10).collect::<Vec<u64>>());
    let behind: Vec<u128> = driven.released[3..].iter().map(|(_, at)| *at).collect();
    assert!(behind[0] >= 1025 && behind.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{behind:?}");
    let record = driven.store.read_record("billing").await.unwrap();
    assert!(record.status.penalty > Micros(0), "all replicas know");
}

#[tokio::test(start_paused = true)]
async fn at_its_end_all_come_back() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..10);
    driven.engine.offer_later(Instant::now() + Duration::from_secs(9), Caller::new(10));
    driven.run(15 * MS).await;
    let mut left: Vec<u64> = driven.engine.drain().iter().map(|caller| caller.seq()).collect();
    left.sort_unstable();
    assert_eq!((driven.seqs(), left), (vec![0, 1], (2..=10).collect()));
}

/// In real time every reading of the clock is later than the one before: what is due from now on must not become due a
/// moment later.
#[tokio::test]
async fn in_real_time_a_suspension_ends_its_lease_and_one_is_tried() {
    let settings = Settings { on_unavailable: OnUnavailable::Local, ..tests::settings("100/s") };
    let mut driven = Driven::new(settings);
    driven.offer(0..1);
    driven.run(30 * MS).await;
    assert_eq!(driven.seqs(), [0]);
    driven.engine.suspend(Abandoned::Unauthorized);
    let turns = driven.turns;
    driven.run(100 * MS).await;
    let next = driven.engine.pacing.wake_at(&driven.engine.settings);
    assert!(next.is_some_and(|at| at > Instant::now()), "the lease is ended, and the next probe is later");
    assert!(driven.turns - turns < 20, "{} turns", driven.turns - turns);
    let now = Instant::now();
    assert!(driven.engine.try_at().is_some_and(|at| at <= now));
    driven.engine.try_one(Caller::new(1));
    for _ in 0..1000 {
        if driven.seqs().len() < 2 {
            driven.run(50 * MS).await;
        }
    }
    assert_eq!(driven.seqs(), [0, 1]);
}

#[tokio::test]
async fn in_real_time_one_is_tried_while_nothing_paces() {
    let mut driven = Driven::new(tests::settings("1/m"));
    driven.engine.pacing.begin_fallback(Fallback { local: None, leases: 1 }, Instant::now());
    driven.engine.suspend(Abandoned::Unauthorized);
    let now = Instant::now();
    assert!(driven.engine.try_at().is_some_and(|at| at <= now));
    driven.engine.try_one(Caller::new(7));
    let wake = driven.engine.wake_at().expect("at once");
    assert!(wake <= Instant::now());
    driven.engine.tick(Instant::now(), &UpTo(100));
    assert_eq!(driven.engine.release().held(), 0, "its slot is now");
    let mut effects = vec![];
    driven.engine.tick(Instant::now(), &UpTo(100));
    driven.engine.take_effects(&mut effects);
    assert!(matches!(&effects[..], [Effect::Release(held)] if held.waiter.seq() == 7), "{effects:?}");
}

#[tokio::test(start_paused = true)]
async fn the_one_to_be_tried_is_looked_at_again() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..1);
    driven.run(10 * MS).await;
    driven.engine.suspend(Abandoned::Unauthorized);
    driven.engine.try_one(Caller::new(1).cost(101));
    driven.run(50 * MS).await;
    assert_eq!(driven.refused, [(1, Refusal::NotAdmitted)]);
    driven.engine.try_one(Caller { is_live: false, ..Caller::new(2) });
    driven.engine.drop_stale();
    assert!(driven.engine.try_at().is_some(), "nobody is to be tried any more");
    driven.engine.try_one(Caller::new(3));
    driven.engine.suspend(Abandoned::Unreachable);
    assert_eq!(driven.engine.waiting(), 1, "not lost by a second suspension");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_for_before_the_driver_goes_by_the_settings_in_force() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..1);
    driven.run(10 * MS).await;
    driven.engine.reload(tests::settings("1/s"));
    driven.offer(1..2);
    driven.engine.tick(Instant::now(), &UpTo(100));
    assert!(!driven.engine.pacing.is_calling(), "the driver admits by the old limits");
    let mut effects = vec![];
    driven.engine.take_effects(&mut effects);
    assert!(matches!(&effects[..], [Effect::Follow]), "{effects:?}");
    driven.engine.tick(Instant::now(), &UpTo(100));
    assert!(driven.engine.pacing.is_calling());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_lost_a_resume_is_told_of_it_and_all_goes_on() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..1);
    driven.run(50 * MS).await;
    // This store is behind, since the resume did not reach it.
    let behind = Arc::new(MemoryStore::new());
    let terms = driven.store.read_record("billing").await.unwrap().terms.unwrap();
    behind.update_record("billing", Change::Terms { of: 0, text: &terms }).await.unwrap();
    behind.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    tokio::time::advance(MS).await;
    driven.store.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    driven.run(100 * MS).await;
    driven.store.update_record("billing", Change::Resume).await.unwrap();
    driven.run(100 * MS).await;
    driven.engine.store = Arc::clone(&behind) as Arc<dyn Store>;
    driven.offer(1..3);
    driven.run(Duration::from_secs(10)).await;
    assert_eq!(driven.seqs(), [0, 1, 2]);
    assert!(!behind.read_record("billing").await.unwrap().status.is_stopped());
}

#[tokio::test(start_paused = true)]
async fn at_its_end_those_come_back_whom_the_driver_was_not_told_of() {
    let mut driven = Driven::new(tests::settings("100/s"));
    driven.offer(0..1);
    driven.run(5 * MS).await;
    driven.engine.offer(Caller::new(1).cost(101));
    driven.engine.offer(Caller::new(2));
    driven.engine.tick(Instant::now() + 10 * MS, &UpTo(100));
    assert_eq!(driven.engine.waiting(), 0, "one is refused, and one is asked for");
    let mut left: Vec<u64> = driven.engine.drain().iter().map(|caller| caller.seq()).collect();
    left.sort_unstable();
    assert_eq!(left, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_one_that_waits_no_longer_is_used_by_the_next() {
    let mut driven = Driven::new(tests::settings("10/s"));
    driven.offer(0..2);
    driven.run(50 * MS).await;
    driven.offer(2..4);
    driven.engine.withdraw((LaneId::DOWNSTREAM, 0, 1));
    assert_eq!((driven.engine.release().held(), driven.engine.waiting()), (1, 1), "2 holds it");
    driven.engine.withdraw((LaneId::DOWNSTREAM, 0, 99));
    driven.run(Duration::from_secs(1)).await;
    assert_eq!(driven.released, [(0, 0), (2, 100), (3, 200)]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_nobody_uses_goes_back_to_the_store_if_it_is_the_last_one() {
    let mut driven = Driven::new(tests::settings("40/s"));
    driven.offer(0..3);
    driven.run(20 * MS).await;
    assert_eq!(driven.engine.release().held(), 2);
    let next = async |driven: &Driven| {
        let limits = &driven.engine.settings.limits;
        let scope = crate::store::Scope { downstream: "billing", key: "" };
        let costs = crate::Costs::Each(&[]);
        let asked = driven.store.reserve(crate::store::Reserve::new(scope, limits, costs, Duration::MAX));
        (asked.await.unwrap().next, driven.store.ping().await.unwrap())
    };
    let (before, _) = next(&driven).await;
    // The other waiter moves up, so that the last slot is left over.
    driven.engine.withdraw((LaneId::DOWNSTREAM, 0, 1));
    driven.run(MS).await;
    let (after, _) = next(&driven).await;
    assert_eq!(before.since(after), 25 * MS);
    driven.engine.withdraw((LaneId::DOWNSTREAM, 0, 2));
    driven.run(MS).await;
    let (after, _) = next(&driven).await;
    assert_eq!(before.since(after), 50 * MS, "and the one before it");
    driven.run(Duration::from_secs(1)).await;
    assert_eq!(driven.seqs(), [0]);
}

/// A waiter whose slot was missed gets another one, at once if slots lie further apart than the horizon.
#[tokio::test(start_paused = true)]
async fn a_missed_slot_of_a_slow_limit_goes_back() {
    let mut driven = Driven::new(tests::settings("1/s"));
    driven.offer(0..2);
    driven.run(990 * MS).await;
    assert_eq!(driven.engine.release().held(), 1);
    tokio::time::advance(210 * MS).await;
    driven.run(Duration::from_secs(3)).await;
    assert_eq!(driven.released, [(0, 0), (1, 1200)]);
}

/// Two waiters of different costs hold one instant of a window. If one is withdrawn, the units of the other stay taken.
#[tokio::test(start_paused = true)]
async fn only_what_was_taken_for_the_one_that_leaves_goes_back() {
    for (leaves, left) in [(1_u64, 5_u64), (2, 9)] {
        let window = Limit::sliding_log("log", 10, Duration::from_secs(1)).unwrap();
        let limits = LimitSet::new(vec![window]).unwrap();
        let mut driven = Driven::new(Settings { limits, ..tests::settings("10/s") });
        driven.engine.offer(Caller::new(0).cost(10));
        driven.run(10 * MS).await;
        driven.engine.offer(Caller::new(1).cost(1));
        driven.engine.offer(Caller::new(2).cost(5));
        driven.run(960 * MS).await;
        assert_eq!(driven.engine.release().held(), 2);
        driven.engine.withdraw((LaneId::DOWNSTREAM, 0, leaves));
        driven.run(100 * MS).await;
        let stays = 3 - leaves;
        assert_eq!(driven.seqs(), [0, stays]);
        let scope = crate::store::Scope { downstream: "billing", key: "" };
        let (limits, costs) = (&driven.engine.settings.limits, [1; 10]);
        let costs = crate::Costs::Each(&costs);
        let now = crate::store::Reserve::new(scope, limits, costs, Duration::ZERO);
        let free = driven.store.reserve(now).await.unwrap().slots.len() as u64;
        // The slot of the first waiter can only go back if it was the last one granted.
        assert_eq!(free, if leaves == 1 { 4 } else { left }, "{leaves} leaves");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_hears_counts_and_failures_are_told() {
    let mut driven = Driven::new(tests::settings("100/s"));
    assert_eq!(driven.engine.generation(), None);
    driven.offer(0..1);
    driven.run(10 * MS).await;
    assert_eq!(driven.engine.generation(), Some(1));
    let record =
        driven.store.update_record("billing", Change::Penalize(Duration::from_secs(1))).await.unwrap();
    let at = Instant::now();
    let RecordState { now, epoch, status, .. } = record;
    let stamp = Stamp { now, epoch, status };
    driven.engine.on_answered(Answered { sent: at, received: at, stamp });
    assert!(driven.engine.terms.pauses().is_paused());
    let error = StoreError::Invalid("no".to_owned());
    driven.engine.on_failure(&error);
    let mut effects = vec![];
    driven.engine.take_effects(&mut effects);
    assert!(matches!(&effects[..], [Effect::Recheck { .. }, Effect::Failing(_)]), "{effects:?}");
}
