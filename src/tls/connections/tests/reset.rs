//! Connections that a server resets when it refuses a client.

use std::net::TcpListener;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;

use super::*;

/// A connection whose writes fail after the first `good_writes`: the first one that fails has gone through nevertheless,
/// and what arrives can be read.
struct Resettable {
    inner: DuplexStream,
    good_writes: usize,
}

impl AsyncRead for Resettable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Resettable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        let Some(left) = self.good_writes.checked_sub(1) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        self.good_writes = left;
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Connects to a server that says hello to whom it accepts, over a connection on which `good_writes` writes succeed.
async fn resettable(server: TlsAcceptor, tls: &Tls, good_writes: usize) -> io::Result<Stream<Resettable>> {
    let (near, far) = duplex(64 * 1024);
    let serving = tokio::spawn(async move {
        if let Ok(mut stream) = server.accept(far).await {
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    let stream = tls.connect("localhost", Resettable { inner: near, good_writes }).await?;
    tokio::time::timeout(Duration::from_secs(60), serving).await.unwrap().unwrap();
    Ok(stream)
}

#[tokio::test]
async fn a_refusal_sends_alert_even_where_a_write_fails_before_it_is_read() {
    let folder = tempdir().unwrap();
    let ours = Authority::new("ours");
    let tls = Tls::load(trusting(folder.path(), &ours)).unwrap();
    let issued = ours.issue(&["localhost"]);
    // Each record is a write: the hello, and in TLS 1.3 a change of ciphers, the certificate and the end of the handshake.
    for (versions, good_writes) in [(BOTH, 4), (BOTH, 2), (OLD, 1)] {
        let result = match resettable(server(&issued, Some(&ours), versions), &tls, good_writes).await {
            Ok(mut stream) => stream.write_all(b"a request").await,
            Err(error) => Err(error),
        };
        let error = result.unwrap_err();
        assert!(error.to_string().contains("requires a client certificate"), "{error}");
    }

    // What an accepted client was sent is not lost, and its certificate is not at fault.
    let mut accepted = resettable(server(&issued, None, BOTH), &tls, 3).await.unwrap();
    let error = accepted.write_all(b"a request").await.unwrap_err();
    assert!(error.kind() == io::ErrorKind::ConnectionReset && refusal(&error).is_none(), "{error}");
    let mut answer = String::new();
    accepted.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "hello");
}

/// In TLS 1.2 the client is accepted by the end of the handshake: what ends later is no refusal.
#[tokio::test]
async fn an_end_after_the_handshake_of_an_accepted_client_is_no_refusal() {
    let folder = tempdir().unwrap();
    let ours = Authority::new("ours");
    let tls = Tls::load(trusting(folder.path(), &ours)).unwrap();
    let (near, far) = duplex(64 * 1024);
    let server = server(&ours.issue(&["localhost"]), None, OLD);
    let serving = tokio::spawn(async move { server.accept(far).await.map(drop) });
    let mut stream = tls.connect("localhost", near).await.unwrap();
    serving.await.unwrap().unwrap();
    let error = match stream.write_all(b"a request").await {
        Ok(()) => stream.read_u8().await.map(drop).unwrap_err(),
        Err(error) => error,
    };
    assert!(refusal(&error).is_none(), "{error}");
}

/// A server on a thread of its own that refuses its one client and resets the connection, after it has sent the alert or
/// without one.
struct Refusing {
    port: u16,
    thread: JoinHandle<()>,
}

impl Refusing {
    fn start(issued: &Issued, clients: &Authority, sends_alert: bool, versions: Versions) -> Self {
        let config = issued.server(Some(clients), versions);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut server = ServerConnection::new(config).unwrap();
            loop {
                while server.wants_write() {
                    server.write_tls(&mut socket).unwrap();
                }
                server.read_tls(&mut socket).unwrap();
                if server.process_new_packets().is_err() {
                    break;
                }
            }
            while sends_alert && server.wants_write() {
                server.write_tls(&mut socket).unwrap();
            }
            socket.set_nonblocking(true).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            let _entered = runtime.enter();
            TcpStream::from_std(socket).unwrap().set_zero_linger().unwrap();
        });
        Self { port, thread }
    }

    /// Connects, writes before or after the server has reset the connection, and reads until it learns the reason.
    async fn refuses(self, tls: &Tls, writes_first: bool) -> io::Error {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let mut stream = match tls.connect("localhost", socket).await {
            Ok(stream) => stream,
            Err(error) => {
                self.thread.join().unwrap();
                return error;
            }
        };
        if writes_first && let Err(error) = stream.write_all(b"a request").await {
            self.thread.join().unwrap();
            return error;
        }
        // This keeps the test's only thread, so that tokio has not seen what came when the write fails.
        self.thread.join().unwrap();
        if !writes_first {
            return stream.write_all(b"a request").await.unwrap_err();
        }
        stream.read_to_end(&mut Vec::new()).await.unwrap_err()
    }
}

type Versions = &'static [&'static SupportedProtocolVersion];

#[tokio::test]
async fn a_server_that_resets_the_connection_is_explained_with_an_alert_and_without_one() {
    let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let options = trusting(folder.path(), &ours);
    let plain = Tls::load(options.clone()).unwrap();
    let stranger = with_certificate(options, other.path(), &theirs.issue(&["paced"]));
    let stranger = Tls::load(stranger).unwrap();
    let issued = ours.issue(&["localhost"]);
    for (versions, writes_first) in [(BOTH, false), (BOTH, true), (OLD, false)] {
        for (tls, sends_alert, expected) in [
            (&plain, true, "the server requires a client certificate; set cert_file and key_file"),
            (&stranger, true, "does not trust the authority of the client certificate in cert_file"),
            (&plain, false, "perhaps it requires a client certificate (cert_file, key_file)"),
            (&stranger, false, "perhaps it does not accept the client certificate in cert_file"),
        ] {
            let refusing = Refusing::start(&issued, &ours, sends_alert, versions);
            let error = refusing.refuses(tls, writes_first).await;
            assert!(error.to_string().contains(expected), "{expected}: {error}");
            // Without an alert it may as well have failed while it worked on the request.
            assert_eq!(refusal(&error).unwrap().is_of_client(), sends_alert, "{error}");
        }
    }
}
