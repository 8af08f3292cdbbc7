//! How long the machine itself stood still: what no program on it can be blamed for.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::api::stamp;

/// How long each thread sleeps at once.
const NAP: Duration = Duration::from_millis(1);
/// Less than that is nothing.
const EXACT: Duration = Duration::from_micros(500);

/// A thread on each processor that does nothing but sleep, and notes when it was woken too late: as late
/// were, at that time, requests on their way, and whoever was to send or to receive them.
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

    /// When a processor stood still, by [`stamp`]'s clock.
    pub(crate) fn end(self) -> Vec<Range<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// As [`stamp`] counts.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}
