//! Restarts: orderly ones change no decision, and a clock that was set in between gives neither a stall nor a second quota.

use proptest::prelude::*;

use super::*;
use crate::store::{Granted, TICK};

/// A machine whose clock can be set, and which can be started anew.
#[derive(Debug)]
struct Machine(Mutex<(Micros, Uptime)>);

impl Machine {
    fn new() -> Arc<Self> {
        let uptime = Uptime { boot: "first".to_owned(), since: Duration::from_secs(100) };
        Arc::new(Self(Mutex::new((START, uptime))))
    }

    fn pass(&self, micros: i64) {
        let mut state = lock(&self.0);
        state.0.0 += micros;
        state.1.since += Duration::from_micros(micros.unsigned_abs());
    }

    fn set_clock(&self, by: i64) {
        lock(&self.0).0.0 += by;
    }

    fn boot(&self) {
        lock(&self.0).1 = Uptime { boot: "second".to_owned(), since: Duration::ZERO };
    }
}

impl Clock for Machine {
    fn now(&self) -> Micros {
        lock(&self.0).0
    }

    fn uptime(&self) -> Option<Uptime> {
        Some(lock(&self.0).1.clone())
    }
}

/// Ten a day are ten a day of the machine's own time, wherever its clock is set between runs, and a day later there are more.
#[test]
fn a_clock_that_is_set_gives_no_second_quota_and_no_stall() {
    for (first, second) in
        [(DAY, 0), (-DAY, 0), (-DAY, DAY), (DAY, -DAY), (40 * DAY, -40 * DAY), (3_600_000_000, 0)]
    {
        for each in [5, 10] {
            let machine = Machine::new();
            let clock: Arc<dyn Clock> = machine.clone();
            let (disk, limits) = (SimDisk::default(), set(vec![daily(10)]));
            let mut taken = 0;
            for step in [0, first, second] {
                machine.pass(60_000_000);
                machine.set_clock(step);
                let mut bench = Bench::open(&disk, &clock);
                taken += bench.take(&limits, each, Duration::ZERO).0.unwrap().len();
                // Killed.
            }
            assert_eq!(taken, 10, "set by {first}, then by {second} µs");
            // A window of the clock may be as long as two days of the machine's.
            machine.pass(2 * DAY);
            let mut bench = Bench::open(&disk, &clock);
            assert_eq!(bench.take(&limits, 20, Duration::ZERO).0.unwrap().len(), 10, "{first} {second}");
        }
    }
}

#[test]
fn a_clock_that_is_set_gives_no_burst_and_no_stall() {
    let limits = set(vec![Limit::gcra("g", "1/m".parse().unwrap(), 5).unwrap()]);
    for step in [DAY, -DAY, 400 * DAY, -400 * DAY] {
        for boot in [false, true] {
            if boot && step > 0 {
                // The clock alone does not show whether it was set or time has passed.
                continue;
            }
            let machine = Machine::new();
            let clock: Arc<dyn Clock> = machine.clone();
            let disk = SimDisk::default();
            let mut bench = Bench::open(&disk, &clock);
            assert_eq!(bench.take(&limits, 9, Duration::ZERO).0.unwrap().len(), 5);
            drop(bench);
            machine.pass(60_000_000);
            machine.set_clock(step);
            if boot {
                machine.boot();
            }
            let mut bench = Bench::open(&disk, &clock);
            let passed = u64::from(!boot);
            assert_eq!(bench.take(&limits, 9, Duration::ZERO).0.unwrap().len() as u64, passed, "{step}");
            // Killed again before anything else: the next run must know of the step too.
            drop(bench);
            let mut bench = Bench::open(&disk, &clock);
            machine.pass(60_000_000);
            assert_eq!(bench.take(&limits, 9, Duration::ZERO).0.unwrap().len(), 1, "{step}");
        }
    }
}

/// A machine that does something else for a while after each reading of its clocks.
#[derive(Debug)]
struct Interrupted(Arc<Machine>);

impl Interrupted {
    fn read<T>(&self, read: impl FnOnce(&Machine) -> T) -> T {
        let seen = read(&self.0);
        self.0.pass(150_000);
        seen
    }
}

impl Clock for Interrupted {
    fn now(&self) -> Micros {
        self.read(Machine::now)
    }

    fn uptime(&self) -> Option<Uptime> {
        self.read(Machine::uptime)
    }
}

#[test]
fn a_run_that_is_interrupted_moves_nothing_back() {
    let machine = Machine::new();
    let interrupted = Interrupted(Arc::clone(&machine));
    let (fast, slow): (&dyn Clock, &dyn Clock) = (&*machine, &interrupted);
    for (write, start) in [(fast, slow), (slow, fast), (slow, slow)] {
        let then = clocks::Clocks::at_write(write);
        machine.pass(1_000_000);
        let resumed = then.resumed(&clocks::Clocks::at_start(start));
        assert!((-300_000..0).contains(&resumed.back), "{resumed:?}");
    }
    let then = clocks::Clocks::at_write(fast);
    machine.pass(1_000_000);
    assert_eq!(then.resumed(&clocks::Clocks::at_start(fast)).back, 0);
}

/// A pause ends when it was to end, on the machine's own time.
#[test]
fn a_pause_moves_with_the_clock() {
    let (machine, disk) = (Machine::new(), SimDisk::default());
    let clock: Arc<dyn Clock> = machine.clone();
    let hour = Duration::from_secs(3600);
    let mut bench = Bench::open(&disk, &clock);
    let pause = Change::Pause { span: Some(hour), note: "" };
    assert!(bench.answer(|store| store.update_record("d", pause)).0.is_ok());
    drop(bench);
    for (step, left) in [(DAY, 59), (-3 * DAY, 58), (DAY, 57)] {
        machine.pass(60_000_000);
        machine.set_clock(step);
        let record = Bench::open(&disk, &clock).answer(|store| store.read_record("d")).0.unwrap();
        assert_eq!(record.status.pause.until.since(record.now), left * Duration::from_secs(60));
    }
}

/// A job that was cancelled is not sent because a clock was set.
#[test]
fn a_tombstone_moves_with_the_clock() {
    let hour = Duration::from_secs(3600);
    for step in [DAY, -DAY] {
        let (machine, disk) = (Machine::new(), SimDisk::default());
        let clock: Arc<dyn Clock> = machine.clone();
        let ids: &'static [Arc<str>] = vec![Arc::from("a")].leak();
        let cancel = TombstoneCall::Cancel { ids, span: hour };
        assert_eq!(
            Bench::open(&disk, &clock).answer(|store| store.tombstones("d", cancel)).0.unwrap().changed,
            1
        );
        machine.pass(60_000_000);
        machine.set_clock(step);
        for _ in 0..2 {
            let read = TombstoneCall::Read { after: 0 };
            let reply = Bench::open(&disk, &clock).answer(|store| store.tombstones("d", read)).0.unwrap();
            let left: Vec<Duration> =
                reply.page.iter().map(|tombstone| tombstone.until.since(reply.now)).collect();
            assert_eq!(left, [59 * Duration::from_secs(60)], "set by {step} µs");
        }
        machine.pass(DAY);
        let read = TombstoneCall::Read { after: 0 };
        let reply = Bench::open(&disk, &clock).answer(|store| store.tombstones("d", read)).0.unwrap();
        assert!(reply.page.iter().all(|tombstone| tombstone.until < reply.now), "it has ended");
    }
}

/// One step of a timeline.
#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve { jobs: usize, ahead: u64 },
    Check { jobs: usize, key: usize },
    Cancel,
    Change(usize),
    Restart,
}

const KEYS: [&str; 3] = ["", "a", "b"];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_usize..12, 0_u64..3000).prop_map(|(jobs, ahead)| Step::Reserve { jobs, ahead }),
        4 => (1_usize..6, 0..KEYS.len()).prop_map(|(jobs, key)| Step::Check { jobs, key }),
        2 => Just(Step::Cancel),
        1 => (0_usize..5).prop_map(Step::Change),
        3 => Just(Step::Restart),
    ]
}

fn sets() -> impl Strategy<Value = LimitSet> {
    let second = Duration::from_secs(1);
    prop::sample::select(vec![
        set(vec![leaky("7/s")]),
        set(vec![leaky("10/s"), Limit::sliding_log("l", 20, 3 * second).unwrap()]),
        set(vec![
            Limit::gcra("g", "5/s".parse().unwrap(), 6).unwrap(),
            Limit::first_hit_window("f", 9, second).unwrap(),
        ]),
        set(vec![Limit::sliding_window("s", 12, 2 * second, 4).unwrap(), daily(40)]),
    ])
}

fn change(number: usize) -> Change<'static> {
    match number {
        0 => Change::Penalize(Duration::from_millis(700)),
        1 => Change::Pause { span: Some(Duration::from_millis(300)), note: "n" },
        2 => Change::Resume,
        3 => Change::Terms { of: 0, text: "terms" },
        _ => Change::Reset { limits: &[] },
    }
}

/// The answers of both stores to one step.
fn differ(
    step: Step,
    (memory, bench): (&MemoryStore, &mut Bench),
    (limits, held): (&LimitSet, &mut Vec<Granted>),
) -> Result<(), TestCaseError> {
    match step {
        Step::Reserve { jobs, ahead } => {
            let costs = vec![1; jobs];
            let costs = Costs::Each(&costs);
            let scope = Scope { downstream: "d", key: "" };
            let call = Reserve::new(scope, limits, costs, Duration::from_millis(ahead));
            let expected = memory.reserve(call).now_or_never().unwrap().unwrap();
            *held = expected.granted(limits, costs);
            let mut answer = bench.store.reserve(call);
            let found = (&mut answer).now_or_never().unwrap_or_else(|| {
                bench.writer.step(&bench.store.journal.take()).unwrap();
                (&mut answer).now_or_never().unwrap()
            });
            prop_assert_eq!(found.unwrap(), expected);
        }
        Step::Check { jobs, key } => {
            let (costs, scope) = (vec![1; jobs], Scope { downstream: "d", key: KEYS[key] });
            let call = Check { scope, limits, costs: Costs::Each(&costs), generation: 0 };
            let expected = memory.check(call).now_or_never().unwrap().unwrap();
            let mut answer = bench.store.check(call);
            let found = (&mut answer).now_or_never().unwrap_or_else(|| {
                bench.writer.step(&bench.store.journal.take()).unwrap();
                (&mut answer).now_or_never().unwrap()
            });
            prop_assert_eq!(found.unwrap(), expected);
        }
        Step::Cancel => {
            let Some(Granted { slot, charged, before, after }) = held.pop() else {
                // The memory sees each step of the clock. Otherwise two steps may look like one that is too small to count, and
                // a restart forgets it.
                let expected = memory.read_record("d").now_or_never().unwrap().unwrap();
                prop_assert_eq!(bench.answer(|store| store.read_record("d")).0.unwrap(), expected);
                return Ok(());
            };
            let scope = Scope { downstream: "d", key: "" };
            let (charged, before, after) = (&charged, &before, &after);
            let call = Cancel { scope, limits, lane: None, slot, charged, before, after, is_unused: true };
            let expected = memory.cancel(call).now_or_never().unwrap().unwrap();
            let mut answer = bench.store.cancel(call);
            let found = (&mut answer).now_or_never().unwrap_or_else(|| {
                bench.writer.step(&bench.store.journal.take()).unwrap();
                (&mut answer).now_or_never().unwrap()
            });
            prop_assert_eq!(found.unwrap(), expected);
        }
        Step::Change(number) => {
            let expected = memory.update_record("d", change(number)).now_or_never().unwrap().unwrap();
            let found = bench.answer(|store| store.update_record("d", change(number))).0.unwrap();
            prop_assert_eq!(found, expected);
        }
        Step::Restart => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A store that is closed and opened again at any time decides as one that was never closed.
    #[test]
    fn an_orderly_restart_changes_no_decision(
        limits in sets(),
        steps in prop::collection::vec((step(), prop_oneof![9 => 30_i64..900, 1 => -5000_i64..-1000]), 1..80),
    ) {
        let (disk, (manual, clock)) = (SimDisk::default(), manual());
        let memory = MemoryStore::with_clock(Arc::clone(&clock));
        let mut bench = Bench::open(&disk, &clock);
        let mut held = vec![];
        // A record with no content is not kept, so the instant at which it began would differ.
        differ(Step::Change(3), (&memory, &mut bench), (&limits, &mut held))?;
        for (step, millis) in steps {
            if let Step::Restart = step {
                // The file has the instant itself. The memory cannot tell apart two instants within a tick, so both
                // are read a tick later.
                manual.set(manual.now().plus(TICK));
                let expected = memory.read_record("d").now_or_never().unwrap().unwrap();
                prop_assert_eq!(bench.answer(|store| store.read_record("d")).0.unwrap(), expected);
                bench.close();
                bench = Bench::open(&disk, &clock);
                continue;
            }
            manual.set(Micros(manual.now().0 + millis * 1000));
            differ(step, (&memory, &mut bench), (&limits, &mut held))?;
        }
    }
}
