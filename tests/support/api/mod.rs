//! A downstream that keeps a log: an HTTP server on loopback, which stamps every request on a
//! thread of its own (a busy test must not disturb the stamps) and answers as the test specifies.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use paced::time::{Micros, wall_now};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};

use super::real_now;
use answer::{Leave, reaches};

mod answer;

#[allow(unused_imports, reason = "each crate that includes this module uses a part of it")]
pub use answer::{Answer, Gate};

/// The longest body that is kept.
const MAX_BODY: usize = 16 << 20;

/// The origin of [`Arrival::at`], which all APIs of this process share.
static ANCHOR: LazyLock<Instant> = LazyLock::new(real_now);

/// Nanoseconds now, on the clock of [`Arrival::at`].
pub fn stamp() -> u64 {
    u64::try_from(ANCHOR.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One request.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When its head was read: monotonic nanoseconds.
    pub at: u64,
    /// The same by the wall clock.
    pub wall: Micros,
    /// The method, in upper case.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
}

impl Arrival {
    /// A header, where it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The `Idempotency-Key`: the job's id; "" when absent.
    pub fn id(&self) -> &str {
        self.header("idempotency-key").unwrap_or_default()
    }
}

type Rule = Arc<dyn Fn(&Arrival) -> Answer + Send + Sync>;

/// The API. It ends when dropped.
pub struct Api {
    port: u16,
    log: Arc<Log>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Log {
    inner: Mutex<Inner>,
    /// Notified once the stalls of the runtime are to be recorded.
    watched: Notify,
    stalls: Mutex<Vec<Range<u64>>>,
    count: watch::Sender<usize>,
    in_flight: watch::Sender<usize>,
}

struct Inner {
    arrivals: Vec<Arrival>,
    scripts: BTreeMap<String, VecDeque<Answer>>,
    rule: Rule,
    connections: usize,
    peak: usize,
}

/// The nice value of the thread of an API.
const PRIORITY: i32 = -15;

impl Api {
    /// Starts one on a free port; it answers 200 to everything.
    pub fn start() -> Self {
        Self::try_start(0).expect("a port on loopback")
    }

    /// Starts one on this port, such as that of one that was dropped before.
    pub fn try_start(port: u16) -> io::Result<Self> {
        LazyLock::force(&ANCHOR);
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let log = Arc::new(Log::new());
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = log.clone();
        let thread = std::thread::Builder::new().name("api".to_owned()).spawn(move || {
            // A request is recorded when it is read: on a busy machine that must not wait for those under test. It takes
            // a right that root has; without it the records are less exact.
            let _ = rustix::process::setpriority_process(None, PRIORITY);
            runtime.block_on(async move {
                tokio::select! {
                    () = serve(listener, Arc::clone(&shared)) => {}
                    () = record_stalls(shared) => {}
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

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next requests to `path` (with its query) get these answers, in this order; then the
    /// rule holds again.
    pub fn script(&self, path: &str, answers: impl IntoIterator<Item = Answer>) {
        self.log.lock().scripts.entry(path.to_owned()).or_default().extend(answers);
    }

    /// Sets the answers of requests without a script, from now on.
    pub fn rule(&self, rule: impl Fn(&Arrival) -> Answer + Send + Sync + 'static) {
        self.log.lock().rule = Arc::new(rule);
    }

    /// Has it record from now on when its runtime stood still, so that it read no request.
    pub fn watch_stalls(&self) {
        self.log.watched.notify_one();
    }

    /// When its runtime stood still, since [`Api::watch_stalls`].
    pub fn stalls(&self) -> Vec<Range<u64>> {
        self.log.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The longest of [`Api::stalls`].
    pub fn longest_stall(&self) -> Duration {
        let stalls = self.stalls();
        Duration::from_nanos(stalls.iter().map(|stall| stall.end - stall.start).max().unwrap_or(0))
    }

    /// All requests so far whose bodies have arrived, in the order of their stamps.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.log.arrivals()
    }

    /// Ends it, and returns all requests that ever arrived: it has answered no others.
    pub fn end(self) -> Vec<Arrival> {
        let log = self.log.clone();
        drop(self);
        log.arrivals()
    }

    /// The stamps of [`Api::arrivals`].
    pub fn stamps(&self) -> Vec<u64> {
        let mut stamps: Vec<u64> = self.log.lock().arrivals.iter().map(|arrival| arrival.at).collect();
        stamps.sort_unstable();
        stamps
    }

    /// How many requests there were so far.
    pub fn count(&self) -> usize {
        *self.log.count.borrow()
    }

    /// Requests that are being answered now.
    pub fn in_flight(&self) -> usize {
        *self.log.in_flight.borrow()
    }

    /// The most requests that were ever being answered at once.
    pub fn peak_in_flight(&self) -> usize {
        self.log.lock().peak
    }

    /// Waits for `count` requests in all and returns them; panics after `within`.
    pub async fn wait_for(&self, count: usize, within: Duration) -> Vec<Arrival> {
        let there = reaches(&self.log.count, count, within).await;
        assert!(there, "{} requests, not {count}, came within {within:?}", self.count());
        self.arrivals()
    }

    /// Waits for `count` requests in all; false after `within`.
    pub async fn reaches(&self, count: usize, within: Duration) -> bool {
        reaches(&self.log.count, count, within).await
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Log {
    fn new() -> Self {
        let inner = Inner {
            arrivals: Vec::new(),
            scripts: BTreeMap::new(),
            rule: Arc::new(|_| Answer::ok()),
            connections: 0,
            peak: 0,
        };
        Self {
            inner: Mutex::new(inner),
            watched: Notify::new(),
            stalls: Mutex::default(),
            count: watch::Sender::new(0),
            in_flight: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrivals(&self) -> Vec<Arrival> {
        let mut arrivals = self.lock().arrivals.clone();
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }

    /// Records the request and returns its answer.
    fn note(&self, arrival: Arrival) -> Answer {
        let mut inner = self.lock();
        let scripted = inner.scripts.get_mut(&arrival.path).and_then(VecDeque::pop_front);
        let rule = inner.rule.clone();
        inner.arrivals.push(arrival.clone());
        let count = inner.arrivals.len();
        drop(inner);
        self.count.send_replace(count);
        scripted.unwrap_or_else(|| rule(&arrival))
    }

    fn enter(&self) -> Leave<'_> {
        let mut now = 0;
        self.in_flight.send_modify(|count| {
            *count += 1;
            now = *count;
        });
        let mut inner = self.lock();
        inner.peak = inner.peak.max(now);
        Leave(&self.in_flight)
    }
}

/// Records when the runtime runs a task later than it should.
async fn record_stalls(log: Arc<Log>) {
    const TICK: Duration = Duration::from_millis(1);
    // The timer of the runtime is late by up to a millisecond.
    const EXACT: u64 = 2_000_000;
    log.watched.notified().await;
    loop {
        let due = stamp() + 1_000_000;
        tokio::time::sleep(TICK).await;
        let woken = stamp();
        if woken > due + EXACT {
            log.stalls.lock().unwrap_or_else(PoisonError::into_inner).push(due..woken);
        }
    }
}

async fn serve(listener: StdListener, log: Arc<Log>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let connection = {
            let mut inner = log.lock();
            inner.connections += 1;
            inner.connections - 1
        };
        tokio::spawn(converse(stream, connection, log.clone()));
    }
}

async fn converse(stream: TcpStream, connection: usize, log: Arc<Log>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        // The stamp comes first: nothing may delay it.
        let (at, wall) = (stamp(), wall_now());
        let log = log.clone();
        async move { answer(&log, request, connection, (at, wall)).await }
    });
    // Clients may hang up at any time.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The reason why a request gets no answer.
#[derive(Debug, thiserror::Error)]
#[error("hung up, as scripted")]
struct HungUp;

async fn answer(
    log: &Log,
    request: Request<Incoming>,
    connection: usize,
    (at, wall): (u64, Micros),
) -> Result<Response<Full<Bytes>>, HungUp> {
    let _in_flight = log.enter();
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else { return Err(HungUp) };
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let arrival = Arrival {
        at,
        wall,
        method: head.method.to_string(),
        path,
        headers: head.headers,
        body: body.to_bytes(),
        connection,
    };
    let answer = log.note(arrival);
    if !answer.delay.is_zero() {
        tokio::time::sleep(answer.delay).await;
    }
    if let Some(gate) = &answer.gate {
        gate.pass().await;
    }
    if answer.hang_up {
        return Err(HungUp);
    }
    let mut response = Response::builder().status(StatusCode::from_u16(answer.status).expect("a status"));
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(answer.body)).expect("headers that are valid"))
}
