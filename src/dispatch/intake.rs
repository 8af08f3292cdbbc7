//! Turns a message into a job, or into a dead letter: a malformed message never panics and never blocks.

use std::sync::Arc;

use tokio::time::Instant;

use super::entry::Entry;
use super::retry::Attempts;
use super::source::{DeadLetter, Delivery, Report, Ticket};
use crate::job::{self, Message, Reason, Rejection, Rules};
use crate::limit::Limit;
use crate::pace::{LaneId, SlotRequest};
use crate::time::{Micros, wall_now};

/// The result of taking in a message.
pub(super) enum Intake {
    /// The job may be released as soon as there is a slot.
    Ready(Entry),
    /// The job may be released from this instant on.
    Later(Instant, Entry),
    /// Its deadline has passed.
    Expired(Entry, DeadLetter),
    /// The message is no job; the flag says whether a producer waits for the outcome.
    Dead(Box<dyn Ticket>, DeadLetter, bool),
}

pub(super) fn intake(delivery: Delivery, rules: &Rules, seq: u64) -> Intake {
    let Delivery { message, ticket } = delivery;
    let job = match job::decode(&message, rules) {
        Ok(job) => job,
        Err(Rejection { reason, detail }) => {
            let letter = DeadLetter { reason, detail, report: Report::UNSENT };
            return Intake::Dead(ticket, letter, wants_reply(&message, rules));
        }
    };
    let now = wall_now();
    let deadline = job.deadline.filter(|deadline| *deadline < now);
    let not_before = job.not_before.filter(|start| *start > now);
    let since = Instant::now();
    let lane = LaneId::of_plan(job.plan);
    let request = SlotRequest { lane, priority: job.priority, cost: job.cost, seq, since };
    let (job, has_own_id) = (Arc::new(job), message.message_id.is_some());
    let entry = Entry { job, has_own_id, ticket, attempts: Attempts::default(), request };
    match (deadline, not_before) {
        (Some(deadline), _) => Intake::Expired(entry, expired(deadline, Report::UNSENT)),
        (None, Some(start)) => Intake::Later(since + start.since(now), entry),
        (None, None) => Intake::Ready(entry),
    }
}

/// Whether a producer waits for the outcome of a message that is no job, in a queue that a reply may go to.
fn wants_reply(message: &Message, rules: &Rules) -> bool {
    let queue = message.reply_to.as_deref().filter(|queue| !queue.is_empty());
    queue.is_some_and(|queue| rules.reply.permit(queue).is_ok())
}

/// The dead letter of a job whose `paced-deadline` has passed.
pub(super) fn expired(deadline: Micros, report: Report) -> DeadLetter {
    let detail = format!("paced-deadline {} ms has passed", deadline.0 / 1000);
    DeadLetter { reason: Reason::Expired, detail, report }
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
    DeadLetter { reason: Reason::Rejected, detail, report }
}
