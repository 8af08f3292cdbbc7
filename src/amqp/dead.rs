//! Dead letters: looked at without harm, and tried again.

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

/// How often, and how long apart, we look whether letters are back: a second at most, since others
/// may have taken some.
const LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_millis(20);

/// How many letters we take only to keep the order.
const OTHERS: u32 = 10_000;

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
    /// The job as it came, and the report among its headers.
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

/// How far a replay has come, or came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// How many letters lay there at the start: each is looked at once.
    pub found: u32,
    /// Looked at so far.
    pub seen: u32,
    /// Published again, confirmed, and gone from the dead letters.
    pub replayed: u32,
    /// Not matched: still there, untouched.
    pub kept: u32,
    /// Could not be published, or were malformed and are no jobs: still there.
    pub failed: u32,
    /// The last reason for that.
    pub error: Option<PublishError>,
}

impl DeadLetters {
    /// Connects. Nothing is declared: [`DeadLetters::replay`] does that.
    ///
    /// Cancel safe: a dropped future closes what it opened.
    ///
    /// # Errors
    /// What is wrong, at once.
    pub async fn open(options: &Options, downstream: &str) -> Result<Self, Error> {
        let downstream = options.downstream(downstream)?.clone();
        let consuming = connect(&options.address, "reading dead letters", None).await?;
        let publishing = Arc::new(connect(&options.address, "replaying", None).await?);
        Ok(Self { options: options.clone(), downstream, consuming, publishing })
    }

    /// How many there are.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The broker's.
    pub async fn count(&self) -> Result<u32, Error> {
        let channel = channel(&self.consuming).await?;
        let count = find_queue(&channel, &self.queue()).await;
        close(&channel).await;
        count
    }

    /// The first `max`, in their order. All stay where they are; while this runs, nobody else sees
    /// those that it holds.
    ///
    /// Cancel safe: a dropped future gives all of them back.
    ///
    /// # Errors
    /// The broker's.
    pub async fn list(&self, max: u32) -> Result<Vec<Letter>, Error> {
        let mut hand = self.take_up().await?;
        let found = hand.found;
        let mut letters = Vec::new();
        for _ in 0..found.min(max) {
            let Some(taken) = hand.next().await? else { break };
            letters.push(open_letter(taken));
        }
        hand.lay_down().await?;
        self.settle(found).await?;
        Ok(letters)
    }

    /// Makes sure that the downstream's queues are there, and publishes the letters that match as jobs
    /// again, at most `limit`, oldest first; each is gone from here once its copy is confirmed. A crash in between leaves two copies, never none.
    ///
    /// A letter that is malformed, as [`Letter::message`] tells, fails and stays: what could be read of it
    /// may be another job.
    ///
    /// `progress` is told after each letter. Ends early where the broker takes no more.
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
        let mut hand = self.take_up().await?;
        let mut replay = Replay { found: hand.found, ..Replay::default() };
        while replay.seen < replay.found && limit.is_none_or(|limit| replay.replayed < limit) {
            let Some(taken) = hand.next().await? else { break };
            replay.seen += 1;
            if filter.takes(&taken) {
                match self.publish(&publisher, taken, edits).await? {
                    Ok(()) => {
                        hand.done().await?;
                        replay.replayed += 1;
                    }
                    Err(error) => {
                        replay.failed += 1;
                        // What ails the connection or the queue ails the next letter too.
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
        hand.lay_down().await?;
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
        // Nothing is unsettled: a broker that does not answer is not worth a wait.
        let _ = tokio::time::timeout(Duration::from_secs(3), both).await;
    }

    async fn take_up(&self) -> Result<Hand, Error> {
        let queue = self.queue();
        let channel = channel(&self.consuming).await?;
        let found = find_queue(&channel, &queue).await?;
        Ok(Hand { channel, queue, found, seen: 0, tags: Vec::new(), returned_before: false })
    }

    /// What was given back lies there again a little later: waits until as many are there as should be,
    /// so that whoever looks next sees them.
    async fn settle(&self, remaining: u32) -> Result<(), Error> {
        for _ in 0..LOOKS {
            if self.count().await? >= remaining {
                break;
            }
            tokio::time::sleep(LOOK).await;
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

    /// The key that the job came with, if it leads back to this downstream's queue.
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

/// A letter that we hold.
struct Taken {
    delivery: Delivery,
    /// What is wrong with it, where lapin could not have parsed it.
    malformed: Option<String>,
}

/// The letters that we hold; dropped, they all go back, in any order.
struct Hand {
    channel: Channel,
    queue: String,
    /// How many there were at the start.
    found: u32,
    seen: u32,
    /// Held, oldest first.
    tags: Vec<u64>,
    /// The last one that was taken had been given back by someone before.
    returned_before: bool,
}

impl Hand {
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

    /// The letter that was taken last is gone for good.
    async fn done(&mut self) -> Result<(), Error> {
        match self.tags.pop() {
            Some(tag) => {
                ask("acking a dead letter", self.channel.basic_ack(tag, BasicAckOptions::default())).await
            }
            None => Ok(()),
        }
    }

    /// Gives back what is held, in its order, and closes the channel: the broker has taken in the acks
    /// then.
    ///
    /// A quorum queue keeps what was given back apart, in the order in which it came back, and hands
    /// that out first. So the others among these are taken as well and given back behind ours.
    async fn lay_down(mut self) -> Result<(), Error> {
        let mut more = OTHERS;
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

/// `paced-reason`. What the broker dead-lettered, or somebody put there, may be malformed: then that is
/// what ails it, whatever it says.
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
