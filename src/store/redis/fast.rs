//! The script that answers most calls: for the GCRA family, by a clock, without a lease. Numbers go
//! to it and come from it as doubles, as it keeps them.

use redis::Value;

use super::scripts::{Ask, Now, ReserveReply};
use super::state;
use crate::limit::{Algorithm, Combine, Limit};
use crate::time::Micros;

/// The script's name for the store's clock.
const STORE: Micros = Micros(-1);

/// The clock that the script decides by; none where the call is not for it.
pub(super) fn clock(ask: &Ask<'_>, now: Now) -> Option<Micros> {
    let clock = match now {
        Now::Store => STORE,
        Now::Clock(now) if now >= Micros(0) => now,
        Now::Clock(_) => return None,
    };
    (ask.lease.is_none() && ask.limits.is_tat()).then_some(clock)
}

/// The argument, as the head of `fast.lua` describes it.
pub(super) fn argument(ask: &Ask<'_>, clock: Micros, known: Micros, run: i64) -> Vec<u8> {
    let limits = ask.limits;
    // One run of costs is the rule.
    let mut packed = Packed(Vec::with_capacity(8 * (8 + 5 * limits.len() + limits.len() + 1)));
    let combine = match limits.combine() {
        Combine::All => 0,
        Combine::Any => 1,
        Combine::OneOf => 2,
    };
    let ahead = Micros(0).plus(ask.ahead);
    let terms = i64::try_from(ask.generation).unwrap_or(i64::MAX);
    packed.put([clock.0, known.0, run, ahead.0, ask.exact.0, combine, ask.police.into(), terms]);
    for limit in limits.iter() {
        packed.put(numbers(limit));
    }
    let mut rows = limits.rows(ask.costs).peekable();
    while let Some(row) = rows.next() {
        let mut jobs = 1;
        while rows.next_if_eq(&row).is_some() {
            jobs += 1;
        }
        for &cost in &row[..limits.len()] {
            packed.put([cost.into()]);
        }
        packed.put([jobs]);
    }
    packed.0
}

/// N, P div N, P mod N, and the emission intervals after TAT at which a cost is due: a per unit and b.
fn numbers(limit: &Limit) -> [i64; 5] {
    let (rate, burst, whole) = match limit.algorithm() {
        Algorithm::LeakyBucket(bucket) => (bucket.rate(), bucket.burst(), false),
        Algorithm::Gcra(gcra) => (gcra.rate(), gcra.burst(), true),
        Algorithm::TokenBucket(bucket) => (bucket.refill(), bucket.capacity(), true),
        // It takes none of them.
        _ => (limit.rate(), 1, false),
    };
    let (count, period) = (rate.count() as i64, rate.period_micros() as i64);
    let (a, b) = if whole { (1, -i64::from(burst)) } else { (0, 1 - i64::from(burst)) };
    [count, period / count, period % count, a, b]
}

/// Doubles, one after the other; each number is an integer below 2^53, so that none is rounded.
struct Packed(Vec<u8>);

impl Packed {
    fn put<const N: usize>(&mut self, numbers: [i64; N]) {
        for number in numbers {
            self.0.extend_from_slice(&(number as f64).to_le_bytes());
        }
    }
}

/// The answer, as `reserve.lua` would have given it; none where the call is for that one.
///
/// # Errors
/// What is wrong with it.
pub(super) fn reply(answer: &Value) -> Result<Option<ReserveReply>, String> {
    let packed = match answer {
        Value::Nil => return Ok(None),
        Value::BulkString(packed) => packed,
        other => return Err(format!("{other:?} for slots")),
    };
    let (head, before) = packed.split_at_checked(8 * 10).unwrap_or((packed, &[]));
    let Some([now, epoch, granted, refused, limit, status @ ..]) = state::doubles::<10>(head) else {
        return Err(format!("slots in {} bytes", packed.len()));
    };
    let before = before.as_chunks().0.iter().map(|double| state::integer(*double)).collect();
    let place = |number: i64| usize::try_from(number).map_err(|_| format!("{number} for a place"));
    Ok(Some((now, epoch, 0, place(granted)?, refused, place(limit)?, 0, before, vec![], status.to_vec())))
}
