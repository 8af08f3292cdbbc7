use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn seen(sizes: &[(usize, u64)]) -> Sizes {
    let mut known = Sizes::default();
    for (count, bytes) in sizes {
        (0..*count).for_each(|_| known.note(*bytes, *bytes));
    }
    known
}

fn bounds(wanted: u16, gives_back: bool) -> Bounds {
    let gives_back = if gives_back { GiveBack::All } else { GiveBack::New };
    Bounds { wanted, bytes: 64 * MIB, left: 64 * MIB, gives_back }
}

#[test]
fn the_window_starts_small_and_grows_with_what_is_seen() {
    for (sizes, gives_back, target) in [
        (&[][..], true, 3),
        (&[(1, KIB)], true, 3),
        (&[(2, KIB)], true, 3),
        (&[(3, KIB)], true, 7),
        (&[(124, KIB)], true, 125),
        (&[(125, KIB)], true, 250),
        (&[(499, KIB)], true, 500),
        (&[(500, KIB)], true, 1000),
        (&[(2, 32 * MIB)], true, 2),
        (&[(1, 100 * MIB)], true, 1),
        (&[(1, 100 * MIB)], false, 1),
        (&[(200, MIB)], true, 64),
        (&[(200, MIB)], false, 64),
        // The longest message counts where all requested messages are accepted, and otherwise a quarter of it.
        (&[(1000, KIB), (1, 32 * MIB)], true, 8),
        (&[(1000, KIB), (1, 32 * MIB)], false, 2),
        (&[(10, 32 * MIB), (600, MIB)], true, 64),
        (&[(10, 32 * MIB), (600, MIB)], false, 64),
        (&[(600, 0)], true, 1000),
    ] {
        let found = seen(sizes).target(bounds(1000, gives_back), 0);
        assert_eq!(found, target, "{sizes:?}, gives back {gives_back}");
    }
    let none = Bounds { gives_back: GiveBack::None, ..bounds(1000, false) };
    assert_eq!(seen(&[(600, KIB)]).target(none, 0), 16, "few where none may be given back");
    assert_eq!(seen(&[(600, KIB)]).target(bounds(7, true), 0), 7, "never more than is wanted");
    assert_eq!(seen(&[(600, KIB)]).target(bounds(0, true), 0), 1, "never none: that has no bound");
}

#[test]
fn the_sizes_fade_while_nothing_comes() {
    let mut sizes = seen(&[(1000, KIB), (1, 32 * MIB)]);
    let mut target = || {
        let target = sizes.target(bounds(1000, true), 0);
        sizes.fade();
        target
    };
    assert_eq!([target(), target(), target()], [8, 16, 32]);
    for _ in 0..10 {
        target();
    }
    assert_eq!(target(), 1000);
}

#[test]
fn what_was_given_back_has_room_when_it_comes_again() {
    let mut sizes = seen(&[(600, KIB)]);
    for body in [32 * MIB, 20 * MIB, KIB, KIB] {
        assert_eq!(sizes.is_urgent(bounds(1000, true)), body != 32 * MIB);
        sizes.note_returned(body);
    }
    let target = |sizes: &Sizes, left| sizes.target(Bounds { left, ..bounds(1000, true) }, 10);
    assert_eq!(target(&sizes, 64 * MIB), 12, "two more of the longest");
    assert_eq!(target(&sizes, 64 * MIB + 1), 13, "the last one may exceed the bytes");
    assert_eq!((target(&sizes, 1), target(&sizes, 0)), (11, 10));
    sizes.note(32 * MIB + 300, 32 * MIB);
    assert_eq!(target(&sizes, 60 * MIB), 13, "the next one is of 20 MiB");
    // Another message takes the place of the shortest, which somebody else may have got.
    sizes.note(7, 7);
    sizes.note(7, 7);
    assert_eq!(target(&sizes, 60 * MIB), 13);
    sizes.note(7, 7);
    assert!(!sizes.is_urgent(bounds(1000, true)));
    // The sizes that were seen count again.
    assert_eq!(target(&sizes, 0), 9);
}

#[test]
fn short_jobs_that_were_given_back_wait_for_more_room() {
    let mut sizes = Sizes::default();
    sizes.note_returned(MIB - 1);
    let urgent = |sizes: &Sizes, left| sizes.is_urgent(Bounds { left, ..bounds(1000, true) });
    assert!(!urgent(&sizes, 8 * MIB - 1) && urgent(&sizes, 8 * MIB));
    sizes.note_returned(MIB);
    assert!(urgent(&sizes, 0), "64 of them fill the bytes");
}

#[test]
fn each_step() {
    use Step::{Cancel, Consume, Keep};
    // The columns are: target, wanted, the consumer's prefetch and target, unsettled in all and by earlier consumers,
    // waited.
    for (target, wanted, consumer, all, earlier, waited, expected) in [
        // Without a consumer the rest of the window is requested, once it is half of it.
        (1000, 1000, None, 0, 0, false, Consume(1000)),
        (1000, 1000, None, 500, 500, false, Consume(500)),
        (1000, 1000, None, 501, 501, false, Keep),
        (1000, 1000, None, 501, 501, true, Consume(499)),
        (1000, 1000, None, 1000, 1000, true, Keep),
        (10, 10, None, 1000, 1000, true, Keep),
        (1, 1, None, 0, 0, false, Consume(1)),
        (1, 1, None, 1, 1, true, Keep),
        // The window grows where that doubles it.
        (16, 1000, Some((2, 2)), 2, 0, false, Cancel),
        (128, 1000, Some((14, 16)), 16, 2, false, Cancel),
        (1000, 1000, Some((112, 128)), 128, 16, false, Cancel),
        (1000, 1000, Some((400, 1000)), 300, 0, false, Keep),
        // Once all that may come has arrived, it grows with what is wanted, and where half is missing.
        (20, 20, Some((16, 16)), 16, 0, false, Cancel),
        (20, 20, Some((16, 16)), 15, 0, false, Keep),
        (19, 19, Some((16, 16)), 16, 0, false, Keep),
        (1000, 1000, Some((500, 1000)), 500, 0, false, Cancel),
        (1000, 1000, Some((300, 1000)), 501, 201, false, Keep),
        // Otherwise it grows after a while.
        (1000, 1000, Some((872, 1000)), 872, 0, false, Keep),
        (1000, 1000, Some((872, 1000)), 872, 0, true, Cancel),
        (1000, 1000, Some((872, 1000)), 871, 0, true, Keep),
        (1000, 1000, Some((1000, 1000)), 1000, 0, true, Keep),
        // It also grows where hardly any messages are unsettled.
        (1000, 1000, Some((872, 1000)), 125, 0, true, Keep),
        (1000, 1000, Some((872, 1000)), 19, 0, false, Cancel),
        (1000, 1000, Some((1000, 1000)), 0, 0, true, Keep),
        // In a small window each message counts.
        (3, 3, Some((2, 2)), 2, 0, false, Cancel),
        (3, 3, Some((2, 3)), 2, 0, false, Keep),
        (3, 3, Some((2, 3)), 2, 0, true, Cancel),
        (3, 3, Some((2, 3)), 0, 0, false, Cancel),
        // It is cut at once where fewer are wanted, and with a reserve where messages are long.
        (500, 500, Some((1000, 1000)), 0, 0, false, Cancel),
        (500, 500, Some((400, 500)), 500, 101, false, Cancel),
        (500, 500, Some((400, 500)), 500, 100, false, Keep),
        (500, 1000, Some((1000, 1000)), 1000, 0, false, Keep),
        (499, 1000, Some((1000, 1000)), 1000, 0, false, Cancel),
    ] {
        let unsettled = Unsettled { all, earlier };
        let consumer = consumer.map(|(prefetch, target)| Consuming { prefetch, target });
        let found = step(target, wanted, consumer, unsettled, waited);
        assert_eq!(found, expected, "{target} of {wanted}, {consumer:?}, {unsettled:?}, waited {waited}");
    }
}

/// A broker that always has messages, and delivers as many as it may.
#[derive(Default)]
struct Broker {
    consumer: Option<Consuming>,
    earlier: usize,
    current: usize,
    consumers: usize,
}

impl Broker {
    fn fill(&mut self) {
        self.current = self.consumer.map_or(self.current, |consumer| usize::from(consumer.prefetch));
    }

    fn unsettled(&self) -> Unsettled {
        Unsettled { all: self.earlier + self.current, earlier: self.earlier }
    }

    fn settle(&mut self, count: usize) {
        let earlier = count.min(self.earlier);
        self.earlier -= earlier;
        self.current -= (count - earlier).min(self.current);
    }

    fn turn(&mut self, target: u16, wanted: u16, waited: bool) {
        if step(target, wanted, self.consumer, self.unsettled(), waited) == Step::Cancel {
            self.consumer = None;
            self.earlier += std::mem::take(&mut self.current);
        }
        if self.consumer.is_some() {
            return;
        }
        if let Step::Consume(prefetch) = step(target, wanted, None, self.unsettled(), waited) {
            (self.consumer, self.consumers) = (Some(Consuming { prefetch, target }), self.consumers + 1);
        }
    }
}

#[test]
fn short_jobs_fill_the_whole_window_without_any_wait() {
    let (mut broker, mut sizes, mut turns) = (Broker::default(), Sizes::default(), 0);
    while broker.unsettled().all < 1000 {
        let before = broker.unsettled().all;
        broker.turn(sizes.target(bounds(1000, true), 0), 1000, false);
        broker.fill();
        assert!(broker.unsettled().all > before, "stuck at {before}");
        (before..broker.unsettled().all).for_each(|_| sizes.note(KIB, KIB));
        turns += 1;
    }
    assert_eq!((broker.unsettled().all, turns), (1000, 9));
}

proptest! {
    /// For any requests, the unacked messages never exceed the window that was in force when they came.
    #[test]
    fn there_is_never_a_second_window(
        turns in prop::collection::vec((1_u16..1200, 0_usize..1200, any::<bool>()), 1..100),
    ) {
        let mut broker = Broker::default();
        for (window, settled, waited) in turns {
            broker.settle(settled);
            let bound = broker.unsettled().all.max(usize::from(window));
            broker.turn(window, window, waited);
            broker.fill();
            prop_assert!(broker.unsettled().all <= bound, "{:?} of {}", broker.unsettled(), bound);
        }
    }

    /// A constant window is used in full, also where some are never settled, and takes few consumers.
    #[test]
    fn a_window_is_had_whole(window in 1_u16..2000, settled in prop::collection::vec(0_usize..300, 1..50)) {
        let mut broker = Broker::default();
        let mut sizes = Sizes::default();
        for settled in settled {
            broker.settle(settled);
            broker.turn(sizes.target(bounds(window, true), 0), window, false);
            broker.fill();
            (0..broker.unsettled().all).for_each(|_| sizes.note(100, 100));
        }
        // Nothing is settled any more: some stages follow at once, and the rest after a while.
        let before = broker.consumers;
        for waited in (0..14).map(|turn| turn >= 12) {
            broker.turn(sizes.target(bounds(window, true), 0), window, waited);
            broker.fill();
            (0..broker.unsettled().all).for_each(|_| sizes.note(100, 100));
        }
        prop_assert_eq!(broker.unsettled().all, usize::from(window));
        prop_assert!(broker.consumers <= before + 14);
    }
}
