//! A small HTTP client without proxies and redirects, for servers on loopback.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::HeaderMap;
use hyper::{Method, Request};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// The error when there is no answer.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A client that keeps its connections, which its clones share.
#[derive(Clone, Debug)]
pub struct Client(legacy::Client<HttpConnector, Full<Bytes>>);

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub text: String,
}

impl Client {
    /// A client without connections yet.
    pub fn new() -> Self {
        // Servers close connections that are idle for 2 s: a request must not meet that instant.
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        Self(builder.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(1)).build_http())
    }

    /// GET.
    pub async fn get(&self, url: &str) -> Result<Reply, Error> {
        self.send(Method::GET, url, &[], "").await
    }

    /// Sends a request, with these headers, and reads the answer.
    pub async fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Reply, Error> {
        let request = Request::builder().method(method).uri(url);
        let request = headers.iter().fold(request, |request, &(name, value)| request.header(name, value));
        let (head, body) = self.0.request(request.body(Full::new(body.into()))?).await?.into_parts();
        let text = String::from_utf8(body.collect().await?.to_bytes().into())?;
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, text })
    }
}
