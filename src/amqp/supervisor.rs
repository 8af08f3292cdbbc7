//! Keeps a connection up: when it is lost, another takes its place, for as long as it takes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::{Connection, Event};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::address::Address;
use super::connection::{Backoff, ask, connect};
use super::error::text;

/// How often a connection is looked at that has said nothing: lapin reports almost every loss itself.
const LOOK: Duration = Duration::from_secs(1);

/// A connection that held this long has earned a quick reconnect.
const STABLE: Duration = Duration::from_secs(10);

const RECONNECTS: &str = "paced_amqp_reconnects_total";

/// The connection that is up, and none while there is none.
pub(super) type Line = watch::Receiver<Option<Arc<Connection>>>;

/// A line that stays with the one connection that it is given.
pub(super) fn fixed(connection: Arc<Connection>) -> Line {
    watch::channel(Some(connection)).1
}

/// Waits for a connection that is up. `None`: there will be none any more.
///
/// Cancel safe.
pub(super) async fn up(line: &mut Line) -> Option<Arc<Connection>> {
    let usable = |slot: &Option<Arc<Connection>>| slot.as_ref().is_some_and(|c| c.status().connected());
    line.wait_for(usable).await.ok().and_then(|slot| slot.clone())
}

/// Supervises one connection until `stop`, starting with `first` where there is one; then closes it.
pub(super) async fn supervise(
    address: Address,
    purpose: &'static str,
    first: Option<Arc<Connection>>,
    line: watch::Sender<Option<Arc<Connection>>>,
    stop: CancellationToken,
) {
    metrics::counter!(RECONNECTS).increment(0);
    let mut backoff = Backoff::default();
    let mut current = first;
    // What was said last about a connection that is not there: each loss is logged once.
    let mut down: Option<String> = None;
    loop {
        let connection = match current.take() {
            Some(connection) => connection,
            None => {
                let attempt = tokio::select! {
                    () = stop.cancelled() => return,
                    attempt = connect(&address, purpose) => attempt,
                };
                match attempt {
                    Ok(connection) => Arc::new(connection),
                    Err(error) => {
                        if down.is_none() {
                            warn!(%address, purpose, %error, "no connection to RabbitMQ; trying on");
                            down = Some(error.to_string());
                        }
                        tokio::select! {
                            () = stop.cancelled() => return,
                            () = tokio::time::sleep(backoff.next()) => continue,
                        }
                    }
                }
            }
        };
        if down.take().is_some() {
            metrics::counter!(RECONNECTS).increment(1);
            info!(%address, purpose, "connected to RabbitMQ again");
        }
        let since = Instant::now();
        line.send_replace(Some(Arc::clone(&connection)));
        let why = tokio::select! {
            () = stop.cancelled() => {
                line.send_replace(None);
                if connection.status().connected() {
                    let _ = ask("closing the connection", connection.close(200, "OK".into())).await;
                }
                return;
            }
            why = lost(&connection) => why,
        };
        line.send_replace(None);
        warn!(%address, purpose, reason = %why, "lost the connection to RabbitMQ; reconnecting");
        down = Some(why);
        if since.elapsed() >= STABLE {
            backoff.reset();
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(backoff.next()) => {}
        }
    }
}

/// Waits until the connection is gone; says why.
async fn lost(connection: &Connection) -> String {
    let mut events = std::pin::pin!(connection.events_listener());
    let mut why = None;
    while connection.status().connected() {
        // A timeout is only another look.
        if let Ok(Some(Event::Error(error))) = tokio::time::timeout(LOOK, events.next()).await {
            why = Some(text(&error));
        }
    }
    why.unwrap_or_else(|| "the connection ended".to_owned())
}
