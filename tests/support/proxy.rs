//! A proxy to a server on loopback: it adds delay, is silent, or cuts connections.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::real_now;

/// Forwards bytes to a port, with a delay each way. It ends when dropped.
///
/// Each direction has a thread that reads and one that writes, with the finest timer the system has, so that what it
/// adds is the delay and some 0.1 ms for the hops, for any runtime of a test.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    target: u16,
    /// The delay of each direction.
    delay: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    way: Way,
    /// The sockets of both ends of every connection, for cutting them.
    streams: Vec<TcpStream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// Connections stay open, and nothing is forwarded.
    Silent,
    /// There are no connections.
    Cut,
    Ended,
}

impl Proxy {
    /// Accepts clients of `target`; a round trip takes `delay` longer, half of it each way.
    pub fn start(target: u16, delay: Duration) -> io::Result<Self> {
        Self::start_on(0, target, delay)
    }

    /// As [`Proxy::start`], on this port.
    pub fn start_on(port: u16, target: u16, delay: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        let state = Mutex::new(State { way: Way::Open, streams: Vec::new() });
        let shared = Arc::new(Shared { target, delay: delay / 2, state, changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        let thread = spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if !accepting.take(stream) {
                    return;
                }
            }
        })?;
        Ok(Self { port, shared, thread: Some(thread) })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards nothing from now on in either direction; connections stay open, as when a link is down.
    pub fn silence(&self) {
        self.shared.set(Way::Silent);
    }

    /// Closes all connections, and new ones at once.
    pub fn cut(&self) {
        self.shared.set(Way::Cut);
        self.shared.close_all();
    }

    /// Ends a silence, after which pending bytes are forwarded, or a cut.
    pub fn restore(&self) {
        self.shared.set(Way::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.set(Way::Ended);
        self.shared.close_all();
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Joins a client with the server; returns false when the proxy has ended.
    fn take(self: &Arc<Self>, client: TcpStream) -> bool {
        match self.lock().way {
            Way::Ended => return false,
            Way::Cut => return true,
            Way::Open | Way::Silent => {}
        }
        // Where the server is down, the client sees its connection end.
        let _ = self.join(client);
        true
    }

    fn join(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        self.lock().streams.extend([client.try_clone()?, server.try_clone()?]);
        self.pass(client.try_clone()?, server.try_clone()?)?;
        self.pass(server, client)
    }

    /// Starts the two threads of one direction.
    fn pass(self: &Arc<Self>, from: TcpStream, to: TcpStream) -> io::Result<()> {
        let (sender, receiver) = channel();
        let delay = self.delay;
        spawn(move || read(from, delay, &sender))?;
        let shared = Arc::clone(self);
        spawn(move || shared.write(to, &receiver)).map(drop)
    }

    fn write(&self, mut to: TcpStream, chunks: &Receiver<(Instant, Vec<u8>)>) {
        // Linux may delay timers by 50 µs to save wake-ups. If this fails the delay is a little longer.
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        while let Ok((due, chunk)) = chunks.recv() {
            sleep_until(due);
            if !self.may_pass() || to.write_all(&chunk).is_err() {
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Waits until a silence ends; returns false when the connection is over.
    fn may_pass(&self) -> bool {
        let state = self.lock();
        let state = self.changed.wait_while(state, |state| state.way == Way::Silent);
        state.unwrap_or_else(PoisonError::into_inner).way == Way::Open
    }

    fn set(&self, way: Way) {
        self.lock().way = way;
        self.changed.notify_all();
    }

    fn close_all(&self) {
        for stream in self.lock().streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(mut from: TcpStream, delay: Duration, chunks: &Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if chunks.send((real_now() + delay, buffer[..length].to_vec())).is_err() {
            // The other end is gone.
            let _ = from.shutdown(Shutdown::Both);
            return;
        }
    }
}

/// Never wakes early, as `park_timeout` may.
fn sleep_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(real_now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("proxy".to_owned()).spawn(work)
}
