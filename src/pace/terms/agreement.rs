//! Which terms are in force, as all replicas agree on them.
//!
//! Slots are asked for in the state `InForce` alone. `Lost` is left by telling the store again alone: what it has before that
//! says nothing.
//!
//! | state | what happens | next state |
//! |---|---|---|
//! | `Unknown` | the store tells terms, or takes this replica's | `InForce` |
//! | `Unknown` | the store tells terms that cannot be gone by here | `Rejected` |
//! | `InForce` | the store tells a higher generation | `Outdated` |
//! | `InForce` | the store's clock stepped, or its record began anew | `Outdated` |
//! | `InForce`, `Outdated` | the store tells a lower generation, or has no terms, or has forgotten a pause | `Lost` |
//! | `Outdated` | the store tells terms | `InForce` |
//! | `Outdated` | the store tells terms that cannot be gone by here | `Rejected` |
//! | `Lost` | the store was told again what it has lost | `Outdated`; `Unknown` where no terms were known |
//! | `Rejected` | the store tells terms that can be gone by | `InForce` |
//! | `Rejected` | the store tells of a later generation than the rejected one, or its clock stepped | `Outdated`; `Unknown` as above |
//! | `Rejected` | the store has no terms any more, and none were known here | `Unknown` |
//! | `Rejected` | this replica is given other limits | `Outdated`; `Unknown` as above |
//!
//! Beside the state, a replica proposes its own limits after its start and after each reload, until the store has
//! them or others are found to stay; meanwhile it goes by those that are in force.

use crate::limit::{LimitError, LimitSet};
use crate::pace::{PlanLimits, Settings};
use crate::store::Status;
use crate::terms::{Load, Terms, TermsError};
use crate::time::Micros;

/// What one replica knows of the terms in force, and what it wants of them.
#[derive(Debug)]
pub(crate) struct Agreement {
    state: State,
    /// What this replica was given: the limits are those of its configuration.
    given: Settings,
    /// Those limits as terms.
    own: Terms,
    /// The terms that it goes by, or went by last; none before the store told.
    known: Option<Known>,
    /// Its own are still to be proposed.
    is_proposing: bool,
    /// The text that is to become the store's, if its generation is still this one.
    to_write: Option<(u64, String)>,
    /// The generation that cannot be gone by here: until there is one that can, the known terms are of no use either.
    rejected_generation: Option<u64>,
    /// The generation of which it was logged that the configuration differs.
    warned_generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The store has not told yet which terms are in force.
    Unknown,
    /// The known ones are.
    InForce,
    /// The store may have others than the known ones.
    Outdated,
    /// The store has none, or older ones, or has lost a pause: it lost its record.
    Lost,
    /// The store has others, and they cannot be gone by here.
    Rejected,
}

/// Terms that the store told.
#[derive(Debug)]
struct Known {
    generation: u64,
    text: String,
    terms: Terms,
    /// When the first rate that an operator set is over.
    next_end: Option<Micros>,
}

/// What the agreement wants of the store's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It wants to read it.
    Read,
    /// This text is to become the terms, if those in the store are still of generation `of`.
    Write {
        /// The generation that the text replaces.
        of: u64,
        /// The terms.
        text: String,
    },
}

/// Limits to go by from now on.
#[derive(Clone, Debug)]
pub(crate) struct Adopted {
    /// What the engine is to go by.
    pub(crate) settings: Settings,
    /// Whether a rate that an operator set is among them.
    pub(crate) is_override: bool,
}

/// Why the terms in the store cannot be gone by.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Terms(#[from] TermsError),
    #[error(
        "with the plans of this replica's configuration its limits are none: {0}; restart it with the others'"
    )]
    Limits(#[from] LimitError),
}

impl Agreement {
    /// Before the store has told anything: this replica's own are to be proposed.
    pub(crate) fn new(given: Settings) -> Self {
        Self {
            state: State::Unknown,
            own: given.terms(),
            given,
            known: None,
            is_proposing: true,
            to_write: None,
            rejected_generation: None,
            warned_generation: 0,
        }
    }

    /// This replica's own limits are not proposed, unless the store has none.
    pub(crate) const fn do_not_propose(&mut self) {
        (self.state, self.is_proposing) = (State::Outdated, false);
    }

    /// The generation to ask for slots under; none unless it is known which terms are in force.
    pub(crate) fn settled(&self) -> Option<u64> {
        self.known.as_ref().filter(|_| self.state == State::InForce).map(|known| known.generation)
    }

    /// Whether terms are known that a replica may pace by while the store is away.
    pub(crate) const fn is_usable(&self) -> bool {
        self.known.is_some() && self.rejected_generation.is_none()
    }

    /// Whether the store's terms cannot be gone by here.
    pub(crate) fn is_rejected(&self) -> bool {
        self.state == State::Rejected
    }

    /// Whether the store has lost its record.
    pub(crate) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Generation and text as they are known here, for a store that has lost them.
    pub(crate) fn memory(&self) -> Option<(u64, String)> {
        self.known.as_ref().map(|known| (known.generation, known.text.clone()))
    }

    /// What is to be asked or told next to find out which terms are in force.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        if let Some((of, text)) = &self.to_write {
            return Some(Wanted::Write { of: *of, text: text.clone() });
        }
        let proposes = self.is_proposing && self.state != State::Rejected;
        let is_unread = matches!(self.state, State::Outdated | State::Unknown);
        (is_unread || proposes).then_some(Wanted::Read)
    }

    /// The first instant at which a rate that an operator set is over.
    pub(crate) fn next_end(&self) -> Option<Micros> {
        self.known.as_ref()?.next_end
    }

    /// The store has lost its record.
    pub(crate) const fn on_loss(&mut self) {
        self.state = State::Lost;
    }

    /// What the store has need not be what it had: its clock stepped, or its record began anew.
    pub(crate) fn on_step(&mut self) {
        if matches!(self.state, State::InForce | State::Rejected) {
            self.state = self.unread();
        }
    }

    /// The store was told again what it had lost.
    pub(crate) fn on_recalled(&mut self) {
        if self.state == State::Lost {
            self.state = self.unread();
        }
    }

    /// The state in which the terms are to be read.
    const fn unread(&self) -> State {
        if self.known.is_some() { State::Outdated } else { State::Unknown }
    }

    /// An answer of the store tells its generation, without the terms.
    pub(crate) fn on_generation(&mut self, generation: u64) {
        let known = self.known.as_ref().map(|known| known.generation);
        let is_later = match self.state {
            State::InForce => known.is_some_and(|known| generation > known),
            State::Rejected => self.rejected_generation.is_none_or(|rejected| generation > rejected),
            State::Unknown | State::Outdated | State::Lost => false,
        };
        if known.is_some_and(|known| generation < known) {
            self.state = State::Lost;
        } else if is_later {
            self.state = self.unread();
        }
    }

    /// The store's record was read at its instant `now`: goes by its terms, or proposes others. Returns the limits to
    /// go by, where these change.
    pub(crate) fn on_record(&mut self, status: Status, text: Option<String>, now: Micros) -> Option<Adopted> {
        if self.is_lost() {
            // The store is told first what it has lost, a pause perhaps: what it has says nothing before.
            return None;
        }
        let generation = status.generation;
        let known = self.known.as_ref();
        if known.is_some_and(|known| generation < known.generation || text.is_none()) {
            self.state = State::Lost;
            return None;
        }
        self.to_write = self.to_write.take().filter(|(of, _)| *of == generation);
        if text.is_none() && known.is_none() {
            // If terms were rejected before, they are gone.
            (self.state, self.is_proposing) = (State::Unknown, true);
            self.rejected_generation = None;
        }
        if self.is_proposing && self.propose(generation, text.as_deref()) {
            return None;
        }
        let text = text?;
        let is_same = |known: &Known| known.generation == generation && known.text == text;
        if self.known.as_ref().is_some_and(is_same) {
            (self.state, self.rejected_generation) = (State::InForce, None);
            return None;
        }
        match self.adopt(generation, text, now) {
            Ok(adopted) => Some(adopted),
            Err(error) => {
                self.state = State::Rejected;
                if self.rejected_generation.replace(generation) != Some(generation) {
                    let downstream = self.given.downstream.as_str();
                    tracing::error!(downstream, generation, %error, "nothing is released: no terms to go by");
                }
                None
            }
        }
    }

    /// Proposes this replica's limits where they differ from those in force; false where those in force stay, or
    /// cannot be judged.
    fn propose(&mut self, generation: u64, text: Option<&str>) -> bool {
        let stored = match text.map(Terms::parse).transpose() {
            Ok(stored) => stored,
            // Nobody can go by it, so it is replaced.
            Err(TermsError::Malformed(_)) => None,
            Err(_) => return false,
        };
        match Terms::load(stored.as_ref(), &self.own) {
            Load::Same => {}
            Load::Replace(new) => {
                self.to_write = Some((generation, new.to_text()));
                return true;
            }
            Load::Stay { stored, own } => {
                let downstream = self.given.downstream.as_str();
                tracing::warn!(
                    downstream,
                    stored,
                    own,
                    "the limits in force are of a higher revision than this replica's configuration: they stay"
                );
                self.warned_generation = generation;
            }
        }
        self.is_proposing = false;
        false
    }

    fn adopt(&mut self, generation: u64, text: String, now: Micros) -> Result<Adopted, Unusable> {
        let terms = Terms::parse(&text)?;
        let settings = effective(&self.given, &terms, now)?;
        let downstream = self.given.downstream.as_str();
        if !terms.has_limits_of(&self.own) && !self.is_proposing && self.warned_generation < generation {
            self.warned_generation = generation;
            tracing::warn!(
                downstream,
                generation,
                "this replica's configuration differs from the terms in force (generation {generation}); it goes \
                 by those in force"
            );
        }
        for name in terms.idle(now) {
            tracing::warn!(
                downstream,
                limit = name,
                "a rate is set over a limit that is none any more: it is idle"
            );
        }
        let next_end = if terms.expired(now).is_some() { Some(now) } else { terms.next_end(now) };
        let (is_override, rate) = (settings.limits != *terms.limits(), settings.limits.rate().per_second());
        if self.known.is_some() {
            tracing::info!(downstream, generation, rate, "other terms are in force: so many jobs a second");
        }
        self.known = Some(Known { generation, text, terms, next_end });
        (self.state, self.rejected_generation) = (State::InForce, None);
        Ok(Adopted { settings: settings.policing(), is_override })
    }

    /// Rates that operators set may be over at the store's instant `now`: has the store told, whoever notices first.
    /// Where it is away nobody can be told, and each replica goes by the remaining terms: these are returned.
    pub(crate) fn expire(&mut self, now: Micros, is_away: bool) -> Option<Settings> {
        let known = self.known.as_mut().filter(|known| known.next_end.is_some_and(|end| end <= now))?;
        known.next_end = known.terms.next_end(now);
        if let Some(left) = known.terms.expired(now) {
            self.to_write = Some((known.generation, left.to_text()));
        }
        let settings = effective(&self.given, &known.terms, now).ok().filter(|_| is_away);
        settings.map(Settings::policing)
    }

    /// What to go by without the rates that are over at `now`, where there are such: nobody can be told while the
    /// store is away.
    pub(crate) fn without_expired(&self, now: Micros) -> Option<Settings> {
        let known = self.known.as_ref().filter(|known| known.terms.expired(now).is_some())?;
        effective(&self.given, &known.terms, now).ok().map(Settings::policing)
    }

    /// This replica is given other settings: proposes their limits, and returns what to go by until those are in
    /// force: all else of them.
    pub(crate) fn give(&mut self, given: Settings, now: Micros) -> Settings {
        self.own = given.terms();
        self.is_proposing = true;
        self.rejected_generation = None;
        if self.state == State::Rejected {
            self.state = self.unread();
        }
        let before = std::mem::replace(&mut self.given, given);
        let in_force = self.known.as_ref().map(|known| effective(&self.given, &known.terms, now));
        let settings = match in_force {
            Some(Ok(settings)) => settings,
            _ => Settings { limits: before.limits, plans: before.plans, ..self.given.clone() },
        };
        settings.policing()
    }
}

/// What to go by under these terms. A plan that the terms do not have keeps its own limits behind the downstream's.
fn effective(given: &Settings, terms: &Terms, now: Micros) -> Result<Settings, LimitError> {
    let (limits, mut plans) = terms.effective(now);
    let plans = given.plans.iter().map(|plan| {
        let set = match plans.remove(&plan.name) {
            Some(set) => set,
            None => {
                let own = plan.limits.listed().skip(given.limits.given());
                LimitSet::new(limits.listed().chain(own).cloned().collect())?
            }
        };
        Ok(PlanLimits { name: plan.name.clone(), limits: set })
    });
    let plans = plans.collect::<Result<_, LimitError>>()?;
    Ok(Settings { limits, plans, ..given.clone() })
}

#[cfg(test)]
mod tests;
