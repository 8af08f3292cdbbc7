//! Files, environment and `--set`, each read into a layer of one tree.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::document::{Document, Span, join, key_path, lone_value};
use super::error::{ConfigError, Place, system_text};

/// The sources of a configuration. Later ones override earlier ones: the defaults, the files in their order, the
/// environment, `--set`.
#[derive(Clone, Default)]
pub struct Sources {
    /// Files named with `-c`, in order. Without any, those in `PACED_CONFIG` (separated by `:`), else `./paced.toml`,
    /// else `/etc/paced/paced.toml`.
    pub files: Vec<PathBuf>,
    /// Environment variables. `PACED_A__B` is the key `a.b`; a name without `__` is no key, since
    /// Kubernetes injects such names (`PACED_PORT`).
    pub env: Vec<(OsString, OsString)>,
    /// Each `KEY=VALUE`.
    pub set: Vec<String>,
    /// The directory that relative file names refer to.
    pub cwd: PathBuf,
}

impl Sources {
    /// The sources of this process: its environment and its working directory.
    pub fn from_process(files: Vec<PathBuf>, set: Vec<String>) -> Self {
        let cwd = std::env::current_dir().unwrap_or_default();
        Self { files, env: std::env::vars_os().collect(), set, cwd }
    }

    /// The directory of the credentials that systemd made for this service (`LoadCredential=`).
    pub(super) fn credentials(&self) -> Option<PathBuf> {
        let given = self.env.iter().find(|(name, _)| name == "CREDENTIALS_DIRECTORY");
        given.map(|(_, dir)| PathBuf::from(dir))
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment and the values of `--set` may be secrets.
        let mut shown = f.debug_struct("Sources");
        shown.field("files", &self.files).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// The longest configuration file.
const MAX_FILE: u64 = 16 << 20;

/// How many layers are merged before they are merged with all others.
const MERGED_AT_ONCE: usize = 100;

/// One source that was read.
#[derive(Clone, Default)]
pub(super) struct Layer {
    /// The name of the source: `paced.toml`, `env PACED_A__B`, `--set`.
    pub name: String,
    /// The rank of the source: two ways to give one value contradict each other within a rank; a higher rank overrides.
    pub rank: usize,
    /// The directory that relative names of secret files refer to.
    pub dir: PathBuf,
    pub dict: Dict,
    /// The positions of keys, for files only.
    pub spans: HashMap<String, Span>,
    /// For `env` and `--set`, the path and the text as it was given.
    pub given: Option<(String, String)>,
    /// The line of the first syntax error: anything after it is unreliable.
    pub broken: Option<usize>,
}

/// All layers, lowest first, and the mistakes that were found while reading them.
#[derive(Clone, Default)]
pub(super) struct Layers {
    pub all: Vec<Layer>,
    pub files: Vec<PathBuf>,
    pub errors: Vec<ConfigError>,
}

impl Layers {
    /// Reads the sources; `system` is the file that is used where nothing names one. Without any file there is an
    /// error.
    pub fn read(sources: &Sources, system: &Path) -> Self {
        let mut layers = Self::collect(sources, system);
        if layers.all.is_empty() && layers.errors.is_empty() {
            let problem = format!(
                "not found, and neither is {}; write one, or name it with -c FILE or PACED_CONFIG",
                system.display()
            );
            layers.error("./paced.toml".to_owned(), None, "", problem);
        }
        layers
    }

    /// Reads the sources that exist.
    pub fn collect(sources: &Sources, system: &Path) -> Self {
        let mut layers = Self::default();
        for file in discover(sources, system) {
            layers.file(&file, &sources.cwd);
        }
        layers.env(sources);
        for (index, argument) in sources.set.iter().enumerate() {
            layers.set(index + 1, argument, &sources.cwd);
        }
        layers
    }

    /// The index after the last file; then come the environment and `--set`.
    pub fn files_end(&self) -> usize {
        self.all.iter().take_while(|layer| layer.given.is_none()).count()
    }

    /// Merges the layers; the tag of each value identifies its layer.
    pub fn merge(&self) -> Figment {
        // Each merge copies all that was merged before. Of thousands of files, a part is merged at a time.
        let part = |start: usize| {
            let end = self.all.len().min(start + MERGED_AT_ONCE);
            (start..end).fold(Figment::new(), |figment, index| {
                figment.merge(Numbered { index, dict: &self.all[index].dict })
            })
        };
        (0..self.all.len()).step_by(MERGED_AT_ONCE).fold(Figment::new(), |all, start| all.merge(part(start)))
    }

    /// The tree of the merged layers.
    pub fn root(figment: &Figment) -> Dict {
        figment.data().unwrap_or_default().remove(&Profile::Default).unwrap_or_default()
    }

    pub(super) fn error(
        &mut self,
        source: String,
        position: Option<(usize, usize)>,
        key: &str,
        problem: String,
    ) {
        let place = Place { layer: self.all.len(), position, source };
        self.errors.push(ConfigError::new(place, key, problem));
    }

    fn file(&mut self, file: &Path, cwd: &Path) {
        let name = file.display().to_string();
        let path = cwd.join(file);
        let text = match read_text(&path, MAX_FILE) {
            Ok(text) => text,
            Err(error) => {
                let problem = format!("cannot be read ({}); name a file that can", system_text(&error));
                self.error(name.clone(), None, "", problem);
                // The layer keeps its place in the order of the errors.
                self.all.push(Layer { name, broken: Some(0), rank: self.all.len(), ..Layer::default() });
                return;
            }
        };
        let dir = path.parent().map(Path::to_path_buf).unwrap_or_default();
        self.text(name, &text, dir);
        self.files.push(path);
    }

    /// Adds a layer of a text in TOML.
    pub fn text(&mut self, name: String, text: &str, dir: PathBuf) {
        let Document { dict, spans, broken } = Document::parse(text);
        let line = broken.as_ref().map(|syntax| syntax.position.0);
        if let Some(syntax) = broken {
            self.error(name.clone(), Some(syntax.position), "not TOML", syntax.problem);
        }
        let rank = self.all.len();
        self.all.push(Layer { name, rank, dir, dict, spans, given: None, broken: line });
    }

    fn env(&mut self, sources: &Sources) {
        let mut named: Vec<(&str, &OsString)> = sources
            .env
            .iter()
            .filter_map(|(name, text)| Some((name.to_str()?, text)))
            .filter(|(name, _)| name.starts_with("PACED_") && name.contains("__"))
            .collect();
        named.sort_unstable();
        for (name, text) in named {
            let source = format!("env {name}");
            let path: Vec<String> = name["PACED_".len()..].split("__").map(str::to_lowercase).collect();
            if path.iter().any(String::is_empty) {
                let problem = "no key; write PACED_SECTION__KEY, with a name on each side of `__`";
                self.error(source, None, "", problem.to_owned());
            } else if let Some(text) = text.to_str() {
                self.given(source, RANK_ENV, &path, text, &sources.cwd);
            } else {
                let key = path.iter().fold(String::new(), |parent, key| join(&parent, key));
                self.error(source, None, &key, "not UTF-8; write it in UTF-8".to_owned());
            }
        }
    }

    fn set(&mut self, number: usize, argument: &str, cwd: &Path) {
        // The argument may hold a secret, wherever its `=` is.
        let Some((key, text)) = argument.split_once('=') else {
            let problem = format!("argument {number} has no `=`; write KEY=VALUE, such as store.url=memory:");
            return self.error("--set".to_owned(), None, "", problem);
        };
        match key_path(key.trim()) {
            Some(path) => self.given("--set".to_owned(), RANK_SET, &path, text.trim(), cwd),
            None => {
                let problem = format!(
                    "argument {number} begins with no key; write KEY=VALUE, such as store.url=memory:"
                );
                self.error("--set".to_owned(), None, "", problem);
            }
        }
    }

    /// Adds a layer of one value.
    fn given(&mut self, name: String, rank: usize, path: &[String], text: &str, cwd: &Path) {
        // Trees are walked recursively, and no key is nearly as deep.
        if path.len() > 20 {
            return self.error(name, None, "", "too many parts for a key; write SECTION.KEY".to_owned());
        }
        let nest = |value: Value, key: &String| Value::from(Map::from([(key.clone(), value)]));
        let tree = path.iter().rev().fold(lone_value(text), nest);
        let path = path.iter().fold(String::new(), |parent, key| join(&parent, key));
        self.all.push(Layer {
            name,
            rank,
            dir: cwd.to_path_buf(),
            dict: tree.into_dict().unwrap_or_default(),
            given: Some((path, text.to_owned())),
            ..Layer::default()
        });
    }
}

/// Above the rank of every file.
const RANK_ENV: usize = usize::MAX - 1;
const RANK_SET: usize = usize::MAX;

fn discover(sources: &Sources, system: &Path) -> Vec<PathBuf> {
    if !sources.files.is_empty() {
        return sources.files.clone();
    }
    let named = sources.env.iter().rev().find(|(name, _)| name == "PACED_CONFIG");
    let named = named.map(|(_, list)| std::env::split_paths(list)).into_iter().flatten();
    let named: Vec<PathBuf> = named.filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return named;
    }
    // A file that cannot be examined is opened, so that the error is reported.
    let there = |path: &Path| sources.cwd.join(path).try_exists().unwrap_or(true);
    let usual = [Path::new("./paced.toml"), system];
    usual.into_iter().find(|path| there(path)).map(Path::to_path_buf).into_iter().collect()
}

/// The text of a file of at most `max` bytes.
pub(super) fn read_text(path: &Path, max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::other(format!("over {max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8"))
}

/// A layer for figment: its name is its index, by which a tag identifies it.
struct Numbered<'a> {
    index: usize,
    dict: &'a Dict,
}

impl Provider for Numbered<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.index.to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.dict.clone())]))
    }
}
