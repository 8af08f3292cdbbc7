//! A store that misbehaves on demand.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::limit::LimitSet;
use crate::store::{
    BoxFuture, Cancel, Change, Changes, Check, Checked, MemoryStore, RecordState, Reserve, Reserved, Scope,
    Store, StoreError, TombstoneCall, TombstoneReply,
};
use crate::time::Micros;

/// Counts its calls, and fails them while the test has it away.
#[derive(Debug)]
pub(in crate::dispatch) struct FlakyStore {
    inner: Mutex<Arc<MemoryStore>>,
    /// The latency of the way to the store, and of the way back.
    pub(in crate::dispatch) distance: Duration,
    /// An additional latency of each way, in µs.
    pub(in crate::dispatch) farther: AtomicU64,
    pub(in crate::dispatch) away: AtomicBool,
    pub(in crate::dispatch) faults: Faults,
    /// The number of reserve calls, and the most slots that one was granted.
    pub(in crate::dispatch) calls: AtomicUsize,
    pub(in crate::dispatch) most_granted: AtomicUsize,
    /// The number of calls about records.
    pub(in crate::dispatch) record_calls: AtomicUsize,
    /// The number of calls about tombstones.
    pub(in crate::dispatch) tombstone_calls: AtomicUsize,
}

/// The faults that a test injects while the store is there.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Faults {
    /// Whether the next reserve call fails.
    pub(in crate::dispatch) fails_next: AtomicBool,
    /// Whether it answers with a refusal.
    pub(in crate::dispatch) refuses: AtomicBool,
    /// Whether notifications of changes are suppressed.
    pub(in crate::dispatch) deaf: AtomicBool,
}

impl FlakyStore {
    pub(in crate::dispatch) fn new(inner: Arc<MemoryStore>, distance: Duration) -> Self {
        let (away, faults) = Default::default();
        let (calls, record_calls, tombstone_calls) = Default::default();
        Self {
            inner: Mutex::new(inner),
            distance,
            farther: AtomicU64::new(0),
            away,
            faults,
            calls,
            most_granted: AtomicUsize::new(0),
            record_calls,
            tombstone_calls,
        }
    }

    /// The store that holds its state.
    pub(in crate::dispatch) fn inner(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.inner.lock().unwrap())
    }

    /// Loses all state.
    pub(in crate::dispatch) fn forget(&self) {
        self.swap(&Arc::new(MemoryStore::new()));
    }

    /// Continues with the state of another store.
    pub(in crate::dispatch) fn swap(&self, inner: &Arc<MemoryStore>) {
        *self.inner.lock().unwrap() = Arc::clone(inner);
    }

    async fn travel(&self) {
        tokio::time::sleep(self.distance + Duration::from_micros(self.farther.load(Ordering::SeqCst))).await;
    }

    /// Counts a call, and fails it while the store is away.
    fn enter(&self, counter: &AtomicUsize) -> Result<(), StoreError> {
        counter.fetch_add(1, Ordering::SeqCst);
        let fails =
            std::ptr::eq(counter, &self.calls) && self.faults.fails_next.swap(false, Ordering::SeqCst);
        if fails || self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unreachable { address: "test".to_owned(), detail: "away".to_owned() });
        }
        if self.faults.refuses.load(Ordering::SeqCst) {
            let (address, detail) = ("test".to_owned(), "NOPERM".to_owned());
            return Err(StoreError::Unexpected { address, detail });
        }
        Ok(())
    }
}

impl crate::store::sealed::Sealed for FlakyStore {}

impl Store for FlakyStore {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> BoxFuture<'a, Result<Reserved, StoreError>> {
        Box::pin(async move {
            self.enter(&self.calls)?;
            self.travel().await;
            let answer = self.inner().reserve(call).await;
            let granted = answer.as_ref().map_or(0, |reserved| reserved.slots.len());
            self.most_granted.fetch_max(granted, Ordering::SeqCst);
            self.travel().await;
            answer
        })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> BoxFuture<'a, Result<Checked, StoreError>> {
        Box::pin(async move {
            self.enter(&self.calls)?;
            self.travel().await;
            let answer = self.inner().check(call).await;
            self.travel().await;
            answer
        })
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.inner().cancel(call).await })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.inner().reset(scope, limits).await })
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        Box::pin(async move {
            self.enter(&self.record_calls)?;
            self.travel().await;
            let answer = self.inner().read_record(downstream).await;
            self.travel().await;
            answer
        })
    }

    fn update_record<'a>(
        &'a self,
        downstream: &'a str,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        Box::pin(async move {
            self.enter(&self.record_calls)?;
            self.travel().await;
            let answer = self.inner().update_record(downstream, change).await;
            self.travel().await;
            answer
        })
    }

    fn tombstones<'a>(
        &'a self,
        downstream: &'a str,
        call: TombstoneCall<'a>,
    ) -> BoxFuture<'a, Result<TombstoneReply, StoreError>> {
        Box::pin(async move {
            self.enter(&self.tombstone_calls)?;
            self.travel().await;
            let answer = self.inner().tombstones(downstream, call).await;
            self.travel().await;
            answer
        })
    }

    fn changes(&self, downstream: &str) -> Changes {
        if self.faults.deaf.load(Ordering::SeqCst) {
            return MemoryStore::new().changes(downstream);
        }
        self.inner().changes(downstream)
    }

    fn ping(&self) -> BoxFuture<'_, Result<Micros, StoreError>> {
        Box::pin(async move { self.inner().ping().await })
    }
}
