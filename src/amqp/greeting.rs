//! The broker's greeting: what it reports about itself before the login. lapin reads it, but does not expose it.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use futures_io::{AsyncRead, AsyncWrite};
use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::address::Address;
use super::connection::ANSWER;
use super::{nodes, socket};

/// The header with which a client opens AMQP 0-9-1.
const HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// A frame's type, channel and size, which come before its payload.
const FRAME_HEADER: usize = 7;

/// The longest greeting that is read: RabbitMQ's has some 500 bytes.
const LONGEST: usize = 64 * 1024;

const MIB: usize = 1024 * 1024;

/// A broker's product and version, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The product: `RabbitMQ`, or another server of AMQP 0-9-1.
    pub product: String,
    /// The version, such as `4.0.5`.
    pub version: String,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.product, self.version)
    }
}

impl Server {
    /// The longest message body that a RabbitMQ of this version takes unless its `max_message_size` says
    /// otherwise, in bytes; `None` for other products.
    pub fn max_message_size(&self) -> Option<usize> {
        self.release().map(|release| if release >= (4, 0, 0) { 16 * MIB } else { 128 * MIB })
    }

    /// The major, minor and patch number; `None` for other products.
    pub(super) fn release(&self) -> Option<(u32, u32, u32)> {
        let mut parts = self.version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (self.product == "RabbitMQ").then(|| (next(), next(), next()))
    }
}

/// Reads the greeting over a connection of its own that ends before the login. `None` where it does not arrive in time,
/// or names no product.
///
/// Cancel safe: a dropped future closes the connection.
pub(super) async fn greeting(address: &Address) -> Option<Server> {
    let by = Instant::now() + ANSWER;
    let hosts = nodes::hosts(address).into_iter().map(|host| frame_of_host(host, by).boxed()).collect();
    let frame = nodes::first(hosts, |_| false, by).await?.ok()?;
    Some(Server { product: property(&frame, "product")?, version: property(&frame, "version")? })
}

async fn frame_of_host(host: Address, by: Instant) -> io::Result<Vec<u8>> {
    let mut frames = Vec::new();
    for at in nodes::resolve(&host).await? {
        frames.push(first_frame(&host, at).boxed());
    }
    nodes::first(frames, |_| false, by).await.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
}

/// The payload of the first frame that the broker sends.
async fn first_frame(address: &Address, at: SocketAddr) -> io::Result<Vec<u8>> {
    let socket = socket::dial(at, &async_rs::Runtime::tokio_current()).await?;
    let mut stream = socket::wrap(address, socket).await?;
    let mut unsent = HEADER;
    while !unsent.is_empty() {
        let sent = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, unsent)).await?;
        unsent = unsent.get(sent..).filter(|_| sent > 0).ok_or(io::ErrorKind::WriteZero)?;
    }
    poll_fn(|cx| Pin::new(&mut stream).poll_flush(cx)).await?;
    let mut head = [0; FRAME_HEADER];
    read(&mut stream, &mut head).await?;
    let [_, _, _, size @ ..] = head;
    let size = usize::try_from(u32::from_be_bytes(size)).unwrap_or(usize::MAX);
    if size > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut payload = vec![0; size];
    read(&mut stream, &mut payload).await?;
    Ok(payload)
}

/// Fills `buffer`.
async fn read(stream: &mut (impl AsyncRead + Unpin), mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, buffer)).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = buffer.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

/// A text among the server's properties: its name as a short string, `S`, the length in four bytes, the text. It is
/// searched for rather than parsed, so no nesting that the peer sends can do harm, and a misleading byte can affect one
/// value at most.
fn property(frame: &[u8], name: &str) -> Option<String> {
    let mut key = vec![u8::try_from(name.len()).ok()?];
    key.extend_from_slice(name.as_bytes());
    key.push(b'S');
    let at = frame.windows(key.len()).position(|part| part == key)? + key.len();
    let (length, rest) = frame.get(at..)?.split_first_chunk::<4>()?;
    let text = rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    // The text is shown on a terminal.
    std::str::from_utf8(text).ok().filter(|text| !text.contains(char::is_control)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(product: &str, version: &str) -> Server {
        Server { product: product.to_owned(), version: version.to_owned() }
    }

    #[test]
    fn the_bound_on_messages_is_that_of_the_version() {
        for (version, bound) in [
            ("3.10.8", 128),
            ("3.13.7", 128),
            ("4.0.0", 16),
            ("4.0.0-rc.1", 16),
            ("4.3.6", 16),
            ("10.0", 16),
            ("unknown", 128),
        ] {
            assert_eq!(server("RabbitMQ", version).max_message_size(), Some(bound * MIB), "{version}");
        }
        assert_eq!(server("LavinMQ", "2.0.0").max_message_size(), None);
        assert_eq!(server("RabbitMQ", "4.3.0-rc.2").release(), Some((4, 3, 0)));
    }

    #[test]
    fn properties_are_found_and_nothing_is_made_up() {
        let frame = b"\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x29\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x054.0.5";
        assert_eq!(property(frame, "product").as_deref(), Some("RabbitMQ"));
        assert_eq!(property(frame, "version").as_deref(), Some("4.0.5"));
        assert_eq!(property(frame, "platform"), None);
        for end in 0..frame.len() {
            assert_eq!(property(&frame[..end], "version"), None, "cut short");
        }
        assert_eq!(property(b"\x07versionS\x00\x00\x00\x03\x1b[2", "version"), None, "for a terminal");
        assert_eq!(property(b"\x07versionS\xff\xff\xff\xff4", "version"), None);
    }
}
