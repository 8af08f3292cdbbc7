//! Parses the store's URL: one server, servers behind sentinels, or a cluster. No error repeats the URL, since it may
//! hold a password.

use redis::{ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};

use super::address::Address;
use crate::store::StoreError;

/// The port of sentinels whose URL names none.
const SENTINEL_PORT: u16 = 26379;

/// The servers that a URL names.
#[derive(Debug)]
pub(super) enum Deployment {
    /// One server.
    One(ConnectionInfo),
    /// The server that the sentinels monitor as the master `name`.
    Sentinels {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        /// The login to the master; the sentinels give its address.
        master: ConnectionInfo,
    },
    /// The cluster that these nodes belong to.
    Cluster {
        seeds: Vec<Address>,
        /// The login to every node.
        login: ConnectionInfo,
    },
}

impl Deployment {
    /// # Errors
    /// [`StoreError::Invalid`] with the correct form.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        parse(url).map_err(|problem| StoreError::Invalid(problem.to_owned()))
    }

    /// The login to the servers, or to the sentinels if there are any.
    pub(super) fn login(&self, to_sentinels: bool) -> Option<&RedisConnectionInfo> {
        match self {
            Self::Sentinels { sentinels, .. } if to_sentinels => sentinels.first(),
            Self::One(info) | Self::Sentinels { master: info, .. } | Self::Cluster { login: info, .. } => {
                Some(info)
            }
        }
        .map(ConnectionInfo::redis_settings)
    }
}

fn parse(url: &str) -> Result<Deployment, &'static str> {
    const SCHEME: &str = "the store's URL has another scheme; use redis://HOST:PORT, redis+cluster:// or \
                          redis+sentinel://, or rediss for TLS";
    const ONE: &str = "the store's URL is malformed; write redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]";
    let (scheme, rest) = url.split_once("://").ok_or(SCHEME)?;
    match scheme {
        "redis" | "rediss" => info(url, ONE).map(Deployment::One),
        "redis+cluster" | "rediss+cluster" => cluster(&Parts::of(scheme, rest)?),
        "redis+sentinel" | "rediss+sentinel" => sentinels(&Parts::of(scheme, rest)?),
        _ => Err(SCHEME),
    }
}

/// The parts of a URL with several hosts.
struct Parts<'a> {
    /// The scheme of the same URL for a single host: `redis` or `rediss`.
    scheme: &'a str,
    /// The user information with its `@`, or an empty text.
    login: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(scheme: &'a str, rest: &'a str) -> Result<Self, &'static str> {
        if rest.contains('#') {
            return Err("the store's URL has a `#`; leave the fragment out, or write # as %23");
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let scheme = scheme.split('+').next().unwrap_or_default();
        Ok(Self { scheme, login, hosts, path, query })
    }

    /// Parses each host, with this login, and with this port unless it names its own.
    fn infos(
        &self,
        login: &str,
        port: u16,
        right: &'static str,
    ) -> Result<Vec<ConnectionInfo>, &'static str> {
        let hosts = self.hosts.split(',').map(|host| {
            let after = host.rfind(']').unwrap_or(0);
            let port = if host[after..].contains(':') { String::new() } else { format!(":{port}") };
            info(&format!("{}://{login}{host}{port}", self.scheme), right)
        });
        hosts.collect()
    }
}

fn cluster(parts: &Parts<'_>) -> Result<Deployment, &'static str> {
    const RIGHT: &str = "the URL of the store's cluster is malformed; write \
                         redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]";
    if !["", "/", "/0"].contains(&parts.path) {
        return Err(
            "the URL of the store's cluster has a path; leave it out, a cluster has database 0 alone",
        );
    }
    if parts.query.is_some() {
        return Err("the URL of the store's cluster has a query; leave it out");
    }
    let login = info(&format!("{}://{}node", parts.scheme, parts.login), RIGHT)?;
    let seeds = parts.infos("", 6379, RIGHT)?.iter().map(Address::of).collect();
    Ok(Deployment::Cluster { seeds, login })
}

fn sentinels(parts: &Parts<'_>) -> Result<Deployment, &'static str> {
    const RIGHT: &str = "the URL of the store's sentinels is malformed; write \
                         redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/MASTER_NAME[/DB]";
    let mut path = parts.path.strip_prefix('/').unwrap_or_default().split('/');
    let name = path.next().unwrap_or_default();
    let letters = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.is_empty() || !name.bytes().all(letters) {
        return Err("the URL of the store's sentinels names no master; write \
                    redis+sentinel://HOST[:PORT][,HOST[:PORT]...]/MASTER_NAME, with the name that they monitor it \
                    under: letters, digits, `.`, `_` and `-`");
    }
    let db = path.next().unwrap_or_default();
    if path.next().is_some() || !db.bytes().all(|b| b.is_ascii_digit()) {
        return Err(RIGHT);
    }
    let login = parts.query.map_or(Ok(String::new()), sentinel_login)?;
    let sentinels = parts.infos(&login, SENTINEL_PORT, RIGHT)?;
    let master = info(&format!("{}://{}sentinel/{db}", parts.scheme, parts.login), RIGHT)?;
    Ok(Deployment::Sentinels { sentinels, name: name.to_owned(), master })
}

/// The user and password for the sentinels, from the query of the URL.
fn sentinel_login(query: &str) -> Result<String, &'static str> {
    const RIGHT: &str = "the URL of the store's sentinels has a query that is not understood; write \
                         ?sentinel_user=USER&sentinel_password=PASSWORD, percent-encoded, or the password alone";
    let (mut user, mut password) = ("", None);
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((_, value)) if value.contains(['/', ':', '@']) => return Err(RIGHT),
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = Some(value),
            _ => return Err(RIGHT),
        }
    }
    password.map(|password| format!("{user}:{password}@")).ok_or(RIGHT)
}

/// Parses the URL of one server with the redis crate.
fn info(url: &str, right: &'static str) -> Result<ConnectionInfo, &'static str> {
    let info = url.into_connection_info().map_err(|_| right)?;
    // Each call waits for its answer, so Nagle's algorithm would only delay it.
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_tcp_settings(tcp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(info: &ConnectionInfo) -> String {
        let settings = info.redis_settings();
        let (user, password) = (settings.username().unwrap_or(""), settings.password().unwrap_or(""));
        format!("{user}:{password}@{}/{}", info.addr(), settings.db())
    }

    #[test]
    fn urls_that_are_none_are_refused_without_repeating_them() {
        for (url, hint) in [
            ("http://:hunter2@a", "scheme"),
            ("redis+tls://:hunter2@a", "scheme"),
            ("hunter2", "scheme"),
            ("redis://:hunter2@a:port", "malformed"),
            ("redis://:hunter2@a/db", "malformed"),
            ("redis+cluster://:hunter2@", "malformed"),
            ("redis+cluster://:hunter2@a,,b", "malformed"),
            ("redis+cluster://:hunter2@a:port", "malformed"),
            ("redis+cluster://:hunter2@a,[::1", "malformed"),
            ("redis+cluster://:hunter2@a/1", "database 0 alone"),
            ("redis+cluster://a?password=hunter2", "query"),
            ("redis+cluster://:hunter2@a#insecure", "fragment"),
            ("redis+sentinel://:hunter2@a", "names no master"),
            ("redis+sentinel://:hunter2@a/", "names no master"),
            ("redis+sentinel://:hunter2@a/m%20m", "names no master"),
            ("redis+sentinel://:hunter2@a/m/db", "malformed"),
            ("redis+sentinel://:hunter2@a/m/0/1", "malformed"),
            ("redis+sentinel://a/m?password=hunter2", "sentinel_password"),
            ("redis+sentinel://a/m?sentinel_user=hunter2", "sentinel_password"),
            ("redis+sentinel://a/m?sentinel_password=hunter2@b", "percent-encoded"),
        ] {
            let text = match Deployment::parse(url) {
                Err(StoreError::Invalid(text)) => text,
                other => panic!("{url}: {other:?}"),
            };
            assert!(text.contains(hint) && text.contains("; ") && !text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[test]
    fn one_server() {
        let Ok(Deployment::One(info)) = Deployment::parse("rediss://:hunter2@store.example:6380/1") else {
            panic!()
        };
        assert_eq!(shown(&info), ":hunter2@store.example:6380/1");
        assert!(info.tcp_settings().nodelay());
    }

    #[test]
    fn the_nodes_of_a_cluster_share_a_login() {
        let url = "redis+cluster://u:hunter%402@a,b:7000,[::1],[::2]:7001/";
        let Ok(Deployment::Cluster { seeds, login }) = Deployment::parse(url) else { panic!() };
        let seeds: Vec<String> = seeds.iter().map(Address::to_string).collect();
        assert_eq!(seeds, ["a:6379", "b:7000", "[::1]:6379", "[::2]:7001"]);
        assert_eq!(shown(&login), "u:hunter@2@node:6379/0");
        assert!(login.tcp_settings().nodelay());
    }

    #[test]
    fn sentinels_have_a_login_of_their_own() {
        let url = "rediss+sentinel://u:hunter2@a,b:7000/my-master/3?sentinel_user=s&sentinel_password=p%2F";
        let Ok(Deployment::Sentinels { sentinels, name, master }) = Deployment::parse(url) else { panic!() };
        assert!(matches!(master.addr(), redis::ConnectionAddr::TcpTls { .. }));
        let sentinels: Vec<String> = sentinels.iter().map(shown).collect();
        assert_eq!(sentinels, ["s:p/@a:26379/0", "s:p/@b:7000/0"]);
        assert_eq!((name.as_str(), &*shown(&master)), ("my-master", "u:hunter2@sentinel:6379/3"));
        let plain = Deployment::parse("redis+sentinel://:hunter2@a/m").unwrap();
        let Deployment::Sentinels { sentinels, .. } = plain else { panic!() };
        assert_eq!(shown(&sentinels[0]), ":@a:26379/0", "the data servers' password is not the sentinels'");
    }
}
