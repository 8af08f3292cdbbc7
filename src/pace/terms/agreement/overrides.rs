//! The limits that terms have at an instant: rates that operators set for a while end, with or without the store.

use super::Agreement;
use super::effective::effective;
use crate::pace::Settings;
use crate::terms::Replica;
use crate::time::Micros;

impl Agreement {
    /// Returns the first instant at which a rate of an operator expires.
    pub(crate) fn next_end(&self) -> Option<Micros> {
        self.known.as_ref()?.next_end
    }

    /// Ends the rates of operators that have expired at the store's instant `now`. The replica that notices first
    /// reports that to the store. While the store is unavailable, each replica follows the remaining terms: the
    /// settings for them are returned.
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

    /// Returns the settings without the rates that have expired at `now`, if there are any, since no report reaches
    /// the store while it is unavailable.
    pub(crate) fn without_expired(&self, now: Micros) -> Option<Settings> {
        let known = self.known.as_ref().filter(|known| known.terms.expired(now).is_some())?;
        effective(&self.given, &known.terms, now).ok().map(Settings::policing)
    }
}
