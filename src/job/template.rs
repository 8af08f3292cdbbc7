//! Templates: what the rows of a table of any columns become.

use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All characters except those that a path has unencoded everywhere (RFC 3986, unreserved).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What the rows of a table become, besides what columns of known names say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The path of each job, instead of the column `path`. Cells are percent-encoded in it.
    pub path: Option<Pattern>,
    /// Whether the body of each job is its row as a JSON object, instead of the column `body`.
    pub body_from_row: bool,
    /// The column that has the id of each job, instead of `id`.
    pub id: Option<String>,
    /// Headers of the requests, by their names in lower case. One with an empty cell is left out.
    pub headers: Vec<(String, Pattern)>,
}

impl Template {
    /// Whether it says nothing: then all columns must have known names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A text with the cells of columns in it, such as `customers/{customer_id}`; `{{` and `}}` are braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Part<String>>);

/// A part of a pattern, in which columns are named or have been found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part<C> {
    Text(String),
    Cell(C),
}

/// The reason why a text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A brace that belongs to no other.
    #[error("a brace without its other one; write {{COLUMN}} for a cell, and {{{{ or }}}} for a brace")]
    Brace,
    /// A pair of braces with no name in it.
    #[error("{{}} names no column; write such as {{customer_id}}")]
    NoName,
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let (mut parts, mut literal) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(brace) {
                literal.push_str(brace);
                rest = behind;
                continue;
            }
            if brace == "}" {
                return Err(PatternError::Brace);
            }
            let (name, behind) = rest.split_once('}').ok_or(PatternError::Brace)?;
            if name.contains('{') {
                return Err(PatternError::Brace);
            }
            if name.trim().is_empty() {
                return Err(PatternError::NoName);
            }
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(Part::Cell(name.trim().to_owned()));
            rest = behind;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self(parts))
    }
}

impl Pattern {
    /// The text, with its braces single, if there is no cell in it.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &*self.0 {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The names of the columns in it.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Cell(name) => Some(name.as_str()),
        })
    }

    /// The same pattern with the columns that `find` finds.
    pub(super) fn resolve<E>(&self, find: impl Fn(&str) -> Result<usize, E>) -> Result<Vec<Part<usize>>, E> {
        let part = |part: &Part<String>| {
            Ok(match part {
                Part::Text(text) => Part::Text(text.clone()),
                Part::Cell(name) => Part::Cell(find(name)?),
            })
        };
        self.0.iter().map(part).collect()
    }
}

/// Fills the cells in; the index of a column whose cell is empty.
pub(super) fn fill(parts: &[Part<usize>], cells: &[&str], is_path: bool) -> Result<String, usize> {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Text(literal) => text.push_str(literal),
            Part::Cell(column) => match cells.get(*column).map(|cell| cell.trim()).unwrap_or_default() {
                "" => return Err(*column),
                cell if is_path => text.extend(utf8_percent_encode(cell, ENCODED)),
                cell => text.push_str(cell),
            },
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(pattern: &str, cells: &[&str]) -> String {
        let pattern: Pattern = pattern.parse().unwrap();
        let parts = pattern.resolve(|name| name.parse::<usize>()).unwrap();
        fill(&parts, cells, true).unwrap()
    }

    #[test]
    fn cells_stand_in_their_places_percent_encoded() {
        let cells = ["a b/ü?", "7"];
        for (pattern, text) in [
            ("customers/{1}", "customers/7"),
            ("{0}", "a%20b%2F%C3%BC%3F"),
            ("x/{1}/y/{ 1 }?q={1}", "x/7/y/7?q=7"),
            ("{{{1}}}", "{7}"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(filled(pattern, &cells), text, "{pattern}");
        }
        let parts = "a/{0}/{1}".parse::<Pattern>().unwrap().resolve(|name| name.parse::<usize>()).unwrap();
        assert_eq!(fill(&parts, &["x", " "], true), Err(1), "an empty cell");
        assert_eq!(fill(&parts, &[" x/y ", "z"], false), Ok("a/x/y/z".to_owned()));
    }

    #[test]
    fn what_is_no_pattern() {
        for (text, error) in [
            ("a/{id", PatternError::Brace),
            ("a/id}", PatternError::Brace),
            ("{a{b}}", PatternError::Brace),
            ("a/{}", PatternError::NoName),
            ("a/{ }", PatternError::NoName),
        ] {
            assert_eq!(text.parse::<Pattern>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_pattern_or_not(text in "[{}a]{0,12}|.{0,40}", cell in ".{0,20}") {
            let Ok(pattern) = text.parse::<Pattern>() else { return Ok(()) };
            let parts = pattern.resolve(|_| Ok::<_, ()>(0)).unwrap();
            if let Ok(path) = fill(&parts, &[&cell], true)
                && pattern.text().is_some()
            {
                prop_assert_eq!(&path, &text.replace("{{", "{").replace("}}", "}"));
                prop_assert_eq!(Some(&*path), pattern.text());
            }
        }
    }
}
