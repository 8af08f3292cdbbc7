//! The nodes of a broker: chooses the address to connect to, where there are several.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout_at};

use super::address::Address;

/// How long an attempt runs alone: a node that is down and sends no answer must leave time for the next one. A node
/// that is busy answers later; then the first answer counts.
const STAGGER: Duration = Duration::from_secs(2);

/// The first of these attempts that succeeds. Each begins once the one before has failed, or has taken [`STAGGER`],
/// and then they run side by side. Without a success until `by`, the result is the last error that `is_specific`, or
/// the last error if none is; `None` without an error.
///
/// Cancel safe if the attempts are: a dropped future drops those in progress.
pub(super) async fn first<T, E>(
    attempts: Vec<BoxFuture<'_, Result<T, E>>>,
    is_specific: fn(&E) -> bool,
    by: Instant,
) -> Option<Result<T, E>> {
    let mut waiting = attempts.into_iter();
    let mut running = FuturesUnordered::new();
    let mut last: Option<E> = None;
    loop {
        running.extend(waiting.next());
        if running.is_empty() {
            return last.map(Err);
        }
        // After the time-out the next attempt joins.
        match timeout_at(by.min(Instant::now() + STAGGER), running.next()).await {
            Ok(Some(Ok(value))) => return Some(Ok(value)),
            Ok(Some(Err(error))) => {
                if last.as_ref().is_none_or(|last| !is_specific(last) || is_specific(&error)) {
                    last = Some(error);
                }
            }
            Err(_) if Instant::now() >= by => return last.map(Err),
            Ok(None) | Err(_) => {}
        }
    }
}

/// The hosts of the address, each as an address of its own, in random order, so that the connections of many replicas
/// spread over the nodes.
pub(super) fn hosts(address: &Address) -> Vec<Address> {
    let mut hosts = address.each_host();
    fastrand::shuffle(&mut hosts);
    hosts
}

/// The socket addresses of a host, in random order.
///
/// # Errors
/// The name has no address, or its addresses cannot be found.
pub(super) async fn resolve(host: &Address) -> io::Result<Vec<SocketAddr>> {
    let authority = host.uri().authority;
    let mut found: Vec<SocketAddr> = lookup_host((authority.host, authority.port)).await?.collect();
    found.sort_unstable();
    found.dedup();
    fastrand::shuffle(&mut found);
    if found.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    type Attempt = BoxFuture<'static, Result<&'static str, &'static str>>;

    fn after(millis: u64, result: Result<&'static str, &'static str>) -> Attempt {
        Box::pin(async move {
            sleep(Duration::from_millis(millis)).await;
            result
        })
    }

    async fn run(attempts: Vec<Attempt>) -> (Option<Result<&'static str, &'static str>>, u128) {
        let start = Instant::now();
        let result = first(attempts, |error| *error == "login", start + Duration::from_secs(10)).await;
        (result, start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_answer_leaves_time_for_the_next() {
        let silent = || Box::pin(pending()) as Attempt;
        assert_eq!(run(vec![silent(), after(10, Ok("b"))]).await, (Some(Ok("b")), 2_010));
        assert_eq!(run(vec![silent(), silent(), after(10, Ok("c"))]).await, (Some(Ok("c")), 4_010));
        // When one fails, the next begins at once, also beside one that does not answer.
        assert_eq!(run(vec![after(5, Err("a")), after(10, Ok("b"))]).await, (Some(Ok("b")), 15));
        let all = vec![silent(), after(5, Err("b")), after(10, Ok("c"))];
        assert_eq!(run(all).await, (Some(Ok("c")), 2_015));
        // The first answer counts, regardless of which attempt began first.
        assert_eq!(run(vec![after(2_005, Ok("a")), after(10, Ok("b"))]).await, (Some(Ok("a")), 2_005));
        assert_eq!(run(vec![after(10, Ok("a")), silent()]).await, (Some(Ok("a")), 10));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_success_the_most_telling_error_is_kept() {
        assert_eq!(run(Vec::new()).await.0, None);
        assert_eq!(run(vec![after(0, Err("a")), after(0, Err("b"))]).await.0, Some(Err("b")));
        assert_eq!(run(vec![after(0, Err("login")), after(0, Err("b"))]).await.0, Some(Err("login")));
        // An attempt that never answers does not hide that error either.
        let silent = || Box::pin(pending()) as Attempt;
        assert_eq!(run(vec![silent(), after(0, Err("login"))]).await, (Some(Err("login")), 10_000));
        assert_eq!(run(vec![silent(), silent()]).await, (None, 10_000));
    }

    #[tokio::test]
    async fn every_host_and_every_address_has_its_turn() {
        let address: Address = "amqp://me:pw@127.0.0.1:1,[::1]:2,127.0.0.1:3/v".parse().unwrap();
        let mut firsts = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let hosts = hosts(&address);
            assert_eq!(hosts.len(), 3);
            firsts.insert(resolve(&hosts[0]).await.unwrap()[0].to_string());
        }
        assert_eq!(firsts.into_iter().collect::<Vec<_>>(), ["127.0.0.1:1", "127.0.0.1:3", "[::1]:2"]);
    }
}
