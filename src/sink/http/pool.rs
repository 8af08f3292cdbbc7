//! The connections of one sink: those that are free, and those that are being opened.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::connect::Connector;
use super::connection::Connection;

/// Shorter than the keep-alive of common servers (5 s: Node, Apache, uvicorn), so that a request
/// does not meet a connection that its server is closing.
pub(super) const POOL_IDLE: Duration = Duration::from_secs(4);

/// How long a free connection must still be usable to be kept in readiness for a job that waits.
pub(super) const WARM_FOR: Duration = Duration::from_secs(1);

/// After a spare connection could not be opened, the next is not tried before.
pub(super) const WARM_AGAIN: Duration = Duration::from_secs(1);

/// A connection, and whether it comes from the pool: then its server may have closed it unseen.
pub(super) type Taken = (Connection, bool);

/// Connections that are opened in tasks of their own, so that a send that gets one from elsewhere,
/// or is given up, wastes none.
pub(super) struct Pool(Arc<Shared>);

struct Shared {
    connector: Connector,
    state: Mutex<State>,
}

/// At least one connection is being opened for each send that waits.
#[derive(Default)]
struct State {
    /// In the order in which they became free. The newest is used first, the oldest closes first.
    idle: Vec<Idle>,
    waiting: VecDeque<oneshot::Sender<Result<Taken, String>>>,
    opening: usize,
    /// Whether a task closes what is idle for too long.
    swept: bool,
    no_spare_before: Option<Instant>,
}

struct Idle {
    connection: Connection,
    until: Instant,
}

impl Pool {
    pub(super) fn new(connector: Connector) -> Self {
        Self(Arc::new(Shared { connector, state: Mutex::default() }))
    }

    /// A free connection; else the first that becomes free or open; else why none could be opened.
    ///
    /// Cancel safe.
    pub(super) async fn take(&self) -> Result<Taken, String> {
        let waiting = {
            let now = Instant::now();
            let mut state = self.0.state();
            if let Some(idle) = state.idle.pop_if(|idle| now < idle.until) {
                return Ok((idle.connection, true));
            }
            let (waiting, receiver) = oneshot::channel();
            state.waiting.retain(|waiting| !waiting.is_closed());
            state.waiting.push_back(waiting);
            if state.opening < state.waiting.len() {
                self.0.open(&mut state);
            }
            receiver
        };
        // Whoever opens a connection answers, also when its task is ended.
        waiting.await.unwrap_or_else(|_| Err("the runtime is shutting down".to_owned()))
    }

    /// Takes back a connection that is idle.
    pub(super) fn put(&self, connection: Connection) {
        self.0.give(&mut self.0.state(), Ok((connection, true)));
    }

    /// The connections that are free, and those that are being opened.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.0.state();
        (state.idle.len(), state.opening)
    }

    /// See [`Sink::warm`](crate::sink::Sink::warm).
    pub(super) fn warm(&self) {
        let now = Instant::now();
        let mut closed = Vec::new();
        let mut state = self.0.state();
        while let Some(mut newest) = state.idle.pop_if(|idle| now + WARM_FOR < idle.until) {
            if newest.connection.is_idle() {
                state.idle.push(newest);
                return;
            }
            closed.push(newest);
        }
        state.waiting.retain(|waiting| !waiting.is_closed());
        let is_coming = state.opening > state.waiting.len();
        let is_too_soon = state.no_spare_before.is_some_and(|at| now < at);
        // Without a runtime there is nobody who could send, either.
        if !is_coming && !is_too_soon && Handle::try_current().is_ok() {
            self.0.open(&mut state);
        }
        // Closing calls the system: not under the lock.
        drop(state);
        drop(closed);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No method leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(self: &Arc<Self>, state: &mut State) {
        state.opening += 1;
        let opening = Opening { shared: Arc::clone(self), opened: None };
        tokio::spawn(opening.run());
    }

    /// Hands a connection, or why there is none, to the send that waits longest; a connection that
    /// nobody waits for is kept.
    fn give(self: &Arc<Self>, state: &mut State, mut taken: Result<Taken, String>) {
        while let Some(waiting) = state.waiting.pop_front() {
            match waiting.send(taken) {
                Ok(()) => return,
                Err(unwanted) => taken = unwanted,
            }
        }
        let Ok((connection, _)) = taken else { return };
        state.idle.push(Idle { connection, until: Instant::now() + POOL_IDLE });
        if !state.swept {
            state.swept = true;
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes what is idle for too long; says when to look again, if there is more.
    fn close_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state();
        let old = state.idle.partition_point(|idle| idle.until <= now);
        let closed: Vec<Idle> = state.idle.drain(..old).collect();
        let next = state.idle.first().map(|idle| idle.until);
        state.swept = next.is_some();
        drop(state);
        drop(closed);
        next
    }
}

/// Ends with the last idle connection, or with the sink.
async fn sweep(shared: Weak<Shared>) {
    let mut next = Some(Instant::now() + POOL_IDLE);
    while let Some(at) = next {
        sleep_until(at).await;
        next = shared.upgrade().and_then(|shared| shared.close_old());
    }
}

/// A connection on its way. However it ends, it is counted out, and a send that waits is told.
struct Opening {
    shared: Arc<Shared>,
    opened: Option<Result<Connection, String>>,
}

impl Opening {
    async fn run(mut self) {
        self.opened = Some(self.shared.connector.open().await);
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let opened = self.opened.take().unwrap_or_else(|| Err("the runtime is shutting down".to_owned()));
        let mut state = self.shared.state();
        state.opening -= 1;
        state.no_spare_before = opened.is_err().then(|| Instant::now() + WARM_AGAIN);
        self.shared.give(&mut state, opened.map(|connection| (connection, false)));
    }
}
