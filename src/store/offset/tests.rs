use proptest::prelude::*;

use super::*;
use crate::time::suspend;

const EPOCH: Micros = Micros(7);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn the_tightest_sample_of_ten_seconds_counts() {
    let (clock, start) = (SlotClock::new(), Instant::now());
    assert_eq!((clock.deadline(Micros(0)), clock.store_now()), (None, None));
    // The store's clock runs 5 s behind the local one's anchor: offset -5 s.
    let store = |at: Duration| Micros(5_000_000 + at.as_micros() as i64);
    let sample = |sent: u64, decided: u64, received: u64| {
        clock.observe(start + ms(sent), store(ms(decided)), EPOCH, start + ms(received))
    };
    let lateness = || {
        let deadline = clock.deadline(store(ms(20_000))).unwrap();
        deadline - (start + ms(20_000))
    };
    assert_eq!(sample(0, 1, 9), Observed::Consistent);
    assert_eq!(lateness(), ms(8));
    assert_eq!(sample(100, 101, 103), Observed::Consistent);
    assert_eq!(lateness(), ms(2), "a tighter one wins");
    assert_eq!(sample(9_000, 9_005, 9_010), Observed::Consistent);
    assert_eq!(lateness(), ms(2), "a looser one does not");
    assert_eq!(sample(10_500, 10_503, 10_507), Observed::Consistent);
    assert_eq!(lateness(), ms(4), "after ten seconds the tightest is forgotten");
    tokio::time::advance(ms(11_000)).await;
    assert_eq!(clock.store_now(), Some(store(ms(10_996))), "never ahead of the store");
}

#[tokio::test(start_paused = true)]
async fn a_step_either_way_discards_the_window() {
    for (step, expected) in [(-2_000_000, Observed::SteppedBack), (2_000_000, Observed::Stepped)] {
        let (clock, start) = (SlotClock::new(), Instant::now());
        let _ = clock.observe(start, Micros(10_000_000), EPOCH, start + ms(1));
        let again = clock.observe(start + ms(500), Micros(10_500_000 + step), EPOCH, start + ms(501));
        assert_eq!(again, expected);
        let jumps = u64::from(step > 0);
        let mapping = Mapping { generation: 1, jumps, deadline: Deadline::at(start + ms(501)) };
        assert_eq!(clock.mapping(Micros(10_500_000 + step)), Some(mapping));
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_epoch_discards_the_window() {
    let (clock, start) = (SlotClock::new(), Instant::now());
    let _ = clock.observe(start, Micros(10_000_000), EPOCH, start + ms(1));
    let again = clock.observe(start + ms(500), Micros(10_500_000), Micros(8), start + ms(505));
    assert_eq!(again, Observed::Stepped);
    assert_eq!(clock.deadline(Micros(10_500_000)), Some(start + ms(505)));
}

#[tokio::test(start_paused = true)]
async fn drift_moves_the_bounds_and_is_no_step() {
    let (clock, start) = (SlotClock::new(), Instant::now());
    let mut local = 0;
    // 500 ppm, the most that NTP slews, seen through a round trip of 20 µs.
    for second in 0..100_i64 {
        let now = Micros(1_000_000_000 + second * 1_000_000 - second * 500);
        let at = |us: u64| start + Duration::from_micros(local + us);
        assert_eq!(clock.observe(at(0), now, EPOCH, at(20)), Observed::Consistent, "second {second}");
        let early = at(0).checked_duration_since(clock.deadline(now).unwrap());
        assert_eq!(early, None, "second {second}");
        local += 1_000_000;
    }
}

#[tokio::test(start_paused = true)]
async fn drift_over_an_idle_hour_is_no_step() {
    for drift in [-360_000, 360_000] {
        let (clock, start) = (SlotClock::new(), Instant::now());
        let hour = Duration::from_secs(3600);
        let mut store = 10_000_000;
        for calls in 0..5 {
            let at = start + hour * calls;
            let observed = clock.observe(at, Micros(store), EPOCH, at + ms(1));
            assert_eq!(observed, Observed::Consistent, "after {calls} hours");
            // 100 ppm.
            store += 3_600_000_000 + drift;
        }
        let at = start + hour * 5;
        let stepped = clock.observe(at, Micros(store + 20 * drift), EPOCH, at + ms(1));
        let expected = if drift < 0 { Observed::SteppedBack } else { Observed::Stepped };
        assert_eq!(stepped, expected, "no drift is that fast");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspend_is_no_step_and_slots_come_nearer() {
    let (clock, start) = (SlotClock::new(), Instant::now());
    // Nothing but real time moves the store's clock.
    let store = |at: Duration| Micros(1_000_000_000 + at.as_micros() as i64);
    assert_eq!(clock.observe(start, store(ms(1)), EPOCH, start + ms(2)), Observed::Consistent);
    let in_ten_minutes = store(ms(600_000));
    let hold = clock.hold(in_ten_minutes).unwrap();
    assert_eq!(hold.instant(), start + ms(600_001));
    assert_eq!(clock.deadline(in_ten_minutes), Some(hold.instant()));

    suspend(ms(300_000));
    assert_eq!(hold.instant(), start + ms(300_001), "five minutes of it are over");
    assert_eq!(clock.deadline(in_ten_minutes), Some(hold.instant()));
    assert_eq!(clock.store_now(), Some(store(ms(299_999))));
    let (age, _) = clock.newest().unwrap();
    assert_eq!(age, ms(299_998), "the sample has aged meanwhile");

    let observed = clock.observe(start + ms(1000), store(ms(301_001)), EPOCH, start + ms(1001));
    assert_eq!(observed, Observed::Consistent);
    assert_eq!(clock.deadline(in_ten_minutes), Some(start + ms(300_000)), "a tighter sample");
    let mapping = clock.mapping(in_ten_minutes).unwrap();
    assert_eq!((mapping.generation, mapping.jumps), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_in_a_suspend_is_no_step() {
    // The instant is mapped before the suspend, or after it; the second one also after the next suspend.
    for decided in [1001, 301_001] {
        let (clock, start) = (SlotClock::new(), Instant::now());
        let store = |at: u64| Micros(1_000_000_000 + at as i64 * 1000);
        assert_eq!(clock.observe(start, store(1), EPOCH, start + ms(2)), Observed::Consistent);
        tokio::time::advance(ms(1002)).await;
        suspend(ms(300_000));
        let observed = clock.observe(start + ms(1000), store(decided), EPOCH, start + ms(1002));
        assert_eq!(observed, Observed::Consistent);
        assert!(clock.deadline(store(400_000)).unwrap() >= start + ms(100_000), "never early");
        // The call was sent before the suspend was noticed, between two suspends that are close together.
        tokio::time::advance(ms(998)).await;
        suspend(ms(300_000));
        let observed = clock.observe(start + ms(1001), store(302_000), EPOCH, start + ms(2000));
        assert_eq!(observed, Observed::Consistent);
        // A sample that contradicts the window is still a step.
        let observed = clock.observe(start + ms(3000), store(203_000), EPOCH, start + ms(3001));
        assert_eq!(observed, Observed::SteppedBack);
    }
}

proptest! {
    /// For any latencies and any order of the answers, the store's clock has reached the slot at the deadline, and the
    /// deadline is late by no more than the last answer's way back.
    #[test]
    fn never_early(
        offset in -1_000_000_000_000_i64..1_000_000_000_000,
        calls in prop::collection::vec((0_u64..3_000_000, 0_u64..300_000, 0_u64..300_000), 1..60),
        ahead in 0_i64..100_000_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _entered = runtime.enter();
        let (clock, start) = (SlotClock::new(), Instant::now());
        let mut sent = 0_u64;
        for (pause, there, back) in calls {
            sent += pause;
            let decided = sent + there;
            let store = |us: u64| 2_000_000_000_000 + offset + us as i64;
            let at = |us: u64| start + Duration::from_micros(us);
            let observed = clock.observe(at(sent), Micros(store(decided)), EPOCH, at(decided + back));
            prop_assert_eq!(observed, Observed::Consistent);
            let slot = Micros(store(decided) + ahead);
            let reached = at(decided) + Duration::from_micros(ahead as u64);
            let deadline = clock.deadline(slot).unwrap();
            prop_assert!(deadline >= reached, "{:?} early", reached - deadline);
            prop_assert!(deadline - reached <= Duration::from_micros(back));
        }
    }
}
