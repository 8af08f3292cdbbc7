//! The options of tables: what their rows become.

use std::fmt::Display;

use paced::job::template::{Pattern, Template};
use paced::job::{FORBIDDEN_HEADERS, Message, Value, ndjson};
use paced::pipe::{Format, Records};
use tokio::io::AsyncBufRead;

use super::exit::Exit;
use super::out;

#[derive(Debug, Default, clap::Args)]
pub(super) struct TableArgs {
    /// FILE is CSV: a row of names (id, body, lane, plan, method, path, cost, cost:LIMIT, priority, not_before, deadline,
    /// header:NAME), and one row per job. Other columns are allowed with --path, --body-from-row, --id, or a --header that
    /// has {COLUMN} in it
    #[arg(long)]
    csv: bool,
    /// Path of each job, such as 'customers/{customer_id}'; the cells are percent-encoded
    #[arg(long, value_name = "TEMPLATE", requires = "csv")]
    path: Option<Pattern>,
    /// Makes the body of each job from its row: a JSON object of texts
    #[arg(long, requires = "csv")]
    body_from_row: bool,
    /// Column that has the id of each job
    #[arg(long, value_name = "COLUMN", requires = "csv")]
    id: Option<String>,
}

/// A header of requests: NAME:VALUE, where the value may have cells in it.
#[derive(Clone, Debug)]
pub(super) struct HeaderArg {
    name: String,
    value: String,
}

impl HeaderArg {
    /// Whether the value may have cells in it.
    pub(super) fn has_brace(&self) -> bool {
        self.value.contains('{')
    }
}

impl TableArgs {
    /// Whether the input is a table.
    pub(super) const fn is_csv(&self) -> bool {
        self.csv
    }

    /// The form of the input, and those of these headers that have no cells in them.
    pub(super) fn format(&self, headers: &[HeaderArg]) -> (Format, Vec<(String, String)>) {
        let plain = |header: &HeaderArg| (header.name.clone(), header.value.clone());
        if !self.csv {
            return (Format::Ndjson, headers.iter().map(plain).collect());
        }
        let (mut rest, mut cells) = (Vec::new(), Vec::new());
        for header in headers {
            match header.value.parse::<Pattern>() {
                Ok(pattern) if is_json(&pattern) => rest.push(plain(header)),
                Ok(pattern) => match pattern.text() {
                    Some(text) => rest.push((header.name.clone(), text.to_owned())),
                    None => cells.push((header.name.clone(), pattern)),
                },
                // Its braces are no cell.
                Err(_) => rest.push(plain(header)),
            }
        }
        let template = Template {
            path: self.path.clone(),
            body_from_row: self.body_from_row,
            id: self.id.clone(),
            headers: cells,
        };
        (Format::Csv(template), rest)
    }
}

/// Adds the headers that the message has none of.
pub(super) fn add_headers(message: &mut Message, headers: &[(String, String)]) {
    for (name, value) in headers {
        let is_there = match name.as_str() {
            "content-type" => message.content.content_type.is_some(),
            "content-encoding" => message.content.content_encoding.is_some(),
            name => message.headers.iter().any(|(other, _)| other.strip_prefix("http-") == Some(name)),
        };
        if !is_there {
            ndjson::set_request_header(message, name, Value::Text(value.clone().into()));
        }
    }
}

/// Says on stderr which columns of an input act on jobs although no option names them.
pub(super) fn say_taken<R: AsyncBufRead + Unpin>(input: impl Display, records: &Records<R>) {
    if let Some(text) = taken(&records.taken()) {
        out::say(format_args!("paced: {input}: {text}"));
    }
}

fn taken(columns: &[&str]) -> Option<String> {
    Some(match columns {
        [] => return None,
        [column] => format!(
            "the column {column} acts on each job by its name; rename it if it is about something else"
        ),
        columns => format!(
            "the columns {} act on each job by their names; rename those that are about something else",
            columns.join(", ")
        ),
    })
}

/// Whether the braces are those of JSON, such as `{"a": 1}`, and not around the name of a column.
fn is_json(pattern: &Pattern) -> bool {
    pattern.columns().any(|name| name.contains(['"', ':']))
}

/// Refuses headers that can never have an effect: those that no job may set, and one that is given twice.
pub(super) fn check_headers(
    headers: &[HeaderArg],
    may_be_any: impl Fn(&HeaderArg) -> bool,
    is_allowed: impl Fn(&str) -> bool,
) -> Result<(), Exit> {
    // These two are properties of a message, and no headers of a job.
    let is_property = |name: &str| matches!(name, "content-type" | "content-encoding");
    for (index, header) in headers.iter().enumerate() {
        let name = header.name.as_str();
        let problem = if headers[..index].iter().any(|other| other.name == name) {
            "is given twice; give it once"
        } else if may_be_any(header) {
            continue;
        } else if FORBIDDEN_HEADERS.contains(&name) {
            "is never a job's to set; leave it out"
        } else if !is_property(name) && !is_allowed(name) {
            "is not in `http.allow_headers`; add it there, or leave it out"
        } else {
            continue;
        };
        return Err(out::fail(Exit::Usage, format_args!("--header {name} {problem}")));
    }
    Ok(())
}

/// Parses NAME:VALUE.
pub(super) fn header(text: &str) -> Result<HeaderArg, String> {
    match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => {
            Ok(HeaderArg { name: name.to_lowercase(), value: value.trim().to_owned() })
        }
        _ => Err("no header; write NAME:VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_those_of_cells_or_of_the_value() {
        let table = TableArgs { csv: true, ..TableArgs::default() };
        for (value, expected) in [
            ("plain", Some("plain")),
            (r#"{"a": 1}"#, Some(r#"{"a": 1}"#)),
            (r#"{"a": {"b": [1]}}"#, Some(r#"{"a": {"b": [1]}}"#)),
            ("{a: 1}", Some("{a: 1}")),
            ("{{x}}", Some("{x}")),
            ("", Some("")),
            ("{tenant}", None),
            ("v-{ tenant id }", None),
        ] {
            let given = [header(&format!("X-A:{value}")).expect("a header")];
            let (format, plain) = table.format(&given);
            let expected: Vec<_> =
                expected.iter().map(|text| ("x-a".to_owned(), (*text).to_owned())).collect();
            assert_eq!(plain, expected, "{value}");
            let Format::Csv(template) = format else { panic!("a table") };
            assert_eq!(template.headers.len(), usize::from(plain.is_empty()), "{value}");
            // Lines of JSON have no cells.
            let (_, plain) = TableArgs::default().format(&given);
            assert_eq!(plain, [("x-a".to_owned(), value.to_owned())]);
        }
    }

    #[test]
    fn a_content_type_that_is_given_has_precedence_over_that_of_json() {
        for (line, given, expected) in [
            (r#"{"body": {"a": 1}}"#, Some("application/vnd.api+json"), "application/vnd.api+json"),
            (r#"{"body": [1]}"#, None, "application/json"),
            (r#"{"body": 7}"#, None, "application/json"),
            (r#"{"body": {}, "headers": {"content-type": "a/b"}}"#, Some("c/d"), "a/b"),
        ] {
            let mut message = ndjson::parse(line.as_bytes()).expect("a job").message;
            let given = given.map(|value| ("content-type".to_owned(), value.to_owned()));
            add_headers(&mut message, given.as_slice());
            message.content.name_json();
            assert_eq!(message.content.content_type.as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn columns_that_act_by_their_names_are_said() {
        assert_eq!(taken(&[]), None);
        assert!(taken(&["cost"]).is_some_and(|text| text.starts_with("the column cost acts on each job")));
        assert!(taken(&["id", "cost"]).is_some_and(|text| text.starts_with("the columns id, cost act on")));
    }

    #[test]
    fn headers_that_can_never_have_an_effect_are_refused() {
        let headers = |texts: &[&str]| -> Vec<HeaderArg> {
            texts.iter().map(|text| header(text).expect("a header")).collect()
        };
        let check = |texts: &[&str], any: bool, allowed: &str| {
            check_headers(&headers(texts), |_| any, |name| name == allowed || allowed == "*").is_ok()
        };
        assert!(check(&["x-a:1", "Content-Type:a/b", "content-encoding:gzip"], false, "x-a"));
        assert!(!check(&["x-a:1", "x-b:1"], false, "x-a") && check(&["x-a:1", "x-b:1"], true, "x-a"));
        assert!(!check(&["x-a:1", "X-A:2"], true, "*"), "twice");
        assert!(!check(&["Cookie:1"], false, "*") && check(&["Cookie:1"], true, ""));
    }
}
