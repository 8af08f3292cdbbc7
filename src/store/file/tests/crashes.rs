//! Crashes at any write: over all runs never more is granted than the limits allow, and each crash costs one lease at most.

use proptest::prelude::*;

use super::*;
use crate::limit::{LEASE, Level, State};
use crate::store::Granted;
use crate::store::journal::Entry;

mod anew;
mod ops;

use ops::{KEYS, Op, limits, op};

/// The states of a key as they are in memory, by the limits.
fn states(bench: &Bench, limits: &LimitSet, of: &str) -> Vec<State> {
    let entries = bench.store.memory.entries(None);
    let state = |limit: &Limit| {
        let kept = entries.iter().find_map(|entry| match entry {
            Entry::State { limit: name, kept, key, .. } if name == limit.name() && key == of => kept.clone(),
            _ => None,
        });
        limit.adopt(kept.map_or(limit.fresh(), |kept| kept.state))
    };
    limits.iter().map(state).collect()
}

/// Whether no more than one lease is lost between what a process had and what its successor has.
fn is_bounded(limit: &Limit, had: &State, has: &State) -> bool {
    match (&had.level, &has.level) {
        (Level::Tat(had, _), Level::Tat(has, _)) => {
            has.at.0 - had.at.0 <= 2 * i64::try_from(LEASE.as_micros()).unwrap()
        }
        _ => {
            let at = had.last.max(has.last);
            let left = |state: &State| limit.standing(state, at).remaining;
            left(had).saturating_sub(left(has)) <= limit.rate().units_in(LEASE)
        }
    }
}

/// Slots are rounded up, and the states that are made of them here may be ahead of the exact ones by that.
const ROUNDED: i64 = 1;

/// Whether nothing fits `has` before it fits `truth`.
fn allows_no_more(limit: &Limit, has: &State, truth: &State, now: Micros) -> bool {
    [0, 1, 100, 1000, 60_000].map(Duration::from_millis).into_iter().all(|after| {
        let at = now.plus(after);
        [1, 5]
            .into_iter()
            .all(|cost| limit.earliest(has, at, cost).0 + ROUNDED >= limit.earliest(truth, at, cost).0)
    })
}

struct Scene {
    disk: SimDisk,
    manual: Arc<ManualClock>,
    clock: Arc<dyn Clock>,
    /// The limits in force, and the numbers that they may get.
    limits: [LimitSet; 2],
    /// The states of each key by the grants that callers received.
    truth: [Vec<State>; 3],
    /// The grants that callers received and can give back, each with the states before it.
    grants: Vec<(Granted, Vec<State>)>,
    /// Whether states in memory may be lower than those on disk by more than a lease, until the next write or start.
    is_lower: bool,
    /// Whether the limits have got other numbers since the last start, which say other things of what was charged.
    is_rerated: bool,
}

impl Scene {
    fn new(limits: [LimitSet; 2]) -> (Self, Bench) {
        let (disk, (manual, clock)) = (SimDisk::default(), manual());
        let fresh: Vec<State> = limits[0].iter().map(Limit::fresh).collect();
        let bench = Bench::open(&disk, &clock);
        let truth = [fresh.clone(), fresh.clone(), fresh];
        (
            Self { disk, manual, clock, limits, truth, grants: vec![], is_lower: false, is_rerated: false },
            bench,
        )
    }

    fn advance(&self, micros: i64) {
        self.manual.set(Micros(self.manual.now().0 + micros));
    }

    fn write(&mut self, bench: &mut Bench) {
        self.is_lower &= bench.write().is_err();
    }

    /// Ends a process by dropping it, and starts the next one.
    fn restart(&mut self, bench: Bench, after: i64) -> Result<Bench, TestCaseError> {
        let limits = &self.limits[0];
        let had = KEYS.map(|key| states(&bench, limits, key));
        drop(bench);
        self.disk.fail(Fault::None);
        self.advance(after);
        let next = Bench::open(&self.disk, &self.clock);
        let now = self.manual.now();
        for ((key, had), truth) in KEYS.into_iter().zip(had).zip(&self.truth) {
            let has = states(&next, limits, key);
            for ((limit, had), (has, truth)) in limits.iter().zip(had).zip(has.iter().zip(truth)) {
                // A state that equals absence is not kept.
                if limit.whole_at(&had) > now && !self.is_lower && !self.is_rerated {
                    prop_assert!(is_bounded(limit, &had, has), "{limit:?}: had {had:?}, has {has:?}");
                }
                let truth = limit.adopt(truth.clone());
                prop_assert!(
                    allows_no_more(limit, has, &truth, now),
                    "{limit:?}: {has:?} forgets of {truth:?}"
                );
            }
        }
        (self.is_lower, self.is_rerated, self.grants) = (false, false, vec![]);
        Ok(next)
    }

    /// Notes a grant that a caller received.
    fn note(&mut self, key: usize, slot: Micros, charged: &[u32]) -> Result<(), TestCaseError> {
        for ((limit, truth), &cost) in self.limits[0].iter().zip(&mut self.truth[key]).zip(charged) {
            let held = limit.adopt(truth.clone());
            let earliest = limit.earliest(&held, Micros(0), cost);
            prop_assert!(
                earliest.0 <= slot.0 + ROUNDED,
                "{limit:?}: {slot} is granted, and {earliest} is the next"
            );
            *truth = limit.commit(&held, slot, cost);
        }
        Ok(())
    }

    fn take(&mut self, bench: &mut Bench, jobs: usize, cost: u32, ahead: u64) -> Result<bool, TestCaseError> {
        let costs = vec![cost.min(self.limits[0].max_cost()); jobs];
        let scope = Scope { downstream: "d", key: "" };
        let limits = self.limits[0].clone();
        let call = Reserve::new(scope, &limits, Costs::Each(&costs), Duration::from_millis(ahead));
        let reserved = {
            let mut answer = bench.store.reserve(call);
            match (&mut answer).now_or_never() {
                Some(reserved) => reserved,
                None => {
                    self.is_lower &= bench.writer.step(&bench.store.journal.take()).is_err();
                    (&mut answer).now_or_never().expect("it waits for one batch at most")
                }
            }
        };
        let Ok(reserved) = reserved else { return Ok(false) };
        self.granted(reserved.granted(&limits, Costs::Each(&costs)))?;
        Ok(true)
    }

    /// Notes the grants that a call received.
    fn granted(&mut self, slots: Vec<Granted>) -> Result<(), TestCaseError> {
        for granted in slots {
            let before = self.truth[0].clone();
            self.note(0, granted.slot, &granted.charged)?;
            self.grants.push((granted, before));
        }
        Ok(())
    }

    /// A call whose caller does not wait for the disk.
    fn give_up(&mut self, bench: &Bench, jobs: usize) -> Result<(), TestCaseError> {
        let (limits, costs) = (self.limits[0].clone(), vec![1; jobs]);
        let scope = Scope { downstream: "d", key: "" };
        let call = Reserve::new(scope, &limits, Costs::Each(&costs), Duration::ZERO);
        match bench.store.reserve(call).now_or_never() {
            Some(reserved) => self.granted(reserved.unwrap().granted(&limits, Costs::Each(&costs))),
            // What it was charged may be written, and what takes it back only with the next write.
            None => {
                self.is_lower = true;
                Ok(())
            }
        }
    }

    fn check(&mut self, bench: &mut Bench, key: usize, cost: u32) -> Result<(), TestCaseError> {
        let limits = self.limits[0].clone();
        let costs = [cost.min(limits.max_cost())];
        let scope = Scope { downstream: "d", key: KEYS[key] };
        let call = Check { scope, limits: &limits, costs: Costs::Each(&costs), generation: 0 };
        let mut answer = bench.store.check(call);
        let checked = (&mut answer).now_or_never().unwrap_or_else(|| {
            self.is_lower &= bench.writer.step(&bench.store.journal.take()).is_err();
            (&mut answer).now_or_never().expect("it waits for one batch at most")
        });
        let now = self.manual.now();
        for verdict in checked.unwrap().verdicts {
            if verdict.charge != Charge::default() {
                self.note(key, now, &vec![costs[0]; limits.len()])?;
            }
        }
        Ok(())
    }

    /// Gives the last slots back, the latest first, without a wait.
    fn give_back(&mut self, bench: &Bench, jobs: usize) {
        for _ in 0..jobs {
            let Some((granted, truth)) = self.grants.pop() else { return };
            let Granted { slot, charged, before, after } = &granted;
            let (scope, limits) = (Scope { downstream: "d", key: "" }, &self.limits[0]);
            let slot = *slot;
            let call = Cancel { scope, limits, lane: None, slot, charged, before, after, is_unused: true };
            if !bench.store.cancel(call).now_or_never().expect("it waits for nothing").unwrap() {
                return;
            }
            (self.truth[0], self.is_lower) = (truth, true);
        }
    }

    fn change(&mut self, bench: &mut Bench, change: Change<'static>) {
        assert!(bench.answer(|store| store.update_record("d", change)).0.is_ok());
    }

    fn reset(&mut self, bench: &mut Bench) {
        let (limits, now) = (self.limits[0].clone(), self.manual.now());
        let all: &'static [Limit] = limits.iter().cloned().collect::<Vec<_>>().leak();
        self.change(bench, Change::Reset { limits: all });
        for (limit, truth) in limits.iter().zip(&mut self.truth[0]) {
            *truth = limit.restarted(truth.last.max(now));
        }
        self.grants.clear();
    }

    fn stop(&mut self, bench: Bench) -> Result<Bench, TestCaseError> {
        let limits = &self.limits[0];
        let had = KEYS.map(|key| states(&bench, limits, key));
        bench.close();
        let next = Bench::open(&self.disk, &self.clock);
        for (key, had) in KEYS.into_iter().zip(had) {
            for ((limit, had), has) in limits.iter().zip(&had).zip(states(&next, limits, key)) {
                // A state that equals absence is not kept.
                prop_assert!(limit.whole_at(had) <= self.manual.now() || has == *had, "nothing is lost");
            }
        }
        Ok(next)
    }
}

fn run(limits: [LimitSet; 2], ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut scene, mut bench) = Scene::new(limits);
    for op in ops {
        match *op {
            Op::Take { after, jobs, cost, ahead } => {
                scene.advance(after);
                prop_assert!(scene.take(&mut bench, jobs, cost, ahead)?, "the disk works");
            }
            Op::Check { after, key, cost } => {
                scene.advance(after);
                scene.check(&mut bench, key, cost)?;
            }
            Op::GiveBack { jobs } => scene.give_back(&bench, jobs),
            Op::GiveUp { after, jobs } => {
                scene.advance(after);
                scene.give_up(&bench, jobs)?;
            }
            Op::Pause { millis } => {
                let span = Some(Duration::from_millis(millis));
                scene.change(&mut bench, Change::Pause { span, note: "" });
            }
            Op::Resume => scene.change(&mut bench, Change::Resume),
            Op::Rerate => {
                scene.limits.swap(0, 1);
                (scene.grants, scene.is_rerated) = (vec![], true);
            }
            Op::Reset => scene.reset(&mut bench),
            Op::Write => scene.write(&mut bench),
            Op::Crash { fault, after } => {
                scene.disk.fail(fault);
                // Either a call that waits or the writer by itself meets the fault. What was charged for a call that failed
                // may be on disk, and is given back in memory.
                let is_answered = scene.take(&mut bench, 3, 1, 500)?;
                scene.write(&mut bench);
                scene.is_lower |= !is_answered;
                bench = scene.restart(bench, after)?;
            }
            Op::Kill { after } => bench = scene.restart(bench, after)?,
            Op::Restart { after } => {
                bench = scene.stop(bench)?;
                scene.advance(after);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_crash_adds_a_slot_and_each_costs_one_lease(
        limits in limits(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        run(limits, &ops)?;
    }
}

/// The scenes are what they say: writes do fail within calls, and leases are lost.
#[test]
fn a_crash_costs_what_was_leased() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let limits = set(vec![leaky("200/s")]);
    let mut bench = Bench::open(&disk, &clock);
    assert_eq!(bench.take(&limits, 1, Duration::ZERO).0.unwrap(), [START]);
    drop(bench);
    let mut bench = Bench::open(&disk, &clock);
    // A slot, and twice 100.
    let next = START.plus(Duration::from_millis(5 + 1000));
    assert_eq!(bench.take(&limits, 1, Duration::from_secs(2)).0.unwrap(), [next]);
    bench.close();
    let mut bench = Bench::open(&disk, &clock);
    manual.set(START);
    let following = next.plus(Duration::from_millis(5));
    assert_eq!(bench.take(&limits, 1, Duration::from_secs(2)).0.unwrap(), [following], "nothing is lost");
}

/// Slots that were given back make what is on disk wider than the next lease: what it still vouches for is not replaced while
/// calls are answered by it.
#[test]
fn a_renewal_after_slots_were_given_back_does_not_vouch_for_less() {
    let gcra = |rate: &str, burst| set(vec![Limit::gcra("g", rate.parse().unwrap(), burst).unwrap()]);
    for (limits, most) in [(gcra("10/s", 100), 100), (set(vec![daily(1_000_000)]), 100)] {
        let (mut scene, mut bench) = Scene::new([limits.clone(), limits]);
        assert!(scene.take(&mut bench, most, 1, 0).unwrap());
        scene.give_back(&bench, most);
        scene.advance(300_000);
        assert!(scene.take(&mut bench, 1, 1, 0).unwrap());
        scene.advance(10_000);
        assert!(scene.take(&mut bench, most - 1, 1, 0).unwrap());
        assert_eq!(scene.grants.len(), most, "all are granted");
        scene.write(&mut bench);
        // Whether what was renewed is on disk or not.
        scene.restart(bench, 0).unwrap();
    }
}

/// Nobody waits for the disk because slots were given back before.
#[test]
fn after_slots_were_given_back_the_next_call_does_not_wait() {
    let limits = set(vec![Limit::gcra("g", "10/s".parse().unwrap(), 100).unwrap()]);
    let (mut scene, mut bench) = Scene::new([limits.clone(), limits]);
    assert!(scene.take(&mut bench, 100, 1, 0).unwrap());
    scene.give_back(&bench, 50);
    let writes = scene.disk.writes();
    assert!(scene.take(&mut bench, 1, 1, 0).unwrap());
    assert_eq!((scene.grants.len(), scene.disk.writes()), (51, writes));
    // Whether what is to be written for it is on disk or not.
    scene.restart(bench, 0).unwrap();
}

/// A lease reaches into the next window. The state of this one equals absence once its slot is given back, and calls are
/// still answered by that lease: a new file has it too.
#[test]
fn a_lease_of_a_state_that_equals_absence_is_written_anew() {
    let limits = set(vec![Limit::fixed_window("f", 50, Duration::from_secs(1)).unwrap()]);
    let (mut scene, mut bench) = Scene::new([limits.clone(), limits]);
    scene.advance(700_000);
    assert!(scene.take(&mut bench, 1, 1, 0).unwrap());
    scene.give_back(&bench, 1);
    assert!(bench.answer(|store| store.note_parked("d", 1)).0.is_ok());
    scene.disk.fail(Fault::Cut { kept: 0, hole: 0 });
    assert!(bench.write().is_err());
    scene.disk.fail(Fault::None);
    bench.write().unwrap();
    let writes = scene.disk.writes();
    assert!(scene.take(&mut bench, 50, 1, 0).unwrap());
    assert_eq!((scene.grants.len(), scene.disk.writes()), (50, writes), "they are answered at once");
    scene.restart(bench, 0).unwrap();
}

/// What is given back is given to the next process too.
#[test]
fn what_was_given_back_is_not_lost_with_the_process() {
    let limits = set(vec![Limit::gcra("g", "10/s".parse().unwrap(), 100).unwrap()]);
    let (mut scene, mut bench) = Scene::new([limits.clone(), limits]);
    assert!(scene.take(&mut bench, 100, 1, 0).unwrap());
    scene.give_back(&bench, 100);
    scene.write(&mut bench);
    assert!(!scene.is_lower);
    let mut next = scene.restart(bench, 0).unwrap();
    assert!(scene.take(&mut next, 100, 1, 0).unwrap());
    assert!(scene.grants.len() >= 90, "{} of 100", scene.grants.len());
}
