//! Publishes letters as jobs again.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapin::Connection;

use super::letter_queue::{Destination, LetterQueue};
use super::letter_view::Letter;
use super::{DeadLetters, Scan, Tally, Verdict, end};
use crate::amqp::Downstream;
use crate::amqp::connection::connect;
use crate::amqp::error::Error;
use crate::amqp::letter::{self, Edits};
use crate::amqp::publish_error::PublishError;
use crate::amqp::publisher::Publisher;
use crate::amqp::supervisor::{Up, fixed};
use crate::amqp::targets::Targets;
use crate::amqp::topology;
use crate::failpoint;
use crate::shaper::Shaper;
use crate::time::wall_now;

/// The changes that a replay makes, and its pace.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// The changes to each job.
    pub edits: Edits,
    /// The downstream that jobs are published for, instead of the one that each was published for.
    pub to: Option<String>,
    /// Each letter that is published takes a slot of this shaper. Without one, letters are published as fast as the
    /// broker confirms them.
    pub pace: Option<Shaper>,
}

impl DeadLetters {
    /// Publishes the letters that match as jobs again, oldest first; each is removed once its copy is confirmed. A
    /// crash in between leaves two copies, never none. For dead letters it ensures first that the downstream's queues
    /// exist.
    ///
    /// A letter that is malformed, as [`Letter::message`] shows, fails and stays: what could be read of it may be
    /// another job. An unroutable message whose routing key still reaches no queue fails and stays too.
    ///
    /// `progress` is called after each letter. The replay ends early where the broker accepts no more messages.
    ///
    /// Cancel safe: a dropped future gives back what was not replayed, perhaps in another order; the current letter
    /// may have been published already.
    ///
    /// # Errors
    /// An error of the broker about the letters; errors of publishing are in [`Tally::error`]. The name of a header
    /// is longer than 255 bytes. [`Replay::to`] is no downstream of the options, or its queue does not exist. The
    /// letters are without bodies ([`DeadLetters::open_heads`]).
    pub async fn replay(
        &self,
        scan: &Scan,
        replay: &Replay,
        progress: impl FnMut(&Tally),
    ) -> Result<Tally, Error> {
        if !self.has_bodies {
            let detail = "their bodies are not read; open the letters whole".to_owned();
            return Err(Error::Failed { what: "replaying letters".to_owned(), detail });
        }
        let to = replay.to.as_deref().map(|name| self.options.downstream(name)).transpose()?;
        self.prepare(to).await?;
        let publishing = Up::publishing(connect(&self.options.address, "replaying", None).await?);
        let publisher = Publisher::new(fixed(Arc::clone(&publishing)), Targets::default());
        let mut queues = KnownQueues::default();
        let publish = async |letter: Letter, _| {
            let destination = self.letter_queue.destination(&self.options, &letter, to);
            let published = self.publish(&publisher, &mut queues, letter, destination, &replay.edits).await?;
            Ok::<_, Error>(published.map_or_else(Verdict::Fails, |()| Verdict::Goes))
        };
        let tally = self.scan(scan, replay.pace.as_ref(), publish, progress).await;
        end(&publishing).await;
        tally
    }

    /// Ensures that the destination queue exists, where the destination does not depend on the letter.
    async fn prepare(&self, to: Option<&Downstream>) -> Result<(), Error> {
        match (to, &self.letter_queue) {
            (None, LetterQueue::Dead(downstream)) => {
                topology::ensure(&self.consuming, &self.options, downstream).await
            }
            (None, LetterQueue::Unroutable | LetterQueue::Jobs(_)) => Ok(()),
            (Some(downstream), _) => {
                let queue = self.options.names().queue(downstream);
                match queue_exists(&self.consuming, &queue).await? {
                    true => Ok(()),
                    false => Err(Error::NotFound { what: format!("queue {queue}") }),
                }
            }
        }
    }

    async fn publish(
        &self,
        publisher: &Publisher,
        queues: &mut KnownQueues,
        letter: Letter,
        destination: Destination,
        edits: &Edits,
    ) -> Result<Result<(), PublishError>, Error> {
        if let Some(detail) = letter.message.malformed {
            return Ok(Err(PublishError::Malformed(detail)));
        }
        if let Some(queue) = destination.uncertain
            && !queues.exists(&self.consuming, &queue).await?
        {
            return Ok(Err(PublishError::Unroutable(queue)));
        }
        let properties = letter::replay(&letter.properties, edits).map_err(Error::NameTooLong)?;
        // With its old timestamp, a job that was too old would be too old again.
        let properties = letter::made_now(properties, wall_now());
        let Destination { exchange, key, .. } = destination;
        failpoint::reached("replay:publish");
        let published =
            publisher.publish_routed(&exchange, &key, properties, &letter.message.content.body).await;
        if published.is_ok() {
            failpoint::reached("replay:confirmed");
        }
        Ok(published)
    }
}

/// The queues that were checked, and whether each exists.
#[derive(Debug, Default)]
struct KnownQueues(BTreeMap<String, bool>);

impl KnownQueues {
    async fn exists(&mut self, connection: &Connection, queue: &str) -> Result<bool, Error> {
        if let Some(exists) = self.0.get(queue) {
            return Ok(*exists);
        }
        let exists = queue_exists(connection, queue).await?;
        self.0.insert(queue.to_owned(), exists);
        Ok(exists)
    }
}

/// Whether the queue exists; true where the user may not check that.
async fn queue_exists(connection: &Connection, queue: &str) -> Result<bool, Error> {
    match topology::count(connection, queue).await {
        Ok(_) | Err(Error::Refused { .. }) => Ok(true),
        Err(Error::NotFound { .. } | Error::NameTooLong(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
