//! Prints data to stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::ops::Range;
use std::path::Path;

use indicatif::ProgressStyle;
use paced::text;
use serde::Serialize;

use super::Output;
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

/// The look of a progress bar.
pub(super) fn bar_style(template: &str) -> ProgressStyle {
    // An invalid template shows the default bar.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
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

/// Prints to stderr why a command fails, and returns its exit code.
pub(super) fn fail(exit: Exit, why: impl Display) -> Exit {
    say(format_args!("paced: {why}"));
    exit
}

/// Prints an error to stderr, and returns the exit code for it.
pub(super) fn failed<E: Display>(error: E) -> Exit
where
    for<'e> Exit: From<&'e E>,
{
    fail(Exit::from(&error), error)
}

/// Prints the path of a file that was written.
pub(super) fn path(output: Output, path: &Path) -> Result<(), Exit> {
    match output {
        Output::Human => line(path.display()),
        Output::Json => json(&serde_json::json!({ "file": path })),
    }
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

/// Prints rows below the titles of their columns; those in `numbers` are aligned to the right.
pub(super) fn table<const N: usize>(
    titles: [&str; N],
    numbers: &Range<usize>,
    rows: &[[String; N]],
) -> Result<(), Exit> {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.chain([titles[column].len()]).max().unwrap_or_default()
    });
    let print = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if numbers.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        line(cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    print(titles)?;
    rows.iter().try_for_each(|row| print(row.each_ref().map(String::as_str)))
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
            Err(fail(Exit::Failed, format_args!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}
