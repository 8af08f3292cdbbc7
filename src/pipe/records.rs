//! The jobs of an input, which is lines of JSON or a table in CSV.

use std::io;

use tokio::io::AsyncBufRead;

use super::lines::{Line, Lines};
use super::table::{Row, Rows};
use super::{MAX_LINE, SkipError};
use crate::job::csv::{ColumnError, Columns};
use crate::job::{Message, ndjson};

/// The form of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    #[default]
    Ndjson,
    /// A row of names of columns, and one row per job.
    Csv,
}

/// An entry of an input.
#[derive(Debug)]
pub(super) struct Entry {
    /// The number of the line at which it begins, from 1.
    pub(super) line: u64,
    pub(super) job: Result<Message, SkipError>,
}

/// The reason why nothing of an input can be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The first row of a table is wrong.
    #[error(transparent)]
    Columns(#[from] ColumnError),
    /// An error of the system.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
}

/// Reads the jobs of an input, one at a time.
#[derive(Debug)]
pub struct Records<R>(Inner<R>);

#[derive(Debug)]
enum Inner<R> {
    /// The lines, and the number of the last one that was read.
    Lines(Lines<R>, u64),
    /// The rows, their columns, and the line at which the last one began.
    Table(Box<Rows<R>>, Columns, u64),
}

impl<R: AsyncBufRead + Unpin> Records<R> {
    /// Reads the names of the columns, if it is a table.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn open(reader: R, format: Format) -> Result<Self, OpenError> {
        if format == Format::Ndjson {
            return Ok(Self(Inner::Lines(Lines::new(reader, MAX_LINE), 0)));
        }
        let mut rows = Box::new(Rows::new(reader, MAX_LINE));
        let columns = match rows.next().await? {
            Some((_, Row::Whole)) => Columns::parse(rows.names())?,
            _ => Err(ColumnError::None)?,
        };
        Ok(Self(Inner::Table(rows, columns, 1)))
    }

    /// The line at which the last entry began.
    pub(super) const fn line(&self) -> u64 {
        match self.0 {
            Inner::Lines(_, line) | Inner::Table(_, _, line) => line,
        }
    }

    /// The next entry; `None` at the end. Blank lines are none.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the reader.
    pub(super) async fn next(&mut self) -> io::Result<Option<Entry>> {
        match &mut self.0 {
            Inner::Lines(lines, number) => {
                while let Some(line) = lines.next().await? {
                    *number += 1;
                    let job = match &line {
                        Line::TooLong => Err(SkipError::TooLong),
                        Line::Whole(text) => match text.trim_ascii_end() {
                            [] => continue,
                            text => ndjson::parse(text).map(|line| line.message).map_err(SkipError::Line),
                        },
                    };
                    return Ok(Some(Entry { line: *number, job }));
                }
                Ok(None)
            }
            Inner::Table(rows, columns, number) => {
                let Some((line, row)) = rows.next().await? else { return Ok(None) };
                *number = line;
                let job = match row {
                    Row::TooLong => Err(SkipError::TooLong),
                    Row::Whole => columns.message(rows.cells()).map_err(SkipError::Line),
                };
                Ok(Some(Entry { line, job }))
            }
        }
    }

    /// Counts the entries that are left, without parsing them.
    ///
    /// # Errors
    /// An error of the reader.
    pub async fn count(mut self) -> io::Result<u64> {
        let mut count = 0;
        match &mut self.0 {
            Inner::Lines(lines, _) => {
                while let Some(line) = lines.next().await? {
                    let blank = matches!(&line, Line::Whole(text) if text.trim_ascii_end().is_empty());
                    count += u64::from(!blank);
                }
            }
            Inner::Table(rows, ..) => {
                while rows.next().await?.is_some() {
                    count += 1;
                }
            }
        }
        Ok(count)
    }
}
