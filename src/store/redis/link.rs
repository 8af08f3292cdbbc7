//! The connection to a server: the only place that knows how the redis crate waits and fails.
//!
//! The crate's own `ConnectionManager` keeps a connection whose answers time out (a half-open one,
//! say) and answers the first call after a failed reconnect with the old failure; its clients of
//! clusters and sentinels repeat calls by themselves, and hide which server process answered. Here a
//! connection that failed, or leads to no primary, is dropped, the next call opens a new one, and each knows its
//! server's process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{ConnectionInfo, ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use tokio::sync::Mutex;

use super::address::Address;
use super::dial::Dial;
use super::fit;
use super::scripts::{Call, preloaded};
use super::sentinel::Sentinels;
use super::trouble::{At, ends_connection, passes};
use crate::store::StoreError;
use crate::time::Micros;

/// One server, through at most one connection.
pub(super) struct Link {
    dial: Dial,
    way: Way,
    at: At,
    /// The connection. Every call looks at it, so this lock is never held across an await.
    open: StdMutex<Option<Arc<Peer>>>,
    opening: Mutex<Opening>,
    /// How often connecting failed: who waited for an attempt shares its failure.
    failures: AtomicU64,
    /// The last server whose eviction was warned of.
    warned: StdMutex<String>,
}

/// Which server it is.
enum Way {
    Fixed(Box<ConnectionInfo>),
    /// The one that is the master when the connection is opened.
    Sentinels(Box<Sentinels>),
}

/// The attempts to connect, of which there is one at a time.
#[derive(Default)]
struct Opening {
    opened: u64,
    failure: Option<StoreError>,
}

/// An open connection, and which server process it leads to.
struct Peer {
    connection: MultiplexedConnection,
    at: At,
    /// As much of its run_id as a double holds; 0 where INFO is not permitted.
    run: i64,
    /// Which of the link's connections it is.
    number: u64,
}

/// Why a call failed.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// The node of the cluster that has the keys, as `HOST:PORT`: then nothing has run.
    pub(super) moved: Option<String>,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error, moved: None }
    }
}

impl Link {
    /// To this server.
    pub(super) fn fixed(dial: Dial, info: ConnectionInfo) -> Self {
        let at = At(Address::of(&info).to_string());
        Self::new(dial, Way::Fixed(Box::new(info)), at)
    }

    /// To the master that these sentinels know.
    pub(super) fn sentinels(dial: Dial, sentinels: Sentinels) -> Self {
        let at = At(sentinels.address());
        Self::new(dial, Way::Sentinels(Box::new(sentinels)), at)
    }

    fn new(dial: Dial, way: Way, at: At) -> Self {
        let (open, opening) = (StdMutex::default(), Mutex::default());
        Self { dial, way, at, open, opening, failures: AtomicU64::new(0), warned: StdMutex::default() }
    }

    /// How it is connected to.
    pub(super) const fn dial(&self) -> &Dial {
        &self.dial
    }

    /// Host and port, or the sentinels', without credentials.
    pub(super) const fn at(&self) -> &At {
        &self.at
    }

    /// Asks several things that change nothing.
    pub(super) async fn read<T: FromRedisValue>(&self, asked: &redis::Pipeline) -> Result<T, StoreError> {
        let peer = self.peer().await?;
        let result = asked.query_async(&mut peer.connection.clone()).await;
        self.settle(&peer, result).map_err(|error| peer.at.explain(&error))
    }

    /// Runs a script once; it is loaded if the server does not know it (then it has not run). The call is
    /// told which process it goes to.
    pub(super) async fn invoke<'c, T: FromRedisValue>(
        &self,
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
        self.settle(&peer, result).map_err(|error| {
            let is_moved = error.kind() == ErrorKind::Server(ServerErrorKind::Moved);
            let moved = error.redirect_node().filter(|_| is_moved).map(|(node, _)| node.to_owned());
            Failure { error: peer.at.explain(&error), moved }
        })
    }

    /// The server's clock.
    pub(super) async fn time(&self) -> Result<Micros, StoreError> {
        let peer = self.peer().await?;
        let result = redis::cmd("TIME").query_async(&mut peer.connection.clone()).await;
        let answer = self.settle(&peer, result);
        let (seconds, micros): (i64, i64) = answer.map_err(|error| peer.at.explain(&error))?;
        Ok(Micros(seconds * 1_000_000 + micros))
    }

    /// A connection of its own that hears what is published on the channel.
    pub(super) async fn listen(&self, channel: &str) -> Result<PubSub, StoreError> {
        self.dial.clone().listen(self.find().await?, channel.to_owned()).await
    }

    /// The connection, opened if there is none.
    async fn peer(&self) -> Result<Arc<Peer>, StoreError> {
        if let Some(peer) = &*self.current() {
            return Ok(Arc::clone(peer));
        }
        let failures = self.failures.load(Ordering::Acquire);
        let mut opening = self.opening.lock().await;
        if let Some(peer) = &*self.current() {
            return Ok(Arc::clone(peer));
        }
        if failures != self.failures.load(Ordering::Acquire)
            && let Some(failure) = &opening.failure
        {
            // Somebody has just tried; a queue of attempts would keep the last caller for long.
            return Err(failure.clone());
        }
        opening.opened += 1;
        match self.connect(opening.opened).await {
            Ok(peer) => {
                opening.failure = None;
                self.dial.tell_reopened();
                Ok(Arc::clone(self.current().insert(Arc::new(peer))))
            }
            Err(error) => {
                opening.failure = Some(error.clone());
                self.failures.fetch_add(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Peer>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the connection where it broke, or leads to the wrong server: a new one may find a new primary, or
    /// a live server. One that answers an error stays: all downstreams share it.
    fn settle<T>(&self, peer: &Peer, result: Result<T, RedisError>) -> Result<T, RedisError> {
        // Behind sentinels a server that cannot serve now may be a primary that was deposed and does not know it.
        let is_of_sentinels = matches!(self.way, Way::Sentinels(_));
        let ends = |error: &RedisError| ends_connection(error) || (is_of_sentinels && passes(error));
        if result.as_ref().is_err_and(ends) {
            let _ended = self.current().take_if(|open| open.number == peer.number);
        }
        result
    }

    async fn connect(&self, number: u64) -> Result<Peer, StoreError> {
        let info = self.find().await?;
        let at = At(Address::of(&info).to_string());
        let attempt = tokio::time::timeout(self.dial.patience(), self.open(&info, &at, number)).await;
        attempt.unwrap_or_else(|_| Err(at.unreachable("connecting timed out")))
    }

    /// The server to connect to.
    async fn find(&self) -> Result<ConnectionInfo, StoreError> {
        match &self.way {
            Way::Fixed(info) => Ok(ConnectionInfo::clone(info)),
            Way::Sentinels(sentinels) => sentinels.master(&self.dial).await,
        }
    }

    async fn open(&self, info: &ConnectionInfo, at: &At, number: u64) -> Result<Peer, StoreError> {
        let mut connection = self.dial.open(info).await.map_err(|error| at.explain(&error))?;
        // All in one round trip: a far server's must fit into the time for connecting.
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
            Err(error) => return Err(at.explain(&self.why(info, error).await)),
        };
        let mut answers = answers.into_iter();
        let server = section(at, answers.next())?;
        let memory = section(at, answers.next())?.unwrap_or_default();
        let replication = section(at, answers.next())?.unwrap_or_default();
        if server.is_none() {
            self.warn_blind(at);
        }
        let server = server.unwrap_or_default();
        fit::check(at, &server, &replication)?;
        if let Some(policy) = fit::evicts(&memory) {
            self.warn(at, policy);
        }
        for loaded in answers {
            loaded.map_err(|error| at.explain(&error))?;
        }
        Ok(Peer { connection, at: at.clone(), run: fit::run(&server), number })
    }

    /// A server that wants a password hangs up on so long a request, and what it says is lost.
    async fn why(&self, info: &ConnectionInfo, error: RedisError) -> RedisError {
        let asked = self.dial.clone().ask(info.clone(), redis::cmd("PING")).await;
        asked.err().filter(|why| why.code() == Some("NOAUTH")).unwrap_or(error)
    }

    /// Whether this server is another one than was warned of last: once, not with every connection.
    fn is_new_to_warnings(&self, at: &At) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *warned != at.0;
        warned.clone_from(&at.0);
        is_new
    }

    fn warn_blind(&self, at: &At) {
        if self.is_new_to_warnings(at) {
            tracing::warn!(
                store = %at.0,
                "the user may not ask the store for INFO: its version, its role and whether it evicts are not checked, \
                 and a replica that starts after a loss of its data does not know of it; grant +info"
            );
        }
    }

    fn warn(&self, at: &At, policy: &str) {
        if self.is_new_to_warnings(at) {
            tracing::warn!(
                store = %at.0, policy,
                "the store may evict the state of limits, which resets their pace; set maxmemory-policy noeviction"
            );
        }
    }
}

/// A section of INFO; none where it is not permitted.
fn section(at: &At, answer: Option<Result<String, RedisError>>) -> Result<Option<String>, StoreError> {
    match answer {
        Some(Err(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Ok(None),
        Some(other) => other.map(Some).map_err(|error| at.explain(&error)),
        None => Err(at.unexpected("no answer to INFO")),
    }
}
