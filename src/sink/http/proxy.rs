//! The HTTP proxy by which a downstream is reached.

use std::fmt;
use std::io;

use bytes::Bytes;
use futures_util::future::join;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::rt::{Read, Write};
use hyper::{Request, StatusCode};
use url::{Position, Url};

use super::credentials::basic;
use super::{HttpError, chain, guard};

/// The longest head of the answer to CONNECT.
const MAX_HEAD: usize = 8 * 1024;

/// An HTTP proxy. It is never shown with its credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    /// `http://HOST:PORT/`
    origin: String,
    /// `HOST:PORT`, for people.
    address: String,
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Proxy").field(&self.address).finish()
    }
}

impl Proxy {
    /// Parses `http://[USER:PASSWORD@]HOST:PORT`. The error does not repeat it.
    pub(super) fn parse(text: &str) -> Result<Self, HttpError> {
        let url = Url::parse(text).map_err(|_| HttpError::Proxy("is no URL"))?;
        if url.scheme() != "http" {
            return Err(HttpError::Proxy(
                "is not an http URL (the connection to the proxy itself is without TLS)",
            ));
        }
        let Some(host) = url.host_str() else { return Err(HttpError::Proxy("has no host")) };
        guard::check_host(&url)?;
        if url[Position::BeforePath..] != *"/" {
            return Err(HttpError::Proxy("has a path, a query or a fragment"));
        }
        let has_login = !url.username().is_empty() || url.password().is_some();
        let authorization = has_login
            .then(|| basic(&url).ok_or(HttpError::Proxy("has user information that is not UTF-8")))
            .transpose()?;
        let address = format!("{host}:{}", url.port_or_known_default().unwrap_or(80));
        Ok(Self { origin: format!("http://{address}/"), address, authorization })
    }

    /// Where it is dialled.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Its `HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The credentials for it.
    pub(super) const fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Asks for a tunnel to `target`, a `HOST:PORT`, on a new connection to the proxy, and returns it.
    ///
    /// Not cancel safe: a connection whose future was dropped is of no more use.
    pub(super) async fn open_tunnel<S>(&self, stream: S, target: &str) -> io::Result<S>
    where
        S: Read + Write + Unpin,
    {
        let request = self.connect(target).map_err(io::Error::other)?;
        let mut http = http1::Builder::new();
        let handshake = http
            .max_buf_size(MAX_HEAD)
            .allow_obsolete_multiline_headers_in_responses(true)
            .handshake(stream)
            .await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(target, &error))?;
        // Nothing but the status is kept: the connection ends with the rest of the answer, and with the sender.
        let answer = async move { sender.send_request(request).await.map(|answer| answer.status()) };
        let (status, parts) = join(answer, connection.without_shutdown()).await;
        match status {
            Ok(status) if status.is_success() => match parts {
                Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io),
                // In TLS the client speaks first.
                Ok(_) => {
                    Err(self.failed(format_args!("sends more than its answer when it is asked for {target}")))
                }
                Err(error) => Err(self.broken(target, &error)),
            },
            Ok(StatusCode::PROXY_AUTHENTICATION_REQUIRED) => Err(self.failed(format_args!(
                "refuses the credentials (407); correct the user and the password in http.proxy"
            ))),
            Ok(status) => {
                let status = status.as_u16();
                Err(self.failed(format_args!("answers {status} when it is asked for {target}")))
            }
            Err(error) => Err(self.broken(target, &error)),
        }
    }

    fn connect(&self, target: &str) -> hyper::http::Result<Request<Empty<Bytes>>> {
        let request = Request::connect(target).header(HOST, target);
        let login = self
            .authorization
            .iter()
            .fold(request, |request, value| request.header(PROXY_AUTHORIZATION, value));
        login.body(Empty::new())
    }

    /// The error of a connection on which there was no answer.
    fn broken(&self, target: &str, error: &hyper::Error) -> io::Error {
        if error.is_parse() {
            return self.failed(format_args!("does not answer as an HTTP proxy does ({})", chain(error)));
        }
        if error.is_incomplete_message() {
            return self.failed(format_args!("closed the connection when it was asked for {target}"));
        }
        self.failed(format_args!("failed when it was asked for {target}: {}", chain(error)))
    }

    fn failed(&self, what: fmt::Arguments<'_>) -> io::Error {
        io::Error::other(format!("the proxy {} {what}", self.address))
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[test]
    fn what_a_proxy_is_given_as() {
        let proxy = Proxy::parse("http://me:hunter%202@proxy.example:3128").unwrap();
        assert_eq!(proxy.origin(), "http://proxy.example:3128/");
        // "me:hunter 2"
        assert_eq!(proxy.authorization().unwrap(), "Basic bWU6aHVudGVyIDI=");
        assert_eq!(format!("{proxy:?}"), "Proxy(\"proxy.example:3128\")");
        let proxy = Proxy::parse("http://[::1]/").unwrap();
        assert_eq!((proxy.origin(), proxy.authorization()), ("http://[::1]:80/", None));
        for text in [
            "",
            "proxy:3128",
            "https://hunter2@proxy/",
            "socks5://proxy/",
            "http://proxy/hunter2",
            "http://p/?x",
        ] {
            let error = Proxy::parse(text).unwrap_err().to_string();
            assert!(error.contains("; write http://") && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    /// The result of this answer to CONNECT, and the request.
    async fn tunnel(answer: &[u8]) -> (Result<(), String>, String) {
        let (near, mut far) = duplex(64 * 1024);
        let proxy = Proxy::parse("http://me:pw@proxy:3128").unwrap();
        let opened = proxy.open_tunnel(TokioIo::new(near), "api.example:443");
        let answered = async {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(far.read_buf(&mut request).await.unwrap() > 0, "a whole request");
            }
            far.write_all(answer).await.unwrap();
            far.shutdown().await.unwrap();
            String::from_utf8(request).unwrap()
        };
        let (opened, request) = join(opened, answered).await;
        (opened.map(drop).map_err(|error| error.to_string()), request)
    }

    #[tokio::test]
    async fn a_tunnel_is_asked_for() {
        let (opened, request) = tunnel(b"HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n").await;
        assert_eq!(opened, Ok(()));
        assert_eq!(
            request,
            "CONNECT api.example:443 HTTP/1.1\r\nhost: api.example:443\r\nproxy-authorization: Basic bWU6cHc=\r\n\r\n"
        );
    }

    #[tokio::test]
    async fn the_refusal_of_a_proxy_is_reported() {
        let long = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'x'; MAX_HEAD]].concat();
        for (answer, part) in [
            (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], "correct the user"),
            (b"HTTP/1.0 403 Forbidden\r\n\r\n", "answers 403 when it is asked for api.example:443"),
            (b"HTTP/1.1 502\r\n\r\n", "answers 502"),
            (b"HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno", "answers 403"),
            (b"HTTP/1.1 200 OK\r\n\r\nhello", "sends more than its answer"),
            (b"HTTP/1.1 2000 x\r\n\r\n", "does not answer as"),
            (b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer as"),
            (b"", "closed the connection"),
            (&long, "too large"),
        ] {
            let error = tunnel(answer).await.0.unwrap_err();
            assert!(error.starts_with("the proxy proxy:3128 ") && error.contains(part), "{error}");
            assert!(!error.contains("pw"), "{error}");
        }
    }
}
