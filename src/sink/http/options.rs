//! The options of an HTTP sink, checked once.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;
use url::{Position, Url};

use super::guard;
use super::proxy::Proxy;
use super::target;
use crate::sink::BodyMatch;
use crate::tls::{Tls, TlsError};

/// The options of an HTTP sink.
#[derive(Clone)]
pub struct HttpOptions {
    /// `http://` or `https://`, ending in `/`, without query and fragment; user information
    /// becomes an `Authorization` header.
    pub base_url: String,
    /// The time-out for one request, from connecting to the end of the answer.
    pub timeout: Duration,
    /// Headers of every request; they win over a job's.
    pub headers: Vec<(String, String)>,
    /// The age above which a connection takes no more requests; it is shortened by up to a fifth at random, so that the
    /// connections of many sinks end one by one, and new ones follow changes of the host's address. Zero stands for no
    /// bound.
    pub max_connection_age: Duration,
    /// The body of a success by which the downstream throttles: at most 64 KiB of it are read.
    pub throttled_when: Option<BodyMatch>,
    /// Whether the beginning of an answer that is no delivery is kept, for the dead letter
    /// ([`Response::excerpt`](crate::sink::Response::excerpt)).
    pub keep_response: bool,
    /// Whom to trust, and the certificate to show, for `https`: made by [`Tls::load_for_http`]. By default the system's
    /// authorities are trusted, and no certificate is shown.
    pub tls: Option<Tls>,
    /// `http://[USER:PASSWORD@]HOST:PORT`, by which the host is reached. By default it is reached directly, whatever the
    /// environment says.
    pub proxy: Option<String>,
}

impl HttpOptions {
    /// Options with a time-out of 30 s, connections of at most 90 s, no headers and no proxy. The beginnings of answers
    /// are kept.
    #[must_use]
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            timeout: Duration::from_secs(30),
            headers: Vec::new(),
            max_connection_age: Duration::from_secs(90),
            throttled_when: None,
            keep_response: true,
            tls: None,
            proxy: None,
        }
    }

    /// Whether [`HttpSink::new`](super::HttpSink::new) would take these options; it may still miss
    /// the system's certificates. Nothing is connected or looked up.
    ///
    /// # Errors
    /// [`HttpError`] when an option is wrong.
    pub fn check(self) -> Result<(), HttpError> {
        self.check_timeout()?;
        let endpoint = Endpoint::new(&self.base_url, self.proxy.as_deref())?;
        target::headers(&endpoint, self.headers).map(drop)
    }

    pub(super) const fn check_timeout(&self) -> Result<(), HttpError> {
        if self.timeout.is_zero() { Err(HttpError::NoTimeout) } else { Ok(()) }
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let mut out = f.debug_struct("HttpOptions");
        // The URL and the values may hold credentials.
        out.field("timeout", &self.timeout).field("headers", &names).finish_non_exhaustive()
    }
}

/// The reason why options are invalid. Neither the URL nor a header's value is in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The base URL is invalid.
    #[error("the base URL {0}; use one such as https://api.example.com/v1/")]
    BaseUrl(String),
    /// The base URL's host is an address that no request may reach.
    #[error(
        "{0} is a link-local or metadata address, which paced never connects to; use the API's own address"
    )]
    ForbiddenAddress(IpAddr),
    /// A configured header cannot be sent.
    #[error("the header `{name}` {why}")]
    Header {
        /// Its name.
        name: String,
        /// The problem, and what would be right.
        why: &'static str,
    },
    /// The time-out is zero.
    #[error("a time-out of zero lets no request through; use one such as 30s")]
    NoTimeout,
    /// The URL of the token server is invalid.
    #[error("the URL of the token server {0}; use one such as https://login.example.com/oauth2/token")]
    TokenUrl(&'static str),
    /// The proxy cannot be used.
    #[error("the proxy {0}; write http://USER:PASSWORD@HOST:PORT, or without credentials http://HOST:PORT")]
    Proxy(&'static str),
    /// The certificates cannot be used.
    #[error("no TLS: {0}")]
    Tls(#[from] TlsError),
}

/// A longer base URL leaves no room for paths: an HTTP target ends at 64 KiB.
const MAX_BASE: usize = 8192;

/// Where requests go, and by which proxy.
#[derive(PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The base URL, which ends in `/` and has no user information, query or fragment.
    pub(super) base: Url,
    /// The `Host` of every request, unless one is configured.
    pub(super) host: HeaderValue,
    /// The header for the base URL's user information.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) proxy: Option<Proxy>,
}

impl Endpoint {
    pub(super) fn new(base_url: &str, proxy: Option<&str>) -> Result<Self, HttpError> {
        let (base, authorization) = base(base_url)?;
        let host = HeaderValue::from_str(&base[Position::BeforeHost..Position::AfterPort])
            .map_err(|_| HttpError::BaseUrl("has a host that no request can name".to_owned()))?;
        let proxy = proxy.map(Proxy::parse).transpose()?;
        Ok(Self { base, host, authorization, proxy })
    }

    /// Whether a connection to the one is as good for the other.
    pub(super) fn can_share_connections(&self, other: &Self) -> bool {
        self.base.origin() == other.base.origin() && self.proxy == other.proxy
    }

    /// The proxy that gets requests as they are; over https it sees a tunnel alone.
    pub(super) fn forwarding_proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| self.base.scheme() == "http")
    }

    /// Whether an answer of this status is a proxy's, which has forwarded nothing.
    pub(super) fn is_refused_by_proxy(&self, status: StatusCode) -> bool {
        status == StatusCode::PROXY_AUTHENTICATION_REQUIRED && self.forwarding_proxy().is_some()
    }
}

fn base(text: &str) -> Result<(Url, Option<HeaderValue>), HttpError> {
    let wrong = |why: &str| HttpError::BaseUrl(why.to_owned());
    let url = Url::parse(text).map_err(|error| HttpError::BaseUrl(format!("is none ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is neither http nor https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("has a query or a fragment"));
    }
    if !url.path().ends_with('/') {
        return Err(wrong("does not end in `/`"));
    }
    if url.as_str().len() > MAX_BASE {
        return Err(wrong("is over 8192 bytes"));
    }
    let host = url.host_str().unwrap_or_default();
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>()
        && guard::is_forbidden(address)
    {
        return Err(HttpError::ForbiddenAddress(address));
    }
    split_credentials(url)
}

/// The header value for the user information of a URL; `None` if it is not UTF-8.
pub(super) fn basic(url: &Url) -> Option<HeaderValue> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from).ok();
    let pair = format!("{}:{}", decoded(url.username())?, decoded(url.password().unwrap_or_default())?);
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Removes the user information from the URL, and returns the header that it stands for.
fn split_credentials(mut url: Url) -> Result<(Url, Option<HeaderValue>), HttpError> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok((url, None));
    }
    let wrong = || HttpError::BaseUrl("has user information that is not UTF-8".to_owned());
    let authorization = basic(&url).ok_or_else(wrong)?;
    // A URL with a host can always be changed in this way.
    url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| wrong())?;
    Ok((url, Some(authorization)))
}
