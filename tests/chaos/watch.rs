//! Measures stalls of the machine itself, which no program on it is responsible for.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::api::stamp;

/// How long each thread sleeps at a time.
const NAP: Duration = Duration::from_millis(1);
/// Shorter delays are ignored.
const EXACT: Duration = Duration::from_micros(500);

/// A thread on each processor that only sleeps, and records when it was woken too late: requests in transit, and the
/// programs that send or receive them, were delayed as much at that time.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    late: Arc<Mutex<Vec<Range<u64>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let (stop, late) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let processors = sched_getaffinity(None).unwrap();
        let threads =
            (0..CpuSet::MAX_CPU).filter(|&processor| processors.is_set(processor)).map(|processor| {
                let (stop, late) = (Arc::clone(&stop), Arc::clone(&late));
                thread::spawn(move || {
                    let mut own = CpuSet::new();
                    own.set(processor);
                    sched_setaffinity(None, &own).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let due = stamp() + nanos(NAP);
                        thread::park_timeout(NAP);
                        let woken = stamp();
                        if woken > due + nanos(EXACT) {
                            late.lock().unwrap_or_else(PoisonError::into_inner).push(due..woken);
                        }
                    }
                })
            });
        let threads = threads.collect();
        Self { stop, late, threads }
    }

    /// The stalls of any processor, on the clock of [`stamp`].
    pub(crate) fn end(self) -> Vec<Range<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A span in the unit of [`stamp`].
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}
