//! Notices when a file is replaced or rewritten, and reads secrets again.

use std::collections::BTreeMap;
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

/// The system's data about a file, links followed: another stamp means that the contents of the file may have
/// changed.
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

impl Stamp {
    #[cfg(unix)]
    fn is_same_file(&self, other: &Self) -> bool {
        (self.inode.0, self.inode.1) == (other.inode.0, other.inode.1)
    }

    /// On other systems a replaced file looks like a rewritten one.
    #[cfg(not(unix))]
    const fn is_same_file(&self, _: &Self) -> bool {
        true
    }
}

/// The stamp of each of some files; `None` where there is no such file.
type Stamps = Vec<Option<Stamp>>;

/// The stamps of these files now. It blocks while the system answers.
fn stamps(files: &[PathBuf]) -> Stamps {
    files.iter().map(|file| Stamp::of(file).ok()).collect()
}

/// The files of a directory, each with its stamp: another listing means that a file was added, removed, replaced or
/// rewritten, also through a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing(BTreeMap<PathBuf, Option<Stamp>>);

impl Listing {
    /// The most files, and the most entries of the directory.
    const MAX_FILES: usize = 20_000;
    const MAX_ENTRIES: usize = 100_000;

    /// Lists the files whose names end with `.toml` and do not begin with `.`. This leaves out the temporary files of
    /// editors, and the hidden files that Kubernetes keeps in a volume. It blocks while the system answers.
    ///
    /// # Errors
    /// The directory cannot be read, or has too much in it.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for (number, entry) in std::fs::read_dir(dir)?.enumerate() {
            let path = entry?.path();
            if is_configuration(&path) {
                let stamp = Stamp::of(&path).ok();
                files.insert(path, stamp);
            }
            if number >= Self::MAX_ENTRIES || files.len() > Self::MAX_FILES {
                let (files, entries) = (Self::MAX_FILES, Self::MAX_ENTRIES);
                return Err(io::Error::other(format!("over {files} files, or {entries} entries")));
            }
        }
        Ok(Self(files))
    }

    /// Whether one of the files is the same as in the other listing, and has other contents: a program may still be writing it.
    pub fn has_rewritten(&self, before: &Self) -> bool {
        let mut both =
            self.0.iter().filter_map(|(path, now)| Some((now.as_ref()?, before.0.get(path)?.as_ref()?)));
        both.any(|(now, before)| now != before && now.is_same_file(before))
    }

    /// The paths of the files, in order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }
}

/// Whether the file has the name of a complete configuration, and not of a temporary file.
fn is_configuration(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".toml") && !name.starts_with('.')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_has_the_files_that_are_whole_and_changes_with_each_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["b.toml", "a.toml", ".c.toml", "d.toml~", "e.toml.swp", "toml"] {
            std::fs::write(path(name), "1").unwrap();
        }
        let list = || Listing::of(folder.path()).unwrap();
        let names = |listing: &Listing| -> Vec<String> {
            listing.files().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        let first = list();
        assert_eq!((names(&first), first == list()), (vec!["a.toml".to_owned(), "b.toml".to_owned()], true));
        std::fs::write(path(".c.toml"), "22").unwrap();
        assert_eq!(list(), first);
        // Editors rename what they have written.
        std::fs::rename(path(".c.toml"), path("b.toml")).unwrap();
        let second = list();
        assert!(second != first && names(&second) == names(&first));
        std::fs::write(path("a.toml"), "333").unwrap();
        let third = list();
        assert_ne!(third, second);
        #[cfg(unix)]
        assert!(
            !second.has_rewritten(&first) && third.has_rewritten(&second) && !third.has_rewritten(&third)
        );
        std::fs::remove_file(path("a.toml")).unwrap();
        assert_eq!(names(&list()), ["b.toml"]);
        drop(third);
        assert!(Listing::of(&path("gone")).is_err());
    }
}
