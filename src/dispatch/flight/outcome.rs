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

/// Whether the time of the attempt is the downstream's response time: that of a refused connection is not.
pub(super) const fn is_answered(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Delivered(_) => true,
        Outcome::Missed | Outcome::Unreachable { .. } => false,
        Outcome::Throttled { .. } | Outcome::Unreadable { .. } => true,
        Outcome::Outdated { .. } | Outcome::Unauthorized { .. } => true,
        Outcome::Retry { status, .. } | Outcome::Dead { status, .. } => status.is_some(),
    }
}

/// Converts a refusal of credentials that have been replaced since into the outcome that its status means if the
/// credentials are not at fault. Other outcomes stay as they are.
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

/// The outcome of an attempt that went to the host `peer`, a `HOST:PORT`: an error without an answer names it.
pub(super) fn naming(outcome: Outcome, peer: Option<&str>) -> Outcome {
    let Some(peer) = peer else { return outcome };
    let named = |detail: String| if detail.contains(peer) { detail } else { format!("{peer}: {detail}") };
    match outcome {
        Outcome::Unreachable { detail } => Outcome::Unreachable { detail: named(detail) },
        Outcome::Unreadable { detail } => Outcome::Unreadable { detail: named(detail) },
        Outcome::Retry { reason, detail, status: None, after, response } => {
            Outcome::Retry { reason, detail: named(detail), status: None, after, response }
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_an_answer_names_the_host() {
        let detail = |outcome| match naming(outcome, Some("proxy:3128")) {
            Outcome::Unreachable { detail }
            | Outcome::Unreadable { detail }
            | Outcome::Retry { detail, .. }
            | Outcome::Dead { detail, .. } => detail,
            other => panic!("{other:?}"),
        };
        let retry = |status| Outcome::Retry {
            reason: "timeout",
            detail: "no answer within 30s".to_owned(),
            status,
            after: None,
            response: None,
        };
        assert_eq!(detail(retry(None)), "proxy:3128: no answer within 30s");
        assert_eq!(detail(retry(Some(503))), "no answer within 30s", "it has answered");
        let refused = Outcome::Unreachable { detail: "connection refused".to_owned() };
        assert_eq!(detail(refused), "proxy:3128: connection refused");
        let tunnel = "the proxy proxy:3128 answers 502";
        assert_eq!(detail(Outcome::Unreachable { detail: tunnel.to_owned() }), tunnel);
        assert_eq!(detail(Outcome::Unreadable { detail: "no HTTP".to_owned() }), "proxy:3128: no HTTP");
        let built = Outcome::Dead {
            reason: Reason::ForbiddenPath,
            detail: "no path".to_owned(),
            status: None,
            response: None,
        };
        assert_eq!(detail(built), "no path");
    }
}
