use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limit::tat::Under;
use crate::limit::{Level, Limit};

const TODAY: i64 = 1_760_000_000_000_000;

/// Numbers of every size, small ones as likely as big ones.
fn any_size(most: u64) -> impl Strategy<Value = u64> {
    let bits = 64 - most.leading_zeros();
    (1..=bits, any::<u64>()).prop_map(move |(bits, n)| (n >> (64 - bits)).clamp(1, most))
}

fn any_rate() -> impl Strategy<Value = Rate> {
    (any_size(366 * 86_400_000_000), any_size(1_000_000_000))
        .prop_map(|(period, count)| Rate::new(count.min(period), Duration::from_micros(period)).unwrap())
}

/// TAT x N as one integer: the exact rational that the code keeps as whole and remainder.
struct Model {
    count: i128,
    period: i128,
    burst: i128,
    tat: i128,
}

impl Model {
    fn new(bucket: LeakyBucket) -> Self {
        let rate = bucket.rate();
        Self {
            count: rate.count().into(),
            period: rate.period_micros().into(),
            burst: bucket.burst().into(),
            tat: 0,
        }
    }

    fn earliest(&self, now: i64) -> i64 {
        self.fits(now, 1)
    }

    /// The instant at which all of `cost` fits, for algorithms that do not charge behind.
    fn fits(&self, now: i64, cost: u32) -> i64 {
        let due = self.tat - (self.burst - i128::from(cost)) * self.period;
        i64::try_from(self.ceil(due)).unwrap().max(now)
    }

    /// Whether `cost` fits now, and what remains, by the definition and without computing an instant.
    fn meter(&self, now: i64, cost: u32) -> (bool, i128) {
        let now = i128::from(now) * self.count;
        let (tat, full) = (self.tat.max(now), now + self.burst * self.period);
        (tat + i128::from(cost) * self.period <= full, ((full - tat).div_euclid(self.period)).max(0))
    }

    fn ceil(&self, parts: i128) -> i128 {
        parts.div_euclid(self.count) + i128::from(parts.rem_euclid(self.count) > 0)
    }

    fn commit(&mut self, at: i64, cost: u32) {
        let at = i128::from(at);
        let start = if self.ceil(self.tat) < at { at * self.count } else { self.tat };
        self.tat = start + i128::from(cost) * self.period;
    }

    fn same(&self, tat: Tat) -> bool {
        i128::from(tat.at.0) * self.count + i128::from(tat.rem) == self.tat
            && i128::from(tat.rem) < self.count
    }
}

#[test]
fn a_million_slots_do_not_drift() {
    let week = Duration::from_secs(7 * 86_400);
    for rate in [
        "700001/s".parse().unwrap(),
        Rate::new(7, week).unwrap(),
        "1/3s".parse().unwrap(),
        "9999/s".parse().unwrap(),
        Rate::new(1_000_003, Duration::from_secs(7)).unwrap(),
    ] {
        let bucket = LeakyBucket::new(rate, 1).unwrap();
        let (count, period) = (i128::from(rate.count()), i128::from(rate.period_micros()));
        let mut tat = Tat::ZERO;
        for k in 0..1_000_000_i128 {
            let slot = bucket.earliest(tat, Micros(TODAY), 1);
            let exact = i128::from(TODAY) + (k * period + count - 1) / count;
            assert_eq!(i128::from(slot.0), exact, "slot {k} at {rate}");
            tat = bucket.commit(tat, slot, 1);
        }
    }
}

proptest! {
    /// Random timelines, clocks that step back included, agree with exact fractions.
    #[test]
    fn agrees_with_exact_fractions(
        rate in any_rate(),
        burst in 1_u32..50,
        steps in prop::collection::vec((-2_000_000_i64..20_000_000, 1_u32..20, 0_u64..50_000_000), 1..100),
    ) {
        let Ok(bucket) = LeakyBucket::new(rate, burst) else { return Ok(()) };
        let (mut model, mut tat, mut now) = (Model::new(bucket), Tat::ZERO, TODAY);
        for (step, cost, ahead) in steps {
            now += step;
            let cost = cost.min(bucket.max_cost());
            let slot = bucket.earliest(tat, Micros(now), cost);
            prop_assert_eq!(slot.0, model.earliest(now));
            if slot.since(Micros(now)) <= Duration::from_micros(ahead) {
                tat = bucket.commit(tat, slot, cost);
                model.commit(slot.0, cost);
            }
            prop_assert!(tat == Tat::ZERO || model.same(tat));
        }
    }

    /// The GCRA and the token bucket agree as well, when they police, when they shape, and in their standing.
    #[test]
    fn the_family_agrees_with_exact_fractions(
        rate in any_rate(),
        burst in 1_u32..50,
        token_bucket in any::<bool>(),
        steps in prop::collection::vec((-200_i64..1000, 0_u32..20, any::<bool>()), 1..100),
    ) {
        let new = if token_bucket { Limit::token_bucket } else { Limit::gcra };
        let Ok(limit) = new("l", rate, burst) else { return Ok(()) };
        let mut model = Model::new(LeakyBucket::new(rate, burst).unwrap());
        let (mut state, mut now) = (limit.fresh(), TODAY);
        for (moved, cost, police) in steps {
            // Moves are in hundredths of T, so that rates of every size are near their limit.
            now += (moved * i64::try_from(rate.period_micros() / rate.count()).unwrap() / 100).max(TODAY / 2 - now);
            let cost = cost.min(limit.max_cost());
            if model.fits(now, cost).max(model.earliest(now)) >= Micros::MAX.0 || model.ceil(model.tat) >= Micros::MAX.0.into() {
                // Instants end there, which a limit of one a year reaches in this many steps.
                return Ok(());
            }
            let slot = limit.earliest(&state, Micros(now), cost);
            prop_assert_eq!(slot.0, model.fits(now, cost));
            let (fits, remaining) = model.meter(now, cost);
            prop_assert_eq!(slot.0 == now, fits);
            let standing = limit.standing(&state, Micros(now));
            prop_assert_eq!(i128::from(standing.remaining), remaining);
            prop_assert_eq!(i128::from(Micros(now).plus(standing.reset_after).0), model.ceil(model.tat).max(now.into()));
            if cost > 0 && (fits || !police) {
                state = limit.commit(&state, slot, cost);
                model.commit(slot.0, cost);
            }
            let Level::Tat(tat, _) = state.level else { unreachable!() };
            prop_assert!(tat == Tat::ZERO || model.same(tat));
        }
    }

    /// In any window of w µs at most burst + w * N/P units are released.
    #[test]
    fn no_window_holds_too_many(
        rate in any_rate(),
        burst in 1_u32..20,
        waits in prop::collection::vec(0_u64..4, 2..60),
    ) {
        let Ok(bucket) = LeakyBucket::new(rate, burst) else { return Ok(()) };
        let (count, period) = (i128::from(rate.count()), i128::from(rate.period_micros()));
        let (mut tat, mut now, mut slots) = (Tat::ZERO, TODAY, vec![]);
        for wait in waits {
            now += i64::try_from(wait * rate.period_micros() / rate.count() / 2).unwrap();
            let slot = bucket.earliest(tat, Micros(now), 1);
            tat = bucket.commit(tat, slot, 1);
            slots.push(i128::from(slot.0));
        }
        for first in 0..slots.len() {
            for last in first..slots.len() {
                // Rounding up may bring two slots closer by less than 1 µs.
                let (units, window) = ((last - first + 1) as i128, slots[last] - slots[first] + 1);
                prop_assert!((units - i128::from(burst)) * period < window * count);
            }
        }
    }

    #[test]
    fn forth_and_back_is_nothing(rate in any_rate(), at in 0..TODAY, part in any::<u64>(), units in 0_i64..100_000) {
        let bucket = LeakyBucket::new(rate, 1);
        prop_assume!(bucket.is_ok());
        let bucket = bucket.unwrap();
        let tat = Tat { at: Micros(at), rem: part % rate.count() };
        prop_assert_eq!(bucket.advance(bucket.advance(tat, units), -units), tat);
        prop_assert_eq!(bucket.advance(bucket.advance(tat, -units), units), tat);
        prop_assert!(bucket.advance(tat, units) >= tat);
    }

    /// The largest burst and cost that are accepted, at the latest slot: every
    /// number, and every number on the way, stays exact in a double.
    #[test]
    fn nothing_overflows_at_the_limits(rate in any_rate(), burst in any_size(u32::MAX.into())) {
        let burst = u32::try_from(burst).unwrap();
        let Ok(bucket) = LeakyBucket::new(rate, burst) else { return Ok(()) };
        let exact = 1_i128 << 53;
        let (count, period) = (i128::from(rate.count()), i128::from(rate.period_micros()));
        let highest = bucket.max_cost();
        let units = i128::from(burst) + i128::from(highest) + 1;
        prop_assert!(count - 1 + units * (period % count) < exact, "rem + k * r");
        prop_assert!(units * (period / count) < exact, "k * q");

        let latest = bucket.latest(highest);
        prop_assert!(latest >= Micros(1_990_000_000_000_000), "exact until 2033 at least: {}", latest);
        // The highest possible state, from which the latest slot is granted.
        let fullest = bucket.advance(Tat::whole(latest), i64::from(burst) - 1);
        prop_assert_eq!(bucket.earliest(fullest, Micros(0), highest), latest);
        let after = bucket.commit(fullest, latest, highest);
        prop_assert!(after.at < Micros::MAX);
        prop_assert!(i128::from(bucket.earliest(Tat::ZERO, Micros(0), 1).0) == 0);
        prop_assert!(i128::from(bucket.advance(Tat::ZERO, 1 - i64::from(burst)).at.0).abs() < exact);
    }
}

#[test]
fn numbers_beyond_exact_time_are_refused() {
    let rate: Rate = "1/366d".parse().unwrap();
    let bucket = LeakyBucket::new(rate, 1).unwrap();
    assert!((200..230).contains(&bucket.max_cost()), "the longest job in years: {}", bucket.max_cost());
    assert!(matches!(LeakyBucket::new(rate, 230), Err(LimitError::BeyondExact { .. })));
    assert_eq!(LeakyBucket::new("1/s".parse().unwrap(), 0), Err(LimitError::NoBurst));
    let second: Rate = "1/s".parse().unwrap();
    assert!(LeakyBucket::new(second, u32::MAX).is_ok_and(|bucket| bucket.max_cost() > 1_000_000));
}

#[test]
fn what_is_pending_is_timed_again_when_the_rate_changes() {
    let at = |rate: &str, ahead: i64, under: &str, rem: u64| {
        let bucket = LeakyBucket::new(rate.parse().unwrap(), 1).unwrap();
        let tat = Tat { at: Micros(TODAY + ahead), rem };
        let under = Under { rate: under.parse().unwrap(), burst: 1 };
        let tat = bucket.pace().retime(tat, under, Micros(TODAY));
        (tat.at.0 - TODAY, tat.rem)
    };
    assert_eq!(at("3/s", 333_333, "3/s", 1), (333_333, 1), "the same rate");
    assert_eq!(at("10/s", 60_000_000, "1/m", 0), (100_000, 0), "one unit is pending, and one stays");
    assert_eq!(at("1/m", 100_000, "10/s", 0), (60_000_000, 0));
    assert_eq!(at("3/s", 333_333, "6/2s", 1), (333_333, 1), "the same rate in other words");
    assert_eq!(at("7/s", 1_333_333, "3/s", 1), (571_429, 0), "four units of 1/7 s, rounded up");
    assert_eq!(at("1/m", -5, "10/s", 3), (-4, 0), "nothing is pending");
    let far = at("1/30d", 1_000_000_000, "1000000/s", 0).0 + TODAY;
    assert!(far < Micros::MAX.0 && far > Micros::MAX.0 / 2, "no further than exact time: {far}");
}

#[test]
fn a_burst_that_falls_is_not_waited_off() {
    let new = |rate: &str, burst| Limit::leaky_bucket("l", rate.parse().unwrap(), burst).unwrap();
    let (now, second) = (Micros(TODAY), 1_000_000);
    let (wide, narrow) = (new("1/s", 600), new("1/s", 1));
    let mut state = wide.fresh();
    (0..600).for_each(|_| state = wide.commit(&state, wide.earliest(&state, now, 1), 1));
    assert_eq!(wide.earliest(&state, now, 1), Micros(TODAY + second));
    let adopted = narrow.adopt(state.clone());
    assert_eq!(narrow.earliest(&adopted, now, 1), Micros(TODAY + second), "not in 600 s");
    assert_eq!(
        new("2/s", 1).earliest(&new("2/s", 1).adopt(state.clone()), now, 1),
        Micros(TODAY + second / 2)
    );
    // A burst that has come back is no larger than the new one.
    let later = Micros(TODAY + 3600 * second);
    let next = narrow.commit(&adopted, narrow.earliest(&adopted, later, 1), 1);
    assert_eq!(narrow.earliest(&next, later, 1), Micros(later.0 + second));
    // A limit that is raised again has gained nothing: used units come back at the rate.
    for (limit, next) in [(&wide, adopted), (&new("1/s", 700), state)] {
        assert_eq!(limit.earliest(&limit.adopt(next), now, 1), Micros(TODAY + second));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However bursts alternate, no more is released than the highest of them and the rate allow.
    #[test]
    fn bursts_that_alternate_let_no_more_through(
        bursts in proptest::collection::vec(1_u32..50, 1..4),
        steps in proptest::collection::vec((0_usize..4, 0_i64..3_000_000, 1_u32..20), 1..60),
    ) {
        let limits: Vec<Limit> = bursts
            .iter()
            .map(|burst| Limit::gcra("l", "1/s".parse().unwrap(), *burst).unwrap())
            .collect();
        let (mut state, mut now, mut taken) = (limits[0].fresh(), TODAY, 0_i64);
        for (place, wait, units) in steps {
            let limit = &limits[place % limits.len()];
            now += wait;
            for _ in 0..units {
                let before = state.clone();
                if limit.take(&mut state, (Micros(now), Micros(now)), 1).is_ok() {
                    taken += 1;
                } else {
                    prop_assert_eq!(&state, &before, "a refusal changes nothing");
                }
            }
            let most = i64::from(*bursts.iter().max().unwrap()) + (now - TODAY) / 1_000_000;
            prop_assert!(taken <= most + i64::from(bursts.len() > 1), "{taken} of {most}");
        }
    }
}

#[test]
fn a_pause_ends_without_a_burst() {
    let rate: crate::Rate = "10/s".parse().unwrap();
    for burst in [1, 5] {
        let limit = Limit::leaky_bucket("l", rate, burst).unwrap();
        let until = Micros(TODAY + 3_000_000);
        let now = Micros(TODAY);
        let state = limit.pause(limit.fresh(), until, now);
        assert_eq!(limit.earliest(&state, now, 1), until);
        let next = limit.commit(&state, until, 1);
        assert_eq!(limit.earliest(&next, until, 1), Micros(until.0 + 100_000), "burst {burst}");
        assert_eq!(limit.pause(state.clone(), until, now), state, "once is enough");
        // Long after the pause the burst has come back.
        let later = Micros(until.0 + 10_000_000);
        assert_eq!(limit.standing(&state, later).remaining, u64::from(burst));
        assert_eq!(limit.pause(limit.fresh(), until, later), limit.fresh(), "forgotten");
        // Units that are pending beyond the pause stay pending.
        let mut full = limit.fresh();
        (0..100).for_each(|_| full = limit.commit(&full, limit.earliest(&full, Micros(TODAY), 1), 1));
        assert_eq!(limit.pause(full.clone(), until, now), full);
    }
}

/// A slot behind a pause that is given back leaves the pause in the state. Under another rate the time before the pause
/// must not count as pending units: a minute's pause after an idle hour would become days.
#[test]
fn a_pause_is_not_timed_again_when_the_rate_changes() {
    let limit = |rate: &str, burst| Limit::leaky_bucket("l", rate.parse().unwrap(), burst).unwrap();
    for burst in [1, 5] {
        let (fast, slow) = (limit("10/s", burst), limit("1/m", burst));
        let (now, until) = (Micros(TODAY), Micros(TODAY + 60_000_000));
        let hour_ago = Micros(TODAY - 3_600_000_000);
        for before in [fast.fresh(), fast.commit(&fast.fresh(), hour_ago, 1)] {
            let paused = fast.pause(before, until, now);
            let taken = fast.commit(&paused, fast.earliest(&paused, now, 1), 1);
            let marks = (fast.mark(&paused), fast.mark(&taken));
            let given_back = fast.undo(&taken, marks, until, 1).unwrap();
            assert_eq!(slow.earliest(&slow.adopt(given_back), now, 1), until, "burst {burst}");
        }
    }
}
