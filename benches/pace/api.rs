//! An API that costs next to nothing: it shares the processors with what is measured.

use std::io;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::support::api::stamp;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const MAX_HEAD: usize = 16 << 10;

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When its head was complete: monotonic ns, as [`stamp`] has it.
    pub at: u64,
    /// The number that the path begins with; 0 where there is none.
    pub number: usize,
}

/// Speaks just enough HTTP/1.1 for a client that keeps connections and sends `Content-Length`. It
/// answers 200 to everything, on a thread of its own, and ends when dropped.
pub struct LeanApi {
    port: u16,
    log: Arc<Log>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Log {
    arrivals: Mutex<Vec<Arrival>>,
    /// The number of arrivals that ends the wait of [`LeanApi::all`].
    expected: AtomicUsize,
    first: Notify,
    all: Notify,
    delay: Duration,
}

impl LeanApi {
    /// Answers with this delay; a delay that is not zero is up to 1 ms longer.
    pub fn start(delay: Duration) -> Result<Self, String> {
        Self::try_start(delay).map_err(|error| format!("no API: {error}"))
    }

    fn try_start(delay: Duration) -> io::Result<Self> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (arrivals, expected) = (Mutex::new(Vec::with_capacity(1 << 17)), AtomicUsize::new(0));
        let log = Arc::new(Log { arrivals, expected, first: Notify::new(), all: Notify::new(), delay });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::clone(&log);
        let thread = std::thread::Builder::new().name("lean-api".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    // It returns only if the listener fails; then nothing arrives, which the figures show.
                    _ = serve(listener, shared) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { port, log, stop: Some(stop), thread: Some(thread) })
    }

    /// `http://127.0.0.1:PORT/`
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Forgets all arrivals; from now on `count` requests are awaited.
    pub fn expect(&self, count: usize) {
        self.log.lock().clear();
        self.log.expected.store(count, Ordering::Relaxed);
    }

    /// Waits for the first request.
    pub async fn first(&self, within: Duration) -> Result<(), String> {
        self.wait(&self.log.first, within).await
    }

    /// Waits for as many requests as are expected.
    pub async fn all(&self, within: Duration) -> Result<(), String> {
        self.wait(&self.log.all, within).await
    }

    async fn wait(&self, what: &Notify, within: Duration) -> Result<(), String> {
        let there = timeout(within, what.notified()).await;
        there.map_err(|_| {
            let expected = self.log.expected.load(Ordering::Relaxed);
            format!("{} of {expected} requests came within {within:?}", self.count())
        })
    }

    /// The number of arrivals so far.
    pub fn count(&self) -> usize {
        self.log.lock().len()
    }

    /// The arrivals so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.log.lock().clone()
    }

    /// The instants of the arrivals.
    pub fn stamps(&self) -> Vec<u64> {
        self.log.lock().iter().map(|arrival| arrival.at).collect()
    }
}

impl Drop for LeanApi {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Log {
    fn note(&self, arrival: Arrival) {
        let mut arrivals = self.lock();
        arrivals.push(arrival);
        let count = arrivals.len();
        drop(arrivals);
        if count == 1 {
            self.first.notify_one();
        }
        if count == self.expected.load(Ordering::Relaxed) {
            self.all.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(listener: StdListener, log: Arc<Log>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let log = Arc::clone(&log);
        // Clients may hang up at any time.
        tokio::spawn(async move { drop(converse(stream, &log).await) });
    }
}

async fn converse(mut stream: TcpStream, log: &Log) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(8 << 10);
    loop {
        let head = loop {
            if let Some(end) = find(&buffer, b"\r\n\r\n") {
                break end + 4;
            }
            if buffer.len() > MAX_HEAD || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        log.note(Arrival { at: stamp(), number: number(&buffer) });
        let whole = head + content_length(&buffer[..head]);
        while buffer.len() < whole {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        buffer.drain(..whole);
        if !log.delay.is_zero() {
            tokio::time::sleep(log.delay).await;
        }
        stream.write_all(ANSWER).await?;
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// The number in the path: 17 of `POST /17/x HTTP/1.1`.
fn number(head: &[u8]) -> usize {
    let path = head.iter().position(|&byte| byte == b'/').map_or(&[][..], |slash| &head[slash + 1..]);
    let digits = path.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, &digit| number * 10 + usize::from(digit - b'0'))
}

fn content_length(head: &[u8]) -> usize {
    const NAME: &[u8] = b"content-length:";
    let mut lines = head.split(|&byte| byte == b'\n');
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then(|| String::from_utf8_lossy(value).trim().to_owned())
    });
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}
