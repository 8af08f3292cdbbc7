use proptest::prelude::*;

use super::*;
use crate::time::suspend;

const EPOCH: Micros = Micros(7);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A clock of slots, and when its local clock started. The store's clock reads 5 s then.
struct Scene {
    clock: SlotClock,
    start: Instant,
}

impl Scene {
    fn new() -> Self {
        Self { clock: SlotClock::new(), start: Instant::now() }
    }

    /// The store's clock at this time after the start.
    fn store(at: Duration) -> Micros {
        Micros(5_000_000 + at.as_micros() as i64)
    }

    /// Adds a sample, and returns by how many microseconds slots are late.
    fn sample(&self, sent: u64, decided: u64, received: u64) -> u128 {
        let (sent, received) = (self.start + ms(sent), self.start + ms(received));
        assert_eq!(self.clock.observe(sent, Self::store(ms(decided)), EPOCH, received), Observed::Consistent);
        let slot = self.clock.deadline(Self::store(ms(200_000))).unwrap();
        (slot - (self.start + ms(200_000))).as_micros()
    }
}

#[tokio::test(start_paused = true)]
async fn the_tightest_sample_of_ten_seconds_counts() {
    let scene = Scene::new();
    assert_eq!((scene.clock.deadline(Micros(0)), scene.clock.store_now()), (None, None));
    assert_eq!(scene.sample(0, 1, 9), 8000);
    assert_eq!(scene.sample(100, 101, 103), 2000, "a tighter one counts at once, at first");
    assert_eq!(scene.sample(9_000, 9_005, 9_010), 2000, "a looser one does not");
    assert_eq!(
        scene.sample(10_500, 10_503, 10_510),
        2150,
        "after ten seconds the tightest is forgotten, slowly"
    );
    tokio::time::advance(ms(11_000)).await;
    assert_eq!(
        scene.clock.store_now(),
        Some(Micros(Scene::store(ms(11_000)).0 - 2150)),
        "never ahead of the store"
    );
}

#[tokio::test(start_paused = true)]
async fn slots_come_no_closer_when_answers_are_read_in_time_again() {
    let scene = Scene::new();
    for n in 0..=10 {
        assert_eq!(scene.sample(n * 500, n * 500 + 10, n * 500 + 60), 50_000);
    }
    assert_eq!(scene.sample(5_059, 5_059, 5_060), 50_000, "not at once");
    for second in 1..=40 {
        let at = 5_060 + second * 1000;
        assert_eq!(scene.sample(at - 1, at - 1, at), u128::from(50_000 - second * 1000), "after {second} s");
    }
}

#[tokio::test(start_paused = true)]
async fn it_settles_by_time_and_answers_and_after_a_time_without() {
    let scene = Scene::new();
    for n in 0..10 {
        assert_eq!(scene.sample(n, n + 1, n + 101), 100_000);
    }
    assert_eq!(scene.sample(5_098, 5_099, 5_099), 0, "ten answers, and not five seconds");
    // The first one is forgotten, so that slots become later by 0.1 ms a second.
    assert_eq!(scene.sample(15_098, 15_099, 15_199), 1010);
    assert_eq!(scene.sample(24_000, 24_000, 24_000), 0, "five seconds, and not ten answers");
    for n in 0..8 {
        assert_eq!(scene.sample(24_001 + n, 24_001 + n, 24_041 + n), 0);
    }
    assert_eq!(scene.sample(34_000, 34_001, 34_041), 999);
    assert_eq!(scene.sample(34_041, 34_041, 34_041), 999, "it has settled");
}

#[tokio::test(start_paused = true)]
async fn slots_stay_while_answers_are_read_late() {
    let scene = Scene::new();
    assert_eq!(scene.sample(0, 1, 2), 1000);
    assert_eq!(scene.sample(1_000, 1_020, 1_021), 1000);
    let mut late = 0;
    for second in 2..60 {
        // Some calls are sent late, too.
        let sent = second * 1000 - second % 7;
        late = scene.sample(sent, second * 1000 + 1, second * 1000 + 41);
    }
    assert_eq!(late, 1000 + 5000, "0.1 ms a second, once the first is forgotten");
    assert_eq!(scene.sample(59_999, 60_000, 60_001), 6000 - 960);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_slewed_is_followed() {
    // If it gains more than 1 ms a second, slots become later by the rest.
    for (gained, late, most) in [(-3_i64, 1, ms(2)), (-3, 40, ms(10)), (1, 1, ms(2)), (3, 40, ms(125))] {
        let (clock, start) = (SlotClock::new(), Instant::now());
        for second in 0..60_u64 {
            // It is asked 1 ms before it reads this, and the answers are read late but in the first seconds.
            let store = Micros(5_000_000 + (second * 1_000_000) as i64 + gained * 1000 * second as i64);
            let read = start + ms(second * 1000 + 1);
            let back = if second < 5 { 1 } else { late };
            assert_eq!(clock.observe(read - ms(1), store, EPOCH, read + ms(back)), Observed::Consistent);
            let slot = clock.deadline(store).unwrap();
            assert!(slot >= read - ms(1), "{gained} ms, {late} ms, {second} s: {:?} early", read - slot);
            assert!(slot <= read + most, "{gained} ms, {late} ms, {second} s: {:?} late", slot - read);
        }
    }
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
    /// For any latencies, also if answers overtake others, the store's clock has reached the slot at the deadline, and the
    /// deadline is late by no more than the longest way back. Once it has settled, it comes nearer by 1 ms a second at most.
    #[test]
    fn never_early(
        offset in -1_000_000_000_000_i64..1_000_000_000_000,
        calls in prop::collection::vec((0_u64..3_000_000, 0_u64..300_000, 0_u64..300_000), 1..60),
        ahead in 0_i64..100_000_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _entered = runtime.enter();
        let (clock, start) = (SlotClock::new(), Instant::now());
        let (mut sent, mut longest) = (0_u64, 0);
        let (mut first, mut newest, mut lateness) = (None, 0, Duration::MAX);
        let mut answers = 0;
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
            longest = back.max(longest);
            prop_assert!(deadline - reached <= Duration::from_micros(longest));
            let received = decided + back;
            let nearer = lateness.saturating_sub(deadline - reached);
            answers += 1;
            if received.saturating_sub(*first.get_or_insert(received)) >= 5_000_000 && answers > 10 {
                prop_assert!(nearer.as_nanos() <= u128::from(received.saturating_sub(newest)), "{nearer:?}");
            }
            (newest, lateness) = (newest.max(received), deadline - reached);
        }
    }
}
