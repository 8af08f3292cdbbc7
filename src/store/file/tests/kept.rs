//! What a killed process leaves to the next one, besides the states of limits.

use super::*;
use crate::store::journal::Entry;
use crate::store::{CoolDownCall, Lane, Lanes, Outcome, Recall, Tombstone};

const HOUR: Duration = Duration::from_secs(3600);

/// Makes a change, and kills the process as soon as it is answered.
fn after_kill<T>(
    disk: &SimDisk,
    clock: &Arc<dyn Clock>,
    call: impl for<'a> FnOnce(&'a FileStore) -> Answer<'a, T>,
) -> (T, Bench) {
    let mut bench = Bench::open(disk, clock);
    let (answer, _) = bench.answer(call);
    drop(bench);
    (answer.unwrap(), Bench::open(disk, clock))
}

#[test]
fn the_record_is_kept() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let pause = Change::Pause { span: None, note: "{\"by\":\"alice\"}" };
    let (paused, mut next) = after_kill(&disk, &clock, |store| store.update_record("d", pause));
    assert!(paused.status.is_stopped());
    assert_eq!(next.answer(|store| store.read_record("d")).0.unwrap(), paused);
    let (resumed, mut next) = after_kill(&disk, &clock, |store| store.update_record("d", Change::Resume));
    assert!(!resumed.status.is_stopped() && resumed.status.pause.version > paused.status.pause.version);
    assert_eq!(next.answer(|store| store.read_record("d")).0.unwrap(), resumed);
    let changes = [
        Change::Penalize(HOUR),
        Change::Terms { of: 0, text: "{}" },
        Change::Pause { span: Some(HOUR), note: "" },
        Change::Recall(Recall { generation: 7, terms: Some("new"), ..Recall::default() }),
        Change::CoolDown(CoolDownCall::Refused { replica: "r", first: Duration::from_secs(1), most: HOUR }),
    ];
    for change in changes {
        let (changed, mut next) = after_kill(&disk, &clock, |store| store.update_record("d", change));
        assert_eq!(next.answer(|store| store.read_record("d")).0.unwrap(), changed, "{change:?}");
    }
}

#[test]
fn a_reset_is_kept() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let limits = set(vec![daily(3)]);
    let all: &'static [Limit] = limits.iter().cloned().collect::<Vec<_>>().leak();
    let mut bench = Bench::open(&disk, &clock);
    assert_eq!(bench.take(&limits, 5, Duration::ZERO).0.unwrap().len(), 3);
    drop(bench);
    let reset = Change::Reset { limits: all };
    let (_, mut next) = after_kill(&disk, &clock, |store| store.update_record("d", reset));
    assert_eq!(next.take(&limits, 5, Duration::ZERO).0.unwrap().len(), 3);
    drop(next);
    let mut bench = Bench::open(&disk, &clock);
    let scope = Scope { downstream: "d", key: "" };
    let mut discarded = bench.store.reset(scope, &limits);
    assert!((&mut discarded).now_or_never().is_none(), "it waits for the disk");
    bench.writer.step(&bench.store.journal.take()).unwrap();
    assert!((&mut discarded).now_or_never().unwrap().is_ok());
    drop(discarded);
    drop(bench);
    assert_eq!(Bench::open(&disk, &clock).take(&limits, 5, Duration::ZERO).0.unwrap().len(), 3);
}

/// Wherever a loss of power cuts a reset off, slots that are out already stay taken.
#[test]
fn no_part_of_a_reset_is_a_fresh_state() {
    let limits = set(vec![Limit::gcra("g", "10/s".parse().unwrap(), 5).unwrap()]);
    let all: &'static [Limit] = limits.iter().cloned().collect::<Vec<_>>().leak();
    let ahead = Duration::from_secs(3);
    for entries in 0..3 {
        let (disk, (_, clock)) = (SimDisk::default(), manual());
        let mut bench = Bench::open(&disk, &clock);
        let last = *bench.take(&limits, 20, ahead).0.unwrap().last().unwrap();
        let mut reset = bench.store.update_record("d", Change::Reset { limits: all });
        assert!((&mut reset).now_or_never().is_none(), "it waits for the disk");
        let mut batch = bench.store.journal.take();
        assert_eq!(batch.entries.len(), 2, "the state and the record");
        batch.entries.truncate(entries);
        bench.writer.step(&batch).unwrap();
        drop(reset);
        drop(bench);
        let slots = Bench::open(&disk, &clock).take(&limits, 5, ahead).0.unwrap();
        assert!(
            !slots.is_empty() && slots.iter().all(|slot| *slot > last),
            "{entries}: {slots:?} after {last}"
        );
    }
}

/// A tenant has one quota over all runs and all of its lanes.
#[test]
fn the_states_of_lanes_are_kept() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (own, tenant) = (set(vec![leaky("1000/s")]), set(vec![daily(5), leaky("100/s")]));
    let lanes = [["acme", "a"], ["acme", "b"], ["zoo", "c"]];
    let lanes = lanes.each_ref().map(|keys| Lane { limits: &tenant, keys });
    let mut taken = Vec::new();
    for run in 0..6 {
        let mut bench = Bench::open(&disk, &clock);
        let of = [run % 2, run % 2, 2].map(|lane| Some(u16::try_from(lane).unwrap()));
        let scope = Scope { downstream: "d", key: "" };
        let call = Reserve::new(scope, &own, Costs::Each(&[1; 3]), Duration::from_millis(100));
        let call = Reserve {
            lanes: Some(Lanes { all: &lanes, of: &of, lead: Duration::from_millis(20), most: 3 }),
            ..call
        };
        let mut answer = bench.store.reserve(call);
        let reserved = (&mut answer).now_or_never().unwrap_or_else(|| {
            bench.writer.step(&bench.store.journal.take()).unwrap();
            (&mut answer).now_or_never().unwrap()
        });
        let outcomes = reserved.unwrap().outcomes(&call);
        taken.push(
            outcomes
                .iter()
                .map(|outcome| usize::from(matches!(outcome, Outcome::Granted(_))))
                .collect::<Vec<_>>(),
        );
        // Killed, and a kill costs a second of slots.
        manual.set(Micros(manual.now().0 + 2_000_000));
    }
    let sum = |jobs: &[usize]| {
        taken.iter().map(|row| jobs.iter().map(|&job| row[job]).sum::<usize>()).sum::<usize>()
    };
    assert_eq!((sum(&[0, 1]), sum(&[2])), (5, 5), "{taken:?}");
}

#[test]
fn tombstones_are_kept_until_they_end() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let ids: &'static [Arc<str>] = ["a", "b"].map(Arc::from).to_vec().leak();
    let cancel = TombstoneCall::Cancel { ids, span: HOUR };
    let (reply, _) = after_kill(&disk, &clock, |store| store.tombstones("d", cancel));
    assert_eq!(reply.changed, 2);
    let undo = TombstoneCall::Undo { ids: &ids[1..] };
    let (reply, mut next) = after_kill(&disk, &clock, |store| store.tombstones("d", undo));
    assert_eq!(reply.changed, 1);
    let read = next.answer(|store| store.tombstones("d", TombstoneCall::Read { after: 0 })).0.unwrap();
    let page: Vec<(&str, bool)> =
        read.page.iter().map(|Tombstone { id, is_undone, .. }| (&**id, *is_undone)).collect();
    assert_eq!((page, read.up_to), (vec![("a", false), ("b", true)], reply.status.tombstones));
    manual.set(START.plus(2 * HOUR));
    let again = TombstoneCall::Cancel { ids: &ids[..1], span: HOUR };
    let (reply, mut next) = after_kill(&disk, &clock, |store| store.tombstones("d", again));
    assert_eq!(reply.changed, 1);
    let read = next.answer(|store| store.tombstones("d", TombstoneCall::Read { after: 0 })).0.unwrap();
    assert_eq!(read.page.len(), 1, "those that had ended are gone");
}

#[test]
fn what_replicas_tell_of_downstreams_is_kept() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (noted, _) = after_kill(&disk, &clock, |store| store.history("d", Some("{\"paused\":true}")));
    assert_eq!(noted.len(), 1);
    let mut bench = Bench::open(&disk, &clock);
    let served = Served { prefix: "paced", names: &["d", "gone"], ..Served::default() };
    assert_eq!(bench.answer(|store| store.served(served)).0.unwrap().new, 2);
    assert_eq!(bench.answer(|store| store.note_parked("d", 12)).0.unwrap(), 12);
    assert_eq!(bench.answer(|store| store.note_parked("d", -2)).0.unwrap(), 10);
    // Nobody waits for these: they are written within a second.
    bench.write().unwrap();
    drop(bench);
    manual.set(START.plus(HOUR));
    let mut bench = Bench::open(&disk, &clock);
    assert_eq!(bench.answer(|store| store.history("d", None)).0.unwrap(), noted);
    assert_eq!(bench.answer(|store| store.note_parked("d", 0)).0.unwrap(), 10);
    let served =
        Served { prefix: "paced", names: &["d"], unserved_for: Duration::from_secs(10), ..Served::default() };
    let reply = bench.answer(|store| store.served(served)).0.unwrap();
    let unserved: Vec<&str> = reply.unserved.iter().map(|unserved| unserved.name.as_str()).collect();
    assert_eq!((reply.new, unserved), (0, vec!["gone"]));
    let forgotten = Served { prefix: "paced", forgotten: Some("gone"), ..Served::default() };
    assert!(bench.answer(|store| store.served(forgotten)).0.is_ok());
    bench.write().unwrap();
    drop(bench);
    let mut bench = Bench::open(&disk, &clock);
    assert!(bench.answer(|store| store.served(served)).0.unwrap().unserved.is_empty());
    assert_eq!(bench.answer(|store| store.history("d", Some("x"))).0.unwrap().len(), 2);
}

/// A downstream that is not used any more is not kept for ever, and its states are not.
#[test]
fn a_downstream_that_has_nothing_to_keep_is_left_out() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let limits = set(vec![leaky("10/s")]);
    let mut bench = Bench::open(&disk, &clock);
    let stop = Change::Pause { span: None, note: "" };
    assert!(bench.answer(|store| store.update_record("stopped", stop)).0.is_ok());
    assert_eq!(bench.take(&limits, 1, Duration::ZERO).0.unwrap().len(), 1);
    assert!(bench.answer(|store| store.read_record("stepped")).0.is_ok());
    manual.set(Micros(START.0 - 5_000_000));
    assert!(bench.answer(|store| store.read_record("stepped")).0.is_ok());
    let names = |bench: &Bench| {
        let entries = bench.store.memory.entries(Some(u64::MAX));
        let name = |entry| match entry {
            Entry::Record(record) => record.downstream,
            Entry::State { downstream, .. } => downstream,
            other => panic!("{other:?}"),
        };
        let mut names: Vec<String> = entries.into_iter().map(name).collect();
        names.sort();
        names
    };
    assert_eq!(
        names(&bench),
        ["d", "d", "stepped", "stopped"],
        "its state is kept, and its record with that"
    );
    // A start sees what the clock showed at the last write: the second one finds that the state equals absence.
    for _ in 0..2 {
        bench.close();
        manual.set(manual.now().plus(HOUR));
        bench = Bench::open(&disk, &clock);
    }
    assert_eq!(names(&bench), ["stepped", "stopped"], "states are written under the steps of the clock");
}

/// What comes while everything is written anew is in the new file, and behind it once more.
#[test]
fn nothing_is_kept_twice() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let mut bench = Bench::open(&disk, &clock);
    assert!(bench.answer(|store| store.note_parked("d", 1)).0.is_ok());
    disk.fail(Fault::Cut { kept: 0, hole: 0 });
    assert!(bench.write().is_err());
    disk.fail(Fault::None);
    let taken = bench.store.journal.take();
    assert_eq!(bench.store.memory.noted("d", Some("x")).unwrap().answer.len(), 1);
    bench.writer.step(&taken).unwrap();
    let anew = disk.length();
    bench.write().unwrap();
    assert!(disk.length() > anew, "it is behind it");
    drop(bench);
    let mut next = Bench::open(&disk, &clock);
    assert_eq!(next.answer(|store| store.history("d", None)).0.unwrap().len(), 1);
}
