//! Hears of changes that others made: a connection of its own, that subscribes.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt as _;

use super::servers::Servers;
use crate::store::StoreError;
use crate::store::changes::Watchers;

/// Before the next try, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Listens as long as somebody keeps the watchers.
pub(super) async fn listen(servers: Weak<Servers>, channel: String, watchers: Weak<Watchers>) {
    let (first, most) = BACKOFF;
    let (mut wait, mut told) = (first / 2, false);
    while let Some(open) = servers.upgrade() {
        let mut reopened = open.reopened();
        match open.listen(&channel).await {
            Ok(mut subscribed) => {
                drop(open);
                (wait, told) = (first, false);
                // What was told before is lost.
                let Some(all) = watchers.upgrade() else { return };
                all.tell_all();
                drop(all);
                let mut messages = subscribed.on_message();
                loop {
                    let message = tokio::select! {
                        message = messages.next() => message,
                        // The other connection broke: this one may be as dead, and hear nothing of it.
                        _ = reopened.changed() => None,
                    };
                    let Some(message) = message else { break };
                    let Some(watchers) = watchers.upgrade() else { return };
                    if let Ok(downstream) = message.get_payload::<String>() {
                        watchers.tell(&downstream);
                    }
                }
            }
            Err(error) => {
                drop(open);
                if !told && matches!(error, StoreError::Unreachable { .. }) {
                    // The calls say so too.
                    tracing::debug!(%error, channel, "changes by other replicas are seen later");
                } else if !told {
                    tracing::warn!(%error, channel, "changes by other replicas are seen with the next call only");
                }
                told = true;
                wait = (wait * 2).min(most);
            }
        }
        // Also where it was heard for a while: with a server that refuses every call each call opens a connection,
        // and who is told of that calls again.
        tokio::time::sleep(wait.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}
