use std::sync::Mutex;

use futures_util::FutureExt as _;

use super::disk::{Disk, OpenError};
use super::*;
use crate::limit::{Charge, Costs, Limit};
use crate::lock::lock;
use crate::time::{ManualClock, Uptime};

mod crashes;
mod files;
mod given_up;
mod kept;
mod restarts;

const START: Micros = Micros(1_760_000_000_000_000);
const DAY: i64 = 86_400_000_000;

/// A disk that keeps what was synced, and on which writes end as a test wants.
#[derive(Clone, Debug, Default)]
struct SimDisk(Arc<Mutex<Sim>>);

#[derive(Debug, Default)]
struct Sim {
    bytes: Option<Vec<u8>>,
    /// How the next writes end.
    fault: Fault,
    writes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// The next write ends here: this part of it, in thousandths, is on disk, and what is before the hole may be zeros.
    Cut { kept: usize, hole: usize },
    /// The next write is complete, but returns an error.
    Unconfirmed,
}

impl SimDisk {
    fn fail(&self, fault: Fault) {
        lock(&self.0).fault = fault;
    }

    fn writes(&self) -> usize {
        lock(&self.0).writes
    }

    fn length(&self) -> usize {
        lock(&self.0).bytes.as_ref().map_or(0, Vec::len)
    }
}

impl Disk for SimDisk {
    fn read(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        Ok(lock(&self.0).bytes.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sim = lock(&self.0);
        sim.writes += 1;
        let (kept, hole) = match sim.fault {
            Fault::None | Fault::Unconfirmed => (bytes.len(), 0),
            Fault::Cut { kept, hole } => (bytes.len() * kept / 1000, bytes.len() * hole / 1000),
        };
        let mut written = bytes[..kept].to_vec();
        written.iter_mut().take(hole).for_each(|byte| *byte = 0);
        sim.bytes.get_or_insert_default().extend(written);
        if sim.fault == Fault::None { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sim = lock(&self.0);
        sim.writes += 1;
        if matches!(sim.fault, Fault::None | Fault::Unconfirmed) {
            sim.bytes = Some(bytes.to_vec());
        }
        if sim.fault == Fault::None { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }
}

/// A store whose writer continues when the test says so.
struct Bench {
    store: FileStore,
    writer: Writer,
}

impl Bench {
    fn open(disk: &SimDisk, clock: &Arc<dyn Clock>) -> Self {
        let store = FileStore::new(Path::new("simulated"), Arc::clone(clock));
        let mut writer = Writer::on(Box::new(disk.clone()), &store.memory, &store.journal).unwrap();
        writer.step(&store.journal.take()).unwrap();
        Self { store, writer }
    }

    /// Ends it in order.
    fn close(mut self) {
        self.store.journal.close();
        self.writer.step(&self.store.journal.take()).unwrap();
    }

    /// Has the writer write what there is.
    fn write(&mut self) -> io::Result<()> {
        self.writer.step(&self.store.journal.take())
    }

    /// The answer to a call, and whether it had to wait for the writer.
    fn answer<T>(
        &mut self,
        call: impl for<'a> FnOnce(&'a FileStore) -> Answer<'a, T>,
    ) -> (Result<T, StoreError>, bool) {
        let store = &self.store;
        let mut answer = call(store);
        if let Some(answer) = (&mut answer).now_or_never() {
            return (answer, false);
        }
        let _ = self.writer.step(&store.journal.take());
        let answer = (&mut answer).now_or_never();
        (answer.expect("it waits for one batch at most"), true)
    }

    /// The slots of `jobs` jobs of `d`, and whether the call had to wait.
    fn take(
        &mut self,
        limits: &LimitSet,
        jobs: usize,
        ahead: Duration,
    ) -> (Result<Vec<Micros>, StoreError>, bool) {
        let costs = vec![1; jobs];
        let scope = Scope { downstream: "d", key: "" };
        let call = Reserve::new(scope, limits, Costs::Each(&costs), ahead);
        let store = &self.store;
        let mut answer = store.reserve(call);
        let mut waited = false;
        let reserved = (&mut answer).now_or_never().unwrap_or_else(|| {
            waited = true;
            let _ = self.writer.step(&store.journal.take());
            (&mut answer).now_or_never().expect("it waits for one batch at most")
        });
        (reserved.map(|reserved| reserved.slots), waited)
    }
}

fn manual() -> (Arc<ManualClock>, Arc<dyn Clock>) {
    let clock = Arc::new(ManualClock::new(START));
    (Arc::clone(&clock), clock)
}

fn set(limits: Vec<Limit>) -> LimitSet {
    LimitSet::new(limits).unwrap()
}

fn leaky(rate: &str) -> Limit {
    Limit::leaky_bucket("pace", rate.parse().unwrap(), 1).unwrap()
}

/// A quota of `count` a day, in UTC.
fn daily(count: u64) -> Limit {
    use crate::limit::{Calendar, Edges, calendar::Unit};
    Limit::quota("daily", count, Edges::Calendar(Calendar::new(Unit::Day, 0).unwrap())).unwrap()
}

/// While slots follow each other, one write serves many calls, and none of them waits for it.
#[test]
fn a_pace_waits_for_the_disk_when_it_begins_and_not_again() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![leaky("1000/s")]));
    let (before, mut waits) = (disk.writes(), 0);
    for call in 0..100 {
        manual.set(START.plus(Duration::from_millis(call * 20)));
        let (slots, waited) = bench.take(&limits, 20, Duration::from_millis(100));
        assert_eq!(slots.unwrap().len(), 20);
        waits += usize::from(waited);
        bench.write().unwrap();
    }
    assert_eq!(waits, 1, "the first call");
    let writes = disk.writes() - before;
    assert!((4..=16).contains(&writes), "{writes} writes in two seconds");
}

/// A limit that releases less than a unit in a lease is written with each grant.
#[test]
fn a_slow_limit_waits_for_the_disk_each_time() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![leaky("1/s"), daily(10)]));
    for second in 0..15 {
        manual.set(START.plus(Duration::from_secs(second)));
        let (slots, waited) = bench.take(&limits, 1, Duration::ZERO);
        let is_granted = second < 10;
        assert_eq!((slots.unwrap().len(), waited), (usize::from(is_granted), is_granted), "{second}");
    }
}

#[test]
fn a_refusal_and_a_look_write_nothing() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![leaky("1/s")]));
    assert!(bench.take(&limits, 1, Duration::ZERO).1);
    let before = disk.writes();
    for _ in 0..10 {
        let (slots, waited) = bench.take(&limits, 1, Duration::ZERO);
        assert_eq!((slots.unwrap(), waited), (vec![], false));
        assert!(bench.answer(|store| store.read_record("d")).0.is_ok());
        assert!(bench.answer(|store| store.ping()).0.is_ok());
        bench.write().unwrap();
    }
    assert_eq!(disk.writes(), before);
}

/// However long it runs, the file is bounded by what it holds.
#[test]
fn the_file_does_not_grow_without_end() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![leaky("1/s")]));
    let mut longest = 0;
    for second in 0..10_000 {
        manual.set(START.plus(Duration::from_secs(second)));
        assert_eq!(bench.take(&limits, 1, Duration::ZERO).0.unwrap().len(), 1);
        longest = longest.max(disk.length());
    }
    assert!((200 << 10..=260 << 10).contains(&longest), "{longest} bytes at most");
    bench.close();
    assert!(disk.length() < 1000, "{} bytes hold it", disk.length());
}

#[test]
fn states_that_equal_absence_are_left_out() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![leaky("10/s")]));
    for key in 0..500 {
        let (key, costs) = (key.to_string(), [1]);
        let scope = Scope { downstream: "d", key: &key };
        let call = Check { scope, limits: &limits, costs: Costs::Each(&costs), generation: 0 };
        let mut checked = bench.store.check(call);
        assert!((&mut checked).now_or_never().is_none());
        drop(checked);
        bench.writer.step(&bench.store.journal.take()).unwrap();
    }
    assert!(disk.length() > 50_000);
    manual.set(START.plus(Duration::from_secs(120)));
    assert_eq!(bench.take(&limits, 1, Duration::ZERO).0.unwrap().len(), 1);
    bench.close();
    assert!(disk.length() < 1000, "{} bytes hold the one in use", disk.length());
}

/// All keys are kept, by however many parts they are written.
#[test]
fn many_keys_are_kept() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (bench, limits) = (Bench::open(&disk, &clock), set(vec![leaky("1/m")]));
    for key in 0..3000 {
        let (key, costs) = (key.to_string(), [1]);
        let scope = Scope { downstream: "d", key: &key };
        let call = Check { scope, limits: &limits, costs: Costs::Each(&costs), generation: 0 };
        assert!(bench.store.check(call).now_or_never().is_none(), "it waits for the disk");
    }
    // Those calls were given up, and are not charged; these are answered.
    bench.close();
    assert_eq!(Bench::open(&disk, &clock).store.memory.entries(None), [], "nothing is kept");
    let mut bench = Bench::open(&disk, &clock);
    let keys: Vec<String> = (0..3000).map(|key| key.to_string()).collect();
    let call = |key| Check {
        scope: Scope { downstream: "d", key },
        limits: &limits,
        costs: Costs::Each(&[1]),
        generation: 0,
    };
    let mut answers: Vec<_> = keys.iter().map(|key| bench.store.check(call(key.as_str()))).collect();
    assert!(answers.iter_mut().all(|answer| answer.now_or_never().is_none()));
    bench.writer.step(&bench.store.journal.take()).unwrap();
    assert!(answers.iter_mut().all(|answer| answer.now_or_never().is_some_and(|answer| answer.is_ok())));
    drop(answers);
    bench.close();
    let bench = Bench::open(&disk, &clock);
    assert_eq!(bench.store.memory.entries(None).len(), 1 + keys.len());
    manual.set(Micros(manual.now().0 + 1_000_000));
    for key in &keys {
        let checked =
            bench.store.check(call(key.as_str())).now_or_never().expect("a refusal waits for nothing");
        assert_eq!(checked.unwrap().verdicts[0].charge, Charge::default(), "{key}");
    }
}

/// A disk by which the writer's thread ends.
struct Broken(SimDisk);

impl Disk for Broken {
    fn read(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        self.0.read()
    }

    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        panic!("as by a mistake in it");
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.replace(bytes)
    }
}

#[tokio::test]
async fn without_its_writer_a_store_fails_its_calls() {
    let (_, clock) = manual();
    let store = FileStore::new(Path::new("simulated"), clock);
    let disk = Box::new(Broken(SimDisk::default()));
    let mut writer = Writer::on(disk, &store.memory, &store.journal).unwrap();
    writer.step(&store.journal.take()).unwrap();
    writer::spawn(writer, &store.path).unwrap();
    let limits = set(vec![daily(10)]);
    let call = Reserve::new(Scope { downstream: "d", key: "" }, &limits, Costs::Each(&[1]), Duration::ZERO);
    for _ in 0..2 {
        let error = store.reserve(call).await.unwrap_err().to_string();
        assert!(
            error.contains("the thread that writes it has ended") || error.contains("nothing writes it"),
            "{error}"
        );
    }
    assert!(store.ping().await.is_err() && store.finish().await.is_err());
}

/// Nothing is released that is not kept, and once there is room it continues.
#[test]
fn a_full_disk_refuses_calls_until_there_is_room() {
    let (disk, (manual, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![daily(10)]));
    assert_eq!(bench.take(&limits, 4, Duration::ZERO).0.unwrap().len(), 4);
    disk.fail(Fault::Cut { kept: 400, hole: 0 });
    let (refused, waited) = bench.take(&limits, 3, Duration::ZERO);
    let error = refused.unwrap_err();
    assert!(waited && error.is_away() && error.is_retryable(), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("the store in simulated cannot be used: it cannot be written: "), "{text}");
    assert!(text.ends_with("; make room on its disk"), "{text}");
    for _ in 0..5 {
        let (refused, waited) = bench.take(&limits, 1, Duration::ZERO);
        assert!(refused.is_err() && !waited, "nothing is decided");
        assert!(bench.answer(|store| store.ping()).0.is_err());
        let leave = |store: &FileStore| store.leave_summary("r", "{}", Duration::from_secs(9)).now_or_never();
        assert!(leave(&bench.store).unwrap().is_err() && bench.answer(|store| store.summaries()).0.is_err());
        assert!(bench.write().is_err());
    }
    disk.fail(Fault::None);
    bench.write().unwrap();
    // What was taken for the call that failed is given back.
    assert_eq!(bench.take(&limits, 9, Duration::ZERO).0.unwrap().len(), 6);
    drop(bench);
    manual.set(START.plus(Duration::from_secs(60)));
    let mut again = Bench::open(&disk, &clock);
    assert_eq!(again.take(&limits, 9, Duration::ZERO).0.unwrap().len(), 0);
}

#[test]
fn a_closed_store_decides_nothing() {
    let (disk, (_, clock)) = (SimDisk::default(), manual());
    let (mut bench, limits) = (Bench::open(&disk, &clock), set(vec![daily(5)]));
    let (costs, scope) = ([1], Scope { downstream: "d", key: "" });
    let mut late = bench.store.reserve(Reserve::new(scope, &limits, Costs::Each(&costs), Duration::ZERO));
    assert!((&mut late).now_or_never().is_none(), "it has decided, and waits");
    bench.store.journal.close();
    bench.writer.step(&bench.store.journal.take()).unwrap();
    assert!((&mut late).now_or_never().unwrap().is_err());
    drop(late);
    let (refused, _) = bench.take(&limits, 1, Duration::ZERO);
    assert!(refused.unwrap_err().to_string().contains("it was closed"));
}
