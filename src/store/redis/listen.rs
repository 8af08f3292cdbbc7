//! Receives changes that others made, over a connection that subscribes to their channel.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::task::JoinHandle;

use super::servers::Servers;
use crate::store::changes::Watchers;

/// The wait before the next attempt: the first one, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// After a reconnect, this many downstreams are notified at a time, this far apart: 1 000 of them within 0.7 s.
const WAVE: (usize, Duration) = (16, Duration::from_millis(10));

/// Notifies all subscribers, since they may have missed changes. It does so in waves, so that they do not all call at one
/// instant. The call itself notifies the first wave, and the future notifies the others. Later subscribers are not notified,
/// since they have missed nothing.
fn notify_all(watchers: Weak<Watchers>) -> impl Future<Output = ()> {
    let downstreams = watchers.upgrade().map(|all| all.watched()).unwrap_or_default();
    let notify = move |number: usize| {
        let (all, wave) = (watchers.upgrade()?, downstreams.chunks(WAVE.0).nth(number)?);
        wave.iter().for_each(|downstream| all.notify(downstream));
        Some(())
    };
    let mut notified = notify(0);
    async move {
        for number in 1.. {
            if notified.is_none() {
                return;
            }
            tokio::time::sleep(WAVE.1).await;
            notified = notify(number);
        }
    }
}

/// Listens until the watchers are dropped.
pub(super) async fn listen(servers: Weak<Servers>, channel: String, watchers: Weak<Watchers>) {
    let (first, most) = BACKOFF;
    let (mut wait, mut is_logged) = (first / 2, false);
    let mut waves: Option<JoinHandle<()>> = None;
    while let Some(open) = servers.upgrade() {
        let mut reopened = open.reopened();
        match open.listen(&channel).await {
            Ok(mut subscribed) => {
                drop(open);
                (wait, is_logged) = (first, false);
                // Messages that were published before the subscription are lost.
                let wave = tokio::spawn(notify_all(Weak::clone(&watchers)));
                if let Some(earlier) = waves.replace(wave) {
                    earlier.abort();
                }
                let mut messages = subscribed.on_message();
                loop {
                    let message = tokio::select! {
                        message = messages.next() => message,
                        // Another connection broke, so this one may be broken too without any sign of it.
                        _ = reopened.changed() => None,
                    };
                    let Some(message) = message else { break };
                    let Some(watchers) = watchers.upgrade() else { return };
                    if let Ok(downstream) = message.get_payload::<String>() {
                        watchers.notify(&downstream);
                    }
                }
            }
            Err(error) => {
                drop(open);
                if !is_logged && error.is_away() {
                    // Calls to the server report the error as well.
                    tracing::debug!(%error, channel, "changes by other replicas are seen later");
                } else if !is_logged {
                    tracing::warn!(%error, channel, "changes by other replicas are seen with the next call only");
                }
                is_logged = true;
                wait = (wait * 2).min(most);
            }
        }
        // The wait also follows a subscription that held for a while: with a server that is no longer a primary each
        // call opens a connection, and each opening causes further calls.
        tokio::time::sleep(wait.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// docs/redis.md says that 1 000 of them look within 0.7 s.
    #[tokio::test(start_paused = true)]
    async fn a_thousand_are_notified_in_waves() {
        let (all, start) = (Arc::new(Watchers::default()), Instant::now());
        let watch = |place| {
            let mut changes = all.subscribe(&format!("downstream-{place}"));
            async move {
                changes.next().await;
                start.elapsed()
            }
        };
        let watching = join_all((0..1000).map(watch));
        let (mut notified, ()) = tokio::join!(watching, notify_all(Arc::downgrade(&all)));
        notified.sort_unstable();
        let waves = notified.chunk_by(|one, next| one == next);
        assert!(waves.map(<[_]>::len).all(|wave| wave <= 16));
        assert_eq!((notified[0], notified[999]), (Duration::ZERO, 62 * WAVE.1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_subscribes_after_a_reconnect_is_not_notified_of_it() {
        let all = Arc::new(Watchers::default());
        let mut early = all.subscribe("early");
        let others = notify_all(Arc::downgrade(&all));
        let mut late = all.subscribe("late");
        assert!(early.next().now_or_never().is_some(), "notified at once");
        others.await;
        assert!(late.next().now_or_never().is_none());
    }
}
