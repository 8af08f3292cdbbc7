//! Parses texts that are durations, sizes, names and headers. The problems say what would be right.

use std::str::FromStr;
use std::time::Duration;

use super::secret::Secret;
use crate::job;
use crate::rate::RateError;
#[cfg(feature = "http")]
use crate::sink::http::HttpOptions;

/// The form of durations and of sizes.
pub(super) const DURATION: &str = "^[0-9]+(us|ms|s|m|h|d)$";
pub(super) const SIZE: &str = "^[0-9]+(B|KiB|MiB|GiB)$";

/// The form of names of downstreams, plans and limits, but for their length.
pub(super) const NAME: &str = "^[a-z0-9](_?[a-z0-9-])*_?$";

/// The form of what [`prefix`] accepts.
pub(super) const PREFIX: &str = "^[A-Za-z0-9._-]{1,64}$";

/// The form of names of headers.
pub(super) const HEADER: &str = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";

/// The longest duration: a leap year.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Parses a duration such as `30s`: an integer and one of `us`, `ms`, `s`, `m`, `h`, `d`, at most a year.
///
/// # Errors
/// A text that says what is wrong, and what would be right.
pub fn duration(text: &str) -> Result<Duration, String> {
    let syntax =
        || format!("{} is no duration; write an integer and us, ms, s, m, h or d, such as 30s", shown(text));
    let (number, unit) = integer_and_unit(text).ok_or_else(syntax)?;
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(syntax()),
    };
    let duration = number.checked_mul(micros).map(Duration::from_micros);
    duration
        .filter(|duration| *duration <= LONGEST)
        .ok_or_else(|| format!("{} is over a year; use at most 366d", shown(text)))
}

/// What `parse` reads, from `low` to `high`.
pub(super) fn within<T: PartialOrd>(
    text: &str,
    low: &str,
    high: &str,
    parse: fn(&str) -> Result<T, String>,
) -> Result<T, String> {
    let given = parse(text)?;
    if given < parse(low)? || given > parse(high)? {
        return Err(format!("{} is out of range; use {low} to {high}", shown(text)));
    }
    Ok(given)
}

/// An integer and one of `B`, `KiB`, `MiB`, `GiB`, in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let syntax =
        || format!("{} is no size; write an integer and B, KiB, MiB or GiB, such as 1MiB", shown(text));
    let (number, unit) = integer_and_unit(text).ok_or_else(syntax)?;
    let bytes: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(syntax()),
    };
    // What is beyond 64 bits is beyond every bound.
    Ok(number.saturating_mul(bytes))
}

fn integer_and_unit(text: &str) -> Option<(u64, &str)> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    Some((number.parse().ok()?, unit))
}

/// Parses a rate, or an amount.
pub(super) fn rate<R: FromStr<Err = RateError>>(text: &str) -> Result<R, RateError> {
    text.parse().map_err(|error: RateError| match clipped(text) {
        clip if clip == text => error,
        clip => error.about(clip),
    })
}

/// One of these words. `mistake` is what the error says of any other word, such as "no precision".
pub(super) fn choose<T: Copy>(text: &str, mistake: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let hint = match (&words[..], job::nearest(text, &words)) {
        ([first @ .., last], _) if first.len() < 3 => format!("use {} or {last}", first.join(", ")),
        (_, Some(near)) => format!("did you mean {near}?"),
        (_, None) => format!("use one of {}", words.join(", ")),
    };
    Err(format!("{} is {mistake}; {hint}", shown(text)))
}

/// The name of a `thing`: `[a-z0-9][a-z0-9_-]{0,62}` without `__`.
pub(super) fn name(thing: &str, name: &str) -> Result<(), String> {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = name.starts_with(lower)
        && name.len() <= 63
        && name.chars().all(|c| lower(c) || c == '_' || c == '-')
        && !name.contains("__");
    if fits {
        return Ok(());
    }
    Err(format!(
        "no name for a {thing}; use up to 63 of a-z, 0-9, _ and -, begin with a letter or digit, without `__`"
    ))
}

fn text_if(fits: bool, text: &str, problem: &str) -> Result<String, String> {
    if fits { Ok(text.to_owned()) } else { Err(problem.to_owned()) }
}

/// The prefix of names in the broker and the store.
pub(super) fn prefix(text: &str) -> Result<String, String> {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let fits = (1..=64).contains(&text.len()) && text.chars().all(safe);
    text_if(fits, text, "no prefix; use 1 to 64 of letters, digits, `.`, `_` and `-`")
}

/// The prefix of the name of a queue; "" is the prefix of every name.
pub(super) fn reply_prefix(text: &str) -> Result<String, String> {
    text_if(text.len() <= 255, text, "longer than any name of a queue; use at most 255 bytes")
}

/// `HOST:PORT`, an IPv6 address in brackets.
pub(super) fn listen(text: &str) -> Result<String, String> {
    const RIGHT: &str = "write HOST:PORT, such as 127.0.0.1:9750 or [::1]:9750";
    if text.contains("://") {
        return Err(format!("a URL; {RIGHT}"));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("has no port; {RIGHT}"));
    };
    if !port.bytes().all(|b| b.is_ascii_digit()) || port.parse::<u16>().is_err() {
        return Err(format!("has no port from 0 to 65535; {RIGHT}"));
    }
    if is_host(host) { Ok(text.to_owned()) } else { Err(format!("has no host to listen on; {RIGHT}")) }
}

/// A name or an address; an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()),
        None => (1..=253).contains(&host.len()) && host.chars().all(name),
    }
}

/// Checks the value of a `Host` header: `HOST`, or `HOST:PORT`, in lower case.
pub(super) fn allowed_host(text: &str) -> Result<String, String> {
    const RIGHT: &str = "write HOST or HOST:PORT, such as paced.internal";
    let host = match text.rsplit_once(':') {
        // The colons belong to an address in brackets.
        Some((_, rest)) if rest.ends_with(']') => text,
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok() => host,
        Some(_) => return Err(format!("{} is no host; {RIGHT}", shown(text))),
        None => text,
    };
    if is_host(host) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!("{} is no host; {RIGHT}", shown(text)))
}

/// Checks a token that requests to the admin server carry in a header.
///
/// # Errors
/// The text is no token. The error does not show it.
pub fn token(text: &str) -> Result<Secret, String> {
    if (1..=1024).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(Secret::hidden(text));
    }
    Err("no token; use 1 to 1024 visible ASCII characters without spaces".to_owned())
}

pub(super) fn queue_name(text: &str) -> Result<String, String> {
    let fits = (1..=255).contains(&text.len()) && !text.contains(char::is_control);
    text_if(fits, text, "no name of a queue; use 1 to 255 bytes without control characters")
}

/// A method that a job may have.
pub(super) fn method(text: &str) -> Result<String, String> {
    let words = job::METHODS.map(|method| (method, method));
    choose(text, "no method that a job may have", &words).map(str::to_owned)
}

/// The name of a header that a job may set, in lower case.
pub(super) fn allowed_header(text: &str) -> Result<String, String> {
    let name = header_name(text)?;
    if matches!(name.as_str(), "authorization" | "cookie") {
        return Err(format!("a job never sets {name}; put it under `headers` of this downstream"));
    }
    if name.contains('*') {
        return Err(format!("{name} is no name of one header; list each name, such as x-request-id"));
    }
    if job::is_never_a_jobs(&name) {
        return Err(format!("a job never sets {name}; paced sets it itself, remove it"));
    }
    Ok(name)
}

/// The name of any header, in lower case.
pub(super) fn any_header_name(text: &str) -> Result<String, String> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if text.is_empty() || !text.chars().all(token) {
        return Err("no name of a header; use letters, digits and `-`, such as x-request-id".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

/// The name of a request header that configuration may set, in lower case.
pub(super) fn header_name(text: &str) -> Result<String, String> {
    const OURS: [&str; 8] = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
    ];
    let name = any_header_name(text)?;
    if OURS.contains(&name.as_str()) || name.starts_with("proxy-") {
        return Err(format!("{name} belongs to the connection, not to a request; remove it"));
    }
    Ok(name)
}

/// The name of a header that every request has, in lower case.
pub(super) fn fixed_header(text: &str) -> Result<String, String> {
    let name = header_name(text)?;
    #[cfg(feature = "http")]
    check_http(HttpOptions {
        headers: vec![(name.clone(), "value".to_owned())],
        ..HttpOptions::new("http://localhost/")
    })?;
    Ok(name)
}

/// Checks that the HTTP sink accepts these options.
#[cfg(feature = "http")]
pub(super) fn check_http(options: HttpOptions) -> Result<(), String> {
    options.check().map_err(|error| error.to_string())
}

/// The value of a header.
pub(super) fn header_value(text: &str) -> Result<Secret, String> {
    if text.is_empty() {
        return Err("empty; give the header a value".to_owned());
    }
    if text.contains(['\n', '\r']) {
        return Err("has a line break in it; a header is one line".to_owned());
    }
    if text.trim() != text {
        return Err("begins or ends with white space; remove it".to_owned());
    }
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err("has a control character, which no header can hold; use visible text".to_owned());
    }
    Ok(Secret::hidden(text))
}

/// The name of a client of OAuth2.
pub(super) fn client_id(text: &str) -> Result<String, String> {
    let fits = (1..=256).contains(&text.len()) && text.chars().all(|c| matches!(c, ' '..='~'));
    text_if(fits, text, "no name of a client; use 1 to 256 visible ASCII characters")
}

/// The secret of a client of OAuth2.
pub(super) fn client_secret(text: &str) -> Result<Secret, String> {
    if !(1..=8192).contains(&text.len()) || !text.chars().all(|c| matches!(c, ' '..='~')) {
        return Err("no secret of a client; use 1 to 8192 visible ASCII characters, on one line".to_owned());
    }
    if text.trim() != text {
        return Err("begins or ends with white space; remove it".to_owned());
    }
    Ok(Secret::hidden(text))
}

/// One scope of OAuth2 (RFC 6749, section 3.3).
pub(super) fn scope(text: &str) -> Result<String, String> {
    let is_plain = |c: char| matches!(c, '!'..='~') && !matches!(c, '"' | '\\');
    let fits = !text.is_empty() && text.chars().all(is_plain);
    text_if(
        fits,
        text,
        "no scope; use visible ASCII characters without spaces, and list each scope by itself",
    )
}

/// The value of a parameter of requests for a token, other than those that paced sets itself.
pub(super) fn token_param(text: &str) -> Result<Secret, String> {
    let fits = (1..=1024).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    text_if(fits, text, "no value of a parameter; use 1 to 1024 characters, on one line").map(Secret::hidden)
}

/// The parameters of requests for a token that paced sets itself.
pub(super) const OWN_TOKEN_PARAMS: [&str; 4] = ["client_id", "client_secret", "grant_type", "scope"];

/// Checks the name of a parameter of requests for a token (RFC 6749, appendix A).
pub(super) fn token_param_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    match name {
        "scope" => Err("is what `scopes` sets; use that".to_owned()),
        _ if OWN_TOKEN_PARAMS.contains(&name) => Err("is set by paced; remove it".to_owned()),
        _ if !name.is_empty() && name.chars().all(is_plain) => Ok(()),
        _ => Err("is no name of a parameter; use letters, digits, '-', '.' and '_'".to_owned()),
    }
}

/// Checks that the HTTP sink accepts this URL of a token server.
#[cfg(feature = "http")]
pub(super) fn token_url(url: &str) -> Result<(), String> {
    crate::sink::http::check_token_url(url).map_err(|error| error.to_string())
}

/// The text as it appears in a message: quoted, short, and without anything that looks like a secret.
pub(super) fn shown(text: &str) -> String {
    format!("`{}`", clipped(text))
}

pub(super) fn clipped(text: &str) -> String {
    if text.contains("://") || text.contains('@') || text.chars().count() > 40 {
        return "***".to_owned();
    }
    text.to_owned()
}

#[cfg(test)]
mod tests;
