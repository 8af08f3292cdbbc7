//! One request over one connection.

use std::error::Error;
use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use paced::tls::{Refused, Tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::{Host, Url};

use super::IS_IT_THERE;
use crate::cli::exit::Exit;

/// The longest answer, in bytes.
const LONGEST: usize = 16 << 20;

/// An error between this program and the daemon.
pub(super) type TransportError = Box<dyn Error + Send + Sync>;

/// Connects to the host of the URL.
pub(super) async fn connect(url: &Url) -> std::io::Result<TcpStream> {
    TcpStream::connect((host(url), url.port_or_known_default().unwrap_or(80))).await
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_matches(['[', ']'])
}

/// Whether both ends of the connection are on this machine.
pub(super) fn is_local(stream: &TcpStream) -> bool {
    match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(local)) => is_same_machine(peer.ip(), local.ip()),
        _ => false,
    }
}

fn is_same_machine(peer: IpAddr, local: IpAddr) -> bool {
    peer.to_canonical().is_loopback() || peer.to_canonical() == local.to_canonical()
}

/// Whether the host of the URL means this machine on any machine, as `localhost` does.
pub(super) fn names_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        None => false,
    }
}

/// Sends the request over the connection, by TLS if there is a handle for it.
///
/// Not cancel safe: after a dropped future it is unknown whether the request was carried out.
pub(super) async fn exchange(
    stream: TcpStream,
    tls: Option<&Tls>,
    url: &Url,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), TransportError> {
    match tls {
        Some(tls) => send(tls.connect(host(url), stream).await?, request).await,
        None => send(stream, request).await,
    }
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), TransportError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok((head.status, Limited::new(body, LONGEST).collect().await?.to_bytes()))
    };
    let mut exchange = std::pin::pin!(exchange);
    // The connection is polled together with the request.
    let ended = tokio::select! {
        answer = &mut exchange => return answer,
        ended = connection => ended,
    };
    match (exchange.await, ended) {
        // Only the connection knows what the server said when it refused this client.
        (Err(_), Err(error)) => Err(error.into()),
        (answer, _) => answer,
    }
}

/// What an error means, and how to end.
pub(super) fn explain(error: &TransportError, url: &Url) -> (Exit, String) {
    if let Some(Refused { mut text, is_of_client }) = Refused::of(&**error) {
        if text.contains("_file") {
            text += "; tools have them from --ca-file, --cert-file and --key-file";
        }
        return (if is_of_client { Exit::Unauthorized } else { Exit::Unavailable }, text);
    }
    let is_cut = |error: &hyper::Error| error.is_parse() || error.is_incomplete_message();
    if url.scheme() == "http" && error.downcast_ref::<hyper::Error>().is_some_and(is_cut) {
        return (Exit::Unavailable, format!("{error}; if it speaks TLS there, write https://"));
    }
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    (Exit::Unavailable, format!("{text}; {IS_IT_THERE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_machine_is_this_one() {
        for (peer, local, is_same) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.9.9.9", "127.0.0.1", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("10.0.0.7", "10.0.0.7", true),
            ("::ffff:10.0.0.7", "10.0.0.7", true),
            ("10.0.0.8", "10.0.0.7", false),
            ("fe80::1", "fe80::2", false),
        ] {
            assert_eq!(is_same_machine(peer.parse().unwrap(), local.parse().unwrap()), is_same, "{peer}");
        }
        for (url, is_same) in [
            ("http://localhost:9750", true),
            ("http://127.0.0.1", true),
            ("http://[::1]:9750", true),
            ("http://paced.internal", false),
            ("http://10.0.0.7", false),
        ] {
            assert_eq!(names_this_machine(&url.parse().unwrap()), is_same, "{url}");
        }
    }
}
