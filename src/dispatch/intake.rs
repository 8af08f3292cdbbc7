//! Turns a message into a job, or into a dead letter. A malformed message causes no panic, and blocks no other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::arrivals::Arrivals;
use super::entry::{Age, Entry, Hold};
use super::retry::Attempts;
use super::source::{DeadLetter, Delivery, ParkReason, Report, Stay, Ticket};
use super::unsettled::Track;
use crate::job::{self, Cost, CostSource, Message, Reason, Rejection, Rules, shown_instant};
use crate::limit::{JobCost, Limit, LimitSet};
use crate::pace::{LaneId, SlotRequest};
use crate::time::{Micros, wall_now};

/// How far ahead a `paced-not-before` may lie.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 86_400);

/// Takes in messages by the rules of the downstream.
pub(super) struct Intake {
    pub(super) rules: Rules,
    /// The limits in force: those of the downstream, and then those of the jobs of each plan.
    pub(super) limits: Vec<LimitSet>,
    /// The age at which a job that has not been tried is dead-lettered.
    pub(super) max_wait: Option<Duration>,
    arrivals: Arrivals,
    /// Whether the log has a warning that lanes have no effect.
    pub(super) has_warned_of_lanes: bool,
}

/// The result of taking in a message.
pub(super) enum Taken {
    /// The job may be released as soon as there is a slot.
    Ready(Box<Entry>),
    /// The job may be released from this instant on.
    Later(Instant, Box<Entry>),
    /// Its deadline has passed.
    Expired(Box<Entry>, DeadLetter),
    /// The message is no job; the flag says whether a producer waits for the outcome.
    Dead(Box<dyn Ticket>, DeadLetter, bool),
}

impl Intake {
    pub(super) fn new(rules: Rules, max_wait: Option<Duration>) -> Self {
        Self {
            rules,
            limits: Vec::new(),
            max_wait,
            arrivals: Arrivals::default(),
            has_warned_of_lanes: false,
        }
    }

    /// The position behind all jobs that arrive within `span` from now.
    pub(super) fn position_behind(&mut self, span: Duration) -> u64 {
        self.arrivals.position_at(wall_now(), span)
    }

    /// Checks that the job may have its cost under the rules, and that the limits in force can hold it, also where it
    /// was decoded for other limits: a request that costs more than they hold would fail again and again, and block
    /// all others. The error is a text for its producer.
    pub(super) fn fits(&self, entry: &Entry) -> Result<(), String> {
        let plan = entry.job.plan;
        self.rules.fits(plan, &entry.job.cost)?;
        let limits = plan.and_then(|plan| self.limits.get(plan + 1)).or(self.limits.first());
        limits.and_then(|limits| entry.request.cost.unfit(limits)).map_or(Ok(()), |(limit, cost)| {
            let (name, most) = (limit.name(), limit.max_cost());
            Err(format!(
                "its cost for the limit `{name}` is {cost}, and the limit holds at most {most}: split the job"
            ))
        })
    }

    /// Takes in a message. A job that has been tried is not tried again from the age `max_age` on.
    pub(super) fn take(&mut self, delivery: Delivery, max_age: Option<Duration>) -> Taken {
        let Self { rules, max_wait, arrivals, .. } = self;
        let Delivery { mut message, ticket, stay } = delivery;
        add_costs(&mut message, &*ticket, rules);
        let job = match job::decode(&message, rules) {
            Ok(job) => job,
            Err(Rejection { reason, detail }) => {
                let letter = DeadLetter::new(reason, detail, Report::UNSENT);
                return Taken::Dead(ticket, letter, wants_reply(&message, rules));
            }
        };
        let now = wall_now();
        if let Some(detail) = too_far(job.times.not_before, now) {
            let letter = DeadLetter::new(Reason::MalformedHeader, detail, Report::UNSENT);
            return Taken::Dead(ticket, letter, wants_reply(&message, rules));
        }
        let deadline = job.times.deadline.filter(|deadline| *deadline < now);
        // A wait for a limit is no wait of the job's own: it may be over sooner.
        let own = stay.as_ref().filter(|stay| stay.reason != ParkReason::Limit).map(|stay| stay.until);
        let not_before = job.times.not_before.max(own).filter(|start| *start > now);
        let since = Instant::now();
        let lane = LaneId::of_plan(job.plan);
        let (first_seen, mut seq) = arrivals.next(stay.as_ref(), now);
        if stay.as_ref().is_some_and(|stay| stay.throttled > 0) {
            // It goes behind the others.
            seq = arrivals.position_at(now, Duration::ZERO);
        }
        let cost = job_cost(&job.cost);
        let request =
            SlotRequest { lane, priority: job.priority, cost, seq, since, end: None, is_quiet: false };
        // A `timestamp` in the future says nothing about the age of a job.
        let made_at = job.times.made_at.filter(|made_at| *made_at <= now).unwrap_or(first_seen);
        let born = job.times.not_before.map_or(made_at, |start| start.max(made_at));
        let at = |age: Duration| born.plus(age);
        let age = Age { first_seen, born, give_up: max_wait.map(at), too_old: max_age.map(at) };
        let (key, job) = (Arc::clone(&job.lane.parts), Arc::new(job));
        let has_own_id = message.message_id.is_some();
        let attempts = stay.as_ref().map(attempts).unwrap_or_default();
        let parked_for =
            stay.as_ref().filter(|stay| stay.reason != ParkReason::Limit || not_before.is_none());
        let reason = parked_for.map_or(ParkReason::NotBefore, |stay| stay.reason);
        let expected = stay.as_ref().and_then(Stay::expected).filter(|(until, _)| *until > now);
        let expected = expected.map(|(until, limits)| (arrivals.due(until, (now, since)), limits.to_owned()));
        let parked_until = stay.as_ref().map(|stay| stay.until);
        let hold = Hold { since, may_park: true, reason, expected, parked_until };
        let track = Track::default();
        let mut entry = Box::new(Entry { job, has_own_id, ticket, age, hold, attempts, request, track, key });
        entry.renew_end();
        let report = Report { attempts: attempts.sent, ..Report::UNSENT };
        match (deadline, not_before) {
            (Some(deadline), _) => Taken::Expired(entry, expired(deadline, report)),
            (None, Some(start)) => Taken::Later(arrivals.due(start, (now, since)), entry),
            (None, None) => Taken::Ready(entry),
        }
    }
}

/// Adds the headers by which limits count: a source passes on only the headers that have a meaning for every job.
fn add_costs(message: &mut Message, ticket: &dyn Ticket, rules: &Rules) {
    for rule in &rules.costs {
        let CostSource::Header(name) = &rule.source else { continue };
        if message.headers.iter().all(|(known, _)| known != name)
            && let Some(value) = ticket.header(name)
        {
            message.headers.push((name.clone(), value));
        }
    }
}

/// The cost as the engine counts it. The configuration has no more limits with costs of their own than fit.
#[must_use]
pub fn job_cost(cost: &Cost) -> JobCost {
    let own = cost.own.iter();
    own.fold(JobCost::each(cost.units), |all, (limit, units)| all.with(limit, *units).unwrap_or(all))
}

/// The attempts that were kept while the job was parked.
fn attempts(stay: &Stay) -> Attempts {
    let Stay { attempts: sent, throttled, refused, unreadable, .. } = *stay;
    // A header may have any value, but no more attempts can have failed than were made.
    let throttled = throttled.min(sent);
    let refused = refused.min(sent - throttled);
    // If other jobs succeed from now on, the next throttling is about this job.
    let throttled_at = (throttled > 0).then(Instant::now);
    // The copy does not say how often the job was throttled alone, or whether an attempt had no answer. Both are
    // assumed.
    let (alone, is_unanswered) = (throttled, sent > throttled + refused);
    Attempts {
        sent,
        throttled,
        throttled_at,
        alone,
        is_unanswered,
        refused,
        unreadable,
        ..Attempts::default()
    }
}

/// What is wrong with a `paced-not-before` that lies too far in the future, if it does.
#[must_use]
pub fn too_far(not_before: Option<Micros>, now: Micros) -> Option<String> {
    let start = not_before.filter(|start| start.since(now) > LONGEST_WAIT)?;
    let (days, start) = (LONGEST_WAIT.as_secs() / 86_400, shown_instant(start.0.into()));
    Some(format!("`paced-not-before` {start} is more than {days} days ahead; send an earlier time"))
}

/// Whether a producer waits for the outcome of a message that is no job, in a queue that a reply may go to.
fn wants_reply(message: &Message, rules: &Rules) -> bool {
    let queue = message.reply_to.as_deref().filter(|queue| !queue.is_empty());
    queue.is_some_and(|queue| rules.reply.permit(queue).is_ok())
}

/// The dead letter of a job whose `paced-deadline` has passed.
pub(super) fn expired(deadline: Micros, report: Report) -> DeadLetter {
    let deadline = match deadline.0 {
        // 0 means now, and all instants before 1970 are held as it.
        0 => "0, or one before 1970,".to_owned(),
        micros => shown_instant(micros.into()),
    };
    let detail = format!("paced-deadline {deadline} has passed");
    DeadLetter::new(Reason::Expired, detail, report)
}

/// The dead letter of a job that waits longer than `max_wait`. A job that is published after `retry_after` may have a
/// shorter wait.
pub(super) fn queue_full(max_wait: Duration, retry_after: Duration, report: Report) -> DeadLetter {
    let detail = format!(
        "it would wait for a slot for longer than max_wait ({max_wait:?}); try again in {} s",
        retry_after.as_secs()
    );
    DeadLetter::new(Reason::QueueFull, detail, report)
}

/// The dead letter of a job that is too old to be tried again.
pub(super) fn too_old(max_age: Duration, report: Report) -> DeadLetter {
    let detail = format!("older than retry.max_age ({max_age:?}) before it could be tried again");
    DeadLetter::new(Reason::AttemptsExhausted, detail, report)
}

/// The dead letter of a job that the limits allow only at `earliest`.
pub(super) fn rejected(limit: Option<&Limit>, earliest: Micros, report: Report) -> DeadLetter {
    let name = limit.map_or("", Limit::name);
    let detail = match jiff::Timestamp::from_microsecond(earliest.0) {
        Ok(at) if earliest < Micros::MAX => {
            format!("the limit `{name}` is used up; it allows this job from {at:.6} on")
        }
        _ => format!("the limit `{name}` is used up"),
    };
    DeadLetter::new(Reason::Rejected, detail, report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_of_the_attempts_of_a_parked_job_is_taken_to_be_for_it() {
        let kept = |sent, throttled| {
            attempts(&Stay {
                until: Micros(0),
                reason: ParkReason::Retry,
                attempts: sent,
                throttled,
                refused: 1,
                unreadable: 0,
                first_seen: Micros(0),
                assigned_id: None,
                versions: None,
            })
        };
        let failed = kept(5, 3);
        assert_eq!((failed.failed(), failed.alone, failed.is_unanswered), (1, 3, true));
        let throttled = kept(5, 4);
        assert_eq!((throttled.failed(), throttled.alone, throttled.is_unanswered), (0, 4, false));
    }
}
