//! Dead letters: lists them without any change, and replays them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use lapin::{BasicProperties, Channel, Connection};

use super::connection::{ask, channel, close, connect};
use super::error::Error;
use super::guard::take_mark;
use super::letter::{self, Edits};
use super::message::message;
use super::publisher::{PublishError, Publisher};
use super::supervisor::fixed;
use super::topology::{self, find_queue, short};
use super::{Downstream, Options};
use crate::job::{Message, Reason};

/// How often, and how far apart, the queue is polled for letters to return: a second at most, since others may have
/// taken some.
const MAX_POLLS: u32 = 50;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How many letters are taken only to keep the order.
const MAX_OTHERS: u32 = 10_000;

/// The dead letters of one downstream.
#[derive(Debug)]
pub struct DeadLetters {
    options: Options,
    downstream: Downstream,
    consuming: Connection,
    publishing: Arc<Connection>,
}

/// One dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// The job as it was delivered, with the report among its headers.
    pub message: Message,
    /// `paced-reason`; `None` where the broker dead-lettered it.
    pub reason: Option<String>,
    /// `paced-detail`.
    pub detail: Option<String>,
    /// `paced-status`.
    pub status: Option<String>,
    /// `paced-attempts`.
    pub attempts: Option<String>,
    /// The routing key that its job was published with, where it is known.
    pub routing_key: Option<String>,
    /// `paced-dead-at`: epoch ms.
    pub dead_at: Option<String>,
}

/// Which letters a replay takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only letters with this `paced-reason`.
    pub reason: Option<String>,
    /// Only letters whose job has this `message_id`.
    pub id: Option<String>,
}

/// The progress or the result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// The number of letters at the start: each is examined once.
    pub found: u32,
    /// Letters examined so far.
    pub seen: u32,
    /// Letters published again, confirmed, and removed from the dead letters.
    pub replayed: u32,
    /// Letters that did not match, which stay as they are.
    pub kept: u32,
    /// Letters that could not be published, or were malformed and are no jobs; they stay.
    pub failed: u32,
    /// The last error of those.
    pub error: Option<PublishError>,
}

impl DeadLetters {
    /// Connects. Nothing is declared: [`DeadLetters::replay`] does that.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// Any error of connecting, without a retry.
    pub async fn open(options: &Options, downstream: &str) -> Result<Self, Error> {
        let downstream = options.downstream(downstream)?.clone();
        let consuming = connect(&options.address, "reading dead letters", None).await?;
        let publishing = Arc::new(connect(&options.address, "replaying", None).await?);
        Ok(Self { options: options.clone(), downstream, consuming, publishing })
    }

    /// The number of dead letters.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn count(&self) -> Result<u32, Error> {
        let channel = channel(&self.consuming).await?;
        let count = find_queue(&channel, &self.queue()).await;
        close(&channel).await;
        count
    }

    /// The first `max` letters, in their order. All stay in the queue; while this runs, no other consumer sees those
    /// that it holds.
    ///
    /// Cancel safe: a dropped future gives all of them back.
    ///
    /// # Errors
    /// An error of the broker.
    pub async fn list(&self, max: u32) -> Result<Vec<Letter>, Error> {
        let mut held = self.take_up().await?;
        let found = held.found;
        let mut letters = Vec::new();
        for _ in 0..found.min(max) {
            let Some(taken) = held.next().await? else { break };
            letters.push(open_letter(taken));
        }
        held.give_back_all().await?;
        self.settle(found).await?;
        Ok(letters)
    }

    /// Ensures that the downstream's queues exist, and publishes the letters that match as jobs again, at most `limit`,
    /// oldest first; each is removed once its copy is confirmed. A crash in between leaves two copies, never none.
    ///
    /// A letter that is malformed, as [`Letter::message`] tells, fails and stays: what could be read of it
    /// may be another job.
    ///
    /// `progress` is called after each letter. The replay ends early where the broker accepts no more messages.
    ///
    /// Cancel safe: a dropped future gives back what was not replayed; the letter at hand may have been
    /// published already.
    ///
    /// # Errors
    /// The broker's, about the dead letters; those about publishing are in [`Replay::error`]. A header
    /// name over 255 bytes.
    pub async fn replay(
        &self,
        filter: &Filter,
        limit: Option<u32>,
        edits: &Edits,
        mut progress: impl FnMut(&Replay),
    ) -> Result<Replay, Error> {
        topology::ensure(&self.consuming, &self.options, &self.downstream).await?;
        let publisher = Publisher::new(fixed(Arc::clone(&self.publishing)));
        let mut held = self.take_up().await?;
        let mut replay = Replay { found: held.found, ..Replay::default() };
        while replay.seen < replay.found && limit.is_none_or(|limit| replay.replayed < limit) {
            let Some(taken) = held.next().await? else { break };
            replay.seen += 1;
            if filter.takes(&taken) {
                match self.publish(&publisher, taken, edits).await? {
                    Ok(()) => {
                        held.done().await?;
                        replay.replayed += 1;
                    }
                    Err(error) => {
                        replay.failed += 1;
                        // A problem of the connection or the queue would affect the next letter too.
                        let over = !matches!(
                            error,
                            PublishError::HeadersTooLarge { .. } | PublishError::Malformed(_)
                        );
                        replay.error = Some(error);
                        if over {
                            break;
                        }
                    }
                }
            } else {
                replay.kept += 1;
            }
            progress(&replay);
        }
        held.give_back_all().await?;
        self.settle(replay.found.saturating_sub(replay.replayed)).await?;
        Ok(replay)
    }

    /// Closes both connections.
    ///
    /// Cancel safe: a dropped future closes them without waiting for the broker.
    pub async fn close(self) {
        let both = async {
            let _ = self.consuming.close(200, "OK".into()).await;
            let _ = self.publishing.close(200, "OK".into()).await;
        };
        // Nothing is unsettled, so a broker that does not answer is not worth a wait.
        let _ = tokio::time::timeout(Duration::from_secs(3), both).await;
    }

    async fn take_up(&self) -> Result<HeldLetters, Error> {
        let queue = self.queue();
        let channel = channel(&self.consuming).await?;
        let found = find_queue(&channel, &queue).await?;
        Ok(HeldLetters { channel, queue, found, seen: 0, tags: Vec::new(), returned_before: false })
    }

    /// Waits until `remaining` letters are in the queue, so that the next reader sees them: letters that were given
    /// back reappear a little later.
    async fn settle(&self, remaining: u32) -> Result<(), Error> {
        for _ in 0..MAX_POLLS {
            if self.count().await? >= remaining {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn publish(
        &self,
        publisher: &Publisher,
        Taken { delivery, malformed }: Taken,
        edits: &Edits,
    ) -> Result<Result<(), PublishError>, Error> {
        if let Some(detail) = malformed {
            return Ok(Err(PublishError::Malformed(detail)));
        }
        let properties = letter::replay(&delivery.properties, edits).map_err(Error::NameTooLong)?;
        let (exchange, key) = match &self.downstream.queue {
            Some(queue) => (String::new(), queue.clone()),
            None => (self.options.jobs_exchange(), self.key(&delivery.properties)),
        };
        Ok(publisher.publish_routed(&exchange, &key, properties, &Bytes::from(delivery.data)).await)
    }

    /// The routing key that the job was published with, if it leads back to this downstream's queue.
    fn key(&self, properties: &BasicProperties) -> String {
        let name = &self.downstream.name;
        let leads_back = |key: &String| {
            key.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        letter::routing_key(properties).filter(leads_back).unwrap_or_else(|| name.clone())
    }

    fn queue(&self) -> String {
        self.options.names().dead(&self.downstream.name)
    }
}

impl Filter {
    fn takes(&self, taken: &Taken) -> bool {
        let reason = reason(taken);
        let id = taken.delivery.properties.message_id().as_ref().map(|id| id.as_str());
        self.reason.as_ref().is_none_or(|wanted| reason.as_ref() == Some(wanted))
            && self.id.as_ref().is_none_or(|wanted| id == Some(wanted.as_str()))
    }
}

/// A letter that is held unacked.
struct Taken {
    delivery: Delivery,
    /// The reason why lapin could not have parsed it, if it is malformed.
    malformed: Option<String>,
}

/// The letters that are held unacked; when dropped, they all return, in any order.
struct HeldLetters {
    channel: Channel,
    queue: String,
    /// The number of letters at the start.
    found: u32,
    seen: u32,
    /// The tags of the letters held, oldest first.
    tags: Vec<u64>,
    /// Whether the letter that was taken last had been given back before.
    returned_before: bool,
}

impl HeldLetters {
    async fn next(&mut self) -> Result<Option<Taken>, Error> {
        let get = self.channel.basic_get(short(&self.queue)?, BasicGetOptions::default());
        let got = ask(&format!("queue {}", self.queue), get).await?.map(|got| got.delivery);
        let Some(mut delivery) = got else { return Ok(None) };
        self.seen += 1;
        self.tags.push(delivery.delivery_tag);
        self.returned_before = delivery.redelivered;
        let malformed = take_mark(&mut delivery.properties);
        Ok(Some(Taken { delivery, malformed }))
    }

    /// Acks the letter that was taken last.
    async fn done(&mut self) -> Result<(), Error> {
        match self.tags.pop() {
            Some(tag) => {
                ask("acking a dead letter", self.channel.basic_ack(tag, BasicAckOptions::default())).await
            }
            None => Ok(()),
        }
    }

    /// Gives back the letters that are held, in their order, and closes the channel, which ensures that the broker has
    /// processed the acks.
    ///
    /// A quorum queue keeps messages that were given back in a list of their own, in the order in which they came back,
    /// and delivers these first. So the others in that list are taken as well, and given back after ours.
    async fn give_back_all(mut self) -> Result<(), Error> {
        let mut more = MAX_OTHERS;
        while self.returned_before && more > 0 && self.seen < self.found && self.next().await?.is_some() {
            more -= 1;
        }
        let options = BasicNackOptions { multiple: false, requeue: true };
        for tag in &self.tags {
            ask("giving a dead letter back", self.channel.basic_nack(*tag, options)).await?;
        }
        ask("closing a channel", self.channel.close(200, "OK".into())).await
    }
}

/// The value of `paced-reason`. A letter that the broker or somebody else put there may be malformed: its reason is
/// then that, whatever its header says.
fn reason(Taken { delivery, malformed }: &Taken) -> Option<String> {
    match malformed {
        Some(_) => Some(Reason::MalformedHeader.to_string()),
        None => letter::header(&delivery.properties, letter::REASON),
    }
}

fn open_letter(taken: Taken) -> Letter {
    let reason = reason(&taken);
    let Taken { delivery, malformed } = taken;
    let properties = &delivery.properties;
    let header = |name| letter::header(properties, name);
    let routing_key = letter::routing_key(properties);
    let key = routing_key.clone().unwrap_or_default();
    Letter {
        reason,
        detail: malformed.clone().or_else(|| header(letter::DETAIL)),
        status: header(letter::STATUS),
        attempts: header(letter::ATTEMPTS),
        dead_at: header(letter::DEAD_AT),
        message: message(&key, properties, Bytes::from(delivery.data), malformed),
        routing_key,
    }
}
