//! The connection for replies. It is opened for the first reply, and for the next reply after each loss.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use lapin::BasicProperties;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::address::Address;
use super::connection::{Backoff, STABLE, connect};
use super::publish_error::PublishError;
use super::publisher::{Ordering, Publisher};
use super::supervisor::{Up, fixed};
use super::targets::Targets;

/// Publishes replies over a connection that carries nothing else. Producers choose the queues of replies, and some
/// names make a broker close the whole connection (3.10 over a malformed name for Direct Reply-To). That must harm
/// neither dead letters nor the readiness of this replica.
#[derive(Debug)]
pub(super) struct Replies {
    address: Address,
    /// The queues that replies are being published to.
    targets: Targets,
    state: Mutex<State>,
}

/// How long paced waits for the confirm of a reply, as a multiple of the time-out of a publish.
const WAITS: u32 = 3;

#[derive(Debug, Default)]
struct State {
    open: Option<(Arc<Up>, Publisher)>,
    /// When the last attempt to connect began, and the earliest instant of the next one.
    attempt: Option<(Instant, Instant)>,
    /// When the last attempt to connect failed.
    failed_at: Option<Instant>,
    backoff: Backoff,
}

impl Replies {
    pub(super) fn new(address: Address, targets: Targets) -> Self {
        Self { address, targets, state: Mutex::default() }
    }

    /// Publishes a reply once, if it is still `wanted` when its turn comes, and waits for the confirm. The wait is
    /// bounded, so that a queue without a leader does not hold the job for ever.
    ///
    /// Not cancel safe: a dropped future may or may not have published.
    ///
    /// # Errors
    /// [`PublishError::Unconfirmed`], or as [`Publisher::turn`] and [`Publisher::publish`].
    pub(super) async fn publish(
        &self,
        queue: &str,
        properties: BasicProperties,
        body: &Bytes,
        wanted: impl Fn() -> bool,
    ) -> Result<(), PublishError> {
        let publisher = self.publisher().await?;
        let turn = publisher.turn(queue, Ordering::Kept).await?;
        if !wanted() {
            return Err(PublishError::Unavailable);
        }
        let mut sent = pin!(turn.publish("", queue, properties, body));
        let mut waits = 0;
        while waits < WAITS && wanted() {
            if let Ok(sent) = timeout(publisher.timeout(), &mut sent).await {
                return sent;
            }
            // A broker that accepts nothing from anybody is no fault of this queue.
            waits += u32::from(!publisher.is_blocked());
        }
        Err(PublishError::Unconfirmed)
    }

    /// Returns a publisher over the current connection. Connects if there is none, after a wait if the last
    /// connection was lost early.
    ///
    /// All callers that waited for an attempt share its failure: attempts one after another would keep the jobs of many
    /// downstreams unsettled for as long as no connection can be made.
    async fn publisher(&self) -> Result<Publisher, PublishError> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some((_, publisher)) = state.open.as_ref().filter(|(open, _)| open.status().connected()) {
            return Ok(publisher.clone());
        }
        state.open = None;
        if state.failed_at.is_some_and(|failed| failed >= asked) {
            return Err(PublishError::Unavailable);
        }
        if let Some((began, next)) = state.attempt {
            if began.elapsed() >= STABLE {
                state.backoff.reset();
            }
            sleep_until(next).await;
        }
        let now = Instant::now();
        state.attempt = Some((now, now + state.backoff.next()));
        let connection = match connect(&self.address, "replying", None).await {
            Ok(connection) => Up::publishing(connection),
            Err(error) => {
                tracing::debug!(%error, "no connection for replies");
                state.failed_at = Some(Instant::now());
                return Err(PublishError::Unavailable);
            }
        };
        let publisher = Publisher::new(fixed(Arc::clone(&connection)), self.targets.clone());
        state.open = Some((connection, publisher.clone()));
        Ok(publisher)
    }

    /// Closes the connection, where there is one. A later reply opens another.
    pub(super) async fn close(&self) {
        let open = self.state.lock().await.open.take();
        if let Some((connection, _)) = open.filter(|(open, _)| open.status().connected()) {
            let _ =
                super::connection::ask("closing the connection", connection.close(200, "OK".into())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::net::TcpSocket;

    use super::*;

    #[tokio::test]
    async fn an_attempt_that_fails_answers_all_who_waited_for_it() {
        // Nobody listens, and while it is kept, no other socket has its port.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("amqp://{}/%2f", silent.local_addr().unwrap());
        let replies = Replies::new(url.parse().unwrap(), Targets::default());
        let body = Bytes::new();
        let publish = || replies.publish("q", BasicProperties::default(), &body, || true);
        let waiting: Vec<_> = std::iter::repeat_with(publish).take(500).collect();
        // One by one, with the waits between attempts, they take minutes.
        let answers = tokio::time::timeout(Duration::from_secs(60), join_all(waiting)).await.unwrap();
        assert!(answers.iter().all(|answer| *answer == Err(PublishError::Unavailable)));
    }
}
