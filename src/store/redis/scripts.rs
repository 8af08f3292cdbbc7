//! The Lua scripts: what each is told, and how its answer is read.

use std::time::Duration;

use redis::{Script, ScriptInvocation};

use crate::limit::{Algorithm, LimitSet, State, Tat};
use crate::store::{Cancel, Reserve, Reserved};
use crate::time::Micros;

/// All scripts, each with the shared part in front.
#[derive(Debug)]
pub(super) struct Scripts {
    reserve: Script,
    cancel: Script,
    reset: Script,
}

/// The instant that a script decides at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Now {
    /// The store's clock.
    Store,
    /// A test's clock.
    Clock(Micros),
    /// Explicit: nothing is corrected for a clock that stepped back.
    At(Micros),
}

/// The answer of `reserve.lua`, as its head describes it.
pub(super) type ReserveReply = (i64, i64, i64, i64, Vec<i64>, u32);

/// A loss of the store's state is fenced by the caller's horizon, but by no more than this.
const LONGEST_FENCE: Duration = Duration::from_secs(60);

pub(super) const SOURCES: [&str; 3] = [
    concat!(include_str!("lua/lib.lua"), include_str!("lua/reserve.lua")),
    concat!(include_str!("lua/lib.lua"), include_str!("lua/cancel.lua")),
    concat!(include_str!("lua/lib.lua"), include_str!("lua/reset.lua")),
];

impl Scripts {
    pub(super) fn new() -> Self {
        let [reserve, cancel, reset] = SOURCES.map(Script::new);
        Self { reserve, cancel, reset }
    }

    pub(super) fn reserve(
        &self,
        call: &Reserve<'_>,
        now: Now,
        known: Micros,
        run: &str,
    ) -> ScriptInvocation<'_> {
        let mut invocation = self.reserve.prepare_invoke();
        tell_now(&mut invocation, now);
        invocation.arg(known.0).arg(run);
        let ahead = Micros(0).plus(call.ahead);
        invocation.arg(ahead.min(Micros(0).plus(LONGEST_FENCE)).0).arg(ahead.0).arg(call.exact().0);
        let (replica, ttl) = call.lease.map_or(("", Duration::ZERO), |lease| (lease.replica, lease.ttl));
        invocation.arg(replica).arg(Micros(0).plus(ttl).0);
        tell_limits(&mut invocation, call.limits);
        for run in call.costs.chunk_by(|a, b| a == b) {
            invocation.arg(run[0]).arg(run.len());
        }
        invocation
    }

    pub(super) fn cancel(&self, call: &Cancel<'_>, now: Now) -> ScriptInvocation<'_> {
        let mut invocation = self.cancel.prepare_invoke();
        tell_now(&mut invocation, now);
        invocation.arg(call.slot.0);
        tell_limits(&mut invocation, call.limits);
        for (before, after) in call.before.iter().zip(call.after) {
            let (State::Tat(before), State::Tat(after)) = (before, after);
            invocation.arg(before.at.0).arg(before.rem).arg(after.at.0).arg(after.rem);
        }
        invocation
    }

    pub(super) fn reset(&self, limits: &LimitSet, now: Now) -> ScriptInvocation<'_> {
        let mut invocation = self.reset.prepare_invoke();
        tell_now(&mut invocation, now);
        tell_limits(&mut invocation, limits);
        invocation
    }
}

fn tell_now(invocation: &mut ScriptInvocation<'_>, now: Now) {
    match now {
        Now::Store => invocation.arg("store").arg(0),
        Now::Clock(now) => invocation.arg("clock").arg(now.0),
        Now::At(now) => invocation.arg("at").arg(now.0),
    };
}

fn tell_limits(invocation: &mut ScriptInvocation<'_>, limits: &LimitSet) {
    invocation.arg(limits.len());
    for limit in limits.iter() {
        let Algorithm::LeakyBucket(bucket) = limit.algorithm();
        let rate = bucket.rate();
        invocation.arg(rate.count()).arg(rate.period_micros()).arg(bucket.burst());
    }
}

/// Derives each slot with the kernel, from the state before the first and the number granted.
///
/// # Errors
/// What is wrong with the answer.
pub(super) fn reserved(call: &Reserve<'_>, reply: ReserveReply) -> Result<Reserved, String> {
    let (now, epoch, granted, refused, before, replicas) = reply;
    let now = Micros(now);
    let tats = before.chunks_exact(2).map(|tat| {
        let rem = u64::try_from(tat[1]).map_err(|_| format!("the remainder {}", tat[1]))?;
        Ok(State::Tat(Tat { at: Micros(tat[0]), rem }))
    });
    let before = tats.collect::<Result<Vec<_>, String>>()?;
    if before.len() != call.limits.len() {
        return Err(format!("{} states for {} limits", before.len(), call.limits.len()));
    }
    let (slots, next) = call.limits.plan(&mut before.clone(), now, call.costs, call.until(now));
    // What the script committed and what is handed out here must be the same slots.
    let same = i64::try_from(slots.len()) == Ok(granted) && next.map_or(-1, |slot| slot.0) == refused;
    if !same {
        let derived = next.map_or(-1, |slot| slot.0);
        return Err(format!(
            "{granted} slots, then {refused}, where {} and {derived} follow from its state",
            slots.len()
        ));
    }
    let replicas = call.lease.map(|_| replicas);
    Ok(Reserved { now, epoch: Micros(epoch), before, slots, refused: next, replicas })
}
