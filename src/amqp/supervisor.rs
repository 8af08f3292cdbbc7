//! Keeps a connection up: when it is lost, it connects again and again until it succeeds.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::{Connection, Event};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::address::Address;
use super::admission::Admissions;
use super::connection::{Backoff, STABLE, ask, connect};
use super::error::text;
use super::guard::Admit;
use crate::episode::Episode;
use crate::lock::lock;
use crate::metric;

/// How often a silent connection is polled: lapin reports almost every loss itself.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A connection to the broker, with the admissions of its channels. It may have been lost since.
#[derive(Debug)]
pub(super) struct Up {
    connection: Connection,
    /// Its consuming channels. The same channel number means another channel on each connection.
    pub(super) admissions: Arc<Admissions>,
}

impl Up {
    /// A connection over which nothing is consumed.
    pub(super) fn publishing(connection: Connection) -> Arc<Self> {
        Arc::new(Self { connection, admissions: Arc::default() })
    }
}

impl Deref for Up {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// The connection that is up, or `None` while there is none.
pub(super) type ConnectionWatch = watch::Receiver<Option<Arc<Up>>>;

/// A receiver that always has the given connection.
pub(super) fn fixed(connection: Arc<Up>) -> ConnectionWatch {
    watch::channel(Some(connection)).1
}

/// Waits for a connection that is up. `None` means that there will be none any more.
///
/// Cancel safe.
pub(super) async fn up(current: &mut ConnectionWatch) -> Option<Arc<Up>> {
    let usable = |slot: &Option<Arc<Up>>| slot.as_ref().is_some_and(|c| c.status().connected());
    current.wait_for(usable).await.ok().and_then(|slot| slot.clone())
}

/// The connections that should be up, for one gauge over all of them.
#[derive(Debug, Default)]
pub(super) struct ConnectionStates(Mutex<BTreeSet<String>>);

impl ConnectionStates {
    /// Records whether the connection for `purpose` is up.
    pub(super) fn set(&self, purpose: &str, is_up: bool) {
        let mut down = lock(&self.0);
        let _ = if is_up { down.remove(purpose) } else { down.insert(purpose.to_owned()) };
        // The gauge is set under the lock, so that an older value cannot be the last.
        metrics::gauge!(metric::AMQP_CONNECTED.name).set(if down.is_empty() { 1.0 } else { 0.0 });
    }
}

/// Keeps one connection up.
pub(super) struct Supervisor {
    pub(super) address: Address,
    pub(super) purpose: String,
    pub(super) current: watch::Sender<Option<Arc<Up>>>,
    pub(super) states: Arc<ConnectionStates>,
    /// Whether jobs are consumed over it.
    pub(super) consumes: bool,
    pub(super) stop: CancellationToken,
}

impl Supervisor {
    /// Runs until `stop`, starting with `first` where there is one; then closes the connection.
    pub(super) async fn run(self, first: Option<Arc<Up>>) {
        metrics::counter!(metric::AMQP_RECONNECTS.name).increment(0);
        let Self { address, purpose, current, states, stop, .. } = &self;
        let mut backoff = Backoff::default();
        let mut initial = first;
        let mut trouble = Episode::default();
        loop {
            let connection = match initial.take() {
                Some(connection) => connection,
                None => tokio::select! {
                    () = stop.cancelled() => return,
                    connection = self.connect(&mut backoff, &mut trouble) => connection,
                },
            };
            let since = Instant::now();
            current.send_replace(Some(Arc::clone(&connection)));
            states.set(purpose, true);
            let reason = tokio::select! {
                () = stop.cancelled() => {
                    current.send_replace(None);
                    states.set(purpose, false);
                    if connection.status().connected() {
                        let _ = ask("closing the connection", connection.close(200, "OK".into())).await;
                    }
                    return;
                }
                reason = lost(&connection) => reason,
            };
            current.send_replace(None);
            states.set(purpose, false);
            warn!(%address, %purpose, reason, "lost the connection to RabbitMQ; reconnecting");
            trouble.note(reason);
            if since.elapsed() >= STABLE {
                backoff.reset();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }

    /// Connects, with retries. Each trouble is logged once, until it changes.
    async fn connect(&self, backoff: &mut Backoff, trouble: &mut Episode<String>) -> Arc<Up> {
        let Self { address, purpose, .. } = self;
        loop {
            let admissions = Arc::<Admissions>::default();
            let admit = self.consumes.then(|| Arc::clone(&admissions) as Arc<dyn Admit>);
            match connect(address, purpose, admit).await {
                Ok(connection) => {
                    if trouble.end() {
                        metrics::counter!(metric::AMQP_RECONNECTS.name).increment(1);
                        info!(%address, %purpose, "connected to RabbitMQ again");
                    }
                    return Arc::new(Up { connection, admissions });
                }
                Err(error) => {
                    let error = error.to_string();
                    if trouble.note(error.clone()) {
                        warn!(%address, %purpose, error, "no connection to RabbitMQ; trying again");
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
    }
}

/// Waits until the connection is lost; returns the reason.
async fn lost(connection: &Connection) -> String {
    let mut events = std::pin::pin!(connection.events_listener());
    let mut why = None;
    while connection.status().connected() {
        // After a timeout the state of the connection is checked again.
        if let Ok(Some(Event::Error(error))) = tokio::time::timeout(POLL_INTERVAL, events.next()).await {
            why = Some(text(&error));
        }
    }
    why.unwrap_or_else(|| "the connection ended".to_owned())
}
