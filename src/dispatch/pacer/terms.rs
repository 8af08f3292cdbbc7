//! The terms in force: which limits count, as all replicas agree on them.

use tokio::time::Instant;

use super::tend::What;
use super::{Pacer, prepared};
use crate::dispatch::Options;
use crate::limit::{LimitError, LimitSet};
use crate::store::Status;
use crate::terms::{Load, Terms, TermsError};
use crate::time::{Deadline, Micros};

/// What one replica knows of the terms in force, and what it wants of them.
#[derive(Debug)]
pub(super) struct Accord {
    /// What this replica was given: the limits are its file's.
    given: Options,
    own: Terms,
    /// The terms that it goes by; none before the store told.
    in_force: Option<InForce>,
    /// Its own are still to be proposed.
    proposing: bool,
    /// The store has others than those in force here.
    outdated: bool,
    /// The store has none, or older ones: it lost them.
    lost: bool,
    /// To become the store's, if its generation is still this one.
    to_write: Option<(u64, String)>,
    /// The generation that cannot be gone by here.
    unusable: Option<u64>,
    /// The generation of which it was said that the file differs.
    said: u64,
}

#[derive(Debug)]
struct InForce {
    generation: u64,
    text: String,
    terms: Terms,
    /// When a rate that an operator set is over.
    over: Option<Micros>,
}

impl Accord {
    pub(super) fn new(given: Options) -> Self {
        Self {
            own: given.terms(),
            given,
            in_force: None,
            proposing: true,
            outdated: false,
            lost: false,
            to_write: None,
            unusable: None,
            said: 0,
        }
    }

    /// The generation to ask for slots under; none while it is not known which terms are in force.
    pub(super) fn settled(&self) -> Option<u64> {
        let open = self.outdated || self.lost || self.unusable.is_some();
        self.in_force.as_ref().filter(|_| !open).map(|terms| terms.generation)
    }

    /// Whether there are terms that nobody can go by here.
    pub(super) const fn is_unusable(&self) -> bool {
        self.unusable.is_some()
    }

    /// Generation and text, as they are known here.
    pub(super) fn memory(&self) -> Option<(u64, String)> {
        self.in_force.as_ref().map(|terms| (terms.generation, terms.text.clone()))
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.lost
    }

    /// The store has lost the record.
    pub(super) const fn lose(&mut self) {
        self.lost = true;
    }

    /// What the store has need not be what it had.
    pub(super) const fn doubt(&mut self) {
        self.outdated = self.in_force.is_some();
    }

    /// The store was reminded.
    pub(super) const fn recalled(&mut self) {
        self.lost = false;
    }

    /// What is to be asked or told next to find out which terms are in force.
    pub(super) fn wants(&self) -> Option<What> {
        if let Some((of, text)) = &self.to_write {
            return Some(What::Terms { of: *of, text: text.clone() });
        }
        let look = self.outdated || (self.proposing && self.unusable.is_none());
        look.then_some(What::Look)
    }

    /// Learns a generation from an answer without terms.
    pub(super) fn hear(&mut self, generation: u64) {
        let Some(known) = self.in_force.as_ref().map(|terms| terms.generation) else { return };
        self.lost |= generation < known;
        self.outdated |= generation > known;
    }
}

/// The limits of these terms, for the plans that there are here. A plan that the terms do not have keeps
/// its own limits behind the downstream's.
fn limits_of(given: &Options, terms: &Terms, now: Micros) -> Result<(LimitSet, Vec<LimitSet>), LimitError> {
    let (limits, mut plans) = terms.effective(now);
    let named = given.rules.plans.iter().map(|plan| &plan.name).zip(&given.plans);
    let sets = named.map(|(name, own)| match plans.remove(name) {
        Some(set) => Ok(set),
        None => {
            let own = own.listed().skip(given.limits.given());
            LimitSet::new(limits.listed().chain(own).cloned().collect())
        }
    });
    let sets = sets.collect::<Result<_, _>>()?;
    Ok((limits, sets))
}

/// Why the terms in the store cannot be gone by here.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Terms(#[from] TermsError),
    #[error(
        "with the plans of this replica's configuration its limits are none: {0}; restart it with the others'"
    )]
    Limits(#[from] LimitError),
}

impl Pacer {
    /// Goes by what the store says of the terms in force, or proposes others.
    pub(super) fn agree(&mut self, status: Status, text: Option<String>, now: Micros) {
        let generation = status.generation;
        let accord = &mut self.accord;
        let known = accord.in_force.as_ref();
        if known.is_some_and(|known| generation < known.generation || text.is_none()) {
            accord.lost = true;
            return;
        }
        accord.to_write = accord.to_write.take().filter(|(of, _)| *of == generation);
        if text.is_none() && accord.in_force.is_none() {
            // What could not be gone by is gone.
            (accord.proposing, accord.unusable) = (true, None);
        }
        if accord.proposing && self.propose(generation, text.as_deref()) {
            return;
        }
        let Some(text) = text else { return };
        let known = self.accord.in_force.as_ref();
        if known.is_some_and(|known| known.generation == generation && known.text == text) {
            (self.accord.outdated, self.accord.unusable) = (false, None);
            return;
        }
        if let Err(error) = self.adopt(generation, text, now) {
            let accord = &mut self.accord;
            accord.outdated = false;
            if accord.unusable.replace(generation) != Some(generation) {
                let downstream = self.settings.downstream.as_str();
                tracing::error!(downstream, generation, %error, "nothing is released: no terms to go by");
            }
        }
    }

    /// Proposes the file's limits where they are others than those in force; false where those in force
    /// stay, or cannot be judged.
    fn propose(&mut self, generation: u64, text: Option<&str>) -> bool {
        let accord = &mut self.accord;
        let stored = match text.map(Terms::parse).transpose() {
            Ok(stored) => stored,
            // Nobody can go by it, so it is replaced.
            Err(TermsError::Malformed(_)) => None,
            Err(_) => return false,
        };
        match Terms::load(stored.as_ref(), &accord.own) {
            Load::Same => {}
            Load::Replace(new) => {
                accord.to_write = Some((generation, new.to_text()));
                return true;
            }
            Load::Stay { stored, own } => {
                let downstream = self.settings.downstream.as_str();
                tracing::warn!(
                    downstream,
                    stored,
                    own,
                    "the limits in force are of a higher revision than this replica's configuration: they stay"
                );
                accord.said = generation;
            }
        }
        accord.proposing = false;
        false
    }

    fn adopt(&mut self, generation: u64, text: String, now: Micros) -> Result<(), Unusable> {
        let terms = Terms::parse(&text)?;
        let (limits, plans) = limits_of(&self.accord.given, &terms, now)?;
        let accord = &mut self.accord;
        let downstream = self.settings.downstream.as_str();
        if !terms.has_limits_of(&accord.own) && !accord.proposing && accord.said < generation {
            accord.said = generation;
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
        let over = if terms.expired(now).is_some() { Some(now) } else { terms.next_end(now) };
        let (set, rate) = (limits != *terms.limits(), limits.rate().per_second());
        if accord.in_force.is_some() {
            tracing::info!(downstream, generation, rate, "other terms are in force: so many jobs a second");
        }
        accord.in_force = Some(InForce { generation, text, terms, over });
        (accord.outdated, accord.unusable) = (false, None);
        self.gear.meters.rate_from(rate, set);
        let options = Options { limits, plans, ..accord.given.clone() };
        self.go_by(options);
        Ok(())
    }

    /// A rate that an operator set is over: says so to all, whoever notices first.
    pub(super) fn expire(&mut self) {
        let Some(over) = self.accord.in_force.as_ref().and_then(|terms| terms.over) else { return };
        let Some(now) = self.slots.store_now().filter(|now| *now >= over) else { return };
        let accord = &mut self.accord;
        if let Some(in_force) = &mut accord.in_force {
            in_force.over = in_force.terms.next_end(now);
            let left = in_force.terms.expired(now);
            accord.to_write =
                left.map(|left| (in_force.generation, left.to_text())).or(accord.to_write.take());
            let limits = limits_of(&accord.given, &in_force.terms, now);
            if let (true, Ok((limits, plans))) = (self.is_away(), limits) {
                // All notice for themselves: nobody can be told.
                let given = self.accord.given.clone();
                self.go_by(Options { limits, plans, ..given });
            }
        }
    }

    /// Goes by the terms without the rates that are over: while the store is away nobody can be told.
    pub(super) fn end_rates(&mut self) {
        let Some(now) = self.slots.store_now() else { return };
        let in_force = self.accord.in_force.as_ref();
        let Some(known) = in_force.filter(|known| known.terms.expired(now).is_some()) else { return };
        if let Ok((limits, plans)) = limits_of(&self.accord.given, &known.terms, now) {
            let given = self.accord.given.clone();
            self.go_by(Options { limits, plans, ..given });
        }
    }

    /// When it will be.
    pub(super) fn expire_due(&self) -> Option<Instant> {
        let over = self.accord.in_force.as_ref()?.over?;
        self.slots.hold(over).map(Deadline::instant)
    }

    /// Other options were given: proposes their limits, and goes by all else of them at once.
    pub(super) fn given(&mut self, given: Options) {
        self.accord.own = given.terms();
        (self.accord.proposing, self.accord.unusable) = (true, None);
        self.tend_at = Instant::now();
        let (limits, plans) = (self.accord.given.limits.clone(), self.accord.given.plans.clone());
        let now = self.slots.store_now().unwrap_or_default();
        let in_force = self.accord.in_force.as_ref();
        let (limits, plans) = match in_force.map(|known| limits_of(&given, &known.terms, now)) {
            Some(Ok(in_force)) => in_force,
            _ => (limits, plans),
        };
        self.accord.given = given.clone();
        self.go_by(Options { limits, plans, ..given });
    }

    fn go_by(&mut self, options: Options) {
        self.apply(prepared(options));
    }
}
