//! Temporary files of bounded length. Each is gone once all that was written to it has been taken, so that nothing is ever
//! copied from one to another. Jobs that wait for about as long as each other are in the same files: one that waits for
//! a week does not keep the space of many that wait for an hour.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::env::temp_dir;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::fstatvfs;
use uuid::Uuid;

const MIB: u64 = 1024 * 1024;

/// After this number of bytes, the room on the disk is read again.
const CHECKED: u64 = MIB;

/// The bounds of what waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The length from which on a file takes no more, and the next one is begun.
    pub(super) file: u64,
    /// The most bytes of all files.
    pub(super) bytes: u64,
    /// The most jobs: each takes some memory too.
    pub(super) jobs: u64,
}

impl Default for Bounds {
    /// At most 128 files that are full, and one more for each of about ten spans of time.
    fn default() -> Self {
        Self { file: 32 * MIB, bytes: 4096 * MIB, jobs: 1_000_000 }
    }
}

/// The files, which have no names.
#[derive(Debug, Default)]
pub(super) struct Files {
    bounds: Bounds,
    /// By their numbers.
    files: BTreeMap<u32, Part>,
    /// The number of the file that was begun last for each [`span`].
    last: BTreeMap<u32, u32>,
    /// The length of all files.
    bytes: u64,
    jobs: u64,
    /// The number of the next file.
    next: u32,
    /// How many bytes are written before the room on the disk is read again.
    unchecked: u64,
}

/// The reason why a job is not kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unkept {
    #[error("{jobs} jobs wait in temporary files, or these have {} MiB; no more may", .bytes / MIB)]
    Bound { jobs: u64, bytes: u64 },
    #[error("the disk of {} would have less room left for others than jobs for later take", temp_dir().display())]
    Room,
    #[error("cannot write to a temporary file in {folder}: {error}", folder = temp_dir().display(), error = .0)]
    Failed(#[from] io::Error),
}

/// One file.
#[derive(Debug)]
struct Part {
    file: File,
    /// The end of the last job in it.
    end: u64,
    /// The jobs that wait in it.
    jobs: u64,
}

/// The place of a job: its message without the body, and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    file: u32,
    at: u32,
    head: u32,
    body: u32,
}

impl Files {
    /// Writes a job that waits for this time. It blocks for a moment.
    ///
    /// # Errors
    /// Nothing is kept of the job then.
    pub(super) fn add(&mut self, wait: Duration, head: &[u8], body: &[u8]) -> Result<Extent, Unkept> {
        let (start, length) = (head.len() as u64, (head.len() + body.len()) as u64);
        let Bounds { bytes, jobs, .. } = self.bounds;
        if self.jobs >= jobs || self.bytes + length > bytes {
            return Err(Unkept::Bound { jobs, bytes });
        }
        let number = self.file_for(span(wait))?;
        let Entry::Occupied(mut entry) = self.files.entry(number) else {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        };
        let part = entry.get_mut();
        if self.unchecked < length {
            if !leaves_enough(free(&part.file)?, self.bytes, length + CHECKED) {
                return Err(Unkept::Room);
            }
            self.unchecked = length + CHECKED;
        }
        let extent = Extent {
            file: number,
            at: short(part.end)?,
            head: short(start)?,
            body: short(body.len() as u64)?,
        };
        let written = part
            .file
            .write_all_at(head, part.end)
            .and_then(|()| part.file.write_all_at(body, part.end + start));
        if let Err(error) = written {
            // The part that was written takes room on the disk that another job may need.
            let _ = part.file.set_len(part.end);
            if part.jobs == 0 {
                entry.remove();
            }
            return Err(error.into());
        }
        part.end += length;
        part.jobs += 1;
        self.bytes += length;
        self.unchecked -= length;
        self.jobs += 1;
        Ok(extent)
    }

    /// Takes a job out, once: its message without the body, and the body. It blocks for a moment.
    ///
    /// # Errors
    /// It cannot be read back, and is lost.
    pub(super) fn take(&mut self, extent: Extent) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let Entry::Occupied(mut entry) = self.files.entry(extent.file) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let part = entry.get_mut();
        let read = part.read(extent);
        part.jobs -= 1;
        self.jobs -= 1;
        if part.jobs == 0 {
            self.bytes -= part.end;
            // Where jobs come one by one, each would take a file of its own.
            if part.end >= self.bounds.file || part.empty().is_err() {
                entry.remove();
            }
        }
        read
    }

    /// The number of the file for jobs of this span, which is begun if need be.
    fn file_for(&mut self, span: u32) -> io::Result<u32> {
        let has_room = |number: &u32| self.files.get(number).is_some_and(|part| part.end < self.bounds.file);
        if let Some(number) = self.last.get(&span).copied().filter(has_room) {
            return Ok(number);
        }
        let number = self.next;
        self.files.insert(number, Part { file: temporary()?, end: 0, jobs: 0 });
        self.last.insert(span, number);
        self.next += 1;
        Ok(number)
    }
}

/// Which jobs are in the same files, by the time for which they wait: up to 3 minutes, 15, 63, and so on. The space of a job
/// that went is free again after at most four times the time that it waited, once its file is full.
fn span(wait: Duration) -> u32 {
    (wait.as_secs() / 60 + 1).ilog(4)
}

/// The bytes that are free on the disk of a file.
fn free(file: &File) -> io::Result<u64> {
    let disk = fstatvfs(file)?;
    // Some file systems have no bound, or do not say what is free.
    Ok(if disk.f_blocks == 0 { u64::MAX } else { disk.f_bavail.saturating_mul(disk.f_frsize) })
}

impl Part {
    fn read(&self, Extent { at, head, body, .. }: Extent) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (mut first, mut second) = (vec![0; head as usize], vec![0; body as usize]);
        self.file.read_exact_at(&mut first, at.into())?;
        self.file.read_exact_at(&mut second, u64::from(at) + u64::from(head))?;
        Ok((first, second))
    }

    /// Empties it: the next write begins at its start.
    fn empty(&mut self) -> io::Result<()> {
        self.end = 0;
        self.file.set_len(0)
    }
}

/// Whether a disk with this room has as much left for others, once this many more bytes are written, as all files take.
const fn leaves_enough(free: u64, taken: u64, more: u64) -> bool {
    free >= taken.saturating_add(more.saturating_mul(2))
}

fn short(length: u64) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// A file that is gone once it is closed, for this user alone.
fn temporary() -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = temp_dir().join(format!("paced-{}", Uuid::now_v7()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
impl Files {
    pub(super) fn within(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// The number of files, and their length.
    pub(super) fn size(&self) -> (usize, u64) {
        (self.files.len(), self.bytes)
    }

    /// Has another file written to, and returns the one before.
    pub(super) fn replace_last(&mut self, other: File) -> File {
        let mut last = self.files.last_entry().expect("a file");
        std::mem::replace(&mut last.get_mut().file, other)
    }

    pub(super) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { file: 100, bytes: 1000, jobs: 50 };
    const HOUR: Duration = Duration::from_secs(3600);

    fn taken(files: &mut Files, extent: Extent) -> (String, String) {
        let (head, body) = files.take(extent).expect("read");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(head), text(body))
    }

    #[test]
    fn a_file_is_gone_once_all_that_it_holds_was_taken() {
        let mut files = Files::within(BOUNDS);
        let extents: Vec<Extent> = (0..9)
            .map(|n| files.add(HOUR, format!("head {n}").as_bytes(), &[b'x'; 44]).expect("written"))
            .collect();
        assert_eq!(files.size(), (5, 450), "two of 50 bytes in each");
        assert_eq!(taken(&mut files, extents[3]), ("head 3".to_owned(), "x".repeat(44)));
        assert_eq!(files.size(), (5, 450), "another one waits in that file");
        assert_eq!(taken(&mut files, extents[2]).0, "head 2");
        assert_eq!(files.size(), (4, 350));
        for index in [8, 0, 1, 4, 7, 5, 6] {
            assert_eq!(taken(&mut files, extents[index]).0, format!("head {index}"));
        }
        assert_eq!(files.size(), (1, 0), "one that is not full is used again");
        let again = files.add(HOUR, b"", b"").expect("written");
        assert_eq!(taken(&mut files, again), (String::new(), String::new()));
        assert_eq!(files.size(), (1, 0));
    }

    /// Far more than the bounds allow goes through, while one job after the other stays.
    #[test]
    fn jobs_that_wait_long_keep_no_space_of_those_that_went() {
        let mut files = Files::within(BOUNDS);
        let week = 7 * 24 * HOUR;
        let mut stay = Vec::new();
        for _ in 0..10 {
            stay.push(files.add(week, b"h", b"b").expect("written"));
            for _ in 0..20 {
                let extent = files.add(HOUR, b"head", &[b'x'; 46]).expect("written");
                assert_eq!(taken(&mut files, extent).0, "head");
            }
        }
        assert_eq!(files.size(), (2, 20));
        assert!(stay.into_iter().all(|extent| taken(&mut files, extent).1 == "b"));
    }

    #[test]
    fn jobs_wait_with_those_that_wait_up_to_four_times_as_long() {
        let minutes = |minutes: u64| span(Duration::from_secs(60 * minutes));
        assert_eq!([0, 2, 3, 14, 15, 62, 63, 525_600].map(minutes), [0, 0, 1, 1, 2, 2, 3, 9]);
    }

    #[test]
    fn no_more_are_taken_than_the_bounds_allow() {
        let mut files = Files::within(BOUNDS);
        let all: Vec<Extent> = (0..50).map(|_| files.add(HOUR, b"h", b"b").expect("written")).collect();
        let error = files.add(HOUR, b"h", b"b").expect_err("fifty wait").to_string();
        assert_eq!(error, "50 jobs wait in temporary files, or these have 0 MiB; no more may");
        for extent in all {
            assert_eq!(taken(&mut files, extent), ("h".to_owned(), "b".to_owned()));
        }
        let long = files.add(HOUR, b"h", &[0; 998]).expect("written");
        assert!(files.add(HOUR, b"h", b"b").is_err(), "1001 bytes");
        assert!(files.add(HOUR, b"h", b"").is_ok(), "1000 bytes");
        assert_eq!(files.take(long).expect("read").1.len(), 998);
        assert_eq!(files.size(), (1, 1), "there is room again");
        assert!(files.add(HOUR, b"h", &[0; 998]).is_ok());
    }

    #[test]
    fn others_keep_as_much_room_as_is_taken() {
        assert!(leaves_enough(64, 0, 32) && !leaves_enough(63, 0, 32));
        assert!(leaves_enough(1064, 1000, 32) && !leaves_enough(1063, 1000, 32));
        assert!(!leaves_enough(u64::MAX - 1, u64::MAX, 32));
    }
}
