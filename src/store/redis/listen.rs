//! Hears of changes that others made: a connection of its own, that subscribes.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::task::JoinHandle;

use super::servers::Servers;
use crate::store::changes::Watchers;

/// Before the next try, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// After a reconnect this many downstreams look at a time, so far apart: 1 000 of them within 0.7 s.
const WAVE: (usize, Duration) = (16, Duration::from_millis(10));

/// Something may have been missed: has all look, not all at one instant.
async fn tell_all(watchers: Weak<Watchers>) {
    let downstreams = watchers.upgrade().map(|all| all.watched()).unwrap_or_default();
    for wave in downstreams.chunks(WAVE.0) {
        let Some(all) = watchers.upgrade() else { return };
        wave.iter().for_each(|downstream| all.tell(downstream));
        drop(all);
        tokio::time::sleep(WAVE.1).await;
    }
}

/// Listens as long as somebody keeps the watchers.
pub(super) async fn listen(servers: Weak<Servers>, channel: String, watchers: Weak<Watchers>) {
    let (first, most) = BACKOFF;
    let (mut wait, mut told) = (first / 2, false);
    let mut waves: Option<JoinHandle<()>> = None;
    while let Some(open) = servers.upgrade() {
        let mut reopened = open.reopened();
        match open.listen(&channel).await {
            Ok(mut subscribed) => {
                drop(open);
                (wait, told) = (first, false);
                // What was told before is lost.
                let wave = tokio::spawn(tell_all(Weak::clone(&watchers)));
                if let Some(earlier) = waves.replace(wave) {
                    earlier.abort();
                }
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
                if !told && error.is_away() {
                    // The calls say so too.
                    tracing::debug!(%error, channel, "changes by other replicas are seen later");
                } else if !told {
                    tracing::warn!(%error, channel, "changes by other replicas are seen with the next call only");
                }
                told = true;
                wait = (wait * 2).min(most);
            }
        }
        // Also where it was heard for a while: with a server that is no primary any more each call opens a connection,
        // and who is told of that calls again.
        tokio::time::sleep(wait.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}
