//! An API that polices its callers: 10 calls a second, 20 at once after a rest, and 1000 a day.
//!
//!     cargo run --features daemon,headers --example axum_limits -- [memory:|redis://HOST] [HOST:PORT]
//!
//! With a Redis, all processes that run this police their callers together.

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use paced::headers::{Field, Headers, Reset};
use paced::limit::{Calendar, Edges, calendar};
use paced::{Limit, Limiter, RedisOptions, RedisStore};
use tokio::net::TcpListener;

/// The keys that this API has given out, and whose they are. An account is policed, not a key: who has
/// several shares one limit among them, and no state, log or metric holds a secret.
const ACCOUNTS: [(&str, &str); 2] = [("key-of-alice", "alice"), ("key-of-bob", "bob")];

#[derive(Clone)]
struct Police {
    limiter: Limiter,
    headers: Arc<Headers>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "memory:".to_owned());
    let listen = args.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());

    // From midnight to midnight, UTC.
    let days = Edges::Calendar(Calendar::new(calendar::Unit::Day, 0)?);
    let mut builder = Limiter::builder("axum-example")
        .limit(Limit::gcra("per-second", "10/s".parse()?, 20)?)
        .limit(Limit::quota("per-day", 1000, days)?);
    if url != "memory:" {
        builder = builder.store(RedisStore::connect(&url, RedisOptions::default()).await?);
    }
    let limiter = builder.build()?;
    let police = Police { headers: Arc::new(Headers::new(limiter.limits())?), limiter };

    let api = Router::new()
        .route("/", get(async || "Hello.\n"))
        .layer(middleware::from_fn_with_state(police, police_calls));
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    let curl = "curl -i -H 'x-api-key: key-of-alice'";
    println!("call it: {curl} http://{address}/");
    println!("until it is too much: {curl} 'http://{address}/?[1-30]'");
    axum::serve(listener, api).await?;
    Ok(())
}

async fn police_calls(State(police): State<Police>, request: Request, next: Next) -> Response {
    // Before anything is policed: a caller who invents keys must not fill the store with their states.
    let Some(account) = account(request.headers()) else {
        return (StatusCode::UNAUTHORIZED, "say who you are: x-api-key\n").into_response();
    };
    let decision = match police.limiter.check(account).await {
        Ok(decision) => decision,
        // It fails closed. Who would rather serve unpoliced than not at all calls `next` here.
        Err(error) => {
            eprintln!("no decision: {error}");
            return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]).into_response();
        }
    };
    let mut response = if decision.allowed {
        next.run(request).await
    } else {
        (StatusCode::TOO_MANY_REQUESTS, "too many calls\n").into_response()
    };
    response
        .headers_mut()
        .extend(police.headers.all(&decision, Reset::InSeconds).into_iter().filter_map(field));
    response
}

fn account(headers: &HeaderMap) -> Option<&'static str> {
    let key = headers.get("x-api-key")?.to_str().ok()?;
    ACCOUNTS.iter().find(|(known, _)| *known == key).map(|(_, account)| *account)
}

fn field((name, value): Field) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
}
