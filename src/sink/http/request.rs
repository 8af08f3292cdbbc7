//! Builds the request of a job.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Uri};

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
            .map_err(|_| (Reason::MalformedHeader, "the method is no HTTP method".to_owned()))?;
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
        let id = HeaderValue::from_str(&job.id)
            .map_err(|_| (Reason::BadId, "the job's id is no header value".to_owned()))?;
        headers.insert(IDEMPOTENCY_KEY, id);
        Ok(headers)
    }
}

impl Endpoint {
    /// Where the request of a job with this path goes.
    fn uri(&self, path: &str) -> Result<Uri, Refusal> {
        let refused = |why: &str| (Reason::ForbiddenPath, why.to_owned());
        let target = self.base.join(path).map_err(refused)?;
        let uri = match self.forwarding_proxy() {
            None => PathAndQuery::from_maybe_shared(Bytes::from(target)).ok().map(Uri::from),
            // A proxy learns from the request where it goes.
            Some(_) => format!("{}{target}", self.base.origin()).parse().ok(),
        };
        uri.ok_or_else(|| refused("a request cannot have this path"))
    }
}

/// The value of a field, which may hold UTF-8.
fn text(value: &str) -> Result<HeaderValue, ()> {
    HeaderValue::from_bytes(value.as_bytes()).map_err(|_| ())
}

fn malformed(name: &str) -> Refusal {
    (Reason::MalformedHeader, format!("the value of `{name}` is no header value"))
}
