//! What the user chose to see, and what was seen so far. It has no I/O, and no clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::mem;

use paced::api::state::{Downstream, State};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The paces that are kept of each downstream: the last two minutes.
const PACES: usize = 120;
/// A daemon that has been silent for longer than this, in milliseconds, is shown as away.
const PATIENCE: i64 = 5_000;
/// The longest filter, in characters.
const LONGEST_FILTER: usize = 64;

/// What is on the screen, except the state of the daemon.
///
/// | mode | key | next mode |
/// |---|---|---|
/// | `Table` | Enter, `/`, `?` | `Details`, `Filter`, `Help` |
/// | `Filter` | Enter or Esc | `Table`; Esc clears the filter |
/// | `Details` | Enter or Esc | `Table` |
/// | `Table`, `Details` | `p`, `r` | `Confirm`, where that can be done |
/// | `Confirm` | any; `y` orders the change | the mode before |
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
    contact: Contact,
    /// What came of the last change that was ordered here.
    pub(super) last: Last,
}

/// When and how the daemon answered.
#[derive(Debug)]
struct Contact {
    /// When it answered last; before its first answer, when it was first asked.
    answered_at: i64,
    /// Why it did not answer when it was last asked.
    failure: Option<String>,
}

/// What the keys act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// A filter is being typed.
    Filter,
    Details,
    Help,
    /// The user is asked whether a change is meant.
    Confirm {
        change: Change,
        /// Whether the details are on the screen, and not the table.
        in_details: bool,
    },
}

/// A change of a downstream, for all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) order: Order,
    /// The name. It is kept, since another one may be the selected one when the user confirms.
    pub(super) downstream: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Pause,
    Resume,
}

/// What came of a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Last {
    /// There is no result that the user has not seen.
    #[default]
    None,
    UnderWay(Change),
    Done(String),
    /// It was refused or impossible, or its result is not known.
    Failed(String),
}

/// What a key asks for beyond the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Stay,
    Leave,
    /// The daemon is to carry this out. Until [`View::on_changed`] is called, nothing else is ordered.
    Change(Change),
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
            contact: Contact { answered_at: now, failure: None },
            last: Last::None,
        }
    }

    /// Remembers that the daemon answered, and the pace of each downstream.
    pub(super) fn on_answer(&mut self, state: &State, now: i64) {
        (self.now, self.contact) = (now, Contact { answered_at: now, failure: None });
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
        self.contact.failure = Some(why);
    }

    /// Remembers what came of the change that was ordered, or why it was not carried out.
    pub(super) fn on_changed(&mut self, outcome: Result<String, String>) {
        self.last = outcome.map_or_else(Last::Failed, Last::Done);
    }

    /// Since when the daemon has not answered, and why, if it is away.
    pub(super) fn away(&self) -> Option<(i64, &str)> {
        let Contact { answered_at, failure } = &self.contact;
        let is_late = self.now - answered_at > PATIENCE;
        match failure {
            Some(why) => Some((*answered_at, why)),
            None => is_late.then_some((*answered_at, "it takes long to answer")),
        }
    }

    /// The downstreams that the filter lets through: the most urgent first, then in the order of the daemon.
    pub(super) fn shown<'a>(&self, state: &'a State) -> Vec<&'a Downstream> {
        let filter = self.filter.to_lowercase();
        let is_shown = |downstream: &&Downstream| downstream.name.to_lowercase().contains(&filter);
        let mut shown: Vec<_> = state.downstreams.iter().filter(is_shown).collect();
        shown.sort_by_key(|downstream| Reverse(urgency(downstream)));
        shown
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
        if !matches!(self.last, Last::UnderWay(_)) {
            self.last = Last::None;
        }
        match &self.mode {
            Mode::Filter => self.on_filter_key(key.code, has_control),
            Mode::Help => self.mode = Mode::Table,
            Mode::Confirm { .. } => return self.on_answer_key(key.code, has_control),
            _ if has_control => {}
            _ if key.code == KeyCode::Char('q') => return Wish::Leave,
            Mode::Details => self.on_details_key(key.code, state, height),
            // The first Esc only removes a filter.
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

    fn on_answer_key(&mut self, code: KeyCode, has_control: bool) -> Wish {
        match mem::replace(&mut self.mode, Mode::Table) {
            Mode::Confirm { change, in_details } => {
                self.mode = if in_details { Mode::Details } else { Mode::Table };
                if has_control || code != KeyCode::Char('y') {
                    return Wish::Stay;
                }
                self.last = Last::UnderWay(change.clone());
                Wish::Change(change)
            }
            _ => Wish::Stay,
        }
    }

    /// Asks the user whether the selected downstream is to be changed so, if it can be.
    fn ask_about(&mut self, order: Order, state: Option<&State>) {
        self.keep_selected(state);
        let shown = state.map(|state| self.shown(state)).unwrap_or_default();
        let (Some(state), Some(downstream)) = (state, shown.get(self.selected(&shown))) else { return };
        if matches!(self.last, Last::UnderWay(_)) {
            return;
        }
        let name = downstream.name.clone();
        let refusal = match (order, &downstream.terms.pause) {
            _ if !state.can_change => "this daemon takes no changes: it has no admin.token".to_owned(),
            (Order::Pause, Some(_)) => format!("{name} is paused; r resumes it"),
            // It ends a pause that the API asked for, too.
            (Order::Resume, None) if downstream.terms.penalty.is_none() => {
                format!("nobody has paused {name}")
            }
            _ => {
                let in_details = self.mode == Mode::Details;
                self.mode = Mode::Confirm { change: Change { order, downstream: name }, in_details };
                return;
            }
        };
        self.last = Last::Failed(refusal);
    }

    fn on_table_key(&mut self, code: KeyCode, state: Option<&State>, height: u16) {
        match code {
            KeyCode::Char('p') => self.ask_about(Order::Pause, state),
            KeyCode::Char('r') => self.ask_about(Order::Resume, state),
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Enter if state.is_some_and(|state| !self.shown(state).is_empty()) => {
                self.keep_selected(state);
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
            KeyCode::Char('p') => self.ask_about(Order::Pause, state),
            KeyCode::Char('r') => self.ask_about(Order::Resume, state),
            KeyCode::Left | KeyCode::Char('h') => self.select(-1, state),
            KeyCode::Right | KeyCode::Char('l') => self.select(1, state),
            _ => {
                if let Some(steps) = steps(code, height) {
                    let scrolled = i64::from(self.scrolled).saturating_add(steps);
                    // No details have as many lines; drawing stops at the last one.
                    self.scrolled = u16::try_from(scrolled.clamp(0, 999)).unwrap_or_default();
                }
            }
        }
    }

    /// Keeps the selection on its downstream: the first one is selected by default, and may soon be another one.
    fn keep_selected(&mut self, state: Option<&State>) {
        let shown = state.map(|state| self.shown(state)).unwrap_or_default();
        if let Some(downstream) = shown.get(self.selected(&shown)) {
            self.selected = Some(downstream.name.clone());
        }
    }

    /// Selects the downstream `steps` places further down.
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

/// How urgent a downstream is: 2 where nothing can be delivered, 1 where an operator has paused it, or dead letters wait for
/// a decision. Pauses that the API asks for begin and end by themselves, and rows would move with them.
fn urgency(downstream: &Downstream) -> u8 {
    let is_down = downstream.health.failing.is_some()
        || matches!(
            downstream.binding.reason.as_str(),
            "store" | "broker" | "unreachable" | "unauthorized" | "terms"
        );
    let waits_for_somebody =
        downstream.terms.pause.is_some() || downstream.queues.dead.is_some_and(|letters| letters > 0);
    if is_down { 2 } else { u8::from(waits_for_somebody) }
}

/// How far a key moves.
fn steps(code: KeyCode, height: u16) -> Option<i64> {
    const FAR: i64 = i64::MAX / 2;
    // Everything except the table takes about this many lines.
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
