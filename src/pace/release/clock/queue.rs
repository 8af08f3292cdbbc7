//! A queue of alarms: a heap that knows the index of each alarm, so that one can be set to another instant without a
//! search and without allocation.

use crate::time::Deadline;

/// Alarms, set or not. `T` identifies the owner of each.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// The alarms that are set, as a binary heap: the earliest first.
    heap: Vec<(Deadline, usize)>,
    /// All alarms, by number.
    entries: Vec<Option<Entry<T>>>,
    /// The free numbers.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Entry<T> {
    /// The index in the heap, if the alarm is set.
    index: Option<usize>,
    owner: T,
}

impl<T> Queue<T> {
    pub(super) const fn new() -> Self {
        Self { heap: Vec::new(), entries: Vec::new(), free: Vec::new() }
    }

    /// Adds an alarm that is not set, and returns its number.
    pub(super) fn add(&mut self, owner: T) -> usize {
        let entry = Some(Entry { index: None, owner });
        if let Some(number) = self.free.pop() {
            self.entries[number] = entry;
            return number;
        }
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// Removes an alarm; its number may be given to another one.
    pub(super) fn remove(&mut self, number: usize) {
        self.set(number, None);
        if self.entries[number].take().is_some() {
            self.free.push(number);
        }
    }

    /// Sets an alarm to another instant, or to none.
    pub(super) fn set(&mut self, number: usize, at: Option<Deadline>) {
        let index = self.entries[number].as_ref().and_then(|entry| entry.index);
        match (index, at) {
            (None, None) => {}
            (None, Some(at)) => {
                self.heap.push((at, number));
                self.sift(self.heap.len() - 1);
            }
            (Some(index), Some(at)) => {
                self.heap[index].0 = at;
                self.sift(index);
            }
            (Some(index), None) => self.take(index),
        }
    }

    /// Returns the earliest instant to which an alarm is set.
    pub(super) fn first(&self) -> Option<Deadline> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Unsets the earliest alarm if its instant has come, and returns its owner.
    pub(super) fn pop(&mut self, now: Deadline) -> Option<&T> {
        let (_, number) = *self.heap.first().filter(|(at, _)| *at <= now)?;
        self.take(0);
        self.entries[number].as_ref().map(|entry| &entry.owner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    fn take(&mut self, index: usize) {
        let (_, number) = self.heap.swap_remove(index);
        self.set_index(number, None);
        if index < self.heap.len() {
            self.sift(index);
        }
    }

    /// Moves the alarm at `index` up or down to where it belongs in the heap.
    fn sift(&mut self, mut index: usize) {
        while index > 0 && self.heap[index] < self.heap[(index - 1) / 2] {
            self.swap(index, (index - 1) / 2);
            index = (index - 1) / 2;
        }
        loop {
            let children = 2 * index + 1..(2 * index + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child]) else { break };
            if self.heap[index] <= self.heap[least] {
                break;
            }
            self.swap(index, least);
            index = least;
        }
        self.set_index(self.heap[index].1, Some(index));
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.set_index(self.heap[one].1, Some(one));
        self.set_index(self.heap[other].1, Some(other));
    }

    fn set_index(&mut self, number: usize, index: Option<usize>) {
        if let Some(entry) = &mut self.entries[number] {
            entry.index = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add,
        Remove(prop::sample::Index),
        Set(prop::sample::Index, Option<u64>),
        Pop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Add),
            1 => any::<prop::sample::Index>().prop_map(Step::Remove),
            6 => (any::<prop::sample::Index>(), prop::option::weighted(0.8, 0_u64..50))
                .prop_map(|(which, at)| Step::Set(which, at)),
            2 => (0_u64..50).prop_map(Step::Pop),
        ]
    }

    proptest! {
        #[test]
        fn the_earliest_is_first_whatever_happens(steps in prop::collection::vec(step(), 1..200)) {
            let start = Instant::now();
            let at = |ms: u64| Deadline::at(start + Duration::from_millis(ms));
            let (mut queue, mut next) = (Queue::new(), 0_u64);
            // The owner and the instant of each alarm, by number.
            let mut model: BTreeMap<usize, (u64, Option<u64>)> = BTreeMap::new();
            for step in steps {
                let some = |which: prop::sample::Index| {
                    (!model.is_empty()).then(|| *model.keys().nth(which.index(model.len())).unwrap())
                };
                match step {
                    Step::Add => {
                        let number = queue.add(next);
                        prop_assert!(model.insert(number, (next, None)).is_none(), "a number in use");
                        next += 1;
                    }
                    Step::Remove(which) => if let Some(number) = some(which) {
                        queue.remove(number);
                        model.remove(&number);
                    },
                    Step::Set(which, to) => if let Some(number) = some(which) {
                        queue.set(number, to.map(at));
                        model.get_mut(&number).unwrap().1 = to;
                    },
                    Step::Pop(now) => {
                        let first = model.values_mut().filter(|(_, at)| at.is_some_and(|at| at <= now));
                        let first = first.map(|(_, at)| *at).min().flatten();
                        let popped = queue.pop(at(now)).copied();
                        prop_assert_eq!(popped.is_some(), first.is_some());
                        if let Some(owner) = popped {
                            let (_, set) = model.values_mut().find(|(whose, _)| *whose == owner).unwrap();
                            prop_assert_eq!(set.take(), first);
                        }
                    }
                }
                let first = model.values().filter_map(|(_, at)| *at).min();
                prop_assert_eq!(queue.first(), first.map(at));
                prop_assert_eq!(queue.len(), model.len());
            }
        }
    }
}
