//! Letters that are held unacked, and given back in their order.

use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use lapin::{Channel, Connection};

use super::letter_queue::LetterQueue;
use super::letter_view::Letter;
use crate::amqp::Options;
use crate::amqp::connection::{ask, channel};
use crate::amqp::error::Error;
use crate::amqp::guard::take_body_length;
use crate::amqp::topology::{Names, find_queue, short};
use crate::failpoint;

/// The most letters that one channel holds.
///
/// The broker's channel passes some 32 acks and give-backs at a time to a quorum queue. Those beyond wait in the
/// channel, which passes them on later in another order, and loses them when it closes.
const GROUP: usize = 24;

/// The most channels that hold letters: the order of this many groups is kept. The last channel holds all letters
/// beyond.
const MAX_CHANNELS: u16 = 500;

/// The number of channels of a connection that hold no letters.
const OTHER_CHANNELS: u16 = 8;

/// The most letters that are taken only to keep the order.
const MAX_OTHERS: u32 = 12_000;

/// The letters that are held unacked; when dropped, they all return, in any order.
pub(super) struct HeldLetters<'a> {
    connection: &'a Connection,
    letter_queue: &'a LetterQueue,
    queue: String,
    names: Names,
    /// The number of letters at the start, as the queue counted them, until the queue turns out to have fewer.
    pub(super) found: u32,
    seen: u32,
    /// The channels, in the order of the letters that they hold; never empty.
    groups: Vec<Group>,
    /// Whether the letter that was taken last had been given back before.
    returned_before: bool,
}

/// A channel, and the tags of the letters that it holds, oldest first.
struct Group {
    channel: Channel,
    tags: Vec<u64>,
}

impl<'a> HeldLetters<'a> {
    /// Counts the letters; holds none yet.
    pub(super) async fn start(
        connection: &'a Connection,
        options: &Options,
        letter_queue: &'a LetterQueue,
    ) -> Result<Self, Error> {
        let queue = letter_queue.queue(options);
        let names = options.names();
        let channel = channel(connection).await?;
        let found = find_queue(&channel, &queue).await?;
        let groups = vec![Group { channel, tags: Vec::new() }];
        let (seen, returned_before) = (0, false);
        Ok(Self { connection, letter_queue, queue, names, found, seen, groups, returned_before })
    }

    /// Takes the next letter, with the length of its body; `None` where there is none any more.
    pub(super) async fn next(&mut self) -> Result<Option<(Letter, u64)>, Error> {
        let is_full = self.groups.last().is_none_or(|group| group.tags.len() >= GROUP);
        if is_full && self.groups.len() < most_channels(self.connection) {
            self.groups.push(Group { channel: channel(self.connection).await?, tags: Vec::new() });
        }
        let Some(group) = self.groups.last_mut() else { return Ok(None) };
        let get = group.channel.basic_get(short(&self.queue)?, BasicGetOptions::default());
        let got = ask(&format!("queue {}", self.queue), get).await?.map(|got| got.delivery);
        let Some(mut delivery) = got else {
            // The count of a quorum queue lags behind its acks, and others may have taken some.
            self.found = self.seen;
            return Ok(None);
        };
        self.seen += 1;
        group.tags.push(delivery.delivery_tag);
        self.returned_before = delivery.redelivered;
        let bytes = take_body_length(&mut delivery.properties).unwrap_or(delivery.data.len() as u64);
        let letter = match self.letter_queue {
            LetterQueue::Dead(_) => Letter::dead(delivery),
            LetterQueue::Unroutable | LetterQueue::Jobs(_) => {
                let is_ours = self.names.is_own_exchange(delivery.exchange.as_str());
                Letter::unroutable(delivery, is_ours)
            }
        };
        Ok(Some((letter, bytes)))
    }

    /// Acks the letter that was taken last.
    pub(super) async fn done(&mut self) -> Result<(), Error> {
        let Some(group) = self.groups.last_mut() else { return Ok(()) };
        match group.tags.pop() {
            Some(tag) => {
                let what = "acking a dead letter";
                ask(what, group.channel.basic_ack(tag, BasicAckOptions::default())).await?;
                if failpoint::loses_answers() {
                    return Err(Error::Failed { what: what.to_owned(), detail: "lost in a test".to_owned() });
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Gives back the letters that are held, in their order, and returns when the queue has all of them and every ack; the
    /// result is the number of letters that were there.
    ///
    /// A quorum queue keeps messages that were given back in a list of their own, in the order in which they came
    /// back, and delivers these first. So the other messages in that list are taken as well, and given back after the
    /// letters.
    ///
    /// One channel after another gives back its letters and asks the queue for its count. The queue has received what
    /// that channel gave back by the time it answers, since each group is small enough to be passed on at once.
    pub(super) async fn give_back_all(mut self) -> Result<u32, Error> {
        let mut more = MAX_OTHERS;
        let holds = self.groups.iter().any(|group| !group.tags.is_empty());
        while holds
            && self.returned_before
            && more > 0
            && self.seen < self.found
            && self.next().await?.is_some()
        {
            more -= 1;
        }
        let options = BasicNackOptions { multiple: false, requeue: true };
        for Group { channel, tags } in &self.groups {
            for tag in tags {
                ask("giving a dead letter back", channel.basic_nack(*tag, options)).await?;
            }
            find_queue(channel, &self.queue).await?;
        }
        // What still waits in a channel returns when the channel closes.
        for Group { channel, .. } in &self.groups {
            ask("closing a channel", channel.close(200, "OK".into())).await?;
        }
        Ok(self.found)
    }
}

/// The most channels of this connection that may hold letters.
fn most_channels(connection: &Connection) -> usize {
    let limit = connection.configuration().channel_max();
    usize::from(limit.saturating_sub(OTHER_CHANNELS).clamp(1, MAX_CHANNELS))
}
