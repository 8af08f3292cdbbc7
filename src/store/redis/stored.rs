//! Reads back what the server stores, for tests that compare it with the reference store.
//!
//! The layout of a state is defined by the scripts (`lua/lib.lua` and the file of each kind); only [`state`] and
//! [`decode`] depend on it too.

use std::time::Duration;

use super::packed::all;
use super::{RedisStore, keys, reply, state};
use crate::limit::{Buckets, Level, Limit, LimitSet, Log, State, Tat, Under, Window};
use crate::rate::Rate;
use crate::store::dump::{self, DumpedState, Record};
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
        let Some(numbers) = record.map(|record| all(&record)) else { return Ok(dump::unused(limits)) };
        let [_, _, _, shift, high, _, generation, epoch, penalty, pause, version, reset, rest @ ..] =
            &numbers[..]
        else {
            return Err(self.servers.unexpected(format!("the record {numbers:?}")));
        };
        let [_, _, _, _, _, turns_end, reach, reach_until, tombstones, from, to, ..] = *rest else {
            return Ok(dump::unused(limits));
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
        Ok(dump::texts(limits, record, kept))
    }
}

/// Decodes a state.
fn decode(bytes: &[u8]) -> Option<DumpedState> {
    let (kind, numbers) = state::numbers(bytes)?;
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
