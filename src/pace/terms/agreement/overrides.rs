//! The limits that terms have at an instant: rates that operators set for a while end, with or without the store.

use super::Agreement;
use crate::limit::{LimitError, LimitSet};
use crate::pace::{PlanLimits, Settings};
use crate::terms::{Replica, Terms};
use crate::time::Micros;

impl Agreement {
    /// Returns the first instant at which a rate of an operator expires.
    pub(crate) fn next_end(&self) -> Option<Micros> {
        self.known.as_ref()?.next_end
    }

    /// Ends the rates of operators that have expired at the store's instant `now`; the replica that notices first tells
    /// the store. While the store is unavailable, each replica follows the remaining terms: the settings for them are
    /// returned.
    pub(crate) fn expire(&mut self, now: Micros, is_away: bool) -> Option<Settings> {
        let known = self.known.as_mut().filter(|known| known.next_end.is_some_and(|end| end <= now))?;
        known.next_end = known.terms.next_end(now);
        if let Some(left) = known.terms.expired(now) {
            let left = left.put_in_force(Some(&known.terms), now, Replica::of_this_process());
            self.to_write = Some((known.generation, left.to_text()));
        }
        let settings = effective(&self.given, &known.terms, now).ok().filter(|_| is_away);
        settings.map(Settings::policing)
    }

    /// Returns the settings without the rates that have expired at `now`, if there are any, since the store cannot be
    /// told while it is unavailable.
    pub(crate) fn without_expired(&self, now: Micros) -> Option<Settings> {
        let known = self.known.as_ref().filter(|known| known.terms.expired(now).is_some())?;
        effective(&self.given, &known.terms, now).ok().map(Settings::policing)
    }
}

/// Returns the settings under these terms. A plan that the terms do not have keeps its own limits behind the
/// downstream's.
pub(super) fn effective(given: &Settings, terms: &Terms, now: Micros) -> Result<Settings, LimitError> {
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
