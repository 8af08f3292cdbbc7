//! What a reader reads of, and what it notes of a value.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use figment::value::{Dict, Value};

use crate::config::key::{Change, Declared};
use crate::config::secret::Secret;

/// The paths that a reader was asked for.
#[derive(Default)]
pub struct Paths {
    /// Every path that a key could have, and the layer whose value is in effect.
    pub asked: BTreeMap<String, Option<usize>>,
    /// The paths of tables.
    pub opened: BTreeSet<String>,
    /// Hints for keys that are known elsewhere, by path.
    pub hints: BTreeMap<String, String>,
    /// The declarations in the order in which they are read, if they are collected.
    pub declared: Option<Vec<Declared>>,
    /// The texts of the entries.
    pub texts: Texts,
}

/// Texts that are stored once: thousands of downstreams have the same keys and the same defaults.
#[derive(Default)]
pub struct Texts(HashSet<Arc<str>>);

impl Texts {
    /// The stored text.
    pub fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let new = Arc::<str>::from(text);
        self.0.insert(Arc::clone(&new));
        new
    }
}

/// A value in effect, for `config show`, without secrets.
#[derive(Clone, Debug)]
pub struct Entry {
    pub table: Arc<str>,
    pub key: Arc<str>,
    /// The value as TOML.
    pub value: Arc<str>,
    /// The origin: `default`, `paced.toml:3:7`, `env PACED_A__B`, `--set`.
    pub origin: Arc<str>,
    /// The secret that `value` masks.
    pub secret: Option<Arc<Secret>>,
    /// The moment from which another value applies.
    pub change: Change,
}

impl Entry {
    /// The whole dotted key.
    pub fn path(&self) -> String {
        join_parts(&self.table, &self.key)
    }

    /// Whether both have the same value; their origins may differ.
    pub fn has_same_value(&self, other: &Self) -> bool {
        (&self.value, &self.secret) == (&other.value, &other.secret)
    }
}

/// Joins a table and a key that is quoted already.
pub(super) fn join_parts(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// The suggestion where a string belongs.
pub const IN_QUOTES: &str = "it in quotes";

/// A table of the merged tree, which may be absent.
#[derive(Clone)]
pub struct Table<'v> {
    /// The paths from the root to this table.
    pub lineage: Vec<String>,
    pub(super) dict: Option<&'v Dict>,
    /// The path of its declaration.
    pub(super) declared: String,
    /// Whether no default in it applies, since it is absent.
    pub is_void: bool,
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
