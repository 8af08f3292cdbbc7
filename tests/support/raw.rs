//! A producer that writes AMQP frames byte by byte: it can publish messages that no client library would.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::apart;

/// The property flags of content headers.
pub mod flag {
    pub const CONTENT_TYPE: u16 = 1 << 15;
    pub const CONTENT_ENCODING: u16 = 1 << 14;
    pub const HEADERS: u16 = 1 << 13;
    pub const CORRELATION_ID: u16 = 1 << 10;
    pub const REPLY_TO: u16 = 1 << 9;
    pub const MESSAGE_ID: u16 = 1 << 7;
    pub const TYPE: u16 = 1 << 5;
    pub const APP_ID: u16 = 1 << 3;
    pub const CLUSTER_ID: u16 = 1 << 2;
}

/// A message, as its bytes.
#[derive(Clone, Debug, Default)]
pub struct RawMessage {
    /// The exchange.
    pub exchange: String,
    /// The routing key; any bytes.
    pub key: Vec<u8>,
    /// Which properties there are.
    pub flags: u16,
    /// The properties, in the order of their flags from the highest bit on.
    pub properties: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

/// A short string.
pub fn short(bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![u8::try_from(bytes.len()).expect("a short string")];
    field.extend_from_slice(bytes);
    field
}

/// A length of four bytes, followed by these bytes.
pub fn long(bytes: &[u8]) -> Vec<u8> {
    let mut field = u32::try_from(bytes.len()).expect("a long string").to_be_bytes().to_vec();
    field.extend_from_slice(bytes);
    field
}

/// A value of this type: a long string, an array, a table or a byte array.
pub fn value(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![kind], long(bytes)].concat()
}

/// An entry of a table.
pub fn entry(name: &[u8], value: &[u8]) -> Vec<u8> {
    [short(name), value.to_vec()].concat()
}

/// A connection with one channel, on which every publish is confirmed.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    /// The largest frame that both sides accept.
    frame_max: usize,
}

/// The class and method of the frames that are waited for.
mod method {
    pub const START: (u16, u16) = (10, 10);
    pub const TUNE: (u16, u16) = (10, 30);
    pub const OPEN_OK: (u16, u16) = (10, 41);
    pub const CHANNEL_OPEN_OK: (u16, u16) = (20, 11);
    pub const SELECT_OK: (u16, u16) = (85, 11);
    pub const ACK: (u16, u16) = (60, 80);
}

impl Raw {
    /// Connects to the vhost `/` as the guest user.
    pub async fn connect(port: u16) -> Self {
        apart(async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the broker");
            let mut raw = Self { stream, frame_max: 4096 };
            raw.stream.write_all(b"AMQP\x00\x00\x09\x01").await.unwrap();
            raw.answer(method::START).await.unwrap();
            // The fields are: no client properties, PLAIN, the credentials, and a locale.
            let login = [long(b""), short(b"PLAIN"), long(b"\0guest\0guest"), short(b"en_US")].concat();
            raw.method(0, (10, 11), &login).await;
            let tune = raw.answer(method::TUNE).await.unwrap();
            let (channels, frame_max) = (&tune[..2], &tune[2..6]);
            raw.frame_max = u32::from_be_bytes(frame_max.try_into().unwrap()) as usize;
            // The limits that the broker offers are accepted, without heartbeats.
            raw.method(0, (10, 31), &[channels, frame_max, &[0, 0]].concat()).await;
            raw.method(0, (10, 40), &[short(b"/"), short(b""), vec![0]].concat()).await;
            raw.answer(method::OPEN_OK).await.unwrap();
            raw.method(1, (20, 10), &short(b"")).await;
            raw.answer(method::CHANNEL_OPEN_OK).await.unwrap();
            raw.method(1, (85, 10), &[0]).await;
            raw.answer(method::SELECT_OK).await.unwrap();
            raw
        })
        .await
    }

    /// Publishes and waits for the confirm; panics if the broker refuses the message.
    pub async fn publish(self, message: RawMessage) -> Self {
        self.try_publish(message).await.unwrap_or_else(|why| panic!("the broker refused it: {why}"))
    }

    /// Publishes and waits for the confirm; the error is the broker's text if it refuses the message.
    pub async fn try_publish(mut self, message: RawMessage) -> Result<Self, String> {
        apart(async move {
            let RawMessage { exchange, key, flags, properties, body } = message;
            let to = [vec![0, 0], short(exchange.as_bytes()), short(&key), vec![0]].concat();
            self.method(1, (60, 40), &to).await;
            let size = (body.len() as u64).to_be_bytes();
            let header = [&[0, 60, 0, 0][..], &size, &flags.to_be_bytes(), &properties].concat();
            self.frame(2, 1, &header).await;
            for part in body.chunks(self.frame_max - 8) {
                self.frame(3, 1, part).await;
            }
            self.answer(method::ACK).await?;
            Ok(self)
        })
        .await
    }

    async fn method(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        self.frame(1, channel, &payload).await;
    }

    async fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let frame = [&[kind][..], &channel.to_be_bytes(), &long(payload), &[0xce]].concat();
        // The broker may have closed the connection, which its answer shows.
        let _ = self.stream.write_all(&frame).await;
    }

    /// Waits for this method and returns its arguments; the text of a close otherwise.
    async fn answer(&mut self, wanted: (u16, u16)) -> Result<Vec<u8>, String> {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).await.map_err(|error| error.to_string())?;
            let length = u32::from_be_bytes(head[3..].try_into().unwrap()) as usize;
            let mut payload = vec![0; length + 1];
            self.stream.read_exact(&mut payload).await.map_err(|error| error.to_string())?;
            if head[0] != 1 {
                continue;
            }
            let arguments = &payload[4..length];
            match (u16::from_be_bytes([payload[0], payload[1]]), u16::from_be_bytes([payload[2], payload[3]]))
            {
                got if got == wanted => return Ok(arguments.to_vec()),
                // connection.close, channel.close
                (10, 50) | (20, 40) => return Err(String::from_utf8_lossy(&arguments[2..]).into_owned()),
                (60, 120) => return Err("nacked".to_owned()),
                _ => {}
            }
        }
    }
}
