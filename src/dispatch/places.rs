//! How many jobs may be sent at once, and how many may hold a slot meanwhile: pure.

use std::time::Duration;

use super::held;

/// The places for sends of one dispatcher.
///
/// A slot that comes while every place is taken is wasted, so slots are reserved only for jobs that
/// will find a place. What is being sent now is counted in full: it may hang. Of the jobs that hold
/// a slot, those count that will be in flight together with the next one: as many as there are slots
/// in the time that a send takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    most: usize,
    sending: usize,
    /// How long sends took of late; `None` before the first has ended.
    took: Option<Duration>,
}

impl Places {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, sending: 0, took: None }
    }

    /// There are so many from now on. Those taken beyond it are given up as they land.
    pub(super) const fn resize(&mut self, most: usize) {
        self.most = most;
    }

    /// A place is taken.
    pub(super) const fn taken(&mut self) {
        self.sending += 1;
    }

    /// A place is free again; how long the downstream took to answer, if it did.
    pub(super) fn landed(&mut self, took: Option<Duration>) {
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
    pub(super) const fn sending(&self) -> usize {
        self.sending
    }

    /// How many more jobs would find a place at their slots, if these lie so far apart: without end, where sends end
    /// so soon that there is always a place.
    pub(super) fn room(&self, held: &held::Queue, spacing: Duration) -> usize {
        let free = self.free(held);
        if self.is_enough(free, spacing) { usize::MAX } else { free }
    }

    /// How many jobs find a place in a turn that begins when all places are free.
    pub(super) fn turn(&self, spacing: Duration) -> usize {
        if self.is_enough(self.most, spacing) { usize::MAX } else { self.most }
    }

    /// Whether so many places are enough for jobs whose slots lie so far apart, however many there are.
    fn is_enough(&self, places: usize, spacing: Duration) -> bool {
        let together = self.took.and_then(|took| took.as_micros().checked_div(spacing.as_micros()));
        together.is_some_and(|together| together + 1 < places as u128)
    }

    /// How many more jobs would find a place at their slots.
    pub(super) fn free(&self, held: &held::Queue) -> usize {
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

    use super::super::tests::parts::held;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Jobs that hold a slot each, so many ms from one to the next.
    fn queue(jobs: u32, apart: u32) -> held::Queue {
        let (start, mut queue) = (Instant::now(), held::Queue::default());
        (0..jobs).for_each(|job| queue.push(held(start + MS * apart * job)));
        queue
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_hold_a_slot_count_until_it_is_known_how_long_sends_take() {
        let mut places = Places::new(10);
        assert_eq!(places.free(&queue(4, 5)), 6);
        places.taken();
        assert_eq!((places.sending(), places.free(&queue(4, 5))), (1, 5));
        assert_eq!(places.free(&queue(40, 5)), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn then_those_count_that_are_in_flight_together() {
        let mut places = Places::new(10);
        places.taken();
        places.landed(Some(12 * MS));
        assert_eq!(places.free(&queue(40, 5)), 7, "3 slots in 12 ms");
        places.taken();
        places.landed(Some(100 * MS));
        assert_eq!(places.free(&queue(40, 5)), 0, "12 slots in 56 ms: quick to believe");
        for _ in 0..200 {
            places.taken();
            places.landed(Some(2 * MS));
        }
        assert_eq!(places.free(&queue(40, 5)), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_takes_its_place() {
        let mut places = Places::new(3);
        places.taken();
        places.landed(Some(MS));
        (0..3).for_each(|_| places.taken());
        assert_eq!(places.free(&queue(0, 1)), 0);
    }
}
