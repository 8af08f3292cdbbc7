//! Asks for a confirmation of what cannot be undone.

use std::fmt::Display;
use std::io::{BufRead as _, IsTerminal as _};

use super::exit::Exit;
use super::out;

/// Whether somebody can be asked: both the question and the answer go over a terminal.
pub(super) fn is_possible() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks the question; anything but a yes is an error.
pub(super) fn confirm(question: impl Display) -> Result<(), Exit> {
    out::say(format_args!("{question} [y/N]"));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(out::fail(Exit::Usage, "nothing was changed"))
}
