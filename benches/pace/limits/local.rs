//! Nanoseconds per decision, in this process.

use std::hint::black_box;
use std::num::NonZero;
use std::time::Duration;

use futures_util::FutureExt as _;
use governor::clock::{Clock as _, DefaultClock};
use governor::{Quota, RateLimiter};
use paced::limit::Costs;
use paced::store::{Reserve, Scope};
use paced::time::{Clock as _, SystemClock};
use paced::{LimitSet, MemoryHandle, MemoryStore, Store as _};

use super::{BURST, RATE, figure, over};
use crate::figures::{Bound, Figure, Section, Unit};
use crate::support::{blocking, real_now};

const GOVERNOR: Figure = figure("governor", Unit::Nanos);
const LEAKY_BUCKET: Figure = figure("leaky-bucket", Unit::Nanos);
const PACED: Figure = figure("paced, memory store", Unit::Nanos);
const ASYNC: Figure = figure("paced, memory store by its async trait", Unit::Nanos);
const RATIO: Figure = figure("paced / governor", Unit::Plain(2));
const GOVERNORS_CLOCK: Figure = figure("of it a look at governor's clock", Unit::Nanos);
const PACEDS_CLOCK: Figure = figure("of it a look at paced's clock", Unit::Nanos);

const ONE: &str = "one limit";
const MANY: &str = "10 000 keys";
const KEYS: usize = 10_000;

/// The number of rounds. The first is not counted: it fills caches, and the maps of keys.
const ROUNDS: usize = 16;
/// The number of calls of each in a round, which takes some 10 ms.
const CALLS: usize = 300_000;

/// The number of calls that were granted: it must be all of [`CALLS`], or the figure would be that of refusals.
type Granted = usize;

pub async fn measure(section: &mut Section) -> Result<(), String> {
    let one = blocking(one).await?;
    section.note(ONE, GOVERNOR, over(&one, |round| round[0]));
    section.note(ONE, LEAKY_BUCKET, over(&one, |round| round[1]));
    section.note(ONE, PACED, over(&one, |round| round[2]));
    section.note(ONE, ASYNC, over(&one, |round| round[5]));
    section.note(ONE, GOVERNORS_CLOCK, over(&one, |round| round[3]));
    section.note(ONE, PACEDS_CLOCK, over(&one, |round| round[4]));
    section.judge(ONE, RATIO, over(&one, |round| round[2] / round[0]), Bound::AtMost(2.0));
    let many = blocking(many).await?;
    section.note(MANY, GOVERNOR, over(&many, |round| round[0]));
    section.note(MANY, PACED, over(&many, |round| round[1]));
    section.note(MANY, ASYNC, over(&many, |round| round[2]));
    section.judge(MANY, RATIO, over(&many, |round| round[1] / round[0]), Bound::AtMost(2.0));
    Ok(())
}

fn one() -> Result<Vec<[f64; 6]>, String> {
    let governor = RateLimiter::direct(quota()?);
    let balance = BURST as usize;
    let leaky =
        leaky_bucket::RateLimiter::builder().max(balance).initial(balance).refill(RATE as usize).build();
    let paced = Paced::new()?;
    let (quanta, system) = (DefaultClock::default(), SystemClock::new());
    let begun = quanta.now();
    rounds(|| {
        Ok([
            timed(|| (0..CALLS).filter(|_| black_box(&governor).check().is_ok()).count())?,
            timed(|| (0..CALLS).filter(|_| black_box(&leaky).try_acquire(1)).count())?,
            timed(|| (0..CALLS).filter(|_| black_box(&paced).grants("")).count())?,
            timed(|| (0..CALLS).filter(|_| black_box(&quanta).now() >= begun).count())?,
            timed(|| (0..CALLS).filter(|_| black_box(&system).now().0 > 0).count())?,
            timed(|| (0..CALLS).filter(|_| black_box(&paced).grants_async("")).count())?,
        ])
    })
}

fn many() -> Result<Vec<[f64; 3]>, String> {
    let mut keys: Vec<String> = (0..KEYS).map(|key| format!("tenant-{key:05}")).collect();
    // The order is fixed, the same for both and in each round.
    fastrand::Rng::with_seed(1).shuffle(&mut keys);
    let order = || keys.iter().cycle().take(CALLS);
    let governor = RateLimiter::keyed(quota()?);
    let paced = Paced::new()?;
    rounds(|| {
        Ok([
            timed(|| order().filter(|key| black_box(&governor).check_key(key).is_ok()).count())?,
            timed(|| order().filter(|key| black_box(&paced).grants(key)).count())?,
            timed(|| order().filter(|key| black_box(&paced).grants_async(key)).count())?,
        ])
    })
}

fn quota() -> Result<Quota, String> {
    let (Some(rate), Some(burst)) = (NonZero::new(RATE), NonZero::new(BURST)) else {
        return Err("a rate or a burst of 0".to_owned());
    };
    Ok(Quota::per_second(rate).allow_burst(burst))
}

struct Paced {
    handle: MemoryHandle,
    store: MemoryStore,
    limits: LimitSet,
}

impl Paced {
    fn new() -> Result<Self, String> {
        let (store, limits) = (MemoryStore::new(), super::limits()?);
        let handle = store.handle("bench", limits.clone()).map_err(|error| error.to_string())?;
        Ok(Self { handle, store, limits })
    }

    fn grants(&self, key: &str) -> bool {
        self.handle.take(key, 1).is_ok()
    }

    fn grants_async(&self, key: &str) -> bool {
        let scope = Scope { downstream: "bench", key };
        let call = Reserve::new(scope, &self.limits, Costs::Each(&[1]), Duration::ZERO);
        // In memory nothing waits, so the first poll is ready.
        let reserved = self.store.reserve(call).now_or_never();
        matches!(reserved, Some(Ok(reserved)) if reserved.slots.len() == 1)
    }
}

/// All rounds but the first.
fn rounds<const N: usize>(
    mut round: impl FnMut() -> Result<[f64; N], String>,
) -> Result<Vec<[f64; N]>, String> {
    (0..ROUNDS).map(|_| round()).skip(1).collect()
}

/// The time of each of [`CALLS`], in ns.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn timed(work: impl FnOnce() -> Granted) -> Result<f64, String> {
    let start = real_now();
    let granted = work();
    let took = start.elapsed();
    if granted == CALLS {
        Ok(took.as_secs_f64() * 1e9 / CALLS as f64)
    } else {
        Err(format!("{granted} of {CALLS} calls were granted, where all should be"))
    }
}
