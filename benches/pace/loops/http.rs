//! The HTTP client of the loops, from the crates that paced uses, as their documentation has it.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::fleet::REPLICA;

const PATIENCE: Duration = Duration::from_secs(30);

/// A sender to one URL.
#[derive(Clone, Debug)]
pub struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
    /// What it calls itself at the API.
    name: Option<HeaderValue>,
}

impl Sender {
    pub fn new(url: &str) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        Ok(Self { client, uri, name: None })
    }

    /// Returns the sender with a name, which it sends to the API with each request.
    pub fn named(mut self, name: &str) -> Result<Self, String> {
        self.name = Some(name.parse().map_err(|error| format!("{name}: {error}"))?);
        Ok(self)
    }

    /// Sends one request and reads its answer to the end; returns false if it failed.
    pub async fn send(&self, id: &str, body: Vec<u8>) -> bool {
        let mut request = Request::post(self.uri.clone())
            .header("idempotency-key", id)
            .header(CONTENT_TYPE, "application/octet-stream");
        if let Some(name) = &self.name {
            request = request.header(REPLICA, name);
        }
        let request = request.body(Full::from(body));
        let Ok(request) = request else { return false };
        let sent = timeout(PATIENCE, async {
            let answer = self.client.request(request).await.ok()?;
            let delivered = answer.status().is_success();
            answer.into_body().collect().await.ok().map(|_| delivered)
        });
        sent.await.ok().flatten().unwrap_or(false)
    }
}
