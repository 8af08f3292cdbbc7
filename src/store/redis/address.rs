//! The host and port of a server, as given by a URL, a sentinel or a node of a cluster.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    /// The host name or address; an IPv6 address has no brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    pub(super) fn of(info: &ConnectionInfo) -> Self {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Self { host: host.clone(), port: *port }
            }
            other => Self { host: other.to_string(), port: 0 },
        }
    }

    /// Parses the address of a redirection, `HOST:PORT` without brackets. An empty host stands for that of the server
    /// that was `asked`.
    pub(super) fn redirected(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::announced(host, port.parse().ok()?, asked))
    }

    /// The address that a node announces for another one. An empty or unknown host stands for that of the server that
    /// was `asked`.
    pub(super) fn announced(host: &str, port: u16, asked: &Self) -> Self {
        let host = if matches!(host, "" | "?") { &asked.host } else { host };
        Self { host: host.to_owned(), port }
    }

    /// The connection information `login`, with this address in it.
    pub(super) fn with(&self, login: &ConnectionInfo) -> ConnectionInfo {
        let Self { host, port } = self.clone();
        login.clone().set_addr(match login.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo as _;

    use super::*;

    #[test]
    fn a_server_that_is_announced_without_a_host_is_on_the_one_that_was_asked() {
        let asked = Address { host: "10.0.0.1".to_owned(), port: 7000 };
        for (text, shown) in [
            ("b.example:7001", Some("b.example:7001")),
            ("::1:7001", Some("[::1]:7001")),
            (":7001", Some("10.0.0.1:7001")),
            ("?:7001", Some("10.0.0.1:7001")),
            ("b.example", None),
            ("b.example:x", None),
        ] {
            let address = Address::redirected(text, &asked).map(|address| address.to_string());
            assert_eq!(address.as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn logins_are_kept() {
        let login = "rediss://u:hunter2@a/0".into_connection_info().unwrap();
        let other = Address { host: "b".to_owned(), port: 7000 }.with(&login);
        assert_eq!(Address::of(&other).to_string(), "b:7000");
        assert!(matches!(other.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        assert_eq!(other.redis_settings().password(), Some("hunter2"));
    }
}
