//! The agreement of all replicas on the terms in force.
//!
//! Slots are requested in the state `InForce` only. `Lost` ends only when the store's record has been restored; its
//! contents before that are ignored.
//!
//! | state | event | next state |
//! |---|---|---|
//! | `Unknown` | the store returns terms, or accepts this replica's | `InForce` |
//! | `Unknown` | the store returns terms that this replica cannot use | `Rejected` |
//! | `InForce` | an answer has a higher generation | `Outdated` |
//! | `InForce` | the store's clock stepped, or its record started again | `Outdated` |
//! | `InForce`, `Outdated`, `Rejected` | an answer has a lower generation than the known one, or no terms, or lacks a pause | `Lost` |
//! | `Outdated` | the store returns terms | `InForce` |
//! | `Outdated` | the store returns terms that this replica cannot use | `Rejected` |
//! | `Lost` | the store's record was restored | `Outdated`; `Unknown` if no terms were known |
//! | `Rejected` | the store returns terms that this replica can use | `InForce` |
//! | `Rejected` | an answer has a later generation than the rejected one, or the store's clock stepped | `Outdated`; `Unknown` as above |
//! | `Rejected` | the store has no terms any more, and none were known here | `Unknown` |
//! | `Rejected` | this replica is given other limits | `Outdated`; `Unknown` as above |
//!
//! Independent of the state, a replica proposes its own limits after its start and after each reload, until the store
//! has them or others turn out to stay in force. Meanwhile it follows the limits in force.

mod effective;
mod overrides;

use effective::effective;

use crate::limit::LimitError;
use crate::pace::Settings;
use crate::store::Status;
use crate::terms::{Load, Replica, Terms, TermsError};
use crate::time::Micros;

/// One replica's knowledge of the terms in force, and its proposal.
#[derive(Debug)]
pub(crate) struct Agreement {
    state: State,
    /// The settings that this replica was given, with the limits of its configuration.
    given: Settings,
    /// The limits of its configuration as terms.
    own: Terms,
    /// The terms that it follows, or followed last; `None` before the store returned any.
    known: Option<Stored>,
    /// Whether its own limits are still to be proposed.
    is_proposing: bool,
    /// Whether they are proposed only where the store has none.
    only_first: bool,
    /// The text to write to the store, if the generation there is still this one.
    to_write: Option<(u64, String)>,
    /// The generation that this replica cannot use. Until there is a usable one, the known terms are of no use either.
    rejected_generation: Option<u64>,
    /// The fingerprint of the file in force for which the log has a warning that the configuration differs.
    warned_fingerprint: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The terms in force are not known yet.
    Unknown,
    /// The known terms are in force.
    InForce,
    /// The store may have other terms than the known ones.
    Outdated,
    /// The store has lost its record: it has no terms, or older ones, or lacks a pause.
    Lost,
    /// The store has other terms, and this replica cannot use them.
    Rejected,
}

/// Terms that the store returned.
#[derive(Debug)]
struct Stored {
    generation: u64,
    text: String,
    terms: Terms,
    /// As in [`Terms::fingerprint`].
    fingerprint: u64,
    /// When they were adopted, on the store's clock.
    adopted_at: Micros,
    /// The instant at which the first rate of an operator expires.
    next_end: Option<Micros>,
    /// Whether its instant of loading compares with others; false after the clock stepped back.
    is_comparable: bool,
}

/// The access to the store's record that the agreement needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The record is to be read.
    Read,
    /// This text is to replace the terms, if those in the store are still of generation `of`.
    Write {
        /// The generation that the text replaces.
        of: u64,
        /// The terms.
        text: String,
    },
}

/// Limits that came into force.
#[derive(Clone, Debug)]
pub(crate) struct Adopted {
    /// The settings for the engine.
    pub(crate) settings: Settings,
    /// Whether a rate that an operator set is among them.
    pub(crate) is_override: bool,
    /// Whether the first terms that this replica learns of are its own and replaced others; `None` for later ones.
    pub(crate) has_replaced: Option<bool>,
}

/// The reason why this replica cannot use the terms in the store.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Terms(#[from] TermsError),
    #[error(
        "the terms do not fit the plans of this replica's configuration: {0}; restart it with the plans of the others"
    )]
    Limits(#[from] LimitError),
}

impl Agreement {
    /// Creates the agreement before the first answer: this replica's own limits are to be proposed.
    pub(crate) fn new(given: Settings) -> Self {
        Self {
            state: State::Unknown,
            own: given.terms(),
            given,
            known: None,
            is_proposing: true,
            only_first: false,
            to_write: None,
            rejected_generation: None,
            warned_fingerprint: None,
        }
    }

    /// Keeps this replica's own limits from being proposed, unless the store has none.
    pub(crate) const fn do_not_propose(&mut self) {
        (self.state, self.is_proposing, self.only_first) = (State::Outdated, false, true);
    }

    /// Returns the generation for reserve calls; `None` unless the terms in force are known.
    pub(crate) fn settled(&self) -> Option<u64> {
        self.known.as_ref().filter(|_| self.state == State::InForce).map(|known| known.generation)
    }

    /// Whether the known terms may be used for a local pace.
    pub(crate) const fn is_usable(&self) -> bool {
        self.known.is_some() && self.rejected_generation.is_none()
    }

    /// Whether this replica cannot use the store's terms.
    pub(crate) fn is_rejected(&self) -> bool {
        self.state == State::Rejected
    }

    /// Whether the store has lost its record.
    pub(crate) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Returns the fingerprint of the file whose limits are in force; `None` while it is not known.
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        self.known.as_ref().filter(|_| self.is_usable()).map(|known| known.fingerprint)
    }

    /// Returns the generation and the fingerprint of the terms that it follows.
    pub(crate) fn version(&self) -> Option<(u64, u64)> {
        let known = self.known.as_ref().filter(|_| self.is_usable());
        known.map(|known| (known.generation, known.fingerprint))
    }

    /// Returns the known generation and text, for a store that has lost them.
    pub(crate) fn memory(&self) -> Option<(u64, String)> {
        self.known.as_ref().map(|known| (known.generation, known.text.clone()))
    }

    /// Returns the next access to the record that the agreement needs.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        if let Some((of, text)) = &self.to_write {
            return Some(Wanted::Write { of: *of, text: text.clone() });
        }
        let proposes = self.is_proposing && self.state != State::Rejected;
        let is_unread = matches!(self.state, State::Outdated | State::Unknown);
        (is_unread || proposes).then_some(Wanted::Read)
    }

    /// Handles that the store has lost its record.
    pub(crate) const fn on_loss(&mut self) {
        self.state = State::Lost;
    }

    /// Handles that the store's terms may have changed, since its clock stepped or its record started again.
    pub(crate) fn on_step(&mut self) {
        if matches!(self.state, State::InForce | State::Rejected) {
            self.state = self.unread();
        }
    }

    /// Handles that the store's clock stepped back: instants from before the step cannot be compared with later ones.
    pub(crate) const fn on_stepped_back(&mut self) {
        if let Some(known) = &mut self.known {
            known.is_comparable = false;
        }
    }

    /// Handles that the store's record was restored.
    pub(crate) fn on_recalled(&mut self) {
        if self.state == State::Lost {
            self.state = self.unread();
        }
    }

    /// Returns the state in which the terms are to be read.
    const fn unread(&self) -> State {
        if self.known.is_some() { State::Outdated } else { State::Unknown }
    }

    /// Accepts the generation of an answer that does not carry the terms.
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

    /// Accepts the record that was read at the store's instant `now`: adopts its terms, or proposes others. Returns
    /// the limits to apply, if they change.
    pub(crate) fn on_record(&mut self, status: Status, text: Option<String>, now: Micros) -> Option<Adopted> {
        if self.is_lost() {
            // The record has to be restored first, perhaps with a pause; its contents before that are ignored.
            return None;
        }
        let generation = status.generation;
        let known = self.known.as_ref();
        if known.is_some_and(|known| generation < known.generation || text.is_none()) {
            self.state = State::Lost;
            return None;
        }
        let written = self.to_write.take();
        let is_own = written.as_ref().is_some_and(|(of, own)| *of > 0 && Some(own) == text.as_ref());
        self.to_write = written.filter(|(of, _)| *of == generation);
        if text.is_none() && known.is_none() {
            // Terms that were rejected before do not exist any more.
            (self.state, self.is_proposing) = (State::Unknown, true);
            self.rejected_generation = None;
        }
        let is_same = |known: &Stored| known.generation == generation && Some(&known.text) == text.as_ref();
        let is_known = self.known.as_ref().is_some_and(is_same);
        if let Some(newer) = text.as_deref().and_then(|text| self.newer_than(generation, text, now)) {
            self.to_write = Some((generation, newer));
            return None;
        }
        if self.is_proposing && self.propose(generation, text.as_deref(), now) {
            return None;
        }
        let text = text?;
        if is_known {
            (self.state, self.rejected_generation) = (State::InForce, None);
            return None;
        }
        let has_replaced = self.known.is_none().then_some(is_own);
        match self.adopt(generation, text, now) {
            Ok(adopted) => Some(Adopted { has_replaced, ..adopted }),
            Err(error) => {
                self.state = State::Rejected;
                if self.rejected_generation.replace(generation) != Some(generation) {
                    let downstream = self.given.downstream.as_str();
                    tracing::error!(downstream, generation, %error, "nothing is released: the terms cannot be used");
                }
                None
            }
        }
    }

    /// Returns the known terms if this text is of a file that was loaded before theirs, although it came into force after
    /// them: the store had lost all, somebody loaded a file, and somebody else restored what they remembered. The file
    /// that was loaded last counts, unless its revision is lower.
    fn newer_than(&self, generation: u64, text: &str, now: Micros) -> Option<String> {
        let known =
            self.known.as_ref().filter(|known| known.is_comparable && known.generation < generation)?;
        // An instant in the future is from before a step back of the clock.
        let loaded_at = known.terms.loaded().map(|origin| origin.at).filter(|at| *at <= now)?;
        let stored = Terms::parse(text).ok()?;
        let is_older = stored.loaded()?.at < loaded_at;
        (is_older && stored.revision() <= known.terms.revision()).then(|| known.text.clone())
    }

    /// Proposes this replica's limits if they differ from those in force. Returns false if those in force stay, or
    /// cannot be judged.
    fn propose(&mut self, generation: u64, text: Option<&str>, now: Micros) -> bool {
        let stored = match text.map(Terms::parse).transpose() {
            Ok(stored) => stored,
            // No replica can use it, so it is replaced.
            Err(TermsError::Malformed(_)) => None,
            Err(_) => return false,
        };
        match Terms::load(stored.as_ref(), &self.own) {
            Load::Same => {}
            Load::Replace(new) => {
                let new = new.put_in_force(stored.as_ref(), now, Replica::of_this_process());
                self.to_write = Some((generation, new.to_text()));
                self.is_proposing = !self.only_first;
                return true;
            }
            Load::Stay { stored: revision, own } => {
                let downstream = self.given.downstream.as_str();
                tracing::warn!(
                    downstream,
                    stored = revision,
                    own,
                    "the limits in force are of a higher revision than this replica's configuration: they stay"
                );
                self.warned_fingerprint = stored.as_ref().map(Terms::fingerprint);
            }
        }
        self.is_proposing = false;
        false
    }

    fn adopt(&mut self, generation: u64, text: String, now: Micros) -> Result<Adopted, Unusable> {
        let terms = Terms::parse(&text)?;
        let settings = effective(&self.given, &terms, now)?;
        let (fingerprint, is_news) = (terms.fingerprint(), self.is_another_file(&terms));
        let downstream = self.given.downstream.as_str();
        if is_news {
            let loaded_by = terms.loaded().map(|origin| origin.replica.to_string());
            tracing::warn!(
                downstream,
                generation,
                loaded_by,
                "this replica's configuration differs from the terms in force (generation {generation}); it \
                 uses those in force"
            );
        }
        for name in terms.idle(now) {
            tracing::warn!(
                downstream,
                limit = name,
                "a rate is set for a limit that does not exist any more: it has no effect"
            );
        }
        let next_end = if terms.expired(now).is_some() { Some(now) } else { terms.next_end(now) };
        let is_override = settings.limits != *terms.limits();
        if let Some(known) = &self.known {
            // A rate that has expired since was in force until now.
            let changes = known.terms.changes(known.adopted_at, &terms, now);
            if !changes.is_empty() {
                tracing::info!(downstream, generation, "limits changed: {changes}");
            }
        }
        let is_of_before = |known: &Stored| !known.is_comparable && known.terms.loaded() == terms.loaded();
        let is_comparable = !self.known.as_ref().is_some_and(is_of_before);
        self.known =
            Some(Stored { generation, text, terms, fingerprint, adopted_at: now, next_end, is_comparable });
        (self.state, self.rejected_generation) = (State::InForce, None);
        Ok(Adopted { settings: settings.policing(), is_override, has_replaced: None })
    }

    /// Whether these terms are of another file than this replica's, and the log has no warning of them yet.
    fn is_another_file(&mut self, terms: &Terms) -> bool {
        if terms.has_limits_of(&self.own) {
            self.warned_fingerprint = None;
            return false;
        }
        let fingerprint = Some(terms.fingerprint());
        !self.is_proposing && std::mem::replace(&mut self.warned_fingerprint, fingerprint) != fingerprint
    }

    /// Applies other settings of this replica: proposes their limits, and returns the settings to apply until those
    /// are in force.
    pub(crate) fn give(&mut self, given: Settings, now: Micros) -> Settings {
        self.own = given.terms();
        (self.is_proposing, self.only_first) = (true, false);
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

#[cfg(test)]
mod tests;
