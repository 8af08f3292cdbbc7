//! The HTTP client of the loops: the crate that paced uses, with the same options.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Url};

/// Sends to one URL.
#[derive(Clone, Debug)]
pub struct Sender {
    client: Client,
    url: Url,
}

impl Sender {
    pub fn new(url: &str) -> Result<Self, String> {
        // Fails where it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .http1_only()
            .redirect(Policy::none())
            .no_proxy()
            .tcp_nodelay(true)
            .timeout(Duration::from_secs(30))
            .tls_certs_only([])
            .build()
            .map_err(|error| format!("no HTTP client: {error}"))?;
        let url = Url::parse(url).map_err(|error| format!("{url}: {error}"))?;
        Ok(Self { client, url })
    }

    /// One request, its answer read to the end; false when it failed.
    pub async fn send(&self, id: &str, body: Vec<u8>) -> bool {
        let request = self.client.post(self.url.clone()).header("idempotency-key", id).body(body);
        let Ok(answer) = request.send().await else { return false };
        let delivered = answer.status().is_success();
        answer.bytes().await.is_ok() && delivered
    }
}
