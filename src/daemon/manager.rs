//! Notifications to the service manager (`sd_notify(3)`): jobs are consumed, a reload is under way, the daemon ends,
//! and regularly that its loops still run. Without `NOTIFY_SOCKET` nothing is sent.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use paced::amqp::Status;
use sd_notify::NotifyState;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::status::{Dispatchers, Handle};

/// How many messages wait for a manager that reads slowly.
const QUEUE: usize = 16;

/// How many of these places only messages that are sent once may take: the repeated ones must not take them all.
const RESERVED: usize = 8;

/// How often the status is checked if the manager sets no time.
const UNWATCHED: Duration = Duration::from_secs(5);

/// The shortest time between two checks, also if the manager sets a shorter one.
const SHORTEST: Duration = Duration::from_millis(10);

/// The service manager.
#[derive(Clone, Debug)]
pub(super) struct Manager {
    messages: Option<mpsc::Sender<Message>>,
    /// Whether it knows that jobs are consumed.
    is_ready: Arc<AtomicBool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Ready,
    Reloading,
    /// The end begins, and takes this long at most.
    Stopping(Duration),
    /// The runtime and all dispatchers turn.
    Turning,
    /// What is waited for at the start may take this long from now on.
    Extend(Duration),
    Status(String),
}

impl Manager {
    /// The manager that the environment names. Must be called on a tokio runtime.
    pub(super) fn from_env() -> Self {
        let is_ready = Arc::default();
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Self { messages: None, is_ready };
        }
        let (messages, queue) = mpsc::channel(QUEUE);
        tokio::spawn(send_all(queue));
        Self { messages: Some(messages), is_ready }
    }

    /// Notifies the manager that every queue is consumed.
    pub(super) fn ready(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
        self.notify(Message::Ready);
    }

    /// Notifies the manager that the configuration is being read again; [`Manager::reloaded`] ends it.
    pub(super) fn reloading(&self) {
        self.notify_if_ready(Message::Reloading);
    }

    /// Notifies the manager that the reload is over, with success or without.
    pub(super) fn reloaded(&self) {
        self.notify_if_ready(Message::Ready);
    }

    /// Notifies the manager that the daemon ends, within this time.
    pub(super) fn stopping(&self, within: Duration) {
        self.notify(Message::Stopping(within));
    }

    /// Until `stop`, sends the status of the daemon. At half of the time that the manager allows, it also notifies the
    /// manager that the runtime and all of these dispatchers run. If one of them does not, there is no such message, and
    /// the manager restarts the daemon.
    pub(super) fn watch(&self, amqp: Status, dispatchers: Dispatchers, stop: CancellationToken) {
        if self.messages.is_none() {
            return;
        }
        let watched = sd_notify::watchdog_enabled().filter(|period| !period.is_zero());
        let every = watched.map_or(UNWATCHED, |period| (period / 2).max(SHORTEST));
        let manager = self.clone();
        tokio::spawn(async move {
            stop.run_until_cancelled(manager.beat(every, &amqp, &dispatchers)).await;
        });
    }

    async fn beat(&self, every: Duration, amqp: &Status, dispatchers: &Dispatchers) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_status = String::new();
        loop {
            ticks.tick().await;
            let status = status(amqp);
            if status != last_status {
                self.notify(Message::Status(status.clone()));
                last_status = status;
            }
            if all_turn(&dispatchers.all(), every).await {
                self.notify_repeatedly(Message::Turning);
                // The broker may be away for as long as it takes: waiting for it is no failed start.
                if !self.is_ready.load(Ordering::Relaxed) {
                    self.notify_repeatedly(Message::Extend(every * 4));
                }
            }
        }
    }

    /// Some messages imply that the daemon is ready. They are not sent before the manager knows that it is.
    fn notify_if_ready(&self, message: Message) {
        if self.is_ready.load(Ordering::Relaxed) {
            self.notify(message);
        }
    }

    fn notify_repeatedly(&self, message: Message) {
        if self.messages.as_ref().is_some_and(|messages| messages.capacity() > RESERVED) {
            self.notify(message);
        }
    }

    fn notify(&self, message: Message) {
        if let Some(messages) = &self.messages
            && let Err(error) = messages.try_send(message)
        {
            tracing::warn!(%error, "the service manager does not read the notifications");
        }
    }
}

/// Whether each of these dispatchers takes a turn within this time, or is to end; those that do not are logged.
async fn all_turn(dispatchers: &BTreeMap<String, Handle>, within: Duration) -> bool {
    let turns = dispatchers.iter().map(|(name, dispatcher)| async move {
        let turn = dispatcher.end.run_until_cancelled(timeout(within, dispatcher.turn())).await;
        let turned = turn.is_none_or(|turn| turn.is_ok());
        if !turned {
            tracing::error!(
                downstream = name,
                "the dispatcher is stuck: until it runs again, the watchdog of the service manager is not notified"
            );
        }
        turned
    });
    join_all(turns).await.into_iter().all(|turned| turned)
}

/// How the daemon stands, in one line.
fn status(amqp: &Status) -> String {
    if let Some(trouble) = amqp.trouble() {
        return format!("waits for RabbitMQ: {trouble}");
    }
    let downstreams = amqp.downstreams();
    let (consumed, missing): (Vec<_>, Vec<_>) = downstreams.into_iter().partition(|(_, attached)| *attached);
    if !missing.is_empty() {
        let names: Vec<String> = missing.into_iter().map(|(name, _)| name).collect();
        return format!("waits for the queues of {}", names.join(", "));
    }
    format!("consumes jobs; downstreams: {}", consumed.len())
}

/// Passes the messages on in their order. What cannot be passed on is logged once.
async fn send_all(mut queue: mpsc::Receiver<Message>) {
    let mut is_deaf = false;
    while let Some(message) = queue.recv().await {
        // A datagram waits for its reader, who may be slow.
        let sent = tokio::task::spawn_blocking(move || message.send()).await;
        let error = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let (Some(error), false) = (&error, is_deaf) {
            tracing::warn!(error, "cannot notify the service manager of the daemon's state (NOTIFY_SOCKET)");
        }
        is_deaf = error.is_some();
    }
}

impl Message {
    /// Sends it; may block.
    fn send(&self) -> io::Result<()> {
        match self {
            Self::Ready => sd_notify::notify(&[NotifyState::Ready]),
            Self::Reloading => {
                sd_notify::notify(&[NotifyState::Reloading, NotifyState::monotonic_usec_now()?])
            }
            Self::Stopping(within) => sd_notify::notify(&[
                NotifyState::Stopping,
                NotifyState::ExtendTimeoutUsec(micros(*within)),
                NotifyState::Status("stopping: what is being sent may end"),
            ]),
            Self::Turning => sd_notify::notify(&[NotifyState::Watchdog]),
            Self::Extend(within) => sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(micros(*within))]),
            Self::Status(text) => sd_notify::notify(&[NotifyState::Status(text)]),
        }
    }
}

/// Microseconds; the largest number is over an hour.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paced::config::{self, Sources};
    use paced::{MemoryStore, Store};

    use super::super::parts;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_dispatcher_that_takes_no_turn_keeps_the_manager_uninformed() {
        let text = ["rate='1/s'", "http.base_url='http://127.0.0.1:1/'"];
        let set = text.map(|key| format!("downstreams.a.{key}")).to_vec();
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, "").unwrap();
        let settings =
            config::load(Sources { files: vec![file], set, ..Sources::default() }).unwrap().settings;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let clock = parts::clock(paced::dispatch::Precision::Coarse);
        // It is never run.
        let downstream = &settings.downstreams["a"];
        let options = parts::options(&settings, "a", downstream, &parts::reply_rules(&settings));
        let shared = parts::Shared::default();
        let built = parts::dispatcher(options, &downstream.http, shared, store, clock).unwrap();
        let dispatchers = Dispatchers::default();
        dispatchers.insert("a".to_owned(), Handle::of(&built.0, CancellationToken::new()));
        let (messages, mut queue) = mpsc::channel(QUEUE);
        let manager = Manager { messages: Some(messages), is_ready: Arc::default() };
        let amqp = Status::default();
        assert!(
            timeout(Duration::from_secs(60), manager.beat(UNWATCHED, &amqp, &dispatchers)).await.is_err()
        );
        assert_eq!(queue.try_recv(), Ok(Message::Status("consumes jobs; downstreams: 0".to_owned())));
        assert!(queue.try_recv().is_err());
        // If none is stuck, the manager is notified; the start may last, until it is over.
        let none = Dispatchers::default();
        assert!(timeout(UNWATCHED / 2, manager.beat(UNWATCHED, &amqp, &none)).await.is_err());
        assert!(matches!(queue.try_recv(), Ok(Message::Status(_))));
        assert_eq!(queue.try_recv(), Ok(Message::Turning));
        assert_eq!(queue.try_recv(), Ok(Message::Extend(UNWATCHED * 4)));
        manager.ready();
        assert!(timeout(UNWATCHED / 2, manager.beat(UNWATCHED, &amqp, &none)).await.is_err());
        assert_eq!(queue.try_recv(), Ok(Message::Ready));
        assert!(matches!(queue.try_recv(), Ok(Message::Status(_))));
        assert_eq!(queue.try_recv(), Ok(Message::Turning));
        assert!(queue.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_does_not_read_still_has_room_for_messages_that_are_sent_once() {
        let (messages, mut queue) = mpsc::channel(QUEUE);
        let manager = Manager { messages: Some(messages), is_ready: Arc::default() };
        for _ in 0..100 {
            manager.notify_repeatedly(Message::Turning);
        }
        manager.ready();
        manager.reloading();
        manager.reloaded();
        manager.stopping(Duration::from_secs(1));
        let sent: Vec<Message> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
        let once = sent.iter().filter(|message| **message != Message::Turning).cloned();
        let stopping = Message::Stopping(Duration::from_secs(1));
        assert_eq!(once.collect::<Vec<_>>(), [Message::Ready, Message::Reloading, Message::Ready, stopping]);
    }

    #[test]
    fn before_it_is_ready_a_reload_is_not_notified() {
        let (messages, mut queue) = mpsc::channel(QUEUE);
        let manager = Manager { messages: Some(messages), is_ready: Arc::default() };
        manager.reloading();
        manager.reloaded();
        assert!(queue.try_recv().is_err());
    }
}
