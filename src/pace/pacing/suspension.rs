//! Suspension: no slots are requested, except for one trial waiter at a time.

use crate::pace::Waiter;
use crate::pace::meters::Abandoned;

/// Whether slots are requested for all waiters, or in a suspension only for one waiter at a time, which tests whether
/// the downstream can be used again.
#[derive(Debug)]
pub(super) enum Suspension<W> {
    /// Slots are requested for all waiters.
    None,
    /// Slots are requested for the trial waiter only.
    Active {
        /// The reason why slots that were requested before are abandoned.
        reason: Abandoned,
        trial: Option<W>,
    },
}

impl<W> Suspension<W> {
    pub(super) const fn is_active(&self) -> bool {
        matches!(self, Self::Active { .. })
    }

    /// Returns the reason of the suspension, if there is one.
    pub(super) const fn reason(&self) -> Option<Abandoned> {
        match self {
            Self::Active { reason, .. } => Some(*reason),
            Self::None => None,
        }
    }

    /// Begins a suspension. Returns the trial waiter of an earlier one.
    pub(super) fn begin(&mut self, reason: Abandoned) -> Option<W> {
        std::mem::replace(self, Self::Active { reason, trial: None }).into_trial()
    }

    /// Ends the suspension. Returns the trial waiter.
    pub(super) fn end(&mut self) -> Option<W> {
        std::mem::replace(self, Self::None).into_trial()
    }

    /// Makes this waiter the trial. Returns it if there is no suspension, or else the previous trial waiter.
    pub(super) const fn try_one(&mut self, waiter: W) -> Option<W> {
        match self {
            Self::Active { trial, .. } => trial.replace(waiter),
            Self::None => Some(waiter),
        }
    }

    /// Takes the trial waiter.
    pub(super) const fn take_trial(&mut self) -> Option<W> {
        match self {
            Self::Active { trial, .. } => trial.take(),
            Self::None => None,
        }
    }

    /// Drops the trial waiter if its caller is gone.
    pub(super) fn drop_stale_trial(&mut self)
    where
        W: Waiter,
    {
        if let Self::Active { trial, .. } = self {
            trial.take_if(|waiter| !waiter.is_live());
        }
    }

    pub(super) const fn has_trial(&self) -> bool {
        self.trial().is_some()
    }

    /// Returns the trial waiter.
    pub(super) const fn trial(&self) -> Option<&W> {
        match self {
            Self::Active { trial, .. } => trial.as_ref(),
            Self::None => None,
        }
    }

    fn into_trial(self) -> Option<W> {
        match self {
            Self::Active { trial, .. } => trial,
            Self::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Caller;

    fn seq(waiter: Option<Caller>) -> Option<u64> {
        waiter.map(|caller| caller.seq())
    }

    #[test]
    fn a_suspension_begins_begins_anew_and_ends() {
        let mut suspension = Suspension::None;
        assert_eq!((suspension.is_active(), suspension.reason()), (false, None));
        assert_eq!(seq(suspension.try_one(Caller::new(1))), Some(1), "all are asked for");
        assert_eq!(seq(suspension.begin(Abandoned::Stopped)), None);
        assert_eq!((suspension.is_active(), suspension.reason()), (true, Some(Abandoned::Stopped)));
        assert_eq!(seq(suspension.try_one(Caller::new(1))), None);
        assert_eq!(seq(suspension.try_one(Caller::new(2))), Some(1), "one at a time");
        assert_eq!(seq(suspension.begin(Abandoned::Paused)), Some(2), "the earlier trial is over");
        assert_eq!((suspension.has_trial(), suspension.reason()), (false, Some(Abandoned::Paused)));
        assert_eq!(seq(suspension.try_one(Caller::new(3))), None);
        assert_eq!(seq(suspension.take_trial()), Some(3));
        assert!(suspension.is_active() && !suspension.has_trial(), "it is being tried");
        assert_eq!(seq(suspension.try_one(Caller::new(4))), None);
        assert_eq!(seq(suspension.end()), Some(4));
        assert!(!suspension.is_active() && suspension.take_trial().is_none());
    }

    #[test]
    fn a_trial_that_nobody_waits_for_is_dropped() {
        let mut suspension = Suspension::None;
        suspension.begin(Abandoned::Stopped);
        suspension.try_one(Caller::new(1));
        suspension.drop_stale_trial();
        assert!(suspension.has_trial());
        suspension.try_one(Caller { is_live: false, ..Caller::new(2) });
        suspension.drop_stale_trial();
        assert!(!suspension.has_trial());
    }
}
