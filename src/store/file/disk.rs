//! The file on its disk: locked, read, appended to, and replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use super::format::{FormatError, HEAD, begins};
use super::lock::{Lock, LockError, folder, is_at, keep_owner, plain, with_ending};

/// The ending of the name of the next file, until it replaces the present one. Nobody else has files with this
/// ending.
const NEXT: &str = ".paced-new";

/// The ending of a file that is written only to check whether there is room for it.
const TRIAL: &str = ".paced-trial";

/// A disk with one file. What a call returns without an error has survived a loss of power.
pub(super) trait Disk: Send {
    /// The contents of the file; `None` if there is none.
    fn read(&mut self) -> Result<Option<Vec<u8>>, OpenError>;

    /// Appends to the file. After an error, or a crash, any part of the bytes may be in it.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Replaces the file by another one. After an error, or a crash, it is the old one or the new one.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A file that this process alone uses.
#[derive(Debug)]
pub(super) struct LockedFile {
    path: PathBuf,
    /// The file to append to, once there is one.
    open: Option<File>,
    /// Held as long as this lives.
    lock: Lock,
}

/// Why a file cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// It cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It cannot be read.
    #[error("it cannot be read: {0}; the user of this process must be able to read it")]
    Read(io::Error),
    /// It is not a store as it was written.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl LockedFile {
    /// Locks the file at `path`, which need not exist yet. Nothing is written beside a file that is no store.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        let path = resolved(path)?;
        check_head(&path)?;
        let lock = Lock::take(&path)?;
        // A process that was killed during a trial has left it, and it takes as much room as the store.
        let _ = fs::remove_file(with_ending(&path, TRIAL));
        Ok(Self { path, open: None, lock })
    }

    /// Keeps the lock, and takes it again if its file was removed and no other process has used the store since.
    fn keep_lock(&mut self) -> io::Result<()> {
        let Err(removed) = self.lock.check() else { return Ok(()) };
        if self.is_own()
            && let Ok(lock) = Lock::take(&self.path)
            && self.is_own()
        {
            tracing::warn!(file = %self.path.display(), "the lock of the store's file was removed; it is locked again");
            self.lock = lock;
            return Ok(());
        }
        Err(removed)
    }

    /// Whether the file is the one that this process has written, as it was left. Another process replaces it before it grants
    /// anything.
    fn is_own(&self) -> bool {
        let Some(mut file) = self.open.as_ref() else { return false };
        let (length, end) = (file.metadata().map(|data| data.len()), file.stream_position());
        is_at(file, &self.path) && matches!((length, end), (Ok(length), Ok(end)) if length == end)
    }
}

/// A file as it is found, which no other process uses meanwhile.
#[derive(Debug)]
pub(super) struct Probe {
    path: PathBuf,
    /// What is in it, if it is there.
    pub(super) bytes: Option<Vec<u8>>,
    /// `None` if nobody has ever locked the file: then it is not locked for this either.
    _lock: Option<Lock>,
}

impl Probe {
    /// Reads the file at `path`, and leaves no trace.
    pub(super) fn read(path: &Path) -> Result<Self, OpenError> {
        let path = resolved(path)?;
        check_head(&path)?;
        let lock = Lock::take_if_there(&path)?;
        let bytes = read_whole(&path)?;
        Ok(Self { path, bytes, _lock: lock })
    }

    /// Tries whether there is room for the same file beside it, and leaves no trace.
    pub(super) fn try_write(&self) -> io::Result<()> {
        let bytes = self.bytes.as_deref().unwrap_or_default();
        let (beside, _) = write_beside(&self.path, TRIAL, bytes)?;
        match fs::remove_file(beside) {
            // A process that has begun to use the file meanwhile has removed it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Writes a new file beside the one at `path`, with the same owner.
fn write_beside(path: &Path, ending: &str, bytes: &[u8]) -> io::Result<(PathBuf, File)> {
    let beside = with_ending(path, ending);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", beside.display()));
    // One that a process did not complete. Of a link the link is removed, and not what it leads to.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let mut file = plain(OpenOptions::new().write(true).create_new(true)).open(&beside).map_err(named)?;
    let written = keep_owner(&file, path).and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // It is of no use, and takes room.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    Ok((beside, file))
}

/// The file that is meant: where a link leads, the file is replaced, and not the link. All ways to it have one lock.
fn resolved(path: &Path) -> Result<PathBuf, LockError> {
    let system = |error| LockError::System { file: path.to_owned(), error };
    if path.symlink_metadata().is_ok_and(|data| data.is_symlink()) {
        return fs::canonicalize(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LockError::Dangling,
            _ => system(error),
        });
    }
    let name = path.file_name().ok_or_else(|| system(io::ErrorKind::InvalidInput.into()))?;
    Ok(fs::canonicalize(folder(path)).map_err(system)?.join(name))
}

/// Opens a regular file to be read; `None` if there is none.
fn open_plain(path: &Path) -> Result<Option<File>, OpenError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::Read(error)),
        // A device or a pipe could be read for ever.
        Ok(data) if !data.is_file() => return Err(FormatError::Foreign.into()),
        Ok(_) => {}
    }
    match plain(OpenOptions::new().read(true)).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::Read(error)),
    }
}

/// What is in the file at `path`; `None` if there is none.
fn read_whole(path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    let Some(mut file) = open_plain(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(OpenError::Read)?;
    Ok(Some(bytes))
}

/// Checks that what is at `path`, if there is something, begins as a store does.
fn check_head(path: &Path) -> Result<(), OpenError> {
    let Some(file) = open_plain(path)? else { return Ok(()) };
    let mut head = Vec::new();
    file.take(HEAD as u64).read_to_end(&mut head).map_err(OpenError::Read)?;
    match head.as_slice() {
        [] => Err(FormatError::Empty.into()),
        head if begins(head) => Ok(()),
        _ => Err(FormatError::Foreign.into()),
    }
}

impl Disk for LockedFile {
    fn read(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        read_whole(&self.path)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.keep_lock()?;
        let is_own = self.is_own();
        let Some(file) = self.open.as_mut().filter(|_| is_own) else {
            // What is written to a file without a name is lost with the process, and what is written behind its end makes it
            // unreadable. It is replaced by a whole one next.
            return Err(io::Error::other("it was removed, replaced or changed while it was in use"));
        };
        file.write_all(bytes)?;
        file.sync_data()?;
        // A process that has the lock by now may have read the file before.
        self.lock.check()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.keep_lock()?;
        // Others may have put something else there.
        check_head(&self.path).map_err(io::Error::other)?;
        let (beside, file) = write_beside(&self.path, NEXT, bytes)?;
        fs::rename(&beside, &self.path)?;
        // Its place in the new file is behind all bytes, where appending continues.
        self.open = Some(file);
        sync_folder(&self.path)?;
        self.lock.check()
    }
}

/// Makes a renamed file of this folder survive a loss of power.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let synced = File::open(folder(path)).and_then(|folder| folder.sync_all());
    synced.map_err(|error| io::Error::new(error.kind(), format!("its directory cannot be synced: {error}")))
}

#[cfg(not(unix))]
const fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a store begins.
    const BEGUN: &str = "0123456789abcdef {\"paced_store\":{}}";

    fn begun(more: &str) -> Vec<u8> {
        format!("{BEGUN}{more}").into_bytes()
    }

    #[test]
    fn a_file_is_replaced_and_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let mut disk = LockedFile::lock(&path).unwrap();
        assert_eq!(disk.read().unwrap(), None);
        assert!(disk.append(b"x").is_err(), "there is nothing to append to");
        disk.replace(&begun("one")).unwrap();
        disk.append(b" two").unwrap();
        assert_eq!(disk.read().unwrap().unwrap(), begun("one two"));
        disk.replace(&begun("three")).unwrap();
        disk.append(b" four").unwrap();
        assert_eq!(fs::read(&path).unwrap(), begun("three four"));
    }

    /// For example a link to a volume that is mounted elsewhere.
    #[cfg(unix)]
    #[test]
    fn where_a_link_leads_the_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let error = LockedFile::lock(&link).unwrap_err().to_string();
        assert!(error.contains("name that file itself"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made");
        fs::write(&real, begun("")).unwrap();
        let mut disk = LockedFile::lock(&link).unwrap();
        disk.replace(&begun("new")).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), begun("new"));
        assert!(LockedFile::lock(&real).is_err(), "both are one file");
        assert!(LockedFile::lock(&folder.path().join("./real")).is_err(), "by any way");
    }

    /// What a process did not complete goes, and a link in its place does, but not what that leads to.
    #[cfg(unix)]
    #[test]
    fn what_is_in_the_place_of_the_next_file_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (path, secret) = (folder.path().join("pace"), folder.path().join("shadow"));
        let next = with_ending(&path, NEXT);
        fs::write(&secret, "root:x:0").unwrap();
        let mut disk = LockedFile::lock(&path).unwrap();
        let links: [fn(&Path, &Path) -> io::Result<()>; 3] = [
            |_, to| fs::write(to, "0123"),
            |from, to| std::os::unix::fs::symlink(from, to),
            |from, to| fs::hard_link(from, to),
        ];
        for link in links {
            link(&secret, &next).unwrap();
            disk.replace(&begun("new")).unwrap();
            assert!(!next.exists());
            assert_eq!(
                (fs::read(&secret).unwrap(), fs::read(&path).unwrap()),
                (b"root:x:0".to_vec(), begun("new"))
            );
        }
        fs::create_dir(&next).unwrap();
        let error = disk.replace(&begun("newer")).unwrap_err().to_string();
        assert!(error.contains("pace.paced-new: "), "it is named: {error}");
        assert_eq!(fs::read(&path).unwrap(), begun("new"));
    }

    #[test]
    fn a_file_that_others_have_removed_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let mut disk = LockedFile::lock(&path).unwrap();
        disk.replace(&begun("one")).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(disk.append(b"two").is_err(), "nobody would find it");
        disk.replace(&begun("three")).unwrap();
        // Such as a backup that was restored.
        fs::write(folder.path().join("old"), begun("old")).unwrap();
        fs::rename(folder.path().join("old"), &path).unwrap();
        assert!(disk.append(b"four").is_err());
        disk.replace(&begun("five")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), begun("five"));
        // For example another store was copied over it.
        fs::write(&path, begun("old")).unwrap();
        assert!(disk.append(b"six").is_err());
        disk.replace(&begun("five")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), begun("five"));
        fs::write(&path, "a letter").unwrap();
        assert!(disk.replace(&begun("six")).is_err(), "it is of others");
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
    }

    #[test]
    fn without_its_lock_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let remove_lock = || fs::remove_file(folder.path().join("pace.paced-lock")).unwrap();
        let mut disk = LockedFile::lock(&path).unwrap();
        disk.replace(&begun("one")).unwrap();
        remove_lock();
        disk.append(b" two").unwrap();
        assert!(LockedFile::lock(&path).is_err(), "it is locked again");
        remove_lock();
        let mut other = LockedFile::lock(&path).unwrap();
        let is_refused = |disk: &mut LockedFile| {
            [disk.append(b"x").unwrap_err(), disk.replace(&begun("x")).unwrap_err()]
                .iter()
                .all(|error| error.to_string().contains("restart this one"))
        };
        assert!(is_refused(&mut disk), "another process has it");
        assert_eq!(fs::read(&path).unwrap(), begun("one two"));
        // That one has granted nothing yet, and now it may have.
        other.replace(&begun("three")).unwrap();
        assert!(is_refused(&mut disk));
        drop(other);
        assert!(is_refused(&mut disk));
        assert_eq!(fs::read(&path).unwrap(), begun("three"));
        LockedFile::lock(&path).unwrap();
    }

    #[test]
    fn a_trial_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let files = || fs::read_dir(folder.path()).unwrap().count();
        Probe::read(&path).unwrap().try_write().unwrap();
        assert_eq!(files(), 0);
        fs::write(&path, begun("")).unwrap();
        // As one that was killed leaves it.
        fs::write(with_ending(&path, TRIAL), "0123").unwrap();
        let probe = Probe::read(&path).unwrap();
        assert_eq!(probe.bytes, Some(begun("")));
        probe.try_write().unwrap();
        assert_eq!(files(), 1);
        drop(probe);
        fs::write(with_ending(&path, TRIAL), "0123").unwrap();
        let _locked = LockedFile::lock(&path).unwrap();
        assert_eq!(files(), 2, "the file and its lock");
    }

    /// None of these is read, as that may have no end.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_no_regular_file_is_no_store() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/zero"), Path::new("/dev/null"), folder.path()] {
            assert!(
                matches!(check_head(path), Err(OpenError::Format(FormatError::Foreign))),
                "{}",
                path.display()
            );
        }
        let pipe = folder.path().join("pipe");
        mknodat(CWD, pipe.as_path(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(LockedFile::lock(&pipe).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made");
    }
}
