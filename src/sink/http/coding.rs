//! Decodes the bodies of answers (RFC 9110, section 8.4): gzip, deflate, Brotli and zstd.
//!
//! A server may send anything. So the number of codings, the output of each, and the window of each are bounded; the work
//! is done on few threads of its own, piece by piece, and ends as soon as there is as much as is wanted.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read};

use brotli_decompressor::Decompressor;
use bytes::Bytes;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The most codings of a body.
const MOST_CODINGS: usize = 3;

/// The most bytes that a coding may make for the next one: beyond it a small body could be much work without any
/// output. The 64 KiB of the result need hardly more, and a block of zstd has 128 KiB.
const MOST_BETWEEN: u64 = 256 << 10;

/// The largest window of zstd as a power of two, which RFC 8878 recommends: 8 MiB. The windows of the other codings
/// are smaller by definition, except Brotli's with 16 MiB.
const ZSTD_WINDOW: u32 = 23;

/// The bodies that are decoded at one time: so the memory of all is at most some 100 MiB, if all have the largest windows.
static TURNS: Semaphore = Semaphore::const_new(2);

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// The codings of a body, in the order in which they were applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Codings(Vec<Coding>);

/// Why a body is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CodingError {
    #[error("its content coding is none of gzip, deflate, br and zstd")]
    Unknown,
    #[error("it has more than {most} content codings", most = MOST_CODINGS)]
    TooMany,
    #[error("it cannot be decoded as {0}, or not within the bounds")]
    Broken(Coding),
    #[error("too many others are being decoded")]
    TooLate,
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        })
    }
}

impl Codings {
    /// The codings that these fields name.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, CodingError> {
        let mut codings = Vec::new();
        for value in headers.get_all(CONTENT_ENCODING) {
            for name in value.as_bytes().split(|byte| *byte == b',') {
                let name = name.trim_ascii().to_ascii_lowercase();
                codings.push(match &name[..] {
                    b"" | b"identity" => continue,
                    b"gzip" | b"x-gzip" => Coding::Gzip,
                    b"deflate" => Coding::Deflate,
                    b"br" => Coding::Brotli,
                    b"zstd" => Coding::Zstd,
                    _ => return Err(CodingError::Unknown),
                });
            }
        }
        if codings.len() > MOST_CODINGS { Err(CodingError::TooMany) } else { Ok(Self(codings)) }
    }

    /// Whether the body needs no decoding.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Decodes a body, `most` bytes of it at most. From a body that is not whole it returns what the beginning
    /// decodes to.
    ///
    /// Cancel safe: work that was begun ends by itself.
    pub(super) async fn decode(self, body: Bytes, most: usize, is_whole: bool) -> Result<Bytes, CodingError> {
        let Some(&last) = self.0.last() else { return Ok(body) };
        // The semaphore is never closed.
        let turn = TURNS.acquire().await.map_err(|_| CodingError::Broken(last))?;
        let work = spawn_blocking(move || {
            let _turn = turn;
            self.decoded(&body, most, is_whole)
        });
        work.await.unwrap_or(Err(CodingError::Broken(last)))
    }

    fn decoded(&self, body: &[u8], most: usize, is_whole: bool) -> Result<Bytes, CodingError> {
        let is_dry = Cell::new(false);
        let mut reader: Box<dyn Read + '_> = Box::new(Source { rest: body, is_dry: &is_dry });
        let Some((&first, outer)) = self.0.split_first() else { return Ok(Bytes::copy_from_slice(body)) };
        for &coding in outer.iter().rev() {
            reader = Box::new(coding.reader(reader).take(MOST_BETWEEN));
        }
        let mut out = Vec::new();
        match first.reader(reader).take(most as u64).read_to_end(&mut out) {
            Ok(_) => {}
            // It ends where the body was cut.
            Err(_) if !is_whole && is_dry.get() => {}
            Err(_) => return Err(CodingError::Broken(first)),
        }
        Ok(out.into())
    }
}

impl Coding {
    fn reader<'r>(self, from: Box<dyn Read + 'r>) -> Box<dyn Read + 'r> {
        match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(from)),
            Self::Deflate => Box::new(Deflated::Unknown(Some(from))),
            Self::Brotli => Box::new(Decompressor::new(Standard { from, is_begun: false }, 4096)),
            Self::Zstd => match zstd(from) {
                Ok(reader) => reader,
                Err(error) => Box::new(Failed(error.kind())),
            },
        }
    }
}

fn zstd<'r>(from: Box<dyn Read + 'r>) -> io::Result<Box<dyn Read + 'r>> {
    let mut decoder = zstd::stream::read::Decoder::new(from)?;
    decoder.window_log_max(ZSTD_WINDOW)?;
    Ok(Box::new(decoder))
}

/// Stands for a decoder that could not be made: each read fails.
struct Failed(io::ErrorKind);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
}

/// A body, and whether more of it was asked for than there is.
struct Source<'a> {
    rest: &'a [u8],
    is_dry: &'a Cell<bool>,
}

impl Read for Source<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.rest.read(buf)?;
        if read == 0 && !buf.is_empty() {
            self.is_dry.set(true);
        }
        Ok(read)
    }
}

/// `deflate`, which is zlib's format (RFC 1950), and is sent as a bare stream (RFC 1951) by some.
enum Deflated<'r> {
    Unknown(Option<Box<dyn Read + 'r>>),
    Known(Box<dyn Read + 'r>),
}

impl Read for Deflated<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Self::Unknown(from) = self {
            let mut from = BufReader::new(from.take().ok_or(io::ErrorKind::InvalidData)?);
            let start = from.fill_buf()?;
            // Its first byte names the method and the window; both together are a multiple of 31.
            let is_zlib = match start {
                [first, second, ..] => {
                    first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31)
                }
                _ => true,
            };
            *self = Self::Known(if is_zlib {
                Box::new(ZlibDecoder::new(from))
            } else {
                Box::new(DeflateDecoder::new(from))
            });
        }
        match self {
            Self::Known(reader) => reader.read(buf),
            Self::Unknown(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Brotli as RFC 7932 has it. Its extension of large windows, which the decoder knows too, takes up to 1 GiB of memory.
struct Standard<'r> {
    from: Box<dyn Read + 'r>,
    is_begun: bool,
}

/// The first seven bits of a stream with a large window.
const LARGE_WINDOW: u8 = 0x11;

impl Read for Standard<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buf)?;
        if read > 0 && !self.is_begun {
            self.is_begun = true;
            if buf[0] & 0x7f == LARGE_WINDOW {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
