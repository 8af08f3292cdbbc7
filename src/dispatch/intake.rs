//! From a message to a job, or to the dead letters: a bad message never panics and never blocks.

use std::sync::Arc;

use tokio::time::Instant;

use super::entry::Entry;
use super::retry::Tries;
use super::source::{DeadLetter, Delivery, Report, Ticket};
use crate::job::{self, Message, Reason, Rejection, Rules};
use crate::limit::Limit;
use crate::time::{Micros, wall_now};

/// What became of a message.
pub(super) enum Intake {
    /// It may go as soon as there is a slot.
    Ready(Entry),
    /// It may go from then on.
    Later(Instant, Entry),
    /// Its deadline has passed.
    Expired(Entry, DeadLetter),
    /// It never may; and whether somebody waits for the outcome.
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
    let (job, has_own_id) = (Arc::new(job), message.message_id.is_some());
    let entry = Entry { job, has_own_id, ticket, tries: Tries::default(), since, seq };
    match (deadline, not_before) {
        (Some(deadline), _) => Intake::Expired(entry, expired(deadline, Report::UNSENT)),
        (None, Some(start)) => Intake::Later(since + start.since(now), entry),
        (None, None) => Intake::Ready(entry),
    }
}

/// Whether somebody waits for the outcome of a message that is no job, where a reply may go.
fn wants_reply(message: &Message, rules: &Rules) -> bool {
    let queue = message.reply_to.as_deref().filter(|queue| !queue.is_empty());
    queue.is_some_and(|queue| rules.reply.permit(queue).is_ok())
}

/// The letter of a job whose `paced-deadline` has passed.
pub(super) fn expired(deadline: Micros, report: Report) -> DeadLetter {
    let detail = format!("paced-deadline {} ms has passed", deadline.0 / 1000);
    DeadLetter { reason: Reason::Expired, detail, report }
}

/// The letter of a job that the limits do not allow now, but at `earliest`.
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
