//! A new file that is written while calls are decided.

use super::*;
use crate::store::file::clocks::Clocks;
use crate::store::file::format::{BatchId, add, begin, end};

/// Calls are answered by what was on disk before, and by what is to follow the new file, which has nothing that may still be
/// replaced there.
#[test]
fn a_new_file_has_nothing_that_may_still_be_replaced() {
    let limits = set(vec![leaky("10/s")]);
    let (mut scene, mut bench) = Scene::new([limits.clone(), limits.clone()]);
    assert!(scene.take(&mut bench, 100, 1, 20_000).unwrap());
    // The writer has taken its batch before.
    let batch = bench.store.journal.take();
    scene.give_back(&bench, 50);
    let mut bytes = begin(START).unwrap();
    bench.store.memory.each_part(Some(batch.number), |part| add(&mut bytes, part)).unwrap();
    end(&mut bytes, BatchId::first(START), &Clocks::at_write(&*scene.clock)).unwrap();
    scene.disk.replace(&bytes).unwrap();
    bench.store.journal.succeed(batch.number);
    // One call waits for what is to follow, and never gets an answer; the one behind it waits for nothing.
    let (scope, costs, ahead) = (Scope { downstream: "d", key: "" }, [1; 20], Duration::from_secs(20));
    let call = |jobs: usize| Reserve::new(scope, &limits, Costs::Each(&costs[..jobs]), ahead);
    let mut waiting = bench.store.reserve(call(20));
    assert!((&mut waiting).now_or_never().is_none());
    let reserved = bench.store.reserve(call(5)).now_or_never().expect("it waits for nothing").unwrap();
    assert_eq!(reserved.slots.len(), 5);
    scene.granted(reserved.granted(&limits, Costs::Each(&costs[..5]))).unwrap();
    drop(waiting);
    scene.restart(bench, 0).unwrap();
}
