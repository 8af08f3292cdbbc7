//! The connection beneath TLS, whose handshake reads what the server sent before it closed the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether an error means that the connection is over.
pub(super) const fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(kind, Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof)
}

/// A connection beneath TLS.
///
/// A server that refuses a client sends an alert and closes the connection, which is reset if the client is still
/// sending. A write that fails for this reason does not end the handshake, since the alert may not be read yet. The
/// write counts as done, and the next read returns the alert, or else the error of the write.
#[derive(Debug)]
pub(super) struct Transport<S> {
    inner: S,
    /// Whether the handshake is over: then errors of writes are returned at once.
    is_open: bool,
    /// The error of the first write that failed in the handshake, until a read has returned it.
    failed: Option<io::Error>,
    /// Whether anything was received, in the handshake or, once that is over, since then.
    has_heard: bool,
}

impl<S> Transport<S> {
    pub(super) const fn new(inner: S) -> Self {
        Self { inner, is_open: false, failed: None, has_heard: false }
    }

    /// Ends the handshake.
    pub(super) const fn open(&mut self) {
        self.is_open = true;
        self.has_heard = false;
    }

    /// Whether anything was received, in the handshake or, once that is over, since then.
    pub(super) const fn has_heard(&self) -> bool {
        self.has_heard
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Transport<S> {
    /// Writes; in the handshake the end of the connection counts as `done`.
    fn poll_writing<T>(
        &mut self,
        done: T,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Some(error) = self.failed.take() {
            if self.is_open {
                return Poll::Ready(Err(error));
            }
            self.failed = Some(error);
            return Poll::Ready(Ok(done));
        }
        match ready!(write(Pin::new(&mut self.inner))) {
            Err(error) if !self.is_open && is_end(error.kind()) => {
                self.failed = Some(error);
                Poll::Ready(Ok(done))
            }
            written => Poll::Ready(written),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Transport<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buf));
        let has_read = buf.filled().len() > before;
        self.has_heard |= has_read;
        match self.failed.take() {
            Some(error) if !has_read && buf.remaining() > 0 => Poll::Ready(Err(error)),
            failed => {
                self.failed = failed;
                Poll::Ready(read)
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Transport<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_writing(buf.len(), |inner| inner.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = bufs.iter().map(|buf| buf.len()).sum();
        self.poll_writing(all, |inner| inner.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_writing((), |inner| inner.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
