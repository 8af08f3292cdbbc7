//! The progress of a request, measured by the bytes that its socket took rather than by those that hyper took.
//!
//! hyper buffers the body, so a body that was read to its end may not have been written yet. [`Payload`], the body of a
//! request, and [`Watched`], the socket below hyper, share an [`Upload`], in which each notes its part: a flush of the
//! socket that follows the last frame means that everything was written, since hyper flushes a socket only when its own
//! buffer is empty.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};

/// The longest body that leaves in one piece with its head.
const ONE_FRAME: usize = 16 * 1024;

/// The longest frame of a longer body.
const LONGEST_FRAME: usize = 64 * 1024;

/// The progress of the latest request of one connection.
#[derive(Debug, Default)]
pub(super) struct Upload {
    stage: AtomicU8,
    /// Wakes a body that waits until everything before its last frame was written.
    waiting: AtomicWaker,
}

/// The stages of a request. All transitions are made by the task that polls the connection, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// hyper may hold a part that was not written.
    Buffered,
    /// All that hyper was given so far was written.
    CaughtUp,
    /// hyper was given the whole request, and may hold a part that was not written.
    HandedOver,
    /// The whole request was written.
    Written,
}

impl Upload {
    /// Whether the whole of the latest request was written to the socket.
    pub(super) fn is_written(&self) -> bool {
        self.is_in(Stage::Written)
    }

    fn is_in(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::SeqCst) == stage as u8
    }

    fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::SeqCst);
    }

    /// Records that the socket has taken all that hyper was given.
    fn flushed(&self) {
        let is_whole = self.is_in(Stage::HandedOver) || self.is_in(Stage::Written);
        self.enter(if is_whole { Stage::Written } else { Stage::CaughtUp });
        self.waiting.wake();
    }

    /// Waits until the socket has taken all that hyper was given.
    fn poll_caught_up(&self, cx: &Context<'_>) -> Poll<()> {
        self.waiting.register(cx.waker());
        if self.is_in(Stage::CaughtUp) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// The body of a request.
///
/// A long one comes in frames, the last of which is one byte that waits until all others were written.
/// Until then hyper counts the request as unfinished. Once it has the last frame it closes the connection
/// as soon as an answer with `connection: close` is read, and forgets what it still holds.
#[derive(Debug)]
pub(super) struct Payload {
    rest: Bytes,
    is_long: bool,
    /// The state of the connection that it is being sent on.
    upload: Option<Arc<Upload>>,
}

impl Payload {
    pub(super) fn new(body: Bytes) -> Self {
        let is_long = body.len() > ONE_FRAME;
        Self { rest: body, is_long, upload: None }
    }

    /// Records that the request is sent from its beginning on the connection of `upload`.
    pub(super) fn follow(&mut self, upload: &Arc<Upload>) {
        upload.enter(Stage::Buffered);
        self.upload = Some(Arc::clone(upload));
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let left = self.rest.len();
        let length = match left {
            0 => return Poll::Ready(None),
            _ if !self.is_long => left,
            1 => {
                if let Some(upload) = &self.upload {
                    ready!(upload.poll_caught_up(cx));
                }
                1
            }
            _ => LONGEST_FRAME.min(left - 1),
        };
        if let Some(upload) = &self.upload {
            upload.enter(Stage::Buffered);
        }
        let frame = self.rest.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for Payload {
    /// hyper drops a body once it has buffered the head of its request and all frames.
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take().filter(|_| self.rest.is_empty()) {
            upload.enter(Stage::HandedOver);
        }
    }
}

/// A socket whose flushes are noted.
///
/// It does not report that a write failed: a server that answers early and closes makes writes fail before its answer
/// is read. An error of the connection appears on the next read too.
pub(super) struct Watched<T> {
    io: T,
    upload: Arc<Upload>,
    is_broken: bool,
}

impl<T> Watched<T> {
    pub(super) const fn new(io: T, upload: Arc<Upload>) -> Self {
        Self { io, upload, is_broken: false }
    }

    /// Turns the result of a write into one for hyper; after a failure it is pending for ever.
    fn noted<V>(&mut self, cx: &Context<'_>, result: io::Result<V>) -> Poll<io::Result<V>> {
        if result.is_ok() {
            return Poll::Ready(result);
        }
        self.is_broken = true;
        // The connection is polled once more for reading, also if the last read returned an error.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: Read + Unpin> Read for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_broken {
            return Poll::Pending;
        }
        let result = ready!(Pin::new(&mut self.io).poll_write(cx, buf));
        self.noted(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_broken {
            return Poll::Pending;
        }
        let result = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs));
        self.noted(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_broken {
            return Poll::Pending;
        }
        let result = ready!(Pin::new(&mut self.io).poll_flush(cx));
        if result.is_ok() {
            self.upload.flushed();
        }
        self.noted(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
