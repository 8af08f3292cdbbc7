//! Draws the whole screen, from the view and the state alone.

use paced::api::state::{Downstream, State};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Wrap};

use super::super::{facts, out, parts};
use super::style::{alarm, cut, notice};
use super::table::is_paused_at_rest;
use super::view::{Change, Last, Mode, Order, View};
use super::{pane, table};

const HELP: &str = "\
  ↑ ↓ j k          select a downstream; in its details, scroll
  PgUp PgDn Space  a page up or down
  Home End g G     the first, the last
  Enter            the details of the selected one, and back
  ← → h l          in the details: the one before, the one after
  /                show only names that contain what is typed; Enter keeps it, Esc lifts it
  p r              pause or resume the selected one, after a question
  q Esc Ctrl-C     leave

  PACE     the last seconds; a full bar is the limit
  RATE     jobs released a second, over the last ten seconds, by all replicas
  LIMIT    the pace: the slowest limit that spaces jobs out (not quotas)
  QUEUED   ready in the broker          HERE  waiting in the replicas
  SENDING  requests on their way        PARKED, DEAD  in queues of their own
  BINDS    why no more jobs go; `!` and FAILS: the API fails

Any key goes back.";

/// Draws what the view asks for. Before the first answer there is no state.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, state: Option<&State>) {
    let area = frame.area();
    let (head, rest) = cut(area, 1);
    let alert = if area.width < 120 { 3 } else { 2 };
    let (alert, rest) = cut(rest, if view.away().is_some() { alert } else { 0 });
    let (last, rest) = cut(rest, last_height(view, area.width));
    let (body, keys) = cut(rest, rest.height.saturating_sub(1));
    draw_head(frame, head, view, state);
    draw_away(frame, alert, view);
    draw_keys(frame, keys, view);
    draw_last(frame, last, view);
    match (&view.mode, state) {
        (Mode::Help, _) => frame.render_widget(Paragraph::new(HELP), inset(body)),
        (_, None) => {}
        (Mode::Details | Mode::Confirm { in_details: true, .. }, Some(state)) => {
            let shown = view.shown(state);
            // The selected one may have left the configuration meanwhile.
            match shown.get(view.selected(&shown)) {
                Some(downstream) => pane::draw(frame, inset(body), view, downstream, state),
                None => frame.render_widget("This downstream is there no more.", inset(body)),
            }
        }
        (_, Some(state)) => draw_table(frame, inset(body), view, state),
    }
}

/// The area without its first line, which stays empty.
fn inset(area: Rect) -> Rect {
    cut(area, 1).1
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View, state: Option<&State>) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let head = match state {
        Some(state) if state.amqp.connected && state.store.error.is_none() => Line::styled(head(state), bold),
        Some(state) => Line::styled(head(state), alarm(view)),
        None => Line::styled("paced top: asking the daemon", bold),
    };
    let clock = out::instant(view.now);
    let clock = clock.split(' ').next_back().unwrap_or_default();
    let clock = Line::raw(format!("{clock} UTC")).right_aligned();
    // The head is more important than the clock.
    let has_room = head.width() + 2 + clock.width() <= usize::from(area.width);
    frame.render_widget(head, area);
    if has_room {
        frame.render_widget(clock, area);
    }
}

/// The version, the replicas and the servers, in a line.
fn head(state: &State) -> String {
    let replicas = match state.fleet.replicas.len() {
        1 => "1 replica".to_owned(),
        replicas => format!("{replicas} replicas"),
    };
    let silent = match state.fleet.silent.len() {
        0 => String::new(),
        others if !state.store.connected => format!("  {others} unknown"),
        silent => format!("  {silent} SILENT"),
    };
    let amqp = facts::broker(state);
    let unroutable = state.unclaimed.unroutable.filter(|messages| *messages > 0);
    let unroutable = unroutable.map(|messages| format!("  {messages} unroutable")).unwrap_or_default();
    let orphans = match state.unclaimed.orphans.len() {
        0 => String::new(),
        1 => "  1 orphan".to_owned(),
        orphans => format!("  {orphans} orphans"),
    };
    let kind = state.store.kind.as_deref().unwrap_or("store");
    // Long texts come last, where they may be cut.
    let store = match &state.store.error {
        None => format!("{kind} ok"),
        Some(error) => format!("{kind} AWAY ({error})"),
    };
    out::printable(&format!(
        "paced {}  {replicas}{silent}  {amqp}{unroutable}{orphans}  {store}",
        state.version
    ))
}

fn draw_away(frame: &mut Frame<'_>, area: Rect, view: &View) {
    if let Some((since, why)) = view.away() {
        let span = parts::for_people(view.now - since);
        let since = out::instant(since);
        let text = format!("NOT ANSWERED since {since} UTC ({span}); still trying: {}", out::printable(why));
        frame.render_widget(Paragraph::new(text).style(alarm(view)).wrap(Wrap { trim: true }), area);
    }
}

/// What came of the last change, for people.
fn last_text(view: &View) -> Option<(String, Style)> {
    let (text, style) = match &view.last {
        Last::None => return None,
        Last::UnderWay(Change { order: Order::Pause, downstream }) => {
            (format!("pausing {downstream}"), Style::new())
        }
        Last::UnderWay(Change { order: Order::Resume, downstream }) => {
            (format!("resuming {downstream}"), Style::new())
        }
        Last::Done(text) => (text.clone(), notice(view)),
        Last::Failed(text) => (text.clone(), alarm(view)),
    };
    Some((out::printable(&text), style))
}

/// The lines that the text takes, with one more because words do not fill lines. The end of a longer text is cut.
fn last_height(view: &View, width: u16) -> u16 {
    const MOST: usize = 4;
    let lines = |text: &str| Line::raw(text).width().div_ceil(usize::from(width.max(1)));
    let lines = last_text(view).map_or(0, |(text, _)| match lines(&text) {
        0 | 1 => 1,
        more => (more + 1).min(MOST),
    });
    u16::try_from(lines).unwrap_or_default()
}

fn draw_last(frame: &mut Frame<'_>, area: Rect, view: &View) {
    if let Some((text, style)) = last_text(view) {
        frame.render_widget(Paragraph::new(text).style(style).wrap(Wrap { trim: true }), area);
    }
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let text = match &view.mode {
        Mode::Confirm { change: Change { order, downstream }, .. } => {
            let text = match order {
                Order::Pause => {
                    format!("Pause? y yes, any other key no: {downstream}, everywhere, until it is resumed")
                }
                Order::Resume => format!("Resume? y yes, any other key no: {downstream}, everywhere"),
            };
            let style = notice(view).add_modifier(Modifier::BOLD);
            frame.render_widget(Line::styled(out::printable(&text), style), area);
            return;
        }
        Mode::Filter => format!("/{}▏ Enter keeps the filter, Esc lifts it", out::printable(&view.filter)),
        Mode::Details => {
            "q leave  Enter back  ↑↓ scroll  ←→ another downstream  p pause  r resume  ? help".to_owned()
        }
        Mode::Help => "any key back".to_owned(),
        Mode::Table if view.filter.is_empty() => {
            "q leave  ↑↓ select  Enter details  p pause  r resume  / filter  ? help".to_owned()
        }
        Mode::Table => format!(
            "/{}  Esc all of them  q leave  Enter details  p pause  r resume  ? help",
            out::printable(&view.filter)
        ),
    };
    frame.render_widget(Line::styled(text, Style::new().add_modifier(Modifier::DIM)), area);
}

/// The table, and below it all of what binds the selected one, for which a narrow table has no room.
fn draw_table(frame: &mut Frame<'_>, area: Rect, view: &View, state: &State) {
    let shown = view.shown(state);
    let selected = view.selected(&shown);
    let Some(downstream) = shown.get(selected) else {
        let text = match state.downstreams.len() {
            0 => "This daemon has no downstreams.".to_owned(),
            all => format!("None of {all} downstreams has a name that contains this."),
        };
        frame.render_widget(text, area);
        return;
    };
    let (top, bottom) = cut(area, area.height.saturating_sub(4));
    table::draw(frame, top, view, &shown, selected);
    let place = format!("{} of {}", selected + 1, shown.len());
    frame.render_widget(Line::raw(place).right_aligned(), cut(bottom, 1).0);
    let text = Text::from(out::printable(&sentence(downstream, view.now)));
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), inset(bottom));
}

/// What binds a downstream, and how its API fails, in whole words.
fn sentence(downstream: &Downstream, now: i64) -> String {
    let (name, binding) = (&downstream.name, &downstream.binding);
    let since = parts::for_people(now - binding.since);
    let what = if is_paused_at_rest(downstream) { "paused, and no jobs wait" } else { &binding.text };
    let text = format!("{name}: {what}, for {since}");
    match &downstream.health.failing {
        Some(failing) => {
            let since = parts::for_people(now - failing.since);
            format!("{text}. FAILS for {since}: {}: {}", failing.kinds(), failing.detail)
        }
        None => text,
    }
}
