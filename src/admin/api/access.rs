//! Decides which requests are allowed. It has no I/O.
//!
//! Access to the address is no permission to change anything: any page in a browser on this machine can post to it, and
//! a name that is bound anew (DNS rebinding) lets a foreign page read it. So every request must be addressed to a known
//! name and have no foreign origin, and one that changes something must carry the token.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use axum::http::uri::{Authority, Uri};
use axum::http::{Method, StatusCode};
use paced::config::{Admin, Secret};

use super::reply::Refusal;

/// Where a request came from, and the address that it reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) remote: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// The rules of access, from `[admin]`.
pub(crate) struct Access {
    token: Option<Secret>,
    read_token: Option<Secret>,
    hosts: Vec<String>,
    /// The name that the server listens on.
    own: Option<String>,
}

impl Access {
    pub(crate) fn new(admin: &Admin) -> Self {
        let own = admin.listen.as_deref().and_then(|listen| listen.rsplit_once(':'));
        Self {
            token: admin.token.clone(),
            read_token: admin.read_token.clone(),
            hosts: admin.allow_hosts.clone(),
            own: own.map(|(host, _)| host.to_ascii_lowercase()),
        }
    }

    /// Checks whether a request is addressed to this daemon, and comes from no page of another origin.
    pub(crate) fn is_meant(&self, uri: &Uri, headers: &HeaderMap, local: IpAddr) -> Result<(), Refusal> {
        let host = self.host(uri, headers, local)?;
        if headers.get_all(ORIGIN).iter().any(|origin| !is_same(origin.as_bytes(), &host)) {
            let text = "requests from pages of another origin are refused";
            return Err(Refusal::new(StatusCode::FORBIDDEN, text));
        }
        Ok(())
    }

    /// Checks whether a request is allowed.
    pub(super) fn check(
        &self,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        local: IpAddr,
    ) -> Result<(), Refusal> {
        self.is_meant(uri, headers, local)?;
        if method == Method::GET || method == Method::HEAD {
            return self.may_look(headers);
        }
        self.may_change(headers)?;
        if is_json(headers) {
            return Ok(());
        }
        let text = "no JSON; send content-type: application/json";
        Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
    }

    /// The host that the request is addressed to, if it is one of this daemon's.
    fn host(&self, uri: &Uri, headers: &HeaderMap, local: IpAddr) -> Result<Authority, Refusal> {
        // The authority in the request line takes precedence.
        let given = match uri.authority() {
            Some(authority) => Some(authority.clone()),
            None => only(headers, HOST).and_then(|host| host.parse::<Authority>().ok()),
        };
        let known = given.filter(|host| !host.as_str().contains('@') && self.is_own(host, local));
        known.ok_or_else(|| {
            let text = "not addressed to a name of this daemon; add the name to admin.allow_hosts";
            Refusal::new(StatusCode::MISDIRECTED_REQUEST, text)
        })
    }

    fn is_own(&self, host: &Authority, local: IpAddr) -> bool {
        let name = host.host().to_ascii_lowercase();
        let address: Option<IpAddr> = name.trim_start_matches('[').trim_end_matches(']').parse().ok();
        // Names can be rebound, but not `localhost` or an address.
        let is_here = |address: IpAddr| {
            let address = address.to_canonical();
            address.is_loopback() || address == local.to_canonical()
        };
        let allowed = |entry: &String| *entry == name || *entry == host.as_str().to_ascii_lowercase();
        name == "localhost"
            || address.is_some_and(is_here)
            || self.own.as_ref().is_some_and(|own| *own == name)
            || self.hosts.iter().any(allowed)
    }

    /// Checks whether a request that only looks has a token, if one is needed: that of those who look, or that of
    /// changes.
    pub(crate) fn may_look(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(read_token) = &self.read_token else { return Ok(()) };
        match bearer(headers) {
            Some(given) if is_one_of(given, [Some(read_token), self.token.as_ref()]) => Ok(()),
            Some(_) => Err(Refusal::unauthorized("the token is wrong; send that of admin.read_token")),
            None => Err(Refusal::unauthorized(
                "send authorization: Bearer TOKEN, with that of admin.read_token or admin.token",
            )),
        }
    }

    /// Checks whether a request carries the token of changes.
    pub(super) fn may_change(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = &self.token else {
            let text = "changes are off; set admin.token or admin.token_file, and restart the daemon";
            return Err(Refusal::new(StatusCode::FORBIDDEN, text));
        };
        match bearer(headers) {
            Some(given) if is_one_of(given, [Some(token), None]) => Ok(()),
            Some(_) => Err(Refusal::unauthorized("the token is wrong; send that of admin.token")),
            None => Err(Refusal::unauthorized("send authorization: Bearer TOKEN, with that of admin.token")),
        }
    }
}

/// The token that a request carries.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers, AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start())
}

/// Whether the given token is one of these. Each of them is compared, so that the time tells nothing.
fn is_one_of(given: &str, tokens: [Option<&Secret>; 2]) -> bool {
    tokens
        .into_iter()
        .flatten()
        .fold(false, |found, token| found | is_equal(given.as_bytes(), token.expose().as_bytes()))
}

/// The text of a header that occurs exactly once.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(first)
}

/// Whether an origin is the host itself, by any scheme: TLS may end before this server.
fn is_same(origin: &[u8], host: &Authority) -> bool {
    let origin = std::str::from_utf8(origin).ok().and_then(|text| text.split_once("://"));
    let Some((scheme @ ("http" | "https"), authority)) = origin else { return false };
    let usual = if scheme == "https" { 443 } else { 80 };
    let parts = |authority: &Authority| {
        (authority.host().to_ascii_lowercase(), authority.port_u16().unwrap_or(usual))
    };
    authority.parse::<Authority>().is_ok_and(|origin| parts(&origin) == parts(host))
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = |text: &str| {
        text.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    };
    only(headers, CONTENT_TYPE).is_some_and(essence)
}

/// Compares in a time that depends only on the length of the given text, not on where the two differ.
fn is_equal(given: &[u8], token: &[u8]) -> bool {
    // The length is mixed in, so that neither is a prefix of the other.
    let differs = (0..given.len()).fold(given.len() ^ token.len(), |differs, at| {
        let expected = token.get(at % token.len().max(1)).copied().unwrap_or_default();
        std::hint::black_box(differs | usize::from(given[at] ^ expected))
    });
    std::hint::black_box(differs) == 0
}

#[cfg(test)]
mod tests;
