//! The base URL of a sink, and how a job's path is joined to it. It has no I/O.

use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;
use url::{Position, Url};

use super::credentials::basic;
use super::{HttpError, guard};

/// A longer base URL leaves no room for paths: an HTTP target ends at 64 KiB.
const MAX_BASE: usize = 8192;

/// How often a name in a query is decoded: a server behind a proxy may decode it once more than the first one does.
const MOST_DECODINGS: usize = 3;

/// Where jobs go: to the URL itself, or below it.
#[derive(PartialEq, Eq)]
pub(super) struct Base {
    /// The URL without user information, query and fragment.
    url: Url,
    /// The beginning of the query of every request. It may be a secret, and is never shown.
    query: Option<Fixed>,
}

/// The query of a base URL.
#[derive(PartialEq, Eq)]
struct Fixed {
    text: String,
    names: Vec<Name>,
}

/// The name of a parameter: its parts, of which those after the first were in brackets (`filter[a]`).
type Name = Vec<String>;

impl Base {
    /// Parses a base URL, and returns the header that its user information stands for. The error does not repeat it.
    pub(super) fn parse(text: &str) -> Result<(Self, Option<HeaderValue>), HttpError> {
        let wrong = |why: &str| HttpError::BaseUrl(why.to_owned());
        let url = Url::parse(text).map_err(|error| HttpError::BaseUrl(format!("is none ({error})")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("is neither http nor https"));
        }
        if url.fragment().is_some() {
            return Err(wrong("has a fragment"));
        }
        if url.as_str().len() > MAX_BASE {
            return Err(wrong("is over 8192 bytes"));
        }
        guard::check_host(&url)?;
        let (mut url, authorization) = split_credentials(url)?;
        let query = url.query().filter(|query| !query.is_empty());
        let query = query.map(|text| Fixed { text: text.to_owned(), names: names(text).collect() });
        url.set_query(None);
        Ok((Self { url, query }, authorization))
    }

    /// The URL without user information, query and fragment.
    pub(super) const fn url(&self) -> &Url {
        &self.url
    }

    /// `SCHEME://HOST[:PORT]`
    pub(super) fn origin(&self) -> &str {
        &self.url[..Position::BeforePath]
    }

    /// The path and the query of the request for a job with this path; the error is for people. An empty path means the
    /// base itself; any other one is appended behind one slash. The job's query comes after the base URL's.
    pub(super) fn join(&self, path: &str) -> Result<String, &'static str> {
        let base = self.url.path();
        let separator = if split(path).0.is_empty() || base.ends_with('/') { "" } else { "/" };
        let mut target = [base, separator, path].concat();
        if !is_plain(path) {
            target = self.normalised(&target).ok_or("the path leads out of the base URL")?;
        }
        let Some(fixed) = &self.query else { return Ok(target) };
        let (place, query) = split(&target);
        match query.filter(|query| !query.is_empty()) {
            None => Ok([place, "?", &fixed.text].concat()),
            Some(query) if fixed.clashes(query) => {
                Err("`paced-path` has a name in its query that the query of `base_url` has; leave it out")
            }
            Some(query) => Ok([place, "?", &fixed.text, "&", query].concat()),
        }
    }

    /// The target as a URL parser normalises it, if that is still below the base. A parser resolves dots and
    /// backslashes, and encodes characters that no request may contain.
    fn normalised(&self, target: &str) -> Option<String> {
        let url = Url::parse(&format!("{}{target}", self.origin())).ok()?;
        let is_below = url[..Position::BeforePath] == *self.origin() && self.has(url.path());
        is_below.then(|| url[Position::BeforePath..Position::AfterQuery].to_owned())
    }

    /// Whether this path is that of the base, or below it.
    fn has(&self, path: &str) -> bool {
        let base = self.url.path();
        let rest = path.strip_prefix(base);
        rest.is_some_and(|rest| rest.is_empty() || base.ends_with('/') || rest.starts_with('/'))
    }
}

impl Fixed {
    /// Whether a server may take a name in `query` for one of these.
    fn clashes(&self, query: &str) -> bool {
        names(query).any(|name| self.names.iter().any(|fixed| is_same(fixed, &name)))
    }
}

/// The path, and the query without its `?`.
fn split(target: &str) -> (&str, Option<&str>) {
    target.split_once('?').map_or((target, None), |(place, query)| (place, Some(query)))
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

/// The names in a query. Some servers separate parameters at `;` too.
fn names(query: &str) -> impl Iterator<Item = Name> {
    let parameters = query.split(['&', ';']).filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| name(parameter.split('=').next().unwrap_or_default()))
}

/// A name as lenient servers read it: decoded, in lower case, and without white space and brackets before it. Characters
/// that PHP has in no name become `_`. The name is split at brackets, also if one is missing (`key]`, `filter[a`), and ends
/// at the text behind one.
fn name(raw: &str) -> Name {
    let mut text = raw.replace('+', " ");
    for _ in 0..MOST_DECODINGS {
        text = percent_decode_str(&text).decode_utf8_lossy().into_owned();
    }
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '[' || c == ']');
    let text = text.to_lowercase().replace(['.', ' '], "_");
    let mut name = Name::new();
    for part in text.split('[') {
        let (key, rest) = part.split_once(']').unwrap_or((part, ""));
        name.push(key.to_owned());
        if !rest.is_empty() {
            break;
        }
    }
    name
}

/// Whether a value of the one name can replace or change that of the other. They are equal as far as both go (`a` is all of
/// `a[b]`), where `[]` is a place that the server chooses; or they are one name to a server that takes a bracket for `_`
/// (`a[b`), or a point for brackets (`a.b`).
fn is_same(one: &Name, other: &Name) -> bool {
    let is_part = one[..1] == other[..1]
        && one.iter().zip(other).skip(1).all(|(a, b)| a == b || a.is_empty() || b.is_empty());
    is_part || one.join("_") == other.join("_")
}

/// Whether a URL parser would append the path unchanged: nothing in it is encoded or dropped, and no segment begins as
/// `.`, `..` and their encodings do.
fn is_plain(path: &str) -> bool {
    let mut starts_segment = true;
    path.bytes().all(|byte| {
        let is_plain = match byte {
            b'.' | b'%' => !starts_segment,
            _ => byte.is_ascii_alphanumeric() || b"-_~/?&=+,:;@!$()*".contains(&byte),
        };
        starts_segment = byte == b'/';
        is_plain
    })
}

#[cfg(test)]
mod tests;
