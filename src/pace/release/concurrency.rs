//! The limit on concurrent sends, and on slots held meanwhile. It is pure.

use std::time::Duration;

use super::held::HeldQueue;
use crate::pace::Waiter;

/// The concurrency of one replica.
///
/// A slot that comes while all concurrency is in use is wasted, so slots are reserved only for waiters that will find
/// room. Every send in progress counts, since it may hang. Of the waiters that hold a slot, those count that will be in
/// flight together with the next one: as many as there are slots in the duration of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concurrency {
    most: usize,
    sending: usize,
    /// The smoothed duration of recent sends; `None` before the first has ended.
    took: Option<Duration>,
}

impl Concurrency {
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, sending: 0, took: None }
    }

    /// Returns the most concurrent sends.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Sets the most concurrent sends. Sends in progress beyond it may end.
    pub(crate) const fn resize(&mut self, most: usize) {
        self.most = most;
    }

    /// Records that a send begins.
    pub(crate) const fn begin(&mut self) {
        self.sending += 1;
    }

    /// Records that a send has ended, and how long the downstream took to answer, if it did.
    pub(crate) fn end(&mut self, took: Option<Duration>) {
        self.sending -= 1;
        let Some(took) = took else { return };
        self.took = Some(match self.took {
            // The estimate follows longer sends quickly, and shorter ones slowly.
            Some(before) if took < before => (before * 15 + took) / 16,
            Some(before) => (before + took) / 2,
            None => took,
        });
    }

    /// Whether another send may begin now.
    pub(crate) const fn has_room(&self) -> bool {
        self.sending < self.most
    }

    /// Returns the number of sends in progress.
    pub(crate) const fn sending(&self) -> usize {
        self.sending
    }

    /// Returns how many more waiters would find room at their slots, at this spacing; `usize::MAX` if sends end so soon
    /// that there is always room.
    pub(crate) fn room<W: Waiter>(&self, held: &HeldQueue<W>, spacing: Duration) -> usize {
        let free = self.free(held);
        if self.is_enough(free, spacing) { usize::MAX } else { free }
    }

    /// Returns how many waiters find room in a turn that begins while nothing is being sent.
    pub(crate) fn room_in_turn(&self, spacing: Duration) -> usize {
        if self.is_enough(self.most, spacing) { usize::MAX } else { self.most }
    }

    /// Returns how many connections beyond those in use the next `waiters` will need at one time, at this spacing of
    /// slots; at least one.
    pub(crate) fn connections(&self, waiters: usize, spacing: Duration) -> usize {
        let spacing = spacing.as_micros();
        // If all are released at one instant, or the duration of a send is not known, all may be in flight together.
        let together = self.took.filter(|_| spacing > 0).map(|took| took.as_micros().div_ceil(spacing));
        let together = together.and_then(|together| usize::try_from(together).ok()).unwrap_or(usize::MAX);
        waiters.min(together.min(self.most).saturating_sub(self.sending)).max(1)
    }

    /// Whether this room is enough for any number of slots at this spacing.
    fn is_enough(&self, room: usize, spacing: Duration) -> bool {
        let together = self.took.and_then(|took| took.as_micros().checked_div(spacing.as_micros()));
        together.is_some_and(|together| together + 1 < room as u128)
    }

    /// Returns how many more waiters would find room at their slots.
    pub(crate) fn free<W: Waiter>(&self, held: &HeldQueue<W>) -> usize {
        let together = match self.took {
            Some(took) => held.within(took),
            None => held.len(),
        };
        self.most.saturating_sub(self.sending + together)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::pace::Caller;
    use crate::pace::release::Held;
    use crate::time::{Deadline, Micros};

    const MS: Duration = Duration::from_millis(1);

    /// Returns jobs that hold a slot each, at this spacing in ms.
    fn queue(jobs: u32, apart: u32) -> HeldQueue<Caller> {
        let (start, mut queue) = (Instant::now(), HeldQueue::default());
        for job in 0..jobs {
            let deadline = Deadline::at(start + MS * apart * job);
            queue.push(Held { waiter: Caller::new(job.into()), slot: Micros(0), deadline });
        }
        queue
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_hold_a_slot_count_until_it_is_known_how_long_sends_take() {
        let mut concurrency = Concurrency::new(10);
        assert_eq!(concurrency.free(&queue(4, 5)), 6);
        concurrency.begin();
        assert_eq!((concurrency.sending(), concurrency.free(&queue(4, 5))), (1, 5));
        assert_eq!(concurrency.free(&queue(40, 5)), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn then_those_count_that_are_in_flight_together() {
        let mut concurrency = Concurrency::new(10);
        concurrency.begin();
        concurrency.end(Some(12 * MS));
        assert_eq!(concurrency.free(&queue(40, 5)), 7, "3 slots in 12 ms");
        concurrency.begin();
        concurrency.end(Some(100 * MS));
        assert_eq!(concurrency.free(&queue(40, 5)), 0, "12 slots in 56 ms: quick to believe");
        for _ in 0..200 {
            concurrency.begin();
            concurrency.end(Some(2 * MS));
        }
        assert_eq!(concurrency.free(&queue(40, 5)), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_takes_its_room() {
        let mut concurrency = Concurrency::new(3);
        concurrency.begin();
        concurrency.end(Some(MS));
        (0..3).for_each(|_| concurrency.begin());
        assert_eq!(concurrency.free(&queue(0, 1)), 0);
    }
}
