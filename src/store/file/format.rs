//! The lines of the file: a checksum, a space, and an object of JSON. The first line says that the file is a store. Others are
//! entries, of which later ones replace earlier ones, and ends of batches: entries without an end behind them were
//! not written completely, and no caller got an answer that depends on them.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clocks::Clocks;
use crate::limit::{Buckets, Level, Log, State, Tat, Under, Window};
use crate::rate::Rate;
use crate::store::journal::{Entry, KeptRecord, KeptState};
use crate::store::{CoolDown, HistoryEntry, Pause, Status, Tombstone};
use crate::time::{Micros, Uptime};

/// The version of the format. A store reads those up to its own.
const VERSION: u32 = 1;

/// What the first line begins with, behind its checksum.
const BEGIN: &[u8] = br#" {"paced_store":"#;

/// The length of a checksum.
const SUM: usize = 16;

/// The number of bytes that show whether a file is a store.
pub(super) const HEAD: usize = SUM + BEGIN.len();

/// The identity of a batch: its file and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchId {
    /// When the file was begun. After a crash some file systems show old blocks behind the end of a file, such as those of the
    /// file that it has replaced.
    pub(super) begun: Micros,
    /// Its number in the file, from 1 on.
    pub(super) number: u64,
}

impl BatchId {
    /// The first batch of a file.
    pub(super) const fn first(begun: Micros) -> Self {
        Self { begun, number: 1 }
    }

    /// The one behind it.
    pub(super) const fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }
}

/// Why a file cannot be read as a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormatError {
    /// It is something else.
    #[error("it is no store of paced; name another file in store.url")]
    Foreign,
    /// It is empty, which no store ever is.
    #[error(
        "it is empty, as by a copy that failed; restore it, or remove it: then what was used of limits is forgotten"
    )]
    Empty,
    /// A newer paced has written it.
    #[error(
        "it is of version {0}, which only a newer paced reads; run that one, or name another file in store.url"
    )]
    Newer(u32),
    /// Something in it is not as it was written.
    #[error("line {0} of it is damaged; restore it, or remove it: then what was used of limits is forgotten")]
    Damaged(usize),
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Contents {
    /// The entries of all complete batches.
    pub(super) entries: Vec<Entry>,
    /// The clocks when the last of them was written.
    pub(super) clocks: Clocks,
    /// Whether there is an incomplete batch at the end.
    pub(super) is_torn: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first line: the version, and when the file was begun, which is not read in other versions.
    PacedStore {
        version: u32,
        #[serde(default)]
        begun: i64,
    },
    State {
        downstream: String,
        limit: String,
        key: String,
        kept: Option<StateLine>,
    },
    Record(RecordLine),
    Tombstone {
        downstream: String,
        version: u64,
        id: String,
        until: i64,
        is_undone: bool,
    },
    Parked {
        downstream: String,
        jobs: i64,
    },
    History {
        downstream: String,
        at: i64,
        text: String,
    },
    Served {
        prefix: String,
        name: String,
        at: Option<i64>,
    },
    /// The end of a batch: which one it is, and the clocks.
    End {
        begun: i64,
        batch: u64,
        now: i64,
        uptime: Option<(String, u64)>,
    },
}

#[derive(Serialize, Deserialize)]
struct StateLine {
    last: i64,
    level: LevelLine,
    shift: i64,
    whole: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LevelLine {
    Tat { at: i64, rem: u64, count: u64, period: u64, burst: u32 },
    Window { end: i64, used: u64 },
    Buckets { width: i64, counts: Vec<(i64, u64)>, cleared: i64 },
    Log { entries: Vec<(i64, u64)>, cleared: i64 },
}

#[derive(Serialize, Deserialize)]
struct RecordLine {
    downstream: String,
    epoch: i64,
    shift: i64,
    status: StatusLine,
    terms: Option<String>,
    note: Option<(u64, String)>,
    cool_down: Option<CoolDownLine>,
}

#[derive(Serialize, Deserialize)]
struct StatusLine {
    penalty: i64,
    until: i64,
    version: u64,
    generation: u64,
    reset: u64,
    tombstones: u64,
}

#[derive(Serialize, Deserialize)]
struct CoolDownLine {
    level: u32,
    at: i64,
    holder: Option<String>,
    until: i64,
}

/// A batch behind others as lines.
pub(super) fn encode(batch: BatchId, entries: &[Entry], clocks: &Clocks) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    add(&mut bytes, entries)?;
    end(&mut bytes, batch, clocks)?;
    Ok(bytes)
}

/// A file with nothing in it yet: the line that says what it is. It needs the end of its first batch.
pub(super) fn begin(begun: Micros) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    push(&mut bytes, &Line::PacedStore { version: VERSION, begun: begun.0 })?;
    Ok(bytes)
}

/// Adds entries to a batch.
pub(super) fn add(bytes: &mut Vec<u8>, entries: &[Entry]) -> io::Result<()> {
    entries.iter().try_for_each(|entry| push(bytes, &line(entry)))
}

/// Ends a batch.
pub(super) fn end(bytes: &mut Vec<u8>, batch: BatchId, clocks: &Clocks) -> io::Result<()> {
    let BatchId { begun, number } = batch;
    let uptime = clocks.uptime.as_ref().map(|uptime| (uptime.boot.clone(), micros(uptime.since)));
    push(bytes, &Line::End { begun: begun.0, batch: number, now: clocks.now.0, uptime })
}

fn push(bytes: &mut Vec<u8>, line: &Line) -> io::Result<()> {
    let text = serde_json::to_string(line)?;
    bytes.extend(format!("{:016x} {text}\n", checksum(text.as_bytes())).into_bytes());
    Ok(())
}

/// FNV-1a with 64 bits. It detects lines that were not written completely; it is no protection against changes on
/// purpose.
fn checksum(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Whether the first [`HEAD`] bytes of a file are those of a store.
pub(super) fn begins(head: &[u8]) -> bool {
    let parts = head.split_at_checked(SUM);
    parts.is_some_and(|(sum, text)| sum.iter().all(u8::is_ascii_hexdigit) && text.starts_with(BEGIN))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Reads the lines of a file.
pub(super) fn decode(bytes: &[u8]) -> Result<Contents, FormatError> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').map(parse).zip(1..);
    let mut batch = match lines.next() {
        None => return Err(FormatError::Empty),
        Some((Some(Line::PacedStore { version, begun }), _)) if version <= VERSION => {
            BatchId::first(Micros(begun))
        }
        Some((Some(Line::PacedStore { version, .. }), _)) => return Err(FormatError::Newer(version)),
        Some(_) => return Err(FormatError::Foreign),
    };
    let (mut contents, mut open) = (Contents::default(), Vec::new());
    while let Some((line, number)) = lines.next() {
        contents.is_torn = true;
        match line {
            Some(Line::End { begun, batch: ended, now, uptime })
                if (begun, ended) == (batch.begun.0, batch.number) =>
            {
                let since = |(boot, micros)| Uptime { boot, since: Duration::from_micros(micros) };
                contents.clocks = Clocks { now: Micros(now), uptime: uptime.map(since) };
                contents.entries.append(&mut open);
                (batch, contents.is_torn) = (batch.next(), false);
            }
            // No batch follows one that was not written completely.
            other if is_end_behind(other.as_ref(), batch) => return Err(FormatError::Damaged(number)),
            other => match other.and_then(entry) {
                Some(entry) => open.push(entry),
                None if batch.number == 1 || lines.any(|(line, _)| is_end_behind(line.as_ref(), batch)) => {
                    return Err(FormatError::Damaged(number));
                }
                None => break,
            },
        }
    }
    // The first batch is written as a whole, together with the file.
    if batch.number == 1 { Err(FormatError::Damaged(1)) } else { Ok(contents) }
}

fn is_end_behind(line: Option<&Line>, batch: BatchId) -> bool {
    matches!(
        line,
        Some(Line::End { begun, batch: other, .. }) if *begun == batch.begun.0 && *other > batch.number
    )
}

/// The line, if it is as it was written.
fn parse(bytes: &[u8]) -> Option<Line> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (sum, text) = text.split_once(' ')?;
    let is_right = sum.len() == SUM && u64::from_str_radix(sum, 16) == Ok(checksum(text.as_bytes()));
    is_right.then(|| serde_json::from_str(text).ok()).flatten()
}

fn line(entry: &Entry) -> Line {
    match entry.clone() {
        Entry::State { downstream, limit, key, kept } => {
            Line::State { downstream, limit, key, kept: kept.map(StateLine::from) }
        }
        Entry::Record(record) => Line::Record((*record).into()),
        Entry::Tombstone { downstream, version, tombstone: Tombstone { id, until, is_undone } } => {
            Line::Tombstone { downstream, version, id: id.as_ref().to_owned(), until: until.0, is_undone }
        }
        Entry::Parked { downstream, jobs } => Line::Parked { downstream, jobs },
        Entry::History { downstream, entry: HistoryEntry { at, text } } => {
            Line::History { downstream, at: at.0, text }
        }
        Entry::Served { prefix, name, at } => Line::Served { prefix, name, at: at.map(|at| at.0) },
    }
}

/// The entry on a line, if it has one.
fn entry(line: Line) -> Option<Entry> {
    Some(match line {
        Line::PacedStore { .. } | Line::End { .. } => return None,
        Line::State { downstream, limit, key, kept } => {
            let kept = match kept {
                Some(kept) => Some(kept.state()?),
                None => None,
            };
            Entry::State { downstream, limit, key, kept }
        }
        Line::Record(record) => Entry::Record(Box::new(record.into())),
        Line::Tombstone { downstream, version, id, until, is_undone } => {
            let tombstone = Tombstone { id: id.into(), until: Micros(until), is_undone };
            Entry::Tombstone { downstream, version, tombstone }
        }
        Line::Parked { downstream, jobs } => Entry::Parked { downstream, jobs },
        Line::History { downstream, at, text } => {
            Entry::History { downstream, entry: HistoryEntry { at: Micros(at), text } }
        }
        Line::Served { prefix, name, at } => Entry::Served { prefix, name, at: at.map(Micros) },
    })
}

impl From<KeptState> for StateLine {
    fn from(KeptState { state: State { last, level }, shift, whole }: KeptState) -> Self {
        let pair = |(at, units): (Micros, u64)| (at.0, units);
        let level = match level {
            Level::Tat(Tat { at, rem }, Under { rate, burst }) => {
                LevelLine::Tat { at: at.0, rem, count: rate.count(), period: rate.period_micros(), burst }
            }
            Level::Window(Window { end, used }) => LevelLine::Window { end: end.0, used },
            Level::Buckets(Buckets { width, counts, cleared }) => {
                LevelLine::Buckets { width, counts, cleared: cleared.0 }
            }
            Level::Log(Log { entries, cleared }) => {
                LevelLine::Log { entries: entries.into_iter().map(pair).collect(), cleared: cleared.0 }
            }
        };
        Self { last: last.0, level, shift, whole: whole.0 }
    }
}

impl StateLine {
    /// The state; `None` if its rate is not valid.
    fn state(self) -> Option<KeptState> {
        let Self { last, level, shift, whole } = self;
        let pair = |(at, units): (i64, u64)| (Micros(at), units);
        let level = match level {
            LevelLine::Tat { at, rem, count, period, burst } => {
                let rate = Rate::new(count, Duration::from_micros(period)).ok()?;
                Level::Tat(Tat { at: Micros(at), rem }, Under { rate, burst })
            }
            LevelLine::Window { end, used } => Level::Window(Window { end: Micros(end), used }),
            LevelLine::Buckets { width, counts, cleared } => {
                Level::Buckets(Buckets { width, counts, cleared: Micros(cleared) })
            }
            LevelLine::Log { entries, cleared } => {
                Level::Log(Log { entries: entries.into_iter().map(pair).collect(), cleared: Micros(cleared) })
            }
        };
        let state = State { last: Micros(last), level };
        Some(KeptState { state, shift, whole: Micros(whole) })
    }
}

impl From<KeptRecord> for RecordLine {
    fn from(record: KeptRecord) -> Self {
        let KeptRecord { downstream, epoch, shift, status, terms, note, cool_down } = record;
        let Status { penalty, pause, generation, reset, tombstones } = status;
        let (until, version) = (pause.until.0, pause.version);
        let status = StatusLine { penalty: penalty.0, until, version, generation, reset, tombstones };
        let cool_down = cool_down.map(|CoolDown { level, at, holder, until }| CoolDownLine {
            level,
            at: at.0,
            holder,
            until: until.0,
        });
        Self { downstream, epoch: epoch.0, shift, status, terms, note, cool_down }
    }
}

impl From<RecordLine> for KeptRecord {
    fn from(record: RecordLine) -> Self {
        let RecordLine { downstream, epoch, shift, status, terms, note, cool_down } = record;
        let StatusLine { penalty, until, version, generation, reset, tombstones } = status;
        let pause = Pause { until: Micros(until), version };
        let status = Status { penalty: Micros(penalty), pause, generation, reset, tombstones };
        let cool_down = cool_down.map(|CoolDownLine { level, at, holder, until }| CoolDown {
            level,
            at: Micros(at),
            holder,
            until: Micros(until),
        });
        Self { downstream, epoch: Micros(epoch), shift, status, terms, note, cool_down }
    }
}

#[cfg(test)]
mod tests;
