//! Finds waiters, wherever they wait without a slot.

use tokio::time::Instant;

use super::Backlog;
use crate::pace::Waiter;

/// Where a waiter is that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundAt {
    /// It waits for a slot, and this number of others of its lane are before it.
    Ready {
        /// The number of those others.
        ahead: usize,
    },
    /// It may only go from this instant on.
    Later(Instant),
    /// It holds a slot, which comes at this instant.
    Slot(Instant),
}

impl<W: Waiter> Backlog<W> {
    /// Returns the waiters that `is_meant` selects, and where each is. It examines all of them.
    pub(crate) fn find(&self, is_meant: impl Fn(&W) -> bool) -> Vec<(FoundAt, &W)> {
        let mut found = Vec::new();
        for lane in &self.ready {
            let meant = lane.values().enumerate().filter(|(_, waiter)| is_meant(waiter));
            found.extend(meant.map(|(ahead, waiter)| (FoundAt::Ready { ahead }, waiter)));
        }
        // Nobody is before one that waits for the end of a window.
        let aside = self.aside.values().filter(|waiter| is_meant(waiter));
        found.extend(aside.map(|waiter| (FoundAt::Ready { ahead: 0 }, waiter)));
        let later = self.later.iter().filter(|(_, waiter)| is_meant(waiter));
        found.extend(later.map(|((due, _), waiter)| (FoundAt::Later(*due), waiter)));
        found
    }
}
