//! Parses URLs of the broker, the store and the downstreams. No problem repeats the URL, since it may hold a password.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::secret::Secret;
#[cfg(feature = "http")]
use crate::sink::http::HttpOptions;

/// The parts of a URL, each as it was written.
struct Parts<'a> {
    scheme: &'a str,
    user: Option<&'a str>,
    host: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    fragment: Option<&'a str>,
}

/// `amqp://` or `amqps://`, with one host or several. An empty path and `/` become `/%2f`: they mean the vhost `/`.
pub(super) fn amqp(text: &str) -> Result<Secret, String> {
    const RIGHT: &str = "write amqp://USER:PASSWORD@HOST:5672/VHOST, or amqps://";
    for one in each_host(text) {
        let parts = Parts::of(&one, RIGHT)?;
        if !["amqp", "amqps"].contains(&parts.scheme) {
            return Err(format!("not the URL of a broker; {RIGHT}"));
        }
        parts.no_fragment()?;
        if parts.path.matches('/').count() > 1 {
            return Err("has a vhost with a `/` in it; write it as %2f".to_owned());
        }
    }
    let authority = text.find("://").map_or(0, |at| at + 3);
    let (hosts, rest) =
        text.split_at(text[authority..].find(['/', '?']).map_or(text.len(), |at| authority + at));
    let url = match rest.strip_prefix('/') {
        Some(vhost) if !vhost.is_empty() && !vhost.starts_with('?') => text.to_owned(),
        rest_without_slash => format!("{hosts}/%2f{}", rest_without_slash.unwrap_or(rest)),
    };
    // The client's own parser checks the URL here too, so that its error does not come only when the daemon starts.
    #[cfg(feature = "amqp")]
    url.parse::<crate::amqp::Address>().map_err(|error| error.to_string())?;
    Ok(Secret::new(url))
}

/// `memory:`, `file:PATH`, `redis://`, `redis+sentinel://` or `redis+cluster://`, or with `rediss` for TLS.
pub(super) fn store(text: &str) -> Result<Secret, String> {
    const RIGHT: &str = "write memory:, file:PATH, redis://HOST:6379, redis+sentinel://HOST:26379/MASTER_NAME or redis+cluster://HOST:6379";
    if text == "memory:" {
        return Ok(Secret::new(text));
    }
    if let Some(path) = text.strip_prefix("file:") {
        check_path(path)?;
        return Ok(Secret::new(text));
    }
    match text.split_once("://").map(|(scheme, _)| scheme) {
        Some("redis" | "rediss") => one_server(&Parts::of(text, RIGHT)?)?,
        Some("redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster") => {
            for one in each_host(text) {
                Parts::of(&one, RIGHT)?.no_fragment()?;
            }
        }
        _ => {
            Parts::of(text, RIGHT)?;
            return Err(format!("not the URL of a store; {RIGHT}"));
        }
    }
    #[cfg(feature = "redis")]
    crate::store::RedisStore::open(text, crate::store::RedisOptions::default())
        .map_err(|error| error.to_string())?;
    Ok(Secret::new(text))
}

/// Whether this names a file. Of a URL with two slashes the first part would be a host.
fn check_path(path: &str) -> Result<(), String> {
    const RIGHT: &str = "write such as file:/var/lib/paced/store";
    let has_host = path.starts_with("//") && !path.starts_with("///");
    let is_folder = path.ends_with('/') || path.ends_with("/.") || ["", ".", ".."].contains(&path);
    if has_host || is_folder || path.contains(char::is_control) {
        return Err(format!("names no file; {RIGHT}"));
    }
    Ok(())
}

fn one_server(parts: &Parts<'_>) -> Result<(), String> {
    parts.no_fragment()?;
    let database = parts.path.strip_prefix('/').unwrap_or_default();
    if !database.is_empty()
        && !database.parse::<u16>().is_ok_and(|_| database.bytes().all(|b| b.is_ascii_digit()))
    {
        return Err(
            "has a path that is no database; write its number, such as redis://HOST:6379/0".to_owned()
        );
    }
    Ok(())
}

/// Splits a URL of several hosts into one URL for each.
fn each_host(text: &str) -> impl Iterator<Item = String> {
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    let hosts = text[start..end].rfind('@').map_or(start, |at| start + at + 1);
    text[hosts..end].split(',').map(move |host| format!("{}{host}{}", &text[..hosts], &text[end..]))
}

/// `http://` or `https://`, without credentials; a query is shown nowhere.
pub(super) fn base(text: &str) -> Result<Secret, String> {
    const RIGHT: &str = "write https://HOST/PATH, or http://";
    let parts = Parts::of(text, RIGHT)?;
    if !["http", "https"].contains(&parts.scheme) {
        return Err(format!("not the URL of an API; {RIGHT}"));
    }
    if parts.user.is_some() {
        return Err(
            "has credentials in it; put them under `headers`, such as headers.authorization_file".to_owned()
        );
    }
    parts.no_fragment()?;
    let dots =
        |segment: &str| matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    if parts.path.split('/').any(dots) {
        return Err("has a segment `.` or `..`; write the path that is meant".to_owned());
    }
    #[cfg(feature = "http")]
    super::value::check_http(HttpOptions::new(text))?;
    Ok(Secret::new(text))
}

/// `http://[USER:PASSWORD@]HOST:PORT`, which is never shown with its credentials.
pub(super) fn proxy(text: &str) -> Result<Secret, String> {
    const RIGHT: &str = "write http://USER:PASSWORD@HOST:PORT, or without credentials http://HOST:PORT";
    let parts = Parts::of(text, RIGHT)?;
    if parts.scheme != "http" {
        return Err(format!("not the URL of an HTTP proxy that is reached without TLS; {RIGHT}"));
    }
    parts.no_fragment()?;
    if !["", "/"].contains(&parts.path) || parts.query.is_some() {
        return Err(format!("has a path or a query; {RIGHT}"));
    }
    #[cfg(feature = "http")]
    super::value::check_http(HttpOptions {
        proxy: Some(text.to_owned()),
        ..HttpOptions::new("http://localhost/")
    })?;
    Ok(Secret::new(text))
}

/// `http://` or `https://`, without credentials and query: the URL that tokens come from.
pub(super) fn token(text: &str) -> Result<String, String> {
    const RIGHT: &str = "write https://HOST/PATH, or http://";
    let parts = Parts::of(text, RIGHT)?;
    if !["http", "https"].contains(&parts.scheme) {
        return Err(format!("not the URL of a token server; {RIGHT}"));
    }
    if parts.user.is_some() {
        return Err("has credentials in it; give them as client_id and client_secret_file".to_owned());
    }
    if parts.query.is_some() {
        return Err(format!("has a query; {RIGHT}"));
    }
    parts.no_fragment()?;
    #[cfg(feature = "http")]
    super::value::token_url(text)?;
    Ok(text.to_owned())
}

/// The first host of this URL to which data crosses a network without TLS.
pub(super) fn host_without_tls(url: &str) -> Option<String> {
    const SCHEMES: [&str; 5] = ["amqp", "redis", "redis+sentinel", "redis+cluster", "http"];
    let scheme = url.split_once("://").map(|(scheme, _)| scheme)?;
    let host = |one: String| Parts::of(&one, "").ok().map(|parts| parts.host.to_owned());
    let is_far = |host: &String| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        !address.map_or(host == "localhost", |address| address.is_loopback())
    };
    each_host(url).filter_map(host).find(is_far).filter(|_| SCHEMES.contains(&scheme))
}

/// The secret part of every request to this URL with headers of these names, as text for people; `None` if no part is
/// secret.
pub(super) fn secret_of_requests<'a>(
    url: &str,
    mut headers: impl Iterator<Item = &'a str>,
) -> Option<String> {
    const SECRETS: [&str; 6] = ["authorization", "cookie", "key", "password", "secret", "token"];
    let secret = headers.find(|name| {
        let name = name.to_ascii_lowercase();
        SECRETS.iter().any(|part| name.contains(part))
    });
    let header = secret.map(|name| format!("the header `{name}`"));
    header.or_else(|| url.contains('?').then(|| "the query".to_owned()))
}

/// Says which part of the requests to this URL with headers of these names is secret and crosses a network without
/// TLS, and to which host; `None` if no part is.
#[doc(hidden)]
pub fn sent_in_clear<'a>(url: &str, headers: impl Iterator<Item = &'a str>) -> Option<String> {
    let host = host_without_tls(url)?;
    Some(format!("{} goes to {host} without TLS; write https://", secret_of_requests(url, headers)?))
}

/// Whether the URL has a password in it, for its host or for sentinels.
pub(super) fn has_password(url: &str) -> bool {
    let first = each_host(url).next().unwrap_or_default();
    let parts = Parts::of(&first, "").ok();
    parts.is_some_and(|parts| {
        parts.user.is_some_and(|user| user.contains(':'))
            || parts.query.is_some_and(|query| query.contains("sentinel_password="))
    })
}

impl<'a> Parts<'a> {
    fn of(text: &'a str, right: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err(format!("empty; {right}"));
        }
        if !text.chars().all(|c| matches!(c, '!'..='~'))
            || text.contains(['\\', '"', '<', '>', '^', '`', '{', '|', '}'])
        {
            return Err("has a character that no URL can hold; percent-encode it".to_owned());
        }
        if !percent_encoded(text) {
            return Err("has a `%` without two hexadecimal digits; write a plain `%` as %25".to_owned());
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("no URL; {right}"))?;
        let (rest, fragment) = cut(rest, '#');
        let (rest, query) = cut(rest, '?');
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // A password with an unencoded delimiter ends the host too early.
        let late = [Some(path), query, fragment].into_iter().flatten().any(|part| part.contains('@'));
        if late && !authority.contains('@') {
            return Err(
                "has an `@` after the host; in a password write / as %2F, ? as %3F, # as %23, @ as %40; elsewhere @ as %40"
                    .to_owned(),
            );
        }
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains('@')) {
            return Err("has an `@` in its user or password; write it as %40".to_owned());
        }
        let at = if address.starts_with('[') { address.find(']').map_or(0, |at| at + 1) } else { 0 };
        let (host, port) =
            address.split_at(address[at..].find(':').map_or(address.len(), |colon| at + colon));
        check_host(host, right)?;
        check_port(port)?;
        Ok(Self { scheme, user, host, path, query, fragment })
    }

    fn no_fragment(&self) -> Result<(), String> {
        match self.fragment {
            Some(_) => Err("has a `#`; leave the fragment out, or write # as %23".to_owned()),
            None => Ok(()),
        }
    }
}

fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn percent_encoded(text: &str) -> bool {
    text.split('%').skip(1).all(|part| {
        let digits = part.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

fn check_host(host: &str, right: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err(format!("has no host; {right}"));
    }
    let fits = if let Some(inner) = host.strip_prefix('[') {
        inner.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
    } else {
        let named = |label: &str| {
            let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(letters)
        };
        let name = host.strip_suffix('.').unwrap_or(host);
        let last = name.rsplit('.').next().unwrap_or_default();
        let numeric = last.starts_with(|c: char| c.is_ascii_digit())
            && (last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X"));
        if numeric {
            name.parse::<Ipv4Addr>().is_ok()
        } else {
            name.len() <= 253 && name.split('.').all(named)
        }
    };
    if fits {
        return Ok(());
    }
    Err("has a host that is no name and no address; write such as api.example.com, 127.0.0.1 or [::1]"
        .to_owned())
}

fn check_port(port: &str) -> Result<(), String> {
    let number = port.strip_prefix(':').map(|digits| (digits, digits.parse::<u16>()));
    match number {
        None => Ok(()),
        Some((digits, Ok(1..))) if digits.bytes().all(|b| b.is_ascii_digit()) => Ok(()),
        Some(_) => {
            Err("has a port that is not from 1 to 65535, or a password without `@HOST`; write USER:PASSWORD@HOST:PORT"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
