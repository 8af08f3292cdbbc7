//! Decides how many messages to request from the broker. It has no I/O.
//!
//! A consumer's prefetch cannot be changed: another prefetch requires a new consumer on the same channel, where unacked
//! messages stay so and come on top. So a new prefetch is what is left of the window, and changes are few: each is
//! large, or one that the dispatcher asked for.

/// The window while nothing is known of the sizes of messages.
const FIRST: u64 = 2;

/// The window grows by this factor once as many messages were seen as it holds.
const STAGE: u64 = 8;

/// A downstream's jobs count as long if no more than this many fit its bytes.
const SHORT: u64 = 64;

/// Statistics of the sizes of one downstream's messages, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    seen: u64,
    /// The window that has proved good.
    stage: u64,
    /// Sixteen times the moving mean.
    mean: u64,
    /// The longest message, whose size decays by half over some 45 messages.
    peak: u64,
}

/// The bounds of the messages that are unsettled at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The number of messages that the dispatcher asked for.
    pub(super) wanted: u16,
    /// The bytes of messages that may be held.
    pub(super) bytes: u64,
    /// Whether messages are read without regard to their bytes once they were requested.
    pub(super) shared: bool,
}

/// The unsettled messages of a downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unsettled {
    /// All messages that are unacked.
    pub(super) all: usize,
    /// Those of them that an earlier consumer delivered, which do not count for the prefetch.
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

impl Default for Sizes {
    fn default() -> Self {
        Self { seen: 0, stage: FIRST, mean: 0, peak: 0 }
    }
}

impl Sizes {
    /// Adds the size of a message.
    pub(super) const fn note(&mut self, bytes: u64) {
        self.mean = if self.seen == 0 {
            bytes.saturating_mul(16)
        } else {
            (self.mean - self.mean / 16).saturating_add(bytes)
        };
        let faded = self.peak - self.peak / 64;
        self.peak = if bytes > faded { bytes } else { faded };
        self.seen = self.seen.saturating_add(1);
        if self.seen >= self.stage {
            self.stage = self.stage.saturating_mul(STAGE);
        }
    }

    /// How many messages may be unsettled at once, at least 1.
    pub(super) fn target(&self, bounds: Bounds) -> u16 {
        let size = if bounds.shared { self.peak } else { self.mean / 16 };
        let fit = bounds.bytes / size.max(1);
        let target = fit.min(self.stage).max(1);
        u16::try_from(target).unwrap_or(u16::MAX).min(bounds.wanted.max(1))
    }

    /// True where so few messages fit the bytes that bytes must bound what is read.
    pub(super) fn are_long(&self, most: u64, wanted: u16) -> bool {
        let fit = most / self.peak.max(1);
        fit <= SHORT && fit < u64::from(wanted)
    }
}

/// Decides what to do, given the present consumer. `waited` says whether it is long enough that nothing was
/// changed.
///
/// Without a consumer it waits until half of the window is free, or long enough. With one, the window is cut
/// at once where fewer are wanted; it grows
/// - at once, where a new consumer has at least twice the prefetch;
/// - at once, where everything that the consumer may bring is here, and the target has risen by a quarter, or
///   is twice of that: those that cannot go must not stand before others;
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
