//! The number of replicas that have a downstream, whether they have anything to do there or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of replicas that have a downstream, as they tell each other by other means than this one's calls. A replica
/// that knows it need not keep a lease in the store, while it is idle, to count for `on_unavailable = "local"`.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<AtomicU32>);

impl Peers {
    /// Tells how many there are, this one included.
    pub fn tell(&self, replicas: u32) {
        self.0.store(replicas.max(1), Ordering::Relaxed);
    }

    /// Returns how many there are; 0 if nobody has told.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
