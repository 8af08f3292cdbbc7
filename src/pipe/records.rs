//! The jobs of an input, which is lines of JSON or a table in CSV.

use std::io;

use tokio::io::AsyncBufRead;

use super::lines::{Line, Lines};
use super::table::{Row, Rows};
use super::{MAX_LINE, SkipError};
use crate::job::csv::{ColumnError, Columns};
use crate::job::template::Template;
use crate::job::{Message, ndjson};

/// The form of an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    #[default]
    Ndjson,
    /// A row of names of columns, and one row per job. Without a template all columns have known names.
    Csv(Template),
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
    Table(Box<Table<R>>),
}

/// A table in CSV.
#[derive(Debug)]
struct Table<R> {
    rows: Rows<R>,
    columns: Columns,
    /// The line at which the last row began.
    line: u64,
    /// The rows without any text.
    blank: u64,
}

impl<R: AsyncBufRead + Unpin> Table<R> {
    /// The next row that has text, and its line; spreadsheets leave rows of bare commas.
    async fn next(&mut self) -> io::Result<Option<Row>> {
        while let Some((line, row)) = self.rows.next().await? {
            self.line = line;
            if row != Row::Whole || self.rows.cells().any(|cell| !cell.trim_ascii().is_empty()) {
                return Ok(Some(row));
            }
            self.blank += 1;
        }
        Ok(None)
    }
}

impl<R: AsyncBufRead + Unpin> Records<R> {
    /// Reads the names of the columns, if it is a table.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn open(reader: R, format: &Format) -> Result<Self, OpenError> {
        let Format::Csv(template) = format else {
            return Ok(Self(Inner::Lines(Lines::new(reader, MAX_LINE), 0)));
        };
        let mut rows = Rows::new(reader, MAX_LINE);
        let columns = match rows.next().await? {
            Some((_, Row::Whole)) => Columns::parse(rows.names(), template)?,
            _ => Err(ColumnError::None)?,
        };
        Ok(Self(Inner::Table(Box::new(Table { rows, columns, line: 1, blank: 0 }))))
    }

    /// The line at which the last entry began.
    pub(super) const fn line(&self) -> u64 {
        match &self.0 {
            Inner::Lines(_, line) => *line,
            Inner::Table(table) => table.line,
        }
    }

    /// The rows without any text that were passed over.
    pub(super) const fn blank(&self) -> u64 {
        match &self.0 {
            Inner::Lines(..) => 0,
            Inner::Table(table) => table.blank,
        }
    }

    /// The columns that mean something by their names alone, where any others are allowed; see [`Columns::taken`].
    #[must_use]
    pub fn taken(&self) -> Vec<&str> {
        match &self.0 {
            Inner::Lines(..) => Vec::new(),
            Inner::Table(table) => table.columns.taken().collect(),
        }
    }

    /// The next job and the line at which it begins, or what is wrong there; `None` at the end. Blank lines and rows are no
    /// jobs.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the reader.
    pub async fn job(&mut self) -> io::Result<Option<(u64, Result<Message, SkipError>)>> {
        Ok(self.next().await?.map(|Entry { line, job }| (line, job)))
    }

    /// The next entry; `None` at the end. Blank lines and rows are skipped.
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
            Inner::Table(table) => {
                let Some(row) = table.next().await? else { return Ok(None) };
                let job = match row {
                    Row::TooLong => Err(SkipError::TooLong),
                    Row::Open => Err(SkipError::Open),
                    Row::Whole => table.columns.message(table.rows.cells()).map_err(SkipError::Line),
                };
                Ok(Some(Entry { line: table.line, job }))
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
            Inner::Table(table) => {
                while table.next().await?.is_some() {
                    count += 1;
                }
            }
        }
        Ok(count)
    }
}
