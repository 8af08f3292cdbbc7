//! What the outcome of an attempt means.

use super::Contact;
use crate::dispatch::retry::RetryPolicy;
use crate::job::Reason;
use crate::sink::Outcome;

pub(super) const fn contact(outcome: &Outcome) -> Contact {
    match outcome {
        Outcome::Missed => Contact::None,
        Outcome::Unreachable { .. } => Contact::Unreachable,
        Outcome::Delivered(_) => Contact::Delivered,
        // Without a status the request could not even be built.
        Outcome::Dead { status: None, .. } => Contact::None,
        Outcome::Throttled { .. }
        | Outcome::Unreadable { .. }
        | Outcome::Outdated { .. }
        | Outcome::Retry { .. }
        | Outcome::Dead { .. } => Contact::Sent,
    }
}

/// Whether the time that it took is one of the downstream: that of a refused connection is not.
pub(super) const fn is_answered(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Delivered(_) => true,
        Outcome::Missed | Outcome::Unreachable { .. } => false,
        Outcome::Throttled { .. } | Outcome::Unreadable { .. } | Outcome::Outdated { .. } => true,
        Outcome::Retry { status, .. } | Outcome::Dead { status, .. } => status.is_some(),
    }
}

/// A refusal of credentials that have been replaced since, as one that may be about the job; other outcomes as they are.
pub(super) fn about_job(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Outdated { detail, status, replaced: true, response } => {
            Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response }
        }
        outcome => outcome,
    }
}

/// The outcome as the policy judges it by its status: whether the job may be tried again.
///
/// Whether a downstream throttles is known by the sink alone: such an answer is not about the job, so that it is tried again
/// unless the policy rules its status out.
pub(super) fn judged(outcome: Outcome, retry: &RetryPolicy) -> Outcome {
    match outcome {
        Outcome::Retry { detail, status: Some(status), response, .. }
            if status >= 300 && !retry.statuses.contains(status) =>
        {
            Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response }
        }
        Outcome::Throttled { detail, status, response, .. } if retry.never.contains(status) => {
            Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response }
        }
        Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response }
            if retry.statuses.contains(status) && !retry.on_unauthorized.contains(status) =>
        {
            Outcome::Retry { reason: "status", detail, status: Some(status), after: None, response }
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dispatch::RefusalStatuses;

    fn retry(statuses: &str) -> RetryPolicy {
        RetryPolicy { statuses: statuses.parse().unwrap(), ..RetryPolicy::default() }
    }

    fn dead(status: u16) -> Outcome {
        let (reason, detail) = (Reason::Status, String::new());
        Outcome::Dead { reason, detail, status: Some(status), response: None }
    }

    fn again(status: u16) -> Outcome {
        let (after, detail) = (Some(Duration::from_secs(7)), String::new());
        Outcome::Retry { reason: "status", detail, status: Some(status), after, response: None }
    }

    fn throttled(status: u16) -> Outcome {
        Outcome::Throttled { detail: String::new(), status, after: None, response: None }
    }

    #[test]
    fn the_policy_says_which_statuses_are_tried_again() {
        let never = RetryPolicy { never: "4xx".parse().unwrap(), ..RetryPolicy::default() };
        for (outcome, policy) in
            [(again(503), &retry("404")), (throttled(429), &never), (throttled(403), &never)]
        {
            let judged = judged(outcome, policy);
            assert!(
                matches!(judged, Outcome::Dead { reason: Reason::Status, status: Some(_), .. }),
                "{judged:?}"
            );
        }
        for status in [200, 403, 429, 503] {
            assert!(
                matches!(judged(throttled(status), &retry("404")), Outcome::Throttled { .. }),
                "{status}"
            );
        }
        assert!(matches!(judged(throttled(503), &never), Outcome::Throttled { .. }));
        assert!(matches!(judged(dead(404), &retry("404")), Outcome::Retry { status: Some(404), .. }));
        assert!(matches!(judged(dead(405), &retry("404")), Outcome::Dead { status: Some(405), .. }));
        assert!(matches!(judged(again(503), &retry("503")), Outcome::Retry { after: Some(_), .. }));
    }

    #[test]
    fn what_is_no_answer_is_left_as_it_is() {
        let (reason, detail) = ("timeout", String::new());
        let timed_out = Outcome::Retry { reason, detail, status: None, after: None, response: None };
        assert!(matches!(judged(timed_out, &retry("404")), Outcome::Retry { status: None, .. }));
        let detail = String::new();
        let malformed =
            Outcome::Dead { reason: Reason::MalformedHeader, detail, status: None, response: None };
        assert!(matches!(judged(malformed, &retry("404")), Outcome::Dead { status: None, .. }));
    }

    #[test]
    fn refused_credentials_are_not_tried_again_as_a_status() {
        let retry = RetryPolicy { on_unauthorized: RefusalStatuses::default(), ..retry("4xx") };
        assert!(matches!(judged(dead(401), &retry), Outcome::Dead { .. }));
        assert!(matches!(judged(dead(403), &retry), Outcome::Retry { .. }));
    }
}
