//! One connection to the broker, with time-outs for opening and using it.

use std::future::Future;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, ErrorKind};
use tokio::time::Instant;

use super::address::Address;
use super::error::{Error, soft};
use super::guard::{self, Admit, FrameMax, GuardedStream};
use super::{nodes, socket};
use crate::lock::lock;

/// The time-out for connecting: TCP, TLS and the AMQP handshake.
pub(super) const CONNECT: Duration = Duration::from_secs(10);

/// The time-out for one call to the broker.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// The time, in ms, after which a peer that does not acknowledge bytes counts as gone.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MS: u32 = 20_000;

/// A connection or consumer that lasted this long is replaced without a wait.
pub(super) const STABLE: Duration = Duration::from_secs(10);

/// The state of a connection attempt, with what is needed to close a socket that lapin owns.
#[derive(Debug, Default)]
enum Attempt {
    /// There is no socket yet.
    #[default]
    Dialling,
    Held(TcpStream),
    /// The attempt was given up.
    Abandoned,
}

/// Connects once, to the first node and address that answers. `admit`, if there is one, decides which bodies of
/// deliveries are accepted.
///
/// Cancel safe: a dropped future closes what it opened.
pub(super) async fn connect(
    address: &Address,
    purpose: &str,
    admit: Option<Arc<dyn Admit>>,
) -> Result<Connection, Error> {
    let address = address.with_fresh_login().await;
    let by = Instant::now() + CONNECT;
    let mut attempts = Vec::new();
    for host in nodes::hosts(&address) {
        attempts.push(connect_to_host(host, purpose, admit.clone(), by).boxed());
    }
    nodes::first(attempts, Error::is_unauthorized, by).await.unwrap_or_else(|| Err(unanswered(&address)))
}

/// Connects to the first address of a host that answers, until this instant.
async fn connect_to_host(
    host: Address,
    purpose: &str,
    admit: Option<Arc<dyn Admit>>,
    by: Instant,
) -> Result<Connection, Error> {
    let found = nodes::resolve(&host).await;
    let found =
        found.map_err(|error| Error::Unreachable { address: host.to_string(), detail: error.to_string() })?;
    let mut attempts = Vec::new();
    for at in found {
        attempts.push(connect_to(&host, at, purpose, admit.clone()).boxed());
    }
    nodes::first(attempts, Error::is_unauthorized, by).await.unwrap_or_else(|| Err(unanswered(&host)))
}

fn unanswered(address: &Address) -> Error {
    Error::Unreachable { address: address.to_string(), detail: "no answer in time".to_owned() }
}

/// Connects to one address of a host.
async fn connect_to(
    address: &Address,
    at: SocketAddr,
    purpose: &str,
    admit: Option<Arc<dyn Admit>>,
) -> Result<Connection, Error> {
    let name = format!("paced {} {purpose}", env!("CARGO_PKG_VERSION"));
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    if guard::IS_OFF {
        tracing::error!("built for a benchmark: one malformed message can end this process");
    }
    // The sockets are opened on this runtime, although lapin has a thread of its own. lapin receives them guarded.
    let runtime = async_rs::Runtime::tokio_current();
    let guard = CutUnlessTaken::default();
    let attempt = Arc::clone(&guard.0);
    let frame_max = FrameMax::default();
    let guards = frame_max.clone();
    let broker = address.clone();
    let connecting = Connection::connector(
        address.uri(),
        guard::runtime(),
        async move |_, _| {
            let dialled = tokio::time::timeout(CONNECT, socket::dial(at, &runtime)).await;
            let socket = dialled.map_err(std::io::Error::from)??;
            hold(&attempt, socket.get_ref())?;
            // The plain socket is known by now, so that it can be closed while it belongs to lapin's thread.
            let stream = GuardedStream::new(socket::wrap(&broker, socket).await?, guards.clone());
            Ok(AsyncTcpStream::Plain(stream.admitting(admit.clone())))
        },
        properties,
    );
    match tokio::time::timeout(CONNECT, connecting).await {
        Ok(Ok(connection)) => {
            guard.take();
            let agreed = connection.configuration().frame_max();
            frame_max.set(agreed);
            address.agreed_on_frames(agreed);
            Ok(connection)
        }
        Ok(Err(error)) => Err(Error::connecting(address.to_string(), &error)),
        Err(_) => Err(unanswered(address)),
    }
}

/// Keeps what is needed to close the socket, unless the attempt was given up.
fn hold(attempt: &Mutex<Attempt>, socket: &impl AsFd) -> std::io::Result<()> {
    let socket = socket.as_fd().try_clone_to_owned()?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS).map_err(std::io::Error::from)?;
    let mut attempt = lock(attempt);
    if matches!(*attempt, Attempt::Abandoned) {
        return Err(std::io::ErrorKind::TimedOut.into());
    }
    *attempt = Attempt::Held(socket.into());
    Ok(())
}

/// Closes the socket of a handshake that is given up: lapin's thread would wait for its peer for ever.
#[derive(Default)]
struct CutUnlessTaken(Arc<Mutex<Attempt>>);

impl CutUnlessTaken {
    fn take(self) {
        *lock(&self.0) = Attempt::Dialling;
    }
}

impl Drop for CutUnlessTaken {
    fn drop(&mut self) {
        let mut attempt = lock(&self.0);
        if let Attempt::Held(socket) = std::mem::replace(&mut *attempt, Attempt::Abandoned) {
            // The socket may be closed already, which is no problem.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Waits for the broker's answer, for [`ANSWER`] at most.
pub(super) async fn ask<T>(
    what: &str,
    answer: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(answer) => answer.map_err(|error| Error::of(what, &error)),
        Err(_) => Err(Error::TimedOut { what: what.to_owned(), after: ANSWER }),
    }
}

/// Opens a channel.
///
/// lapin keeps the error with which the broker closed a channel, and answers with it when the number of that channel
/// is used again: as soon as a connection has had as many channels as it may have at a time (2 047 by default). A
/// broker that cannot open a channel closes the connection. So an error of a channel means that its number is spent,
/// and the next one is tried. A connection of which all numbers are spent is closed, for another one to take its
/// place.
pub(super) async fn channel(connection: &Connection) -> Result<Channel, Error> {
    let open = async {
        loop {
            match connection.create_channel().await {
                // Each attempt takes a number, so that this ends.
                Err(error) if soft(&error).is_some() => {}
                Err(error) if matches!(error.kind(), ErrorKind::ChannelsLimitReached) => {
                    let _ = connection.close(200, "no channel is left".into()).await;
                    return Err(error);
                }
                answer => return answer,
            }
        }
    };
    ask("opening a channel", open).await
}

/// Opens a channel whose publishes are confirmed.
pub(super) async fn confirming(connection: &Connection) -> Result<Channel, Error> {
    let channel = channel(connection).await?;
    ask("turning on confirms", channel.confirm_select(lapin::options::ConfirmSelectOptions::default()))
        .await?;
    Ok(channel)
}

/// Closes a channel, which may be closed already; its unacked messages return to their queue.
pub(super) async fn close(channel: &Channel) {
    let _ = tokio::time::timeout(ANSWER, closed(channel)).await;
}

/// Closes a channel as [`close`] does, without a time-out: it returns when the broker has answered, or when the
/// connection is lost.
pub(super) async fn closed(channel: &Channel) {
    if channel.status().connected() {
        // An error means that the channel is closed already.
        let _ = channel.close(200, "OK".into()).await;
    }
}

/// Closes its channel when dropped, unless the channel was put to use.
///
/// lapin keeps a channel open for as long as it has a consumer, and registers a consumer even if the call for it was
/// given up. The broker would deliver jobs to it that nobody takes.
pub(super) struct CloseUnlessUsed(Option<Channel>);

impl CloseUnlessUsed {
    pub(super) const fn new(channel: Channel) -> Self {
        Self(Some(channel))
    }

    /// Releases the channel: from now on the caller closes it.
    pub(super) fn used(mut self) {
        self.0 = None;
    }
}

impl Drop for CloseUnlessUsed {
    fn drop(&mut self) {
        if let Some(channel) = self.0.take().filter(|channel| channel.status().connected()) {
            // The first poll queues the frame, after the call that was not answered.
            let _ = channel.close(200, "OK".into()).now_or_never();
        }
    }
}

/// Waits that grow from 100 ms to 5 s, each shortened at random by up to half.
#[derive(Debug, Default)]
pub(super) struct Backoff(u32);

impl Backoff {
    const MIN: u64 = 100;
    const MAX: u64 = 5_000;

    pub(super) fn next(&mut self) -> Duration {
        let full = (Self::MIN << self.0.min(10)).min(Self::MAX);
        self.0 = self.0.saturating_add(1);
        Duration::from_millis(fastrand::u64(full / 2..=full))
    }

    pub(super) const fn reset(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_five_seconds_and_differ() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        assert!((50..=100).contains(&first.as_millis()), "{first:?}");
        let late: Vec<_> = (0..50).map(|_| backoff.next()).skip(10).collect();
        assert!(late.iter().all(|wait| (2_500..=5_000).contains(&wait.as_millis())), "{late:?}");
        assert!(late.iter().any(|wait| *wait != late[0]));
        backoff.reset();
        assert!(backoff.next().as_millis() <= 100);
    }
}
