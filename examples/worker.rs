//! A worker that calls an API at the pace of a downstream of paced's configuration, which it shares with the daemons and
//! all other workers of that configuration.
//!
//!     cargo run --features config,redis --example worker -- paced.toml billing http://127.0.0.1:8080/ 100
//!
//! Further arguments: `acquire` (the default), `schedule` or `reserve`, and a name that it sends to the API.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use paced::{ReserveError, Shaper};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// The wait before a reservation that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);

type AnyError = Box<dyn Error + Send + Sync>;

/// The API, and who calls it.
struct Api {
    client: Client<HttpConnector, Empty<Bytes>>,
    url: String,
    name: String,
}

impl Api {
    async fn call(&self, job: usize) -> Result<(), AnyError> {
        let request = Request::post(&self.url)
            .header("idempotency-key", format!("{}-{job}", self.name))
            .header("x-replica", &self.name)
            .body(Empty::new())?;
        self.client.request(request).await?;
        Ok(())
    }
}

/// Calls the API at a slot, in one of the three ways.
async fn call(shaper: &Shaper, api: &Api, how: &str, job: usize) -> Result<(), AnyError> {
    match how {
        "acquire" => {
            // Returns when the slot has come.
            shaper.acquire("tenant-42").await?;
            api.call(job).await
        }
        "schedule" => shaper.schedule("tenant-42", api.call(job)).await?,
        "reserve" => loop {
            let reservation = match shaper.reserve("tenant-42").await {
                Ok(reservation) => reservation,
                // Others wait in order: one cannot have a slot that is so far ahead.
                Err(ReserveError::NotYet { retry_at }) => {
                    sleep_until(retry_at).await;
                    continue;
                }
                // Such as a store that does not answer in time.
                Err(error) if error.is_retryable() => {
                    sleep(RETRY).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            reservation.wait().await;
            // If this process stood still meanwhile, the slot is over.
            if !reservation.is_missed() {
                break api.call(job).await;
            }
        },
        other => Err(format!("`{other}` is none of acquire, schedule and reserve").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or_else(|| format!("{what} is missing"));
    let (file, downstream, url) = (next("the file")?, next("the downstream")?, next("the URL")?);
    let count: usize = next("the number of calls")?.parse()?;
    let how: Arc<str> = next("").unwrap_or_else(|_| "acquire".to_owned()).into();
    let name = next("").unwrap_or_else(|_| "worker".to_owned());

    let shaper = Shaper::from_config(file, &downstream)?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let api = Arc::new(Api { client, url, name });
    let mut calls = JoinSet::new();
    for job in 0..count {
        let (shaper, api, how) = (shaper.clone(), Arc::clone(&api), Arc::clone(&how));
        calls.spawn(async move { call(&shaper, &api, &how, job).await });
    }
    while let Some(called) = calls.join_next().await {
        called??;
    }
    Ok(())
}
