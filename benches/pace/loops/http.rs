//! The HTTP client of the loops, from the crates that paced uses, as their documentation has it.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

/// Sends to one URL.
#[derive(Clone, Debug)]
pub struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
}

impl Sender {
    pub fn new(url: &str) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        Ok(Self { client, uri })
    }

    /// One request, its answer read to the end; false when it failed.
    pub async fn send(&self, id: &str, body: Vec<u8>) -> bool {
        let request = Request::post(self.uri.clone())
            .header("idempotency-key", id)
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(Full::from(body));
        let Ok(request) = request else { return false };
        let sent = timeout(PATIENCE, async {
            let answer = self.client.request(request).await.ok()?;
            let delivered = answer.status().is_success();
            answer.into_body().collect().await.ok().map(|_| delivered)
        });
        sent.await.ok().flatten().unwrap_or(false)
    }
}
