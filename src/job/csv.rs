//! Converts a job in one row of CSV to the equivalent message, as [`ndjson`](super::ndjson) does for a line of JSON. It
//! has no I/O, and does not split rows.

use std::collections::HashSet;

use bytes::Bytes;

use super::ndjson::{LineError, PRIORITY, set_request_header};
use super::nearest::nearest;
use super::template::{Part, Template, fill};
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

/// The separators of columns in other kinds of tables.
const SEPARATORS: [(char, &str); 3] = [(';', "semicolons"), ('\t', "tabs"), ('|', "vertical bars")];

/// The meaning of the cells of a column.
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
    /// Of any name, for templates.
    Other,
}

/// The columns of a table of jobs, and the template that makes jobs from its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    columns: Vec<(String, Column)>,
    template: Resolved,
}

/// A template with the places of its columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Resolved {
    path: Option<Vec<Part<usize>>>,
    /// The names of the columns, if the body is made of the row.
    body: Option<Vec<String>>,
    id: Option<usize>,
    headers: Vec<(String, Vec<Part<usize>>)>,
}

/// The reason why a row is no row of names of columns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// There is no row at all.
    #[error("no row of names of columns; begin with one, such as id,path,body")]
    None,
    /// A name is not in UTF-8.
    #[error(
        "column {0}: its name is not in UTF-8; export the table as CSV UTF-8, or convert it (`iconv -f WINDOWS-1252 -t UTF-8`)"
    )]
    Encoding(usize),
    /// There is one column, whose name holds what separates columns elsewhere.
    #[error("its columns are separated by {0}, and commas are read; export it with commas")]
    Separator(&'static str),
    /// There is no column of this name.
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
    /// A template names a column that there is not.
    #[error("no column `{name}`, which a template names; there are {}; `{{{{` is a brace", names.join(", "))]
    Missing {
        /// The name in the template.
        name: String,
        /// The names of the columns.
        names: Vec<String>,
    },
}

impl Columns {
    /// Reads the row of names. Without a template all must be known.
    ///
    /// # Errors
    /// [`ColumnError`]: the first name that is wrong.
    pub fn parse<'a>(
        names: impl IntoIterator<Item = &'a [u8]>,
        template: &Template,
    ) -> Result<Self, ColumnError> {
        let name = |(index, name): (usize, &[u8])| {
            str::from_utf8(name.trim_ascii()).map(str::to_owned).map_err(|_| ColumnError::Encoding(index + 1))
        };
        let names: Vec<String> = names.into_iter().enumerate().map(name).collect::<Result<_, _>>()?;
        if let [name] = &*names
            && let Some((_, separator)) = SEPARATORS.into_iter().find(|(other, _)| name.contains(*other))
        {
            return Err(ColumnError::Separator(separator));
        }
        let mut columns = Vec::new();
        let mut seen = HashSet::new();
        for (index, text) in names.iter().enumerate() {
            let number = index + 1;
            let column = match column(text).filter(|column| !is_replaced(column, template)) {
                Some(column) => column,
                None if !template.is_empty() => Column::Other,
                None => {
                    let name = shown(text.as_bytes(), 60);
                    return Err(ColumnError::Unknown { number, name, hint: hint(text) });
                }
            };
            let key = if column == Column::Other { text.clone() } else { text.to_ascii_lowercase() };
            // A comma at the end of each row makes a column without a name.
            if !key.is_empty() && !seen.insert(key.clone()) {
                return Err(ColumnError::Twice { number, name: shown(key.as_bytes(), 60) });
            }
            columns.push((key, column));
        }
        if columns.is_empty() {
            return Err(ColumnError::None);
        }
        Ok(Self { columns, template: Resolved::of(template, &names)? })
    }

    /// The columns that have a meaning only because of their name, such as `cost`, in a table with any columns: they
    /// may be about something else. None without a template, since then each name was chosen for its meaning.
    pub fn taken(&self) -> impl Iterator<Item = &str> {
        let any_names = self.template != Resolved::default();
        // A name with a prefix, such as `cost:tokens`, is no accident.
        let is_taken = move |(name, column): &&(String, Column)| {
            any_names && *column != Column::Other && !name.contains(':')
        };
        self.columns.iter().filter(is_taken).map(|(name, _)| name.as_str())
    }

    /// The message of a row. An empty cell counts as absent.
    ///
    /// # Errors
    /// [`LineError`]: the first thing that is wrong.
    pub fn message<'a>(&self, cells: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Message, LineError> {
        let (columns, found) = (self.columns.len(), cells.len());
        if found != columns {
            return Err(LineError::Cells { columns, found });
        }
        let cells: Vec<&[u8]> = cells.collect();
        let mut message = Message::default();
        for ((key, column), cell) in self.columns.iter().zip(&cells) {
            if !cell.is_empty() {
                set(&mut message, key, column, cell).map_err(|error| self.renaming(error, column))?;
            }
        }
        self.template.apply(&mut message, &self.columns, &cells)?;
        Ok(message)
    }
}

impl Columns {
    /// The error. With a template it also says that the column may be renamed, if it is about something else.
    fn renaming(&self, error: LineError, column: &Column) -> LineError {
        let expected = match column {
            _ if self.template == Resolved::default() => return error,
            Column::Cost(_) => "a whole number; if it is no cost of a job, rename the column",
            Column::Priority => {
                "a whole number from 0 to 255; if it is no priority of a job, rename the column"
            }
            _ => return error,
        };
        match error {
            LineError::Type { key, .. } => LineError::Type { key, expected },
            error => error,
        }
    }
}

impl Resolved {
    fn of(template: &Template, names: &[String]) -> Result<Self, ColumnError> {
        let find = |name: &str| {
            names.iter().position(|other| other == name).ok_or_else(|| ColumnError::Missing {
                name: shown(name.as_bytes(), 60),
                names: names.iter().map(|name| shown(name.as_bytes(), 60)).take(50).collect(),
            })
        };
        let headers = template.headers.iter();
        Ok(Self {
            path: template.path.as_ref().map(|path| path.resolve(find)).transpose()?,
            body: template.body_from_row.then(|| names.to_vec()),
            id: template.id.as_deref().map(find).transpose()?,
            headers: headers
                .map(|(name, value)| Ok((name.clone(), value.resolve(find)?)))
                .collect::<Result<_, ColumnError>>()?,
        })
    }

    /// Sets the parts of the job that the template makes from a row.
    fn apply(
        &self,
        message: &mut Message,
        columns: &[(String, Column)],
        cells: &[&[u8]],
    ) -> Result<(), LineError> {
        if *self == Self::default() {
            return Ok(());
        }
        let named = |index: usize| shown(columns[index].0.as_bytes(), 60);
        let text = |(index, cell): (usize, &&[u8])| {
            let wrong = || LineError::Type { key: named(index), expected: "text in UTF-8" };
            str::from_utf8(cell).map(ToOwned::to_owned).map_err(|_| wrong())
        };
        let texts: Vec<String> = cells.iter().enumerate().map(text).collect::<Result<_, _>>()?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let empty = |index| LineError::Empty(named(index));
        if let Some(index) = self.id {
            let id = texts[index].trim();
            message.message_id = Some((!id.is_empty()).then(|| id.to_owned()).ok_or_else(|| empty(index))?);
        }
        if let Some(path) = &self.path {
            let path = fill(path, &texts, true).map_err(empty)?;
            message.headers.push(("paced-path".to_owned(), Value::Text(path.into())));
        }
        for (name, value) in &self.headers {
            // A header without its value is left out.
            if let Ok(value) = fill(value, &texts, false) {
                set_request_header(message, name, Value::Text(value.into()));
            }
        }
        if let Some(names) = &self.body {
            let cells = names.iter().zip(&texts).filter(|(name, _)| !name.is_empty());
            let row: serde_json::Map<_, _> =
                cells.map(|(name, cell)| (name.clone(), serde_json::Value::from(*cell))).collect();
            message.content.body = serde_json::Value::from(row).to_string().into();
        }
        Ok(())
    }
}

/// Whether a template sets the same part of the job as a column of this name.
fn is_replaced(column: &Column, template: &Template) -> bool {
    match column {
        Column::Id => template.id.is_some(),
        Column::Body => template.body_from_row,
        Column::Header(name) => template.path.is_some() && *name == "paced-path",
        _ => false,
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
        None => format!(
            "known are {}, {COST}LIMIT and {REQUEST_HEADER}NAME; other names are allowed with --path, --body-from-row, --id or \
             --header",
            known.join(", ")
        ),
    }
}

fn set(message: &mut Message, key: &str, column: &Column, cell: &[u8]) -> Result<(), LineError> {
    let wrong = |expected| LineError::Type { key: key.to_owned(), expected };
    match column {
        Column::Body => {
            message.content.body = Bytes::copy_from_slice(cell);
            return Ok(());
        }
        Column::Other => return Ok(()),
        _ => {}
    }
    let text = str::from_utf8(cell).map_err(|_| wrong("text in UTF-8"))?;
    let as_text = || Value::Text(text.to_owned().into());
    match column {
        Column::Body | Column::Other => {}
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
mod tests;
