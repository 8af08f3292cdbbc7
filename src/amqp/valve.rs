//! Stops reading a connection while too many bytes are held.
//!
//! Messages that are requested by count may be long: a window of jobs of 1 KiB may be filled with jobs of 32 MiB.
//! [`Meter`] counts the bodies as they are read, and [`Valve`] reads no further where there are too many: what is acked
//! meanwhile is still written, and so are heartbeats. lapin takes a connection for lost where it reads nothing for
//! twice the heartbeat interval, so a closed valve hands it heartbeats of its own; RabbitMQ tolerates a client that
//! reads nothing as long as the client sends heartbeats.

// The benchmark of the guard includes this file as a module of its own.
#[path = "valve/frames.rs"]
mod frames;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use futures_util::task::AtomicWaker;
use tokio::time::{Instant, Sleep};

use super::budget::Account;
use crate::lock::lock;
use frames::Frames;

/// A heartbeat frame.
const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xce];

/// How often a closed valve delivers a heartbeat to lapin. Heartbeats are at least a second apart, and missed after
/// two.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// The bytes that may be read and not yet claimed by their downstream, for a shared connection and where nothing is
/// held. Downstreams claim whatever arrives at once, so this bounds how far they fall behind.
const MAX_UNCLAIMED: u64 = 64 << 20;

/// How long a connection waits for claims at most, unless it waits until bytes are freed.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(100);

/// Counts the bytes that are read of one connection, over all sockets that it has had.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The account of the connection's downstream; `None` if it is shared.
    account: Option<Arc<Account>>,
    /// The bytes of bodies that were read and not claimed yet.
    unclaimed: AtomicU64,
    /// Whether the valve is active: not while the connection is set up, and not at the end.
    armed: AtomicBool,
    closed: AtomicBool,
    cut: AtomicBool,
    waker: AtomicWaker,
    channels: Mutex<Channels>,
}

/// The downstream of each channel, and the channels that received something recently.
#[derive(Debug, Default)]
struct Channels {
    names: BTreeMap<u16, String>,
    /// The channels that received something since the socket was last empty, and those before that.
    now: BTreeSet<u16>,
    before: BTreeSet<u16>,
}

impl Meter {
    /// A meter for a connection that all downstreams share.
    pub(super) fn shared() -> Arc<Self> {
        Self::new(None)
    }

    /// A meter for a downstream's own connection.
    pub(super) fn own(account: Arc<Account>) -> Arc<Self> {
        Self::new(Some(account))
    }

    fn new(account: Option<Arc<Account>>) -> Arc<Self> {
        Arc::new(Self {
            // A shared connection is always active: its setup cannot be held up.
            armed: AtomicBool::new(account.is_none()),
            account,
            unclaimed: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            channels: Mutex::default(),
        })
    }

    /// Claims a body of `body` bytes, which was taken over or discarded.
    pub(super) fn claim(&self, body: u64) {
        let less = |unclaimed: u64| Some(unclaimed.saturating_sub(body));
        // The closure always returns a value, so the update cannot fail.
        let _ = self.unclaimed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        self.waker.wake();
    }

    /// Activates the valve: nothing is read while the downstream holds as much as it may. It is for the downstream's
    /// own connection, once that is set up.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Deactivates the valve: everything is read, since the connection is being set up or ends. It is for a
    /// downstream's own connection.
    pub(super) fn disarm(&self) {
        if self.account.is_some() {
            self.armed.store(false, Ordering::SeqCst);
            self.unclaimed.store(0, Ordering::SeqCst);
            self.waker.wake();
        }
    }

    /// True while nothing is read, so that no answer can arrive.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends the connection from this side.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Assigns a channel to a downstream.
    pub(super) fn assign(&self, channel: u16, downstream: &str) {
        lock(&self.channels).names.insert(channel, downstream.to_owned());
    }

    /// The downstreams that received something in the last moment: if the connection was lost over what the broker
    /// sent, it was for one of them.
    pub(super) fn recent(&self) -> BTreeSet<String> {
        let channels = lock(&self.channels);
        let recent = channels.now.union(&channels.before);
        recent.filter_map(|channel| channels.names.get(channel).cloned()).collect()
    }

    /// Starts to count a new socket.
    fn begin(&self) {
        self.unclaimed.store(0, Ordering::SeqCst);
        self.closed.store(false, Ordering::SeqCst);
        self.cut.store(false, Ordering::SeqCst);
        *lock(&self.channels) = Channels::default();
    }

    fn may_read(&self) -> bool {
        if !self.armed.load(Ordering::SeqCst) {
            return true;
        }
        let unclaimed = self.unclaimed.load(Ordering::SeqCst);
        match &self.account {
            Some(account) if account.holds_any() => !account.is_full(unclaimed),
            // A message may be longer than all bytes that may be held, and comes in many frames.
            _ => unclaimed < MAX_UNCLAIMED,
        }
    }

    fn note(&self, body: u64, channels: &[u16]) {
        self.unclaimed.fetch_add(body, Ordering::SeqCst);
        if !channels.is_empty() && self.account.is_none() {
            lock(&self.channels).now.extend(channels);
        }
    }

    fn drained(&self) {
        if self.account.is_none() {
            let mut channels = lock(&self.channels);
            if !channels.now.is_empty() {
                channels.before = std::mem::take(&mut channels.now);
            }
        }
    }
}

/// A socket that is not read while its [`Meter`] forbids it. It stops only between two frames.
#[derive(Debug)]
pub(crate) struct Valve<S> {
    socket: S,
    gauge: Option<Gauge>,
}

#[derive(Debug)]
struct Gauge {
    meter: Arc<Meter>,
    frames: Frames,
    channels: Vec<u16>,
    /// The rest of a heartbeat that was begun.
    beat: &'static [u8],
    timer: Pin<Box<Sleep>>,
}

impl<S> Valve<S> {
    /// A socket that is always read.
    pub(super) const fn open(socket: S) -> Self {
        Self { socket, gauge: None }
    }

    /// A socket on which nothing was read yet. Must be called on a tokio runtime.
    pub(super) fn metered(socket: S, meter: Arc<Meter>) -> Self {
        meter.begin();
        let timer = Box::pin(tokio::time::sleep(HEARTBEAT_INTERVAL));
        let gauge = Gauge { meter, frames: Frames::default(), channels: Vec::new(), beat: &[], timer };
        Self { socket, gauge: Some(gauge) }
    }
}

impl Gauge {
    /// The number of bytes that may be read now. While there are none, it registers a wake-up, and delivers a heartbeat
    /// now and then.
    fn poll_permission(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<ReadPermission> {
        if !self.beat.is_empty() {
            return Poll::Ready(self.give_beat(buf));
        }
        let between = self.frames.left();
        let meter = &self.meter;
        if meter.may_read() {
            self.meter.closed.store(false, Ordering::SeqCst);
            return Poll::Ready(ReadPermission::Read(buf.len()));
        }
        if between > 0 {
            return Poll::Ready(ReadPermission::Read(
                usize::try_from(between).unwrap_or(usize::MAX).min(buf.len()),
            ));
        }
        if let Some(account) = &meter.account {
            account.register(cx.waker());
        }
        let was_closed = meter.closed.swap(true, Ordering::SeqCst);
        // Bytes that were freed just before the registration have woken nobody.
        if meter.may_read() || meter.cut.load(Ordering::SeqCst) {
            meter.closed.store(false, Ordering::SeqCst);
            return Poll::Ready(ReadPermission::Read(buf.len()));
        }
        // Where nothing is held, nothing can be freed that would open the valve: one message may be longer than the
        // whole allowance.
        let waits_for_freed = meter.account.as_ref().is_some_and(|account| account.holds_any());
        let pause = if waits_for_freed { HEARTBEAT_INTERVAL } else { CLAIM_TIMEOUT };
        if !was_closed {
            self.timer.as_mut().reset(Instant::now() + pause);
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.timer.as_mut().reset(Instant::now() + pause);
        if !waits_for_freed {
            // One message may be longer than that, or lapin has discarded some.
            meter.unclaimed.store(0, Ordering::SeqCst);
        }
        self.beat = &HEARTBEAT;
        Poll::Ready(self.give_beat(buf))
    }

    fn give_beat(&mut self, buf: &mut [u8]) -> ReadPermission {
        let (now, later) = self.beat.split_at(self.beat.len().min(buf.len()));
        buf[..now.len()].copy_from_slice(now);
        self.beat = later;
        ReadPermission::Given(now.len())
    }

    fn note(&mut self, bytes: &[u8]) {
        self.channels.clear();
        let body = self.frames.advance(bytes, &mut self.channels);
        self.meter.note(body, &self.channels);
    }
}

/// The permission for a read.
enum ReadPermission {
    /// Up to this many bytes of the socket may be read.
    Read(usize),
    /// This many bytes are in the buffer already.
    Given(usize),
}

impl<S: AsyncRead + Unpin> AsyncRead for Valve<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { socket, gauge } = &mut *self;
        let Some(gauge) = gauge else { return Pin::new(socket).poll_read(cx, buf) };
        // The connection must be cut even while the broker sends nothing.
        gauge.meter.waker.register(cx.waker());
        if gauge.meter.cut.load(Ordering::SeqCst) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let most = match gauge.poll_permission(cx, buf) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(ReadPermission::Given(count)) => return Poll::Ready(Ok(count)),
            Poll::Ready(ReadPermission::Read(most)) => most,
        };
        let read = Pin::new(socket).poll_read(cx, &mut buf[..most]);
        match &read {
            Poll::Ready(Ok(count)) => gauge.note(&buf[..*count]),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => gauge.meter.drained(),
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Valve<S> {
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

#[cfg(test)]
#[path = "valve/tests.rs"]
mod tests;
