//! Data to stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use paced::text;
use serde_json::Value;

use super::exit::Exit;

/// Epoch milliseconds as people read them, in UTC. Seconds are enough; JSON has the milliseconds.
pub(super) fn instant(millis: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(millis);
    at.map_or_else(|_| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// What others wrote, as one field of a line that steers no terminal.
pub(super) fn printable(text: &str) -> String {
    text::escaped(text).into_owned()
}

/// A message for people on stderr, of one line or several. Where stderr takes nothing any more nobody can be
/// told: that ends nothing.
pub(super) fn say(message: impl Display) {
    let message = message.to_string();
    let _ = writeln!(stderr(), "{}", text::escaped_lines(&message));
}

/// Writes one line, or several, and the line feed. What could steer a terminal is escaped.
///
/// A reader that has gone away has read what it wanted: that is no failure. Anything else, such as a full
/// disk, is said on stderr.
pub(super) fn line(text: impl Display) -> Result<(), Exit> {
    write(&text::escaped_lines(&text.to_string()))
}

/// Writes a line of JSON, as [`line`] does.
pub(super) fn json(value: &Value) -> Result<(), Exit> {
    write(&text::escaped_json(&value.to_string()))
}

fn write(text: &str) -> Result<(), Exit> {
    let mut out = stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            say(format_args!("paced: cannot write to stdout: {error}"));
            Err(Exit::Failed)
        }
        _ => Ok(()),
    }
}
