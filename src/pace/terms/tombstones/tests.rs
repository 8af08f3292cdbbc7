//! A test for each arrow of the table.

use crate::store::MemoryStore;
use crate::time::ManualClock;

use super::*;

const NOW: Micros = Micros(1_800_000_000_000_000);
const DAY: Duration = Duration::from_secs(86_400);

/// One replica, and the store that it follows.
struct Bench {
    store: Arc<MemoryStore>,
    replica: Tombstones,
}

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::with_clock(Arc::new(ManualClock::new(NOW))))
}

fn ids(count: usize) -> Vec<Arc<str>> {
    (0..count).map(|number| Arc::from(format!("job-{number}"))).collect()
}

impl Bench {
    fn new(store: Arc<MemoryStore>) -> Self {
        Self { store, replica: Tombstones::new(Instant::now()) }
    }

    async fn cancel(&self, ids: &[Arc<str>]) {
        for ids in ids.chunks(1000) {
            self.store.tombstones("billing", TombstoneCall::Cancel { ids, span: DAY }).await.unwrap();
        }
    }

    async fn undo(&self, ids: &[Arc<str>]) {
        self.store.tombstones("billing", TombstoneCall::Undo { ids }).await.unwrap();
    }

    /// Gets the version, as with any answer; `record` stands for the epoch of the store's record.
    async fn get_version(&mut self, record: i64) {
        let status = self.store.read_record("billing").await.unwrap().status;
        self.replica.on_version(Micros(record), status.tombstones);
    }

    /// Makes the calls that are due; the answers are of this record. Returns how many were made, and how many waiters
    /// are newly cancelled.
    async fn follow(&mut self, record: i64) -> (usize, usize) {
        let (mut calls, mut cancelled) = (0, 0);
        loop {
            let store: Arc<dyn Store> = Arc::clone(&self.store) as _;
            self.replica.tick(Instant::now(), (&store, "billing"));
            if self.replica.call.is_none() {
                return (calls, cancelled);
            }
            let TombstonesReply { purpose, answer, .. } = self.replica.reply().await;
            let answer = TombstoneReply { epoch: Micros(record), ..answer.unwrap() };
            self.replica.on_version(answer.epoch, answer.status.tombstones);
            cancelled += self.replica.on_answer(purpose, answer);
            calls += 1;
        }
    }

    fn has(&self, id: &str) -> bool {
        self.replica.cancelled().contains(id)
    }
}

#[tokio::test(start_paused = true)]
async fn without_tombstones_no_call_is_made() {
    let mut bench = Bench::new(store());
    assert!(!bench.replica.is_behind());
    bench.get_version(1).await;
    assert!(matches!(bench.replica.state, State::Settled));
    assert_eq!((bench.follow(1).await, bench.replica.is_behind()), ((0, 0), false));
    bench.get_version(2).await;
    assert_eq!(bench.follow(2).await, (0, 0), "nothing is known that another record could lack");
}

#[tokio::test(start_paused = true)]
async fn changes_are_read_page_by_page_and_once() {
    let (mut bench, ids) = (Bench::new(store()), ids(2500));
    bench.cancel(&ids).await;
    assert!(!bench.replica.is_behind(), "it does not know of them");
    bench.get_version(1).await;
    assert!(bench.replica.is_behind());
    assert_eq!(bench.follow(1).await, (3, 2500));
    assert!(!bench.replica.is_behind() && ids.iter().all(|id| bench.has(id)));
    bench.get_version(1).await;
    assert_eq!(bench.follow(1).await, (0, 0));
    bench.undo(&ids[..1]).await;
    bench.cancel(&[Arc::from("more")]).await;
    bench.get_version(1).await;
    assert_eq!(bench.follow(1).await, (1, 1), "only what is new");
    assert!(!bench.has("job-0") && bench.has("job-1") && bench.has("more"));
    assert!(matches!(bench.replica.state, State::Settled));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_kept_its_state_is_read_anew_and_told_nothing() {
    let (mut bench, ids) = (Bench::new(store()), ids(1500));
    bench.cancel(&ids).await;
    bench.get_version(1).await;
    bench.follow(1).await;
    bench.get_version(2).await;
    assert!(bench.replica.is_behind(), "it may have lost some");
    assert_eq!(bench.follow(2).await, (2, 0));
    assert!(matches!(bench.replica.state, State::Settled));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_its_state_has_it_restored_by_all_who_know_it() {
    let ids = ids(1500);
    let before = store();
    let mut replicas = [(); 3].map(|()| Bench::new(Arc::clone(&before)));
    replicas[0].cancel(&ids).await;
    for bench in &mut replicas[..2] {
        bench.get_version(1).await;
        bench.follow(1).await;
    }
    // The first does not know that one was undone.
    replicas[1].undo(&ids[..1]).await;
    replicas[1].get_version(1).await;
    replicas[1].follow(1).await;

    let after = store();
    replicas.iter_mut().for_each(|bench| bench.store = Arc::clone(&after));
    let more = [Arc::from("more")];
    replicas[2].cancel(&more).await;
    for (index, calls) in [(0, 3), (1, 3), (2, 2), (0, 1)] {
        replicas[index].get_version(2).await;
        assert_eq!(replicas[index].follow(2).await.0, calls, "replica {index}");
        assert!(!replicas[index].replica.is_behind());
    }
    for bench in &replicas {
        assert!(matches!(bench.replica.state, State::Settled), "{:?}", bench.replica);
        assert!(!bench.has("job-0"), "undone is undone");
        assert!(bench.has("job-1") && bench.has("job-1499") && bench.has("more"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_fell_behind_has_the_latest_changes_restored() {
    let (mut bench, ids) = (Bench::new(store()), ids(2));
    bench.cancel(&ids[..1]).await;
    bench.get_version(1).await;
    bench.follow(1).await;
    let older = store();
    bench.cancel(&ids[1..]).await;
    bench.get_version(1).await;
    bench.follow(1).await;
    // The record is the same, and of before the second change.
    older.tombstones("billing", TombstoneCall::Cancel { ids: &ids[..1], span: DAY }).await.unwrap();
    bench.store = older;
    bench.get_version(1).await;
    assert_eq!(bench.follow(1).await, (2, 0), "read from the beginning, then restored");
    let page = bench.store.tombstones("billing", TombstoneCall::Read { after: 0 }).await.unwrap().page;
    assert_eq!(page.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_repeated_later_and_a_full_store_keeps_what_it_has() {
    let (mut bench, ids) = (Bench::new(store()), ids(1));
    bench.cancel(&ids).await;
    bench.get_version(1).await;
    let refusal = StoreError::Unexpected { address: "test".to_owned(), detail: "NOPERM".to_owned() };
    bench.replica.on_refused(&TombstonePurpose::Read(0), &refusal, "billing");
    let again = bench.replica.wake_at(false, &SlotClock::new());
    assert_eq!(again, Some(Instant::now() + REFUSED_AGAIN));
    assert_eq!(bench.follow(1).await, (0, 0), "not yet");
    tokio::time::advance(REFUSED_AGAIN).await;
    assert_eq!(bench.follow(1).await, (1, 1));

    bench.store = store();
    bench.get_version(2).await;
    let State::Missing(missing) = &bench.replica.state else { panic!("{:?}", bench.replica) };
    let recalled = bench.replica.known.last_missing(missing);
    let full = StoreError::Invalid("too many".to_owned());
    bench.replica.on_refused(&TombstonePurpose::Recall(recalled), &full, "billing");
    assert!(matches!(bench.replica.state, State::Settled) && bench.has("job-0"));
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_no_call_is_due() {
    let mut bench = Bench::new(store());
    bench.cancel(&ids(1)).await;
    bench.get_version(1).await;
    assert_eq!(bench.replica.wake_at(true, &SlotClock::new()), None);
    let later = Instant::now() + DAY;
    bench.replica.on_away(later);
    assert_eq!(bench.replica.wake_at(false, &SlotClock::new()), Some(later));
    bench.replica.on_store_back(Instant::now());
    assert_eq!(bench.follow(1).await, (1, 1));
}
