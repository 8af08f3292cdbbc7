//! One HTTP/1.1 connection, polled by its user.
//!
//! It has no task of its own: a request and its answer cost no wake-up of another task, and a connection is ready again
//! as soon as the end of its answer is read.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::rt::{Read, Write};
use hyper::{Request, Response};

use super::upload::{Payload, Upload, Watched};

pub(super) type Outgoing = Request<Payload>;

/// The most headers of an answer. hyper's own bound is 100, which some APIs exceed; each one more costs every answer
/// some nanoseconds.
const MAX_HEADERS: usize = 160;

/// The longest head of an answer, in bytes, and the most that is buffered of its body.
const MAX_HEAD: usize = 512 * 1024;

type Driver = Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>;

pub(super) struct Connection {
    sender: SendRequest<Payload>,
    /// Reads and writes the socket; `None` when the connection is over.
    driver: Driver,
    /// The progress of the latest request.
    upload: Arc<Upload>,
}

impl Connection {
    pub(super) async fn new(io: impl Read + Write + Unpin + Send + 'static) -> hyper::Result<Self> {
        let upload = Arc::new(Upload::default());
        let io = Watched::new(io, Arc::clone(&upload));
        let (sender, driver) = Builder::new()
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD)
            // Some old servers fold long fields over several lines. RFC 9112 requires clients to unfold these.
            .allow_obsolete_multiline_headers_in_responses(true)
            .handshake(io)
            .await?;
        Ok(Self { sender, driver: Some(Box::pin(driver)), upload })
    }

    /// Sends a request, and waits for the head of its answer. If nothing of the request was written, the error
    /// returns the request.
    ///
    /// Not cancel safe: a connection whose future was dropped is of no more use.
    pub(super) async fn send(
        &mut self,
        mut request: Outgoing,
    ) -> Result<Response<Incoming>, TrySendError<Outgoing>> {
        request.body_mut().follow(&self.upload);
        let mut answer = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            drive(&mut self.driver, cx);
            answer.as_mut().poll(cx)
        })
        .await
    }

    /// The next piece of an answer's body; `None` at its end, and an error where it breaks off.
    ///
    /// Cancel safe.
    pub(super) async fn chunk(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        poll_fn(|cx| {
            loop {
                drive(&mut self.driver, cx);
                match Pin::new(&mut *body).poll_frame(cx) {
                    // A frame of trailers is not a piece of the body: the next frame is polled.
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => return Poll::Ready(Some(Ok(data))),
                        Err(_) => continue,
                    },
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Whether the whole of the last request was written to the socket.
    pub(super) fn has_sent(&self) -> bool {
        self.upload.is_written()
    }

    /// Waits until the whole of the last request is written and returns true, or false if the connection is over before
    /// that. Any part of the answer's body that arrives meanwhile is discarded: a server that cannot write its answer
    /// may stop reading.
    ///
    /// Cancel safe.
    pub(super) async fn finish_sending(&mut self, body: &mut Incoming) -> bool {
        poll_fn(|cx| {
            loop {
                drive(&mut self.driver, cx);
                if self.upload.is_written() {
                    return Poll::Ready(true);
                }
                if self.driver.is_none() {
                    return Poll::Ready(false);
                }
                if body.is_end_stream() {
                    return Poll::Pending;
                }
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(_)) | None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Whether a request can be sent now: the server has not closed the connection, and no earlier request or answer is
    /// under way.
    pub(super) fn is_idle(&mut self) -> bool {
        // The waker of a finished task would keep the task's memory.
        drive(&mut self.driver, &mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

fn drive(driver: &mut Driver, cx: &mut Context<'_>) {
    if let Some(running) = driver
        && running.as_mut().poll(cx).is_ready()
    {
        // Dropping the driver returns a request that was not written, and its error goes to the answer.
        *driver = None;
    }
}
