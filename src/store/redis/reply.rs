//! The answers of the scripts, parsed once into structs with names.

use std::sync::Arc;

use redis::Value;

use super::packed::{all, doubles};
use crate::limit::{Charge, Limit, LimitSet, Mark, Passed, Plan, Refusal, Standing, State, Verdict};
use crate::store::{
    Booking, Charges, Check, Checked, CoolDown, LONGEST_NOTE, NextTurn, Pause, RecordState, Reserve,
    Reserved, Stamp, Status, Tombstone, TombstoneReply, Turn,
};
use crate::time::Micros;

/// The answer to a call for slots.
#[derive(Debug)]
pub(super) struct Reply {
    stamp: Stamp,
    /// The instant from which slots were granted.
    from: Micros,
    replicas: u32,
    /// The number of jobs granted where the worker derives the slots, otherwise the number of outcomes.
    granted: usize,
    refused: Option<Refusal>,
    /// The next slot, if the call asked for it.
    next: Option<Micros>,
    booking: Option<Booking>,
    /// The mark of each limit before the first slot was taken.
    before: Vec<Mark>,
    outcomes: Vec<i64>,
}

/// The answer of a script that may lack edges of calendars.
#[derive(Debug)]
pub(super) enum Answer {
    Reply(Box<Reply>),
    /// The edges of calendars between these instants are missing.
    Missing(Micros, Micros),
}

/// The answer of `record.lua` and `restart.lua`.
pub(super) type RecordReply = (Vec<u8>, Option<String>, Vec<u8>, Option<CoolDownReply>);

/// A cool-down in an answer: its level, the instant from which on a probe may go, the end of the holder's lease, and the
/// holder.
pub(super) type CoolDownReply = (i64, i64, i64, Vec<u8>);

/// The answer of `tombstones.lua`: the stamp, numbers, and ids.
pub(super) type TombstonesReply = (Vec<u8>, Vec<u8>, Vec<String>);

const STAMP: usize = 8 * 8;

/// Parses the stamp that begins every answer. Returns what follows it too.
fn read_stamp(packed: &[u8]) -> Result<(Stamp, &[u8]), String> {
    let wrong = || format!("an answer of {} bytes", packed.len());
    let (head, rest) = packed.split_at_checked(STAMP).ok_or_else(wrong)?;
    let [generation, epoch, penalty, until, version, reset, tombstones, now] =
        doubles(head).ok_or_else(wrong)?;
    let status = status([penalty, until, version, generation, reset, tombstones])?;
    Ok((Stamp { now: Micros(now), epoch: Micros(epoch), status }, rest))
}

/// Builds the status from penalty, pause, its version, generation, reset and the version of the tombstones.
///
/// # Errors
/// A text that says what is wrong with the numbers.
pub(super) fn status(
    [penalty, until, version, generation, reset, tombstones]: [i64; 6],
) -> Result<Status, String> {
    Ok(Status {
        penalty: Micros(penalty),
        pause: Pause { until: Micros(until), version: count(version)? },
        generation: count(generation)?,
        reset: count(reset)?,
        tombstones: count(tombstones)?,
    })
}

fn count<T: TryFrom<i64>>(number: i64) -> Result<T, String> {
    T::try_from(number).map_err(|_| format!("the number {number}"))
}

impl Reply {
    /// Parses the answer of a fast script, or one of `reserve.lua`'s; `None` where the script does not apply to the call.
    ///
    /// # Errors
    /// A text that says what is wrong with the answer.
    pub(super) fn fast(answer: &Value, limits: &LimitSet, is_whole: bool) -> Result<Option<Self>, String> {
        let packed = match answer {
            Value::Nil => return Ok(None),
            Value::BulkString(packed) => packed,
            other => return Err(format!("{other:?} for slots")),
        };
        if is_whole {
            return Self::whole(packed, limits.iter()).map(Some);
        }
        let (stamp, rest) = read_stamp(packed)?;
        let [granted, refused, limit, marks @ ..] = &all(rest)[..] else {
            return Err(format!("slots in {} bytes", packed.len()));
        };
        Ok(Some(Self {
            stamp,
            from: stamp.now,
            replicas: 0,
            granted: count(*granted)?,
            refused: refusal(*refused, *limit)?,
            next: None,
            booking: None,
            before: read_marks(limits.iter(), marks)?,
            outcomes: vec![],
        }))
    }

    fn whole<'a>(packed: &[u8], limits: impl Iterator<Item = &'a Limit> + Clone) -> Result<Self, String> {
        let (stamp, rest) = read_stamp(packed)?;
        let [from, replicas, granted, refused, limit, next, reach, begins, units, spacing, lead, rest @ ..] =
            &all(rest)[..]
        else {
            return Err(format!("slots in {} bytes", packed.len()));
        };
        let marks = 3 * limits.clone().count();
        let (marks, outcomes) =
            rest.split_at_checked(marks).ok_or_else(|| format!("{} numbers of marks", rest.len()))?;
        let turn = [*begins, *units, *spacing, *lead];
        Ok(Self {
            stamp,
            from: Micros(*from),
            replicas: count(*replicas)?,
            granted: count(*granted)?,
            refused: refusal(*refused, *limit)?,
            next: (*next >= 0).then_some(Micros(*next)),
            booking: if *reach > 0 { Some(booking(*reach, turn)?) } else { None },
            before: read_marks(limits, marks)?,
            outcomes: outcomes.to_vec(),
        })
    }

    /// The states of the GCRA family before the call, which are their marks.
    fn states(&self, limits: &LimitSet) -> Vec<State> {
        let state = |(limit, mark): (&Limit, &Mark)| limit.state_of(*mark).unwrap_or_else(|| limit.fresh());
        limits.iter().zip(&self.before).map(state).collect()
    }

    /// Derives the slots of an answer. Those of the GCRA family are computed with the kernel, from the states before
    /// the first and the number granted.
    ///
    /// # Errors
    /// A text that says what is wrong with the answer.
    pub(super) fn reserved(self, call: &Reserve<'_>) -> Result<Reserved, String> {
        let Stamp { now, status, .. } = self.stamp;
        let limits = call.limits;
        let (plan, next) = if limits.is_tat() && call.lanes.is_none() && call.sharing.horizon().is_none() {
            let mut states = self.states(limits);
            let plan = call.plan(&mut states, (now, self.from), &status);
            // The slots derived here must be those that the script committed.
            if plan.slots.len() != self.granted || plan.refused != self.refused {
                return Err(format!(
                    "{} slots, then {:?}, where {} and {:?} follow from its state",
                    self.granted,
                    self.refused,
                    plan.slots.len(),
                    plan.refused
                ));
            }
            let next = match plan.refused {
                Some(refused) => refused.slot,
                None if status.is_stopped() => Micros::MAX,
                None => limits.earliest(&states, self.from, 1),
            };
            (plan, next)
        } else {
            (self.plan(call)?, self.next.unwrap_or(Micros::MAX))
        };
        let Plan { slots, charges: jobs, passed, refused, .. } = plan;
        Ok(Reserved {
            stamp: self.stamp,
            slots,
            charges: Charges { before: self.before, jobs },
            passed,
            refused,
            next,
            replicas: call.sharing.lease().map(|_| self.replicas),
            booking: self.booking,
            outdated: !status.is_current(call.generation),
        })
    }

    /// The plan in an answer: for each job its slot and charge, or why it was passed over.
    fn plan(&self, call: &Reserve<'_>) -> Result<Plan, String> {
        let (pairs, rest) = self.outcomes.as_chunks::<2>();
        if pairs.len() != self.granted || !rest.is_empty() {
            return Err(format!("{} jobs in {} numbers", self.granted, self.outcomes.len()));
        }
        let in_lanes = call.lanes.map(|lanes| lanes.charges(call.limits, call.costs));
        if let Some(charges) = in_lanes.as_ref().filter(|charges| charges.len() < pairs.len()) {
            return Err(format!("{} jobs of {}", pairs.len(), charges.len()));
        }
        let mut plan = Plan { refused: self.refused, ..Plan::default() };
        for (job, &[slot, charge]) in pairs.iter().enumerate() {
            let slot = Micros(slot);
            if charge < 0 {
                let refusal = Refusal { slot, limit: count(-1 - charge)? };
                plan.passed.push(Passed { job, refusal });
                continue;
            }
            plan.slots.push(slot);
            plan.charges.push(match &in_lanes {
                Some(charges) => charges.get(job).copied().ok_or_else(|| format!("a job {job}"))?,
                None => charged(charge)?,
            });
        }
        Ok(plan)
    }

    /// Derives the verdicts of an answer as [`Reply::reserved`] derives slots, and the marks after them.
    ///
    /// # Errors
    /// A text that says what is wrong with the answer.
    pub(super) fn checked(self, call: &Check<'_>) -> Result<(Checked, Vec<Mark>), String> {
        let (stamp, Stamp { now, status, .. }) = (self.stamp, self.stamp);
        let (limits, outdated) = (call.limits, !status.is_current(call.generation));
        if limits.is_tat() {
            let verdicts = call.police(&mut self.states(limits), now, &status);
            let allowed = verdicts.iter().filter(|verdict| verdict.earliest <= now).count();
            if allowed != self.granted {
                return Err(format!("{} allowed, where {allowed} follow from its state", self.granted));
            }
            return Ok((Checked { stamp, verdicts, outdated }, self.before));
        }
        let mut marks = self.before;
        let counted = limits.iter().filter(|limit| limit.fresh().is_partly_marked()).count();
        let (size, jobs) = (3 + 2 * counted, if outdated { 0 } else { limits.jobs(call.costs) });
        if self.outcomes.len() != size * jobs {
            return Err(format!("{} numbers for {jobs} jobs; each has {size}", self.outcomes.len()));
        }
        let mut verdicts = Vec::with_capacity(jobs);
        for (outcome, row) in self.outcomes.chunks_exact(size).zip(limits.rows(call.costs)) {
            let charge = charged(outcome[1])?;
            marks = limits.marks_after(&marks, now, &limits.charged(&row, charge));
            let mut numbers = outcome[3..].as_chunks::<2>().0.iter();
            let standing = |(limit, mark): (&Limit, &Mark)| match limit.state_of(*mark) {
                Some(state) => Some(limit.standing(&state, now)),
                None => numbers.next().map(|&[remaining, reset_at]| Standing {
                    limit: limit.burst(),
                    remaining: u64::try_from(remaining).unwrap_or_default(),
                    reset_after: Micros(reset_at).since(now),
                }),
            };
            let standings = limits.iter().zip(&marks).filter_map(standing).collect();
            let limit = count(outcome[2])?;
            verdicts.push(Verdict { earliest: Micros(outcome[0]), charge, limit, standings });
        }
        Ok((Checked { stamp, verdicts, outdated }, marks))
    }
}

impl Answer {
    /// Parses the answer of `reserve.lua`.
    ///
    /// # Errors
    /// A text that says what is wrong with the answer.
    pub(super) fn read<'a>(
        packed: &[u8],
        limits: impl Iterator<Item = &'a Limit> + Clone,
    ) -> Result<Self, String> {
        match doubles(packed) {
            Some([from, to]) => Ok(Self::Missing(Micros(from), Micros(to))),
            None => Reply::whole(packed, limits).map(|reply| Self::Reply(Box::new(reply))),
        }
    }
}

fn refusal(slot: i64, limit: i64) -> Result<Option<Refusal>, String> {
    let refused = || Ok(Refusal { slot: Micros(slot), limit: count(limit)? });
    (slot >= 0).then(refused).transpose()
}

fn booking(reach: i64, [begins, units, spacing, lead]: [i64; 4]) -> Result<Booking, String> {
    let span = |micros| count(micros).map(std::time::Duration::from_micros);
    let next = match (begins, units) {
        (..0, _) => NextTurn::None,
        (_, 0) => NextTurn::Later(Micros(begins)),
        _ => NextTurn::At(Turn {
            begins: Micros(begins),
            units: u32::try_from(units).unwrap_or(u32::MAX),
            spacing: span(spacing)?,
            lead: span(lead)?,
        }),
    };
    Ok(Booking { reach: span(reach)?, next })
}

fn read_marks<'a>(
    limits: impl Iterator<Item = &'a Limit> + Clone,
    numbers: &[i64],
) -> Result<Vec<Mark>, String> {
    let (marks, rest) = numbers.as_chunks::<3>();
    let count = limits.clone().count();
    if marks.len() != count || !rest.is_empty() {
        return Err(format!("{} numbers of marks for {count} limits", numbers.len()));
    }
    let mark = |(limit, numbers): (&Limit, &[i64; 3])| {
        limit.mark_of(*numbers).ok_or_else(|| format!("the mark {numbers:?} of `{}`", limit.name()))
    };
    limits.zip(marks).map(mark).collect()
}

/// Parses the record after a change.
///
/// # Errors
/// A text that says what is wrong with the answer.
pub(super) fn record((packed, terms, note, cooling): RecordReply) -> Result<RecordState, String> {
    let (Stamp { now, epoch, status }, rest) = read_stamp(&packed)?;
    if rest.is_empty() {
        let (note, cool_down) = (note_on(&status, note), cooling.map(cool_down).transpose()?);
        Ok(RecordState { now, epoch, status, terms, note, cool_down })
    } else {
        Err(format!("{} bytes for how things stand", packed.len()))
    }
}

/// The note on the pause that is in the status, if it is of that pause. What paced has not written is ignored.
fn note_on(status: &Status, note: Vec<u8>) -> Option<String> {
    let note = String::from_utf8(note).ok()?;
    let (version, text) = note.split_once(':')?;
    let is_of_pause = version.parse() == Ok(status.pause.version) && text.len() <= LONGEST_NOTE;
    is_of_pause.then(|| text.to_owned())
}

fn cool_down((level, at, until, holder): CoolDownReply) -> Result<CoolDown, String> {
    let holder = (!holder.is_empty()).then(|| String::from_utf8_lossy(&holder).into_owned());
    Ok(CoolDown { level: count(level)?, at: Micros(at), holder, until: Micros(until) })
}

/// Parses the answer about tombstones; `None` if there would be too many.
///
/// # Errors
/// A text that says what is wrong with the answer.
pub(super) fn tombstones((stamp, numbers, ids): TombstonesReply) -> Result<Option<TombstoneReply>, String> {
    let (Stamp { now, epoch, status }, rest) = read_stamp(&stamp)?;
    let numbers = all(&numbers);
    let [changed, before, up_to, instants @ ..] = &numbers[..] else {
        return Err(format!("{} numbers of tombstones", numbers.len()));
    };
    if !rest.is_empty() || instants.len() != ids.len() {
        return Err(format!("{} instants of {} tombstones", instants.len(), ids.len()));
    }
    if *changed < 0 {
        return Ok(None);
    }
    let tombstone = |(id, at): (String, &i64)| Tombstone {
        id: Arc::from(id),
        until: Micros(at.abs()),
        is_undone: *at < 0,
    };
    Ok(Some(TombstoneReply {
        now,
        epoch,
        status,
        changed: count(*changed)?,
        before: count(*before)?,
        page: ids.into_iter().zip(instants).map(tombstone).collect(),
        up_to: count(*up_to)?,
    }))
}

fn charged(bits: i64) -> Result<Charge, String> {
    u32::try_from(bits).map(Charge).map_err(|_| format!("the charge {bits}"))
}

#[cfg(test)]
mod tests;
