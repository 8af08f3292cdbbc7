//! What all replicas of a downstream hold in common: the limits in force, and pauses.

mod agreement;
mod pauses;
mod record;

use std::sync::Arc;

use tokio::time::Instant;

pub(crate) use agreement::{Adopted, Agreement, Wanted};
pub(crate) use pauses::{PauseChange, Pauses};
pub(crate) use record::{Purpose, RecordCalls, RecordReply};

use super::Settings;
use crate::store::Store;

/// The owner of what one replica knows of the downstream's record.
#[derive(Debug)]
pub(crate) struct SharedTerms {
    /// Which limits are in force.
    pub(crate) agreement: Agreement,
    /// What pauses there are.
    pub(crate) pauses: Pauses,
    /// The calls about both.
    pub(crate) calls: RecordCalls,
}

/// What the others know that matters for calls about the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// The store is away: nothing is asked of it but whether it is there.
    pub(crate) is_away: bool,
    /// Slots are asked for, now or once a back-off is over, so that the answers tell what holds.
    pub(crate) are_slots_asked_for: bool,
    /// Somebody waits, or holds a slot.
    pub(crate) somebody_waits: bool,
}

impl SharedTerms {
    pub(crate) fn new(given: Settings, now: Instant) -> Self {
        Self { agreement: Agreement::new(given), pauses: Pauses::default(), calls: RecordCalls::new(now) }
    }

    /// Tells the store what it does not know yet, or reads what holds now, if there is reason to. What it has lost comes
    /// first, then a pause, then terms.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        circumstances: Circumstances,
        (store, downstream): (&Arc<dyn Store>, &str),
    ) {
        if self.calls.is_calling() || circumstances.is_away {
            return;
        }
        if let Some(purpose) = self.purpose(now, circumstances) {
            self.calls.start(Arc::clone(store), downstream.to_owned(), purpose, now);
        }
    }

    fn purpose(&self, now: Instant, circumstances: Circumstances) -> Option<Purpose> {
        let may_call = self.calls.may_call(now);
        if may_call && self.agreement.is_lost() {
            return Some(Purpose::Recall(self.pauses.memory(self.agreement.memory())));
        }
        if let Some(end) = self.pauses.to_tell(now) {
            return Some(Purpose::Penalize(end));
        }
        match self.agreement.wanted().filter(|_| may_call) {
            Some(Wanted::Write { of, text }) => return Some(Purpose::Write { of, text }),
            Some(Wanted::Read) => return Some(Purpose::Read),
            None => {}
        }
        self.read_due(circumstances).filter(|due| *due <= now).map(|_| Purpose::Read)
    }

    /// When [`SharedTerms::tick`] has something to do.
    pub(crate) fn wake_at(&self, circumstances: Circumstances) -> Option<Instant> {
        if self.calls.is_calling() || circumstances.is_away {
            return None;
        }
        let wants = self.agreement.is_lost() || self.agreement.wanted().is_some();
        let wanted = wants.then(|| self.calls.next_at());
        [wanted, self.pauses.tell_at(), self.read_due(circumstances)].into_iter().flatten().min()
    }

    fn read_due(&self, circumstances: Circumstances) -> Option<Instant> {
        self.calls.read_due(circumstances.are_slots_asked_for, circumstances.somebody_waits)
    }
}
