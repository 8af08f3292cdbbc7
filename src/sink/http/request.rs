//! From a job to its request.

use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use reqwest::{Body, Method, Request, Url};

use super::options::Target;
use crate::job::{self, Job, Reason, shown};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("paced/", env!("CARGO_PKG_VERSION")));

type Refusal = (Reason, String);

impl Target {
    /// The request of a job, or why there can be none. A decoded job always has one; the checks
    /// are repeated because jobs can be built by hand.
    pub(super) fn request(&self, job: &Job) -> Result<Request, Refusal> {
        let method = Method::from_bytes(job.method.as_bytes())
            .map_err(|_| (Reason::MalformedHeader, "the method is none".to_owned()))?;
        let mut request = Request::new(method, self.url(&job.path)?);
        *request.headers_mut() = self.headers(job)?;
        if !job.body.is_empty() {
            *request.body_mut() = Some(Body::from(job.body.clone()));
        } else if matches!(job.method, "POST" | "PUT" | "PATCH") {
            // hyper leaves it out then, and some servers answer 411.
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Ok(request)
    }

    fn url(&self, path: &str) -> Result<Url, Refusal> {
        let base = self.base.as_str();
        let mut text = String::with_capacity(base.len() + path.len());
        text.push_str(base);
        text.push_str(path);
        // Parsing normalises dots and backslashes: what led out of the base shows now.
        Url::parse(&text)
            .ok()
            .filter(|url| url.as_str().starts_with(base))
            .ok_or_else(|| (Reason::ForbiddenPath, "the path leads out of the base URL".to_owned()))
    }

    fn headers(&self, job: &Job) -> Result<HeaderMap, Refusal> {
        let mut headers = HeaderMap::with_capacity(job.headers.len() + self.headers.len() + 4);
        for (name, value) in &job.headers {
            let shown = || shown(name.as_bytes(), 60);
            let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
                return Err((Reason::MalformedHeader, format!("`{}` is no name of a header", shown())));
            };
            if job::is_never_a_jobs(parsed.as_str()) {
                return Err((Reason::HeaderNotAllowed, format!("`{parsed}` is never a job's to set")));
            }
            headers.insert(parsed, text(value).map_err(|()| malformed(&shown()))?);
        }
        for (name, value) in [(CONTENT_TYPE, &job.content_type), (CONTENT_ENCODING, &job.content_encoding)] {
            if let Some(value) = value {
                let value = text(value).map_err(|()| malformed(name.as_str()))?;
                headers.insert(name, value);
            }
        }
        headers.entry(USER_AGENT).or_insert(AGENT);
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        let id = text(&job.id).map_err(|()| (Reason::BadId, "the job's id is no header value".to_owned()))?;
        headers.insert(IDEMPOTENCY_KEY, id);
        Ok(headers)
    }
}

fn text(value: &str) -> Result<HeaderValue, ()> {
    HeaderValue::from_str(value).map_err(|_| ())
}

fn malformed(name: &str) -> Refusal {
    (Reason::MalformedHeader, format!("the value of `{name}` is no header value"))
}
