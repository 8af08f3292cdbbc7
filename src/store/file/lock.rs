//! The lock of a store's file: a file of its own beside it, as the other one is replaced. It names the process that holds it,
//! and stays there when that ends.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// The ending of the lock's name, behind the name of the store's file. Nobody else has files with this ending.
const ENDING: &str = ".paced-lock";

/// No name of a process is longer.
const LONGEST_NAME: u64 = 300;

/// Why a file cannot be locked.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockError {
    /// Another process uses it, or this one does already.
    #[error(
        "process {holder} uses it; end that one, unless it is the daemon that is to run, or use a file of its own for each; \
         in one process all share a FileStore (this is locked: {})",
        lock.display()
    )]
    Held {
        /// The process, as it has named itself.
        holder: String,
        /// The file that is locked.
        lock: PathBuf,
    },
    /// It is no regular file with one name: what is written to it may change a file of others.
    #[error("{} is a link or has a second name, or is no regular file; remove it", .0.display())]
    NotPlain(PathBuf),
    /// The file of the store is a link to nothing. It would be replaced, and others would use the file that it names.
    #[error("it is a link to a file that is not there; name that file itself")]
    Dangling,
    /// The system refuses it.
    #[error(
        "{} cannot be opened: {error}; name a file in store.url that the user of this process may write, in a directory that \
         it may write",
        file.display()
    )]
    System {
        /// The file that was to be opened.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A lock that this process holds.
#[derive(Debug)]
pub(super) struct Lock {
    name: PathBuf,
    file: File,
}

impl Lock {
    /// Locks the file at `path`, which need not exist yet.
    pub(super) fn take(path: &Path) -> Result<Self, LockError> {
        let name = with_ending(path, ENDING);
        let (file, is_new) = open_or_make(&name)?;
        let mut lock = Self::of(name, file)?;
        if is_new && let Err(error) = keep_owner(&lock.file, path) {
            // The owner could not open it. A process that has opened it meanwhile finds that it is gone.
            let _ = fs::remove_file(&lock.name);
            return Err(LockError::System { file: lock.name.clone(), error });
        }
        // Only people read it. If the disk is full, the next write reports that.
        let _ = lock.name_holder();
        Ok(lock)
    }

    /// Locks the file at `path` if it was ever locked; otherwise nobody uses it.
    pub(super) fn take_if_there(path: &Path) -> Result<Option<Self>, LockError> {
        let name = with_ending(path, ENDING);
        open(&name)?.map(|file| Self::of(name, file)).transpose()
    }

    /// Locks an open file with this name.
    fn of(name: PathBuf, file: File) -> Result<Self, LockError> {
        let lock = Self { name, file };
        if !lock.file.metadata().is_ok_and(|data| is_plain(&data)) {
            return Err(LockError::NotPlain(lock.name.clone()));
        }
        match try_lock(&lock.file).and_then(|()| lock.check()) {
            Ok(()) => Ok(lock),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(LockError::Held { holder: lock.holder(), lock: lock.name.clone() })
            }
            Err(error) => Err(LockError::System { file: lock.name.clone(), error }),
        }
    }

    /// The process that holds it, for people.
    fn holder(&self) -> String {
        let mut bytes = Vec::new();
        // What cannot be read is not known.
        let _ = (&self.file).take(LONGEST_NAME).read_to_end(&mut bytes);
        shown(&String::from_utf8_lossy(&bytes))
    }

    fn name_holder(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(format!("{} {}\n", std::process::id(), host()).as_bytes())
    }

    /// Checks that nobody else can have the lock.
    ///
    /// # Errors
    /// The file was removed or replaced, so that another process may have locked the one that is there now.
    pub(super) fn check(&self) -> io::Result<()> {
        if is_at(&self.file, &self.name) {
            return Ok(());
        }
        let lock = self.name.display();
        Err(io::Error::other(format!(
            "{lock} was removed or replaced, so that another process may use the store too; restart this one"
        )))
    }
}

/// A process that was forked and has not yet started its program has the file open, too: so closing it is not enough.
impl Drop for Lock {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

/// Opens the file of a lock; `None` if there is none.
fn open(name: &Path) -> Result<Option<File>, LockError> {
    let system = |error| LockError::System { file: name.to_owned(), error };
    match fs::symlink_metadata(name) {
        Ok(data) if !is_plain(&data) => Err(LockError::NotPlain(name.to_owned())),
        Ok(_) => plain(OpenOptions::new().read(true).write(true)).open(name).map(Some).map_err(system),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(system(error)),
    }
}

/// Opens the file of a lock, and makes it if there is none. Returns whether it made the file.
fn open_or_make(name: &Path) -> Result<(File, bool), LockError> {
    if let Some(file) = open(name)? {
        return Ok((file, false));
    }
    make(name)
}

/// Makes the file of a lock, or opens it if another process has made it meanwhile. Returns whether it made the file.
fn make(name: &Path) -> Result<(File, bool), LockError> {
    let error = match plain(OpenOptions::new().read(true).write(true).create_new(true)).open(name) {
        Ok(file) => return Ok((file, true)),
        Err(error) => error,
    };
    let there = if error.kind() == io::ErrorKind::AlreadyExists { open(name)? } else { None };
    there.map(|file| (file, false)).ok_or_else(|| LockError::System { file: name.to_owned(), error })
}

/// The name of a process for people: its number, and its host if that is another one.
fn shown(name: &str) -> String {
    let mut words = name.split_whitespace();
    let number = words.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    let other = words.next().map(plain_text).filter(|other| !other.is_empty());
    match (number, other) {
        (None, _) => "(unknown)".to_owned(),
        (Some(number), Some(other)) if other != host() => format!("{number} on {other}"),
        (Some(number), _) => number.to_owned(),
    }
}

/// The name of this machine or container.
fn host() -> String {
    plain_text(fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim())
}

fn plain_text(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c)).take(255).collect()
}

/// Makes the opening of a file follow no link and wait for nothing, and gives a new file to this user alone.
pub(super) fn plain(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt as _;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(i32::try_from(flags.bits()).unwrap_or(0));
    }
    options
}

/// Whether this is a regular file that has no other name, so that it belongs to nobody else.
#[cfg(unix)]
pub(super) fn is_plain(data: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    data.is_file() && data.nlink() == 1
}

#[cfg(not(unix))]
pub(super) fn is_plain(data: &Metadata) -> bool {
    data.is_file()
}

/// Whether what lies at `path` is this file.
#[cfg(unix)]
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |data: Metadata| (data.dev(), data.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(file), Ok(there)) => identity(file) == identity(there),
        _ => false,
    }
}

#[cfg(not(unix))]
pub(super) fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Gives a new file the owner of the one at `path`, or of its folder: a tool that root has started must not take the store
/// from the daemon.
///
/// # Errors
/// The file at `path` belongs to another user, to whom this process may give nothing.
#[cfg(unix)]
pub(super) fn keep_owner(file: &File, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    let there = fs::symlink_metadata(path);
    let is_there = there.is_ok();
    let (like, now) = (there.or_else(|_| fs::metadata(folder(path)))?, file.metadata()?);
    let is_kept = (like.uid(), like.gid()) == (now.uid(), now.gid())
        || fchown(file, Some(like.uid()), Some(like.gid())).is_ok()
        // One that is not there yet belongs to the user who makes it, and its group does not matter.
        || !is_there
        || like.uid() == now.uid();
    if is_kept {
        return Ok(());
    }
    let text =
        format!("it belongs to user {}, who could not open it any more; run this as that user", like.uid());
    Err(io::Error::other(text))
}

#[cfg(not(unix))]
pub(super) const fn keep_owner(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

/// The folder of a file.
pub(super) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
fn try_lock(file: &File) -> io::Result<()> {
    use rustix::fs::{FlockOperation, flock};
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

#[cfg(not(unix))]
fn try_lock(_: &File) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "files are locked on Unix systems alone"))
}

/// Unlocks the file, for all who have inherited it as well. Where that fails, closing it does the same.
#[cfg(unix)]
fn unlock(file: &File) {
    use rustix::fs::{FlockOperation, flock};
    let _ = flock(file, FlockOperation::Unlock);
}

#[cfg(not(unix))]
const fn unlock(_: &File) {}

pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_it_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        assert!(Lock::take_if_there(&path).unwrap().is_none() && !with_ending(&path, ENDING).exists());
        let held = Lock::take(&path).unwrap();
        for error in [Lock::take(&path).unwrap_err(), Lock::take_if_there(&path).unwrap_err()] {
            let expected = format!("process {} uses it; ", std::process::id());
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        drop(held);
        // It stays, and what is in it does not matter.
        let name = with_ending(&path, ENDING);
        for text in ["", "\0\0", "12", "7 box-1.example\n"] {
            fs::write(&name, text).unwrap();
            assert!(Lock::take_if_there(&path).unwrap().is_some());
            assert_eq!(fs::read_to_string(&name).unwrap(), text, "as it was");
            let held = Lock::take(&path).unwrap();
            assert_eq!(fs::read_to_string(&name).unwrap(), format!("{} {}\n", std::process::id(), host()));
            drop(held);
        }
        let error = Lock::take(&folder.path().join("none/pace")).unwrap_err();
        assert!(matches!(error, LockError::System { .. }), "{error}");
    }

    /// As between the fork and the start of a program, which closes the file.
    #[test]
    fn it_is_released_while_another_process_has_inherited_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let held = Lock::take(&path).unwrap();
        let inherited = held.file.try_clone().unwrap();
        drop(held);
        assert!(Lock::take(&path).is_ok());
        drop(inherited);
    }

    #[test]
    fn a_process_is_named_as_far_as_it_has_named_itself() {
        for (text, expected) in [
            ("7 box-1.example\n", "7 on box-1.example"),
            ("7 \u{1b}[2Jbox\n", "7 on 2Jbox"),
            ("12", "12"),
            ("12 ", "12"),
            ("", "(unknown)"),
            ("\0\0", "(unknown)"),
            ("a letter", "(unknown)"),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
        assert_eq!(shown(&format!("3 {}\n", host())), "3");
    }

    #[cfg(unix)]
    #[test]
    fn no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let (name, secret) = (with_ending(&path, ENDING), folder.path().join("shadow"));
        let is_refused = || {
            matches!(Lock::take(&path), Err(LockError::NotPlain(_)))
                && matches!(Lock::take_if_there(&path), Err(LockError::NotPlain(_)))
        };
        fs::write(&secret, "root:x:0").unwrap();
        std::os::unix::fs::symlink(&secret, &name).unwrap();
        assert!(is_refused());
        fs::remove_file(&name).unwrap();
        fs::hard_link(&secret, &name).unwrap();
        assert!(is_refused());
        fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink(folder.path().join("none"), &name).unwrap();
        assert!(is_refused() && !folder.path().join("none").exists());
        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert!(is_refused());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root:x:0");
    }

    /// Two processes start at once on an empty folder: the error of the second one names the first one.
    #[test]
    fn a_lock_that_another_process_makes_meanwhile_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let name = with_ending(&path, ENDING);
        let (first, second) = (make(&name).unwrap(), make(&name).unwrap());
        assert!(first.1 && !second.1);
        let held = Lock::of(name.clone(), first.0).unwrap();
        let error = Lock::of(name, second.0).unwrap_err();
        assert!(matches!(error, LockError::Held { .. }), "{error}");
        drop(held);
    }

    #[test]
    fn a_lock_that_was_removed_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pace");
        let held = Lock::take(&path).unwrap();
        assert!(held.check().is_ok());
        fs::remove_file(with_ending(&path, ENDING)).unwrap();
        assert!(held.check().is_err());
        let other = Lock::take(&path).unwrap();
        assert!(held.check().is_err() && other.check().is_ok());
    }
}
