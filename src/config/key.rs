//! The declaration of a key: its name, default, form, help, and what a reload does. It stands once, where the key is
//! read. `config/paced.toml`, the tables of the reference, the JSON Schema and the reload are made from it.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

/// Declares keys and tables. Each comment is the help of its key, with the lines that `config/paced.toml` has; two
/// spaces at the start of a line keep it apart from the line before.
macro_rules! keys {
    ($($(#[doc = $line:literal])+ $vis:vis $key:ident = $name:literal $(.$fact:ident($($value:expr),*))*;)+) => {
        $($vis const $key: $crate::config::key::Key<'static> =
            $crate::config::key::Key::new($name, concat!($($line, "\n"),+))$(.$fact($($value),*))*;)+
    };
}
pub(super) use keys;

/// A key or a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'k> {
    pub name: &'k str,
    /// The name in the declaration: under a name of the user's own a placeholder, `NAME`.
    pub declared: &'static str,
    /// The help, with the lines that `config/paced.toml` has.
    pub about: &'static str,
    pub absent: Absent,
    /// What applies without a value, where that is no constant.
    pub otherwise: &'static str,
    /// A value that shows how to write one, in the form of [`Absent::Default`].
    pub example: &'static str,
    /// The name of a file that may hold the value, as an example. Only secrets have one.
    pub file: &'static str,
    pub form: Form,
    pub change: Change,
}

/// What applies to a key without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// This value applies: a text without quotes, or else JSON. Of a table: its keys have their defaults.
    Default(&'static str),
    /// Nothing applies. Of a table: neither do the defaults in it.
    Unset,
    /// It is a mistake; the text says what to write.
    Mistake(&'static str),
}

/// The form of the values. What only the code can check is left to the reader.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// Any value of the type; a text has at least one character.
    Any,
    /// Texts of at most `longest` characters in which the regular expression finds something. All dialects read it alike:
    /// no look-around, no classes of Unicode. Of a table whose keys are names: their form.
    Text { pattern: &'static str, longest: usize },
    /// Integers within these bounds.
    Integers(u64, u64),
    /// Durations or sizes within these bounds.
    Within(&'static str, &'static str),
}

/// The moment from which a changed value applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The next reload.
    Reload,
    /// The next start.
    Restart,
    /// The next start; but a change in the file that holds it is noticed where the value is used, such as for a new
    /// connection or token.
    Followed,
}

impl Key<'static> {
    pub const fn new(name: &'static str, about: &'static str) -> Self {
        let (declared, otherwise, example, file) = (name, "", "", "");
        let (absent, form, change) = (Absent::Unset, Form::Any, Change::Restart);
        Self { name, declared, about, absent, otherwise, example, file, form, change }
    }

    /// The key under a name of the user's own.
    pub const fn under(self, name: &str) -> Key<'_> {
        Key { name, ..self }
    }
}

impl Key<'_> {
    /// The key as it was declared.
    pub const fn declaration(&self) -> Key<'static> {
        let Self { declared, about, absent, otherwise, example, file, form, change, .. } = *self;
        Key { name: declared, declared, about, absent, otherwise, example, file, form, change }
    }

    pub const fn default(self, text: &'static str) -> Self {
        Self { absent: Absent::Default(text), ..self }
    }

    pub const fn required(self, hint: &'static str) -> Self {
        Self { absent: Absent::Mistake(hint), ..self }
    }

    pub const fn otherwise(self, otherwise: &'static str) -> Self {
        Self { otherwise, ..self }
    }

    pub const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// The same key where another one applies without a value.
    pub const fn or(self, otherwise: &'static str, example: &'static str) -> Self {
        Self { absent: Absent::Unset, otherwise, example, ..self }
    }

    pub const fn file(self, file: &'static str) -> Self {
        Self { file, ..self }
    }

    pub const fn matches(self, pattern: &'static str) -> Self {
        self.up_to(usize::MAX, pattern)
    }

    pub const fn up_to(self, longest: usize, pattern: &'static str) -> Self {
        Self { form: Form::Text { pattern, longest }, ..self }
    }

    pub const fn integers(self, low: u64, high: u64) -> Self {
        Self { form: Form::Integers(low, high), ..self }
    }

    pub const fn within(self, low: &'static str, high: &'static str) -> Self {
        Self { form: Form::Within(low, high), ..self }
    }

    pub const fn reload(self) -> Self {
        Self { change: Change::Reload, ..self }
    }

    pub const fn followed(self) -> Self {
        Self { change: Change::Followed, ..self }
    }

    pub const fn default_text(&self) -> Option<&'static str> {
        match self.absent {
            Absent::Default(text) => Some(text),
            Absent::Unset | Absent::Mistake(_) => None,
        }
    }

    pub const fn range(&self) -> RangeInclusive<u64> {
        match self.form {
            Form::Integers(low, high) => low..=high,
            _ => 0..=u64::MAX,
        }
    }

    /// The lines of the help. The last one ends with the bounds.
    pub fn help(&self) -> Vec<String> {
        let line = |line: &str| line.strip_prefix(' ').unwrap_or(line).to_owned();
        let mut lines: Vec<String> = self.about.lines().map(line).collect();
        let bounds = match self.form {
            Form::Integers(low, high) if high >= u32::MAX.into() => format!(" {low} or more."),
            Form::Integers(low, high) => format!(" {low} to {high}."),
            Form::Within(low, high) => format!(" {low} to {high}."),
            Form::Any | Form::Text { .. } => String::new(),
        };
        lines.last_mut().into_iter().for_each(|last| last.push_str(&bounds));
        lines
    }

    /// The schema of a string, or of each in an array.
    pub fn string(&self) -> Value {
        let Form::Text { pattern, longest } = self.form else {
            return json!({ "type": "string", "minLength": 1 });
        };
        let mut node = json!({ "type": "string" });
        if !pattern.is_empty() {
            node["pattern"] = pattern.into();
        }
        if longest < usize::MAX {
            node["maxLength"] = longest.into();
        }
        node
    }

    /// The schema of an integer. The bounds of 64 bits are no bounds here: TOML has no integers beyond them, and there are
    /// validators that round them.
    pub fn integer(&self) -> Value {
        let (low, high) = self.range().into_inner();
        let mut node = json!({ "type": "integer", "minimum": low });
        if high < i64::MAX.unsigned_abs() {
            node["maximum"] = high.into();
        }
        node
    }
}

/// A key or a table that the reader met, for what is made from the declarations.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub key: Key<'static>,
    /// The path, with placeholders such as `NAME`; keys in the tables of an array follow the path of the array.
    pub path: String,
    /// The schema of the type alone.
    pub node: Value,
}

impl Declared {
    /// Whether it is a table of known keys.
    pub fn is_table(&self) -> bool {
        self.node.get("properties").is_some()
    }

    /// The default, unless it depends on other values.
    pub fn default_text(&self) -> Option<&'static str> {
        self.key.default_text().filter(|_| self.key.otherwise.is_empty())
    }

    /// The text as a JSON value of the type.
    pub fn json(&self, text: &str) -> Value {
        if self.node["type"] == "string" {
            text.into()
        } else {
            serde_json::from_str(text).unwrap_or_default()
        }
    }
}
