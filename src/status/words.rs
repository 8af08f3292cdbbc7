//! What binds, in words for people.

use std::time::Duration;

use paced::api::Millis;
use paced::api::state::Downstream;

/// From this far ahead on, the end of a limit is worth a line: it is not the pace, but a quota that is used up.
const FAR: Millis = 2_000;

/// The reason while a pause has ended, and the replicas have not reported yet what binds since.
pub(super) const RESUMING: &str = "resuming";

/// Says why no more jobs of this downstream are released, from its other fields.
pub(super) fn text(downstream: &Downstream, now: Millis) -> String {
    let binding = &downstream.binding;
    let until = binding.until.filter(|until| *until > now);
    let end = |until: Option<Millis>| until.map_or_else(String::new, |at| format!(" until {}", instant(at)));
    match binding.reason.as_str() {
        "idle" => idle(downstream, now),
        "starting" => "the downstream starts, or restarts once its last requests have ended".to_owned(),
        "limit" => {
            let name = binding.limit.as_deref().unwrap_or_default();
            let limit = downstream.terms.limits.iter().find(|limit| limit.name == name);
            let rate = limit.map(|limit| format!(" ({})", limit.rate)).unwrap_or_default();
            match until.filter(|at| *at - now >= FAR) {
                Some(at) => format!("the limit {name}{rate} is used up until {}", instant(at)),
                None => format!("the limit {name}{rate}"),
            }
        }
        "concurrency" => "`concurrency` is reached: the API is slow for this pace".to_owned(),
        RESUMING => "resumed; the replicas continue in a moment".to_owned(),
        // The pause of the downstream is not known, and that of lanes is.
        "paused" if until.is_none() && downstream.terms.pause.is_none() && has_paused_values(downstream) => {
            format!("operators paused the lanes whose jobs wait: see `paced lane list {}`", downstream.name)
        }
        "paused" => {
            let pause = downstream.terms.pause.as_ref();
            let by = pause.and_then(|pause| pause.by.as_deref()).map(|by| format!(" by {by}"));
            let why = pause.and_then(|pause| pause.reason.as_deref()).map(|why| format!(": {why}"));
            let end = match until {
                Some(_) => end(until),
                None => " until somebody resumes".to_owned(),
            };
            format!("paused{}{end}{}", by.unwrap_or_default(), why.unwrap_or_default())
        }
        "throttled" => format!("the API throttles{}", end(until)),
        "not-due" => match until {
            Some(at) => format!("all jobs wait for a retry or a start time; the next at {}", instant(at)),
            None => "all jobs wait for a retry or a start time".to_owned(),
        },
        "store" => "the store is away".to_owned(),
        "broker" => "the queue is not consumed: RabbitMQ is away, or refuses".to_owned(),
        "unreachable" => "the API cannot be reached".to_owned(),
        "unauthorized" => "the API refuses the credentials".to_owned(),
        "terms" => "this replica cannot use the limits in the store".to_owned(),
        other => other.to_owned(),
    }
}

/// Whether operators paused values of lanes.
fn has_paused_values(downstream: &Downstream) -> bool {
    downstream.terms.values.iter().any(|set| set.weight.is_none())
}

/// Why nothing is released where no job waits in a replica: there is none, or all are parked.
fn idle(downstream: &Downstream, now: Millis) -> String {
    let queues = &downstream.queues;
    let Some(parked) = queues.parked.filter(|parked| *parked > 0) else { return "nothing to do".to_owned() };
    let limited = queues.parked_for_limits.map(|jobs| format!(", {jobs} of these for a limit or a pause"));
    let first = queues.parked_by.iter().map(|by| by.first).filter(|first| *first > now).min();
    let first = first.map(|first| format!("; the first are due before {}", instant(first)));
    let (limited, first) = (limited.unwrap_or_default(), first.unwrap_or_default());
    format!("no job may be released yet: {parked} parked in the broker{limited}{first}")
}

/// The most names in a line of the log.
const MOST_NAMED: usize = 10;

/// The first of these names, and how many more there are.
pub(crate) fn some_of(names: &[String]) -> String {
    let first = names[..names.len().min(MOST_NAMED)].join(", ");
    match names.len().saturating_sub(MOST_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// A span in words, by its two largest units, such as `1 hour 30 minutes`.
pub(crate) fn span(span: Duration) -> String {
    let units = [("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)];
    let (mut rest, mut parts) = (span.as_secs(), Vec::new());
    for (unit, seconds) in units {
        let count = rest / seconds;
        rest %= seconds;
        if count > 0 {
            parts.push(format!("{count} {unit}{}", if count == 1 { "" } else { "s" }));
        }
    }
    parts.truncate(2);
    if parts.is_empty() { format!("{} ms", span.as_millis()) } else { parts.join(" ") }
}

/// An instant in RFC 3339, in seconds.
pub(crate) fn instant(at: Millis) -> String {
    let at = jiff::Timestamp::from_millisecond(at);
    at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use paced::api::Pause;
    use paced::api::state::{Binding, Limit, ParkedBy};

    use super::*;

    #[test]
    fn spans_are_words() {
        for (millis, expected) in [
            (600_000, "10 minutes"),
            (5_400_000, "1 hour 30 minutes"),
            (86_400_000, "1 day"),
            (90_061_000, "1 day 1 hour"),
            (1_500, "1 second"),
            (250, "250 ms"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), expected);
        }
    }

    const NOW: Millis = 1_764_000_000_000;

    fn words_of(reason: &str, until: Option<Millis>, change: impl FnOnce(&mut Downstream)) -> String {
        let binding = Binding {
            reason: reason.to_owned(),
            limit: Some("quota-1".to_owned()),
            until,
            ..Binding::default()
        };
        let mut downstream = Downstream { binding, ..Downstream::default() };
        change(&mut downstream);
        text(&downstream, NOW)
    }

    #[test]
    fn what_binds_is_said_with_its_end_and_reason() {
        let limit = |downstream: &mut Downstream| {
            let rate = "10000/d".to_owned();
            downstream.terms.limits.push(Limit { name: "quota-1".to_owned(), rate, ..Limit::default() });
        };
        assert_eq!(words_of("limit", Some(NOW + 100), limit), "the limit quota-1 (10000/d)");
        assert_eq!(
            words_of("limit", Some(NOW + 60_000), limit),
            "the limit quota-1 (10000/d) is used up until 2025-11-24T16:01:00Z"
        );
        assert_eq!(words_of("idle", None, |_| ()), "nothing to do");
        let parked = words_of("idle", None, |downstream| downstream.queues.parked = Some(3));
        assert_eq!(parked, "no job may be released yet: 3 parked in the broker");
        let limited = words_of("idle", None, |downstream| {
            (downstream.queues.parked, downstream.queues.parked_for_limits) = (Some(20), Some(18));
        });
        assert_eq!(
            limited,
            "no job may be released yet: 20 parked in the broker, 18 of these for a limit or a pause"
        );
        let by = |first| ParkedBy { first, ..ParkedBy::default() };
        let later = words_of("idle", None, |downstream| {
            downstream.queues.parked = Some(3);
            downstream.queues.parked_by = vec![by(NOW + 7_200_000), by(NOW + 3_600_000)];
        });
        assert_eq!(
            later,
            "no job may be released yet: 3 parked in the broker; the first are due before 2025-11-24T17:00:00Z"
        );
        let due = words_of("idle", None, |downstream| {
            (downstream.queues.parked, downstream.queues.parked_by) = (Some(3), vec![by(NOW)]);
        });
        assert_eq!(due, parked, "they are on their way");
        let left_over = words_of("idle", None, |downstream| {
            downstream.queues.parked = Some(3);
            downstream.queues.parked_by = vec![by(NOW - 1), by(NOW + 3_600_000)];
        });
        assert_eq!(left_over, later, "one that is over hides none that is to come");
        let pause = |downstream: &mut Downstream| {
            let (by, reason) = (Some("127.0.0.1:1".to_owned()), Some("maintenance".to_owned()));
            downstream.terms.pause = Some(Pause { by, reason, ..Pause::default() });
        };
        assert_eq!(
            words_of("paused", None, pause),
            "paused by 127.0.0.1:1 until somebody resumes: maintenance"
        );
        assert_eq!(words_of("paused", Some(NOW + 1000), |_| ()), "paused until 2025-11-24T16:00:01Z");
        assert_eq!(words_of("throttled", Some(NOW - 1), |_| ()), "the API throttles");
        assert_eq!(words_of(RESUMING, None, |_| ()), "resumed; the replicas continue in a moment");
        assert_eq!(words_of("unheard-of", None, |_| ()), "unheard-of", "of a later version");
    }
}
