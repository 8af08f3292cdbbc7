//! The messages of a queue that are rejected together, and the condition that ends this.

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::BasicNackOptions;
use lapin::{Channel, Consumer};

use crate::amqp::admission::GiveBack;
use crate::amqp::connection::ask;
use crate::amqp::error::Error;
use crate::amqp::guard::{Mark, take_mark};
use crate::amqp::letter;
use crate::amqp::window::{Bounds, Sizes};
use crate::failpoint;

/// The most messages that are delivered and not rejected yet. RabbitMQ takes back up to 32 at once in their order.
const PREFETCH: u16 = 32;

/// The bytes that the messages in transit should have, estimated by the longest one so far; they have less than twice
/// that. The broker holds them in memory, and sends them whole. At first two messages may be in transit, and one
/// always may be.
const BYTES: u64 = 4 << 20;

/// After this number of copies in a row that were parked since the change, the replica assumes the same of the rest.
/// Replicas learn of a change at different times: for a moment they park copies by the old limits and by the new
/// ones.
const KNOWN: u32 = 250;

/// The same for the first copies of a queue that had none when it was checked before: they were parked since then.
/// Each of them would be brought home without use, and parked again.
const KNOWN_AT_HEAD: u32 = 2;

/// The messages of a queue that arrived and are not rejected yet, and what is known of those before.
#[derive(Default)]
pub(super) struct Group<'a> {
    /// The versions that mark a copy as parked since the change.
    versions: Option<&'a str>,
    /// Whether its queue was checked before, and had no message.
    had_none: bool,
    /// The number to reject, or a few more.
    wanted: u32,
    /// The number that was rejected.
    pub(super) rejected: u32,
    /// The number that arrived and is not rejected.
    here: u32,
    /// The tag of the last one.
    last: u64,
    /// The number in a row, up to the last one, that was parked since the change.
    known: u32,
    /// The sizes of all that arrived.
    sizes: Sizes,
    /// Whether the queue has no more messages.
    is_exhausted: bool,
}

impl<'a> Group<'a> {
    /// Rejects this many messages, except those that were parked under these versions. `had_none` is true if their
    /// queue was checked before, and had no message.
    pub(super) fn new(wanted: u32, versions: Option<&'a str>, had_none: bool) -> Self {
        Self { wanted, versions, had_none, ..Self::default() }
    }

    /// Adds a message that arrived.
    pub(super) fn add(&mut self, delivery: &mut Delivery) {
        self.last = delivery.delivery_tag;
        let body = match take_mark(&mut delivery.properties) {
            Some(Mark::Cut(body)) => body,
            _ => delivery.data.len() as u64,
        };
        self.sizes.note(body, body);
        let is_known =
            self.versions.is_some() && letter::versions(&delivery.properties).as_deref() == self.versions;
        self.count(is_known);
    }

    /// Counts one that came, and whether it was parked since the change.
    const fn count(&mut self, is_known: bool) {
        self.here += 1;
        self.known = if is_known { self.known + 1 } else { 0 };
    }

    /// Adds the messages that have arrived already. Returns whether there are any to reject.
    pub(super) fn add_ready(&mut self, consumer: &mut Consumer) -> bool {
        while self.here < PREFETCH.into()
            && let Some(Some(Ok(mut delivery))) = consumer.next().now_or_never()
        {
            self.add(&mut delivery);
        }
        self.here > 0
    }

    /// Rejects the messages.
    pub(super) async fn reject(&mut self, channel: &Channel, what: &str) -> Result<(), Error> {
        if self.here == 0 { Ok(()) } else { self.reject_up_to(self.last, channel, what).await }
    }

    /// Rejects all that the broker has sent over the channel, also messages that arrived after their consumer was
    /// cancelled.
    pub(super) async fn reject_all(&mut self, channel: &Channel, what: &str) -> Result<(), Error> {
        self.reject_up_to(0, channel, what).await
    }

    /// Rejects the messages up to this tag; all if it is 0.
    async fn reject_up_to(&mut self, tag: u64, channel: &Channel, what: &str) -> Result<(), Error> {
        failpoint::reached("unpark:rejecting");
        let options = BasicNackOptions { multiple: true, requeue: false };
        ask(what, channel.basic_nack(tag, options)).await?;
        self.rejected += std::mem::take(&mut self.here);
        Ok(())
    }

    /// Records that the queue has no more messages.
    pub(super) const fn exhausted(&mut self) {
        self.is_exhausted = true;
    }

    /// Whether the rest counts as parked since the change.
    pub(super) const fn is_known(&self) -> bool {
        let is_head = self.known == self.taken();
        self.known >= if self.had_none && is_head { KNOWN_AT_HEAD } else { KNOWN }
    }

    /// Whether all messages have arrived that are to be rejected.
    pub(super) const fn is_over(&self) -> bool {
        self.is_exhausted || self.is_known() || self.taken() >= self.wanted
    }

    /// The number that arrived, and was rejected or will be.
    pub(super) const fn taken(&self) -> u32 {
        self.rejected.saturating_add(self.here)
    }

    /// Whether all messages have arrived that a consumer with this prefetch gets before one of them is rejected.
    pub(super) fn is_full(&self, prefetch: u16) -> bool {
        self.here >= prefetch.into()
    }

    /// How many may be in transit, given the sizes of those that arrived.
    pub(super) fn prefetch(&self) -> u16 {
        let bounds = Bounds { wanted: PREFETCH, bytes: BYTES, left: BYTES, gives_back: GiveBack::New };
        self.sizes.target(bounds, 0)
    }

    /// Whether a consumer with another prefetch would do much better than with this one.
    pub(super) fn has_outgrown(&self, prefetch: u16) -> bool {
        let target = self.prefetch();
        target <= prefetch / 2 || target / 2 >= prefetch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Counts messages of this size, sets the prefetch after them, and returns the number of consumers that it took.
    fn after(group: &mut Group<'_>, prefetch: &mut u16, count: usize, bytes: u64) -> usize {
        let mut consumers = 0;
        for _ in 0..count {
            group.sizes.note(bytes, bytes);
            if group.has_outgrown(*prefetch) {
                (*prefetch, consumers) = (group.prefetch(), consumers + 1);
            }
        }
        consumers
    }

    /// How many are brought home of a queue with these copies: true for each that was parked since the change.
    fn brought(copies: &[bool], had_none: bool) -> u32 {
        let mut group = Group::new(1_000, Some("b"), had_none);
        for is_known in copies {
            if group.is_over() {
                break;
            }
            group.count(*is_known);
        }
        group.taken()
    }

    #[test]
    fn few_copies_at_the_head_of_a_queue_suffice_where_it_had_none_before() {
        let copies = |old: usize, new: usize| [vec![false; old], vec![true; new]].concat();
        let mixed = [[true, false].repeat(10), vec![true; 600]].concat();
        for (copies, first, later) in [
            (copies(0, 600), KNOWN, KNOWN_AT_HEAD),
            (copies(20, 600), 20 + KNOWN, 20 + KNOWN),
            (mixed, 20 + KNOWN, 20 + KNOWN),
            (copies(0, 1), 1, 1),
            (copies(1, 0), 1, 1),
        ] {
            assert_eq!((brought(&copies, false), brought(&copies, true)), (first, later), "{copies:?}");
        }
    }

    #[test]
    fn few_bytes_are_under_way_whatever_the_sizes() {
        let mut group = Group::default();
        let mut prefetch = group.prefetch();
        assert_eq!(prefetch, 2, "nothing is known of them");
        assert_eq!((after(&mut group, &mut prefetch, 10_000, 1024), prefetch), (4, PREFETCH));
        assert_eq!((after(&mut group, &mut prefetch, 1, MIB), prefetch), (1, 4), "at once");
        assert_eq!((after(&mut group, &mut prefetch, 100, MIB), prefetch), (0, 4));
        assert_eq!((after(&mut group, &mut prefetch, 1, 16 * MIB), prefetch), (1, 1), "one may always come");
        let consumers = after(&mut group, &mut prefetch, 1_000, 1024);
        assert!(consumers < 10 && prefetch > PREFETCH / 2, "{consumers} {prefetch}");
        // Sizes that differ cost no consumer for each of them.
        let mut mixed = 0;
        for round in 0..1_000 {
            mixed += after(&mut group, &mut prefetch, 1, 50 * 1024 + (round % 7) * 5 * 1024);
        }
        assert!(mixed < 5, "{mixed}");
    }
}
