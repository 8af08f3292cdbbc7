//! Releases over time, as bars below the line of the limit.

use std::time::Duration;

use paced::Rate;

use crate::screen::{Colour, Screen};
use crate::support::count;

/// Rows of the plot up to the limit; one more lies above it.
const ROWS: usize = 5;
const LABEL: usize = 10;

/// The plot's lines. `stamps` are ns, ascending.
pub fn render(screen: &Screen, rate: Rate, stamps: &[u64]) -> Vec<String> {
    let Some(&first) = stamps.first() else { return Vec::new() };
    let room = screen.width().saturating_sub(LABEL + 4).max(10);
    let bucket = bucket(count::span(stamps), rate, room);
    // Buckets begin half an interval before a slot, so that jitter moves no job over an edge.
    let half = u64::try_from(rate.interval().as_nanos() / 2).unwrap_or(0);
    let mut shifted = vec![first.saturating_sub(half)];
    shifted.extend(stamps);
    let mut counts = count::histogram(&shifted, bucket);
    counts[0] -= 1;
    let limit = rate.per_second() * bucket.as_secs_f64();
    let columns = (room / counts.len()).clamp(1, 2);

    let mut lines = vec![format!(
        "  {} {}",
        screen.paint(Colour::Bold, "Releases"),
        screen.paint(Colour::Dim, &format!("per {} ms, as the API saw them", bucket.as_millis())),
    )];
    for row in (0..=ROWS).rev() {
        let label = match row {
            ROWS => format!("limit {limit:.0}"),
            0 => "0".to_owned(),
            _ => String::new(),
        };
        let cells: String = counts.iter().map(|&count| cell(screen, count, limit, row, columns)).collect();
        let edge = if screen.is_unicode() { "│" } else { "|" };
        lines.push(format!("  {label:>LABEL$} {edge}{cells}"));
    }
    lines.push(axis(screen, bucket, counts.len(), columns));
    lines
}

/// A round length of which there are no more than there is room for, and which holds slots enough;
/// a whole number of them where that can be.
fn bucket(span: Duration, rate: Rate, room: usize) -> Duration {
    let least = (span / u32::try_from(room).unwrap_or(u32::MAX)).max(rate.interval() * 5);
    let lengths = [250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000];
    let mut fitting = lengths.into_iter().map(Duration::from_millis).filter(|length| *length > least);
    let first = fitting.clone().next().unwrap_or(least);
    let is_whole = |length: &Duration| {
        (length.as_micros() * u128::from(rate.count())).is_multiple_of(u128::from(rate.period_micros()))
    };
    fitting.find(|length| is_whole(length) && *length <= first * 4).unwrap_or(first)
}

/// One bar's part in one row: rows 0 to ROWS - 1 reach the limit, row ROWS lies above it.
fn cell(screen: &Screen, count: usize, limit: f64, row: usize, columns: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a bar")]
    let level = count as f64 * ROWS as f64 / limit - row as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 8")]
    let eighths = (level * 8.0).round().clamp(0.0, 8.0) as usize;
    let line = if screen.is_unicode() { '┄' } else { '-' };
    if eighths == 0 {
        let blank = if row == ROWS { line } else { ' ' };
        return screen.paint(Colour::Yellow, &blank.to_string().repeat(columns));
    }
    let block = if screen.is_unicode() {
        [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][eighths]
    } else {
        [' ', '.', '.', ':', ':', '+', '+', '#', '#'][eighths]
    };
    let colour = if row == ROWS { Colour::Yellow } else { Colour::Cyan };
    screen.paint(colour, &block.to_string().repeat(columns))
}

/// The line below the bars, with the seconds.
fn axis(screen: &Screen, bucket: Duration, buckets: usize, columns: usize) -> String {
    let per_mark = (8 / columns).max(1).next_multiple_of(4);
    let mut text = String::new();
    for index in (0..=buckets).step_by(per_mark) {
        let at = bucket * u32::try_from(index).unwrap_or(u32::MAX);
        let mark = format!("{} s", at.as_secs_f64());
        let place = index * columns;
        while text.chars().count() < place {
            text.push(' ');
        }
        if text.chars().count() == place {
            text.push_str(&mark);
        }
    }
    format!("  {:>LABEL$}  {}", "", screen.paint(Colour::Dim, &text))
}
