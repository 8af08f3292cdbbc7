//! The arguments of `record.lua` that describe a change.

use std::time::Duration;

use crate::store::redis::packed::Packed;
use crate::store::{Change, CoolDownCall};
use crate::time::Micros;

/// The name of a change and its text; its numbers are appended to `numbers`.
pub(in crate::store::redis) fn encode_change<'a>(
    numbers: &mut Packed,
    change: Option<&Change<'a>>,
) -> (&'static str, Option<&'a str>) {
    let micros = |span: Duration| Micros(0).plus(span).0;
    let pause = |span: Option<Duration>| span.map_or(-1, micros);
    let Some(change) = change else { return ("read", None) };
    match change {
        // A reset has a script of its own.
        Change::Reset { .. } => ("read", None),
        Change::Penalize(span) => {
            numbers.put([micros(*span)]);
            ("penalize", None)
        }
        Change::Pause { span, note } => {
            numbers.put([pause(*span)]);
            ("pause", Some(note))
        }
        Change::Resume => ("resume", None),
        Change::Terms { of, text } => {
            numbers.put_count(*of);
            ("terms", Some(text))
        }
        Change::Recall(recall) => {
            numbers.put([micros(recall.penalty), pause(recall.pause)]);
            numbers.put_count(recall.version);
            numbers.put_count(recall.generation);
            ("recall", recall.terms)
        }
        Change::CoolDown(call) => encode_cool_down(numbers, call),
    }
}

fn encode_cool_down<'a>(numbers: &mut Packed, call: &CoolDownCall<'a>) -> (&'static str, Option<&'a str>) {
    let micros = |span: Duration| Micros(0).plus(span).0;
    match *call {
        CoolDownCall::Refused { replica, first, most } => {
            numbers.put([micros(first), micros(most)]);
            ("refused", Some(replica))
        }
        CoolDownCall::Probe { replica, ttl } => {
            numbers.put([micros(ttl)]);
            ("probe", Some(replica))
        }
        CoolDownCall::Again { replica, first, most } => {
            numbers.put([micros(first), micros(most)]);
            ("again", Some(replica))
        }
        CoolDownCall::Over { replica } => ("over", Some(replica)),
    }
}
