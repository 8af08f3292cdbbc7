//! Reads values of each type; what is given wins over the default of the key.

use std::fmt::Display;
use std::time::Duration;

use figment::value::Value;
use serde_json::json;

use super::{Found, IN_QUOTES, Reader, Table, integer_of};
use crate::config::document::quote;
use crate::config::key::{Absent, Form, Key};
use crate::config::value::{self, choose};

impl<'v> Reader<'v> {
    /// An integer within the bounds of the key.
    pub fn integer<T: TryFrom<u64>>(&mut self, table: &Table<'v>, key: &Key) -> Option<T> {
        self.integer_or(table, key, key.default_text().and_then(|text| text.parse().ok()))
    }

    /// As [`Reader::integer`], with a default that depends on other values.
    pub fn integer_or<T: TryFrom<u64>>(
        &mut self,
        table: &Table<'v>,
        key: &Key,
        default: Option<u64>,
    ) -> Option<T> {
        self.declare(table, key, || key.integer());
        let Some(found) = self.find(table, key.name) else {
            let Some(default) = default else {
                self.absent(table, key);
                return None;
            };
            self.note(table, key, default.to_string(), None);
            return T::try_from(default).ok();
        };
        let given = match found.value {
            Value::Num(_, number) => integer_of(number),
            _ => self.lone_text(&found).and_then(|text| text.trim().parse::<i128>().ok()),
        };
        let range = key.range();
        let Some(given) = given else {
            let example = default.unwrap_or(range.start() + 1);
            self.wrong_type(&found, "an integer", &format!("such as {example}"));
            return None;
        };
        let number = u64::try_from(given).ok().filter(|number| range.contains(number));
        let (low, high) = range.into_inner();
        let problem = || format!("out of range; use an integer from {low} to {high}");
        let number = self.accept(&found, number.ok_or_else(problem))?;
        self.note(table, key, number.to_string(), Some(&found));
        T::try_from(number).ok()
    }

    /// An integer within the bounds of the key, or a text, as these functions take them. `node` is the schema.
    pub fn integer_or_text<T>(
        &mut self,
        table: &Table<'v>,
        key: &Key,
        node: impl FnOnce() -> serde_json::Value,
        integer: impl Fn(u64) -> Option<T>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.declare(table, key, node);
        let Some(found) = self.find(table, key.name) else {
            self.absent(table, key);
            return None;
        };
        if let Value::Num(_, number) = found.value {
            let (low, high) = key.range().into_inner();
            let number = integer_of(number).and_then(|number| u64::try_from(number).ok());
            let number = number.filter(|number| key.range().contains(number));
            let problem = || format!("out of range; use an integer from {low} to {high}");
            let number = self.accept(&found, number.ok_or_else(problem))?;
            self.note(table, key, number.to_string(), Some(&found));
            return integer(number);
        }
        let text = self.text(&found, IN_QUOTES)?;
        let taken = self.accept(&found, parse(&text))?;
        self.note(table, key, quote(&text), Some(&found));
        Some(taken)
    }

    pub fn boolean(&mut self, table: &Table<'v>, key: &Key) -> Option<bool> {
        self.declare(table, key, || json!({ "type": "boolean" }));
        let Some(found) = self.find(table, key.name) else {
            let default = key.default_text()?;
            self.note(table, key, default.to_owned(), None);
            return default.parse().ok();
        };
        let truth = match found.value {
            Value::Bool(_, truth) => Some(*truth),
            _ => self.lone_text(&found).and_then(|text| text.trim().parse().ok()),
        };
        match truth {
            Some(truth) => self.note(table, key, truth.to_string(), Some(&found)),
            None => self.wrong_type(&found, "a boolean", "true or false"),
        }
        truth
    }

    /// A text that `parse` accepts. The text may be shown in a mistake, so it must be no secret.
    pub fn parsed<T, E: Display>(
        &mut self,
        table: &Table<'v>,
        key: &Key,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.declare(table, key, || key.string());
        let found = self.find(table, key.name);
        let text = match &found {
            Some(found) => {
                let example = key.default_text().map(|text| format!(", such as {}", quote(text)));
                self.text(found, &format!("{IN_QUOTES}{}", example.unwrap_or_default()))?
            }
            None => self.absent(table, key)?.to_owned(),
        };
        let value = match &found {
            Some(found) => self.accept(found, parse(&text).map_err(|error| error.to_string()))?,
            None => parse(&text).ok()?,
        };
        self.note(table, key, quote(&text), found.as_ref());
        Some(value)
    }

    /// One of these words. `mistake` is what the error says of any other word, such as "no precision".
    pub fn choice<T: Copy>(
        &mut self,
        table: &Table<'v>,
        key: &Key,
        mistake: &str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let all = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        self.declare(table, key, || json!({ "type": "string", "enum": all() }));
        self.parsed(table, key, |text| choose(text, mistake, words))
    }

    /// A duration within the bounds of the key.
    pub fn duration(&mut self, table: &Table<'v>, key: &Key) -> Option<Duration> {
        self.declare(table, key, || json!({ "type": "string", "pattern": value::DURATION }));
        self.parsed(table, key, |text| match key.form {
            Form::Within(low, high) => value::within(text, low, high, value::duration),
            _ => value::duration(text),
        })
    }

    /// A size in bytes within the bounds of the key.
    pub fn size<T: TryFrom<u64>>(&mut self, table: &Table<'v>, key: &Key) -> Option<T> {
        self.declare(table, key, || json!({ "type": "string", "pattern": value::SIZE }));
        let size = self.parsed(table, key, |text| match key.form {
            Form::Within(low, high) => value::within(text, low, high, value::size),
            _ => value::size(text),
        });
        T::try_from(size?).ok()
    }

    /// The texts of an array, each converted by `parse`.
    pub fn texts(
        &mut self,
        table: &Table<'v>,
        key: &Key,
        parse: impl Fn(&str) -> Result<String, String>,
    ) -> Option<Vec<String>> {
        let convert = |reader: &mut Self, item: &Found<'v>| {
            let text = reader.text(item, IN_QUOTES)?;
            let text = reader.accept(item, parse(&text))?;
            Some((quote(&text), text))
        };
        let given = self.list(table, key, "an array of strings", || key.string(), convert)?;
        let default = || key.default_text().and_then(|text| serde_json::from_str(text).ok());
        Some(given.or_else(default).unwrap_or_default())
    }

    /// The items of an array, each with its text in TOML by `convert`, which notes its mistake; `Some(None)` where it is not
    /// given. `item` is the schema of each.
    pub fn list<T>(
        &mut self,
        table: &Table<'v>,
        key: &Key,
        expected: &str,
        item: impl FnOnce() -> serde_json::Value,
        convert: impl Fn(&mut Self, &Found<'v>) -> Option<(String, T)>,
    ) -> Option<Option<Vec<T>>> {
        self.declare(table, key, || json!({ "type": "array", "items": item() }));
        let Some(found) = self.find(table, key.name) else {
            self.note(table, key, key.default_text().unwrap_or("[]").to_owned(), None);
            return Some(None);
        };
        let items = self.items(&found, expected, key.example)?;
        let count = items.len();
        let converted = items.iter().filter_map(|item| convert(self, item));
        let (shown, items): (Vec<String>, Vec<T>) = converted.unzip();
        self.note(table, key, format!("[{}]", shown.join(", ")), Some(&found));
        (items.len() == count).then_some(Some(items))
    }

    /// The default of a key that is not given. Its absence may be a mistake, which is noted.
    pub fn absent(&mut self, table: &Table<'v>, key: &Key) -> Option<&'static str> {
        if let Absent::Mistake(hint) = key.absent {
            self.missing(table, key.name, hint);
        }
        key.default_text()
    }
}
