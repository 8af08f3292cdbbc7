//! How the broker's side is doing, for those who ask from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::supervisor::Line;
use crate::metric;

/// Every connection that is kept up, by what it is for.
pub(super) type Lines = Arc<Mutex<Vec<(String, Line)>>>;

/// A view of the connections and the consumers that stays true, also while [`super::Amqp`] shuts down.
#[derive(Clone, Debug)]
pub struct Status {
    pub(super) lines: Lines,
    pub(super) attached: BTreeMap<String, watch::Receiver<bool>>,
}

impl Status {
    /// What the connections that are down are for, such as `consuming`; empty while all are up.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        let is_down = |line: &Line| !line.borrow().as_ref().is_some_and(|c| c.status().connected());
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|(_, line)| is_down(line)).map(|(purpose, _)| purpose.clone()).collect()
    }

    /// The downstreams, and whether each is consumed.
    pub fn downstreams(&self) -> impl Iterator<Item = (&str, bool)> {
        self.attached.iter().map(|(name, attached)| (name.as_str(), *attached.borrow()))
    }
}

/// The connections that ought to be up, for one gauge over all of them.
#[derive(Debug, Default)]
pub(super) struct ConnectionStates(Mutex<BTreeSet<String>>);

impl ConnectionStates {
    /// Notes whether the connection for `purpose` is up.
    pub(super) fn set(&self, purpose: &str, is_up: bool) {
        let mut down = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = if is_up { down.remove(purpose) } else { down.insert(purpose.to_owned()) };
        // Under the lock, or an older word could be the last.
        metrics::gauge!(metric::AMQP_CONNECTED.name).set(if down.is_empty() { 1.0 } else { 0.0 });
    }
}
