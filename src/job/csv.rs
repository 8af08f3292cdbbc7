//! Converts a job in one row of CSV to the equivalent message, as [`ndjson`](super::ndjson) does for a line of JSON. It
//! has no I/O, and does not split rows.

use std::collections::HashSet;

use bytes::Bytes;

use super::ndjson::{LineError, PRIORITY, set_request_header};
use super::nearest::nearest;
use super::{Message, Value, shown};

/// The columns by name; `header:NAME` is one for each header of the request.
const COLUMNS: [(&str, Column); 9] = [
    ("id", Column::Id),
    ("body", Column::Body),
    ("lane", Column::Header("paced-lane")),
    ("plan", Column::Header("paced-plan")),
    ("method", Column::Header("paced-method")),
    ("path", Column::Header("paced-path")),
    ("priority", Column::Priority),
    ("not_before", Column::Instant("paced-not-before")),
    ("deadline", Column::Instant("paced-deadline")),
];

/// The prefix of the columns that are costs of single limits.
const COST: &str = "cost:";

/// The prefix of the columns that are headers of the request.
const REQUEST_HEADER: &str = "header:";

/// What the cells of a column are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Column {
    Id,
    Body,
    /// The text of a header of the message.
    Header(&'static str),
    /// A header of the message that is a cost.
    Cost(String),
    Priority,
    /// An instant, as a header of the message.
    Instant(&'static str),
    /// A header of the request, in lower case.
    Request(String),
}

/// The columns of a table of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns(Vec<(String, Column)>);

/// The reason why a row is no row of names of columns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// There is no row at all.
    #[error("no row of names of columns; begin with one, such as id,path,body")]
    None,
    /// The name is none of a column's.
    #[error("column {number}: unknown name `{name}`; {hint}")]
    Unknown {
        /// The position, from 1.
        number: usize,
        /// The name.
        name: String,
        /// The nearest known name, or all of them.
        hint: String,
    },
    /// The name, or a header in any case, occurs twice.
    #[error("column {number}: `{name}` is given twice; keep one")]
    Twice {
        /// The position of the second one, from 1.
        number: usize,
        /// The name.
        name: String,
    },
}

impl Columns {
    /// Reads the row of names.
    ///
    /// # Errors
    /// [`ColumnError`]: the first name that is wrong.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, ColumnError> {
        let mut columns = Vec::new();
        let mut seen = HashSet::new();
        for (index, name) in names.into_iter().enumerate() {
            let number = index + 1;
            let text = String::from_utf8_lossy(name.trim_ascii()).into_owned();
            let Some(column) = column(&text) else {
                let name = shown(text.as_bytes(), 60);
                return Err(ColumnError::Unknown { number, name, hint: hint(&text) });
            };
            let key = text.to_ascii_lowercase();
            if !seen.insert(key.clone()) {
                return Err(ColumnError::Twice { number, name: shown(key.as_bytes(), 60) });
            }
            columns.push((key, column));
        }
        if columns.is_empty() { Err(ColumnError::None) } else { Ok(Self(columns)) }
    }

    /// The message of a row. An empty cell counts as absent.
    ///
    /// # Errors
    /// [`LineError`]: the first thing that is wrong.
    pub fn message<'a>(&self, cells: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Message, LineError> {
        let (columns, found) = (self.0.len(), cells.len());
        if found != columns {
            return Err(LineError::Cells { columns, found });
        }
        let mut message = Message::default();
        for ((key, column), cell) in self.0.iter().zip(cells) {
            if !cell.is_empty() {
                set(&mut message, key, column, cell)?;
            }
        }
        Ok(message)
    }
}

fn column(name: &str) -> Option<Column> {
    if let Some(header) = name.strip_prefix(REQUEST_HEADER) {
        return (!header.is_empty()).then(|| Column::Request(header.to_ascii_lowercase()));
    }
    if name == "cost" {
        return Some(Column::Cost("paced-cost".to_owned()));
    }
    if let Some(limit) = name.strip_prefix(COST) {
        return (!limit.is_empty()).then(|| Column::Cost(format!("paced-cost-{limit}")));
    }
    COLUMNS.iter().find(|(known, _)| *known == name).map(|(_, column)| column.clone())
}

fn hint(name: &str) -> String {
    let mut known: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    known.insert(6, "cost");
    if name == REQUEST_HEADER {
        return "name the header, such as header:x-request-id".to_owned();
    }
    match nearest(&name.to_ascii_lowercase(), &known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}, {COST}LIMIT and {REQUEST_HEADER}NAME", known.join(", ")),
    }
}

fn set(message: &mut Message, key: &str, column: &Column, cell: &[u8]) -> Result<(), LineError> {
    let wrong = |expected| LineError::Type { key: key.to_owned(), expected };
    if *column == Column::Body {
        message.content.body = Bytes::copy_from_slice(cell);
        return Ok(());
    }
    let text = str::from_utf8(cell).map_err(|_| wrong("text in UTF-8"))?;
    let as_text = || Value::Text(text.to_owned().into());
    match column {
        Column::Body => {}
        Column::Id => message.message_id = Some(text.to_owned()),
        Column::Header(name) => message.headers.push(((*name).to_owned(), as_text())),
        Column::Cost(name) => {
            let cost = text.trim().parse().map_err(|_| wrong("a whole number"))?;
            message.headers.push((name.clone(), Value::Integer(cost)));
        }
        Column::Priority => message.priority = Some(text.trim().parse().map_err(|_| wrong(PRIORITY))?),
        Column::Instant(name) => {
            // Whether the text is an instant is decided with the other rules of a job.
            let value = text.trim().parse().map_or_else(|_| as_text(), Value::Integer);
            message.headers.push(((*name).to_owned(), value));
        }
        Column::Request(name) => set_request_header(message, name, as_text()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ndjson;

    fn columns(names: &str) -> Result<Columns, ColumnError> {
        Columns::parse(names.split(',').map(str::as_bytes))
    }

    fn message(names: &str, cells: &[&[u8]]) -> Result<Message, LineError> {
        columns(names).expect("columns").message(cells.iter().copied())
    }

    #[test]
    fn a_row_is_the_message_of_the_same_line_of_json() {
        let names = "id, path,method,lane,plan,cost,priority,not_before,deadline,header:X-Any,header:content-type,body";
        let row: [&[u8]; 12] = [
            b"a",
            b"x/1",
            b"PUT",
            b"acme",
            b"free",
            b"3",
            b"7",
            b"1760000000000",
            b"2030-01-01T00:00:00Z",
            b"1",
            b"text/plain",
            b"hello",
        ];
        let json = br#"{"id": "a", "path": "x/1", "method": "PUT", "lane": "acme", "plan": "free", "cost": 3,
            "priority": 7, "not_before": 1760000000000, "deadline": "2030-01-01T00:00:00Z",
            "headers": {"X-Any": "1", "content-type": "text/plain"}, "body": "hello"}"#;
        let sorted = |mut message: Message| {
            message.headers.sort_by(|one, other| one.0.cmp(&other.0));
            message
        };
        let line = ndjson::parse(json).expect("a job");
        assert_eq!(message(names, &row).map(sorted), Ok(sorted(line.message)));
    }

    #[test]
    fn empty_cells_are_absent_and_a_body_may_be_any_bytes() {
        assert_eq!(message("id,cost,priority,body", &[b"", b"", b"", b""]), Ok(Message::default()));
        let message = message("body", &[b"\xff\"\n"]).expect("a job");
        assert_eq!(&message.content.body[..], b"\xff\"\n");
    }

    #[test]
    fn costs_of_single_limits_are_columns() {
        let message = message("cost:tokens,cost", &[b"1500", b" 2 "]).expect("a job");
        let header = |name: &str, cost| (name.to_owned(), Value::Integer(cost));
        assert_eq!(message.headers, [header("paced-cost-tokens", 1500), header("paced-cost", 2)]);
    }

    #[test]
    fn wrong_names_are_told_with_the_nearest_one() {
        for (names, problem) in [
            ("id,bdy", "column 2: unknown name `bdy`; did you mean `body`?"),
            ("ID", "column 1: unknown name `ID`; did you mean `id`?"),
            ("notbefore", "column 1: unknown name `notbefore`; did you mean `not_before`?"),
            ("id,header:", "column 2: unknown name `header:`; name the header, such as header:x-request-id"),
            (
                "customer",
                "column 1: unknown name `customer`; known are id, body, lane, plan, method, path, cost, priority, \
                 not_before, deadline, cost:LIMIT and header:NAME",
            ),
            ("id,id", "column 2: `id` is given twice; keep one"),
            ("header:a,header:A", "column 2: `header:a` is given twice; keep one"),
        ] {
            assert_eq!(columns(names).map_err(|error| error.to_string()), Err(problem.to_owned()), "{names}");
        }
        assert_eq!(Columns::parse([]), Err(ColumnError::None));
    }

    #[test]
    fn wrong_cells_are_told() {
        for (names, cells, problem) in [
            ("cost", &[&b"1.5"[..]][..], "`cost` must be a whole number"),
            ("priority", &[b"high"], "`priority` must be a whole number from 0 to 255"),
            ("path", &[b"\xff"], "`path` must be text in UTF-8"),
            (
                "id,path",
                &[b"a"],
                "1 cell where there are 2 columns; write as many, and quote cells with commas",
            ),
            (
                "id",
                &[b"a", b"b"],
                "2 cells where there is 1 column; write as many, and quote cells with commas",
            ),
        ] {
            let error = message(names, cells).map_err(|error| error.to_string());
            assert_eq!(error, Err(problem.to_owned()), "{names}");
        }
    }
}
