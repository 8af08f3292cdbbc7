//! Addresses that no request may reach, even if the name of its downstream resolves to them.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower_service::Service;
use url::{Host, Url};

use super::HttpError;
use crate::lock::lock;

/// Finds the addresses of a host; may block.
pub(super) type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

type Allowed = Result<vec::IntoIter<SocketAddr>, Box<dyn Error + Send + Sync>>;

/// Resolves the host by the system's resolver, as other programs do.
pub(super) fn system(host: &str) -> io::Result<Vec<SocketAddr>> {
    // The connector replaces the port 0.
    Ok((host, 0).to_socket_addrs()?.collect())
}

/// The most lookups of one host at a time. Each takes a thread until the system's resolver answers, which may be long after the
/// connection was given up; all downstreams share these threads.
const MOST_LOOKUPS: usize = 8;

/// A new connection waits for a lookup in progress if it began within this time. An older one may hang where a new
/// one does not.
const JOINED_WITHIN: Duration = Duration::from_secs(1);

/// A lookup, for all that wait for it. An error is its text.
type Found = Shared<Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, String>> + Send>>>;

/// Resolves the host of one connector, and removes addresses that [`is_forbidden`]. It does so for each connection, so it also
/// catches a name that resolves to another address after the check of the configuration. Connections that are opened at the same
/// time share a lookup: a slow resolver does not bound how many are opened in a second. Clones share lookups.
#[derive(Clone)]
pub(super) struct Resolver {
    lookup: Lookup,
    turns: Arc<Semaphore>,
    /// The lookup that began last, and when.
    latest: Arc<Mutex<Option<(Instant, Found)>>>,
}

impl Resolver {
    pub(super) fn new(lookup: Lookup) -> Self {
        Self { lookup, turns: Arc::new(Semaphore::new(MOST_LOOKUPS)), latest: Arc::default() }
    }

    /// The lookup of the host for a connection that is opened now.
    fn look(&self, host: &str, now: Instant) -> Found {
        let mut latest = lock(&self.latest);
        let turn = Arc::clone(&self.turns).try_acquire_owned().ok();
        if let Some((begun_at, found)) = &*latest
            && found.peek().is_none()
            && (turn.is_none() || now.saturating_duration_since(*begun_at) < JOINED_WITHIN)
        {
            return found.clone();
        }
        let (lookup, host) = (self.lookup, host.to_owned());
        let looking = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            lookup(&host)
        });
        let found = async move {
            let found = looking.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            found.map_err(|error| error.to_string())
        };
        let found = found.boxed().shared();
        *latest = Some((now, found.clone()));
        found
    }
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Allowed> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let found = self.look(name.as_str(), Instant::now());
        Box::pin(async move { allowed(name.as_str(), found.await?) })
    }
}

fn allowed(host: &str, found: Vec<SocketAddr>) -> Allowed {
    let some = !found.is_empty();
    let left: Vec<SocketAddr> = found.into_iter().filter(|address| !is_forbidden(address.ip())).collect();
    if some && left.is_empty() {
        return Err(format!("{host} has link-local or metadata addresses only").into());
    }
    Ok(left.into_iter())
}

/// Refuses a URL whose host no request may reach. The parser of URLs has read addresses in all their forms (decimal, octal,
/// hexadecimal), and names in lower case.
pub(super) fn check_host(url: &Url) -> Result<(), HttpError> {
    let is_refused = match url.host() {
        Some(Host::Ipv4(address)) => is_forbidden_v4(address),
        Some(Host::Ipv6(address)) => is_forbidden_v6(address),
        Some(Host::Domain(name)) => METADATA_NAMES.contains(&name.trim_end_matches('.')),
        None => false,
    };
    if is_refused {
        return Err(HttpError::ForbiddenAddress(url.host_str().unwrap_or_default().to_owned()));
    }
    Ok(())
}

/// The names at which clouds hand out credentials, which a proxy may resolve where this process cannot.
const METADATA_NAMES: [&str; 6] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.tencentyun.com",
    "instance-data",
    "instance-data.ec2.internal",
];

/// In turn the metadata of Alibaba Cloud, of Azure's agents, and of Oracle Cloud.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// In turn the metadata of Alibaba Cloud, of Akamai (Linode), of Google Cloud, of Oracle Cloud, and of Scaleway.
const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200),
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// Link-local addresses, and those at which clouds hand out credentials.
pub(super) fn is_forbidden(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_forbidden_v4(address),
        IpAddr::V6(address) => is_forbidden_v6(address),
    }
}

fn is_forbidden_v4(address: Ipv4Addr) -> bool {
    address.is_link_local() || METADATA_V4.contains(&address)
}

fn is_forbidden_v6(address: Ipv6Addr) -> bool {
    embedded(address).is_some_and(is_forbidden_v4)
        || address.is_unicast_link_local()
        // AWS's services on the instance, metadata (::254) among them.
        || matches!(address.segments(), [0xfd00, 0xec2, ..])
        || METADATA_V6.contains(&address)
}

/// The IPv4 address to which a gateway or the system translates this one.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // NAT64, with the prefix for everybody or one of a network's own (RFC 8215), and translation (RFC 2765).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low] => Some(join(high, low)),
        // 6to4
        [0x2002, high, low, ..] => Some(join(high, low)),
        // Mapped (::ffff:a.b.c.d) and compatible (::a.b.c.d).
        _ => address.to_ipv4(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn what_no_job_may_reach() {
        for text in [
            "169.254.0.0",
            "169.254.169.254",
            "169.254.255.255",
            "100.100.100.200",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "169.254.170.2",
            "169.254.170.23",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::23",
            "fd00:42::42",
            "fd00:c1::a9fe:a9fe",
            "fd00:a9fe:a9fe::1",
            "fd00:100::100:200",
            "::ffff:169.254.169.254",
            "::ffff:100.100.100.200",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:2:3:4:a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(is_forbidden(address(text)), "{text}");
        }
        for text in [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.253.255.255",
            "169.255.0.0",
            "8.8.8.8",
            "::1",
            "fd00::1",
            "fd00:42::43",
            "fec0::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "64:ff9b::808:808",
            "64:ff9b:1::808:808",
            "2002:808:808::1",
            "::8.8.8.8",
            "::",
            "100.100.100.201",
            "168.63.129.17",
            "192.0.0.1",
        ] {
            assert!(!is_forbidden(address(text)), "{text}");
        }
    }

    #[test]
    fn a_lookup_keeps_what_is_allowed() {
        let found = |texts: &[&str]| texts.iter().map(|text| SocketAddr::new(address(text), 0)).collect();
        let left: Vec<_> = allowed("x", found(&["169.254.1.1", "10.0.0.1", "fe80::1"])).unwrap().collect();
        assert_eq!(left, [SocketAddr::new(address("10.0.0.1"), 0)]);
        assert!(allowed("x", found(&["169.254.1.1", "fe80::1"])).is_err());
    }

    #[tokio::test]
    async fn a_name_of_forbidden_addresses_alone_leads_nowhere() {
        let metadata = |_: &str| Ok(vec![SocketAddr::new(address("169.254.169.254"), 0)]);
        let error = Resolver::new(metadata).call("api.example".parse().unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("metadata addresses only"), "{error}");
    }

    /// The lookups that have begun, and whether they are answered.
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static IS_ANSWERED: Mutex<bool> = Mutex::new(false);
    static ANSWERED: Condvar = Condvar::new();

    /// A resolver that answers only once it is to.
    fn silent(_: &str) -> io::Result<Vec<SocketAddr>> {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        let waiting = lock(&IS_ANSWERED);
        let _answered = ANSWERED.wait_while(waiting, |is_answered| !*is_answered).unwrap();
        Ok(vec![SocketAddr::new(address("10.0.0.1"), 0)])
    }

    /// Has all lookups answered when it is dropped: the runtime waits for their threads, also after a failure.
    struct Answers;

    impl Drop for Answers {
        fn drop(&mut self) {
            *lock(&IS_ANSWERED) = true;
            ANSWERED.notify_all();
        }
    }

    /// A slow resolver delays connections, and does not bound how many are opened. One that hangs takes few threads from others.
    #[tokio::test]
    async fn connections_share_lookups_of_which_few_are_under_way() {
        let answers = Answers;
        let (resolver, start) = (Resolver::new(silent), Instant::now());
        let look = |at| resolver.look("api.example", start + at);
        let mut all: Vec<Found> = (0..100).map(|_| look(Duration::ZERO)).collect();
        // The connection that began it may be given up.
        let first = all.remove(0);
        assert!(first.now_or_never().is_none());
        assert_eq!(resolver.turns.available_permits(), MOST_LOOKUPS - 1);
        all.extend((1..20).map(|lookups| look(JOINED_WITHIN * lookups)));
        assert_eq!(resolver.turns.available_permits(), 0);
        drop(answers);
        for found in all {
            assert_eq!(found.await.unwrap().len(), 1);
        }
        assert_eq!(BEGUN.load(Ordering::SeqCst), MOST_LOOKUPS, "the others joined the latest one");
        assert_eq!(resolver.turns.available_permits(), MOST_LOOKUPS);
        // The latest began just now, and has ended: a new connection does not take its result.
        look(JOINED_WITHIN * 7).await.unwrap();
        assert_eq!(BEGUN.load(Ordering::SeqCst), MOST_LOOKUPS + 1);
    }
}
