//! Opens connections to the one host of a sink.

use std::error::Error;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower_service::Service as _;
use url::Url;

use super::connection::Connection;
use super::guard::{Lookup, Resolver};
use super::{HttpError, chain};

/// A host that does not answer within this time counts as away; the rest of a long time-out is left for the answer.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// A connection that receives nothing is probed after this time, and at the same interval from then on.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The probes that may stay unanswered.
const PROBES: u32 = 3;

/// The time after which unacknowledged bytes end the connection, so that a host that went away is noticed before a long
/// time-out is over.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// Provides the TLS configuration; called for https alone.
pub(super) type Tls = fn() -> Result<Arc<ClientConfig>, HttpError>;

/// Opens connections to one host.
pub(super) struct Connector {
    tcp: HttpConnector<Resolver>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    origin: Uri,
    timeout: Duration,
}

impl Connector {
    /// A connector to the host of `base`. Nothing is connected or looked up.
    pub(super) fn new(base: &Url, timeout: Duration, lookup: Lookup, tls: Tls) -> Result<Self, HttpError> {
        let host = base.host_str().unwrap_or_default();
        let port = base.port_or_known_default().unwrap_or_default();
        let origin = format!("{}://{host}:{port}/", base.scheme())
            .parse()
            .map_err(|_| HttpError::BaseUrl("has a host that no request can name".to_owned()))?;
        let tls = if base.scheme() == "https" {
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .map_err(|_| HttpError::BaseUrl("has a host that no certificate can name".to_owned()))?;
            Some((TlsConnector::from(tls()?), name))
        } else {
            None
        };
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
        Ok(Self { tcp, tls, origin, timeout })
    }

    /// Opens a connection that is ready for a request; the error is a text for people.
    pub(super) async fn open(&self) -> Result<Connection, String> {
        match timeout(self.timeout, self.try_open()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(chain(&*error)),
            Err(_) => Err(format!("no connection within {:?}", self.timeout)),
        }
    }

    async fn try_open(&self) -> Result<Connection, Box<dyn Error + Send + Sync>> {
        let mut tcp = self.tcp.clone();
        poll_fn(|cx| tcp.poll_ready(cx)).await?;
        let stream = tcp.call(self.origin.clone()).await?;
        let Some((tls, name)) = &self.tls else { return Ok(Connection::new(stream).await?) };
        let stream = tls.connect(name.clone(), stream.into_inner()).await?;
        Ok(Connection::new(TokioIo::new(stream)).await?)
    }
}

/// The system's certificate authorities, read once for all sinks.
pub(super) fn system() -> Result<Arc<ClientConfig>, HttpError> {
    static SHARED: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = SHARED.get() {
        return Ok(Arc::clone(config));
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
        return Err(HttpError::Client(format!("the system has no certificate authorities ({why})")));
    }
    Ok(Arc::clone(SHARED.get_or_init(|| Arc::new(trusting(roots)))))
}

/// TLS that trusts `roots`.
pub(super) fn trusting(roots: RootCertStore) -> ClientConfig {
    super::install_crypto_provider();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}
