//! Reads typed values from the merged tree, and notes all mistakes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use figment::Figment;
use figment::value::{Dict, Num, Value};
use serde_json::json;

use super::document::{join, quote};
use super::error::ConfigError;
use super::key::{Absent, Declared, Form, Key};
use super::secret::Secret;
use super::source::Layer;
use parts::join_parts;

mod parts;
mod typed;

pub(super) use parts::{Entry, Found, IN_QUOTES, Paths, Table, Tables};

pub(super) struct Reader<'v> {
    figment: &'v Figment,
    pub layers: &'v [Layer],
    root: &'v Dict,
    pub errors: Vec<ConfigError>,
    /// Warnings of entries that are valid but will not do what they seem to.
    pub warnings: Vec<ConfigError>,
    pub entries: Vec<Entry>,
    pub paths: Paths,
    /// The directory of the credentials that systemd made for this service.
    pub credentials: Option<PathBuf>,
    /// Whether it reads for a tool, which has no use for the key of the daemon and may not be allowed to read it.
    pub is_for_tools: bool,
}

impl<'v> Reader<'v> {
    pub fn new(figment: &'v Figment, layers: &'v [Layer], root: &'v Dict) -> Self {
        let (errors, warnings, entries, paths) = (Vec::new(), Vec::new(), Vec::new(), Paths::default());
        let (credentials, is_for_tools) = (None, false);
        Self { figment, layers, root, errors, warnings, entries, paths, credentials, is_for_tools }
    }

    pub fn root(&mut self) -> Table<'v> {
        self.paths.opened.insert(String::new());
        let (lineage, declared) = (vec![String::new()], String::new());
        Table { lineage, dict: Some(self.root), declared, is_void: false }
    }

    /// The table under `key`; any other value in its place is noted by the search for unknown keys.
    pub fn table(&mut self, parent: &Table<'v>, key: &str) -> Table<'v> {
        let found = self.find(parent, key);
        let path = join(parent.path(), key);
        self.paths.opened.insert(path.clone());
        let dict = match found.map(|found| found.value) {
            Some(Value::Dict(_, dict)) => Some(dict),
            _ => None,
        };
        let (lineage, declared) = (parent.below(path), String::new());
        Table { lineage, dict, declared, is_void: parent.is_void }
    }

    /// The table that `key` declares, with known keys.
    pub fn section(&mut self, parent: &Table<'v>, key: &Key) -> Table<'v> {
        let node = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
        self.declare(parent, key, node);
        self.declared_table(parent, key)
    }

    /// The table that `key` declares, whose keys are names of the user's own, but none of `reserved`.
    pub fn names(&mut self, parent: &Table<'v>, key: &Key, reserved: &[&str]) -> Table<'v> {
        let node = || {
            let pattern = if let Form::Text { pattern, .. } = key.form { pattern } else { "." };
            let mut node = json!({ "type": "object", "additionalProperties": false });
            node["patternProperties"][pattern] = json!({});
            if !reserved.is_empty() {
                let each = reserved.iter().map(|name| json!({ "required": [name] }));
                node["not"] = json!({ "anyOf": each.collect::<Vec<_>>() });
            }
            node
        };
        self.declare(parent, key, node);
        self.declared_table(parent, key)
    }

    fn declared_table(&mut self, parent: &Table<'v>, key: &Key) -> Table<'v> {
        let table = self.table(parent, key.name);
        let is_void = table.is_void || (!table.is_there() && key.absent == Absent::Unset);
        Table { declared: join_parts(&parent.declared, key.declared), is_void, ..table }
    }

    /// Collects the declaration of a key, whose values have the type of `node`. The first declaration counts.
    pub fn declare(&mut self, table: &Table<'v>, key: &Key, node: impl FnOnce() -> serde_json::Value) {
        let Some(all) = &mut self.paths.declared else { return };
        let path = join_parts(&table.declared, key.declared);
        if all.iter().all(|other| other.path != path) {
            all.push(Declared { key: key.declaration(), path, node: node() });
        }
    }

    /// The tables in the array that `key` declares, and the array. `item` is the schema of a table.
    pub fn tables(
        &mut self,
        parent: &Table<'v>,
        key: &Key,
        item: impl FnOnce() -> serde_json::Value,
    ) -> Option<(Found<'v>, Tables<'v>)> {
        let least = u8::from(matches!(key.absent, Absent::Mistake(_)));
        let node = || json!({ "type": "array", "minItems": least, "items": item() });
        self.declare(parent, key, node);
        let found = self.find(parent, key.name)?;
        let mut tables = Vec::new();
        for item in self.items(&found, "an array of tables", "[{ rate = \"1000/minute\" }]")? {
            self.paths.asked.insert(item.path.clone(), Some(item.layer));
            let Value::Dict(_, dict) = item.value else {
                self.wrong_type(&item, "a table", "{ rate = \"1000/minute\" }");
                continue;
            };
            self.paths.opened.insert(item.path.clone());
            let lineage = parent.below(item.path.clone());
            let declared = join_parts(&parent.declared, key.name);
            let table = Table { lineage, dict: Some(dict), declared, is_void: false };
            tables.push((item, table));
        }
        Some((found, tables))
    }

    pub(super) fn find(&mut self, table: &Table<'v>, key: &str) -> Option<Found<'v>> {
        let path = join(table.path(), key);
        let value = table.dict.and_then(|dict| dict.get(key));
        let layer = value.map(|value| self.layer_of(value));
        self.paths.asked.insert(path.clone(), layer);
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

    /// Sets the hint that is shown if this key, which does not exist here, is given.
    pub fn hint(&mut self, table: &Table<'v>, key: &str, hint: String) {
        self.paths.hints.insert(join(table.path(), key), hint);
    }

    /// Whether the value is empty.
    pub fn is_empty(found: &Found<'v>) -> bool {
        matches!(found.value, Value::Array(_, items) if items.is_empty())
    }

    /// The value under `key`, for complaints about it.
    pub fn given(&mut self, table: &Table<'v>, key: &str) -> Option<Found<'v>> {
        self.find(table, key)
    }

    /// Notes the value in effect.
    pub fn note(&mut self, table: &Table<'v>, key: &Key, value: String, found: Option<&Found<'v>>) {
        let origin = match found {
            Some(found) => {
                // A key that is itself a path is shown as it is.
                let is_read = found.path.ends_with("_file") && !key.name.ends_with("_file");
                let file = if is_read { ", from the file it names" } else { "" };
                format!("{}{file}", self.place(found))
            }
            None if table.is_void => return,
            None => "default".to_owned(),
        };
        let [table, name, value, origin] =
            [table.path(), &join("", key.name), &value, &origin].map(|text| self.paths.texts.shared(text));
        self.entries.push(Entry { table, key: name, value, origin, secret: None, change: key.change });
    }

    /// As [`Reader::note`], for a value that is shown masked.
    pub fn note_secret(&mut self, table: &Table<'v>, key: &Key, secret: &Secret, found: Option<&Found<'v>>) {
        self.note(table, key, quote(&secret.to_string()), found);
        if let Some(entry) = self.entries.last_mut().filter(|_| found.is_some() || !table.is_void) {
            entry.secret = Some(Arc::new(secret.clone()));
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

/// The value of an integer of any size.
pub(super) fn integer_of(number: &Num) -> Option<i128> {
    number.to_i128().or_else(|| number.to_u128().and_then(|number| number.try_into().ok()))
}

pub(super) const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "a string",
        Value::Bool(..) => "a boolean",
        Value::Num(_, Num::F32(_) | Num::F64(_)) => "a float",
        Value::Num(..) => "an integer",
        Value::Empty(..) => "a date or time",
        Value::Dict(..) => "a table",
        Value::Array(..) => "an array",
    }
}

/// These values as an inline table.
pub(super) fn inline(entries: Vec<Entry>) -> String {
    let pairs: Vec<String> =
        entries.into_iter().map(|entry| format!("{} = {}", entry.key, entry.value)).collect();
    format!("{{ {} }}", pairs.join(", "))
}
