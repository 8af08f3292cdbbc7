//! Addresses that no request may reach, however its downstream's name resolves.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

/// Finds the addresses of a host; may block.
pub(super) type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

type Allowed = Result<vec::IntoIter<SocketAddr>, Box<dyn Error + Send + Sync>>;

/// Resolves the host by the system's resolver, as other programs do.
pub(super) fn system(host: &str) -> io::Result<Vec<SocketAddr>> {
    // The port is the connector's business: 0 is replaced.
    Ok((host, 0).to_socket_addrs()?.collect())
}

/// Removes addresses that [`is_forbidden`] from the results of a lookup. It runs on each connect, so a name that
/// resolves otherwise between check and use gains nothing.
#[derive(Clone)]
pub(super) struct Resolver(Lookup);

impl Resolver {
    pub(super) const fn new(lookup: Lookup) -> Self {
        Self(lookup)
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
        let lookup = self.0;
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found = tokio::task::spawn_blocking(move || lookup(&host)).await??;
            allowed(name.as_str(), found)
        })
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

/// Link-local addresses, and those at which clouds hand out credentials.
pub(super) fn is_forbidden(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_forbidden_v4(address),
        IpAddr::V6(address) => is_forbidden_v6(address),
    }
}

fn is_forbidden_v4(address: Ipv4Addr) -> bool {
    // The second is Alibaba Cloud's metadata.
    address.is_link_local() || address == Ipv4Addr::new(100, 100, 100, 200)
}

fn is_forbidden_v6(address: Ipv6Addr) -> bool {
    let embedded = match address.segments() {
        // NAT64 leads to the IPv4 address at the end.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => address.to_ipv4_mapped(),
    };
    embedded.is_some_and(is_forbidden_v4)
        || address.is_unicast_link_local()
        // AWS's services on the instance, metadata (::254) among them.
        || matches!(address.segments(), [0xfd00, 0xec2, ..])
        // Google Cloud's metadata.
        || address == Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)
}

#[cfg(test)]
mod tests {
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
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
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
            "fec0::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "64:ff9b::808:808",
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
}
