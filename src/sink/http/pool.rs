//! The connections of one sink: those that are idle, and those that are being opened.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::SECOND;
use super::connect::{Connector, Unconnected};
use super::connection::Connection;
use crate::sink::Soon;

/// An idle connection is closed after this time. It is shorter than the keep-alive of common servers (5 s: Node,
/// Apache, uvicorn), so that a request does not meet a connection that its server is closing.
pub(super) const POOL_IDLE: Duration = SECOND.saturating_mul(4);

/// How long an idle connection must stay usable to count as ready for a job that waits.
pub(super) const MIN_WARM_TIME: Duration = SECOND;

/// The longest age, which can be added to any instant.
const LONGEST_AGE: Duration = Duration::from_secs(366 * 86_400);

/// After a spare connection could not be opened, the next attempt waits for this long.
pub(super) const WARM_RETRY: Duration = SECOND;

/// After this many more answers that ended their connection than others, each job needs a connection of its own.
const SINGLE_USES: u8 = 2;
const MOST_SINGLE_USES: u8 = 4;

/// Connections end before the bound, at random: by up to the bound divided by this.
const AGE_JITTER: u32 = 5;

/// A connection, and whether it was idle in the pool: then its server may have closed it unnoticed.
pub(super) type Taken = (Aging, bool);

/// A connection, and the instant after which it takes no more requests.
pub(super) struct Aging {
    pub(super) connection: Connection,
    /// The instant after which it takes no more requests; `None` stands for no bound.
    expires: Option<Instant>,
}

impl Aging {
    fn new(connection: Connection, max_age: Duration) -> Self {
        Self { connection, expires: lifetime(max_age).map(|lifetime| Instant::now() + lifetime) }
    }

    /// The instant at which it is closed if it is idle from `now` on.
    fn usable_until(&self, now: Instant) -> Instant {
        let idle = now + POOL_IDLE;
        self.expires.map_or(idle, |expires| expires.min(idle))
    }
}

/// How long a connection that is opened now takes requests; it is random, so that those opened together do not end
/// together. `None` stands for no bound.
pub(super) fn lifetime(max_age: Duration) -> Option<Duration> {
    let max_age = max_age.min(LONGEST_AGE);
    (!max_age.is_zero()).then(|| max_age - (max_age / AGE_JITTER).mul_f64(fastrand::f64()))
}

/// Connections are opened in tasks of their own, so that a send that gets another connection first, or is given up,
/// wastes none. Clones share the connections.
#[derive(Clone)]
pub(super) struct Pool(Arc<Shared>);

struct Shared {
    connector: Connector,
    /// The number of connections that are being opened, for those who wait for them.
    opening: watch::Sender<usize>,
    /// The longest life of a connection; zero stands for no bound.
    max_age: Duration,
    state: Mutex<State>,
}

/// At least one connection is being opened for each send that waits.
#[derive(Default)]
struct State {
    /// The idle connections, in the order in which they became idle. The newest is used first.
    idle: Vec<Idle>,
    waiting: VecDeque<oneshot::Sender<Result<Taken, Unconnected>>>,
    opening: usize,
    /// Whether a task closes connections that are idle for too long.
    swept: bool,
    no_spare_before: Option<Instant>,
    /// By how many answers ended their connection more than others did, within [`MOST_SINGLE_USES`].
    single_uses: u8,
}

struct Idle {
    aging: Aging,
    /// The instant at which it is closed: its server may be closing it then, or it is too old.
    until: Instant,
}

impl Pool {
    pub(super) fn new(connector: Connector, max_age: Duration) -> Self {
        Self(Arc::new(Shared {
            connector,
            opening: watch::Sender::default(),
            max_age,
            state: Mutex::default(),
        }))
    }

    /// The `HOST:PORT` that is dialled: that of the downstream, or the proxy's.
    pub(super) fn dialled(&self) -> &Arc<str> {
        self.0.connector.dialled()
    }

    /// The `HOST:PORT` of the downstream.
    pub(super) fn target(&self) -> &Arc<str> {
        self.0.connector.target()
    }

    /// Returns an idle connection, or else the first one that becomes idle or opens, or else why none could be opened.
    ///
    /// Cancel safe.
    pub(super) async fn take(&self) -> Result<Taken, Unconnected> {
        let waiting = {
            let now = Instant::now();
            let mut state = self.0.state();
            // Connections that are passed over are closed in their time.
            if let Some(newest) = state.idle.iter().rposition(|idle| now < idle.until) {
                return Ok((state.idle.remove(newest).aging, true));
            }
            let (waiting, receiver) = oneshot::channel();
            state.waiting.retain(|waiting| !waiting.is_closed());
            state.waiting.push_back(waiting);
            if state.opening < state.waiting.len() {
                self.0.open(&mut state);
            }
            receiver
        };
        // The task that opens a connection always answers, even if it is aborted.
        waiting.await.unwrap_or_else(|_| Err(self.0.shutting_down()))
    }

    /// Opens another connection and keeps it for the next send; the error says why there is none.
    ///
    /// Cancel safe.
    pub(super) async fn open_another(&self) -> Result<(), String> {
        let connection = self.0.connector.open().await.map_err(|error| error.detail)?;
        self.put(Aging::new(connection, self.0.max_age));
        Ok(())
    }

    /// Takes back the connection of an answer, if it can be used again.
    pub(super) fn on_answered(&self, reusable: Option<Aging>) {
        let mut state = self.0.state();
        state.single_uses = match reusable {
            Some(_) => state.single_uses.saturating_sub(1),
            None => (state.single_uses + 1).min(MOST_SINGLE_USES),
        };
        drop(state);
        reusable.into_iter().for_each(|aging| self.put(aging));
    }

    /// Returns a connection to the pool; one that is too old is closed.
    pub(super) fn put(&self, aging: Aging) {
        if aging.expires.is_none_or(|expires| Instant::now() < expires) {
            self.0.give(&mut self.0.state(), Ok((aging, true)));
        }
    }

    /// The numbers of connections that are idle, and of those that are being opened.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.0.state();
        (state.idle.len(), state.opening)
    }

    /// See [`Sink::warm`](crate::sink::Sink::warm).
    pub(super) fn warm(&self, soon: Soon) -> Option<BoxFuture<'static, ()>> {
        let now = Instant::now();
        let mut closed = Vec::new();
        let mut state = self.0.state();
        let connections = if state.single_uses >= SINGLE_USES { soon.jobs } else { soon.at_once };
        // The newest connections are used first.
        let (mut ready, mut place) = (0, state.idle.len());
        while ready < connections && place > 0 {
            place -= 1;
            if now + MIN_WARM_TIME >= state.idle[place].until {
                continue;
            }
            if state.idle[place].aging.connection.is_idle() {
                ready += 1;
            } else {
                closed.push(state.idle.remove(place));
            }
        }
        state.waiting.retain(|waiting| !waiting.is_closed());
        let is_too_soon = state.no_spare_before.is_some_and(|at| now < at);
        // Without a runtime no job can be sent either.
        if ready < connections && !is_too_soon && Handle::try_current().is_ok() {
            let coming = state.opening.saturating_sub(state.waiting.len());
            (ready + coming..connections).for_each(|_| self.0.open(&mut state));
        }
        let is_opening = state.opening > 0;
        // Closing is a system call, so it is done outside the lock.
        drop(state);
        drop(closed);
        let mut opening = self.0.opening.subscribe();
        is_opening.then(|| {
            let opened = async move { drop(opening.wait_for(|opening| *opening == 0).await) };
            Box::pin(opened) as BoxFuture<'static, ()>
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No method leaves the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shutting_down(&self) -> Unconnected {
        let peer = Arc::clone(self.connector.dialled());
        Unconnected { peer, detail: "the runtime is shutting down".to_owned() }
    }

    fn open(self: &Arc<Self>, state: &mut State) {
        state.opening += 1;
        self.opening.send_replace(state.opening);
        let opening = Opening { shared: Arc::clone(self), opened: None };
        tokio::spawn(opening.run());
    }

    /// Gives a connection, or the reason why there is none, to the send that waits longest; without one the connection
    /// is kept.
    fn give(self: &Arc<Self>, state: &mut State, mut taken: Result<Taken, Unconnected>) {
        while let Some(waiting) = state.waiting.pop_front() {
            match waiting.send(taken) {
                Ok(()) => return,
                Err(unwanted) => taken = unwanted,
            }
        }
        let Ok((aging, _)) = taken else { return };
        let until = aging.usable_until(Instant::now());
        state.idle.push(Idle { aging, until });
        if !state.swept {
            state.swept = true;
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes connections that are idle for too long; returns when to check again, if any are left.
    fn close_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state();
        let closed: Vec<Idle> = state.idle.extract_if(.., |idle| idle.until <= now).collect();
        let next = state.idle.iter().map(|idle| idle.until).min();
        state.swept = next.is_some();
        drop(state);
        drop(closed);
        next
    }
}

/// The task ends with the last idle connection, or with the sink.
async fn sweep(shared: Weak<Shared>) {
    let mut next = Some(Instant::now() + POOL_IDLE);
    while let Some(at) = next {
        sleep_until(at).await;
        next = shared.upgrade().and_then(|shared| shared.close_old());
    }
}

/// A connection that is being opened. However the attempt ends, it is counted down, and a waiting send is answered.
struct Opening {
    shared: Arc<Shared>,
    opened: Option<Result<Connection, Unconnected>>,
}

impl Opening {
    async fn run(mut self) {
        self.opened = Some(self.shared.connector.open().await);
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let opened = self.opened.take().unwrap_or_else(|| Err(self.shared.shutting_down()));
        let mut state = self.shared.state();
        state.opening -= 1;
        self.shared.opening.send_replace(state.opening);
        state.no_spare_before = opened.is_err().then(|| Instant::now() + WARM_RETRY);
        let opened = opened.map(|connection| (Aging::new(connection, self.shared.max_age), false));
        self.shared.give(&mut state, opened);
    }
}
