//! Decides how many messages to request from the broker. It has no I/O.
//!
//! A consumer's prefetch cannot be changed. Another prefetch requires a new consumer on the same channel, where
//! unacked messages stay so, in addition to the new prefetch. So a new prefetch is the unused rest of the window.
//! Changes are few: each is large, or was requested by the dispatcher.
//!
//! A requested message arrives, however large it is. Messages for which there is no room are given back unread. From
//! then on, until these have come again, no more is requested than has room if each is as long as the longest of
//! them.

use std::collections::BTreeMap;

use super::admission::GiveBack;

/// The least window while nothing is known of the sizes of messages.
const FIRST: u64 = 2;

/// If all messages of a window are as long as the longest recent one, they have at most this many times the bytes
/// that may be held.
const EXCESS: u64 = 4;

/// The most messages that are unsettled at once where none may be given back: there nothing else bounds the bytes of
/// the messages that arrive.
const NO_RETURN: u64 = 16;

/// The number of long jobs that fill the bytes: jobs are long from that size on.
const SHORT: u64 = 64;

/// Statistics of the sizes of one queue's messages, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    seen: u64,
    /// Sixteen times the moving mean.
    mean: u64,
    /// The longest message, whose size decays by half over some 45 messages.
    peak: u64,
    /// The sizes of the messages that were given back unread and have not come again, and how many there are of each.
    returned: BTreeMap<u64, u32>,
}

/// The bounds of the messages that are unsettled at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The number of messages that the dispatcher wants.
    pub(super) wanted: u16,
    /// The bytes of messages that may be held.
    pub(super) bytes: u64,
    /// The bytes that are left of these.
    pub(super) left: u64,
    /// Which messages may be given back where there is no room for them.
    pub(super) gives_back: GiveBack,
}

/// The unsettled messages of a downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unsettled {
    /// All messages that are unacked.
    pub(super) all: usize,
    /// Those of them that an earlier consumer delivered, which do not count towards the prefetch.
    pub(super) earlier: usize,
}

/// The present consumer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consuming {
    /// Its prefetch.
    pub(super) prefetch: u16,
    /// The target when it began.
    pub(super) target: u16,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Keep the consumer, or wait without one.
    Keep,
    /// Cancel the consumer.
    Cancel,
    /// Consume with this prefetch, now that there is no consumer.
    Consume(u16),
}

impl Sizes {
    /// Adds the size of a message that was accepted, and the size that it would have had if it had been given back.
    pub(super) fn note(&mut self, bytes: u64, body: u64) {
        self.came_again(body);
        self.measure(bytes);
    }

    /// Adds a message that is given back unread, with the size that the length of its body suggests.
    pub(super) fn note_returned(&mut self, body: u64) {
        self.measure(body);
        *self.returned.entry(body).or_default() += 1;
    }

    /// Whether any message has come.
    pub(super) const fn has_seen(&self) -> bool {
        self.seen > 0
    }

    const fn measure(&mut self, bytes: u64) {
        self.mean = if self.seen == 0 {
            bytes.saturating_mul(16)
        } else {
            (self.mean - self.mean / 16).saturating_add(bytes)
        };
        let faded = self.peak - self.peak / 64;
        self.peak = if bytes > faded { bytes } else { faded };
        self.seen = self.seen.saturating_add(1);
    }

    /// Halves the assumed size of messages to come, since none has come for a while.
    pub(super) const fn fade(&mut self) {
        (self.mean, self.peak) = (self.mean / 2, self.peak / 2);
    }

    /// Records that a message came again that was given back, as far as that can be known: one of this size if there
    /// is one, else the shortest, since others may have got those that were given back here.
    fn came_again(&mut self, body: u64) {
        let shortest = self.returned.keys().next().copied();
        let Some(known) = Some(body).filter(|body| self.returned.contains_key(body)).or(shortest) else {
            return;
        };
        if let Some(count) = self.returned.get_mut(&known) {
            *count -= 1;
            if *count == 0 {
                self.returned.remove(&known);
            }
        }
    }

    /// Whether messages that were given back unread are requested again without a wait for more room: where they are
    /// long, or there is room for an eighth of the bytes.
    pub(super) fn is_urgent(&self, bounds: Bounds) -> bool {
        let longest = self.returned.keys().next_back();
        longest.is_some_and(|longest| (*longest).max(bounds.left / 8) >= bounds.bytes / SHORT)
    }

    /// The bytes to reserve before a consumer with this prefetch starts: room for as many of the longest messages
    /// that were given back, since the queue delivers these first.
    pub(super) fn reserves(&self, messages: u16, bounds: Bounds) -> u64 {
        let longest = self.returned.keys().next_back().copied().unwrap_or_default();
        longest.saturating_mul(messages.into()).min(bounds.left)
    }

    /// How many messages may be unsettled at once, given the number that is. It is 0 only where there is no room for
    /// one.
    pub(super) fn target(&self, bounds: Bounds, unsettled: usize) -> u16 {
        let wanted = self.staged(bounds.wanted.max(1));
        let target = match self.returned.keys().next_back() {
            // A message is accepted while any bytes are left.
            Some(longest) => bounds.left.div_ceil((*longest).max(1)).saturating_add(unsettled as u64),
            None => bounds.bytes.div_ceil(self.size(bounds.gives_back)).min(wanted).max(1),
        };
        let target = if bounds.gives_back == GiveBack::None { target.min(NO_RETURN) } else { target };
        u16::try_from(target).unwrap_or(u16::MAX).min(bounds.wanted.max(1))
    }

    /// The possible part of the wanted window: it doubles when as many messages were seen as it holds. So replicas
    /// that start together share a short backlog; otherwise the first to grow would take all that it may. Half of a
    /// window that has grown is free, and then a consumer is started at once.
    const fn staged(&self, wanted: u16) -> u64 {
        let mut part = wanted as u64;
        while part / 2 > self.seen && part / 2 >= FIRST {
            part /= 2;
        }
        part
    }

    /// The assumed size of messages, at least 1.
    pub(super) fn size(&self, gives_back: GiveBack) -> u64 {
        let peak = if gives_back == GiveBack::All { self.peak / EXCESS } else { self.peak };
        peak.max(self.mean / 16).max(1)
    }
}

/// Decides the next step, given the present consumer. `waited` is true if nothing was changed for long enough.
///
/// Without a consumer it waits until half of the window is free, or for long enough. With one, it cuts the window at
/// once where fewer messages are wanted. The window grows
/// - at once, where a new consumer has at least twice the prefetch;
/// - at once, where everything that the consumer may bring is here, and the target has risen by a quarter, or is at
///   least twice the number of messages here: jobs that cannot be released must not block others;
/// - where everything is here and little is missing, after a while;
/// - where little is unsettled, so that the whole window can be had.
pub(super) fn step(
    target: u16,
    wanted: u16,
    consumer: Option<Consuming>,
    unsettled: Unsettled,
    waited: bool,
) -> Step {
    let (target, wanted) = (usize::from(target), usize::from(wanted.max(1)));
    let room = target.saturating_sub(unsettled.all);
    let Some(Consuming { prefetch, target: before }) = consumer else {
        let enough = unsettled.all <= target / 2;
        return match u16::try_from(room) {
            Ok(room) if room > 0 && (enough || waited) => Step::Consume(room),
            _ => Step::Keep,
        };
    };
    let (prefetch, before) = (usize::from(prefetch), usize::from(before));
    let possible = unsettled.earlier + prefetch;
    if possible > wanted || possible > target.saturating_mul(2) {
        return Step::Cancel;
    }
    let used_up = unsettled.all >= possible && room > 0;
    let risen = target >= before + (before / 4).max(1);
    let grows = room >= 2 * prefetch
        || used_up && (risen || target >= 2 * possible || waited)
        || unsettled.all <= target / 8 && room >= prefetch + (prefetch / 8).max(1);
    if grows { Step::Cancel } else { Step::Keep }
}

#[cfg(test)]
mod tests;
