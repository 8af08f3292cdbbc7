//! The socket that lapin reads.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_rs::traits::Reactor;
use futures_io::{AsyncRead, AsyncWrite};
use lapin::AsyncTcpStream;

/// The socket as it was opened, with or without TLS.
type Socket = AsyncTcpStream<<async_rs::Tokio as Reactor>::TcpStream>;

/// A connection to the broker, as lapin reads and writes it.
///
/// All that the broker sends passes through [`AsyncRead::poll_read`].
pub(crate) struct GuardedStream {
    socket: Socket,
}

impl GuardedStream {
    /// Guards a socket on which nothing has been read yet.
    pub(crate) const fn new(socket: Socket) -> Self {
        Self { socket }
    }
}

impl fmt::Debug for GuardedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedStream").finish_non_exhaustive()
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}
