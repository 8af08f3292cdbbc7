//! A connection over TLS, whose errors tell what to do.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::client::Peer;
use super::refusal::refusal;

/// The most that is read after a write has failed.
const LAST_WORDS: usize = 16 * 1024;

/// A connection over TLS.
///
/// In TLS 1.3 the client has done its part of the handshake before the server looks at the client's certificate: what
/// the server says about that is read later, as an error. A server that refuses a client also resets the connection, so
/// a write may fail before that is read: then it is looked for.
#[derive(Debug)]
pub struct Stream<S> {
    inner: TlsStream<S>,
    peer: Peer,
    /// What was read after a write had failed, and not delivered yet.
    late: Vec<u8>,
}

impl<S> Stream<S> {
    pub(super) const fn new(inner: TlsStream<S>, peer: Peer) -> Self {
        Self { inner, peer, late: Vec::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// The result of a write, with the reason why the server has ended the connection, if it gave one.
    fn explain_write<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        result.map_err(|error| self.last_words(cx).unwrap_or_else(|| self.peer.explain(error)))
    }

    /// The refusal that the server sent before it ended the connection. Anything else that it sent is kept.
    fn last_words(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        if !self.late.is_empty() {
            return None;
        }
        let mut bytes = vec![0; LAST_WORDS];
        let mut buf = ReadBuf::new(&mut bytes);
        match Pin::new(&mut self.inner).poll_read(cx, &mut buf) {
            Poll::Ready(Err(error)) => {
                Some(self.peer.explain(error)).filter(|error| refusal(error).is_some())
            }
            Poll::Ready(Ok(())) => {
                self.late = buf.filled().to_vec();
                None
            }
            Poll::Pending => None,
        }
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
        read.map_err(|error| self.peer.explain(error))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.explain_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.explain_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.explain_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
