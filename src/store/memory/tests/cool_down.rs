//! A cool-down holds up all slots, and is kept with the record.

use futures_util::FutureExt as _;

use super::*;
use crate::store::{CoolDown, CoolDownCall};

const NAME: &str = "d";

fn refused(replica: &str) -> Change<'_> {
    let (first, most) = (Duration::from_secs(1), Duration::from_secs(60));
    Change::CoolDown(CoolDownCall::Refused { replica, first, most })
}

fn probe(replica: &str) -> Change<'_> {
    Change::CoolDown(CoolDownCall::Probe { replica, ttl: Duration::from_secs(5) })
}

impl Bench {
    async fn change(&self, at_ms: i64, change: Change<'_>) -> RecordState {
        self.clock.set(Micros(START + at_ms * MS));
        self.store.update_record(NAME, change).await.unwrap()
    }

    async fn cool_down(&self, at_ms: i64) -> Option<CoolDown> {
        self.clock.set(Micros(START + at_ms * MS));
        self.store.read_record(NAME).await.unwrap().cool_down
    }
}

fn waiting(level: u32, at_ms: i64) -> Option<CoolDown> {
    Some(CoolDown { level, at: Micros(START + at_ms * MS), holder: None, until: Micros(0) })
}

#[tokio::test]
async fn no_slot_lies_within_the_wait() {
    let bench = Bench::new(1);
    let state = bench.change(0, refused("one")).await;
    assert_eq!(state.cool_down, waiting(0, 1000));
    assert_eq!(state.status.penalty, Micros(START + 1000 * MS));
    assert_eq!(bench.slots(0, 1, 2000).await.0, [1000]);
    // A longer pause stays.
    bench.change(1000, probe("one")).await;
    bench.change(1000, Change::Penalize(Duration::from_secs(30))).await;
    let state = bench.change(1100, refused("one")).await;
    assert_eq!((state.cool_down, state.status.penalty), (waiting(1, 3100), Micros(START + 31_000 * MS)));
    // The holder gives the probe back: the penalty lasts as long as the wait.
    bench.change(40_000, probe("two")).await;
    let again =
        CoolDownCall::Again { replica: "two", first: Duration::from_secs(1), most: Duration::from_secs(60) };
    let state = bench.change(40_500, Change::CoolDown(again)).await;
    assert_eq!((state.cool_down, state.status.penalty), (waiting(1, 42_500), Micros(START + 42_500 * MS)));
}

#[tokio::test]
async fn an_operator_who_resumes_ends_it_and_a_reset_does_not() {
    let bench = Bench::new(1);
    bench.change(0, refused("one")).await;
    let limits: Vec<Limit> = bench.limits.iter().cloned().collect();
    let state = bench.change(0, Change::Reset { limits: &limits }).await;
    assert_eq!(state.cool_down, waiting(0, 1000));
    let state = bench.change(0, Change::Resume).await;
    assert_eq!((state.cool_down, state.status.penalty), (None, Micros(0)));
    assert_eq!(bench.slots(0, 1, 2000).await.0.len(), 1);
}

#[tokio::test]
async fn it_ends_by_itself_and_follows_a_clock_that_steps_back() {
    let bench = Bench::new(1);
    bench.change(0, refused("one")).await;
    assert_eq!(bench.cool_down(60_999).await, waiting(0, 1000));
    assert_eq!(bench.cool_down(61_000).await, None);
    assert_eq!(bench.change(61_100, refused("two")).await.cool_down, waiting(0, 62_100), "another one");
    // The clock is 61 s back.
    assert_eq!(bench.cool_down(100).await, waiting(0, 1100));
    let state = bench.change(1100, probe("two")).await.cool_down.unwrap();
    assert_eq!((state.holder.as_deref(), state.until), (Some("two"), Micros(START + 6100 * MS)));
    let state = bench.cool_down(-8900).await.unwrap();
    assert_eq!((state.at, state.until), (Micros(START - 8900 * MS), Micros(START - 3900 * MS)));
}

#[tokio::test]
async fn subscribers_are_notified_of_what_changes() {
    let bench = Bench::new(1);
    let mut changes = bench.store.changes(NAME);
    for (at_ms, change, is_news) in [
        (0, refused("one"), true),
        (0, refused("two"), false),
        (999, probe("one"), false),
        (1000, probe("one"), true),
        (1000, probe("one"), false),
        (1001, probe("two"), false),
        (1001, probe("one"), true),
        (1001, Change::CoolDown(CoolDownCall::Over { replica: "two" }), false),
        (1001, Change::CoolDown(CoolDownCall::Over { replica: "one" }), true),
        (1001, Change::CoolDown(CoolDownCall::Over { replica: "one" }), false),
    ] {
        bench.change(at_ms, change).await;
        assert_eq!(changes.next().now_or_never().is_some(), is_news, "{change:?} at {at_ms}");
    }
}
