//! The socket that lapin reads.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};

use super::bodies::Admit;
use super::filter::Filter;

/// A socket as it was opened, with or without TLS.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// How many held bytes are copied to the beginning of the reader's buffer. More stay in their own buffer, so that they
/// are not moved again for every segment that arrives.
const MOVED: usize = 4 * 1024;

/// The least room in the reader's buffer that is worth a read.
const ROOM: usize = 1024;

/// How much is read at once into the guard's own buffer.
const ASIDE: usize = 4 * 1024;

/// True in the build that `make bench` compares with: `PACED_BENCH_UNGUARDED` was set when this was compiled.
pub(crate) const IS_OFF: bool = option_env!("PACED_BENCH_UNGUARDED").is_some();

/// After this many reads that leave no bytes for lapin, the reader yields, so that lapin may write a heartbeat.
const READS: usize = 32;

/// The longest length of a frame on one connection, as negotiated. It is cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameMax(Arc<AtomicU32>);

impl FrameMax {
    /// RabbitMQ's default, which holds until another length is negotiated. No content comes before that.
    const DEFAULT: usize = 128 * 1024;

    /// A content header that is longer is cut even where the broker allows it, since it is held in memory.
    const MOST: usize = 1024 * 1024;

    /// Sets the negotiated length; it must be called before anything is consumed.
    pub(crate) fn set(&self, negotiated: u32) {
        self.0.store(negotiated, Ordering::Release);
    }

    fn get(&self) -> usize {
        match self.0.load(Ordering::Acquire) {
            0 => Self::DEFAULT,
            negotiated => usize::try_from(negotiated).map_or(Self::MOST, |max| max.min(Self::MOST)),
        }
    }
}

/// A connection to the broker, as lapin reads and writes it.
///
/// All that the broker sends passes through [`AsyncRead::poll_read`].
pub(crate) struct GuardedStream<S = Box<dyn Wire>> {
    socket: S,
    filter: Filter,
    frame_max: FrameMax,
}

impl<S> GuardedStream<S> {
    /// Guards a socket on which nothing has been read yet.
    pub(crate) fn new(socket: S, frame_max: FrameMax) -> Self {
        Self { socket, filter: Filter::default(), frame_max }
    }

    /// Makes the guard cut the bodies that are not admitted. Nothing may have been read yet.
    pub(crate) fn admitting(self, admit: Option<Arc<dyn Admit>>) -> Self {
        Self { filter: Filter::new(admit), ..self }
    }
}

#[cfg(test)]
impl<S> GuardedStream<S> {
    /// The bytes that its own buffers occupy.
    pub(super) fn memory(&self) -> usize {
        self.filter.memory()
    }
}

impl<S> fmt::Debug for GuardedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedStream").finish_non_exhaustive()
    }
}

impl<S: AsyncRead + Unpin> GuardedStream<S> {
    /// Reads once and filters what came: the number of bytes that are ready in `buf`, or `None` at the end
    /// of the stream.
    fn poll_once(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<Option<usize>>> {
        let max = self.frame_max.get();
        let held = self.filter.held().len();
        if held > MOVED || buf.len() < held + ROOM {
            return self.poll_aside(cx, max);
        }
        let count = ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buf[held..]))?;
        if count == 0 {
            return Poll::Ready(Ok(None));
        }
        buf[..held].copy_from_slice(self.filter.held());
        Poll::Ready(Ok(Some(self.filter.filter(buf, held + count, max))))
    }

    /// Reads into the buffer of held bytes.
    fn poll_aside(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Option<usize>>> {
        let held = self.filter.held();
        let before = held.len();
        held.resize(before + ASIDE, 0);
        let read = Pin::new(&mut self.socket).poll_read(cx, &mut held[before..]);
        let count = if let Poll::Ready(Ok(count)) = read { count } else { 0 };
        held.truncate(before + count);
        if ready!(read)? == 0 {
            return Poll::Ready(Ok(None));
        }
        self.filter.filter_held(max);
        Poll::Ready(Ok(Some(0)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    /// A frame that was cut off by the end of the stream is not delivered.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if IS_OFF {
            return Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        for _ in 0..READS {
            let owed = self.filter.drain(buf);
            if owed > 0 {
                return Poll::Ready(Ok(owed));
            }
            match ready!(self.poll_once(cx, buf))? {
                None => return Poll::Ready(Ok(0)),
                Some(0) => {}
                Some(count) => return Poll::Ready(Ok(count)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
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
