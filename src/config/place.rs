//! Notes mistakes, with the place that each complaint points to.

use super::document::{Span, join};
use super::error::{ConfigError, Kind, Place};
use super::reader::{Found, Reader, Table, type_of};
use super::source::Layer;

impl<'v> Reader<'v> {
    /// Notes that `key` is missing, at the header of its table or of the nearest one that exists.
    pub fn missing(&mut self, table: &Table<'v>, key: &str, hint: &str) {
        self.missing_in(table, join(table.path(), key), hint);
    }

    /// Notes that a table is empty.
    pub fn missing_table(&mut self, table: &Table<'v>, hint: &str) {
        self.missing_in(table, table.path().to_owned(), hint);
    }

    fn missing_in(&mut self, table: &Table<'v>, path: String, hint: &str) {
        if table.is_void {
            return;
        }
        let error = ConfigError::new(self.header(table), path, format!("missing; {hint}"));
        self.errors.push(error.of(Kind::Absence));
    }

    /// Notes that the name of a table is wrong, at the name.
    pub fn wrong_name(&mut self, table: &Table<'v>, problem: &str) {
        let place = self.lookup(table.path(), |span| span.key).unwrap_or_else(|| self.header(table));
        self.errors.push(ConfigError::new(place, table.path(), problem));
    }

    /// Notes that a key is wrong, at the key.
    pub fn wrong_key(&mut self, table: &Table<'v>, key: &str, problem: &str) {
        let Some(found) = self.find(table, key) else { return };
        let place = self.place_in(&found, |span| span.key);
        self.errors.push(ConfigError::new(place, found.path, problem));
    }

    /// The first source that has a value at `path`, or below it.
    fn lookup(&self, path: &str, of: impl Fn(&Span) -> (usize, usize)) -> Option<Place> {
        let below = |(key, _): &(String, String)| {
            let rest = key.strip_prefix(path);
            !path.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.layers.iter().enumerate().find_map(|(layer, Layer { name, spans, given, .. })| {
            let position = spans.get(path).map(&of);
            let there = position.is_some() || given.as_ref().is_some_and(below);
            there.then(|| Place { layer, position, source: name.clone() })
        })
    }

    fn header(&self, table: &Table<'v>) -> Place {
        let nearest = table.lineage.iter().rev().find_map(|path| self.lookup(path, |span| span.value));
        if let Some(place) = nearest {
            return place;
        }
        let file = self.layers.iter().position(|layer| layer.given.is_none());
        let layer = file.unwrap_or_default();
        let source = self.layers.get(layer).map_or("configuration", |layer| &layer.name).to_owned();
        Place { layer, position: file.map(|_| (1, 1)), source }
    }

    pub fn place(&self, found: &Found<'v>) -> Place {
        self.place_in(found, |span| span.value)
    }

    fn place_in(&self, found: &Found<'v>, of: impl Fn(&Span) -> (usize, usize)) -> Place {
        let Layer { name, spans, .. } = &self.layers[found.layer];
        Place { layer: found.layer, position: spans.get(&found.path).map(of), source: name.clone() }
    }

    pub fn wrong(&mut self, found: &Found<'v>, problem: impl Into<String>) {
        self.errors.push(ConfigError::new(self.place(found), found.path.clone(), problem));
    }

    /// As [`Reader::wrong`], for the value of this key, where it is given.
    pub fn wrong_value(&mut self, table: &Table<'v>, key: &str, problem: impl Into<String>) {
        if let Some(found) = self.find(table, key) {
            self.wrong(&found, problem);
        }
    }

    /// Returns what was read at `found`, or notes what is wrong with it.
    pub fn accept<T>(&mut self, found: &Found<'v>, read: Result<T, impl Into<String>>) -> Option<T> {
        read.map_err(|problem| self.wrong(found, problem)).ok()
    }

    /// Notes that a value will not do what it seems to.
    pub fn warn(&mut self, found: &Found<'v>, problem: &str) {
        self.warnings.push(ConfigError::warning(self.place(found), found.path.clone(), problem));
    }

    /// As [`Reader::warn`], for a key that may have its default: then at the header of its table.
    pub fn warn_of_key(&mut self, table: &Table<'v>, key: &str, problem: &str) {
        let place = match self.find(table, key) {
            Some(found) => self.place(&found),
            None => self.header(table),
        };
        self.warnings.push(ConfigError::warning(place, join(table.path(), key), problem));
    }

    pub fn wrong_type(&mut self, found: &Found<'v>, expected: &str, example: &str) {
        let problem = format!("{} where {expected} belongs; write {example}", type_of(found.value));
        self.wrong(found, problem);
    }
}
