//! The grammar of rates: `COUNT ("/" | "per") [N] UNIT`.

use super::Period;

/// The parts of a text, not validated yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) count: u64,
    /// The number N; 1 if it is left out.
    pub(super) number: u64,
    /// The period of one UNIT.
    pub(super) unit: Period,
}

/// Reads a text in lower case, with optional spaces around `/`, spaces around `per`, and digits that may be grouped by
/// `_`.
pub(super) fn read(text: &str) -> Option<Written> {
    let (count, per) = text.split_once('/').or_else(|| text.split_once(" per "))?;
    let per = per.trim();
    let digits = per.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(per.len());
    let (number, unit) = per.split_at(digits);
    let number = if number.is_empty() { 1 } else { integer(number)? };
    Some(Written { count: integer(count.trim())?, number, unit: unit_of(unit.trim_start())? })
}

fn unit_of(text: &str) -> Option<Period> {
    Some(match text {
        "us" => Period::Micros(1),
        "ms" => Period::Micros(1_000),
        "s" | "sec" | "second" | "seconds" => Period::Micros(1_000_000),
        "m" | "min" | "minute" | "minutes" => Period::Micros(60_000_000),
        "h" | "hour" | "hours" => Period::Micros(3_600_000_000),
        "d" | "day" | "days" => Period::Micros(86_400_000_000),
        "w" | "week" | "weeks" => Period::Week,
        "month" | "months" => Period::Month,
        _ => return None,
    })
}

fn integer(text: &str) -> Option<u64> {
    let starts = text.starts_with(|c: char| c.is_ascii_digit());
    if !starts || !text.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
        return None;
    }
    text.replace('_', "").parse().ok()
}
