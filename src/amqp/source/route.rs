//! The connection that one downstream is consumed over.

use std::sync::Arc;

use tokio::sync::watch;

use crate::amqp::budget::Account;
use crate::amqp::links::{Link, Links};

/// The shared connection at first; once separated, the downstream's own connection until the end.
pub(in crate::amqp) struct Route {
    links: Arc<Links>,
    pub(super) link: Link,
    pub(super) is_own: bool,
    /// Whether messages far beyond the downstream's bytes are given back, since all that is in transit must be read.
    pub(super) gives_back: bool,
    guilt: watch::Receiver<bool>,
}

impl Route {
    pub(in crate::amqp) fn new(links: &Arc<Links>, shared: Link, downstream: &str) -> Self {
        let (guilt, links) = (links.guilt(downstream), Arc::clone(links));
        Self { links, link: shared, is_own: false, gives_back: false, guilt }
    }

    /// Switches to a connection of its own, whose purpose is consuming `what`; returns false if it had one already.
    pub(super) fn separate(&mut self, what: &str, account: &Arc<Account>) -> bool {
        if self.is_own {
            return false;
        }
        self.link = self.links.own(what, account);
        self.is_own = true;
        true
    }

    /// Waits until the downstream is found to have ended the shared connection.
    ///
    /// Cancel safe. It never returns if the connection is the downstream's own.
    pub(super) async fn guilty(&self) {
        let mut guilt = self.guilt.clone();
        if self.is_own || guilt.wait_for(|guilty| *guilty).await.is_err() {
            std::future::pending().await
        }
    }
}
