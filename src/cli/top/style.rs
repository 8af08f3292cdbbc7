//! Styles, and parts of the screen.

use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::view::View;

/// The style of what needs attention: in colour where that is wanted, and always bold.
pub(super) fn alarm(view: &View) -> Style {
    let style = Style::new().add_modifier(Modifier::BOLD);
    if view.has_color { style.fg(Color::Red) } else { style }
}

/// The style of what an operator or the API asked for.
pub(super) fn notice(view: &View) -> Style {
    if view.has_color { Style::new().fg(Color::Yellow) } else { Style::new() }
}

/// Divides an area into its first lines and the others.
pub(super) fn cut(area: Rect, lines: u16) -> (Rect, Rect) {
    let lines = lines.min(area.height);
    let rest = Rect { y: area.y + lines, height: area.height - lines, ..area };
    (Rect { height: lines, ..area }, rest)
}
