//! Letters as lines: of a table, or of JSON.

use paced::amqp::{Letter, Tally};
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::out;

/// The report of a letter, and the length of its body.
pub(super) fn json(letter: &Letter, bytes: u64) -> Value {
    let mut line = report(letter);
    line["id"] = json!(letter.message.message_id);
    line["bytes"] = json!(bytes);
    line
}

/// Why and when it died.
pub(super) fn report(letter: &Letter) -> Value {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<i64>().ok());
    json!({
        "reason": letter.reason,
        "detail": letter.detail,
        "status": number(&letter.status),
        "attempts": number(&letter.attempts),
        "routing_key": letter.routing_key,
        "dead_at": number(&letter.dead_at),
        "response": letter.response,
    })
}

/// A table for people, whose head comes before its first row.
pub(super) struct Table {
    are_unroutable: bool,
    has_head: bool,
}

impl Table {
    pub(super) const fn new(are_unroutable: bool) -> Self {
        Self { are_unroutable, has_head: false }
    }

    /// Prints a letter, whose body has this length.
    pub(super) fn row(&mut self, letter: &Letter, bytes: u64) -> Result<(), Exit> {
        if !std::mem::replace(&mut self.has_head, true) {
            self.head()?;
        }
        let text = |field: &Option<String>| out::printable(field.as_deref().unwrap_or("-"));
        let id = text(&letter.message.message_id);
        if self.are_unroutable {
            return out::line(format_args!(
                "{:<30}  {id:<36}  {bytes:>9}  {}",
                text(&letter.routing_key),
                text(&letter.message.content.content_type),
            ));
        }
        out::line(format_args!(
            "{:<20}  {:<18}  {id:<36}  {:>8}  {}",
            when(letter.dead_at.as_deref()),
            text(&letter.reason),
            text(&letter.attempts),
            text(&letter.detail),
        ))
    }

    fn head(&self) -> Result<(), Exit> {
        if self.are_unroutable {
            return out::line(format_args!(
                "{:<30}  {:<36}  {:>9}  CONTENT TYPE",
                "ROUTING KEY", "ID", "BYTES"
            ));
        }
        out::line(format_args!(
            "{:<20}  {:<18}  {:<36}  {:>8}  DETAIL",
            "DEAD AT (UTC)", "REASON", "ID", "ATTEMPTS"
        ))
    }
}

/// Prints how many letters there are besides those that were listed.
pub(super) fn rest(tally: &Tally) -> Result<(), Exit> {
    if tally.seen >= tally.found || tally.stopped {
        return Ok(());
    }
    let (listed, kept) = (tally.done, tally.kept);
    let others = if kept == 0 { String::new() } else { format!(", and {kept} that do not match") };
    out::line(format_args!("{listed} of {}{others}; --limit shows more", tally.found))
}

/// Epoch milliseconds, as a header has them, as a date and time.
pub(super) fn when(millis: Option<&str>) -> String {
    millis.and_then(|text| text.parse().ok()).map_or_else(|| "-".to_owned(), out::instant)
}
