//! The HTTP server, which is bound when the daemon starts and stopped at its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::api::Peer;

/// The most connections at once: probes and scrapers are few, and further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// The time-out for the head of a request, and for the next request on the same connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest head, in bytes. The handlers bound the bodies.
const MAX_HEAD: usize = 16 * 1024;
/// The longest life of a connection, so that slow readers cannot keep it for ever.
const MAX_CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// The time-out for answers in progress when a connection is to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// The wait before the next attempt when no connection can be accepted, such as without file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The reason why the address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("admin.listen: cannot listen on {listen}: {error}; {hint}")]
pub(crate) struct BindError {
    listen: String,
    error: io::Error,
    hint: &'static str,
}

impl BindError {
    fn new(listen: &str, error: io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => "stop what listens there, or choose another port",
            io::ErrorKind::AddrNotAvailable => "use an address of this machine, such as 127.0.0.1",
            io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
            _ => "use HOST:PORT with an address of this machine, such as 127.0.0.1:9750",
        };
        Self { listen: listen.to_owned(), error, hint }
    }

    /// False if the address may be free at the next start.
    pub(crate) fn is_permanent(&self) -> bool {
        self.error.kind() != io::ErrorKind::AddrInUse
    }
}

/// Binds the address, before anything is started that would have to be stopped again.
///
/// Cancel safe.
pub(crate) async fn bind(listen: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(listen).await.map_err(|error| BindError::new(listen, error))
}

/// A running server.
pub(crate) struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves `pages` on `listener`. Must be called on a tokio runtime.
    pub(crate) fn start(listener: TcpListener, pages: Router) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, pages, stop.clone()));
        Ok(Self { address, stop, task })
    }

    /// The address that it listens on.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, and gives the answers in progress a second.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        // The task ends by itself, and the runtime reports a panic in it.
        let _ = self.task.await;
    }
}

async fn accept(listener: TcpListener, pages: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            // The semaphore is never closed, so there is no error.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, remote)) => {
                    // A connection that is closed already has no local address.
                    let local = stream.local_addr().unwrap_or(remote);
                    let pages = pages.clone().layer(Extension(Peer { remote, local }));
                    let serving = serve(stream, pages, stop.clone());
                    connections.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "admin: a connection could not be taken");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve(stream: TcpStream, pages: Router, stop: CancellationToken) {
    let service = TowerToHyperService::new(pages);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error of a connection concerns its client alone.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = timeout(MAX_CONNECTION_LIFE, stop.cancelled()) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(END_TIMEOUT, connection).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    const ASK: &[u8] = b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n";

    async fn started() -> Server {
        let big = || async { "x".repeat(64 << 20) };
        let pages = Router::new().route("/", get(|| async { "hello" })).route("/big", get(big));
        Server::start(bind("127.0.0.1:0").await.unwrap(), pages).unwrap()
    }

    /// Reads until the server closes the connection.
    async fn rest(stream: &mut TcpStream) -> Vec<u8> {
        let mut answer = Vec::new();
        // A reset also ends the connection.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_finish_asking_is_let_go() {
        let server = started().await;
        let start = Instant::now();
        let mut slow = TcpStream::connect(server.address()).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nhost").await.unwrap();
        assert!(!String::from_utf8_lossy(&rest(&mut slow).await).contains("200"));
        let took = start.elapsed();
        assert!(took >= HEAD_TIMEOUT && took < 2 * HEAD_TIMEOUT, "{took:?}");

        let mut long = TcpStream::connect(server.address()).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * MAX_HEAD));
        // The request may be refused before it is written.
        let _ = long.write_all(head.as_bytes()).await;
        assert!(!String::from_utf8_lossy(&rest(&mut long).await).contains("200"));
        server.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_let_go() {
        let server = started().await;
        let start = Instant::now();
        let mut deaf = TcpStream::connect(server.address()).await.unwrap();
        deaf.write_all(ASK).await.unwrap();
        tokio::time::sleep(MAX_CONNECTION_LIFE + 2 * END_TIMEOUT).await;
        assert!(rest(&mut deaf).await.len() < 64 << 20, "cut off");
        assert!(start.elapsed() < MAX_CONNECTION_LIFE + 3 * END_TIMEOUT);
        server.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_it_takes_wait_for_a_place() {
        let server = started().await;
        let mut open = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut first = [0; 15];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            open.push(stream);
        }
        let start = Instant::now();
        let mut waiting = TcpStream::connect(server.address()).await.unwrap();
        waiting.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let answer = rest(&mut waiting).await;
        assert!(String::from_utf8_lossy(&answer).ends_with("hello"));
        // Connections that send nothing more make room for others.
        let took = start.elapsed();
        assert!(took >= HEAD_TIMEOUT - Duration::from_secs(1) && took < 2 * HEAD_TIMEOUT, "{took:?}");
        server.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_in_a_second_whoever_is_connected() {
        let server = started().await;
        let address = server.address();
        let mut deaf = TcpStream::connect(address).await.unwrap();
        deaf.write_all(ASK).await.unwrap();
        let mut first = [0; 1];
        deaf.read_exact(&mut first).await.unwrap();
        let mut idle = TcpStream::connect(address).await.unwrap();
        let start = Instant::now();
        server.stop().await;
        assert!(start.elapsed() <= END_TIMEOUT + Duration::from_millis(10), "{:?}", start.elapsed());
        assert_eq!(rest(&mut idle).await, b"");
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_told_with_what_to_do() {
        let taken = bind("127.0.0.1:0").await.unwrap();
        let listen = taken.local_addr().unwrap().to_string();
        let error = bind(&listen).await.unwrap_err();
        assert!(!error.is_permanent());
        let text = error.to_string();
        assert!(text.contains(&listen) && text.contains("choose another port"), "{text}");
        // An address of TEST-NET-1, which nobody has.
        let error = bind("192.0.2.1:9750").await.unwrap_err();
        assert!(error.is_permanent());
        assert!(error.to_string().contains("an address of this machine"), "{error}");
    }
}
