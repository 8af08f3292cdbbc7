//! A real HTTP/1.1 server on loopback that answers as a test specifies, and records its requests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(super) type Body = BoxBody<Bytes, Infallible>;
type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next()?;
        assert!(values.next().is_none(), "{name} was sent twice");
        Some(first.to_str().expect("text"))
    }
}

pub(super) struct Server {
    pub(super) base: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    open: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// A server that answers the n-th request, counted from 0, with `answer(n)`.
    pub(super) async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(usize) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::start_with(None, answer).await
    }

    /// The same, over TLS if there is any.
    pub(super) async fn start_with<F, A>(tls: Option<TlsAcceptor>, answer: F) -> Self
    where
        F: Fn(usize) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::on(listener, tls, answer)
    }

    /// The same, on an address that the test chooses.
    pub(super) fn on<F, A>(listener: TcpListener, tls: Option<TlsAcceptor>, answer: F) -> Self
    where
        F: Fn(usize) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://{}/", listener.local_addr().expect("an address"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let answer: Arc<dyn Fn(usize) -> Answer + Send + Sync> = Arc::new(move |n| Box::pin(answer(n)));
        let (open, hang_up) = watch::channel(());
        let mut tasks = JoinSet::new();
        let shared = Shared { seen: Arc::clone(&seen), answer };
        tasks.spawn(accept(listener, tls, shared, Arc::clone(&connections), hang_up));
        Self { base, seen, connections, open, _tasks: tasks }
    }

    /// Answers every request with `status` and no body.
    pub(super) async fn always(status: u16) -> Self {
        Self::start(move |_| async move { empty(status) }).await
    }

    /// Answers 200, and closes each connection.
    pub(super) async fn closing() -> Self {
        let close = || {
            let mut answer = empty(200);
            answer.headers_mut().insert("connection", hyper::header::HeaderValue::from_static("close"));
            answer
        };
        Self::start(move |_| async move { close() }).await
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }

    /// The only request so far.
    pub(super) fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.into_iter().next().expect("one")
    }

    /// The connections so far, closed ones included.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The connections that are open now.
    pub(super) fn open(&self) -> usize {
        // One receiver belongs to the listener.
        self.open.receiver_count() - 1
    }

    /// Closes every connection, and accepts new ones.
    pub(super) async fn hang_up(&self) {
        self.open.send_replace(());
        super::until(|| self.open() == 0).await;
    }
}

/// The state that all connections share.
#[derive(Clone)]
struct Shared {
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Arc<dyn Fn(usize) -> Answer + Send + Sync>,
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    shared: Shared,
    connections: Arc<AtomicUsize>,
    hang_up: watch::Receiver<()>,
) {
    // The tasks end with the server: aborted connections leave none behind.
    let mut open = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        let (tls, shared, mut hang_up) = (tls.clone(), shared.clone(), hang_up.clone());
        hang_up.mark_unchanged();
        open.spawn(async move {
            let serve = async {
                let Some(tls) = tls else { return shared.serve(stream).await };
                // Some tests are about clients that do not trust this server.
                if let Ok(stream) = tls.accept(stream).await {
                    shared.serve(stream).await;
                }
            };
            tokio::select! { () = serve => {}, _ = hang_up.changed() => {} }
        });
    }
}

impl Shared {
    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request: Request<Incoming>| async {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let number = {
                let mut seen = self.seen.lock().expect("no panic");
                seen.push(Seen {
                    method: parts.method.to_string(),
                    target: parts.uri.to_string(),
                    headers: parts.headers,
                    body,
                });
                seen.len() - 1
            };
            Ok::<_, Infallible>((self.answer)(number).await)
        });
        // Some tests are about clients that close the connection.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }
}

pub(super) fn empty(status: u16) -> Response<Body> {
    full(status, "")
}

pub(super) fn full(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    Response::builder().status(status).body(Full::new(body.into()).boxed()).expect("a response")
}

/// A body of which the test sends each piece; it ends when the sender is dropped.
pub(super) fn streamed(status: u16) -> (mpsc::UnboundedSender<Bytes>, Response<Body>) {
    let (pieces, receiver) = mpsc::unbounded_channel();
    (pieces, Response::builder().status(status).body(Pieces(receiver).boxed()).expect("a response"))
}

struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
