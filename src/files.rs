//! Notices when a file is replaced or rewritten, and reads secrets again.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::failpoint;

#[cfg(any(feature = "amqp", feature = "http", feature = "redis"))]
mod fresh;

#[cfg(any(feature = "amqp", feature = "http", feature = "redis"))]
pub(crate) use fresh::FreshSecret;

/// What the system says of a file, links followed: another stamp means that its contents may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    inode: (u64, u64, i64, i64),
}

impl Stamp {
    /// The stamp of the file at `path` now. It blocks while the system looks.
    ///
    /// # Errors
    /// There is no such file, or the system does not tell.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            length: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            inode: {
                use std::os::unix::fs::MetadataExt as _;
                (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
            },
        })
    }
}

/// How long files must have been unusable before that is told: they are rarely replaced all at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// The stamp of each of some files; `None` where there is no such file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps(Vec<Option<Stamp>>);

impl Stamps {
    /// The stamps of these files now. It blocks while the system looks.
    pub fn of<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Self {
        Self(files.into_iter().map(|file| Stamp::of(file.as_ref()).ok()).collect())
    }
}

/// What is known of files that are read again when they change. Of each look, the stamps are taken before the files are
/// read: then a file that changes meanwhile has another stamp at the next look.
#[derive(Debug, Default)]
pub struct Watch {
    /// The stamps with which what is in use was read; `None` if the files are to be read anyway.
    loaded: Option<Stamps>,
    failed: Option<Failed>,
}

/// Files that cannot be used.
#[derive(Debug)]
struct Failed {
    stamps: Stamps,
    since: Instant,
    is_told: bool,
}

impl Watch {
    /// Whether the files must be read, now that they have these stamps.
    pub fn has_changed(&mut self, stamps: &Stamps) -> bool {
        let has_changed = self.loaded.as_ref() != Some(stamps);
        if !has_changed {
            self.failed = None;
        }
        has_changed
    }

    /// Records that what is in use was read from the files with these stamps.
    pub fn note_loaded(&mut self, stamps: Stamps) {
        *self = Self { loaded: Some(stamps), failed: None };
    }

    /// Records that the files with these stamps cannot be used. Returns whether that is to be told now: once, when they
    /// have been so for a while.
    pub fn note_failure(&mut self, stamps: Stamps) -> bool {
        let known = self.failed.take().filter(|failed| failed.stamps == stamps);
        let mut failed = known.unwrap_or_else(|| Failed { stamps, since: Instant::now(), is_told: false });
        let is_news = !failed.is_told && failed.since.elapsed() >= failpoint::interval(PATIENCE);
        failed.is_told |= is_news;
        self.failed = Some(failed);
        is_news
    }

    /// Has the files read at the next look, whatever their stamps are.
    pub fn forget(&mut self) {
        self.loaded = None;
    }
}

/// Reads a secret again from its file. It may block. The error is a text for people, without any secret.
#[derive(Clone)]
pub struct ReadSecret(Arc<dyn Fn() -> Result<String, String> + Send + Sync>);

impl ReadSecret {
    /// Reads by this function, which may block.
    pub fn new(read: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for ReadSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadSecret")
    }
}

impl PartialEq for ReadSecret {
    /// Whether both are clones of one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ReadSecret {}
