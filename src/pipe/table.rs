//! Reads rows of CSV (RFC 4180), one at a time.

use std::io;

use csv_core::{ReadRecordResult, Reader};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::lines::BYTE_ORDER_MARK;

/// The most cells of a row.
const MAX_CELLS: usize = 1024;

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// One row, whose cells are [`Rows::cells`].
    Whole,
    /// One row over a bound, which was skipped.
    TooLong,
    /// The last row, which ends inside quotes.
    Open,
}

/// Reads rows. An unfinished row is kept here, so that a dropped future loses nothing.
#[derive(Debug)]
pub(super) struct Rows<R> {
    reader: R,
    parser: Reader,
    longest: usize,
    line: LineNumber,
    /// The line at which the row begins; `None` between two rows.
    start: Option<u64>,
    row: RowBuffer,
}

/// The number of the line that is read, from 1. Lines end with LF, CR LF, or CR alone.
#[derive(Debug)]
struct LineNumber {
    line: u64,
    /// Whether the last byte was a CR, which an LF may follow.
    is_behind_return: bool,
}

impl LineNumber {
    fn pass(&mut self, text: &[u8]) {
        for byte in text {
            let ends = *byte == b'\r' || (*byte == b'\n' && !self.is_behind_return);
            self.line += u64::from(ends);
            self.is_behind_return = *byte == b'\r';
        }
    }
}

/// The cells of the row that is read.
#[derive(Debug)]
struct RowBuffer {
    /// The text of all cells, of which this much is in use.
    text: Vec<u8>,
    used: usize,
    /// The end of each cell in the text, of which this many are in use.
    ends: Vec<usize>,
    cells: usize,
    /// Whether anything of it was read.
    is_begun: bool,
    /// Whether the row is over a bound, so that its cells are not kept.
    too_long: bool,
}

impl<R: AsyncBufRead + Unpin> Rows<R> {
    /// A reader of rows of at most `longest` bytes each.
    pub(super) fn new(reader: R, longest: usize) -> Self {
        Self {
            reader,
            parser: Reader::new(),
            longest,
            line: LineNumber { line: 1, is_behind_return: false },
            start: None,
            row: RowBuffer {
                text: vec![0; 1024],
                used: 0,
                ends: vec![0; 16],
                cells: 0,
                is_begun: false,
                too_long: false,
            },
        }
    }

    /// The next row and the number of the line at which it begins; `None` at the end. Lines without a character are no
    /// rows.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the reader.
    pub(super) async fn next(&mut self) -> io::Result<Option<(u64, Row)>> {
        let row = &mut self.row;
        loop {
            let available = self.reader.fill_buf().await?;
            if self.start.is_none() {
                let blank = available.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
                if blank > 0 {
                    self.line.pass(&available[..blank]);
                    self.reader.consume(blank);
                    continue;
                }
                (row.used, row.cells, row.too_long) = (0, 0, false);
            }
            let start = *self.start.get_or_insert(self.line.line);
            if row.too_long {
                // The parser continues to the end of the row.
                (row.used, row.cells) = (0, 0);
            }
            let room = (&mut row.text[row.used..], &mut row.ends[row.cells..]);
            // The parser takes the end of the input as the end of the row anywhere; a line feed ends the row only
            // outside quotes.
            let is_end = available.is_empty() && row.is_begun;
            let text = if is_end { b"\n" } else { available };
            let (result, read, written, ended) = self.parser.read_record(text, room.0, room.1);
            if !is_end {
                row.is_begun |= read > 0;
                self.line.pass(&available[..read]);
                self.reader.consume(read);
            }
            row.used += written;
            row.cells += ended;
            match result {
                ReadRecordResult::InputEmpty if is_end => {
                    // The rest of the input was this row.
                    (self.start, row.is_begun, row.cells) = (None, false, 0);
                    self.parser.reset();
                    return Ok(Some((start, if row.too_long { Row::TooLong } else { Row::Open })));
                }
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if row.text.len() < self.longest => {
                    let length = (row.text.len() * 2).min(self.longest);
                    row.text.resize(length, 0);
                }
                ReadRecordResult::OutputEndsFull if row.ends.len() < MAX_CELLS => {
                    row.ends.resize(row.ends.len() * 2, 0);
                }
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => row.too_long = true,
                ReadRecordResult::Record => {
                    self.start = None;
                    row.is_begun = false;
                    if row.too_long {
                        row.cells = 0;
                        return Ok(Some((start, Row::TooLong)));
                    }
                    return Ok(Some((start, Row::Whole)));
                }
                ReadRecordResult::End => return Ok(None),
            }
        }
    }

    /// The cells of the row that was read last; none of one that was skipped.
    pub(super) fn cells(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.row.cells).map(|index| {
            let start = index.checked_sub(1).map_or(0, |before| self.row.ends[before]);
            &self.row.text[start..self.row.ends[index]]
        })
    }

    /// As [`Rows::cells`], for the first row of the table, without a byte order mark.
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.cells().enumerate().map(|(index, name)| match index {
            0 => name.strip_prefix(BYTE_ORDER_MARK).unwrap_or(name),
            _ => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    type Read = Vec<(u64, Option<Vec<String>>)>;

    async fn read(text: &[u8], buffer: usize, longest: usize) -> Read {
        let mut rows = Rows::new(BufReader::with_capacity(buffer, text), longest);
        let mut all = Vec::new();
        while let Some((line, row)) = rows.next().await.expect("readable") {
            let cells = rows.cells().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect();
            all.push((line, (row == Row::Whole).then_some(cells)));
        }
        all
    }

    fn row(line: u64, cells: &[&str]) -> (u64, Option<Vec<String>>) {
        (line, Some(cells.iter().map(|cell| (*cell).to_owned()).collect()))
    }

    #[tokio::test]
    async fn rows_with_any_buffer() {
        for buffer in [1, 2, 3, 7, 100] {
            for (text, rows) in [
                ("", vec![]),
                ("a,b", vec![row(1, &["a", "b"])]),
                ("a,b\n1,\n", vec![row(1, &["a", "b"]), row(2, &["1", ""])]),
                ("a\r\n\r\n\nb\r\n", vec![row(1, &["a"]), row(4, &["b"])]),
                ("\"x, \"\"y\"\"\nz\",1\n2,3", vec![row(1, &["x, \"y\"\nz", "1"]), row(3, &["2", "3"])]),
                ("\"\"\n", vec![row(1, &[""])]),
                ("a\rb\r\rc\r\nd", vec![row(1, &["a"]), row(2, &["b"]), row(4, &["c"]), row(5, &["d"])]),
            ] {
                assert_eq!(read(text.as_bytes(), buffer, 4096).await, rows, "{text:?} by {buffer}");
            }
        }
    }

    #[tokio::test]
    async fn a_row_over_a_bound_is_skipped() {
        let long = "x".repeat(5000);
        let text = format!("a\n\"{long}\n\",1\nb,\"{long}\"\n{long}{long}\nc\n");
        for buffer in [1, 100, 100_000] {
            let rows = read(text.as_bytes(), buffer, 2048).await;
            assert_eq!(rows, [row(1, &["a"]), (2, None), (4, None), (5, None), row(6, &["c"])], "{buffer}");
        }
        let cells = "1,".repeat(3000);
        let rows = read(format!("{cells}\nc\n").as_bytes(), 100, 1 << 20).await;
        assert_eq!(rows, [(1, None), row(2, &["c"])]);
    }

    #[tokio::test]
    async fn an_input_that_ends_inside_quotes_ends_with_a_bad_row() {
        for buffer in [1, 2, 100] {
            for (text, line) in [("a,b\n1,\"cut o", 2), ("a,b\n1,\"x\"\"", 2), ("a,b\n1,\"x\n2,y\n", 2)] {
                let reader = BufReader::with_capacity(buffer, text.as_bytes());
                let mut rows = Rows::new(reader, 4096);
                assert_eq!(rows.next().await.expect("readable"), Some((1, Row::Whole)));
                assert_eq!(rows.next().await.expect("readable"), Some((line, Row::Open)), "{text:?}");
                assert_eq!(rows.next().await.expect("readable"), None, "{text:?}");
            }
            for text in ["1,\"x\"", "1,x", "1,5\" x", "1,\"x\"\r", "1,"] {
                let read = read(text.as_bytes(), buffer, 4096).await;
                assert!(matches!(&read[..], [(1, Some(cells))] if cells.len() == 2), "{text:?}: {read:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_byte_order_mark_is_no_part_of_a_name() {
        for text in ["\u{feff}id,body\n", "\u{feff}\"id\",body\n"] {
            let mut rows = Rows::new(text.as_bytes(), 100);
            rows.next().await.expect("readable").expect("a row");
            let names: Vec<&[u8]> = rows.names().collect();
            assert_eq!(names, [b"id".as_slice(), b"body"], "{text:?}");
        }
    }
}
