//! Reads back what the server stores, for tests that compare it with the reference store.
//!
//! The layout of a state is defined by the scripts (`lua/lib.lua` and the file of each kind); only this file
//! depends on it too.

use std::time::Duration;

use super::packed::{all, integer};
use super::{RedisStore, keys, reply};
use crate::limit::{Buckets, Level, Limit, LimitSet, Log, State, Tat, Under, Window};
use crate::rate::Rate;
use crate::store::tests::{self, DumpedState, Record};
use crate::store::turns::Queue;
use crate::store::{Scope, StoreError};
use crate::time::Micros;

impl RedisStore {
    /// The record of the downstream and the states of the limits, as text. It serves tests.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`StoreError`] when the server is away, or holds a value that is no state.
    #[doc(hidden)]
    pub async fn dump(&self, scope: Scope<'_>, limits: &LimitSet) -> Result<Vec<String>, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(keys::record(&self.prefix, scope));
        commands.cmd("MGET");
        for limit in limits.iter() {
            commands.arg(keys::state(&self.prefix, scope, limit));
        }
        let (record, states): (Option<Vec<u8>>, Vec<Option<Vec<u8>>>) =
            self.servers.read(scope.downstream, &commands).await?;
        let Some(numbers) = record.map(|record| all(&record)) else { return Ok(tests::unused(limits)) };
        let [_, _, _, shift, high, _, generation, epoch, penalty, pause, version, reset, rest @ ..] =
            &numbers[..]
        else {
            return Err(self.servers.unexpected(format!("the record {numbers:?}")));
        };
        let [_, _, _, _, _, turns_end, reach, reach_until, tombstones, from, to, ..] = *rest else {
            return Ok(tests::unused(limits));
        };
        let status = reply::status([*penalty, *pause, *version, *generation, *reset, tombstones])
            .map_err(|detail| self.servers.unexpected(detail))?;
        let reach = Duration::from_micros(reach.unsigned_abs());
        let vacancy = (Micros(from), Micros(to));
        let queue = Queue { end: Micros(turns_end), reach, until: Micros(reach_until), vacancy };
        let record = Record { epoch: Micros(*epoch), high: Micros(*high), shift: *shift, status, queue };
        let kept = |(limit, bytes): (&Limit, Option<Vec<u8>>)| {
            let Some(bytes) = bytes else { return Ok(None) };
            let decoded = decode(&bytes).ok_or_else(|| {
                self.servers.unexpected(format!("the state of `{}` is {bytes:?}", limit.name()))
            });
            decoded.map(Some)
        };
        let kept = limits.iter().zip(states).map(kept).collect::<Result<Vec<_>, _>>()?;
        Ok(tests::texts(limits, record, kept))
    }
}

/// Decodes a state.
fn decode(bytes: &[u8]) -> Option<DumpedState> {
    let (kind, numbers) = numbers(bytes)?;
    let [last, shift, epoch, level @ ..] = &numbers[..] else { return None };
    let count = |units: i64| u64::try_from(units).ok();
    let pairs = |numbers: &[i64]| -> Option<Vec<(i64, u64)>> {
        let (pairs, rest) = numbers.as_chunks::<2>();
        let pairs = pairs.iter().map(|[at, units]| Some((*at, count(*units)?)));
        if rest.is_empty() { pairs.collect() } else { None }
    };
    let level = match (kind, level) {
        ('t', [at, rem, units, period, burst]) => {
            let rate = Rate::new(count(*units)?, Duration::from_micros(count(*period)?)).ok()?;
            let under = Under { rate, burst: u32::try_from(*burst).ok()? };
            Level::Tat(Tat { at: Micros(*at), rem: count(*rem)? }, under)
        }
        ('w', [end, used]) => Level::Window(Window { end: Micros(*end), used: count(*used)? }),
        ('c', [width, cleared, counts @ ..]) => {
            let (counts, cleared) = (pairs(counts)?, Micros(*cleared));
            Level::Buckets(Buckets { width: *width, counts, cleared })
        }
        ('l', [cleared, entries @ ..]) => {
            let entries = pairs(entries)?.into_iter().map(|(at, units)| (Micros(at), units)).collect();
            Level::Log(Log { entries, cleared: Micros(*cleared) })
        }
        _ => return None,
    };
    Some(DumpedState { state: State { last: Micros(*last), level }, shift: *shift, epoch: Micros(*epoch) })
}

/// The version of the layout of a state that follows its letter.
const VERSION: u8 = b'1';

/// The letter of a state's kind, and its significant numbers; `None` if the bytes are no state.
fn numbers(state: &[u8]) -> Option<(char, Vec<i64>)> {
    let (&[letter, VERSION], packed) = state.split_first_chunk::<2>()? else { return None };
    match letter {
        b't' | b'w' | b'c' if packed.len() % 8 == 0 => Some((letter.into(), all(packed))),
        b'l' => Some(('l', log(packed)?)),
        _ => None,
    }
}

/// Parses a log: last, shift, epoch and cleared, then for each entry when its units were taken and their number.
fn log(packed: &[u8]) -> Option<Vec<i64>> {
    let (head, entries) = packed.split_at_checked(9 * 8)?;
    let [last, shift, epoch, gone, count, .., cleared] = super::packed::doubles::<9>(head)?;
    let (entries, rest) = entries.as_chunks::<16>();
    let live = entries.get(usize::try_from(gone).ok()?..usize::try_from(count).ok()?)?;
    let numbers = live.iter().flat_map(|entry| entry.as_chunks::<8>().0).copied().map(integer);
    rest.is_empty().then(|| [last, shift, epoch, cleared].into_iter().chain(numbers).collect())
}

#[cfg(test)]
mod own {
    use super::*;

    #[test]
    fn packed_states_are_read() {
        let mut state = b"t1".to_vec();
        let last = 1_760_000_000_000_000_f64;
        for number in [last, 0.0, 1_760_000_000_000_001.0, 9_007_199_254_740_991.0, 7.0, 9.0, 1e6, 5.0] {
            state.extend(number.to_le_bytes());
        }
        let read =
            [1_760_000_000_000_000, 0, 1_760_000_000_000_001, 9_007_199_254_740_991, 7, 9, 1_000_000, 5];
        assert_eq!(numbers(&state), Some(('t', read.to_vec())));
        // Neither a state of a later version nor any other text is parsed.
        assert_eq!((numbers(b"t2"), numbers(b"text")), (None, None));
    }
}
