//! The connection: the only place that knows how the redis crate connects, waits and fails.
//!
//! The crate's own `ConnectionManager` keeps a connection whose answers time out (a half-open one,
//! say) and answers the first call after a failed reconnect with the old failure. Here any error
//! drops the connection, and the next call opens a new one.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo as _, RedisError,
    ServerErrorKind,
};
use tokio::sync::{Mutex, watch};

use super::scripts::{Call, sources};
use crate::store::StoreError;
use crate::time::Micros;

const WRONG_PASSWORD: &str = "the user or the password is wrong; correct them in its URL";

/// One server, through at most one connection.
pub(super) struct Link {
    client: Client,
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    address: String,
    current: Mutex<Current>,
    /// How often connecting failed: who waited for an attempt shares its failure.
    failures: AtomicU64,
    /// Tells whenever a connection was opened.
    reopened: watch::Sender<()>,
    warned: Once,
}

#[derive(Default)]
struct Current {
    peer: Option<Peer>,
    opened: u64,
    failure: Option<StoreError>,
}

/// An open connection, and which server process it leads to.
#[derive(Clone)]
pub(super) struct Peer {
    connection: MultiplexedConnection,
    run: i64,
    /// Which of the link's connections it is.
    number: u64,
}

impl Peer {
    /// The server's process: as much of its run_id as a double holds; 0 where INFO is not permitted.
    pub(super) const fn run(&self) -> i64 {
        self.run
    }
}

impl Link {
    /// # Errors
    /// [`StoreError::Invalid`] when the URL is wrong; the text does not repeat it.
    pub(super) fn open(url: &str, connect: Duration, response: Duration) -> Result<Self, StoreError> {
        let invalid = |text: &str| Err(StoreError::Invalid(text.to_owned()));
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("redis") => {}
            Some("rediss") => install_tls(),
            Some("redis+cluster" | "redis+sentinel") => {
                return invalid(
                    "a store on Redis Cluster or Sentinel is not supported yet; use redis:// or rediss://",
                );
            }
            _ => {
                return invalid(
                    "the store's URL has another scheme; use redis://HOST:PORT or rediss://HOST:PORT",
                );
            }
        }
        let connection = url.into_connection_info().map(|info| {
            // Each call waits for its answer: held back for more to send, it would come late.
            let tcp = info.tcp_settings().clone().set_nodelay(true);
            info.set_tcp_settings(tcp)
        });
        let Ok(client) = connection.and_then(Client::open) else {
            return invalid("the store's URL is malformed; write redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]");
        };
        let address = client.get_connection_info().addr().to_string();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect))
            .set_response_timeout(Some(response));
        Ok(Self {
            client,
            config,
            connect_timeout: connect,
            address,
            current: Mutex::default(),
            failures: AtomicU64::new(0),
            reopened: watch::Sender::new(()),
            warned: Once::new(),
        })
    }

    /// Host and port, without credentials.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The connection, opened if there is none.
    pub(super) async fn peer(&self) -> Result<Peer, StoreError> {
        let failures = self.failures.load(Ordering::Acquire);
        let mut current = self.current.lock().await;
        if let Some(peer) = &current.peer {
            return Ok(peer.clone());
        }
        if failures != self.failures.load(Ordering::Acquire)
            && let Some(failure) = &current.failure
        {
            // Somebody has just tried; a queue of attempts would keep the last caller for long.
            return Err(failure.clone());
        }
        current.opened += 1;
        let attempt = tokio::time::timeout(self.connect_timeout, self.connect(current.opened)).await;
        let attempt = attempt.unwrap_or_else(|_| Err(self.unreachable("connecting timed out")));
        match attempt {
            Ok(peer) => {
                current.failure = None;
                self.reopened.send_replace(());
                Ok(current.peer.insert(peer).clone())
            }
            Err(error) => {
                current.failure = Some(error.clone());
                self.failures.fetch_add(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    /// Tells from now on when another connection was opened, since the last one broke.
    pub(super) fn reopened(&self) -> watch::Receiver<()> {
        self.reopened.subscribe()
    }

    /// How long opening a connection may take.
    pub(super) const fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// A connection to subscribe with.
    pub(super) async fn subscriber(&self) -> Result<PubSub, StoreError> {
        let opened = tokio::time::timeout(self.connect_timeout, self.client.get_async_pubsub()).await;
        let opened = opened.map_err(|_| self.unreachable("connecting timed out"))?;
        opened.map_err(|error| self.explain(&error))
    }

    /// Asks several things that change nothing.
    pub(super) async fn read<T: FromRedisValue>(&self, asked: &redis::Pipeline) -> Result<T, StoreError> {
        let peer = self.peer().await?;
        let result = asked.query_async(&mut peer.connection.clone()).await;
        self.settle(&peer, result).await
    }

    /// Runs a script once; it is loaded if the server does not know it (then it has not run).
    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        peer: &Peer,
        call: &Call<'_>,
    ) -> Result<T, StoreError> {
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
        self.settle(peer, result).await
    }

    /// The server's clock.
    pub(super) async fn time(&self) -> Result<Micros, StoreError> {
        let peer = self.peer().await?;
        let result = redis::cmd("TIME").query_async(&mut peer.connection.clone()).await;
        let (seconds, micros): (i64, i64) = self.settle(&peer, result).await?;
        Ok(Micros(seconds * 1_000_000 + micros))
    }

    /// An answer that is not what it should be.
    pub(super) fn unexpected(&self, detail: impl Into<String>) -> StoreError {
        self.refused(format!("{}; is it Redis 6.2 or later, not a replica?", detail.into()))
    }

    /// An answer of which it is known what to do.
    fn refused(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unexpected { address: self.address.clone(), detail: detail.into() }
    }

    pub(super) fn unreachable(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unreachable { address: self.address.clone(), detail: detail.into() }
    }

    /// Drops the connection on any error: a new one may find a new primary, or a live server.
    async fn settle<T>(&self, peer: &Peer, result: Result<T, RedisError>) -> Result<T, StoreError> {
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let mut current = self.current.lock().await;
        if current.peer.as_ref().is_some_and(|open| open.number == peer.number) {
            current.peer = None;
        }
        Err(self.explain(&error))
    }

    async fn connect(&self, number: u64) -> Result<Peer, StoreError> {
        let connecting = self.client.get_multiplexed_async_connection_with_config(&self.config);
        let mut connection = connecting.await.map_err(|error| self.explain(&error))?;
        // All in one round trip: a far server's must fit into the time for connecting.
        let mut opening = redis::pipe();
        opening.cmd("INFO").arg("server").cmd("INFO").arg("memory");
        for source in sources() {
            opening.cmd("SCRIPT").arg("LOAD").arg(source);
        }
        let answers = opening.ignore_errors().query_async(&mut connection).await;
        let answers: Vec<Result<String, RedisError>> = answers.map_err(|error| self.explain(&error))?;
        let mut answers = answers.into_iter();
        let server = self.info(answers.next())?;
        let memory = self.info(answers.next())?;
        self.judge(&server, &memory)?;
        for loaded in answers {
            loaded.map_err(|error| self.explain(&error))?;
        }
        Ok(Peer { connection, run: run(field(&server, "run_id")), number })
    }

    /// A section of INFO; empty where it is not permitted.
    fn info(&self, answer: Option<Result<String, RedisError>>) -> Result<String, StoreError> {
        match answer {
            Some(Err(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                Ok(String::new())
            }
            Some(other) => other.map_err(|error| self.explain(&error)),
            None => Err(self.unexpected("no answer to INFO")),
        }
    }

    /// Is the server fit? One that evicts states silently forgets their pace: that is warned of.
    fn judge(&self, server: &str, memory: &str) -> Result<(), StoreError> {
        let version = field(server, "redis_version");
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        if !version.is_empty() && (parts.next(), parts.next()) < (Some(6), Some(2)) {
            return Err(self.refused(format!("version {version}; use Redis 6.2 or later")));
        }
        let policy = field(memory, "maxmemory_policy");
        if policy.starts_with("volatile-") || policy.starts_with("allkeys-") {
            self.warned.call_once(|| {
                tracing::warn!(
                    store = %self.address, policy,
                    "the store may evict the state of limits, which resets their pace; set maxmemory-policy noeviction"
                );
            });
        }
        Ok(())
    }

    pub(super) fn explain(&self, error: &RedisError) -> StoreError {
        match error.kind() {
            ErrorKind::Io => self.unreachable(error.to_string()),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain,
            ) => self.unreachable(error.to_string()),
            ErrorKind::AuthenticationFailed => self.refused(WRONG_PASSWORD),
            _ if error.code() == Some("WRONGPASS") => self.refused(WRONG_PASSWORD),
            _ if error.code() == Some("NOAUTH") => {
                self.refused("it wants a password; put one into its URL, redis://[USER]:PASSWORD@HOST")
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                self.refused(format!("{error}; grant the user what paced needs"))
            }
            _ => self.unexpected(error.to_string()),
        }
    }
}

/// The value of a line `name:value` of INFO.
fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| *key == name).map_or("", |(_, value)| value.trim())
}

/// The first 52 bits of a run_id, as `reserve.lua` has them; 0 for none.
fn run(id: &str) -> i64 {
    id.get(..13).and_then(|digits| i64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// rustls panics without a process-wide provider; one that is installed already is kept.
fn install_tls() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails only if another thread was faster, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_are_none_are_refused_without_repeating_them() {
        let half = Duration::from_millis(500);
        for (url, hint) in [
            ("redis+cluster://:hunter2@a", "not supported yet"),
            ("redis+sentinel://:hunter2@a", "not supported yet"),
            ("http://:hunter2@a", "scheme"),
            ("hunter2", "scheme"),
            ("redis://:hunter2@a:port", "malformed"),
            ("redis://:hunter2@a/db", "malformed"),
        ] {
            let Err(StoreError::Invalid(text)) = Link::open(url, half, half) else {
                panic!("{url} is accepted")
            };
            assert!(text.contains(hint) && !text.contains("hunter2"), "{text}");
        }
        let link = Link::open("rediss://:hunter2@store.example:6380/1", half, half).unwrap();
        assert_eq!(link.address(), "store.example:6380");
        assert!(link.client.get_connection_info().tcp_settings().nodelay());
    }

    #[test]
    fn what_a_server_refuses_is_told_with_what_to_do() {
        let half = Duration::from_millis(500);
        let link = Link::open("redis://u:hunter2@store.example", half, half).unwrap();
        for (answer, hint) in [
            ("-NOAUTH Authentication required.\r\n", "put one into its URL"),
            ("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "correct them in its URL"),
            ("-NOPERM this user has no permissions to run the 'evalsha' command\r\n", "grant the user"),
            ("-ERR unknown command\r\n", "is it Redis 6.2 or later"),
        ] {
            let value = redis::parse_redis_value(answer.as_bytes()).unwrap();
            let text = link.explain(&value.extract_error().unwrap_err()).to_string();
            assert!(text.contains(hint) && !text.contains("hunter2"), "{text}");
            let version = text.contains("Redis 6.2");
            assert_eq!(version, answer.starts_with("-ERR"), "{text}");
        }
        let old = link.judge("redis_version:5.0.1\r\n", "").unwrap_err().to_string();
        assert!(old.contains("version 5.0.1; use Redis 6.2 or later"), "{old}");
    }

    #[test]
    fn fields_of_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:fffffffffffff01\r\n";
        assert_eq!((field(info, "redis_version"), field(info, "maxmemory_policy")), ("7.0.15", ""));
        assert_eq!((run(field(info, "run_id")), run("")), ((1 << 52) - 1, 0));
    }
}
