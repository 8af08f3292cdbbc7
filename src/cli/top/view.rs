//! What the user chose to see, and what was seen so far. It has no I/O, and no clock.

use std::collections::{BTreeMap, VecDeque};

use paced::api::state::{Downstream, State};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The paces that are kept of each downstream: the last two minutes.
const PACES: usize = 120;
/// A daemon that has been silent for longer than this, in milliseconds, is shown as away.
const PATIENCE: i64 = 5_000;
/// The longest filter, in characters.
const LONGEST_FILTER: usize = 64;

/// What is on the screen, but for the state of the daemon.
///
/// | mode | key | next mode |
/// |---|---|---|
/// | `Table` | Enter, `/`, `?` | `Details`, `Filter`, `Help` |
/// | `Filter` | Enter or Esc | `Table`; Esc clears the filter |
/// | `Details` | Enter or Esc | `Table` |
/// | `Help` | any | `Table` |
#[derive(Debug)]
pub(super) struct View {
    pub(super) mode: Mode,
    /// Only downstreams whose names contain this are shown.
    pub(super) filter: String,
    /// The name of the selected downstream; without one, or if it is not shown, the first is.
    selected: Option<String>,
    /// The lines of the details above the first one that is shown.
    pub(super) scrolled: u16,
    pub(super) has_color: bool,
    /// The paces that were seen of each downstream, the oldest first.
    paces: BTreeMap<String, VecDeque<f64>>,
    /// The present, in epoch milliseconds.
    pub(super) now: i64,
    /// When the daemon answered last; before its first answer, when it was first asked.
    answered_at: i64,
    /// Why it did not answer when it was last asked.
    failure: Option<String>,
}

/// What the keys act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// A filter is being typed.
    Filter,
    Details,
    Help,
}

/// What a key asks for beyond the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Stay,
    Leave,
}

impl View {
    pub(super) fn new(filter: String, has_color: bool, now: i64) -> Self {
        Self {
            mode: Mode::Table,
            filter,
            selected: None,
            scrolled: 0,
            has_color,
            paces: BTreeMap::new(),
            now,
            answered_at: now,
            failure: None,
        }
    }

    /// Remembers that the daemon answered, and the pace of each downstream.
    pub(super) fn on_answer(&mut self, state: &State, now: i64) {
        (self.now, self.answered_at, self.failure) = (now, now, None);
        self.paces.retain(|name, _| state.downstreams.iter().any(|downstream| downstream.name == *name));
        for downstream in &state.downstreams {
            let paces = self.paces.entry(downstream.name.clone()).or_default();
            if paces.len() == PACES {
                paces.pop_front();
            }
            paces.push_back(downstream.releases.rate);
        }
    }

    /// Remembers why the daemon did not answer.
    pub(super) fn on_failure(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Since when the daemon has not answered, and why, if it is away.
    pub(super) fn away(&self) -> Option<(i64, &str)> {
        let is_late = self.now - self.answered_at > PATIENCE;
        match &self.failure {
            Some(why) => Some((self.answered_at, why)),
            None => is_late.then_some((self.answered_at, "it takes long to answer")),
        }
    }

    /// The downstreams that the filter lets through.
    pub(super) fn shown<'a>(&self, state: &'a State) -> Vec<&'a Downstream> {
        let filter = self.filter.to_lowercase();
        let is_shown = |downstream: &&Downstream| downstream.name.to_lowercase().contains(&filter);
        state.downstreams.iter().filter(is_shown).collect()
    }

    /// The index of the selected one among those shown.
    pub(super) fn selected(&self, shown: &[&Downstream]) -> usize {
        let is_selected = |downstream: &&Downstream| Some(&downstream.name) == self.selected.as_ref();
        shown.iter().position(is_selected).unwrap_or_default()
    }

    /// The paces that were seen of a downstream.
    pub(super) fn paces(&self, name: &str) -> Option<&VecDeque<f64>> {
        self.paces.get(name)
    }

    /// Acts on a key, on a terminal of this height in lines.
    pub(super) fn on_key(&mut self, key: KeyEvent, state: Option<&State>, height: u16) -> Wish {
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if has_control && key.code == KeyCode::Char('c') {
            return Wish::Leave;
        }
        match self.mode {
            Mode::Filter => self.on_filter_key(key.code, has_control),
            Mode::Help => self.mode = Mode::Table,
            _ if key.code == KeyCode::Char('q') => return Wish::Leave,
            Mode::Details => self.on_details_key(key.code, state, height),
            // A filter that was set is lifted first.
            Mode::Table if key.code == KeyCode::Esc && self.filter.is_empty() => return Wish::Leave,
            Mode::Table => self.on_table_key(key.code, state, height),
        }
        Wish::Stay
    }

    fn on_filter_key(&mut self, code: KeyCode, has_control: bool) {
        match code {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char('u') if has_control => self.filter.clear(),
            KeyCode::Char(c) if !has_control && self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn on_table_key(&mut self, code: KeyCode, state: Option<&State>, height: u16) {
        match code {
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Enter if state.is_some_and(|state| !self.shown(state).is_empty()) => {
                (self.mode, self.scrolled) = (Mode::Details, 0);
            }
            _ => {
                if let Some(steps) = steps(code, height) {
                    self.select(steps, state);
                }
            }
        }
    }

    fn on_details_key(&mut self, code: KeyCode, state: Option<&State>, height: u16) {
        match code {
            KeyCode::Enter | KeyCode::Esc => self.mode = Mode::Table,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Left | KeyCode::Char('h') => self.select(-1, state),
            KeyCode::Right | KeyCode::Char('l') => self.select(1, state),
            _ => {
                if let Some(steps) = steps(code, height) {
                    let scrolled = i64::from(self.scrolled).saturating_add(steps);
                    // No details have so many lines; drawing stops at the last one.
                    self.scrolled = u16::try_from(scrolled.clamp(0, 999)).unwrap_or_default();
                }
            }
        }
    }

    /// Selects the downstream so many places further down.
    fn select(&mut self, steps: i64, state: Option<&State>) {
        let shown = state.map(|state| self.shown(state)).unwrap_or_default();
        let last = i64::try_from(shown.len()).unwrap_or(i64::MAX) - 1;
        let from = i64::try_from(self.selected(&shown)).unwrap_or_default();
        let to = from.saturating_add(steps).clamp(0, last.max(0));
        let selected = usize::try_from(to).ok().and_then(|index| shown.get(index));
        if let Some(selected) = selected {
            (self.selected, self.scrolled) = (Some(selected.name.clone()), 0);
        }
    }
}

/// How far a key moves.
fn steps(code: KeyCode, height: u16) -> Option<i64> {
    const FAR: i64 = i64::MAX / 2;
    // All but the table takes about this many lines.
    let page = i64::from(height.saturating_sub(8).max(1));
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -page,
        KeyCode::PageDown | KeyCode::Char(' ') => page,
        KeyCode::Home | KeyCode::Char('g') => -FAR,
        KeyCode::End | KeyCode::Char('G') => FAR,
        _ => return None,
    })
}
