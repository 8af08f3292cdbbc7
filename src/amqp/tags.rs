//! Tracks which delivery tags are settled, and computes the fewest frames that settle them. It has no I/O.

use std::collections::BTreeSet;

use super::window::Unsettled;

/// One frame to the broker. The frames must be written in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Gives one delivery back.
    GiveBack(u64),
    /// Acks one delivery.
    Ack(u64),
    /// Acks this delivery and all before it that are neither acked nor given back.
    AckUpTo(u64),
}

/// The delivery tags of one channel.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// The tags that are delivered and not settled: never more than the prefetch.
    outstanding: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    given_back: Vec<u64>,
    /// The last tag that was delivered.
    last: u64,
    /// The last tag of the consumers before the present one, and how many of their tags are outstanding.
    earlier: (u64, usize),
}

impl Tags {
    /// Registers a delivery. Tags must be in order.
    pub(super) fn delivered(&mut self, tag: u64) {
        self.outstanding.insert(tag);
        self.last = tag;
    }

    /// Registers that later tags belong to another consumer.
    pub(super) fn another_consumer(&mut self) {
        self.earlier = (self.last, self.outstanding.len());
    }

    /// The number of tags that are delivered and not settled.
    pub(super) fn unsettled(&self) -> Unsettled {
        Unsettled { all: self.outstanding.len(), earlier: self.earlier.1 }
    }

    /// Acks a delivery. Returns false if it was settled before.
    pub(super) fn ack(&mut self, tag: u64) -> bool {
        self.settle(tag) && self.acked.insert(tag)
    }

    /// Gives a delivery back. Returns false if it was settled before.
    pub(super) fn give_back(&mut self, tag: u64) -> bool {
        let outstanding = self.settle(tag);
        if outstanding {
            self.given_back.push(tag);
        }
        outstanding
    }

    fn settle(&mut self, tag: u64) -> bool {
        let outstanding = self.outstanding.remove(&tag);
        if outstanding && tag <= self.earlier.0 {
            self.earlier.1 -= 1;
        }
        outstanding
    }

    /// The number of settlements that are not written yet.
    pub(super) fn pending(&self) -> usize {
        self.acked.len() + self.given_back.len()
    }

    /// The frames for all settlements that are pending.
    ///
    /// Everything below the lowest outstanding tag is settled. So one ack covers what is acked there, after the
    /// frames for what is given back there. Above it each ack has a frame of its own: a slow job does not delay the
    /// others.
    pub(super) fn flush(&mut self) -> Vec<Frame> {
        let mut frames: Vec<_> = self.given_back.drain(..).map(Frame::GiveBack).collect();
        let above = match self.outstanding.first() {
            Some(lowest) => self.acked.split_off(lowest),
            None => BTreeSet::new(),
        };
        let below = std::mem::replace(&mut self.acked, above);
        match (below.len(), below.last()) {
            (0, _) | (_, None) => {}
            (1, Some(only)) => frames.push(Frame::Ack(*only)),
            (_, Some(last)) => frames.push(Frame::AckUpTo(*last)),
        }
        frames.extend(std::mem::take(&mut self.acked).into_iter().map(Frame::Ack));
        frames
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A model of the broker: it closes the channel over a tag that it does not know.
    #[derive(Default)]
    struct Broker {
        unacked: BTreeSet<u64>,
        settled: BTreeMap<u64, &'static str>,
    }

    impl Broker {
        fn take(&mut self, frame: Frame) {
            let (tags, fate): (Vec<u64>, _) = match frame {
                Frame::GiveBack(tag) => (vec![tag], "given back"),
                Frame::Ack(tag) => (vec![tag], "acked"),
                Frame::AckUpTo(tag) => (self.unacked.range(..=tag).copied().collect(), "acked"),
            };
            assert!(!tags.is_empty(), "unknown delivery tag: {frame:?}");
            for tag in tags {
                assert!(self.unacked.remove(&tag), "unknown delivery tag {tag}: {frame:?}");
                self.settled.insert(tag, fate);
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Deliver,
        Ack(prop::sample::Index),
        GiveBack(prop::sample::Index),
        Flush,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Deliver),
            3 => any::<prop::sample::Index>().prop_map(Step::Ack),
            1 => any::<prop::sample::Index>().prop_map(Step::GiveBack),
            1 => Just(Step::Flush),
        ];
        prop::collection::vec(step, 0..300)
    }

    proptest! {
        #[test]
        fn every_settled_tag_is_settled_once_and_no_other(steps in steps()) {
            let mut tags = Tags::default();
            let mut broker = Broker::default();
            let mut open: Vec<u64> = Vec::new();
            let mut expected: BTreeMap<u64, &'static str> = BTreeMap::new();
            let mut last = 0;
            for step in steps.into_iter().chain([Step::Flush]) {
                match step {
                    Step::Deliver => {
                        last += 1;
                        broker.unacked.insert(last);
                        // The broker is ahead: the next delivery is in transit already.
                        tags.delivered(last);
                        open.push(last);
                    }
                    Step::Ack(index) if !open.is_empty() => {
                        let tag = open.swap_remove(index.index(open.len()));
                        prop_assert!(tags.ack(tag));
                        prop_assert!(!tags.ack(tag), "twice");
                        expected.insert(tag, "acked");
                    }
                    Step::GiveBack(index) if !open.is_empty() => {
                        let tag = open.swap_remove(index.index(open.len()));
                        prop_assert!(tags.give_back(tag));
                        prop_assert!(!tags.give_back(tag), "twice");
                        expected.insert(tag, "given back");
                    }
                    Step::Ack(_) | Step::GiveBack(_) => {}
                    Step::Flush => {
                        // A delivery in transit that is not registered yet must never be covered.
                        broker.unacked.insert(last + 1);
                        for frame in tags.flush() {
                            broker.take(frame);
                        }
                        prop_assert_eq!(tags.pending(), 0);
                        prop_assert_eq!(&broker.settled, &expected);
                        prop_assert!(broker.unacked.remove(&(last + 1)));
                    }
                }
            }
        }
    }

    fn delivered(count: u64) -> Tags {
        let mut tags = Tags::default();
        (1..=count).for_each(|tag| tags.delivered(tag));
        tags
    }

    #[test]
    fn a_full_prefix_takes_one_frame() {
        let mut tags = delivered(64);
        (1..=64).rev().for_each(|tag| assert!(tags.ack(tag)));
        assert_eq!(tags.flush(), [Frame::AckUpTo(64)]);
        assert_eq!(tags.flush(), []);
    }

    #[test]
    fn a_gap_holds_up_no_other() {
        let mut tags = delivered(5);
        [1, 2, 4, 5].into_iter().for_each(|tag| assert!(tags.ack(tag)));
        assert_eq!(tags.flush(), [Frame::AckUpTo(2), Frame::Ack(4), Frame::Ack(5)]);
        assert!(tags.ack(3));
        assert_eq!(tags.flush(), [Frame::Ack(3)]);
    }

    #[test]
    fn what_an_earlier_consumer_brought_is_known() {
        let mut tags = delivered(5);
        assert_eq!(tags.unsettled(), Unsettled { all: 5, earlier: 0 });
        assert!(tags.ack(2));
        tags.another_consumer();
        assert_eq!(tags.unsettled(), Unsettled { all: 4, earlier: 4 });
        (6..=8).for_each(|tag| tags.delivered(tag));
        assert!(tags.ack(7) && tags.give_back(5) && !tags.ack(5));
        assert_eq!(tags.unsettled(), Unsettled { all: 5, earlier: 3 });
        tags.another_consumer();
        assert_eq!(tags.unsettled(), Unsettled { all: 5, earlier: 5 });
    }

    #[test]
    fn give_backs_go_before_the_ack_that_would_cover_them() {
        let mut tags = delivered(3);
        assert!(tags.ack(1) && tags.give_back(2) && tags.ack(3));
        assert_eq!(tags.flush(), [Frame::GiveBack(2), Frame::AckUpTo(3)]);
    }
}
