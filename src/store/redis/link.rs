//! The connection to a server. Only this module depends on how the redis crate waits and fails.
//!
//! The crate's own `ConnectionManager` keeps a connection whose answers time out (a half-open one, say) and answers the
//! first call after a failed reconnect with the old failure; its clients of clusters and sentinels repeat calls by
//! themselves, and hide which server process answered. Here a connection that failed, or does not lead to a primary, is
//! dropped, the next call opens a new one, and each connection knows the id of its server's process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{ConnectionInfo, ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::address::Address;
use super::dial::{Dialer, Opened};
use super::errors::{ServerAddress, ends_connection, is_transient};
use super::fit;
use super::scripts::{Call, preloaded};
use super::sentinel::Sentinels;
use crate::lock::lock;
use crate::store::StoreError;
use crate::time::Micros;

/// The link to one server, over at most one connection at a time.
pub(super) struct Link {
    dial: Dialer,
    target: Target,
    at: ServerAddress,
    /// The connection. Every call locks it, so this lock is never held across an await.
    open: StdMutex<Option<Arc<Peer>>>,
    opening: Mutex<Opening>,
    /// The number of failed attempts to connect: callers that waited for an attempt share its failure.
    failures: AtomicU64,
    /// The last server whose eviction policy was warned of.
    warned: StdMutex<String>,
}

/// The server to connect to.
enum Target {
    Fixed(Box<ConnectionInfo>),
    /// The server that is the master when the connection is opened.
    Sentinels(Box<Sentinels>),
}

/// The attempts to connect, which are made one at a time.
#[derive(Default)]
struct Opening {
    opened: u64,
    failure: Option<StoreError>,
}

/// An open connection, with the id of the server's process.
struct Peer {
    connection: MultiplexedConnection,
    /// Ends with this, also while the server still owes answers.
    _driver: JoinSet<()>,
    at: ServerAddress,
    /// As much of the server's run_id as a double holds; 0 where INFO is not permitted.
    run: i64,
    /// The sequence number of the connection on its link.
    number: u64,
}

/// The reason why a call failed.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// The node of the cluster that serves the keys, as `HOST:PORT`; if it is set, nothing was run.
    pub(super) moved: Option<String>,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error, moved: None }
    }
}

impl Link {
    /// A link to this server.
    pub(super) fn fixed(dial: Dialer, info: ConnectionInfo) -> Self {
        let at = ServerAddress(Address::of(&info).to_string());
        Self::new(dial, Target::Fixed(Box::new(info)), at)
    }

    /// A link to the master that these sentinels report.
    pub(super) fn sentinels(dial: Dialer, sentinels: Sentinels) -> Self {
        let at = ServerAddress(sentinels.address());
        Self::new(dial, Target::Sentinels(Box::new(sentinels)), at)
    }

    fn new(dial: Dialer, target: Target, at: ServerAddress) -> Self {
        let (open, opening) = (StdMutex::default(), Mutex::default());
        Self { dial, target, at, open, opening, failures: AtomicU64::new(0), warned: StdMutex::default() }
    }

    /// How connections are opened.
    pub(super) const fn dial(&self) -> &Dialer {
        &self.dial
    }

    /// The address of the server or of the sentinels, without credentials.
    pub(super) const fn at(&self) -> &ServerAddress {
        &self.at
    }

    /// Runs several commands that change nothing.
    pub(super) async fn read<T: FromRedisValue>(
        self: &Arc<Self>,
        commands: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let peer = self.peer().await?;
        let result = commands.query_async(&mut peer.connection.clone()).await;
        self.drop_if_broken(&peer, result).map_err(|error| peer.at.explain(&error))
    }

    /// Runs a script once. If the server does not know it, which means that it has not run, it is loaded first. `call`
    /// is given the id of the server's process.
    pub(super) async fn invoke<'c, T: FromRedisValue>(
        self: &Arc<Self>,
        call: impl Fn(i64) -> Call<'c> + Send + Sync,
    ) -> Result<T, Failure> {
        let peer = self.peer().await?;
        let call = call(peer.run);
        let mut connection = peer.connection.clone();
        let mut result = call.command.query_async(&mut connection).await;
        if let Err(error) = &result
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            result = match call.script.load_async(&mut connection).await {
                Ok(_) => call.command.query_async(&mut connection).await,
                Err(error) => Err(error),
            };
        }
        self.drop_if_broken(&peer, result).map_err(|error| {
            let is_moved = error.kind() == ErrorKind::Server(ServerErrorKind::Moved);
            let moved = error.redirect_node().filter(|_| is_moved).map(|(node, _)| node.to_owned());
            Failure { error: peer.at.explain(&error), moved }
        })
    }

    /// The server's clock.
    pub(super) async fn time(self: &Arc<Self>) -> Result<Micros, StoreError> {
        let peer = self.peer().await?;
        let result = redis::cmd("TIME").query_async(&mut peer.connection.clone()).await;
        let answer = self.drop_if_broken(&peer, result);
        let (seconds, micros): (i64, i64) = answer.map_err(|error| peer.at.explain(&error))?;
        Ok(Micros(seconds * 1_000_000 + micros))
    }

    /// Opens a connection that subscribes to the channel.
    pub(super) async fn listen(&self, channel: &str) -> Result<PubSub, StoreError> {
        self.dial.clone().listen(self.find().await?, channel.to_owned()).await
    }

    /// The open connection; opens one if there is none. It is opened on the runtime of the connections: a caller that stands
    /// still meanwhile holds up nobody.
    async fn peer(self: &Arc<Self>) -> Result<Arc<Peer>, StoreError> {
        if let Some(peer) = &*lock(&self.open) {
            return Ok(Arc::clone(peer));
        }
        let link = Arc::clone(self);
        self.dial.home().run(async move { link.open_peer().await }).await?
    }

    async fn open_peer(&self) -> Result<Arc<Peer>, StoreError> {
        let failures = self.failures.load(Ordering::Acquire);
        let mut opening = self.opening.lock().await;
        if let Some(peer) = &*lock(&self.open) {
            return Ok(Arc::clone(peer));
        }
        if failures != self.failures.load(Ordering::Acquire)
            && let Some(failure) = &opening.failure
        {
            // Another caller has just tried. Queued attempts would delay the last caller for too long.
            return Err(failure.clone());
        }
        opening.opened += 1;
        match self.connect(opening.opened).await {
            Ok(peer) => {
                opening.failure = None;
                self.dial.notify_reopened();
                Ok(Arc::clone(lock(&self.open).insert(Arc::new(peer))))
            }
            Err(error) => {
                opening.failure = Some(error.clone());
                self.failures.fetch_add(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    /// Drops the connection if it broke or leads to the wrong server: a new one may find a new primary, or a live
    /// server. A connection that only answered with an error is kept, as all downstreams share it.
    fn drop_if_broken<T>(&self, peer: &Peer, result: Result<T, RedisError>) -> Result<T, RedisError> {
        // Behind sentinels, a server that cannot serve at the moment may be a deposed primary that does not know it.
        let is_of_sentinels = matches!(self.target, Target::Sentinels(_));
        let ends = |error: &RedisError| ends_connection(error) || (is_of_sentinels && is_transient(error));
        if result.as_ref().is_err_and(ends) {
            let _ended = lock(&self.open).take_if(|open| open.number == peer.number);
        }
        result
    }

    async fn connect(&self, number: u64) -> Result<Peer, StoreError> {
        let info = self.find().await?;
        let at = ServerAddress(Address::of(&info).to_string());
        let attempt = tokio::time::timeout(self.dial.connect_timeout(), self.open(&info, &at, number)).await;
        attempt.unwrap_or_else(|_| Err(at.unreachable("connecting timed out")))
    }

    /// The server to connect to.
    async fn find(&self) -> Result<ConnectionInfo, StoreError> {
        match &self.target {
            Target::Fixed(info) => Ok(ConnectionInfo::clone(info)),
            Target::Sentinels(sentinels) => sentinels.master(&self.dial).await,
        }
    }

    async fn open(&self, info: &ConnectionInfo, at: &ServerAddress, number: u64) -> Result<Peer, StoreError> {
        let opened = self.dial.open(info).await.map_err(|error| at.explain(&error))?;
        let Opened { mut connection, driver } = opened;
        // All commands go in one round trip, so that even a distant server answers within the time-out for connecting.
        let mut opening = redis::pipe();
        for section in ["server", "memory", "replication"] {
            opening.cmd("INFO").arg(section);
        }
        for source in preloaded() {
            opening.cmd("SCRIPT").arg("LOAD").arg(source);
        }
        let answers = opening.ignore_errors().query_async(&mut connection).await;
        let answers: Vec<Result<String, RedisError>> = match answers {
            Ok(answers) => answers,
            Err(error) => return Err(at.explain(&self.hang_up_reason(info, error).await)),
        };
        let mut answers = answers.into_iter();
        let server = section(at, answers.next())?;
        let memory = section(at, answers.next())?.unwrap_or_default();
        let replication = section(at, answers.next())?.unwrap_or_default();
        if server.is_none() {
            self.warn_without_info(at);
        }
        let server = server.unwrap_or_default();
        fit::check(at, &server, &replication)?;
        if let Some(policy) = fit::evicts(&memory) {
            self.warn_of_eviction(at, policy);
        }
        for loaded in answers {
            loaded.map_err(|error| at.explain(&error))?;
        }
        Ok(Peer { connection, _driver: driver, at: at.clone(), run: fit::run(&server), number })
    }

    /// If a server requires a password, it closes the connection on such a long request, and its error is lost. A
    /// short request gets the error.
    async fn hang_up_reason(&self, info: &ConnectionInfo, error: RedisError) -> RedisError {
        let asked = self.dial.clone().ask(info.clone(), redis::cmd("PING")).await;
        asked.err().filter(|why| why.code() == Some("NOAUTH")).unwrap_or(error)
    }

    /// Whether this server was not the last one warned of: a warning is given once, not with every connection.
    fn is_first_warning(&self, at: &ServerAddress) -> bool {
        let mut warned = lock(&self.warned);
        let is_new = *warned != at.0;
        warned.clone_from(&at.0);
        is_new
    }

    fn warn_without_info(&self, at: &ServerAddress) {
        if self.is_first_warning(at) {
            tracing::warn!(
                store = %at.0,
                "the user may not ask the store for INFO: its version, its role and whether it evicts are not checked, \
                 and a replica that starts after a loss of its data does not know of it; grant +info"
            );
        }
    }

    fn warn_of_eviction(&self, at: &ServerAddress, policy: &str) {
        if self.is_first_warning(at) {
            tracing::warn!(
                store = %at.0, policy,
                "the store may evict the state of limits, which resets their pace; set maxmemory-policy noeviction"
            );
        }
    }
}

/// A section of INFO; empty where INFO is not permitted.
fn section(
    at: &ServerAddress,
    answer: Option<Result<String, RedisError>>,
) -> Result<Option<String>, StoreError> {
    match answer {
        Some(Err(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Ok(None),
        Some(other) => other.map(Some).map_err(|error| at.explain(&error)),
        None => Err(at.unexpected("no answer to INFO")),
    }
}
