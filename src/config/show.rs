//! The configuration in effect, as TOML.

use std::fmt::Write as _;

use super::Loaded;
use crate::text::escaped;

/// The configuration in effect as TOML, including the defaults; a comment after each value names its origin. Secrets
/// are masked.
pub fn show(loaded: &Loaded) -> String {
    let mut text = String::new();
    let tables = loaded.entries.chunk_by(|one, other| one.table == other.table);
    for (index, entries) in tables.enumerate() {
        let gap = if index == 0 { "" } else { "\n" };
        // Keys outside of tables come first.
        if !entries[0].table.is_empty() {
            let _ = writeln!(text, "{gap}[{}]", entries[0].table);
        }
        let lines = entries.iter().map(|entry| format!("{} = {}", entry.key, entry.value));
        let lines: Vec<String> = lines.collect();
        let width = lines.iter().map(|line| line.chars().count()).filter(|width| *width <= 60).max();
        for (line, entry) in lines.iter().zip(entries) {
            let origin = escaped(&entry.origin);
            let _ = writeln!(text, "{line:width$}  # {origin}", width = width.unwrap_or(0));
        }
    }
    text
}

/// The configuration in effect, one value after the other: `{"key", "value", "source"}`. Secrets are masked.
pub fn show_json(loaded: &Loaded) -> impl Iterator<Item = serde_json::Value> {
    loaded.entries.iter().map(|entry| {
        let value = toml::from_str::<toml::Table>(&format!("value = {}", entry.value));
        let value = value.ok().and_then(|mut table| serde_json::to_value(table.remove("value")?).ok());
        // Every entry is TOML; the text itself says more than nothing.
        let value = value.unwrap_or_else(|| (&*entry.value).into());
        serde_json::json!({ "key": entry.path(), "value": value, "source": &*entry.origin })
    })
}
