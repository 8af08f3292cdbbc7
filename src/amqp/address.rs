//! The address of the broker, and the credentials for it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};

use crate::files::{FreshSecret, ReadSecret};
use crate::tls::Tls;

/// The time-out for reading the file of the URL.
const LONGEST_READ: Duration = Duration::from_secs(2);

/// The seconds between heartbeats unless the URL sets them: a dead peer is noticed after twice that time.
const HEARTBEAT: u16 = 10;

/// The longest short string of AMQP 0-9-1, in bytes.
pub(super) const SHORT: usize = 255;

/// A broker's address with its credentials, which are never shown. It may have several hosts, the nodes of a cluster:
/// each connection uses one of them.
#[derive(Clone)]
pub struct Address {
    /// The URL, with the first host.
    uri: AMQPUri,
    /// The further hosts, with their ports.
    others: Vec<(String, u16)>,
    /// The TLS settings of connections; `None` where the URL has no TLS.
    tls: Option<Tls>,
    /// The source of the present URL, if the URL comes from a file.
    url: Option<Arc<FreshSecret>>,
    /// The longest frame, as the last connection agreed on it with the broker; 0 before the first one.
    frame_max: Arc<AtomicU32>,
}

/// The reason why a text is no address. It never repeats the text, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an AMQP URL: {0}; write amqp://USER:PASSWORD@HOST:PORT/VHOST, %2f for the vhost \"/\"")]
pub struct AddressError(String);

impl Address {
    /// The same address, with these TLS settings instead of the default, which trusts the system's authorities. A URL
    /// with `amqp` stays without TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = self.tls.map(|_| tls);
        self
    }

    /// The same address with a source for its URL, which now contains this URL: each connection reads the user and
    /// the password from the source again.
    #[must_use]
    pub fn reading_login_again(mut self, url: &str, read: ReadSecret) -> Self {
        self.url = Some(Arc::new(FreshSecret::new("amqp.url", url.to_owned(), read)));
        self
    }

    /// The same address with the user and the password as they are now.
    ///
    /// Cancel safe.
    pub(super) async fn with_fresh_login(&self) -> Self {
        let mut address = self.clone();
        if let Some(url) = &self.url
            // A text that is no URL was refused when it was read.
            && let Ok(fresh) = url.current(LONGEST_READ).await.parse::<Self>()
        {
            address.uri.authority.userinfo = fresh.uri.authority.userinfo;
        }
        address
    }

    /// The URL, with the first host.
    ///
    /// It requests frames as long as those of the last connection. lapin has a buffer of 64 frames for each
    /// connection. If it knows the length of a frame beforehand, it allocates the buffer at once, and only the part
    /// in use takes memory. If it learns the length from the broker, it fills 8 MiB with zeros.
    pub(super) fn uri(&self) -> AMQPUri {
        let mut uri = self.uri.clone();
        let known = self.frame_max.load(Ordering::Relaxed);
        uri.query.frame_max = uri.query.frame_max.or((known > 0).then_some(known));
        uri
    }

    /// Remembers the longest frame that a connection agreed on with the broker.
    pub(super) fn agreed_on_frames(&self, frame_max: u32) {
        self.frame_max.store(frame_max, Ordering::Relaxed);
    }

    /// An address for each host.
    pub(super) fn each_host(&self) -> Vec<Self> {
        let first = (self.uri.authority.host.clone(), self.uri.authority.port);
        let hosts = std::iter::once(first).chain(self.others.iter().cloned());
        let alone = |(host, port)| {
            let mut address = Self { others: Vec::new(), ..self.clone() };
            (address.uri.authority.host, address.uri.authority.port) = (host, port);
            address
        };
        hosts.map(alone).collect()
    }

    /// The TLS settings of connections; `None` where the URL has no TLS.
    pub const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses `amqp://` and `amqps://` URLs, with one host or several: `amqp://U:P@H1:PORT,H2:PORT/VHOST`. No path and the
    /// path `/` both mean the vhost `/`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut hosts = each_host(text)?.into_iter().map(|text| Self::of_one(&text));
        let mut address = hosts.next().unwrap_or_else(|| Self::of_one(text))?;
        for other in hosts {
            let authority = other?.uri.authority;
            address.others.push((authority.host, authority.port));
        }
        Ok(address)
    }
}

impl Address {
    /// Parses a URL with one host.
    fn of_one(text: &str) -> Result<Self, AddressError> {
        let mut uri: AMQPUri = text.parse().map_err(|_| refuse("scheme, host, port or query are wrong"))?;
        if uri.vhost.is_empty() {
            uri.vhost = "/".to_owned();
        }
        if uri.vhost.len() > SHORT {
            return Err(refuse("the vhost is longer than 255 bytes"));
        }
        // lapin's parser ignores an IPv6 host, and would connect to localhost.
        if let Some(host) = ipv6(text) {
            uri.authority.host = host.to_owned();
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        let tls = matches!(uri.scheme, AMQPScheme::AMQPS).then(Tls::system);
        Ok(Self { uri, others: Vec::new(), tls, url: None, frame_max: Arc::default() })
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        (&self.uri, &self.others, &self.tls) == (&other.uri, &other.others, &other.tls)
    }
}

impl Eq for Address {}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.uri.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        let (host, port) = (&self.uri.authority.host, self.uri.authority.port);
        let others = self.others.iter().map(|(host, port)| (",", host, *port));
        write!(f, "{scheme}://")?;
        for (separator, host, port) in std::iter::once(("", host, port)).chain(others) {
            match host.contains(':') {
                true => write!(f, "{separator}[{host}]:{port}")?,
                false => write!(f, "{separator}{host}:{port}")?,
            }
        }
        match self.uri.vhost.as_str() {
            "/" => Ok(()),
            vhost => write!(f, "/{vhost}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn refuse(why: &str) -> AddressError {
    AddressError(why.to_owned())
}

/// A URL for each host of a URL with several. lapin's parser reads a missing host as localhost.
fn each_host(text: &str) -> Result<Vec<String>, AddressError> {
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    let hosts = text[start..end].rfind('@').map_or(start, |at| start + at + 1);
    let list: Vec<&str> = text[hosts..end].split(',').collect();
    if list.len() > 1 && list.iter().any(|host| host.is_empty() || host.starts_with(':')) {
        return Err(refuse("a host is missing in its list"));
    }
    Ok(list.into_iter().map(|host| format!("{}{host}{}", &text[..hosts], &text[end..])).collect())
}

fn ipv6(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_and_a_slash_mean_the_vhost_slash() {
        for text in ["amqp://127.0.0.1", "amqp://127.0.0.1/", "amqp://127.0.0.1:5672/%2f"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.uri.vhost, "/", "{text}");
            assert_eq!(address.to_string(), "amqp://127.0.0.1:5672", "{text}");
        }
        let address: Address = "amqps://host/team".parse().unwrap();
        assert_eq!((address.uri.vhost.as_str(), address.uri.authority.port), ("team", 5671));
        assert_eq!(address.to_string(), "amqps://host:5671/team");
    }

    #[test]
    fn credentials_reach_the_broker_and_nothing_else() {
        let address: Address = "amqp://me:s%40cret@host/v".parse().unwrap();
        assert_eq!(address.uri.authority.userinfo.password, "s@cret");
        assert_eq!(format!("{address} {address:?}"), "amqp://host:5672/v amqp://host:5672/v");
        let error = "http://me:s3cret@host".parse::<Address>().unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[test]
    fn an_ipv6_host_is_not_taken_for_localhost() {
        let address: Address = "amqp://me:pw@[::1]:5673/".parse().unwrap();
        assert_eq!((address.uri.authority.host.as_str(), address.uri.authority.port), ("::1", 5673));
        assert_eq!(address.to_string(), "amqp://[::1]:5673");
    }

    #[test]
    fn several_hosts_share_the_login_and_the_vhost() {
        let address: Address = "amqps://me:s%2Ccret@a:1,[::1],b:3/v?heartbeat=3".parse().unwrap();
        assert_eq!(address.to_string(), "amqps://a:1,[::1]:5671,b:3/v");
        for (one, shown) in
            address.each_host().iter().zip(["amqps://a:1/v", "amqps://[::1]:5671/v", "amqps://b:3/v"])
        {
            assert_eq!(one.to_string(), shown);
            assert_eq!(
                (one.uri.authority.userinfo.password.as_str(), one.uri.query.heartbeat),
                ("s,cret", Some(3))
            );
            assert!(one.tls.is_some() && one.others.is_empty());
        }
        let other: Address = "amqps://me:s%2Ccret@a:1,[::1],b:4/v?heartbeat=3".parse().unwrap();
        assert!(address != other && address == address.clone());
        for wrong in ["amqp://a,", "amqp://,a", "amqp://a,:1", "amqp://a,b:x", "amqp://a,b:99999"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn heartbeats_are_on_unless_the_url_says_otherwise() {
        let heartbeat = |text: &str| text.parse::<Address>().unwrap().uri.query.heartbeat;
        assert_eq!(heartbeat("amqp://h"), Some(HEARTBEAT));
        assert_eq!(heartbeat("amqp://h/?heartbeat=3"), Some(3));
    }

    #[test]
    fn later_connections_ask_for_the_frames_of_the_first() {
        let asked = |address: &Address| address.uri().query.frame_max;
        let address: Address = "amqp://h".parse().unwrap();
        assert_eq!(asked(&address), None, "the broker decides");
        let shared = address.clone();
        address.each_host()[0].agreed_on_frames(65_536);
        assert_eq!(asked(&shared), Some(65_536));
        let address: Address = "amqp://h?frame_max=8192".parse().unwrap();
        address.agreed_on_frames(4_096);
        assert_eq!(asked(&address), Some(8_192), "the URL decides");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "rabbit", "redis://h", "amqp://h:99999", &format!("amqp://h/{}", "v".repeat(256))] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
