//! The Lua scripts: what each is told, and how its answer is read.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, Script};

use crate::limit::{
    Algorithm, Calendar, Charge, Combine, Costs, Counting, Edges, Limit, LimitSet, Mark, Plan, Refusal,
    Standing, State, Verdict, Window,
};
use crate::rate::Rate;
use crate::store::{Cancel, Change, Check, Checked, Lease, Pause, Reserve, Reserved, Status, Tended};
use crate::time::Micros;

/// All scripts, each with the shared part in front.
#[derive(Debug)]
pub(super) struct Scripts {
    /// Most calls, for one limit and for several.
    one: Script,
    many: Script,
    /// Reserve, for sets of the GCRA family alone: the others need not be read.
    tat: Script,
    reserve: Script,
    cancel: Script,
    reset: Script,
    tend: Script,
    restart: Script,
}

/// The instant that a script decides at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Now {
    /// The store's clock.
    Store,
    /// A test's clock.
    Clock(Micros),
}

/// The answer of `reserve.lua`, as its head describes it.
pub(super) type ReserveReply = (i64, i64, u32, usize, i64, usize, i64, Vec<i64>, Vec<i64>, Vec<i64>);

/// The answer of `tend.lua`.
pub(super) type TendReply = (i64, i64, i64, i64, i64, i64, i64, Option<String>);

/// A loss of the store's state is fenced by the caller's horizon, but by no more than this.
const LONGEST_FENCE: Duration = Duration::from_secs(60);

/// How far the worker's clock may be off before edges of calendars are sent twice.
const SLACK: Duration = Duration::from_secs(60);

const LIB: &str = concat!(include_str!("lua/lib.lua"), include_str!("lua/tat.lua"));
const FAST: &str = include_str!("lua/fast.lua");
const WINDOWS: &str =
    concat!(include_str!("lua/windows.lua"), include_str!("lua/buckets.lua"), include_str!("lua/log.lua"));

/// A script, and all that it is told.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) command: Cmd,
}

impl<'a> Call<'a> {
    /// About `args` arguments follow the keys.
    fn new(script: &'a Script, keys: &[String], args: usize) -> Self {
        let size = keys.iter().map(String::len).sum::<usize>() + 64 + 16 * args;
        let mut command = Cmd::with_capacity(3 + keys.len() + args, size);
        command.arg("EVALSHA").arg(script.get_hash()).arg(keys.len()).arg(keys);
        Self { script, command }
    }
}

impl Scripts {
    pub(super) fn new() -> Self {
        let [one, many, tat, reserve, cancel, reset, tend, restart] =
            sources().map(|source| Script::new(&source));
        Self { one, many, tat, reserve, cancel, reset, tend, restart }
    }

    /// The call of a script that answers [`fast::reply`].
    pub(super) fn fast(&self, keys: &[String], argument: &[u8]) -> Call<'_> {
        let script = if keys.len() == 2 { &self.one } else { &self.many };
        let mut call = Call::new(script, keys, argument.len() / 16);
        call.command.arg(argument);
        call
    }

    /// `known` and `ahead` are what the worker knows of the downstream.
    pub(super) fn reserve(
        &self,
        keys: &[String],
        ask: &Ask<'_>,
        now: Now,
        (known, ahead): (Micros, Duration),
        run: i64,
    ) -> Call<'_> {
        let derived = ask.limits.is_tat();
        let script = if derived { &self.tat } else { &self.reserve };
        let mut call = Call::new(script, keys, 32);
        let cmd = &mut call.command;
        tell_now(cmd, now);
        cmd.arg(known.0).arg(run);
        cmd.arg(horizon(ahead).0).arg(Micros(0).plus(ask.ahead).0).arg(ask.exact.0);
        let (replica, ttl) = ask.lease.map_or(("", Duration::ZERO), |lease| (lease.replica, lease.ttl));
        cmd.arg(replica).arg(Micros(0).plus(ttl).0);
        cmd.arg(match ask.limits.combine() {
            Combine::All => "all",
            Combine::Any => "any",
            Combine::OneOf => "one",
        });
        cmd.arg(if ask.police { "police" } else { "shape" }).arg(u8::from(derived)).arg(ask.generation);
        tell_limits(cmd, ask.limits.iter().as_slice(), Some(ask));
        tell_costs(cmd, ask, derived);
        call
    }

    pub(super) fn cancel(&self, keys: &[String], cancel: &Cancel<'_>, now: Now) -> Call<'_> {
        let mut call = Call::new(&self.cancel, keys, 32);
        let cmd = &mut call.command;
        tell_now(cmd, now);
        cmd.arg(cancel.slot.0);
        tell_limits(cmd, cancel.limits.iter().as_slice(), None);
        for ((before, after), cost) in cancel.before.iter().zip(cancel.after).zip(cancel.charged) {
            cmd.arg(cost);
            for number in [before.numbers(), after.numbers()].as_flattened() {
                cmd.arg(number);
            }
        }
        call
    }

    pub(super) fn reset(&self, keys: &[String], limits: &LimitSet, now: Now) -> Call<'_> {
        let mut call = Call::new(&self.reset, keys, 16);
        tell_now(&mut call.command, now);
        tell_limits(&mut call.command, limits.iter().as_slice(), None);
        call
    }

    /// `known` and `ahead` are what the worker knows of the downstream.
    pub(super) fn tend(
        &self,
        keys: &[String],
        (channel, downstream): (&str, &str),
        change: &Change<'_>,
        now: Now,
        (known, ahead, run): (Micros, Duration, i64),
    ) -> Call<'_> {
        let script = if let Change::Reset { .. } = change { &self.restart } else { &self.tend };
        let mut call = Call::new(script, keys, 16);
        let cmd = &mut call.command;
        tell_now(cmd, now);
        cmd.arg(known.0).arg(run).arg(horizon(ahead).0).arg(channel).arg(downstream);
        let micros = |span: Duration| Micros(0).plus(span).0;
        let pause = |span: Option<Duration>| span.map_or(-1, micros);
        match change {
            Change::Look => cmd.arg("look"),
            Change::Penalize(span) => cmd.arg("penalize").arg(micros(*span)),
            Change::Pause(span) => cmd.arg("pause").arg(pause(*span)),
            Change::Resume => cmd.arg("resume"),
            Change::Terms { of, text } => cmd.arg("terms").arg(of).arg(text),
            Change::Reset { limits } => {
                tell_limits(cmd, limits, None);
                cmd
            }
            Change::Recall(recall) => {
                let left = pause(recall.pause);
                cmd.arg("recall").arg(micros(recall.penalty)).arg(left).arg(recall.version);
                recall.terms.iter().fold(cmd, |cmd, terms| cmd.arg(recall.generation).arg(terms))
            }
        };
        call
    }
}

/// How far ahead slots may lie that a store has lost.
fn horizon(ahead: Duration) -> Micros {
    Micros(0).plus(ahead.min(LONGEST_FENCE))
}

/// The scripts: most calls for one limit and for several, reserve for the GCRA family alone and for
/// all, cancel, reset, tend, restart.
pub(super) fn sources() -> [String; 8] {
    let fast = |main| format!("{FAST}{main}");
    let all = |main| format!("{LIB}{WINDOWS}{main}");
    let reserve = include_str!("lua/reserve.lua");
    [
        fast(include_str!("lua/one.lua")),
        fast(include_str!("lua/many.lua")),
        format!("{LIB}{reserve}"),
        all(reserve),
        all(include_str!("lua/cancel.lua")),
        all(include_str!("lua/reset.lua")),
        format!("{}{}", include_str!("lua/lib.lua"), include_str!("lua/tend.lua")),
        all(include_str!("lua/restart.lua")),
    ]
}

/// What [`Store::reserve`](crate::Store::reserve) and [`Store::check`](crate::Store::check) ask, as the
/// script takes it.
pub(super) struct Ask<'a> {
    pub(super) limits: &'a LimitSet,
    pub(super) costs: Costs<'a>,
    pub(super) ahead: Duration,
    /// The latest slot that is exact.
    pub(super) exact: Micros,
    pub(super) lease: Option<Lease<'a>>,
    pub(super) police: bool,
    pub(super) generation: u64,
    /// From where on edges of calendars are sent, and up to where at least.
    pub(super) edges: (Micros, Micros),
    /// The windows as the worker last heard of them, by limit: what a store lost is made good by it.
    pub(super) known: Windows,
}

/// Windows, by the limit's name, each with the epoch in which it was heard of.
pub(super) type Windows = HashMap<String, (Micros, Window)>;

fn tell_now(cmd: &mut Cmd, now: Now) {
    match now {
        Now::Store => cmd.arg("store").arg(0),
        Now::Clock(now) => cmd.arg("clock").arg(now.0),
    };
}

fn tell_limits(cmd: &mut Cmd, limits: &[Limit], ask: Option<&Ask<'_>>) {
    cmd.arg(limits.len());
    for limit in limits {
        match limit.algorithm() {
            Algorithm::LeakyBucket(bucket) => tell_pace(cmd, "t", bucket.rate(), bucket.burst()),
            Algorithm::Gcra(gcra) => tell_pace(cmd, "g", gcra.rate(), gcra.burst()),
            Algorithm::TokenBucket(bucket) => {
                tell_pace(cmd, "g", bucket.refill(), bucket.capacity());
            }
            Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => {
                tell_window(cmd, counting, ask, ask.and_then(|ask| ask.known.get(limit.name())));
            }
            Algorithm::SlidingWindow(window) => {
                cmd.arg("c").arg(window.count()).arg(window.width()).arg(window.buckets());
            }
            Algorithm::SlidingLog(log) => {
                cmd.arg("l").arg(log.count()).arg(log.period());
            }
        }
    }
}

fn tell_pace(cmd: &mut Cmd, letter: &str, rate: Rate, burst: u32) {
    cmd.arg(letter).arg(rate.count()).arg(rate.period_micros()).arg(burst);
}

fn tell_window(cmd: &mut Cmd, counting: Counting, ask: Option<&Ask<'_>>, known: Option<&(Micros, Window)>) {
    let (count, (epoch, known)) = (counting.count(), known.copied().unwrap_or_default());
    let mut tell = |letter: &str| {
        cmd.arg(letter).arg(count).arg(epoch.0).arg(known.end.0).arg(known.used);
    };
    match counting.edges() {
        Edges::Aligned { period, offset } => {
            tell("w");
            cmd.arg(period).arg(offset);
        }
        Edges::FirstHit { period } => {
            tell("f");
            cmd.arg(period);
        }
        Edges::Calendar(calendar) => {
            let edges = ask.map(|ask| ask.edges(calendar)).unwrap_or_default();
            tell("q");
            cmd.arg(calendar.longest()).arg(edges.len());
            for edge in edges {
                cmd.arg(edge.0);
            }
        }
    }
}

fn tell_costs(cmd: &mut Cmd, ask: &Ask<'_>, derived: bool) {
    let limits = ask.limits;
    let width = if matches!(ask.costs, Costs::Each(_)) && limits.is_plain() { 1 } else { limits.len() };
    cmd.arg(width);
    if !derived {
        for unit in &limits.unit()[..limits.len()] {
            cmd.arg(unit);
        }
    }
    let mut rows = limits.rows(ask.costs).peekable();
    while let Some(row) = rows.next() {
        let mut jobs = 1;
        while rows.next_if_eq(&row).is_some() {
            jobs += 1;
        }
        for cost in &row[..width] {
            cmd.arg(cost);
        }
        cmd.arg(jobs);
    }
}

impl Ask<'_> {
    /// A calendar's edges: the last one up to where they are sent from, those up to where they are sent to,
    /// and as many more as the jobs of this call can use up.
    fn edges(&self, calendar: Calendar) -> Vec<Micros> {
        let (from, to) = self.edges;
        let until = from.plus(self.ahead).plus(SLACK);
        let mut spare = self.limits.jobs(self.costs) + 2;
        let mut edge = calendar.current(from);
        let mut edges = vec![edge];
        // The end of time is no edge, but there is none after it.
        while spare > 0 && edge < Micros::MAX {
            edge = calendar.next(edge);
            edges.push(edge);
            if edge > to {
                spare = if edge > until { 0 } else { spare - 1 };
            }
        }
        edges
    }
}

/// What an answer says, beyond the outcomes.
pub(super) struct Heard {
    pub(super) now: Micros,
    pub(super) epoch: Micros,
    before: Vec<Mark>,
    status: Status,
}

/// Reads the answer.
///
/// # Errors
/// What is wrong with it.
fn heard(limits: &LimitSet, reply: &ReserveReply) -> Result<Heard, String> {
    let (now, epoch, .., before, _, numbers) = reply;
    let (marks, rest) = before.as_chunks::<3>();
    if marks.len() != limits.len() || !rest.is_empty() {
        return Err(format!("{} numbers of marks for {} limits", before.len(), limits.len()));
    }
    let mark = |(limit, numbers): (&Limit, &[i64; 3])| {
        limit.mark_of(*numbers).ok_or_else(|| format!("the mark {numbers:?} of `{}`", limit.name()))
    };
    let before = limits.iter().zip(marks).map(mark).collect::<Result<_, _>>()?;
    Ok(Heard { now: Micros(*now), epoch: Micros(*epoch), before, status: status(numbers)? })
}

/// Reads penalty, pause, version, generation and reset.
///
/// # Errors
/// What is wrong with them.
pub(super) fn status(numbers: &[i64]) -> Result<Status, String> {
    let count = |number: i64| u64::try_from(number).ok();
    let read = || {
        let &[penalty, until, version, generation, reset] = numbers else { return None };
        let pause = Pause { until: Micros(until), version: count(version)? };
        let (generation, reset) = (count(generation)?, count(reset)?);
        Some(Status { penalty: Micros(penalty), pause, generation, reset })
    };
    read().ok_or_else(|| format!("the status {numbers:?}"))
}

/// Reads what a change came to.
///
/// # Errors
/// What is wrong with the answer.
pub(super) fn tended(reply: TendReply) -> Result<Tended, String> {
    let (now, epoch, penalty, pause, version, generation, reset, terms) = reply;
    let status = status(&[penalty, pause, version, generation, reset])?;
    Ok(Tended { now: Micros(now), epoch: Micros(epoch), status, terms })
}

/// All states of the GCRA family, which are their marks.
fn states(limits: &LimitSet, marks: &[Mark]) -> Vec<State> {
    let state = |(limit, mark): (&Limit, &Mark)| limit.state_of(*mark).unwrap_or_else(|| limit.fresh());
    limits.iter().zip(marks).map(state).collect()
}

/// From where to where to send edges of calendars, where the script missed some.
pub(super) fn missed(reply: &ReserveReply) -> Option<(Micros, Micros)> {
    (reply.1 == -1).then_some((Micros(reply.0), Micros(reply.6)))
}

/// The slots of an answer. Those of the GCRA family are derived with the kernel, from the states before
/// the first and the number granted.
///
/// # Errors
/// What is wrong with the answer.
pub(super) fn reserved(call: &Reserve<'_>, reply: &ReserveReply) -> Result<Reserved, String> {
    let limits = call.limits;
    let Heard { now, epoch, before, status } = heard(limits, reply)?;
    let outdated = !status.is_current(call.generation);
    let &(_, _, replicas, granted, refused, limit, next, _, ref outcomes, _) = reply;
    let replicas = call.lease.map(|_| replicas);
    let refused = (refused >= 0).then_some(Refusal { slot: Micros(refused), limit });
    if !limits.is_tat() {
        let (pairs, rest) = outcomes.as_chunks::<2>();
        if pairs.len() != granted || !rest.is_empty() {
            return Err(format!("{granted} slots in {} numbers", outcomes.len()));
        }
        let slots = pairs.iter().map(|[slot, _]| Micros(*slot)).collect();
        let charges = pairs.iter().map(|[_, charge]| charged(*charge)).collect::<Result<_, _>>()?;
        let next = Micros(next);
        return Ok(Reserved {
            now,
            epoch,
            before,
            slots,
            charges,
            refused,
            next,
            replicas,
            status,
            outdated,
        });
    }
    let mut states = states(limits, &before);
    let plan = call.plan(&mut states, now, &status);
    // What the script committed and what is handed out here must be the same slots.
    if plan.slots.len() != granted || plan.refused != refused {
        return Err(format!(
            "{granted} slots, then {refused:?}, where {} and {:?} follow from its state",
            plan.slots.len(),
            plan.refused
        ));
    }
    let next = match refused {
        Some(refused) => refused.slot,
        None if status.is_stopped() => Micros::MAX,
        None => limits.earliest(&states, now, 1),
    };
    let Plan { slots, charges, refused } = plan;
    Ok(Reserved { now, epoch, before, slots, charges, refused, next, replicas, status, outdated })
}

/// The marks after all slots of an answer.
pub(super) fn marks_after(call: &Reserve<'_>, reserved: &Reserved) -> Vec<Mark> {
    let limits = call.limits;
    let each = reserved.slots.iter().zip(&reserved.charges).zip(limits.rows(call.costs));
    each.fold(reserved.before.clone(), |marks, ((&slot, &charge), row)| {
        limits.marks_after(&marks, slot, &limits.charged(&row, charge))
    })
}

/// The verdicts of an answer, derived as [`reserved`] derives slots; and the marks after them.
///
/// # Errors
/// What is wrong with the answer.
pub(super) fn checked(call: &Check<'_>, reply: &ReserveReply) -> Result<(Checked, Vec<Mark>), String> {
    let limits = call.limits;
    let Heard { now, epoch, before: mut marks, status } = heard(limits, reply)?;
    let outdated = !status.is_current(call.generation);
    let (_, _, _, granted, _, _, _, _, outcomes, _) = reply;
    if limits.is_tat() {
        let verdicts = call.police(&mut states(limits, &marks), now, &status);
        let allowed = verdicts.iter().filter(|verdict| verdict.earliest <= now).count();
        if allowed != *granted {
            return Err(format!("{granted} allowed, where {allowed} follow from its state"));
        }
        return Ok((Checked { now, epoch, verdicts, status, outdated }, marks));
    }
    let told = limits.iter().filter(|limit| limit.fresh().is_partly_marked()).count();
    let (size, jobs) = (3 + 2 * told, if outdated { 0 } else { limits.jobs(call.costs) });
    if outcomes.len() != size * jobs {
        return Err(format!("{} numbers for {jobs} jobs; each has {size}", outcomes.len()));
    }
    let mut verdicts = Vec::with_capacity(jobs);
    for (outcome, row) in outcomes.chunks_exact(size).zip(limits.rows(call.costs)) {
        let charge = charged(outcome[1])?;
        marks = limits.marks_after(&marks, now, &limits.charged(&row, charge));
        let mut told = outcome[3..].as_chunks::<2>().0.iter();
        let standing = |(limit, mark): (&Limit, &Mark)| match limit.state_of(*mark) {
            Some(state) => Some(limit.standing(&state, now)),
            None => told.next().map(|&[remaining, reset_at]| Standing {
                limit: limit.burst(),
                remaining: u64::try_from(remaining).unwrap_or_default(),
                reset_at: Micros(reset_at),
            }),
        };
        let standings = limits.iter().zip(&marks).filter_map(standing).collect();
        let limit = usize::try_from(outcome[2]).map_err(|_| format!("limit {}", outcome[2]))?;
        verdicts.push(Verdict { earliest: Micros(outcome[0]), charge, limit, standings });
    }
    Ok((Checked { now, epoch, verdicts, status, outdated }, marks))
}

fn charged(bits: i64) -> Result<Charge, String> {
    u32::try_from(bits).map(Charge).map_err(|_| format!("the charge {bits}"))
}
