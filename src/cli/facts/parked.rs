//! The parked jobs of a downstream, by what they wait for and until when.

use paced::api::state::{Downstream, ParkedBy};

use super::{Fact, at};

/// A line for each reason, and one for the jobs whose reason is not known.
pub(super) fn parked(downstream: &Downstream) -> Vec<Fact> {
    let by = &downstream.queues.parked_by;
    let mut facts: Vec<Fact> = by.iter().map(|by| ("parked", line(by))).collect();
    let known = by.iter().fold(0_i64, |sum, by| sum.saturating_add(by.jobs));
    let rest = downstream.queues.parked.unwrap_or_default().saturating_sub(known);
    if !by.is_empty() && rest > 0 {
        facts.push(("parked", format!("{rest} of which it is not known what they wait for")));
    }
    facts
}

fn line(ParkedBy { reason, jobs, first, first_jobs, last }: &ParkedBy) -> String {
    let what = match reason.as_str() {
        "not-before" => "a time of their own",
        "retry" => "another attempt",
        "restart" => "another attempt, since a replica stopped",
        "limit" => "a limit or a pause",
        other => other,
    };
    let when = match first == last {
        true => format!("they are due before {}", at(*last)),
        false => format!("{first_jobs} are due before {}, and the last before {}", at(*first), at(*last)),
    };
    format!("{jobs} for {what}: {when}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parked_jobs_are_shown_by_their_reason() {
        let mut downstream = Downstream::default();
        downstream.queues.parked = Some(20);
        assert!(parked(&downstream).is_empty(), "nothing more is known of them");
        let by = |reason: &str, jobs, first_jobs, last| ParkedBy {
            reason: reason.to_owned(),
            jobs,
            first: 3_600_000,
            first_jobs,
            last,
        };
        downstream.queues.parked_by =
            vec![by("not-before", 5, 2, 90_000_000), by("limit", 13, 13, 3_600_000)];
        let lines = |downstream: &Downstream| {
            parked(downstream).into_iter().map(|(_, text)| text).collect::<Vec<String>>()
        };
        assert_eq!(
            lines(&downstream),
            [
                "5 for a time of their own: 2 are due before 1970-01-01 01:00:00 UTC, and the last before 1970-01-02 01:00:00 UTC",
                "13 for a limit or a pause: they are due before 1970-01-01 01:00:00 UTC",
                "2 of which it is not known what they wait for",
            ]
        );
        downstream.queues.parked = Some(18);
        assert_eq!(lines(&downstream).len(), 2);
        downstream.queues.parked_by = vec![by("of a later version", 1, 1, 3_600_000)];
        assert!(lines(&downstream)[0].starts_with("1 for of a later version: "));
    }
}
