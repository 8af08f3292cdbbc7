//! New connections: time-outs for opening one, and hedged requests to several servers that know the same answer.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, RedisError, Value};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::address::Address;
use super::errors::ServerAddress;
use super::url::Deployment;
use crate::files::{FreshSecret, ReadSecret};
use crate::home::Home;
use crate::store::StoreError;
use crate::tls::{Stream, Tls};

/// How long one of several servers may be silent before the next one is asked as well.
const HEDGE_DELAY: Duration = Duration::from_millis(100);

/// Opens connections.
#[derive(Clone)]
pub(super) struct Dialer {
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    tls: Tls,
    /// The runtime of the connections.
    home: Home,
    reopened: watch::Sender<()>,
    /// The URL as it is now, where it is read again.
    url: Option<Arc<FreshSecret>>,
    /// Whether it connects to sentinels, which may have a login of their own.
    to_sentinels: bool,
}

/// An open connection.
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    /// The task that reads and writes it, unless the redis crate has started it; it is aborted when this is dropped,
    /// and the connection is of no more use then.
    pub(super) driver: JoinSet<()>,
}

impl Dialer {
    pub(super) fn new((connect, response): (Duration, Duration), tls: Tls, home: Home) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect))
            .set_response_timeout(Some(response));
        let reopened = watch::Sender::new(());
        Self { config, connect_timeout: connect, tls, home, reopened, url: None, to_sentinels: false }
    }

    /// The same, with the login of the URL, now this one, as it is whenever a connection is opened.
    pub(super) fn reading_login_again(mut self, url: &str, read: ReadSecret) -> Self {
        self.url = Some(Arc::new(FreshSecret::new("store.url", url.to_owned(), read)));
        self
    }

    /// The same, for connections to sentinels.
    pub(super) fn to_sentinels(&self) -> Self {
        Self { to_sentinels: true, ..self.clone() }
    }

    /// The server with the user and the password as they are now.
    async fn with_fresh_login(&self, info: &ConnectionInfo) -> ConnectionInfo {
        let Some(url) = &self.url else { return info.clone() };
        // What is left of the time-out is for the connection.
        let url = url.current(self.connect_timeout / 4).await;
        // A text that is no URL was refused when it was read.
        let Ok(deployment) = Deployment::parse(&url) else { return info.clone() };
        match deployment.login(self.to_sentinels) {
            Some(login) => info.clone().set_redis_settings(login.clone().set_db(info.redis_settings().db())),
            None => info.clone(),
        }
    }

    /// Reports that a connection for calls was opened, the first one or one that replaces a broken one.
    pub(super) fn notify_reopened(&self) {
        self.reopened.send_replace(());
    }

    /// Subscribes to openings of such connections.
    pub(super) fn reopened(&self) -> watch::Receiver<()> {
        self.reopened.subscribe()
    }

    /// The time-out for connecting, which includes name resolution, TLS and authentication.
    pub(super) const fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// The runtime of the connections.
    pub(super) const fn home(&self) -> &Home {
        &self.home
    }

    pub(super) async fn open(&self, info: &ConnectionInfo) -> Result<Opened, RedisError> {
        let info = self.with_fresh_login(info).await;
        let mut driver = JoinSet::new();
        let connection = match self.open_tls(&info).await? {
            None => Client::open(info)?.get_multiplexed_async_connection_with_config(&self.config).await?,
            Some(stream) => {
                let (login, config) = (info.redis_settings(), self.config.clone());
                let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
                let (connection, drive) = opened?;
                driver.spawn(drive);
                connection
            }
        };
        Ok(Opened { connection, driver })
    }

    /// Opens a connection over TLS, which the redis crate knows too little of: it has no name of the server besides its
    /// host, and reads the system's authorities for each connection. `None` where the server is to be reached without.
    async fn open_tls(&self, info: &ConnectionInfo) -> Result<Option<Stream<TcpStream>>, RedisError> {
        let ConnectionAddr::TcpTls { host, port, .. } = info.addr() else { return Ok(None) };
        let addresses: Vec<_> = lookup_host((host.as_str(), *port)).await?.collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address").into());
        }
        let dialled = addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)));
        let (stream, _) = select_ok(dialled).await?;
        stream.set_nodelay(true)?;
        Ok(Some(self.tls.connect(host, stream).await?))
    }

    /// Sends one command on a new connection, within the time-out for connecting.
    pub(super) async fn ask(self, info: ConnectionInfo, question: Cmd) -> Result<Value, RedisError> {
        let answer = async {
            let mut opened = self.open(&info).await?;
            question.query_async(&mut opened.connection).await
        };
        timeout(self.connect_timeout, answer).await.unwrap_or_else(|_| Err(too_late()))
    }

    /// Opens a connection that subscribes to the channel.
    pub(super) async fn listen(self, info: ConnectionInfo, channel: String) -> Result<PubSub, StoreError> {
        let opened = async {
            let info = self.with_fresh_login(&info).await;
            let mut subscriber = match self.open_tls(&info).await? {
                None => Client::open(info)?.get_async_pubsub().await?,
                Some(stream) => PubSub::new(info.redis_settings(), stream).await?,
            };
            subscriber.subscribe(channel).await.map(|()| subscriber)
        };
        let opened = timeout(self.connect_timeout, opened).await.unwrap_or_else(|_| Err(too_late()));
        opened.map_err(|error| ServerAddress(Address::of(&info).to_string()).explain(&error))
    }
}

fn too_late() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "connecting timed out").into()
}

/// The first successful answer of several servers, or the error of each. The next server is asked when all earlier ones
/// have failed, or the last one has been silent for a while. So a server that is cut off costs no more time than that.
pub(super) async fn first<T: Send + 'static>(
    asked: Vec<impl Future<Output = Result<T, StoreError>> + Send + 'static>,
) -> Result<T, Vec<StoreError>> {
    let mut left = asked.into_iter();
    let (mut waiting, mut errors) = (JoinSet::new(), vec![]);
    loop {
        let is_last = match left.next() {
            Some(next) => {
                waiting.spawn(next);
                false
            }
            None if waiting.is_empty() => return Err(errors),
            None => true,
        };
        let delay = if is_last { Duration::MAX } else { HEDGE_DELAY };
        match timeout(delay, waiting.join_next()).await {
            Ok(Some(Ok(Ok(answer)))) => return Ok(answer),
            Ok(Some(Ok(Err(error)))) => errors.push(error),
            // The server is silent, or its task panicked: the next one is asked.
            Ok(Some(Err(_)) | None) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    async fn answers(name: &'static str, after: u64, good: bool) -> Result<&'static str, StoreError> {
        sleep(Duration::from_millis(after)).await;
        if good { Ok(name) } else { Err(StoreError::Invalid(name.to_owned())) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_delays_the_next_one_a_little_and_a_failed_one_not_at_all() {
        for (asked, expected, within) in [
            (vec![answers("a", 10, true), answers("b", 0, true), answers("c", 0, true)], "a", 10),
            (vec![answers("a", 10, false), answers("b", 20, true), answers("c", 0, true)], "b", 30),
            (vec![answers("a", 400, true), answers("b", 20, true), answers("c", 0, true)], "b", 120),
            (vec![answers("a", 400, true), answers("b", 500, true), answers("c", 10, true)], "c", 210),
            // A slow server is not given up.
            (vec![answers("a", 400, true), answers("b", 0, false), answers("c", 0, false)], "a", 400),
        ] {
            let start = Instant::now();
            assert_eq!(first(asked).await.unwrap(), expected);
            assert_eq!(start.elapsed(), Duration::from_millis(within), "{expected}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_errors_are_reported() {
        let asked = vec![answers("a", 400, false), answers("b", 0, false)];
        let errors = first(asked).await.unwrap_err();
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), ["b", "a"]);
        let none: Vec<std::future::Ready<Result<(), StoreError>>> = vec![];
        assert!(first(none).await.unwrap_err().is_empty());
    }
}
