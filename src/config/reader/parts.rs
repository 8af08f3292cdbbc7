//! What a reader reads of, and what it tells of a value.

use figment::value::{Dict, Value};

use crate::config::document::quote;
use crate::config::settings::Secret;

/// A value in effect, for `config show`, without secrets.
#[derive(Clone, Debug)]
pub struct Entry {
    pub table: String,
    pub key: String,
    /// The value as TOML.
    pub value: String,
    /// The origin: `default`, `paced.toml:3:7`, `env PACED_A__B`, `--set`.
    pub origin: String,
    /// The secret that `value` masks.
    pub secret: Option<Secret>,
}

impl Entry {
    /// The whole dotted key.
    pub fn path(&self) -> String {
        join_parts(&self.table, &self.key)
    }

    /// Whether both have the same value, whatever their origins.
    pub fn has_same_value(&self, other: &Self) -> bool {
        (&self.value, &self.secret) == (&other.value, &other.secret)
    }
}

/// Joins a table and a key that is quoted already.
fn join_parts(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// What applies to a key that nobody gives.
#[derive(Clone, Copy)]
pub enum Absent {
    Default(&'static str),
    /// It may be absent.
    Unset,
    /// Its absence is a mistake; the text says what to write.
    Mistake(&'static str),
}

/// The suggestion where a string belongs.
pub const IN_QUOTES: &str = "it in quotes";

impl Absent {
    pub fn example(self) -> String {
        match self {
            Self::Default(text) => format!("{IN_QUOTES}, such as {}", quote(text)),
            Self::Unset | Self::Mistake(_) => IN_QUOTES.to_owned(),
        }
    }
}

/// A table of the merged tree, which may be absent.
#[derive(Clone)]
pub struct Table<'v> {
    /// The paths from the root to this table.
    pub lineage: Vec<String>,
    pub(super) dict: Option<&'v Dict>,
}

impl Table<'_> {
    pub fn path(&self) -> &str {
        self.lineage.last().map_or("", String::as_str)
    }

    pub fn has(&self, key: &str) -> bool {
        self.dict.is_some_and(|dict| dict.contains_key(key))
    }

    pub const fn is_there(&self) -> bool {
        self.dict.is_some()
    }

    pub fn keys(&self) -> Vec<String> {
        self.dict.into_iter().flat_map(|dict| dict.keys().cloned()).collect()
    }

    pub(super) fn below(&self, path: String) -> Vec<String> {
        self.lineage.iter().cloned().chain([path]).collect()
    }
}

/// A value in the merged tree.
#[derive(Clone)]
pub struct Found<'v> {
    pub path: String,
    pub layer: usize,
    pub value: &'v Value,
}

/// The tables of an array, each with the value that complaints refer to.
pub type Tables<'v> = Vec<(Found<'v>, Table<'v>)>;
