//! The properties of dead letters, of replayed and parked jobs and of replies. It has no I/O.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use super::message::is_ours;
use super::properties::PERSISTENT;
use crate::bounded_log::BoundedLog;
use crate::dispatch::{DeadLetter, ParkReason, Stay};
use crate::sink::excerpt_len;
use crate::time::Micros;

pub(super) const REASON: &str = "paced-reason";
pub(super) const DETAIL: &str = "paced-detail";
pub(super) const STATUS: &str = "paced-status";
pub(super) const ATTEMPTS: &str = "paced-attempts";
pub(super) const ROUTING_KEY: &str = "paced-routing-key";
pub(super) const DEAD_AT: &str = "paced-dead-at";
const RESPONSE: &str = "paced-response";
/// The broker's account of its own dead-lettering.
const DEATHS: &str = "x-death";

/// The headers that a dead letter has beyond its job's own.
const REPORT: [&str; 7] = [REASON, DETAIL, STATUS, ATTEMPTS, ROUTING_KEY, DEAD_AT, RESPONSE];

const PARKED: &str = "paced-parked";
const PARKED_FOR: &str = "paced-parked-for";
const FIRST_SEEN: &str = "paced-first-seen";
const THROTTLED: &str = "paced-throttled";
const REFUSED: &str = "paced-refused";
const UNREADABLE: &str = "paced-unreadable";
const EXPIRATION: &str = "paced-expiration";
/// Headers of brokers (`x-`) do not become part of a job. So an older version of paced, which does not know this
/// header, still accepts the copy as a job.
const VERSIONS: &str = "x-opt-paced-versions";

/// The headers that a parked job has beyond its own, besides some of [`REPORT`].
const STAY: [&str; 7] = [PARKED, PARKED_FOR, FIRST_SEEN, THROTTLED, REFUSED, UNREADABLE, EXPIRATION];

/// The longest `paced-detail`, in bytes: all headers must fit one frame.
const MAX_DETAIL: usize = 1024;

/// The most that the properties besides the headers can take of a frame: ten short strings and a few bytes.
const OTHER_PROPERTIES: usize = 3 * 1024;

/// The properties of the copy that goes to the dead letters.
pub(super) fn dead_letter(
    properties: &BasicProperties,
    routing_key: &str,
    letter: &DeadLetter,
    now: Micros,
    frame_max: usize,
) -> BasicProperties {
    let mut headers = job_headers(properties);
    let detail = bounded(&letter.detail);
    headers.push((REASON.into(), text(letter.reason.as_str())));
    headers.push((DETAIL.into(), text(detail)));
    if let Some(status) = letter.report.status {
        headers.push((STATUS.into(), AMQPValue::LongLongInt(status.into())));
    }
    headers.push((ATTEMPTS.into(), AMQPValue::LongLongInt(letter.report.attempts.into())));
    headers.push((ROUTING_KEY.into(), text(routing_key)));
    headers.push((DEAD_AT.into(), AMQPValue::LongLongInt(now.0 / 1000)));
    if !letter.response.is_empty() {
        // A long string takes any bytes; nearly always they are text.
        let response = &letter.response[..excerpt_len(&letter.response)];
        headers.push((RESPONSE.into(), AMQPValue::LongString(LongString::from(response))));
    }
    // Without the response the job is still whole.
    let rank = |name: &str| if name == RESPONSE { Some(0) } else { (!REPORT.contains(&name)).then_some(1) };
    fit(&mut headers, frame_max, "dead letter", rank);
    rebuild(properties, headers)
}

/// The properties of the copy that is parked. Its expiration would shorten the stay, so it becomes a header.
///
/// If the headers do not fit a frame, some are dropped, but none that the job's request is made from: first headers
/// that brokers add (`x-`), then others that paced does not read. `None` if that is not enough.
pub(super) fn parked(
    properties: &BasicProperties,
    routing_key: &str,
    stay: &Stay,
    frame_max: usize,
) -> Option<BasicProperties> {
    let number = |value: i64| AMQPValue::LongLongInt(value);
    let mut headers = job_headers(properties);
    // Rounded up, since a job must never be early.
    headers.push((PARKED.into(), number(stay.until.0.saturating_add(999) / 1000)));
    headers.push((PARKED_FOR.into(), text(stay.reason.as_str())));
    // It is in µs, since jobs are ordered by it.
    headers.push((FIRST_SEEN.into(), number(stay.first_seen.0)));
    headers.push((ATTEMPTS.into(), number(stay.attempts.into())));
    headers.push((ROUTING_KEY.into(), text(routing_key)));
    let counts = [(THROTTLED, stay.throttled), (REFUSED, stay.refused), (UNREADABLE, stay.unreadable)];
    for (name, count) in counts {
        if count > 0 {
            headers.push((name.into(), number(count.into())));
        }
    }
    let expiration = properties.expiration().as_ref().map(ToString::to_string);
    if let Some(expiration) = expiration.or_else(|| header(properties, EXPIRATION)) {
        headers.push((EXPIRATION.into(), text(&expiration)));
    }
    if let Some(versions) = &stay.versions {
        headers.push((VERSIONS.into(), text(versions)));
    }
    let rank = |name: &str| (!is_ours(name)).then_some(u8::from(!name.starts_with("x-")));
    if !fit(&mut headers, frame_max, "parked job", rank) {
        return None;
    }
    let rebuilt = rebuild(properties, headers);
    Some(match stay.assigned_id.as_deref().map(ShortString::try_new) {
        Some(Ok(id)) => rebuilt.with_message_id(id),
        _ => rebuilt,
    })
}

/// The stay of a parked job that came back; `None` if it was published by somebody else.
pub(super) fn stay(properties: &BasicProperties) -> Option<Stay> {
    let number = |name| header(properties, name)?.parse::<i64>().ok();
    let count = |name| number(name).and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
    let millis = |value: i64| Micros(value.clamp(0, Micros::MAX.0 / 1000) * 1000);
    let reason = header(properties, PARKED_FOR)?;
    Some(Stay {
        until: millis(number(PARKED)?),
        reason: ParkReason::ALL.into_iter().find(|known| known.as_str() == reason)?,
        attempts: count(ATTEMPTS),
        throttled: count(THROTTLED),
        refused: count(REFUSED),
        unreadable: count(UNREADABLE),
        first_seen: Micros(number(FIRST_SEEN)?.clamp(0, Micros::MAX.0)),
        assigned_id: None,
        versions: versions(properties),
    })
}

/// The versions of the limits, counts and pauses for which a job was parked, as of its parking.
pub(super) fn versions(properties: &BasicProperties) -> Option<String> {
    header(properties, VERSIONS)
}

/// Whether the message is the copy of a job that was parked.
pub(super) fn is_parked(properties: &BasicProperties) -> bool {
    properties.headers().as_ref().is_some_and(|headers| headers.contains_key(PARKED))
}

/// Whether the broker itself made the message a letter, such as one that expired in the queue of the jobs: then it
/// has this header. paced publishes no letter with it.
pub(super) fn is_by_broker(properties: &BasicProperties) -> bool {
    properties.headers().as_ref().is_some_and(|headers| headers.contains_key(DEATHS))
}

/// The routing key that a parked job was published with.
pub(super) fn parked_key(properties: &BasicProperties) -> Option<ShortString> {
    ShortString::try_new(header(properties, ROUTING_KEY)?).ok()
}

/// The changes to a letter before it is replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Headers to set, by name.
    pub set: Vec<(String, String)>,
    /// Headers to remove, by name.
    pub unset: Vec<String>,
    /// Drops the `message_id`, so that the job counts as a new one.
    pub new_id: bool,
}

/// The properties of a letter that becomes a job again.
///
/// # Errors
/// The name of a header that is longer than 255 bytes.
pub(super) fn replay(properties: &BasicProperties, edits: &Edits) -> Result<BasicProperties, String> {
    let mut headers = job_headers(properties);
    let touched = |name: &str| {
        edits.unset.iter().any(|unset| unset == name) || edits.set.iter().any(|(set, _)| set == name)
    };
    headers.retain(|(name, _)| !touched(name.as_str()));
    for (name, value) in &edits.set {
        let key = ShortString::try_new(name.as_str()).map_err(|_| name.clone())?;
        headers.push((key, text(value)));
    }
    let rebuilt = rebuild(properties, headers);
    Ok(if edits.new_id { without_id(&rebuilt) } else { rebuilt })
}

/// The properties of a job whose age counts from now on, if they have its time of creation.
pub(super) fn made_now(properties: BasicProperties, now: Micros) -> BasicProperties {
    match (properties.timestamp(), u64::try_from(now.0 / 1_000_000)) {
        (Some(_), Ok(seconds)) => properties.with_timestamp(seconds),
        _ => properties,
    }
}

/// The properties of a reply.
pub(super) fn reply(correlation_id: Option<&ShortString>) -> BasicProperties {
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT);
    match correlation_id {
        Some(id) => properties.with_correlation_id(id.clone()),
        None => properties,
    }
}

/// The text of a header, or its number as text.
pub(super) fn header(properties: &BasicProperties, name: &str) -> Option<String> {
    match properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        AMQPValue::LongLongInt(number) => Some(number.to_string()),
        AMQPValue::LongInt(number) => Some(number.to_string()),
        AMQPValue::LongUInt(number) => Some(number.to_string()),
        AMQPValue::ShortInt(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The start of the response because of which the letter's job became a dead letter, as text. It is cut here too,
/// since anybody who may write to the queue can put a longer one there.
pub(super) fn response(properties: &BasicProperties) -> Option<String> {
    let AMQPValue::LongString(response) = properties.headers().as_ref()?.inner().get(RESPONSE)? else {
        return None;
    };
    let bytes = response.as_bytes();
    Some(String::from_utf8_lossy(&bytes[..excerpt_len(bytes)]).into_owned())
}

/// The routing key that a letter's job was published with, if the letter has it: from the broker's record of its own
/// dead-lettering (`x-death`), or from paced's header. Where there is a record, the header may be the producer's.
pub(super) fn routing_key(properties: &BasicProperties) -> Option<String> {
    let Some(deaths) = properties.headers().as_ref()?.inner().get(DEATHS) else {
        return header(properties, ROUTING_KEY);
    };
    let AMQPValue::FieldArray(deaths) = deaths else { return None };
    // The newest death is the first entry. The producer may have sent the others.
    let AMQPValue::FieldTable(death) = deaths.as_slice().first()? else { return None };
    let AMQPValue::FieldArray(keys) = death.inner().get("routing-keys")? else { return None };
    match keys.as_slice().first()? {
        AMQPValue::LongString(key) => Some(key.to_string()),
        AMQPValue::ShortString(key) => Some(key.to_string()),
        _ => None,
    }
}

/// The approximate size of the headers in their frame.
pub(super) fn size(properties: &BasicProperties) -> usize {
    let headers = properties.headers().as_ref();
    OTHER_PROPERTIES + headers.map_or(0, |table| table.into_iter().map(|(k, v)| entry(k, v)).sum())
}

/// The job's own headers, without an earlier report, and without those that would make the broker drop the message
/// when it is published again (it drops a "dead-letter cycle" silently).
fn job_headers(properties: &BasicProperties) -> Vec<(ShortString, AMQPValue)> {
    let Some(table) = properties.headers() else { return Vec::new() };
    table
        .into_iter()
        .filter(|(name, _)| !is_report(name.as_str()) && !is_brokers(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Whether paced itself writes this header on copies.
pub(super) fn is_report(name: &str) -> bool {
    REPORT.contains(&name) || STAY.contains(&name)
}

fn is_brokers(name: &str) -> bool {
    matches!(name, DEATHS | "x-delivery-count" | "x-acquired-count" | "x-delay" | "CC" | "BCC")
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
        // One of these is the delivery time that a future version of quorum queues reads.
        || name.starts_with("x-opt-")
}

/// All properties but the expiration, which would shorten the stay in the next queue, and the user id, which the broker
/// refuses if it is not ours.
fn rebuild(properties: &BasicProperties, headers: Vec<(ShortString, AMQPValue)>) -> BasicProperties {
    let mut new = without_id(properties)
        .with_headers(FieldTable::from(headers.into_iter().collect::<BTreeMap<_, _>>()));
    if let Some(id) = properties.message_id() {
        new = new.with_message_id(id.clone());
    }
    new
}

/// The fields that every copy keeps, and the headers as they are.
fn without_id(old: &BasicProperties) -> BasicProperties {
    let mut new = BasicProperties::default().with_delivery_mode(PERSISTENT);
    if let Some(headers) = old.headers() {
        new = new.with_headers(headers.clone());
    }
    if let Some(value) = old.content_type() {
        new = new.with_content_type(value.clone());
    }
    if let Some(value) = old.content_encoding() {
        new = new.with_content_encoding(value.clone());
    }
    if let Some(value) = old.priority() {
        new = new.with_priority(*value);
    }
    if let Some(value) = old.correlation_id() {
        new = new.with_correlation_id(value.clone());
    }
    if let Some(value) = old.reply_to() {
        new = new.with_reply_to(value.clone());
    }
    if let Some(value) = old.timestamp() {
        new = new.with_timestamp(*value);
    }
    if let Some(value) = old.kind() {
        new = new.with_type(value.clone());
    }
    if let Some(value) = old.app_id() {
        new = new.with_app_id(value.clone());
    }
    if let Some(value) = old.cluster_id() {
        new = new.with_cluster_id(value.clone());
    }
    new
}

/// The log of dropped headers is bounded, since anybody who publishes could cause a line for each message.
static HEADER_LOG: LazyLock<Arc<BoundedLog>> = LazyLock::new(|| {
    BoundedLog::new(|summary| {
        let (headers, copies) = (summary.lines, &summary);
        tracing::warn!(headers, %copies, "dropped headers of copies; too many to log each");
    })
});

/// Drops headers until all fit one frame: those of the lowest rank first, and of these the largest; those without a
/// rank stay. Returns whether the rest fits. Without this, a message that arrived with nearly a frame of headers
/// could not be published again: the broker would close the connection at each attempt.
fn fit(
    headers: &mut Vec<(ShortString, AMQPValue)>,
    frame_max: usize,
    copy: &'static str,
    rank: impl Fn(&str) -> Option<u8>,
) -> bool {
    let sizes = headers.iter().map(|(name, value)| (name, entry(name, value)));
    let budget = frame_max.saturating_sub(OTHER_PROPERTIES);
    let mut over = sizes.clone().map(|(_, size)| size).sum::<usize>().saturating_sub(budget);
    let ranked = sizes.filter_map(|(name, size)| Some((rank(name.as_str())?, Reverse(size), name.clone())));
    let mut ranked: Vec<_> = if over > 0 { ranked.collect() } else { Vec::new() };
    ranked.sort_unstable_by_key(|(rank, size, _)| (*rank, *size));
    let mut dropped = BTreeSet::new();
    for (_, Reverse(size), name) in ranked {
        if over > 0 {
            over = over.saturating_sub(size);
            dropped.insert(name);
        }
    }
    headers.retain(|(name, _)| !dropped.contains(name));
    for header in dropped.iter().filter(|_| over == 0) {
        HEADER_LOG.line(copy, || {
            tracing::warn!(
                header = header.as_str(),
                "dropped a header of a {copy}: the headers do not fit one frame"
            );
        });
    }
    over == 0
}

fn entry(name: &ShortString, value: &AMQPValue) -> usize {
    1 + name.as_str().len() + value_size(value)
}

fn value_size(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::ShortString(v) => 1 + v.as_str().len(),
        AMQPValue::LongString(v) => 4 + v.len(),
        AMQPValue::ByteArray(v) => 4 + v.as_slice().len(),
        AMQPValue::FieldArray(v) => 4 + v.as_slice().iter().map(value_size).sum::<usize>(),
        AMQPValue::FieldTable(v) => 4 + v.into_iter().map(|(k, v)| entry(k, v)).sum::<usize>(),
        _ => 8,
    }
}

/// The text, cut to [`MAX_DETAIL`] bytes at a character.
fn bounded(detail: &str) -> &str {
    let mut end = detail.len().min(MAX_DETAIL);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    &detail[..end]
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

#[cfg(test)]
mod tests;
