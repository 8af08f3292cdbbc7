//! A store for experiments, which counts, delays, stops at a gate, fails or panics on demand.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::limit::LimitSet;
use crate::store::{
    BoxFuture, Cancel, Change, Changes, Check, Checked, MemoryStore, RecordState, Reserve, Reserved, Scope,
    Store, StoreError, TombstoneCall, TombstoneReply,
};
use crate::time::{Clock, Micros, SystemClock};

/// A clock that runs with tokio's time and can be stepped.
#[derive(Debug, Default)]
pub(in crate::shaper) struct SteppingClock {
    base: SystemClock,
    step: AtomicI64,
}

impl SteppingClock {
    pub(in crate::shaper) fn step(&self, seconds: i64) {
        self.step.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for SteppingClock {
    fn now(&self) -> Micros {
        Micros(self.base.now().0 + self.step.load(Ordering::SeqCst))
    }
}

#[derive(Debug)]
pub(in crate::shaper) struct Bench {
    memory: Mutex<Arc<MemoryStore>>,
    pub(in crate::shaper) clock: Arc<SteppingClock>,
    pub(in crate::shaper) counts: Counts,
    /// The latencies of the way to the store and back.
    pub(in crate::shaper) latency: Mutex<(Duration, Duration)>,
    /// The gate, at which each call needs a permit.
    pub(in crate::shaper) gate: Semaphore,
    /// The calls that wait at the gate, or have passed it.
    pub(in crate::shaper) arrived: Semaphore,
    pub(in crate::shaper) faults: Faults,
}

/// The number of calls of each kind.
#[derive(Debug, Default)]
pub(in crate::shaper) struct Counts {
    pub(in crate::shaper) calls: AtomicUsize,
    /// The changes of the record.
    pub(in crate::shaper) changes: AtomicUsize,
    pub(in crate::shaper) cancelled: AtomicUsize,
    pub(in crate::shaper) pings: AtomicUsize,
}

/// The faults that a test injects.
#[derive(Debug, Default)]
pub(in crate::shaper) struct Faults {
    failure: Mutex<Option<StoreError>>,
    /// The number of calls that panic.
    pub(in crate::shaper) panics: AtomicUsize,
    /// Whether reads are not answered.
    pub(in crate::shaper) mute: AtomicBool,
    /// Whether reads are refused.
    refuse: AtomicBool,
}

impl Bench {
    pub(in crate::shaper) fn new() -> Arc<Self> {
        let clock = Arc::<SteppingClock>::default();
        Arc::new(Self {
            memory: Mutex::new(Arc::new(MemoryStore::with_clock(clock.clone()))),
            clock,
            counts: Counts::default(),
            latency: Mutex::default(),
            gate: Semaphore::new(1_000_000),
            arrived: Semaphore::new(0),
            faults: Faults::default(),
        })
    }

    fn memory(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.memory.lock().unwrap())
    }

    /// Loses all state. Listeners are not notified of changes any more.
    pub(in crate::shaper) fn lose(&self) {
        *self.memory.lock().unwrap() = Arc::new(MemoryStore::with_clock(self.clock.clone()));
    }

    /// Closes the gate: calls wait until `open` lets some through.
    pub(in crate::shaper) fn close(&self) {
        self.gate.forget_permits(1_000_000);
    }

    pub(in crate::shaper) fn open(&self, calls: usize) {
        self.gate.add_permits(calls);
    }

    /// Waits until one more call has arrived at the gate.
    pub(in crate::shaper) async fn arrival(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }

    pub(in crate::shaper) fn count(&self) -> usize {
        self.counts.calls.load(Ordering::SeqCst)
    }

    pub(in crate::shaper) fn fail(&self, error: Option<StoreError>) {
        *self.faults.failure.lock().unwrap() = error;
    }

    /// Counts a call for slots or decisions, holds it at the gate, and fails it if the test wants that.
    async fn enter(&self) -> Result<(), StoreError> {
        self.counts.calls.fetch_add(1, Ordering::SeqCst);
        self.arrived.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        let taken =
            self.faults.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(taken.is_err(), "as the test wants it");
        self.failed()
    }

    fn failed(&self) -> Result<(), StoreError> {
        let failure = self.faults.failure.lock().unwrap().clone();
        failure.map_or(Ok(()), Err)
    }

    pub(in crate::shaper) fn refuse_looks(&self, refuse: bool) {
        self.faults.refuse.store(refuse, Ordering::SeqCst);
    }

    pub(in crate::shaper) fn delay(&self, there: Duration, back: Duration) {
        *self.latency.lock().unwrap() = (there, back);
    }
}

impl crate::store::sealed::Sealed for Bench {}

impl Store for Bench {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> BoxFuture<'a, Result<Reserved, StoreError>> {
        Box::pin(async move {
            self.enter().await?;
            let (there, back) = *self.latency.lock().unwrap();
            tokio::time::sleep(there).await;
            let answer = self.memory().reserve(call).await;
            tokio::time::sleep(back).await;
            answer
        })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> BoxFuture<'a, Result<Checked, StoreError>> {
        Box::pin(async move {
            self.enter().await?;
            let (there, back) = *self.latency.lock().unwrap();
            tokio::time::sleep(there).await;
            let answer = self.memory().check(call).await;
            tokio::time::sleep(back).await;
            answer
        })
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.failed()?;
            let (there, back) = *self.latency.lock().unwrap();
            tokio::time::sleep(there).await;
            let given = self.memory().cancel(call).await?;
            tokio::time::sleep(back).await;
            self.counts.cancelled.fetch_add(usize::from(given), Ordering::SeqCst);
            Ok(given)
        })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.memory().reset(scope, limits).await })
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        Box::pin(async move {
            self.counts.pings.fetch_add(1, Ordering::SeqCst);
            if self.faults.mute.load(Ordering::SeqCst) {
                return std::future::pending().await;
            }
            if self.faults.refuse.load(Ordering::SeqCst) {
                return Err(StoreError::Invalid("as the test wants it".to_owned()));
            }
            self.memory().read_record(downstream).await
        })
    }

    fn update_record<'a>(
        &'a self,
        downstream: &'a str,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        Box::pin(async move {
            self.counts.changes.fetch_add(1, Ordering::SeqCst);
            self.failed()?;
            self.memory().update_record(downstream, change).await
        })
    }

    fn tombstones<'a>(
        &'a self,
        downstream: &'a str,
        call: TombstoneCall<'a>,
    ) -> BoxFuture<'a, Result<TombstoneReply, StoreError>> {
        Box::pin(async move { self.memory().tombstones(downstream, call).await })
    }

    fn changes(&self, downstream: &str) -> Changes {
        self.memory().changes(downstream)
    }

    fn ping(&self) -> BoxFuture<'_, Result<Micros, StoreError>> {
        self.counts.pings.fetch_add(1, Ordering::SeqCst);
        if self.faults.mute.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        Box::pin(async move { self.memory().ping().await })
    }
}
