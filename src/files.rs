//! Notices when a file is replaced or rewritten, and reads secrets again.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

#[cfg(any(feature = "amqp", feature = "http", feature = "redis"))]
mod fresh;
mod reloaded;

#[cfg(any(feature = "amqp", feature = "http", feature = "redis"))]
pub(crate) use fresh::FreshSecret;
pub use reloaded::{Log, Read, Reloaded, Source};

/// What the system says of a file, links followed: another stamp means that its contents may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    inode: (u64, u64, i64, i64),
}

impl Stamp {
    /// The stamp of the file at `path` now. It blocks while the system answers.
    fn of(path: &Path) -> io::Result<Self> {
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

/// The stamp of each of some files; `None` where there is no such file.
type Stamps = Vec<Option<Stamp>>;

/// The stamps of these files now. It blocks while the system answers.
fn stamps(files: &[PathBuf]) -> Stamps {
    files.iter().map(|file| Stamp::of(file).ok()).collect()
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
