//! Queues that exist with other arguments than paced would declare them with: they are used as they are.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tracing::warn;

use super::error::Error;
use crate::lock::lock;

/// The queues that are known to exist with other arguments.
#[derive(Debug, Default)]
pub(super) struct Existing(Mutex<BTreeSet<String>>);

/// The broker's texts that were already logged by this process.
static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

impl Existing {
    /// Whether this queue is known to exist with other arguments.
    pub(super) fn has(&self, queue: &str) -> bool {
        lock(&self.0).contains(queue)
    }

    /// Forgets a queue that does not exist any more: it can be declared again.
    pub(super) fn forget(&self, queue: &str) {
        lock(&self.0).remove(queue);
    }

    /// Records the queue that this error names, and warns once. Returns false if the error is of another kind, or the
    /// queue was known before: then the caller must not repeat the call.
    pub(super) fn note(&self, error: &Error) -> bool {
        let Error::Inequivalent { what, detail } = error else { return false };
        let Some(queue) = what.strip_prefix("queue ").filter(|queue| !queue.contains(',')) else {
            return false;
        };
        let is_new = lock(&self.0).insert(queue.to_owned());
        if is_new && lock(&WARNED).insert(detail.clone()) {
            warn!(
                queue,
                detail,
                "the queue exists with other arguments, and is used as it is; set them by a policy, or delete the \
                 queue once it is empty: `paced check --online` says how"
            );
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_noted_once_and_nothing_else_is() {
        let existing = Existing::default();
        let differs =
            |what: &str| Error::Inequivalent { what: what.to_owned(), detail: "because".to_owned() };
        assert!(!existing.note(&differs("exchange q")));
        assert!(!existing.note(&Error::NotFound { what: "queue q".to_owned() }));
        assert!(!existing.note(&differs("queue q, bound to e")));
        assert!(!existing.has("q"));
        assert!(existing.note(&differs("queue q")) && existing.has("q"));
        assert!(!existing.note(&differs("queue q")), "it would be refused for ever");
        existing.forget("q");
        assert!(!existing.has("q"));
    }
}
