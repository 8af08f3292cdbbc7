//! Tests of waiting for a slot over stalls, steps of the clock, suspends and hanging stores.

use proptest::prelude::*;

use super::*;
use crate::time::{Clock, suspend};

#[tokio::test(start_paused = true)]
async fn a_wait_of_years_is_exact() {
    const MONTH: Duration = Duration::from_secs(30 * 86_400);
    let bench = Bench::new();
    let shaper = builder("1/30d", &bench).max_wait(Duration::MAX).build().unwrap();
    let start = Instant::now();
    shaper.reserve_cost("any", 40).await.unwrap().wait().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    let far = shaper.reserve("any").await.unwrap();
    assert!(tokio::time::timeout(MONTH, far.wait()).await.is_err());
    // The clock is read every ten minutes.
    let pings = bench.counts.pings.load(Ordering::SeqCst);
    assert!((4319..=4321).contains(&pings), "{pings}");
    // The other months but the last pass at once.
    let ((), ()) = tokio::join!(far.wait(), tokio::time::advance(38 * MONTH));
    assert_eq!(start.elapsed(), 40 * MONTH);
    // It is read once more a second before the end.
    let pings = bench.counts.pings.load(Ordering::SeqCst) - pings;
    assert!((4320..=4323).contains(&pings), "{pings}");
}

/// Returns when each scheduled job ran, sorted; none may fail.
async fn schedule(shaper: &Shaper, jobs: usize, meanwhile: impl AsyncFnOnce()) -> Vec<Instant> {
    let mut tasks = JoinSet::new();
    for _ in 0..jobs {
        let shaper = shaper.clone();
        tasks.spawn(async move { shaper.schedule("any", async { Instant::now() }).await.unwrap() });
    }
    settle().await;
    meanwhile().await;
    let mut ran = tasks.join_all().await;
    ran.sort_unstable();
    ran
}

/// Returns the smallest distance of two consecutive jobs.
fn closest(ran: &[Instant]) -> Duration {
    ran.windows(2).map(|two| two[1] - two[0]).min().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_no_slot() {
    let bench = Bench::new();
    let shaper = builder("50/s", &bench).build().unwrap();
    let start = Instant::now();
    let ran = schedule(&shaper, 1000, async || bench.faults.mute.store(true, Ordering::SeqCst)).await;
    let slots: Vec<Instant> = (0..1000).map(|index| start + ms(20) * index).collect();
    assert_eq!(ran, slots);
    let pings = bench.counts.pings.load(Ordering::SeqCst);
    assert!((1..=4).contains(&pings), "{pings} pings in 20 s");
}

#[tokio::test(start_paused = true)]
async fn slots_missed_while_the_process_stood_still_are_given_up() {
    let bench = Bench::new();
    let shaper = builder("50/s", &bench).build().unwrap();
    let start = Instant::now();
    let ran = schedule(&shaper, 1000, async || tokio::time::advance(ms(10_010)).await).await;
    assert_eq!(ran.len(), 1000);
    assert!(ran.iter().filter(|at| **at < start + ms(10_000)).count() <= 1);
    // The job before the end of the stall may be late by as much as T.
    assert!(closest(&ran[2..]) >= ms(20), "{:?}", closest(&ran[2..]));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_himself_can_ask_whether_the_slot_was_missed() {
    let shaper = builder("50/s", &Bench::new()).build().unwrap();
    let (on_time, late) = (shaper.reserve("any").await.unwrap(), shaper.reserve("any").await.unwrap());
    on_time.wait().await;
    assert!(!on_time.is_missed());
    tokio::time::advance(ms(39)).await;
    late.wait().await;
    assert!(!late.is_missed(), "less than T late");
    tokio::time::advance(ms(1)).await;
    assert!(late.is_missed());
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_steps_forward_does_not_double_the_pace() {
    for step in [2, 5, 3600] {
        let bench = Bench::new();
        let shaper = builder("10/s", &bench).max_wait(ms(12_000)).build().unwrap();
        let ran = schedule(&shaper, 100, async || {
            tokio::time::advance(ms(1000)).await;
            settle().await;
            bench.clock.step(step);
            shaper.schedule("any", async {}).await.unwrap();
        });
        let ran = ran.await;
        // The store does not know the slots of one horizon any more that it granted before the step.
        let close = ran.windows(2).filter(|two| two[1] - two[0] < ms(100)).count();
        assert!(close <= 1, "{step} s: {ran:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_steps_back_does_not_prolong_a_wait() {
    let bench = Bench::new();
    let shaper = builder("1/m", &bench).max_wait(Duration::from_secs(600)).build().unwrap();
    let start = Instant::now();
    shaper.reserve("any").await.unwrap().wait().await;
    let second = shaper.reserve("any").await.unwrap();
    tokio::time::advance(ms(10_000)).await;
    bench.clock.step(-3600);
    let third = shaper.reserve("any").await.unwrap();
    second.wait().await;
    assert_eq!(start.elapsed(), ms(60_000));
    third.wait().await;
    // The store cannot know how long ago its clock stepped; it counts from when it last read it.
    let late = start.elapsed() - ms(120_000);
    assert!(late <= ms(10_001), "{late:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With any latencies, no caller goes before the store's clock has reached the slot.
    #[test]
    fn nobody_is_early(calls in prop::collection::vec((0_u64..200_000, 0_u64..200_000, 0_u64..400_000), 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new();
            let shaper = builder("20/s", &bench).burst(2).build().unwrap();
            let mut tasks = JoinSet::new();
            for (there, back, pause) in calls {
                bench.delay(Duration::from_micros(there), Duration::from_micros(back));
                let (shaper, clock) = (shaper.clone(), Arc::clone(&bench.clock));
                tasks.spawn(async move {
                    let reservation = shaper.reserve("any").await.unwrap();
                    reservation.wait().await;
                    (clock.now(), reservation.slot())
                });
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
            while let Some(done) = tasks.join_next().await {
                let (now, slot) = done.unwrap();
                prop_assert!(now >= slot, "{:?} early", slot.since(now));
            }
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspend_brings_the_slot_nearer_and_counts_when_it_is_missed() {
    let bench = Bench::new();
    let shaper = builder("1/m", &bench).max_wait(ms(3_600_000)).build().unwrap();
    let start = Instant::now();
    shaper.reserve_cost("any", 30).await.unwrap().wait().await;
    let (far, next) = (shaper.reserve("any").await.unwrap(), shaper.reserve("any").await.unwrap());
    assert_eq!(far.deadline(), start + ms(30 * 60_000));
    // Ten minutes in, the machine sleeps for ten more.
    let wait = far.wait();
    let sleeper = async {
        tokio::time::sleep(ms(600_000)).await;
        suspend(ms(600_000));
    };
    tokio::join!(wait, sleeper);
    assert_eq!(start.elapsed(), ms(20 * 60_000));
    assert!(!far.is_missed());
    // The machine sleeps past the next slot by more than a tenth of a minute.
    suspend(ms(67_000));
    assert!(next.is_missed());
    next.wait().await;
    assert_eq!(start.elapsed(), ms(20 * 60_000));
}

#[tokio::test(start_paused = true)]
async fn a_quota_beside_the_pace_excuses_no_later_slot() {
    let month = Duration::from_secs(30 * 86_400);
    let quota = Limit::quota("q", 1_000_000, crate::limit::Edges::aligned(month, 0).unwrap()).unwrap();
    let shaper = Shaper::builder("billing", "100/s".parse().unwrap())
        .limit(quota)
        .precision(Precision::Coarse)
        .runtime(Handle::current())
        .build()
        .unwrap();
    let reservation = shaper.reserve("a").await.unwrap();
    reservation.wait().await;
    tokio::time::advance(Duration::from_millis(9)).await;
    assert!(!reservation.is_missed(), "less than T late");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(reservation.is_missed(), "five in a burst would follow");
}
