//! Prints data to stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use paced::text;
use serde::Serialize;

use super::exit::Exit;

/// Epoch milliseconds as a date and time in UTC. Seconds are enough here; JSON has the milliseconds.
pub(super) fn instant(millis: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(millis);
    at.map_or_else(|_| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Epoch milliseconds as an instant in RFC 3339, in seconds.
pub(super) fn rfc3339(millis: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(millis);
    at.map_or_else(|_| "-".to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Foreign text as one field of a line, with control characters escaped.
pub(super) fn printable(text: &str) -> String {
    text::escaped(text).into_owned()
}

/// Prints a message of one line or several to stderr. If that fails nobody can be informed, so the error is ignored.
pub(super) fn say(message: impl Display) {
    let message = message.to_string();
    let _ = writeln!(stderr(), "{}", text::escaped_lines(&message));
}

/// Prints an error to stderr, and returns the exit code for it.
pub(super) fn failed<E: Display>(error: E) -> Exit
where
    for<'e> Exit: From<&'e E>,
{
    say(format_args!("paced: {error}"));
    Exit::from(&error)
}

/// Prints one line, or several, and the line feed. Control characters are escaped.
///
/// A reader that has gone away has read what it wanted, which is no failure. Any other error, such as a full disk, is
/// printed to stderr.
pub(super) fn line(text: impl Display) -> Result<(), Exit> {
    write(&text::escaped_lines(&text.to_string()))
}

/// Writes a line of JSON, as [`line`] does. The keys of each object are in order.
pub(super) fn json(value: &impl Serialize) -> Result<(), Exit> {
    // What is printed has texts as keys, so that there is no error.
    let value = serde_json::to_value(value).unwrap_or_default();
    write(&text::escaped_json(&value.to_string()))
}

/// Writes bytes of this program's own as they are, as [`line`] does.
pub(super) fn raw(bytes: &[u8]) -> Result<(), Exit> {
    let mut out = stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

fn write(text: &str) -> Result<(), Exit> {
    let mut out = stdout().lock();
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

fn written(result: std::io::Result<()>) -> Result<(), Exit> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            say(format_args!("paced: cannot write to stdout: {error}"));
            Err(Exit::Failed)
        }
        _ => Ok(()),
    }
}
