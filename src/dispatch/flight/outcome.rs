//! What the outcome of an attempt means.

use crate::dispatch::health::Contact;
use crate::job::Reason;
use crate::sink::{Meaning, Outcome};

pub(super) const fn contact(outcome: &Outcome) -> Contact {
    match outcome {
        Outcome::Missed => Contact::None,
        Outcome::Unreachable { .. } => Contact::Unreachable,
        Outcome::Delivered(_) => Contact::Delivered,
        // Without a status the request could not even be built.
        Outcome::Dead { status: None, .. } => Contact::None,
        Outcome::Throttled { .. } => Contact::Throttled,
        Outcome::Unreadable { .. }
        | Outcome::Outdated { .. }
        | Outcome::Unauthorized { .. }
        | Outcome::Retry { .. }
        | Outcome::Dead { .. } => Contact::Sent,
    }
}

/// Whether the time that it took is one of the downstream: that of a refused connection is not.
pub(super) const fn is_answered(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Delivered(_) => true,
        Outcome::Missed | Outcome::Unreachable { .. } => false,
        Outcome::Throttled { .. } | Outcome::Unreadable { .. } => true,
        Outcome::Outdated { .. } | Outcome::Unauthorized { .. } => true,
        Outcome::Retry { status, .. } | Outcome::Dead { status, .. } => status.is_some(),
    }
}

/// A refusal of credentials that have been replaced since, as the answer that it is if it is about the job. Other outcomes
/// stay as they are.
pub(super) fn about_job(outcome: Outcome) -> Outcome {
    let Outcome::Outdated { detail, status, replaced: true, is, response } = outcome else { return outcome };
    match is {
        Meaning::Unauthorized => Outcome::Unauthorized { detail, status, response },
        Meaning::Throttled => Outcome::Throttled { detail, status, after: None, is_final: false, response },
        Meaning::Retry => {
            Outcome::Retry { reason: "status", detail, status: Some(status), after: None, response }
        }
        Meaning::Delivered | Meaning::Dead => {
            Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response }
        }
    }
}
