//! Reads typed values from the merged tree, and notes all mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use figment::Figment;
use figment::value::{Dict, Value};

use super::document::{join, quote};
use super::error::ConfigError;
use super::settings::Secret;
use super::source::Layer;

mod parts;

pub(super) use parts::{Absent, Entry, Found, IN_QUOTES, Table, Tables};

pub(super) struct Reader<'v> {
    figment: &'v Figment,
    pub layers: &'v [Layer],
    root: &'v Dict,
    pub errors: Vec<ConfigError>,
    /// Warnings of entries that are valid but will not do what they seem to.
    pub warnings: Vec<ConfigError>,
    pub entries: Vec<Entry>,
    /// Every path that a key could have, and the layer whose value is in effect.
    pub asked: BTreeMap<String, Option<usize>>,
    /// The paths of tables.
    pub opened: BTreeSet<String>,
    /// Hints for keys that are known elsewhere, by path.
    pub hints: BTreeMap<String, String>,
    /// The directory of the credentials that systemd made for this service.
    pub credentials: Option<PathBuf>,
    /// Whether it reads for a tool, which has no use for the key of the daemon and may not be allowed to read it.
    pub is_for_tools: bool,
}

impl<'v> Reader<'v> {
    pub fn new(figment: &'v Figment, layers: &'v [Layer], root: &'v Dict) -> Self {
        let (errors, warnings, entries) = (Vec::new(), Vec::new(), Vec::new());
        let (asked, hints) = (BTreeMap::new(), BTreeMap::new());
        let (opened, credentials, is_for_tools) = (BTreeSet::new(), None, false);
        Self {
            figment,
            layers,
            root,
            errors,
            warnings,
            entries,
            asked,
            opened,
            hints,
            credentials,
            is_for_tools,
        }
    }

    pub fn root(&mut self) -> Table<'v> {
        self.opened.insert(String::new());
        Table { lineage: vec![String::new()], dict: Some(self.root) }
    }

    /// The table under `key`; any other value in its place is noted by the search for unknown keys.
    pub fn table(&mut self, parent: &Table<'v>, key: &str) -> Table<'v> {
        let found = self.find(parent, key);
        let path = join(parent.path(), key);
        self.opened.insert(path.clone());
        let dict = match found.map(|found| found.value) {
            Some(Value::Dict(_, dict)) => Some(dict),
            _ => None,
        };
        Table { lineage: parent.below(path), dict }
    }

    /// The tables in the array under `key`, and the array.
    pub fn tables(&mut self, parent: &Table<'v>, key: &str) -> Option<(Found<'v>, Tables<'v>)> {
        let found = self.find(parent, key)?;
        let mut tables = Vec::new();
        for item in self.items(&found, "an array of tables", "[{ rate = \"1000/minute\" }]")? {
            self.asked.insert(item.path.clone(), Some(item.layer));
            let Value::Dict(_, dict) = item.value else {
                self.wrong_type(&item, "a table", "{ rate = \"1000/minute\" }");
                continue;
            };
            self.opened.insert(item.path.clone());
            let table = Table { lineage: parent.below(item.path.clone()), dict: Some(dict) };
            tables.push((item, table));
        }
        Some((found, tables))
    }

    /// An integer within `range`.
    pub fn integer(
        &mut self,
        table: &Table<'v>,
        key: &str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> Option<u32> {
        let Some(found) = self.find(table, key) else {
            self.note(table, key, default.to_string(), None);
            return Some(default);
        };
        let range = u64::from(*range.start())..=u64::from(*range.end());
        let number = self.number(table, key, &found, default.into(), range)?;
        u32::try_from(number).ok()
    }

    /// An integer within `range`, if it is given.
    pub fn whole(&mut self, table: &Table<'v>, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let found = self.find(table, key)?;
        self.number(table, key, &found, *range.start() + 1, range)
    }

    fn number(
        &mut self,
        table: &Table<'v>,
        key: &str,
        found: &Found<'v>,
        example: u64,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let given = match found.value {
            Value::Num(_, number) => {
                number.to_i128().or_else(|| number.to_u128().and_then(|number| number.try_into().ok()))
            }
            _ => self.lone_text(found).and_then(|text| text.trim().parse::<i128>().ok()),
        };
        let Some(given) = given else {
            self.wrong_type(found, "an integer", &format!("such as {example}"));
            return None;
        };
        let number = u64::try_from(given).ok().filter(|number| range.contains(number));
        match number {
            Some(number) => self.note(table, key, number.to_string(), Some(found)),
            None => {
                let (low, high) = (range.start(), range.end());
                self.wrong(found, format!("out of range; use an integer from {low} to {high}"));
            }
        }
        number
    }

    /// The integers of an array such as `example`, each converted by `parse`; `Some(None)` where it is not given, which
    /// is shown as `default`.
    pub fn numbers(
        &mut self,
        table: &Table<'v>,
        key: &str,
        example: &str,
        default: &str,
        parse: impl Fn(u64) -> Result<u16, String>,
    ) -> Option<Option<Vec<u16>>> {
        let Some(found) = self.find(table, key) else {
            self.note(table, key, default.to_owned(), None);
            return Some(None);
        };
        let mut numbers = Some(Vec::new());
        for item in self.items(&found, "an array of integers", example)? {
            let given = match item.value {
                Value::Num(_, number) => {
                    let number =
                        number.to_i128().or_else(|| number.to_u128().and_then(|n| n.try_into().ok()));
                    // A negative number is as wrong as any other invalid one.
                    number.map(|number| u64::try_from(number).unwrap_or(0))
                }
                _ => None,
            };
            match (&mut numbers, given.map(&parse)) {
                (Some(numbers), Some(Ok(number))) => numbers.push(number),
                (_, Some(Ok(_))) => {}
                (all, Some(Err(problem))) => {
                    self.wrong(&item, problem);
                    *all = None;
                }
                (all, None) => {
                    self.wrong_type(&item, "an integer", "such as 401");
                    *all = None;
                }
            }
        }
        let shown: Vec<String> = numbers.iter().flatten().map(u16::to_string).collect();
        self.note(table, key, format!("[{}]", shown.join(", ")), Some(&found));
        Some(Some(numbers?))
    }

    pub fn boolean(&mut self, table: &Table<'v>, key: &str, default: bool) -> Option<bool> {
        let Some(found) = self.find(table, key) else {
            self.note(table, key, default.to_string(), None);
            return Some(default);
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
    pub fn parsed<T, E: fmt::Display>(
        &mut self,
        table: &Table<'v>,
        key: &str,
        absent: Absent,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let found = self.find(table, key);
        let text = match &found {
            Some(found) => self.text(found, &absent.example())?,
            None => self.absent(table, key, absent)?,
        };
        match parse(&text) {
            Ok(value) => {
                self.note(table, key, quote(&text), found.as_ref());
                Some(value)
            }
            Err(error) => {
                if let Some(found) = found {
                    self.wrong(&found, error.to_string());
                }
                None
            }
        }
    }

    /// The texts of an array such as `example`, each converted by `parse`; `default` where it is not given.
    pub fn texts(
        &mut self,
        table: &Table<'v>,
        key: &str,
        default: &[&str],
        example: &str,
        parse: impl Fn(&str) -> Result<String, String>,
    ) -> Option<Vec<String>> {
        let array = |texts: &[String]| {
            let shown: Vec<String> = texts.iter().map(|text| quote(text)).collect();
            format!("[{}]", shown.join(", "))
        };
        let Some(found) = self.find(table, key) else {
            let default: Vec<String> = default.iter().map(|text| (*text).to_owned()).collect();
            self.note(table, key, array(&default), None);
            return Some(default);
        };
        let mut texts = Some(Vec::new());
        for item in self.items(&found, "an array of strings", example)? {
            let text = self.text(&item, IN_QUOTES).and_then(|text| match parse(&text) {
                Ok(text) => Some(text),
                Err(problem) => {
                    self.wrong(&item, problem);
                    None
                }
            });
            match (&mut texts, text) {
                (Some(texts), Some(text)) => texts.push(text),
                _ => texts = None,
            }
        }
        self.note(table, key, array(texts.as_deref().unwrap_or_default()), Some(&found));
        texts
    }

    pub(super) fn find(&mut self, table: &Table<'v>, key: &str) -> Option<Found<'v>> {
        let path = join(table.path(), key);
        let value = table.dict.and_then(|dict| dict.get(key));
        let layer = value.map(|value| self.layer_of(value));
        self.asked.insert(path.clone(), layer);
        Some(Found { path, layer: layer?, value: value? })
    }

    fn layer_of(&self, value: &Value) -> usize {
        let metadata = self.figment.get_metadata(value.tag());
        metadata.and_then(|metadata| metadata.name.parse().ok()).unwrap_or(0)
    }

    pub(super) fn items(
        &mut self,
        found: &Found<'v>,
        expected: &str,
        example: &str,
    ) -> Option<Vec<Found<'v>>> {
        let Value::Array(_, items) = found.value else {
            self.wrong_type(found, expected, example);
            return None;
        };
        let item = |(index, value)| Found { path: format!("{}[{index}]", found.path), value, ..*found };
        Some(items.iter().enumerate().map(item).collect())
    }

    /// The text as it was given by `env` or `--set`.
    fn lone_text(&self, found: &Found<'v>) -> Option<&'v str> {
        let (path, text) = self.layers[found.layer].given.as_ref()?;
        (*path == found.path).then_some(text)
    }

    pub(super) fn text(&mut self, found: &Found<'v>, example: &str) -> Option<String> {
        if let Some(text) = self.lone_text(found) {
            return Some(unquoted(text).unwrap_or_else(|| text.to_owned()));
        }
        match found.value {
            Value::String(_, text) => Some(text.clone()),
            Value::Char(_, c) => Some(c.to_string()),
            _ => {
                self.wrong_type(found, "a string", example);
                None
            }
        }
    }

    pub(super) fn absent(&mut self, table: &Table<'v>, key: &str, absent: Absent) -> Option<String> {
        match absent {
            Absent::Default(text) => return Some(text.to_owned()),
            Absent::Unset => {}
            Absent::Mistake(hint) => self.missing(table, key, hint),
        }
        None
    }

    /// Sets the hint that is shown if this key, which does not exist here, is given.
    pub fn hint(&mut self, table: &Table<'v>, key: &str, hint: String) {
        self.hints.insert(join(table.path(), key), hint);
    }

    /// Whether the value is empty.
    pub fn is_empty(found: &Found<'v>) -> bool {
        matches!(found.value, Value::Array(_, items) if items.is_empty())
    }

    /// The value under `key`, for complaints about it.
    pub fn given(&mut self, table: &Table<'v>, key: &str) -> Option<Found<'v>> {
        self.find(table, key)
    }

    pub fn note(&mut self, table: &Table<'v>, key: &str, value: String, found: Option<&Found<'v>>) {
        let origin = found.map_or("default".to_owned(), |found| {
            // A key that is itself a path is shown as it is.
            let is_read = found.path.ends_with("_file") && !key.ends_with("_file");
            let file = if is_read { ", from the file it names" } else { "" };
            format!("{}{file}", self.place(found))
        });
        let (table, key) = (table.path().to_owned(), join("", key));
        self.entries.push(Entry { table, key, value, origin, secret: None });
    }

    /// As [`Reader::note`], for a value that is shown masked.
    pub fn note_secret(&mut self, table: &Table<'v>, key: &str, secret: &Secret, found: Option<&Found<'v>>) {
        self.note(table, key, quote(&secret.to_string()), found);
        if let Some(entry) = self.entries.last_mut() {
            entry.secret = Some(secret.clone());
        }
    }

    /// The keys of a table by their meaning: `stem` maps `Accept` and `accept_file` to one.
    pub fn spellings(table: &Table<'v>, stem: impl Fn(&str) -> String) -> BTreeMap<String, Vec<String>> {
        let mut spellings = BTreeMap::<String, Vec<String>>::new();
        for key in table.keys() {
            spellings.entry(stem(&key)).or_default().push(key);
        }
        spellings
    }
}

/// The text between quotes, if the whole is one quoted TOML string.
fn unquoted(text: &str) -> Option<String> {
    let trimmed = text.trim();
    if !trimmed.starts_with(['"', '\'']) {
        return None;
    }
    let value = toml::de::DeValue::parse(trimmed).ok()?;
    value.get_ref().as_str().map(str::to_owned)
}

pub(super) const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "a string",
        Value::Bool(..) => "a boolean",
        Value::Num(_, figment::value::Num::F32(_) | figment::value::Num::F64(_)) => "a float",
        Value::Num(..) => "an integer",
        Value::Empty(..) => "a date or time",
        Value::Dict(..) => "a table",
        Value::Array(..) => "an array",
    }
}
