//! Builds the request of a job.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Uri};
use url::{Position, Url};

use super::AGENT;
use super::connection::Outgoing;
use super::endpoint::Endpoint;
use super::oauth2::Token;
use super::proxy::Proxy;
use super::target::Current;
use super::upload::Payload;
use crate::job::{self, Job, Reason, shown};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

const ANYTHING: HeaderValue = HeaderValue::from_static("*/*");

type Refusal = (Reason, String);

/// Where a request goes and what it is authorized with, as of the time when it was made.
pub(super) struct Basis {
    pub(super) current: Arc<Current>,
    /// The token of OAuth2, if there is a client.
    pub(super) token: Option<Arc<Token>>,
}

impl Basis {
    /// The request of a job, or the reason why there can be none. A decoded job always has one; the checks are repeated
    /// because jobs can be built by hand.
    pub(super) fn request(&self, job: &Job) -> Result<Outgoing, Refusal> {
        let endpoint = &self.current.endpoint;
        let mut request = Request::new(Payload::new(job.content.body.clone()));
        *request.method_mut() = Method::from_bytes(job.request.method.as_bytes())
            .map_err(|_| (Reason::MalformedHeader, "the method is none".to_owned()))?;
        *request.uri_mut() = endpoint.uri(&job.request.path)?;
        *request.headers_mut() = self.headers_of(job, endpoint)?;
        if job.content.body.is_empty() && matches!(job.request.method, "POST" | "PUT" | "PATCH") {
            // hyper omits the header for an empty body, and some servers answer 411.
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Ok(request)
    }

    fn headers_of(&self, job: &Job, endpoint: &Endpoint) -> Result<HeaderMap, Refusal> {
        let fixed = &self.current.headers;
        let mut headers = HeaderMap::with_capacity(job.request.headers.len() + fixed.len() + 8);
        headers.insert(HOST, endpoint.host.clone());
        for (name, value) in &job.request.headers {
            let shown = || shown(name.as_bytes(), 60);
            let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
                return Err((Reason::MalformedHeader, format!("`{}` is no name of a header", shown())));
            };
            if job::is_never_a_jobs(parsed.as_str()) {
                return Err((Reason::HeaderNotAllowed, format!("`{parsed}` is never a job's to set")));
            }
            headers.insert(parsed, text(value).map_err(|()| malformed(&shown()))?);
        }
        for (name, value) in
            [(CONTENT_TYPE, &job.content.content_type), (CONTENT_ENCODING, &job.content.content_encoding)]
        {
            if let Some(value) = value {
                let value = text(value).map_err(|()| malformed(name.as_str()))?;
                headers.insert(name, value);
            }
        }
        headers.entry(USER_AGENT).or_insert(AGENT);
        headers.entry(ACCEPT).or_insert(ANYTHING);
        for (name, value) in fixed {
            headers.insert(name, value.clone());
        }
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.header.clone());
        }
        if let Some(value) = endpoint.forwarding_proxy().and_then(Proxy::authorization) {
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        let id = text(&job.id).map_err(|()| (Reason::BadId, "the job's id is no header value".to_owned()))?;
        headers.insert(IDEMPOTENCY_KEY, id);
        Ok(headers)
    }
}

impl Endpoint {
    /// The path and query of the request, below the base.
    fn uri(&self, path: &str) -> Result<Uri, Refusal> {
        let text = if is_plain(path) {
            let base = self.base.path();
            let mut text = String::with_capacity(base.len() + path.len());
            text.push_str(base);
            text.push_str(path);
            Some(text)
        } else {
            self.normalised(path)
        };
        text.and_then(|text| match self.forwarding_proxy() {
            None => PathAndQuery::from_maybe_shared(Bytes::from(text)).ok().map(Uri::from),
            // A proxy learns from the request where it goes.
            Some(_) => format!("{}{text}", &self.base[..Position::BeforePath]).parse().ok(),
        })
        .ok_or_else(|| (Reason::ForbiddenPath, "the path leads out of the base URL".to_owned()))
    }

    /// The base and the path as a URL parser normalises them. It resolves dots and backslashes, so that a path that
    /// leads out of the base is detected, and encodes characters that no request may contain.
    fn normalised(&self, path: &str) -> Option<String> {
        let base = self.base.as_str();
        let url = Url::parse(&format!("{base}{path}")).ok().filter(|url| url.as_str().starts_with(base))?;
        Some(url[Position::BeforePath..Position::AfterQuery].to_owned())
    }
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

fn text(value: &str) -> Result<HeaderValue, ()> {
    HeaderValue::from_str(value).map_err(|_| ())
}

fn malformed(name: &str) -> Refusal {
    (Reason::MalformedHeader, format!("the value of `{name}` is no header value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(base_url: &str) -> Endpoint {
        Endpoint::new(base_url, None).unwrap()
    }

    #[test]
    fn what_is_appended_plainly_is_what_a_parser_makes_of_it() {
        // All short paths of pieces that parsers give a meaning to, and of pieces that they do not.
        let pieces =
            ["", "a", "/", ".", "%2e", "%", "?", ":", ";", "@", "=", "!", "+", "//", "a.b", "~", "$"];
        let endpoint = endpoint("http://127.0.0.1/v1/");
        let mut plain = 0;
        for first in pieces {
            for second in pieces {
                for third in pieces {
                    for fourth in pieces {
                        let path = format!("{first}{second}{third}{fourth}");
                        if is_plain(&path) {
                            plain += 1;
                            assert_eq!(endpoint.normalised(&path).as_deref(), Some(&*format!("/v1/{path}")));
                        }
                    }
                }
            }
        }
        assert!(plain > 20_000, "{plain}");
        for byte in 0..=0x7f_u8 {
            let path = format!("a{}b?c{}d", char::from(byte), char::from(byte));
            if is_plain(&path) {
                assert_eq!(endpoint.normalised(&path).as_deref(), Some(&*format!("/v1/{path}")));
            }
        }
    }

    #[test]
    fn what_is_not_plain_is_encoded_or_refused() {
        let endpoint = endpoint("http://127.0.0.1/v1/");
        for (path, sent) in [
            ("", "/v1/"),
            ("a/b?c=d", "/v1/a/b?c=d"),
            ("a%20b/%41", "/v1/a%20b/%41"),
            (".well-known/x", "/v1/.well-known/x"),
            ("{id}/<x>?q={y}", "/v1/%7Bid%7D/%3Cx%3E?q={y}"),
            ("a/b#c", "/v1/a/b"),
            ("a/./b", "/v1/a/b"),
        ] {
            assert_eq!(endpoint.uri(path).unwrap().to_string(), sent, "{path}");
        }
        for path in ["..", "%2E%2e/x", "a/../../x", "..\\x"] {
            assert_eq!(endpoint.uri(path).unwrap_err().0, Reason::ForbiddenPath, "{path}");
        }
    }
}
