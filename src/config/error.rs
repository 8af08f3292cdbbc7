//! The mistakes of a configuration, one line each.

use std::fmt::{self, Write as _};

use crate::text::is_unsafe;

/// All mistakes of a configuration. They are shown as one line per mistake, in the order of the sources and, within a
/// file, of the lines:
///
/// `FILE:LINE:COLUMN: KEY: what is wrong; what would be right`
///
/// Lines and columns count from 1, columns in characters. A secret is never shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    place: Place,
    key: String,
    problem: String,
    kind: Kind,
}

/// Whether a mistake may be a consequence of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The value is wrong by itself.
    Wrong,
    /// Something is absent, which a syntax error may have hidden.
    Absence,
}

/// The place where something was given. Places are ordered as the sources override each other, then by position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The index of the source.
    pub layer: usize,
    /// Line and column; `None` for sources other than files.
    pub position: Option<(usize, usize)>,
    /// The name of the source: `paced.toml`, `env PACED_A__B`, `--set`.
    pub source: String,
}

impl ConfigErrors {
    /// Sorts the mistakes and removes duplicates.
    pub(super) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by(|a, b| (&a.place, &a.key, &a.problem).cmp(&(&b.place, &b.key, &b.problem)));
        errors.dedup();
        Self(errors)
    }

    /// The same in a list, sorted and without duplicates, for warnings.
    pub(super) fn sorted(errors: Vec<ConfigError>) -> Vec<ConfigError> {
        Self::new(errors).0
    }

    /// The mistakes; there is at least one.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a ConfigErrors {
    type Item = &'a ConfigError;
    type IntoIter = std::slice::Iter<'a, ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl ConfigError {
    pub(super) fn new(place: Place, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place, key: key.into(), problem: problem.into(), kind: Kind::Wrong }
    }

    /// A value that is valid and will not do what it seems to.
    pub(super) fn warning(place: Place, key: impl Into<String>, problem: &str) -> Self {
        Self::new(place, key, format!("warning: {problem}"))
    }

    /// The same mistake, of this kind.
    pub(super) fn of(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// The same mistake, with its source `by` places later if it is at `from` or later.
    pub(super) fn moved(mut self, from: usize, by: usize) -> Self {
        if self.place.layer >= from {
            self.place.layer += by;
        }
        self
    }

    pub(super) const fn place(&self) -> &Place {
        &self.place
    }

    pub(super) const fn kind(&self) -> Kind {
        self.kind
    }

    /// The key, such as `downstreams.billing.limits[0].rate`; empty where a source as a whole is
    /// wrong.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What is wrong, and what would be right, without the place and the key.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        self.position.map_or(Ok(()), |(line, column)| write!(f, ":{line}:{column}"))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, key, problem, .. } = self;
        let line =
            if key.is_empty() { format!("{place}: {problem}") } else { format!("{place}: {key}: {problem}") };
        // A file name, a key or a value may contain line breaks, which are escaped.
        line.chars().try_for_each(|c| {
            if is_unsafe(c) { write!(f, "{}", c.escape_default()) } else { f.write_char(c) }
        })
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
impl std::error::Error for ConfigError {}

/// The system's error text, without its number.
pub(super) fn system_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
