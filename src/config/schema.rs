//! The JSON Schema of `paced.toml`, for editors.
//!
//! It refuses what the reader refuses of single values: unknown keys, wrong types, words that cannot be chosen, and
//! texts of a wrong form. Only the reader checks what depends on several values, or on files. It is made from the
//! declarations of the keys; the tests compare it with what the reader accepts.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::key::{Change, Declared};
use super::limits::ALGORITHMS;
use super::read;
use super::reader::Reader;
use super::source::Layers;

/// Draft 4 is what taplo and Even Better TOML validate by.
const DRAFT: &str = "http://json-schema.org/draft-04/schema#";

/// The names and arrays by which every key is met. A limit of each algorithm is added.
const EXAMPLE: &str = "
[admin.tokens.alice]
[plans.free]
limits = LIMITS
[downstreams.billing]
limits = LIMITS
[downstreams.billing.http]
headers.x-client = 'paced'
oauth2.params.audience = 'x'
[downstreams.billing.retry]
answers = [{}]
[downstreams.billing.retry.status.503]
[downstreams.billing.lanes]
by.tenant = 'plan'
weights.acme = 1
limits = LIMITS
";

/// The JSON Schema (Draft 4) of a configuration file.
pub fn schema() -> Value {
    let about = "The configuration of paced. `paced check` finds more mistakes than this schema can.";
    let mut root = json!({
        "$schema": DRAFT,
        "title": "paced.toml",
        "description": about,
        "type": "object",
        "properties": {},
        "additionalProperties": false,
    });
    for declared in declared() {
        insert(&mut root, &declared);
    }
    root
}

/// Every key and table, in the order in which they are read.
pub(super) fn declared() -> Vec<Declared> {
    read_example(|reader| reader.paths.declared.unwrap_or_default())
}

/// Reads a configuration by which every key is met. It is not complete, but every key is read.
pub(super) fn read_example<T>(take: impl FnOnce(Reader<'_>) -> T) -> T {
    let limits = ALGORITHMS.map(|algorithm| format!("{{ algorithm = '{algorithm}' }}")).join(", ");
    let mut layers = Layers::default();
    layers.text(String::new(), &EXAMPLE.replace("LIMITS", &format!("[{limits}]")), PathBuf::new());
    let figment = layers.merge();
    let root = Layers::root(&figment);
    let mut reader = Reader::new(&figment, &layers.all, &root);
    reader.paths.declared = Some(Vec::new());
    let _ = read::settings(&mut reader);
    take(reader)
}

/// Adds a key to its table. None is required: another file, the environment or an argument may give it.
fn insert(root: &mut Value, declared: &Declared) {
    let mut node = declared.node.clone();
    node["description"] = description(declared).into();
    if let Some(text) = declared.default_text().filter(|_| !declared.is_table()) {
        node["default"] = declared.json(text);
    }
    let mut table = root;
    let (parents, name) = declared.path.rsplit_once('.').unwrap_or(("", &declared.path));
    for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
        table = child(table, parent);
        if table.get("items").is_some() {
            table = &mut table["items"];
        }
    }
    if !declared.key.file.is_empty() && table.get("properties").is_some() {
        let file = format!("{name}_file");
        let about = format!(
            "The file that has `{name}` in it, instead of `{name}` itself. The path starts at the directory of this file."
        );
        *child(table, &file) = json!({ "type": "string", "minLength": 1, "description": about });
        let both = json!({ "required": [name, file] });
        match table["not"]["anyOf"].as_array_mut() {
            Some(pairs) => pairs.push(both),
            None => table["not"] = json!({ "anyOf": [both] }),
        }
    }
    *child(table, name) = node;
}

/// The schema of a key in a table: under its name, or the one for all names of the user's own.
fn child<'n>(table: &'n mut Value, name: &str) -> &'n mut Value {
    let names = table.get("patternProperties").and_then(|names| names.as_object()?.keys().next().cloned());
    match names {
        Some(pattern) => &mut table["patternProperties"][pattern],
        None => &mut table["properties"][name],
    }
}

/// The help as a text. Only lines that are set apart are lines of their own.
fn description(declared: &Declared) -> String {
    let (mut text, mut is_apart) = (String::new(), true);
    for line in declared.key.help() {
        let was_apart = std::mem::replace(&mut is_apart, line.starts_with("  "));
        if !text.is_empty() {
            text.push(if was_apart || is_apart { '\n' } else { ' ' });
        }
        text.push_str(&line);
    }
    if declared.key.change == Change::Reload {
        text.push_str(" A reload (SIGHUP) applies a change.");
    }
    text
}

#[cfg(test)]
mod tests;
