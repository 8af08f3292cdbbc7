//! The outcomes of earlier runs over the same input, by which a later run continues.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde::Deserialize;
use tokio::io::AsyncBufRead;
use uuid::Uuid;

use super::MAX_LINE;
use super::history::Releases;
use super::records::Records;
use crate::job::shown;
use crate::time::Micros;

/// How every outcome begins.
const BEGINNING: &[u8] = b"{\"line\":";

/// What is known of an entry of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Earlier {
    id: String,
    /// Why it is not sent again; `None` if it is.
    done: Option<Done>,
}

/// Why a job is not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Done {
    /// An operator cancelled it.
    Cancelled,
    /// It was delivered.
    Delivered,
}

/// The outcomes of earlier runs, by the line of the input.
#[derive(Debug, Default)]
pub struct Outcomes {
    earlier: BTreeMap<u64, Earlier>,
    releases: Releases,
}

/// What to do with an entry of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It has no outcome yet.
    Send,
    /// It has one, and was neither delivered nor cancelled: it is sent again, under this id.
    SendAgain(String),
    /// It is not sent again.
    Skip(Done),
}

/// The reason why a file of outcomes is not that of the input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Both have a job for a line, and these differ.
    #[error(
        "line {line} of the input is {given}, and the outcome there is that of job {earlier}; give the input of that run, or \
         another file for the outcomes"
    )]
    Id {
        /// The line of the input.
        line: u64,
        /// The job in the input, control characters escaped.
        given: String,
        /// The id in the outcome, control characters escaped.
        earlier: String,
    },
    /// The input has no job at a line.
    #[error(
        "line {line} of the input is no job, and there is an outcome of job {earlier} for it; give the input of that run, \
         or another file for the outcomes"
    )]
    NoJob {
        /// The line of the input.
        line: u64,
        /// The id in the outcome, control characters escaped.
        earlier: String,
    },
}

/// The reason why outcomes cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The file is in use.
    #[error("another run writes its outcomes there; wait for its end")]
    Locked,
    /// The file has something else than outcomes in it.
    #[error("line {0} is no outcome of a pipe; name the file that an earlier run wrote, or a new one")]
    Foreign(u64),
    /// Two outcomes of one line name two jobs.
    #[error(
        "line {0} names another job than an outcome before it for the same line of the input; use one file per input"
    )]
    Ambiguous(u64),
    /// An error of the system.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A file of outcomes that is continued.
#[derive(Debug)]
pub struct Resumed {
    /// What is known from earlier runs.
    pub outcomes: Outcomes,
    /// The file, locked, at its end.
    pub file: File,
    /// Whether its last line was half written, and was removed.
    pub was_torn: bool,
}

/// The keys of an outcome that are needed.
#[derive(Deserialize)]
struct Recorded {
    line: u64,
    id: String,
    outcome: String,
    #[serde(default)]
    released_at: Option<String>,
    #[serde(default = "one")]
    cost: u32,
}

const fn one() -> u32 {
    1
}

impl Outcomes {
    /// Adds an outcome; false if an earlier one names another job for its line.
    fn add(&mut self, recorded: Recorded) -> bool {
        let Recorded { line, id, outcome, released_at, cost } = recorded;
        if let Some(slot) = released_at.and_then(|text| text.parse::<jiff::Timestamp>().ok()) {
            self.releases.add(Micros(slot.as_microsecond()), cost);
        }
        let done = match outcome.as_str() {
            "delivered" => Some(Done::Delivered),
            "cancelled" => Some(Done::Cancelled),
            _ => None,
        };
        let entry = self.earlier.entry(line).or_insert_with(|| Earlier { id: id.clone(), done: None });
        entry.done = entry.done.max(done);
        entry.id == id
    }

    /// Takes the releases of the earlier runs out.
    pub fn take_releases(&mut self) -> Releases {
        std::mem::take(&mut self.releases)
    }

    /// What to do with the job at this line, which has this id in the input. Each line is asked for once.
    pub(super) fn step(&mut self, line: u64, id: Option<&str>) -> Result<Step, Mismatch> {
        self.passed(line)?;
        let Some(Earlier { id: earlier, done }) = self.earlier.remove(&line) else {
            return Ok(Step::Send);
        };
        let is_same = match id {
            Some(id) => id == earlier,
            // The run gave the job an id, of that kind.
            None => Uuid::parse_str(&earlier).is_ok_and(|id| id.get_version_num() == 7),
        };
        match (is_same, done) {
            (true, Some(done)) => Ok(Step::Skip(done)),
            (true, None) => Ok(Step::SendAgain(earlier)),
            (false, _) => {
                let given = id.map_or_else(
                    || "a job without an id".to_owned(),
                    |id| format!("job {}", shown(id.as_bytes(), 255)),
                );
                Err(Mismatch::Id { line, given, earlier: shown(earlier.as_bytes(), 255) })
            }
        }
    }

    /// Checks that the input has a job for every outcome up to this line.
    fn passed(&self, line: u64) -> Result<(), Mismatch> {
        match self.earlier.first_key_value() {
            Some((first, earlier)) if *first < line => {
                Err(Mismatch::NoJob { line: *first, earlier: shown(earlier.id.as_bytes(), 255) })
            }
            _ => Ok(()),
        }
    }

    /// Checks at the end of the input that it had a job for every outcome.
    pub(super) fn end(&self) -> Result<(), Mismatch> {
        self.passed(u64::MAX)
    }
}

/// Opens a file of outcomes, which need not exist, for a run that continues where earlier ones were cut off. The end of a
/// line that was half written is removed. Reads the file, so it blocks.
///
/// # Errors
/// [`ResumeError`]; the file is then as it was.
pub fn resume(path: &Path) -> Result<Resumed, ResumeError> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    lock(&file)?;
    let mut outcomes = Outcomes::default();
    let (mut number, mut whole) = (0, 0);
    let mut reader = BufReader::new(&file);
    let mut line = Vec::new();
    let last = loop {
        line.clear();
        // A line is read with its line feed, so the bound is one byte more.
        io::Read::take(&mut reader, MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            break std::mem::take(&mut line);
        }
        number += 1;
        if !line.trim_ascii().is_empty() {
            add(&mut outcomes, &line, number)?;
        }
        whole += line.len() as u64;
    };
    let was_torn = match serde_json::from_slice::<Recorded>(&last) {
        Ok(_) => {
            add(&mut outcomes, &last, number + 1)?;
            whole += last.len() as u64;
            false
        }
        Err(_) if is_torn(&last) => !last.is_empty(),
        Err(_) => return Err(ResumeError::Foreign(number + 1)),
    };
    file.set_len(whole)?;
    file.seek(SeekFrom::End(0))?;
    if !was_torn && !last.is_empty() {
        file.write_all(b"\n")?;
    }
    Ok(Resumed { outcomes, file, was_torn })
}

/// Whether the text may be the beginning of an outcome.
fn is_torn(text: &[u8]) -> bool {
    text.len() <= MAX_LINE && (text.starts_with(BEGINNING) || BEGINNING.starts_with(text))
}

fn add(outcomes: &mut Outcomes, line: &[u8], number: u64) -> Result<(), ResumeError> {
    let recorded = serde_json::from_slice(line).map_err(|_| ResumeError::Foreign(number))?;
    if outcomes.add(recorded) { Ok(()) } else { Err(ResumeError::Ambiguous(number)) }
}

/// Locks the file as long as it is open, so that no other run sends the same jobs.
#[cfg(target_os = "linux")]
fn lock(file: &File) -> Result<(), ResumeError> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(ResumeError::Locked),
        // A file system without locks is no reason to refuse.
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn lock(_: &File) -> Result<(), ResumeError> {
    Ok(())
}

/// Checks, before anything is sent, that the input has a job for every outcome, and counts its entries.
///
/// # Errors
/// The first mismatch, or an error of the reader.
pub async fn survey<R: AsyncBufRead + Unpin>(
    mut records: Records<R>,
    outcomes: &Outcomes,
) -> io::Result<Result<u64, Mismatch>> {
    let mut left = Outcomes { earlier: outcomes.earlier.clone(), ..Outcomes::default() };
    let mut count = 0;
    while let Some(entry) = records.next().await? {
        count += 1;
        if let Ok(message) = &entry.job
            && let Err(mismatch) = left.step(entry.line, message.message_id.as_deref())
        {
            return Ok(Err(mismatch));
        }
    }
    Ok(left.end().map(|()| count))
}

#[cfg(test)]
mod tests;
