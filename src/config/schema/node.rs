//! The parts that a schema is put together of.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

/// What a value may be.
#[derive(Clone, Debug)]
pub(super) struct Node(Map<String, Value>);

impl Node {
    /// A value of this type, as JSON Schema calls it.
    fn of(kind: &str) -> Self {
        Self(Map::new()).with("type", kind)
    }

    /// The same, with one more word of JSON Schema.
    pub fn with(mut self, word: &str, value: impl Into<Value>) -> Self {
        self.0.insert(word.to_owned(), value.into());
        self
    }

    /// The same, with what it means, which editors show.
    pub fn about(self, text: &str) -> Self {
        self.with("description", text)
    }

    /// The same, with the value that applies where none is given.
    pub fn default(self, value: impl Into<Value>) -> Self {
        self.with("default", value)
    }

    pub fn done(self) -> Value {
        self.0.into()
    }
}

/// A string that this regular expression finds something in. It is one that all dialects read alike: no look-around, no
/// classes of Unicode.
pub(super) fn text(pattern: &str) -> Node {
    string().with("pattern", pattern)
}

pub(super) fn string() -> Node {
    Node::of("string")
}

/// A string of at least one character.
pub(super) fn any_text() -> Node {
    string().with("minLength", 1)
}

/// One of these strings.
pub(super) fn one_of(words: &[&str]) -> Node {
    string().with("enum", json!(words))
}

/// A path, which starts at the directory of the file that it is in.
pub(super) fn path() -> Node {
    any_text()
}

pub(super) fn boolean() -> Node {
    Node::of("boolean")
}

/// An integer within the range. The bounds of 64 bits are no bounds here: TOML has no integers beyond them, and there
/// are validators that round them.
pub(super) fn integer(range: RangeInclusive<u64>) -> Node {
    let node = Node::of("integer").with("minimum", *range.start());
    if *range.end() < i64::MAX.unsigned_abs() { node.with("maximum", *range.end()) } else { node }
}

/// A number, a string or a boolean.
pub(super) fn scalar() -> Node {
    Node(Map::new()).with("type", json!(["string", "number", "boolean"]))
}

/// Any of these.
pub(super) fn any_of(nodes: impl IntoIterator<Item = Node>) -> Node {
    Node(Map::new()).with("anyOf", nodes.into_iter().map(Node::done).collect::<Vec<_>>())
}

pub(super) fn list(item: Node) -> Node {
    Node::of("array").with("items", item.done())
}

/// A table whose keys are names that this regular expression matches, each with such a value.
pub(super) fn named(pattern: &str, value: Node) -> Node {
    let values = Map::from_iter([(pattern.to_owned(), value.done())]);
    Node::of("object").with("patternProperties", values).with("additionalProperties", false)
}

/// A table of known keys.
pub(super) struct Table {
    about: String,
    keys: Map<String, Value>,
    /// The pairs of keys of which only one may be given.
    pairs: Vec<Value>,
}

impl Table {
    pub fn new(about: &str) -> Self {
        Self { about: about.to_owned(), keys: Map::new(), pairs: Vec::new() }
    }

    /// The same, with one more key.
    pub fn key(mut self, name: &str, value: Node) -> Self {
        self.keys.insert(name.to_owned(), value.done());
        self
    }

    /// The same, with one more key, which may be read from a file of its own.
    pub fn secret(mut self, name: &str, value: Node) -> Self {
        let file = format!("{name}_file");
        self.pairs.push(json!({ "required": [name, file] }));
        let text = format!(
            "The file that has `{name}` in it, instead of `{name}` itself. The path starts at the directory of this file."
        );
        self.key(name, value).key(&file, path().about(&text))
    }

    /// The table. None of its keys is required: another file, the environment or an argument may give it.
    pub fn end(self) -> Node {
        let node = Node::of("object")
            .about(&self.about)
            .with("properties", self.keys)
            .with("additionalProperties", false);
        if self.pairs.is_empty() { node } else { node.with("not", json!({ "anyOf": self.pairs })) }
    }
}
