//! A connection over TLS, whose errors say what to do.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::ProtocolVersion;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::client::Tls;
use super::load;
use super::refusal::{Refusal, refusal};
use super::transport::{Transport, is_end};

/// The most that is read after a write has failed.
const LAST_WORDS: usize = 16 * 1024;

impl Tls {
    /// Opens TLS over a connection to `host`.
    ///
    /// Cancel safe: a dropped future closes the connection.
    ///
    /// # Errors
    /// The connection ends, or one side refuses the other; [`super::Refused`] has the reason.
    #[doc(hidden)]
    pub async fn connect<S>(&self, host: &str, io: S) -> io::Result<Stream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.current().await?;
        let name = self.options().server_name.as_deref().unwrap_or(host);
        let Some(name) = load::server_name(name) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, Refusal::NoName));
        };
        let peer = Peer { tls: self.clone(), name: name.to_str().into_owned() };
        match TlsConnector::from(config).connect(name, Transport::new(io)).into_fallible().await {
            Ok(stream) => Ok(Stream::new(stream, peer)),
            Err((error, io)) if io.has_heard() => Err(peer.explain_end(error)),
            Err((error, _)) if is_end(error.kind()) => Err(io::Error::new(error.kind(), Refusal::Closed)),
            Err((error, _)) => Err(peer.explain(error)),
        }
    }
}

/// A connection over TLS.
///
/// In TLS 1.3 the client has finished its part of the handshake before the server checks the client's certificate. So
/// the client reads the server's verdict later, as an error. A server that refuses a client also resets the
/// connection, so a write may fail before that is read. The caller gets the error of such a write only after the
/// client has read what the server sent before: its reason, if it gave one.
#[derive(Debug)]
pub struct Stream<S> {
    inner: TlsStream<Transport<S>>,
    peer: Peer,
    /// What was read after a write had failed, and not delivered yet.
    late: Vec<u8>,
    /// The error of a write, until its reason is read.
    failed: Option<io::Error>,
}

/// The server of a connection, for errors.
#[derive(Debug)]
struct Peer {
    tls: Tls,
    name: String,
}

impl Peer {
    /// The same error, in words that say what to do, if it is one of TLS.
    fn explain(&self, error: io::Error) -> io::Error {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(inner) => io::Error::new(error.kind(), Refusal::of(inner, self.tls.options(), &self.name)),
            None => error,
        }
    }

    /// As [`Peer::explain`], on a connection on which the server has not accepted this client yet: if it ends, that may
    /// be the reason.
    fn explain_end(&self, error: io::Error) -> io::Error {
        if !is_end(error.kind()) {
            return self.explain(error);
        }
        let shows_certificate = self.tls.options().cert_file.is_some();
        io::Error::new(error.kind(), Refusal::ended(&error, shows_certificate))
    }
}

impl<S> Stream<S> {
    fn new(mut inner: TlsStream<Transport<S>>, peer: Peer) -> Self {
        inner.get_mut().0.open();
        Self { inner, peer, late: Vec::new(), failed: None }
    }

    /// The same error, in words that say what to do.
    fn explain(&self, error: io::Error) -> io::Error {
        let (transport, session) = self.inner.get_ref();
        // Before TLS 1.3 the server accepts the client within the handshake. Later it has done so once it sends anything.
        if session.protocol_version() == Some(ProtocolVersion::TLSv1_3) && !transport.has_heard() {
            self.peer.explain_end(error)
        } else {
            self.peer.explain(error)
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// Writes, and looks for the reason of an error.
    fn poll_writing<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TlsStream<Transport<S>>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.failed.is_none() {
            match ready!(write(Pin::new(&mut self.inner), cx)) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(error) => self.failed = Some(error),
            }
        }
        let error = match self.poll_last_words(cx) {
            Poll::Ready(reason) => reason,
            // tokio may learn that the socket can be read after the write has failed. It then wakes this task. If the
            // connection is not over, there may be nothing to read for a long time.
            Poll::Pending if self.failed.as_ref().is_some_and(|error| is_end(error.kind())) => {
                return Poll::Pending;
            }
            Poll::Pending => None,
        };
        let failed = self.failed.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
        Poll::Ready(Err(error.unwrap_or_else(|| self.explain(failed))))
    }

    /// The refusal that the server sent before it ended the connection. Anything else that it sent is kept.
    fn poll_last_words(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Error>> {
        if !self.late.is_empty() {
            return Poll::Ready(None);
        }
        let mut bytes = vec![0; LAST_WORDS];
        let mut buf = ReadBuf::new(&mut bytes);
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buf));
        self.late = buf.filled().to_vec();
        let reason = read.err().map(|error| self.peer.explain(error));
        Poll::Ready(reason.filter(|error| refusal(error).is_some()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.late.is_empty() {
            let count = self.late.len().min(buf.remaining());
            buf.put_slice(&self.late[..count]);
            self.late.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        read.map_err(|error| self.explain(error))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, |inner, cx| inner.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, |inner, cx| inner.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_writing(cx, |inner, cx| inner.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
