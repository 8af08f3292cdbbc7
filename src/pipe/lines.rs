//! Reads lines of bounded length, one at a time.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// The byte order mark, which some editors put before the first line.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// An item of a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// One line, without its end; the first without a byte order mark.
    Whole(Vec<u8>),
    /// One line over the bound, which was skipped.
    TooLong,
}

/// Reads lines. An unfinished line is kept here, so that a dropped future loses nothing.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    /// Whether nothing was yielded yet.
    first: bool,
    longest: usize,
    partial: Vec<u8>,
    too_long: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// A reader of lines of at most `longest` bytes each.
    pub const fn new(reader: R, longest: usize) -> Self {
        Self { reader, first: true, longest, partial: Vec::new(), too_long: false }
    }

    /// The next line, `None` at the end. The last one needs no line feed.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the reader.
    pub async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                let nothing = self.partial.is_empty() && !self.too_long;
                return Ok(if nothing { None } else { Some(self.take()) });
            }
            let feed = available.iter().position(|&b| b == b'\n');
            let piece = &available[..feed.unwrap_or(available.len())];
            if self.partial.len() + piece.len() > self.longest {
                self.too_long = true;
                self.partial = Vec::new();
            }
            if !self.too_long {
                self.partial.extend_from_slice(piece);
            }
            let used = piece.len() + usize::from(feed.is_some());
            self.reader.consume(used);
            if feed.is_some() {
                return Ok(Some(self.take()));
            }
        }
    }

    fn take(&mut self) -> Line {
        let first = std::mem::take(&mut self.first);
        if std::mem::take(&mut self.too_long) {
            return Line::TooLong;
        }
        let mut line = std::mem::take(&mut self.partial);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if first && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        Line::Whole(line)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    async fn read(text: &[u8], buffer: usize) -> Vec<Line> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, text), 5);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.expect("readable") {
            all.push(line);
        }
        all
    }

    #[tokio::test]
    async fn lines_with_any_buffer() {
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        for buffer in [1, 2, 3, 7, 100] {
            for (text, lines) in [
                ("", vec![]),
                ("a", vec![whole("a")]),
                ("a\n", vec![whole("a")]),
                ("a\n\nb", vec![whole("a"), whole(""), whole("b")]),
                ("a\r\nb\r", vec![whole("a"), whole("b")]),
                ("\n", vec![whole("")]),
                ("12345\n123456\n1", vec![whole("12345"), Line::TooLong, whole("1")]),
                ("123456789\n", vec![Line::TooLong]),
                ("123456789", vec![Line::TooLong]),
                ("\u{feff}a\n\u{feff}b", vec![whole("a"), whole("\u{feff}b")]),
                ("\u{feff}", vec![whole("")]),
            ] {
                assert_eq!(read(text.as_bytes(), buffer).await, lines, "{text:?} by {buffer}");
            }
        }
    }
}
