//! The number of replicas that have a downstream, whether they have jobs there or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of replicas that have a downstream, counted by the summaries that they leave in the store. An idle
/// replica with `on_unavailable = "local"` needs no lease if this number is known.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<AtomicU32>);

impl Peers {
    /// Sets the number of replicas, this one included.
    pub fn set(&self, replicas: u32) {
        self.0.store(replicas.max(1), Ordering::Relaxed);
    }

    /// Returns the number of replicas; 0 if it is not known.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
