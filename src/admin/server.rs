//! The HTTP server, which is bound when the daemon starts and stopped at its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use paced::text::cut;
use paced::tls::ServerTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::certificate;
use super::connections::{Connection, Connections, MAX_CONNECTIONS, Peer};
use super::routes::{MAX_SHOWN, REFUSALS};

/// The connections that may be open beyond [`MAX_CONNECTIONS`]: those that were evicted, until their tasks have
/// noticed. It bounds the descriptors.
const CLOSING: usize = 32;
/// The time-out for the handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time-out for the head of a request, and for the next request on the same connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest head, in bytes. The handlers bound the bodies.
const MAX_HEAD: usize = 16 * 1024;
/// The longest life of a connection, so that slow readers cannot keep it for ever.
const MAX_CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// How much longer a connection lives for a change that is in progress: its body, its work and its answer have time-outs
/// of their own, which are shorter together.
const MAX_CHANGE: Duration = Duration::from_secs(90);
/// How long a connection at its end waits for one more request.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The time-out for answers in progress when a connection is to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the end waits for changes that are in progress: longer than the store may take for one answer.
pub(crate) const CHANGES_TIMEOUT: Duration = Duration::from_secs(4);
/// The wait before the next attempt when no connection can be accepted, such as without file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The reason why the address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {listen}: {error}; {hint}")]
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
    /// The changes that are being made, which outlast their connections.
    changes: TaskTracker,
}

impl Server {
    /// Serves `pages` on `listener`, over TLS if there is one. Must be called on a tokio runtime.
    pub(crate) fn start(listener: TcpListener, pages: Router, tls: Option<ServerTls>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, Serving { pages, tls, stop: stop.clone() }));
        Ok(Self { address, stop, task, changes: TaskTracker::new() })
    }

    /// The same, whose end waits for these changes.
    pub(crate) fn waiting_for(self, changes: TaskTracker) -> Self {
        Self { changes, ..self }
    }

    /// The address that it listens on.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, and gives the answers in progress a second, and the changes in progress
    /// [`CHANGES_TIMEOUT`]: each leaves its line in the log.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        // The task ends by itself, and the runtime reports a panic in it.
        let _ = self.task.await;
        self.changes.close();
        if timeout(CHANGES_TIMEOUT, self.changes.wait()).await.is_err() {
            tracing::warn!(
                changes = self.changes.len(),
                "admin: changes have not ended in time; check whether they were made"
            );
        }
    }
}

/// The parts that serve all connections.
#[derive(Clone)]
struct Serving {
    pages: Router,
    tls: Option<ServerTls>,
    stop: CancellationToken,
}

/// Accepts every connection, at once; see [`super::connections`].
async fn accept(listener: TcpListener, serving: Serving) {
    let sockets = Arc::new(Semaphore::new(MAX_CONNECTIONS + CLOSING));
    let (connections, tasks) = (Connections::default(), TaskTracker::new());
    let accepting = async {
        loop {
            // The semaphore is never closed, so there is no error.
            let Ok(socket) = Arc::clone(&sockets).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, remote)) => {
                    let Some(connection) = connections.open(remote) else { continue };
                    let serving = serving.clone().serve(stream, connection);
                    tasks.spawn(async move {
                        serving.await;
                        drop(socket);
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "admin: a connection could not be taken");
                    // Where descriptors are short, a probe needs the one of an idle connection.
                    connections.close_one();
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    };
    serving.stop.run_until_cancelled(accepting).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

impl Serving {
    /// Serves a connection until it ends, is evicted, or has lived for long enough.
    async fn serve(self, stream: TcpStream, connection: Connection) {
        let closed = connection.closed.clone();
        let serving = async {
            let Some(tls) = &self.tls else { return self.answer(stream, &connection.peer).await };
            let handshake = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream));
            match self.stop.run_until_cancelled(handshake).await {
                Some(Ok(Ok(stream))) => {
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let peer = connection.peer.clone();
                    let peer = match shown.and_then(|certificate| certificate::name(certificate)) {
                        Some(name) => peer.with_certificate(&name),
                        None => peer,
                    };
                    self.answer(stream, &peer).await;
                }
                Some(Ok(Err(error))) => log_handshake(&connection.peer, &error),
                Some(Err(_)) | None => {}
            }
        };
        // The connection is forgotten after it has ended.
        closed.run_until_cancelled(serving).await;
    }

    /// Answers the requests on a connection.
    async fn answer<S>(&self, stream: S, peer: &Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let pages = TowerToHyperService::new(self.pages.clone());
        let ends = &AtomicBool::new(false);
        let service = service_fn(|mut request: Request<Incoming>| {
            let in_progress = peer.request();
            request.extensions_mut().insert(peer.clone());
            let answer = pages.call(request);
            async move {
                let mut answer = answer.await;
                if let (true, Ok(answer)) = (ends.load(Ordering::Relaxed), &mut answer) {
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                drop(in_progress);
                answer
            }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        // An error of a connection concerns its client alone.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = timeout(MAX_CONNECTION_LIFE, self.stop.cancelled()) => {}
        }
        // The client may be sending its next request just now. It gets an answer, which says that it is the last one.
        ends.store(true, Ordering::Relaxed);
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = timeout(LAST_REQUEST_TIMEOUT, self.stop.cancelled()) => {}
        }
        connection.as_mut().graceful_shutdown();
        if peer.has_change() {
            // The connection ends with the answer.
            tokio::select! {
                _ = connection.as_mut() => return,
                _ = timeout(MAX_CHANGE, self.stop.cancelled()) => {}
            }
        }
        let _ = timeout(END_TIMEOUT, connection).await;
    }
}

/// Logs that a client was refused, or has refused the server. Anybody can cause the line.
fn log_handshake(peer: &Peer, error: &io::Error) {
    // A client that only connects, as a probe of the port does, is no news.
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return;
    }
    let remote = peer.remote;
    REFUSALS.line("TLS handshake", || {
        let error = error.to_string();
        tracing::warn!(%remote, error = cut(&error, MAX_SHOWN), "admin: no TLS with this client");
    });
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;
    use crate::admin::connections::MAX_OF_ONE;

    const ASK: &[u8] = b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n";

    async fn started() -> Server {
        let big = || async { "x".repeat(64 << 20) };
        let pages = Router::new().route("/", get(|| async { "hello" })).route("/big", get(big));
        Server::start(bind("127.0.0.1:0").await.unwrap(), pages, None).unwrap()
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
    async fn who_goes_on_asking_loses_no_request_at_the_end_of_a_connection() {
        let server = started().await;
        let start = Instant::now();
        let mut client = TcpStream::connect(server.address()).await.unwrap();
        let mut answer = String::new();
        while !answer.contains("connection: close") {
            assert!(start.elapsed() < 2 * MAX_CONNECTION_LIFE, "it lives for ever");
            tokio::time::sleep(LAST_REQUEST_TIMEOUT / 3).await;
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            answer.clear();
            while !answer.ends_with("hello") {
                let mut some = [0; 512];
                let read = client.read(&mut some).await.unwrap();
                assert_ne!(read, 0, "closed without an answer after {:?}", start.elapsed());
                answer += std::str::from_utf8(&some[..read]).unwrap();
            }
        }
        assert!(start.elapsed() >= MAX_CONNECTION_LIFE);
        assert_eq!(rest(&mut client).await, b"");
        server.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_let_go() {
        let server = started().await;
        let start = Instant::now();
        let mut deaf = TcpStream::connect(server.address()).await.unwrap();
        deaf.write_all(ASK).await.unwrap();
        tokio::time::sleep(MAX_CONNECTION_LIFE + LAST_REQUEST_TIMEOUT + END_TIMEOUT).await;
        assert!(rest(&mut deaf).await.len() < 64 << 20, "cut off");
        assert!(start.elapsed() < MAX_CONNECTION_LIFE + 3 * END_TIMEOUT);
        server.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_when_all_places_are_taken_gets_that_of_an_idle_one() {
        let server = started().await;
        let start = Instant::now();
        let mut open = Vec::new();
        for _ in 0..2 * MAX_OF_ONE {
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut first = [0; 15];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            open.push(stream);
        }
        let mut last = open.pop().unwrap();
        // The first were closed, after their answers; the last is still served.
        assert!(rest(&mut open[0]).await.ends_with(b"hello"));
        let _ = last.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(rest(&mut last).await.ends_with(b"hello"));
        assert!(start.elapsed() < HEAD_TIMEOUT, "{:?}", start.elapsed());
        server.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_in_a_second_with_any_client() {
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
    async fn the_error_of_a_taken_address_says_what_to_do() {
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
