//! Temporary files of bounded length. Each is gone once all that was written to it has been taken, so that nothing is ever
//! copied from one to another.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::fstatvfs;
use uuid::Uuid;

const MIB: u64 = 1024 * 1024;

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
    /// At most 128 files.
    fn default() -> Self {
        Self { file: 32 * MIB, bytes: 4096 * MIB, jobs: 1_000_000 }
    }
}

/// The files, which have no names.
#[derive(Debug, Default)]
pub(super) struct Files {
    bounds: Bounds,
    /// By their numbers. Only the last one is written to.
    files: BTreeMap<u32, Part>,
    /// The length of all files.
    bytes: u64,
    jobs: u64,
    /// The number of the next file.
    next: u32,
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

/// The place of a job: all but its body, and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    file: u32,
    at: u32,
    head: u32,
    body: u32,
}

impl Files {
    /// Writes a job. It blocks for a moment.
    ///
    /// # Errors
    /// A bound is reached, or an error of the system. Nothing is kept of the job then.
    pub(super) fn add(&mut self, head: &[u8], body: &[u8]) -> io::Result<Extent> {
        let (start, length) = (head.len() as u64, (head.len() + body.len()) as u64);
        let Bounds { file: longest, bytes, jobs } = self.bounds;
        if self.jobs >= jobs || self.bytes + length > bytes {
            let most = format!("at most {jobs} jobs, or {} MiB, wait there", bytes / MIB);
            return Err(io::Error::other(most));
        }
        if self.files.last_key_value().is_none_or(|(_, part)| part.end >= longest) {
            self.begin()?;
        }
        let Some(mut last) = self.files.last_entry() else { return Err(io::ErrorKind::NotFound.into()) };
        let number = *last.key();
        let part = last.get_mut();
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
            // What was written of it may be what another needs.
            let _ = part.file.set_len(part.end);
            if part.jobs == 0 {
                last.remove();
            }
            return Err(error);
        }
        part.end += length;
        part.jobs += 1;
        self.bytes += length;
        self.jobs += 1;
        Ok(extent)
    }

    /// Takes a job out, once: all but its body, and the body. It blocks for a moment.
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
            entry.remove();
        }
        read
    }

    fn begin(&mut self) -> io::Result<()> {
        let file = temporary()?;
        let disk = fstatvfs(&file)?;
        // Some file systems have no bound, or do not say what is free.
        let free = if disk.f_blocks == 0 { u64::MAX } else { disk.f_bavail.saturating_mul(disk.f_frsize) };
        if !leaves_enough(free, self.bytes, self.bounds.file) {
            return Err(io::Error::other("less room would be left for others than these jobs take"));
        }
        self.files.insert(self.next, Part { file, end: 0, jobs: 0 });
        self.next += 1;
        Ok(())
    }
}

impl Part {
    fn read(&self, Extent { at, head, body, .. }: Extent) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (mut first, mut second) = (vec![0; head as usize], vec![0; body as usize]);
        self.file.read_exact_at(&mut first, at.into())?;
        self.file.read_exact_at(&mut second, u64::from(at) + u64::from(head))?;
        Ok((first, second))
    }
}

/// Whether a disk with this room has as much left for others, once one more file is full, as all of these take.
const fn leaves_enough(free: u64, taken: u64, file: u64) -> bool {
    free >= taken.saturating_add(file.saturating_mul(2))
}

fn short(length: u64) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// A file that is gone once it is closed, for this user alone.
fn temporary() -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = std::env::temp_dir().join(format!("paced-{}", Uuid::now_v7()));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { file: 100, bytes: 1000, jobs: 50 };

    fn taken(files: &mut Files, extent: Extent) -> (String, String) {
        let (head, body) = files.take(extent).expect("read");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(head), text(body))
    }

    #[test]
    fn a_file_is_gone_once_all_that_it_holds_was_taken() {
        let mut files = Files::within(BOUNDS);
        let extents: Vec<Extent> = (0..9)
            .map(|n| files.add(format!("head {n}").as_bytes(), &[b'x'; 44]).expect("written"))
            .collect();
        assert_eq!(files.size(), (5, 450), "two of 50 bytes in each");
        assert_eq!(taken(&mut files, extents[3]), ("head 3".to_owned(), "x".repeat(44)));
        assert_eq!(files.size(), (5, 450), "another one waits in that file");
        assert_eq!(taken(&mut files, extents[2]).0, "head 2");
        assert_eq!(files.size(), (4, 350));
        for index in [8, 0, 1, 4, 7, 5, 6] {
            assert_eq!(taken(&mut files, extents[index]).0, format!("head {index}"));
        }
        assert_eq!(files.size(), (0, 0));
        let again = files.add(b"", b"").expect("written");
        assert_eq!(taken(&mut files, again), (String::new(), String::new()));
    }

    #[test]
    fn no_more_are_taken_than_the_bounds_allow() {
        let mut files = Files::within(BOUNDS);
        let all: Vec<Extent> = (0..50).map(|_| files.add(b"h", b"b").expect("written")).collect();
        let error = files.add(b"h", b"b").expect_err("fifty wait").to_string();
        assert_eq!(error, "at most 50 jobs, or 0 MiB, wait there");
        for extent in all {
            assert_eq!(taken(&mut files, extent), ("h".to_owned(), "b".to_owned()));
        }
        let long = files.add(b"h", &[0; 998]).expect("written");
        assert!(files.add(b"h", b"b").is_err(), "1001 bytes");
        assert!(files.add(b"h", b"").is_ok(), "1000 bytes");
        assert_eq!(files.take(long).expect("read").1.len(), 998);
        assert_eq!(files.size(), (1, 1), "there is room again");
        assert!(files.add(b"h", &[0; 998]).is_ok());
    }

    #[test]
    fn others_keep_as_much_room_as_is_taken() {
        assert!(leaves_enough(64, 0, 32) && !leaves_enough(63, 0, 32));
        assert!(leaves_enough(1064, 1000, 32) && !leaves_enough(1063, 1000, 32));
        assert!(!leaves_enough(u64::MAX - 1, u64::MAX, 32));
    }
}
