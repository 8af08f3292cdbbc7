//! Decides which requests are allowed. It has no I/O.
//!
//! Access to the address is no permission to change anything. Any page in a browser on this machine can post to the
//! address, and a page whose name is bound to this address (DNS rebinding) can read from it. So every request must be
//! addressed to a known name or to an address and have no foreign origin, and one that changes something must carry
//! the token.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use axum::http::uri::{Authority, Uri};
use paced::config::{Admin, NamedToken, Role, Secret};

use super::connections::Network;
use super::reply::Refusal;
use failed_logins::{FailedLogins, Verdict, Verified};

mod failed_logins;

/// The longest part of a name that a refusal repeats, in characters.
const SHOWN: usize = 100;

/// The rules of access, from `[admin]`.
pub(crate) struct Access {
    /// The tokens, which may be replaced while the daemon runs.
    tokens: RwLock<Arc<Tokens>>,
    can_change: Arc<AtomicBool>,
    /// Whether the role `admin` allows to read the bodies of dead letters.
    shows_bodies: AtomicBool,
    failed_logins: FailedLogins,
    hosts: Vec<String>,
    /// The name that the server listens on.
    own: Option<String>,
}

/// The tokens that requests may carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) all: Vec<Token>,
    /// Whether requests that only read need a token, even if the files have none any more.
    pub(crate) guards_reads: bool,
}

/// A token, and what it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The name under `admin.tokens`; `None` for `admin.token` and `admin.read_token`.
    pub(crate) name: Option<String>,
    pub(crate) role: Role,
    /// `None` if its file is gone or empty.
    pub(crate) secret: Option<Secret>,
}

impl Token {
    /// The key of the configuration that has it.
    pub(crate) fn key(&self) -> String {
        match (&self.name, self.role) {
            (Some(name), _) => format!("admin.tokens.{name}.token"),
            (None, Role::Admin) => "admin.token".to_owned(),
            (None, _) => "admin.read_token".to_owned(),
        }
    }
}

impl From<&Admin> for Tokens {
    fn from(Admin { token, read_token, tokens, .. }: &Admin) -> Self {
        let unnamed = [(token, Role::Admin), (read_token, Role::Read)].into_iter();
        let unnamed = unnamed.filter(|(secret, _)| secret.is_some());
        let unnamed = unnamed.map(|(secret, role)| Token { name: None, role, secret: secret.clone() });
        let named = tokens.iter().map(|NamedToken { name, token, role }| {
            let (name, secret) = (Some(name.clone()), Some(token.clone()));
            Token { name, role: *role, secret }
        });
        let guards_reads = read_token.is_some() || tokens.iter().any(|named| named.role == Role::Read);
        Self { all: unnamed.chain(named).collect(), guards_reads }
    }
}

impl Tokens {
    /// Whether a token with this role, or one that allows more, counts.
    fn has(&self, needed: Role) -> bool {
        self.all.iter().any(|token| token.role >= needed && token.secret.is_some())
    }

    /// The token that was given; if several are the same, the one that allows most. The token is compared with each,
    /// so that the time reveals nothing.
    fn find(&self, given: &str) -> Option<&Token> {
        let same = self.all.iter().filter(|token| is_token(given, token.secret.as_ref()));
        same.max_by_key(|token| token.role)
    }
}

/// The owner of the token that a request carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The name of the token; `None` if it has none, or none was needed.
    pub(crate) name: Option<String>,
}

impl Access {
    pub(crate) fn new(admin: &Admin) -> Self {
        let own = admin.listen.as_deref().and_then(|listen| listen.rsplit_once(':'));
        let access = Self {
            tokens: RwLock::default(),
            can_change: Arc::default(),
            shows_bodies: AtomicBool::new(admin.show_bodies),
            failed_logins: FailedLogins::default(),
            hosts: admin.allow_hosts.clone(),
            own: own.map(|(host, _)| host.to_ascii_lowercase()),
        };
        access.replace_tokens(admin.into());
        access
    }

    /// Accepts these tokens from the next request on.
    pub(crate) fn replace_tokens(&self, tokens: Tokens) {
        self.can_change.store(tokens.has(Role::Operate), Ordering::Relaxed);
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }

    /// Whether changes are on, now and later: there is a token for them.
    pub(crate) fn can_change(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.can_change)
    }

    /// Shows the bodies of dead letters from the next request on, or not any more.
    pub(crate) fn show_bodies(&self, shown: bool) {
        self.shows_bodies.store(shown, Ordering::Relaxed);
    }

    /// Checks whether the bodies of dead letters are shown at all.
    pub(crate) fn has_bodies(&self) -> Result<(), Refusal> {
        if self.shows_bodies.load(Ordering::Relaxed) {
            return Ok(());
        }
        let text = "bodies of dead letters are not shown; set admin.show_bodies, and send the daemon SIGHUP, or use `paced dead show`";
        Err(Refusal::new(StatusCode::FORBIDDEN, text))
    }

    fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.tokens.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks whether a request is addressed to this daemon, and comes from no page of another origin.
    pub(crate) fn is_meant(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = self.host(uri, headers)?;
        if headers.get_all(ORIGIN).iter().any(|origin| !is_same(origin.as_bytes(), &host)) {
            let text = "requests from pages of another origin are refused";
            return Err(Refusal::new(StatusCode::FORBIDDEN, text));
        }
        Ok(())
    }

    /// The host that the request is addressed to, if it is one of this daemon's.
    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Result<Authority, Refusal> {
        // The authority in the request line takes precedence.
        let given = match uri.authority() {
            Some(authority) => Some(authority.clone()),
            None => only(headers, HOST).and_then(|host| host.parse::<Authority>().ok()),
        };
        let asked = match given {
            Some(host) if !host.as_str().contains('@') && self.is_own(&host) => return Ok(host),
            Some(host) => format!("`{}`", host.as_str().chars().take(SHOWN).collect::<String>()),
            None => "no name, or several".to_owned(),
        };
        let text = format!(
            "addressed to {asked}, which is no name of this daemon; add the name to admin.allow_hosts, or use an address"
        );
        Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, text))
    }

    /// Whether a host is one of this daemon's. The owner of a name can bind it to this address, and a page of that name
    /// then reads the answers as its own. Neither `localhost` nor an address can be bound so: a page from an address is
    /// one of the server there. So every address passes: probes and scrapers use those of pods and of proxies.
    fn is_own(&self, host: &Authority) -> bool {
        let name = host.host().to_ascii_lowercase();
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let allowed = |entry: &String| *entry == name || *entry == host.as_str().to_ascii_lowercase();
        name == "localhost"
            || is_address
            || self.own.as_ref().is_some_and(|own| *own == name)
            || self.hosts.iter().any(allowed)
    }

    /// Checks whether a request carries a token with the role that it needs, if it needs one, and returns the token's
    /// owner.
    pub(crate) fn may(&self, needed: Role, headers: &HeaderMap, client: Network) -> Result<Holder, Refusal> {
        let tokens = self.tokens();
        if needed == Role::Read && !tokens.guards_reads {
            return Ok(Holder::default());
        }
        if needed > Role::Read && !tokens.has(needed) {
            let text = "changes are off; set admin.token or admin.token_file, and send the daemon SIGHUP";
            return Err(Refusal::new(StatusCode::FORBIDDEN, text));
        }
        let named = match needed {
            Role::Read => "admin.read_token or admin.token",
            Role::Operate | Role::Admin => "admin.token",
        };
        let Some(given) = bearer(headers) else {
            let text = format!("send authorization: Bearer TOKEN, with that of {named}");
            return Err(Refusal::unauthorized(text));
        };
        let mut found = None;
        let compare = || {
            found = tokens.find(given);
            match found {
                Some(token) if token.role >= needed => Verified::Right(token.role),
                Some(_) => Verified::Other,
                None => Verified::Wrong,
            }
        };
        let verdict = self.failed_logins.check(client, compare);
        match (verdict, found) {
            (Verdict::Right, found) => Ok(Holder { name: found.and_then(|token| token.name.clone()) }),
            (Verdict::Wrong, Some(Token { name: Some(name), role, .. })) => {
                let (role, needed) = (role.name(), needed.name());
                Err(Refusal::unauthorized(format!(
                    "the token is that of `{name}`, whose role `{role}` does not allow this; send one with the role `{needed}`"
                )))
            }
            (Verdict::Wrong, _) => {
                Err(Refusal::unauthorized(format!("the token is wrong; send that of {named}")))
            }
            (Verdict::Blocked(left), _) => {
                let seconds = left.as_secs().saturating_add(1);
                let text = format!(
                    "too many wrong tokens came from this address; try again in {seconds} s, or from another one"
                );
                Err(Refusal::later(StatusCode::TOO_MANY_REQUESTS, text, seconds))
            }
        }
    }
}

/// Checks whether a request says that its body is JSON, which no plain form of a foreign page can.
pub(crate) fn has_json(headers: &HeaderMap) -> Result<(), Refusal> {
    if is_json(headers) {
        return Ok(());
    }
    let text = "no JSON; send content-type: application/json";
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

/// The token that a request carries.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers, AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start())
}

/// Whether the given token is this one.
fn is_token(given: &str, token: Option<&Secret>) -> bool {
    token.is_some_and(|token| is_equal(given.as_bytes(), token.expose().as_bytes()))
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
