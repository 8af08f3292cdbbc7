//! How many jobs may be sent at once, and how many may hold a slot meanwhile: pure.

use std::time::Duration;

use super::HeldQueue;
use crate::pace::Waiter;

/// The places for sends of one dispatcher.
///
/// A slot that comes while every place is taken is wasted, so slots are reserved only for jobs that
/// will find a place. What is being sent now is counted in full: it may hang. Of the jobs that hold
/// a slot, those count that will be in flight together with the next one: as many as there are slots
/// in the time that a send takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concurrency {
    most: usize,
    sending: usize,
    /// How long sends took of late; `None` before the first has ended.
    took: Option<Duration>,
}

impl Concurrency {
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, sending: 0, took: None }
    }

    /// There are so many from now on. Those taken beyond it are given up as they land.
    pub(crate) const fn resize(&mut self, most: usize) {
        self.most = most;
    }

    /// A place is taken.
    pub(crate) const fn taken(&mut self) {
        self.sending += 1;
    }

    /// A place is free again; how long the downstream took to answer, if it did.
    pub(crate) fn landed(&mut self, took: Option<Duration>) {
        self.sending -= 1;
        let Some(took) = took else { return };
        self.took = Some(match self.took {
            // Quick to believe that sends take longer, slow to believe that they take less.
            Some(before) if took < before => (before * 15 + took) / 16,
            Some(before) => (before + took) / 2,
            None => took,
        });
    }

    /// How many are taken.
    pub(crate) const fn sending(&self) -> usize {
        self.sending
    }

    /// How many more jobs would find a place at their slots, if these lie so far apart: without end, where sends end
    /// so soon that there is always a place.
    pub(crate) fn room<W: Waiter>(&self, held: &HeldQueue<W>, spacing: Duration) -> usize {
        let free = self.free(held);
        if self.is_enough(free, spacing) { usize::MAX } else { free }
    }

    /// How many jobs find a place in a turn that begins when all places are free.
    pub(crate) fn turn(&self, spacing: Duration) -> usize {
        if self.is_enough(self.most, spacing) { usize::MAX } else { self.most }
    }

    /// Whether so many places are enough for jobs whose slots lie so far apart, however many there are.
    fn is_enough(&self, places: usize, spacing: Duration) -> bool {
        let together = self.took.and_then(|took| took.as_micros().checked_div(spacing.as_micros()));
        together.is_some_and(|together| together + 1 < places as u128)
    }

    /// How many more jobs would find a place at their slots.
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

    /// Jobs that hold a slot each, so many ms from one to the next.
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
        concurrency.taken();
        assert_eq!((concurrency.sending(), concurrency.free(&queue(4, 5))), (1, 5));
        assert_eq!(concurrency.free(&queue(40, 5)), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn then_those_count_that_are_in_flight_together() {
        let mut concurrency = Concurrency::new(10);
        concurrency.taken();
        concurrency.landed(Some(12 * MS));
        assert_eq!(concurrency.free(&queue(40, 5)), 7, "3 slots in 12 ms");
        concurrency.taken();
        concurrency.landed(Some(100 * MS));
        assert_eq!(concurrency.free(&queue(40, 5)), 0, "12 slots in 56 ms: quick to believe");
        for _ in 0..200 {
            concurrency.taken();
            concurrency.landed(Some(2 * MS));
        }
        assert_eq!(concurrency.free(&queue(40, 5)), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_takes_its_place() {
        let mut concurrency = Concurrency::new(3);
        concurrency.taken();
        concurrency.landed(Some(MS));
        (0..3).for_each(|_| concurrency.taken());
        assert_eq!(concurrency.free(&queue(0, 1)), 0);
    }
}
