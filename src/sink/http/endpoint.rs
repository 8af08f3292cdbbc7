//! Where requests go, by which proxy, and the headers that all of them have.

use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use url::{Position, Url};

use super::credentials::basic;
use super::error::HttpError;
use super::guard;
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
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| wrong("has a value that no header may have; use visible ASCII"))?;
    value.set_sensitive(true);
    Ok((parsed, value))
}
