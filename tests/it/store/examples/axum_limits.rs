//! The API that polices its callers.

use std::process::Stdio;
use std::time::Duration;

use hyper::Method;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::task::JoinSet;

use super::example;
use crate::support::client::{Client, Reply};
use crate::support::{eventually, real_now, servers};

/// The example as a server on a free port.
struct Api {
    /// The process, which is killed when it is dropped.
    _child: Child,
    url: String,
    client: Client,
}

impl Api {
    async fn start(store: &str) -> Self {
        let mut command = example("axum_limits");
        let mut child = command.args([store, "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = printed.next_line().await.unwrap().expect("it ended");
        let url = first.strip_prefix("listening on ").unwrap().to_owned();
        let curl = "curl -i -H 'x-api-key: key-of-alice'";
        assert_eq!(printed.next_line().await.unwrap().unwrap(), format!("call it: {curl} {url}/"));
        let third = printed.next_line().await.unwrap().unwrap();
        assert_eq!(third, format!("until it is too much: {curl} '{url}/?[1-30]'"));
        Self { _child: child, url, client: Client::new() }
    }

    async fn call(&self, key: &str) -> Reply {
        self.client.send(Method::GET, &self.url, &[("x-api-key", key)], "").await.unwrap()
    }

    /// Makes many calls at once; returns how many were served, what is left of the day after the last of these, and one of
    /// the latest denials. Whether one comes after the last that is served is not certain, since units come back.
    async fn call_until_denied(&self, key: &'static str) -> (usize, u64, Reply) {
        let mut calls = JoinSet::new();
        for _ in 0..400 {
            let (client, url) = (self.client.clone(), self.url.clone());
            calls.spawn(
                async move { client.send(Method::GET, &url, &[("x-api-key", key)], "").await.unwrap() },
            );
        }
        let all = calls.join_all().await;
        let left = all.iter().map(|reply| remaining(reply, "per-day")).min().unwrap();
        let (served, denied): (Vec<_>, Vec<_>) = all.into_iter().partition(|reply| reply.status == 200);
        assert!(served.iter().all(|reply| header(reply, "retry-after").is_none()));
        assert!(denied.iter().all(|reply| reply.status == 429));
        let last = denied.into_iter().min_by_key(|reply| remaining(reply, "per-day"));
        (served.len(), left, last.expect("some of 400 calls are denied"))
    }
}

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let mut values = reply.headers.get_all(name).iter();
    let value = values.next()?.to_str().unwrap();
    assert!(values.next().is_none(), "{name} twice");
    Some(value)
}

/// The remaining units `r` of a limit in `ratelimit`.
fn remaining(reply: &Reply, limit: &str) -> u64 {
    let field = header(reply, "ratelimit").unwrap();
    let start = field.find(&format!("\"{limit}\";r=")).unwrap_or_else(|| panic!("{field}"));
    let number = field[start..].split(['=', ';']).nth(2).unwrap();
    number.parse().unwrap()
}

#[tokio::test]
async fn callers_are_policed_and_get_their_standing() {
    let api = Api::start("memory:").await;
    let first = api.call("key-of-alice").await;
    assert_eq!((first.status, first.text.as_str()), (200, "Hello.\n"));
    let policy = r#""per-second";q=20;w=2, "per-day";q=1000;w=86400"#;
    assert_eq!(header(&first, "ratelimit-policy"), Some(policy));
    assert!(header(&first, "ratelimit").unwrap().starts_with(r#""per-second";r=19;t=1, "per-day";r=999;t="#));
    assert_eq!(header(&first, "x-ratelimit-limit"), Some("20"));
    assert_eq!(header(&first, "x-ratelimit-remaining"), Some("19"));
    assert_eq!(header(&first, "x-ratelimit-reset"), Some("1"));

    let start = real_now();
    let (served, left, denied) = api.call_until_denied("key-of-alice").await;
    // The burst was used up, and some units have come back meanwhile.
    let back = usize::try_from(start.elapsed().as_millis() / 100).unwrap() + 1;
    assert!((19..=19 + back).contains(&served), "{served} in {:?}", start.elapsed());
    assert_eq!(header(&denied, "ratelimit-policy"), Some(policy));
    assert!(header(&denied, "ratelimit").unwrap().starts_with(r#""per-second";r=0;t=1, "per-day";r="#));
    // The first call took a unit of the day too; those that were denied did not.
    assert_eq!(left, 999 - u64::try_from(served).unwrap());
    assert_eq!(header(&denied, "x-ratelimit-remaining"), Some("0"));
    assert_eq!(header(&denied, "retry-after"), Some("1"));

    assert_eq!(api.call("key-of-bob").await.status, 200, "each has limits of its own");
    for stranger in ["key-of-mallory", ""] {
        let reply = api.call(stranger).await;
        assert_eq!((reply.status, header(&reply, "ratelimit")), (401, None));
    }
}

#[tokio::test]
async fn who_waits_as_asked_is_served_and_two_processes_police_together() {
    let redis = servers::Redis::dedicated().await;
    let url = redis.url();
    let (one, two) = tokio::join!(Api::start(&url), Api::start(&url));
    let (_, before, denied) = one.call_until_denied("key-of-alice").await;
    let denied_at = real_now();
    let retry_after: u64 = header(&denied, "retry-after").unwrap().parse().unwrap();
    // Both share the limit per day.
    let wait = Duration::from_secs(retry_after);
    eventually("the announced wait is over", wait * 10, || denied_at.elapsed() >= wait).await;
    let reply = two.call("key-of-alice").await;
    assert_eq!(reply.status, 200, "{:?}", reply.headers);
    assert_eq!(remaining(&reply, "per-day"), before - 1);
}
