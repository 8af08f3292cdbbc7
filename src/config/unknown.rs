//! Finds unknown keys, and for each the known key that was probably meant.

use figment::value::{Dict, Value};

use super::document::join;
use super::error::{ConfigError, Place};
use super::reader::{Reader, type_of};
use super::source::Layer;
use crate::job::nearest;

impl Reader<'_> {
    /// Notes every key in any layer that the settings do not have. It must be called last.
    pub fn reject_unknown(&mut self, layers: &[Layer]) {
        for (index, layer) in layers.iter().enumerate() {
            Search { reader: self, layer, index }.table("", &layer.dict);
        }
    }

    fn suggestion(&self, parent: &str, key: &str) -> String {
        if let Some(hint) = self.paths.hints.get(&join(parent, key)) {
            return hint.clone();
        }
        let known: Vec<&str> = self.paths.asked.keys().filter_map(|path| child(path, parent)).collect();
        if let Some(name) = nearest(key, &known) {
            return format!("did you mean `{name}`?");
        }
        // The key exists in another table.
        let family: Vec<&str> = parent.split('.').take(2).collect();
        let family = family.join(".");
        let elsewhere = self.paths.asked.keys().filter(|path| {
            let inside = child(path, &family).is_some() || path.starts_with(&format!("{family}."));
            inside && path.rsplit('.').next() == Some(key) && !path.contains('[')
        });
        // The nearest one is meant more often than one in a table of a table.
        let elsewhere = elsewhere.min_by_key(|path| path.matches('.').count());
        match elsewhere {
            Some(path) => format!("did you mean `{path}`?"),
            None if known.is_empty() => "remove it".to_owned(),
            None => format!("known here are `{}`", known.join("`, `")),
        }
    }
}

/// The name of `path` in the table at `parent`, if it is a direct child.
fn child<'p>(path: &'p str, parent: &str) -> Option<&'p str> {
    let name = if parent.is_empty() { path } else { path.strip_prefix(parent)?.strip_prefix('.')? };
    (!name.contains(['.', '['])).then_some(name)
}

struct Search<'a, 'v> {
    reader: &'a mut Reader<'v>,
    layer: &'a Layer,
    index: usize,
}

impl Search<'_, '_> {
    fn table(&mut self, parent: &str, dict: &Dict) {
        for (key, value) in dict {
            let path = join(parent, key);
            if !self.reader.paths.asked.contains_key(&path) {
                let problem = format!("unknown key; {}", self.reader.suggestion(parent, key));
                self.wrong(path, problem, true);
            } else if self.reader.paths.opened.contains(&path) {
                self.opened(&path, value);
            } else if let Value::Array(_, items) = value {
                self.items(&path, items);
            }
        }
    }

    fn opened(&mut self, path: &str, value: &Value) {
        match value {
            Value::Dict(_, dict) => self.table(path, dict),
            other => {
                let name = path.rsplit('.').next().unwrap_or_default();
                let problem =
                    format!("{} where a table belongs; write [{path}] or {name} = {{ ... }}", type_of(other));
                self.wrong(path.to_owned(), problem, false);
            }
        }
    }

    /// Checks only the layer whose array is in effect: arrays are replaced as a whole.
    fn items(&mut self, path: &str, items: &[Value]) {
        if self.reader.paths.asked.get(path) != Some(&Some(self.index)) {
            return;
        }
        for (index, item) in items.iter().enumerate() {
            if let Value::Dict(_, dict) = item {
                let path = format!("{path}[{index}]");
                if self.reader.paths.opened.contains(&path) {
                    self.table(&path, dict);
                }
            }
        }
    }

    fn wrong(&mut self, path: String, problem: String, at_key: bool) {
        let span = self.layer.spans.get(&path);
        let position = span.map(|span| if at_key { span.key } else { span.value });
        let place = Place { layer: self.index, position, source: self.layer.name.clone() };
        self.reader.errors.push(ConfigError::new(place, path, problem));
    }
}
