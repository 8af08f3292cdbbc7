//! Opens connections to the one host of a sink.

use std::error::Error;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tower_service::Service as _;
use url::Url;

use super::connection::Connection;
use super::guard::{Lookup, Resolver};
use super::proxy::Proxy;
use super::{HttpError, SECOND, chain};
use crate::tls::{Tls, TlsOptions};

/// A host that does not answer within this time counts as away. The rest of a long time-out is for the answer.
const LONGEST_CONNECT: Duration = SECOND.saturating_mul(10);

/// A connection that receives nothing is probed after this time, and at the same interval from then on.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The probes that may stay unanswered.
const PROBES: u32 = 3;

/// The time after which unacknowledged bytes end the connection, so that a host that went away is noticed before a long
/// time-out is over.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// How the host is reached.
pub(super) struct Route {
    /// For https; by default the system's authorities are trusted.
    pub(super) tls: Option<Tls>,
    pub(super) proxy: Option<Proxy>,
}

/// Opens connections to one host.
pub(super) struct Connector {
    tcp: HttpConnector<Resolver>,
    /// TLS, and the host.
    tls: Option<(Tls, String)>,
    /// The host that is dialled: that of the downstream, or the proxy.
    origin: Uri,
    /// The `HOST:PORT` of that host.
    dialled: Arc<str>,
    /// The `HOST:PORT` of the downstream.
    target: Arc<str>,
    /// The proxy that is to be asked for a tunnel to the downstream.
    tunnel: Option<Proxy>,
    timeout: Duration,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct Unconnected {
    /// The `HOST:PORT` that failed: the proxy's, up to the tunnel, or the downstream's.
    pub(super) peer: Arc<str>,
    /// The error, for people.
    pub(super) detail: String,
}

/// The host and the port of a URL, as `HOST:PORT`.
pub(super) fn address(url: &Url) -> String {
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{}:{port}", url.host_str().unwrap_or_default())
}

impl Connector {
    /// A connector to the host of `base`. Nothing is connected or looked up.
    pub(super) fn new(
        base: &Url,
        timeout: Duration,
        lookup: Lookup,
        route: Route,
    ) -> Result<Self, HttpError> {
        let host = base.host_str().unwrap_or_default();
        let target: Arc<str> = address(base).into();
        let origin = format!("{}://{target}/", base.scheme());
        let (origin, dialled) = match &route.proxy {
            Some(proxy) => (proxy.origin(), proxy.address().into()),
            None => (&*origin, Arc::clone(&target)),
        };
        let origin = origin
            .parse()
            .map_err(|_| HttpError::BaseUrl("has a host that no request can name".to_owned()))?;
        let is_https = base.scheme() == "https";
        let tls = if is_https {
            let tls = route.tls.map_or_else(|| Tls::load_for_http(TlsOptions::default()), Ok)?;
            Some((tls, host.to_owned()))
        } else if route.tls.is_some() {
            return Err(HttpError::BaseUrl("has no TLS, for which there are options".to_owned()));
        } else {
            None
        };
        // A request over http names its host itself, so a proxy needs no tunnel for it, and may not allow one.
        let tunnel = route.proxy.filter(|_| is_https);
        let timeout = timeout.min(LONGEST_CONNECT);
        let mut tcp = HttpConnector::new_with_resolver(Resolver::new(lookup));
        tcp.enforce_http(false);
        // The time-out is shared by the host's addresses, so that one that is away leaves time for the next.
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEP_ALIVE));
        tcp.set_keepalive_interval(Some(KEEP_ALIVE));
        tcp.set_keepalive_retries(Some(PROBES));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Ok(Self { tcp, tls, origin, dialled, target, tunnel, timeout })
    }

    /// The `HOST:PORT` that is dialled: that of the downstream, or the proxy's.
    pub(super) const fn dialled(&self) -> &Arc<str> {
        &self.dialled
    }

    /// The `HOST:PORT` of the downstream.
    pub(super) const fn target(&self) -> &Arc<str> {
        &self.target
    }

    /// Opens a connection that is ready for a request.
    pub(super) async fn open(&self) -> Result<Connection, Unconnected> {
        let mut peer = &self.dialled;
        let opened = timeout(self.timeout, self.try_open(&mut peer)).await;
        let detail = match opened {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => chain(&*error),
            Err(_) => format!("no connection within {:?}", self.timeout),
        };
        Err(Unconnected { peer: Arc::clone(peer), detail })
    }

    /// Opens a connection, and records in `peer` the host that it connects to.
    async fn try_open<'a>(
        &'a self,
        peer: &mut &'a Arc<str>,
    ) -> Result<Connection, Box<dyn Error + Send + Sync>> {
        let mut tcp = self.tcp.clone();
        poll_fn(|cx| tcp.poll_ready(cx)).await?;
        let stream = tcp.call(self.origin.clone()).await?;
        let Some((tls, host)) = &self.tls else { return Ok(Connection::new(stream).await?) };
        let stream = match &self.tunnel {
            Some(proxy) => {
                let tunnel = proxy.open_tunnel(stream, &self.target).await?;
                *peer = &self.target;
                tunnel
            }
            None => stream,
        };
        let stream = tls.connect(host, stream.into_inner()).await?;
        Ok(Connection::new(TokioIo::new(stream)).await?)
    }
}
