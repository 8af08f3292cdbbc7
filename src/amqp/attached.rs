//! Whether a downstream is consumed, from all of its queues.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::lock::lock;

/// The number of queues that a downstream is consumed from: one of new jobs, and one of parked jobs that come home.
const QUEUES: usize = 2;

/// Notes for one of the queues whether it is consumed.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    all: watch::Sender<bool>,
    queues: Arc<Mutex<[bool; QUEUES]>>,
    queue: usize,
}

impl Attached {
    /// One for each queue; `all` becomes true once all are consumed.
    pub(super) fn each(all: &watch::Sender<bool>) -> [Self; QUEUES] {
        let queues = Arc::default();
        std::array::from_fn(|queue| Self { all: all.clone(), queues: Arc::clone(&queues), queue })
    }

    pub(super) fn set(&self, is_attached: bool) {
        let mut queues = lock(&self.queues);
        queues[self.queue] = is_attached;
        // It is sent under the lock, so that an older value cannot be the last.
        self.all.send_replace(queues.iter().all(|queue| *queue));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_downstream_is_consumed_once_all_queues_are() {
        let all = watch::Sender::new(false);
        let [jobs, home] = Attached::each(&all);
        jobs.set(true);
        assert!(!*all.borrow());
        home.set(true);
        assert!(*all.borrow());
        jobs.set(false);
        home.set(true);
        assert!(!*all.borrow());
    }
}
