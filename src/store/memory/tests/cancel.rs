//! Cancelling: a slot is given back only if it is the latest one and has not passed.

use proptest::prelude::*;

use super::*;
use crate::limit::Combine;
use crate::limit::tests::sets::{costs, set};
use crate::limit::tests::{any_limit, span};
use crate::store::Granted;

const SCOPE: Scope<'static> = Scope { downstream: "d", key: "" };

/// A reservation that was not given back, and its index among all reservations.
struct Reservation {
    costs: Vec<u32>,
    granted: Granted,
    taken: usize,
}

struct Timeline {
    store: MemoryStore,
    clock: Arc<ManualClock>,
    limits: LimitSet,
    held: Vec<Reservation>,
    /// For each limit, the indices of the reservations that were charged to it and not given back.
    taken: Vec<Vec<usize>>,
    count: usize,
    given_back: usize,
}

#[derive(Clone, Debug)]
enum Op {
    /// Reserves slots for this many jobs of these costs.
    Reserve(usize, [u32; 5]),
    /// Checks one job of these costs, as a policer does.
    Check([u32; 5]),
    /// Cancels the reservation this many before the last one; with `true` also if its slot has passed.
    Cancel(usize, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let costs = || prop::array::uniform5(prop_oneof![1 => Just(0_u32), 4 => Just(1_u32), 1 => 1_u32..4]);
    prop_oneof![
        5 => (1_usize..4, costs()).prop_map(|(jobs, costs)| Op::Reserve(jobs, costs)),
        1 => costs().prop_map(Op::Check),
        5 => (prop::sample::select(vec![0, 0, 0, 1, 2, 5]), any::<bool>()).prop_map(|(index, any)| Op::Cancel(index, any)),
    ]
}

impl Timeline {
    fn new(limits: LimitSet) -> Self {
        let clock = Arc::new(ManualClock::new(Micros(START)));
        let store = MemoryStore::with_clock(clock.clone());
        let taken = vec![vec![]; limits.len()];
        Self { store, clock, limits, held: vec![], taken, count: 0, given_back: 0 }
    }

    fn dump(&self) -> Vec<String> {
        self.store.dump(SCOPE, &self.limits).split_off(1)
    }

    async fn reserve(&mut self, row: &[u32], jobs: usize, ahead: Duration) -> Vec<Micros> {
        let all = row.repeat(jobs);
        let costs = Costs::PerLimit(&all);
        let call = Reserve::new(SCOPE, &self.limits, costs, ahead);
        let reserved = self.store.reserve(call).await.unwrap();
        for granted in reserved.granted(&self.limits, costs) {
            self.take(&granted.charged.clone());
            self.held.push(Reservation { costs: row.to_vec(), granted, taken: self.count });
        }
        reserved.slots
    }

    fn take(&mut self, charged: &[u32]) {
        self.count += 1;
        for (taken, units) in self.taken.iter_mut().zip(charged) {
            if *units > 0 {
                taken.push(self.count);
            }
        }
    }

    /// Whether it was charged to any limit, and nothing was charged after it to the same limits.
    fn is_tail(&self, held: &Reservation) -> bool {
        let mut charged = self.taken.iter().zip(&held.granted.charged).filter(|(_, units)| **units > 0);
        held.granted.charged.iter().any(|units| *units > 0)
            && charged.all(|(taken, _)| taken.last() == Some(&held.taken))
    }

    async fn cancel(&mut self, index: usize, is_unused: bool) -> Result<(), TestCaseError> {
        let Some(index) = self.held.len().checked_sub(index + 1) else { return Ok(()) };
        let held = &self.held[index];
        let Granted { slot, charged, before, after } = &held.granted;
        let now = self.clock.now();
        let due = self.is_tail(held) && (now < *slot || is_unused);
        let kept = self.dump();
        let (limits, slot) = (&self.limits, *slot);
        let call = Cancel { scope: SCOPE, limits, lane: None, slot, charged, before, after, is_unused };
        let given = self.store.cancel(call).await.unwrap();
        // A state that equals absence is forgotten: there is nothing left to give back.
        prop_assert!(given == due || (!given && now >= slot), "{}, {}: {:?}", given, due, held.granted);
        if !given {
            prop_assert_eq!(self.dump(), kept, "nothing else changes anything");
            return Ok(());
        }
        self.given_back += 1;
        let Reservation { costs, taken: number, .. } = self.held.remove(index);
        for taken in &mut self.taken {
            taken.retain(|other| *other != number);
        }
        let again = self.reserve(&costs, 1, Duration::MAX).await;
        prop_assert_eq!(again, [slot.max(now)], "the next one gets it");
        Ok(())
    }

    async fn step(&mut self, moved: i64, op: Op, ahead: Duration) -> Result<(), TestCaseError> {
        let longest = self.limits.iter().map(span).max().unwrap();
        self.clock.set(Micros(self.clock.now().0 + moved * (longest / 100).max(1)));
        match op {
            Op::Reserve(jobs, row) => {
                let row = costs(&self.limits, &row);
                self.reserve(&row, jobs, ahead).await;
            }
            Op::Check(row) => {
                let row = costs(&self.limits, &row);
                let costs = Costs::PerLimit(&row);
                let call = Check { scope: SCOPE, limits: &self.limits, costs, generation: 0 };
                let charge = self.store.check(call).await.unwrap().verdicts[0].charge;
                let rows: Vec<_> = self.limits.rows(costs).collect();
                self.take(&self.limits.charged(&rows[0], charge));
            }
            Op::Cancel(index, is_unused) => self.cancel(index, is_unused).await?,
        }
        Ok(())
    }
}

#[test]
fn an_unreached_tail_slot_is_given_back_and_nothing_else() {
    let one = || any_limit().prop_map(|limit| LimitSet::new(vec![limit]).unwrap());
    let sets = prop_oneof![
        3 => one(),
        1 => set(Combine::All),
        1 => set(Combine::Any),
        1 => set(Combine::OneOf)
    ];
    // The clock only goes forward: other tests cover reservations across a step back.
    let moved = prop_oneof![3 => Just(0_i64), 3 => 0_i64..40, 1 => 90_i64..200];
    let ahead = prop_oneof![Just(0_i64), 0_i64..300, Just(1_000_000)];
    let timelines = (sets, prop::collection::vec((moved, op(), ahead), 60));
    let config = ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let given_back = std::cell::Cell::new(0);
    let outcome = proptest::test_runner::TestRunner::new(config).run(&timelines, |(limits, steps)| {
        let longest = limits.iter().map(span).max().unwrap();
        let mut timeline = Timeline::new(limits);
        runtime.block_on(async {
            for (moved, op, ahead) in steps {
                let ahead = ahead.saturating_mul(longest / 100 + 1).unsigned_abs();
                timeline.step(moved, op, Duration::from_micros(ahead)).await?;
            }
            given_back.set(given_back.get() + timeline.given_back);
            Ok(())
        })
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(given_back.get() > 1000, "{} were given back", given_back.get());
}
