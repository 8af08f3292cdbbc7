//! Pauses, other rates, steps back and cancelled slots, in any order: no slot in a pause, none too many, and no stall.
//! Time is virtual; memory and Redis answer alike.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Cancel, Change, Granted, MemoryStore, RedisStore, Reserve, Reserved, Scope, Store};
use paced::time::{Clock as _, ManualClock, Micros};

use super::patient;
use crate::support::servers::redis;
use crate::support::unique;

const TODAY: Micros = Micros(1_760_000_000_000_000);
/// The emission intervals of the sets, in µs.
const INTERVALS: [i64; 3] = [100_000, 20_000, 5_000];
const RATES: [&str; 3] = ["10/s", "50/s", "200/s"];
/// The shortest of them.
const SHORTEST: i64 = 5_000;
/// The highest instant is stored with this precision, so after a step back everything may be as much later.
const TICK: i64 = 25_000;

/// The model of the expected state, in µs of a time that never steps.
struct World {
    stores: [Arc<dyn Store>; 2],
    clock: Arc<ManualClock>,
    name: String,
    sets: Vec<LimitSet>,
    burst: i64,
    rate: usize,
    /// How far the clock has stepped back in all.
    back: i64,
    steps: i64,
    penalty: i64,
    pause: i64,
    /// The slots taken, each with the set it was reserved under.
    taken: Vec<(i64, usize, Granted)>,
    latest: i64,
}

impl World {
    fn now(&self) -> i64 {
        self.real(self.clock.now())
    }

    fn real(&self, at: Micros) -> i64 {
        at.0 + self.back
    }

    fn scope(&self) -> Scope<'_> {
        Scope { downstream: &self.name, key: "" }
    }

    async fn update_record(&mut self, change: Change<'_>) {
        let [one, two] = &self.stores;
        let one = one.update_record(&self.name, change).await.unwrap();
        let two = two.update_record(&self.name, change).await.unwrap();
        assert_eq!((one.now, one.status), (two.now, two.status), "{change:?}");
    }

    async fn read_record(&mut self) {
        let [one, two] = &self.stores;
        let (one, two) =
            (one.read_record(&self.name).await.unwrap(), two.read_record(&self.name).await.unwrap());
        assert_eq!((one.now, one.status), (two.now, two.status));
    }

    async fn reserve(&mut self, jobs: usize, ahead: u64) {
        let (limits, costs) = (&self.sets[self.rate], [1; 8]);
        let (costs, ahead) = (Costs::Each(&costs[..jobs]), Duration::from_millis(ahead));
        let scope = self.scope();
        let call = Reserve::new(scope, limits, costs, ahead);
        let [one, two] = &self.stores;
        let (one, two) = (one.reserve(call).await.unwrap(), two.reserve(call).await.unwrap());
        let compared = |answer: &Reserved| (answer.slots.clone(), answer.next, answer.stamp.status);
        assert_eq!(compared(&one), compared(&two));
        let paused = self.penalty.max(self.pause);
        for granted in one.granted(limits, costs) {
            let slot = self.real(granted.slot);
            assert!(slot >= self.now() && slot >= paused, "{slot} lies in a pause until {paused}");
            self.latest = self.latest.max(slot);
            self.taken.push((slot, self.rate, granted));
        }
        if self.pause < i64::MAX {
            let next = self.real(one.next);
            let due = self.now().max(paused).max(self.latest) + INTERVALS[self.rate];
            let most = due + TICK * self.steps + 1000;
            assert!(next <= most, "the next slot comes {} µs late; {} steps", next - most, self.steps);
        } else {
            assert_eq!((one.slots.len(), one.next), (0, Micros::MAX));
        }
    }

    /// Cancels the latest slot.
    async fn cancel(&mut self) {
        let Some((slot, rate, granted)) = self.taken.pop() else { return };
        let Granted { slot: at, charged, before, after } = &granted;
        let (scope, limits) = (self.scope(), &self.sets[rate]);
        let call = Cancel { scope, limits, lane: None, slot: *at, charged, before, after, is_unused: false };
        let [one, two] = &self.stores;
        let given = [one.cancel(call).await.unwrap(), two.cancel(call).await.unwrap()];
        assert_eq!(given[0], given[1]);
        if !given[0] {
            self.taken.push((slot, rate, granted));
        }
    }

    async fn suffer(&mut self, rng: &mut fastrand::Rng) {
        let now = self.now();
        match rng.u8(..20) {
            0..8 => self.reserve(rng.usize(..8), rng.u64(..400)).await,
            8..11 => self.clock.set(Micros(self.clock.now().0 + rng.i64(0..200_000))),
            11..14 => self.cancel().await,
            14 => self.rate = rng.usize(..3),
            15 => {
                // Time that passes between the calls around the step is not part of the step that the store sees.
                self.read_record().await;
                let by = rng.i64(150_000..5_000_000);
                self.clock.set(Micros(self.clock.now().0 - by));
                self.back += by;
                self.steps += 1;
                self.read_record().await;
            }
            16 | 17 => {
                let span = Duration::from_millis(rng.u64(1..1500));
                self.penalty = self.penalty.max(now + span.as_micros() as i64);
                self.update_record(Change::Penalize(span)).await;
            }
            18 => {
                let span = rng.bool().then(|| Duration::from_millis(rng.u64(1..1500)));
                self.pause = span.map_or(i64::MAX, |span| now + span.as_micros() as i64);
                self.update_record(Change::Pause { span, note: "" }).await;
            }
            _ => {
                (self.penalty, self.pause) = (0, 0);
                self.update_record(Change::Resume).await;
            }
        }
    }

    fn judge(&self) {
        let slots: Vec<i64> = self.taken.iter().map(|(slot, ..)| *slot).collect();
        for (first, from) in slots.iter().enumerate() {
            for (more, to) in slots[first..].iter().enumerate() {
                let most = (to - from) / SHORTEST + self.burst;
                assert!(more < usize::try_from(most).unwrap(), "{} in {} µs", more + 1, to - from);
            }
        }
    }
}

#[tokio::test]
async fn no_order_of_changes_costs_a_slot_or_stalls() {
    let clock = Arc::new(ManualClock::default());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
    let remote = RedisStore::connect(&redis().await.url(), patient()).await.unwrap();
    let remote: Arc<dyn Store> = Arc::new(remote.with_test_clock(Arc::clone(&clock) as _));
    for (seed, burst) in (0..100).flat_map(|seed| [(seed, 1), (seed, 10)]) {
        println!("seed {seed}, burst {burst}");
        clock.set(TODAY);
        let limit = |rate: &&str| {
            LimitSet::new(vec![Limit::leaky_bucket("l", rate.parse().unwrap(), burst).unwrap()]).unwrap()
        };
        let mut world = World {
            stores: [Arc::clone(&memory), Arc::clone(&remote)],
            clock: Arc::clone(&clock),
            name: unique("changes"),
            sets: RATES.iter().map(limit).collect(),
            burst: burst.into(),
            rate: 0,
            back: 0,
            steps: 0,
            penalty: 0,
            pause: 0,
            taken: vec![],
            latest: 0,
        };
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..120 {
            world.suffer(&mut rng).await;
        }
        world.judge();
    }
}
