//! All that is known of one downstream.

use paced::api::state::{Downstream, State};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Wrap};

use super::super::{facts, out};
use super::view::View;
use super::{spark, style};

/// The width of the titles.
const TITLES: usize = 10;
/// The most bars of the pace.
const MOST_BARS: u16 = 120;

/// Draws the details of a downstream, from the line that the user scrolled to.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View, downstream: &Downstream, state: &State) {
    let (head, rest) = style::cut(area, 1);
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
    frame.render_widget(Line::styled(format!(" {} ", out::printable(&downstream.name)), style), head);

    let mut lines = vec![pace(view, downstream, area.width)];
    lines.extend(facts::of(downstream, state.now).into_iter().map(|(title, text)| {
        let style = match title {
            "fails" => style::alarm(view),
            "pause" => style::notice(view),
            _ => Style::new(),
        };
        line(title, text, style)
    }));
    // At least the last line stays.
    let last = u16::try_from(lines.len().saturating_sub(1)).unwrap_or(u16::MAX);
    let text = Paragraph::new(Text::from(lines)).wrap(Wrap { trim: false });
    frame.render_widget(text.scroll((view.scrolled.min(last), 0)), rest);
}

fn line<'a>(title: &str, text: String, style: Style) -> Line<'a> {
    let title = Span::styled(format!("{title:<TITLES$} "), Style::new().add_modifier(Modifier::BOLD));
    Line::from(vec![title, Span::styled(text, style)])
}

/// The paces that were seen since the start of this command.
fn pace<'a>(view: &View, downstream: &Downstream, width: u16) -> Line<'a> {
    let room = usize::from(width.min(MOST_BARS)).saturating_sub(TITLES + 1);
    let seen = view.paces(&downstream.name).map(|paces| {
        let bars = spark::line(paces, downstream.terms.rate_limit, room.min(paces.len()));
        format!("{bars}▏")
    });
    line("pace", seen.unwrap_or_default(), Style::new())
}
