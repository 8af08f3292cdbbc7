//! Data to stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stdout};

use super::exit::Exit;

/// Epoch milliseconds as people read them, in UTC. Seconds are enough; JSON has the milliseconds.
pub(super) fn instant(millis: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(millis);
    at.map_or_else(|_| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// What others wrote must not steer a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Writes one line, or several, and the line feed.
///
/// A reader that has gone away has read what it wanted: that is no failure. Anything else, such as a full
/// disk, is said on stderr.
pub(super) fn line(text: impl Display) -> Result<(), Exit> {
    let mut out = stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("paced: cannot write to stdout: {error}");
            Err(Exit::Failed)
        }
        _ => Ok(()),
    }
}
