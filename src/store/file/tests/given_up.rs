//! Calls that their callers give up while they wait for the disk.

use super::*;

const SCOPE: Scope<'static> = Scope { downstream: "d", key: "" };

/// As of a caller that waits for no longer than it has to: a disk that does not answer uses up no quota.
#[test]
fn a_call_that_is_given_up_costs_nothing() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![daily(10)]));
    let call = Reserve::new(SCOPE, &limits, Costs::Each(&[1; 4]), Duration::ZERO);
    for _ in 0..5 {
        let mut answer = bench.store.reserve(call);
        assert!((&mut answer).now_or_never().is_none(), "it waits for the disk");
        drop(answer);
    }
    // What was charged after it stays charged, and then it does too.
    let (mut first, mut second) = (bench.store.reserve(call), bench.store.reserve(call));
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
    drop(first);
    bench.writer.step(&bench.store.journal.take()).unwrap();
    assert_eq!((&mut second).now_or_never().unwrap().unwrap().slots.len(), 4);
    drop(second);
    assert_eq!(bench.take(&limits, 9, Duration::ZERO).0.unwrap().len(), 2);
    drop(bench);
    assert_eq!(Bench::open(&disk, &clock).take(&limits, 9, Duration::ZERO).0.unwrap().len(), 0);
}

/// What was written for it does not stay on disk either: a kill long after it costs nothing.
#[test]
fn a_call_that_is_given_up_costs_the_next_process_nothing() {
    for taken in [0, 2] {
        for is_written in [false, true] {
            let (disk, (_, clock)) = (SimDisk::default(), manual());
            let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![daily(10)]));
            if taken > 0 {
                assert_eq!(bench.take(&limits, taken, Duration::ZERO).0.unwrap().len(), taken);
            }
            let mut answer =
                bench.store.reserve(Reserve::new(SCOPE, &limits, Costs::Each(&[1; 4]), Duration::ZERO));
            assert!((&mut answer).now_or_never().is_none(), "it waits for the disk");
            if is_written {
                // The answer comes too late.
                bench.writer.step(&bench.store.journal.take()).unwrap();
            }
            drop(answer);
            bench.write().unwrap();
            drop(bench);
            let left = Bench::open(&disk, &clock).take(&limits, 20, Duration::ZERO).0.unwrap().len();
            assert_eq!(left, 10 - taken, "{is_written}");
        }
    }
}

/// A disk that does not answer has them give up one after the other, and what it is to write does not grow by that.
#[test]
fn calls_that_are_given_up_do_not_pile_up() {
    for is_writing in [false, true] {
        let (disk, (_, clock)) = (SimDisk::default(), manual());
        let (bench, limits) = (Bench::open(&disk, &clock), set(vec![daily(10)]));
        let call = Reserve::new(SCOPE, &limits, Costs::Each(&[1; 4]), Duration::ZERO);
        let give_up = || assert!(bench.store.reserve(call).now_or_never().is_none(), "it waits for the disk");
        give_up();
        let written = is_writing.then(|| bench.store.journal.take());
        for _ in 0..1000 {
            give_up();
        }
        assert_eq!(bench.store.journal.take().entries.len(), 1);
        assert_eq!(written.map_or(1, |batch| batch.entries.len()), 1);
    }
}

/// A call that was given up takes nothing away of what others are answered by.
#[test]
fn after_a_call_that_is_given_up_others_do_not_wait_longer() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let limits = set(vec![Limit::gcra("g", "10/s".parse().unwrap(), 100).unwrap()]);
    let mut bench = Bench::open(&disk, &clock);
    assert!(bench.take(&limits, 10, Duration::ZERO).1, "the first one waits");
    assert!(!bench.take(&limits, 1, Duration::ZERO).1);
    bench.write().unwrap();
    // More than is leased.
    let call = Reserve::new(SCOPE, &limits, Costs::Each(&[1; 50]), Duration::ZERO);
    assert!(bench.store.reserve(call).now_or_never().is_none(), "it waits for the disk");
    let (slots, waited) = bench.take(&limits, 1, Duration::ZERO);
    assert_eq!((slots.unwrap().len(), waited), (1, false));
}

/// A state that many calls wait for is written once, however long it is.
#[test]
fn calls_that_wait_together_are_one_entry() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let limits = set(vec![Limit::sliding_log("l", 1000, Duration::from_secs(86_400)).unwrap()]);
    let mut bench = Bench::open(&disk, &clock);
    let call = Reserve::new(SCOPE, &limits, Costs::Each(&[1]), Duration::ZERO);
    let mut answers: Vec<_> = (0..500).map(|_| bench.store.reserve(call)).collect();
    assert!(answers.iter_mut().all(|answer| answer.now_or_never().is_none()));
    let batch = bench.store.journal.take();
    assert_eq!(batch.entries.len(), 1);
    bench.writer.step(&batch).unwrap();
    assert!(answers.iter_mut().all(|answer| answer.now_or_never().is_some_and(|answer| answer.is_ok())));
    drop(answers);
    drop(bench);
    let left = Bench::open(&disk, &clock).take(&limits, 1000, Duration::ZERO).0.unwrap().len();
    assert_eq!(left, 500);
}
