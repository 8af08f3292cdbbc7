//! The target of requests, their proxy, and the headers that all of them have.

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use url::Position;

use super::base::Base;
use super::error::HttpError;
use super::proxy::Proxy;
use crate::job::shown;

/// Headers that are set from the connection, the body or the job; another value would break requests.
const OWN: [&str; 8] = [
    "connection",
    "content-length",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The target of requests, and their proxy.
#[derive(PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) base: Base,
    /// The `Host` of every request, unless one is configured.
    pub(super) host: HeaderValue,
    /// The header for the base URL's user information.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) proxy: Option<Proxy>,
}

impl Endpoint {
    pub(super) fn new(base_url: &str, proxy: Option<&str>) -> Result<Self, HttpError> {
        let (base, authorization) = Base::parse(base_url)?;
        let host = HeaderValue::from_str(&base.url()[Position::BeforeHost..Position::AfterPort])
            .map_err(|_| HttpError::BaseUrl("has a host that no request can name".to_owned()))?;
        let proxy = proxy.map(Proxy::parse).transpose()?;
        Ok(Self { base, host, authorization, proxy })
    }

    /// Whether a connection to one of the two can also serve the other.
    pub(super) fn can_share_connections(&self, other: &Self) -> bool {
        self.base.url().origin() == other.base.url().origin() && self.proxy == other.proxy
    }

    /// The proxy that gets whole requests; `None` for https, where a proxy only sees a tunnel.
    pub(super) fn forwarding_proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| self.base.url().scheme() == "http")
    }

    /// Whether an answer of this status is a proxy's, which has forwarded nothing.
    pub(super) fn is_refused_by_proxy(&self, status: StatusCode) -> bool {
        status == StatusCode::PROXY_AUTHENTICATION_REQUIRED && self.forwarding_proxy().is_some()
    }
}

/// The headers of every request: the given ones take precedence over the base URL's user information.
pub(super) fn headers(endpoint: &Endpoint, given: Vec<(String, String)>) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::with_capacity(given.len() + 1);
    if let Some(value) = &endpoint.authorization {
        headers.insert(AUTHORIZATION, value.clone());
    }
    for (name, value) in given {
        let (name, value) = header(name, &value)?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn header(name: String, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
    let wrong = |why| HttpError::Header { name: shown(name.as_bytes(), 60), why };
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| wrong("is no name of a header; use letters, digits and `-`"))?;
    if OWN.contains(&parsed.as_str()) {
        return Err(wrong("is set by paced itself; leave it out"));
    }
    let mut value = HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| wrong("has a value that no header may have; use visible text"))?;
    value.set_sensitive(true);
    Ok((parsed, value))
}
