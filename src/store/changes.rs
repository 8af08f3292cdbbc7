//! Notifications that the record of a downstream was changed.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::watch;

use crate::lock::lock;

/// Notifies of changes that others make to the record of a downstream
/// ([`Store::update_record`](super::Store::update_record)).
///
/// A notification carries no content and may be spurious: read the record from the store.
#[derive(Clone, Debug)]
pub struct Changes(watch::Receiver<()>);

impl Changes {
    /// Waits for the next change. Several since the last call count as one.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // The store was dropped, so no further change will be reported.
            std::future::pending().await
        }
    }
}

/// The subscribers to changes, by downstream.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<HashMap<String, watch::Sender<()>>>);

impl Watchers {
    pub(super) fn subscribe(&self, downstream: &str) -> Changes {
        let mut senders = lock(&self.0);
        if let Some(sender) = senders.get(downstream) {
            return Changes(sender.subscribe());
        }
        let (sender, receiver) = watch::channel(());
        senders.insert(downstream.to_owned(), sender);
        Changes(receiver)
    }

    pub(super) fn notify(&self, downstream: &str) {
        let senders = lock(&self.0);
        if let Some(sender) = senders.get(downstream) {
            sender.send_replace(());
        }
    }

    /// The names of all downstreams that have ever been subscribed to.
    #[cfg(feature = "redis")]
    pub(super) fn watched(&self) -> Vec<String> {
        lock(&self.0).keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn each_who_works_on_it_is_notified_once() {
        let watchers = Watchers::default();
        let (mut a, mut b) = (watchers.subscribe("a"), watchers.subscribe("b"));
        assert!(a.next().now_or_never().is_none());
        watchers.notify("a");
        watchers.notify("a");
        watchers.notify("c");
        assert!(a.next().now_or_never().is_some() && a.next().now_or_never().is_none());
        assert!(b.next().now_or_never().is_none());
        let mut late = watchers.subscribe("a");
        assert!(late.next().now_or_never().is_none());
        let mut all = watchers.watched();
        all.sort_unstable();
        assert_eq!(all, ["a", "b"]);
        all.iter().for_each(|downstream| watchers.notify(downstream));
        assert!(a.next().now_or_never().is_some() && b.next().now_or_never().is_some());
        drop(watchers);
        assert!(late.next().now_or_never().is_some() && late.next().now_or_never().is_none());
    }
}
