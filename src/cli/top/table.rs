//! The table of downstreams, as much of it as there is room for around the selected one.

use paced::api::state::Downstream;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row, Table};

use super::super::facts::pace;
use super::super::out;
use super::view::View;
use super::{spark, style};

/// From this width on, what binds is shown in whole words.
const WIDE: u16 = 120;
/// The titles, the mark and the name before them, and what binds after them.
const NUMBERS: [&str; 7] = ["RATE", "LIMIT", "QUEUED", "HERE", "SENDING", "PARKED", "DEAD"];
/// The widest name; longer ones are cut. A wide terminal has room for more.
const LONGEST_NAME: [u16; 2] = [12, 32];
/// The width of the bars of the pace. On a wide terminal they have a quarter of what is beyond its least width besides, up to
/// the most.
const BARS: [u16; 2] = [6, 20];
const MOST_BARS: u16 = 60;

/// Draws the table. `selected` is an index into `shown`.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View, shown: &[&Downstream], selected: usize) {
    let is_wide = area.width >= WIDE;
    let size = usize::from(is_wide);
    let bars = (BARS[size] + area.width.saturating_sub(WIDE) / 4).min(MOST_BARS);
    // Widths are those of all rows, so that columns stay where they are while the user scrolls.
    let numbers: Vec<[String; 7]> = shown.iter().map(|downstream| cells(downstream)).collect();
    let width = |column: usize| {
        let widths = numbers.iter().map(|cells| cells[column].chars().count());
        let widest = widths.chain([NUMBERS[column].len()]).max().unwrap_or_default();
        u16::try_from(widest).unwrap_or(u16::MAX)
    };
    let names = shown.iter().map(|downstream| Line::raw(out::printable(&downstream.name)).width());
    let name = u16::try_from(names.max().unwrap_or_default()).unwrap_or(u16::MAX);
    let widths = [2, name.clamp(10, LONGEST_NAME[size]), bars].into_iter().chain((0..7).map(width));
    let widths: Vec<Constraint> = widths.map(Constraint::Length).chain([Constraint::Fill(1)]).collect();

    let rows = window(shown.len(), selected, usize::from(area.height.saturating_sub(1)));
    let rows = rows.map(|index| {
        let marks = Marks { is_selected: index == selected, is_wide };
        row(view, shown[index], &numbers[index], marks, bars)
    });
    let titles = ["", "DOWNSTREAM", "PACE"].map(Cell::from).into_iter();
    let titles = titles.chain(NUMBERS.map(right)).chain([Cell::from("BINDS")]);
    let header = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
}

/// The rows that are shown: as many as fit, with the selected one in the middle where the ends allow it.
fn window(all: usize, selected: usize, room: usize) -> std::ops::Range<usize> {
    let first = selected.saturating_sub(room / 2).min(all.saturating_sub(room));
    first..all.min(first + room)
}

struct Marks {
    is_selected: bool,
    is_wide: bool,
}

fn row<'a>(view: &View, downstream: &Downstream, numbers: &[String; 7], marks: Marks, bars: u16) -> Row<'a> {
    let fails = downstream.health.failing.is_some();
    let is_paused = downstream.terms.pause.is_some() || downstream.terms.penalty.is_some();
    let mark = match (marks.is_selected, fails) {
        (true, true) => ">!",
        (true, false) => ">",
        (false, true) => " !",
        (false, false) => "",
    };
    let paces = view.paces(&downstream.name);
    let bars = paces.map(|paces| spark::line(paces, downstream.terms.rate_limit, usize::from(bars)));
    let style = match (fails, is_paused) {
        (true, _) => style::alarm(view),
        (false, true) => style::notice(view),
        (false, false) => Style::new(),
    };
    let binds = Cell::from(out::printable(&binds(downstream, marks.is_wide)));
    let cells = [Cell::from(mark), Cell::from(out::printable(&downstream.name))];
    let cells = cells.into_iter().chain([Cell::from(bars.unwrap_or_default())]);
    let cells = cells.chain(numbers.iter().cloned().map(right)).chain([binds]);
    let row = Row::new(cells).style(style);
    if marks.is_selected { row.style(style.add_modifier(Modifier::REVERSED)) } else { row }
}

fn right<'a>(text: impl Into<Text<'a>>) -> Cell<'a> {
    Cell::from(text.into().right_aligned())
}

fn cells(downstream: &Downstream) -> [String; 7] {
    let counts = &downstream.counts;
    let known = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), short);
    [
        pace(downstream.releases.rate),
        downstream.terms.rate_limit.map_or_else(|| "-".to_owned(), pace),
        known(downstream.queues.queued.map(u64::from)),
        short(counts.waiting + counts.delayed + counts.retrying + counts.held),
        short(counts.sending),
        known(downstream.queues.parked.map(|parked| u64::try_from(parked).unwrap_or_default())),
        known(downstream.queues.dead.map(u64::from)),
    ]
}

/// A count in at most five characters, as far as that goes.
fn short(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}

/// Whether an operator paused it, and no job waits: then the pause holds nothing up, and somebody must end it nevertheless.
pub(super) fn is_paused_at_rest(downstream: &Downstream) -> bool {
    downstream.binding.reason == "idle" && downstream.terms.pause.is_some()
}

/// What binds: in whole words, or in one or two of them.
fn binds(downstream: &Downstream, is_wide: bool) -> String {
    let binding = &downstream.binding;
    match (&downstream.health.failing, is_wide) {
        (None, _) if is_paused_at_rest(downstream) => "paused".to_owned(),
        (Some(failing), true) => format!("FAILS: {}; {}", failing.kinds(), binding.text),
        // There is no room for a count: a number that is cut would be a wrong number.
        (Some(failing), false) => {
            let most_frequent = failing.kinds.first().map_or(&failing.kind, |known| &known.kind);
            format!("FAILS {most_frequent}")
        }
        (None, true) => binding.text.clone(),
        (None, false) => match &binding.limit {
            Some(limit) if binding.reason == "limit" => limit.clone(),
            _ => binding.reason.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_row_is_among_those_shown() {
        assert_eq!(window(3, 2, 10), 0..3);
        assert_eq!(window(60, 0, 10), 0..10);
        assert_eq!(window(60, 30, 10), 25..35);
        assert_eq!(window(60, 59, 10), 50..60);
        assert_eq!(window(60, 59, 0), 59..59, "a terminal of no height");
        assert_eq!(window(0, 0, 10), 0..0);
    }

    #[test]
    fn counts_are_short() {
        for (count, expected) in
            [(99_999, "99999"), (100_000, "100k"), (9_999_999, "9999k"), (10_000_000, "10M")]
        {
            assert_eq!(short(count), expected);
        }
    }
}
