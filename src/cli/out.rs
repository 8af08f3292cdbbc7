//! Data to stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stdout};

use super::exit::Exit;

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
