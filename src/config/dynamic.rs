//! Reads `[dynamic]`: downstreams and plans in files of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use figment::value::Value;

use super::document::{Document, join, quote};
use super::error::{ConfigError, ConfigErrors, Place, system_text};
use super::key::keys;
use super::reader::{IN_QUOTES, Reader, Table};
use super::source::{Layer, Layers, Sources, read_text};
use super::{Loaded, load_all, warnings};
use crate::files::Listing;

keys! {
    /// Downstreams and plans in files of their own, which come and go while paced runs.
    DYNAMIC = "dynamic".default("{}");
    /// A directory with files NAME.toml of tables [downstreams.NAME] and [plans.NAME]. A change there takes effect within
    /// seconds, without a SIGHUP (docs/operations.md). The path starts at the directory of this file.
    DIR = "dir".example("downstreams.d").reload();
}

/// The tables that such a file may have.
const FAMILIES: [&str; 2] = ["downstreams", "plans"];

/// The longest of these files, in bytes, and the most bytes of all of them.
const MAX_FILE: u64 = 1 << 20;
const MAX_ALL: usize = 64 << 20;

/// How often all is read at most while files with mistakes are found: one may hide another. Before the last time each file counts
/// as it did before.
const MAX_PASSES: usize = 5;

/// The directory of `[dynamic]`, as it was read.
#[derive(Clone)]
pub struct Dynamic {
    /// The other sources.
    pub(super) base: Arc<Layers>,
    dir: PathBuf,
    listing: Listing,
    /// The texts that count, by file.
    texts: BTreeMap<PathBuf, Arc<str>>,
    mistakes: Vec<ConfigError>,
}

impl Dynamic {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its files, as they were just before they were read.
    pub const fn listing(&self) -> &Listing {
        &self.listing
    }

    /// The mistakes of files that do not count as they are.
    pub fn mistakes(&self) -> &[ConfigError] {
        &self.mistakes
    }
}

impl fmt::Debug for Dynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The other sources and the texts may have secrets.
        f.debug_struct("Dynamic").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// What is done with files that have mistakes.
#[derive(Clone, Copy)]
pub(super) enum WrongFiles<'b> {
    /// All is refused.
    Refuse,
    /// Each counts as it was when it had none, or is left out.
    Replace(Option<&'b Dynamic>),
}

/// Reads `[dynamic]`: the directory, if there is one.
pub(super) fn dynamic<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<PathBuf> {
    let table = reader.section(root, &DYNAMIC);
    reader.declare(&table, &DIR, || DIR.string());
    let found = reader.find(&table, DIR.name)?;
    let text = reader.text(&found, IN_QUOTES)?;
    if text.is_empty() {
        reader.wrong(&found, "empty; name a directory, or remove it");
        return None;
    }
    reader.note(&table, &DIR, quote(&text), Some(&found));
    let dir = reader.file(&found, &text)?;
    warnings::writable(reader, &found, &dir);
    Some(dir)
}

/// The directory that these sources name. Mistakes are found when all is read.
pub(super) fn dir_of(layers: &Layers, sources: &Sources) -> Option<PathBuf> {
    if !layers.all.iter().any(|layer| layer.dict.contains_key(DYNAMIC.name)) {
        return None;
    }
    let figment = layers.merge();
    let root = Layers::root(&figment);
    let mut reader = Reader::new(&figment, &layers.all, &root);
    reader.credentials = sources.credentials();
    let root = reader.root();
    dynamic(&mut reader, &root)
}

/// Loads the sources with the files of a directory.
pub(super) fn load(
    base: Layers,
    dir: &Path,
    sources: &Sources,
    wrong: WrongFiles<'_>,
) -> Result<Loaded, ConfigErrors> {
    let listing = match Listing::of(dir) {
        Ok(listing) => listing,
        Err(error) => {
            let why = system_text(&error);
            let problem = format!("cannot be read ({why}); make the directory, or remove dynamic.dir");
            let mut layers = base;
            layers.error(dir.display().to_string(), None, "", problem);
            layers.all.push(Layer { broken: Some(0), ..Layer::default() });
            return load_all(layers, sources);
        }
    };
    let mut reading = Reading::new(base, dir, &listing, wrong);
    for pass in 1..=MAX_PASSES {
        let errors = match load_all(reading.layers(), sources) {
            Ok(loaded) => return Ok(Loaded { dynamic: Some(reading.end(listing)), ..loaded }),
            Err(errors) => errors,
        };
        let goes_on = matches!(wrong, WrongFiles::Replace(_)) && reading.replace(&errors, pass);
        reading.mistakes.extend(errors.iter().cloned());
        if !goes_on {
            break;
        }
    }
    Err(ConfigErrors::new(reading.end(listing).mistakes))
}

/// The files of a directory while they are read.
struct Reading<'b> {
    base: Layers,
    dir: &'b Path,
    wrong: WrongFiles<'b>,
    files: Vec<FileText>,
    mistakes: Vec<ConfigError>,
}

/// The text of a file.
struct FileText {
    file: PathBuf,
    /// The text that counted before, if one did.
    before: Option<Arc<str>>,
    /// The text that counts, if one does.
    text: Option<Arc<str>>,
}

impl FileText {
    /// Of two files with one name, the one of the lower rank counts: the one that was there first. What counts as it did before
    /// was there before what has changed.
    fn rank(&self) -> usize {
        match &self.before {
            Some(_) if self.is_as_before() => 0,
            Some(_) => 1,
            None => 2,
        }
    }

    fn is_as_before(&self) -> bool {
        self.text == self.before
    }

    /// Whether it has or had plans, which other files may use.
    fn concerns_plans(&self) -> bool {
        let has_plans = |text: &Arc<str>| Document::parse(text).dict.contains_key(FAMILIES[1]);
        self.text.iter().chain(&self.before).any(has_plans)
    }
}

impl<'b> Reading<'b> {
    fn new(base: Layers, dir: &'b Path, listing: &Listing, wrong: WrongFiles<'b>) -> Self {
        let before = match wrong {
            WrongFiles::Refuse | WrongFiles::Replace(None) => BTreeMap::new(),
            WrongFiles::Replace(Some(before)) => before.texts.clone(),
        };
        let mut reading = Self { base, dir, wrong, files: Vec::new(), mistakes: Vec::new() };
        let mut left = MAX_ALL;
        // If all are too long, it is new ones that are left out.
        let mut files: Vec<&Path> = listing.files().collect();
        files.sort_by_key(|file| !before.contains_key(*file));
        for file in files {
            let before = before.get(file).cloned();
            let text = match read(file, left) {
                Ok(text) => text.map(Arc::from),
                Err(error) => {
                    let problem = format!("cannot be read ({}); correct or remove it", system_text(&error));
                    let layer = reading.base.files_end() + reading.files.len();
                    let place = Place { layer, position: None, source: file.display().to_string() };
                    reading.mistakes.push(ConfigError::new(place, "", problem));
                    before.clone()
                }
            };
            left = left.saturating_sub(text.as_ref().map_or(0, |text: &Arc<str>| text.len()));
            reading.files.push(FileText { file: file.to_owned(), before, text });
        }
        let listed: BTreeSet<&Path> = listing.files().collect();
        let gone = before.into_iter().filter(|(file, _)| !listed.contains(file.as_path()));
        reading.files.extend(gone.map(|(file, text)| FileText { file, before: Some(text), text: None }));
        reading.files.sort_by_key(FileText::rank);
        reading
    }

    /// All layers. Each file has one, also if no text of it counts.
    fn layers(&self) -> Layers {
        let mut layers = self.base.clone();
        let mut owners = layers.owners();
        // As those of any file, their values are overridden by the environment and `--set`.
        let (first, count) = (layers.files_end(), self.files.len());
        let given = layers.all.split_off(first);
        layers.errors = layers.errors.into_iter().map(|error| error.moved(first, count)).collect();
        for FileText { file, text, .. } in &self.files {
            match text {
                Some(text) => layers.dynamic_file(file, text, self.dir, &mut owners),
                None => {
                    let name = file.display().to_string();
                    layers.all.push(Layer { name, rank: layers.all.len(), ..Layer::default() });
                }
            }
        }
        layers.all.extend(given);
        if matches!(self.wrong, WrongFiles::Refuse) {
            layers.errors.extend(self.mistakes.iter().cloned());
        }
        layers
    }

    /// Replaces the texts of files with mistakes by those that counted before. Returns false if nothing is left to replace.
    ///
    /// If these count as they did before, or the mistake is elsewhere, the change of another file is the cause: a
    /// change of plans that other files use, or the removal of a file whose downstream has keys in the environment.
    /// If neither is the case, no change of any file counts.
    fn replace(&mut self, errors: &ConfigErrors, pass: usize) -> bool {
        let (first, count) = (self.base.files_end(), self.files.len());
        let place = |error: &ConfigError| error.place().layer.checked_sub(first);
        let wrong: BTreeSet<usize> = errors.iter().filter_map(place).filter(|place| *place < count).collect();
        let has_before = matches!(self.wrong, WrongFiles::Replace(Some(_)));
        let is_last = has_before && pass + 1 >= MAX_PASSES;
        let goes_on = (!is_last && self.put_back(|place, _| wrong.contains(&place)))
            || (!is_last && has_before && self.put_back(|_, file| file.concerns_plans()))
            || (!is_last && has_before && self.put_back(|_, file| file.text.is_none()))
            || (has_before && self.put_back(|_, _| true));
        self.files.sort_by_key(FileText::rank);
        goes_on
    }

    /// Has these files count as they did before; returns whether one of them did not.
    fn put_back(&mut self, is_meant: impl Fn(usize, &FileText) -> bool) -> bool {
        let mut has_changed = false;
        for (place, file) in self.files.iter_mut().enumerate() {
            if !file.is_as_before() && is_meant(place, file) {
                file.text.clone_from(&file.before);
                has_changed = true;
            }
        }
        has_changed
    }

    fn end(self, listing: Listing) -> Dynamic {
        let Self { base, dir, files, mistakes, .. } = self;
        let texts = files.into_iter().filter_map(|file| Some((file.file, file.text?))).collect();
        // A mistake that was found twice may have had two places among the files.
        let mut seen = BTreeSet::new();
        let mut mistakes = ConfigErrors::sorted(mistakes);
        mistakes.retain(|mistake| seen.insert(mistake.to_string()));
        Dynamic { base: Arc::new(base), dir: dir.to_owned(), listing, texts, mistakes }
    }
}

impl Layers {
    /// The downstreams and plans that files have, each with its file.
    fn owners(&self) -> BTreeMap<String, String> {
        let mut owners = BTreeMap::new();
        for layer in self.all.iter().filter(|layer| layer.given.is_none()) {
            for family in FAMILIES {
                let Some(Value::Dict(_, names)) = layer.dict.get(family) else { continue };
                owners.extend(names.keys().map(|name| (join(family, name), layer.name.clone())));
            }
        }
        owners
    }

    fn dynamic_file(&mut self, file: &Path, text: &str, dir: &Path, owners: &mut BTreeMap<String, String>) {
        let (index, source) = (self.all.len(), file.display().to_string());
        self.text(source.clone(), text, dir.to_owned());
        let Layer { dict, spans, broken, .. } = &mut self.all[index];
        let mut problems = Vec::new();
        let is_empty = |value: &Value| matches!(value, Value::Dict(_, names) if names.is_empty());
        if dict.values().all(is_empty) && broken.is_none() {
            // A full disk leaves such a file, and an editor for a moment.
            let problem = "has no [downstreams.NAME] and no [plans.NAME]; add one, or remove the file";
            problems.push((String::new(), problem.to_owned()));
        }
        dict.retain(|key, _| {
            let belongs = FAMILIES.contains(&key.as_str());
            if !belongs {
                let problem =
                    "belongs into paced.toml; a file of dynamic.dir has [downstreams.NAME] and [plans.NAME]";
                problems.push((join("", key), problem.to_owned()));
            }
            belongs
        });
        for family in FAMILIES {
            let Some(Value::Dict(_, names)) = dict.get_mut(family) else { continue };
            names.retain(|name, _| {
                let path = join(family, name);
                let Some(owner) = owners.get(&path) else {
                    owners.insert(path, source.clone());
                    return true;
                };
                problems.push((path, format!("is in {owner} too; keep one")));
                false
            });
        }
        for (path, problem) in problems {
            let position = spans.get(&path).map(|span| span.key);
            let place = Place { layer: index, position, source: source.clone() };
            self.errors.push(ConfigError::new(place, path, problem));
        }
    }
}

/// The text of a file, if it is still there: at most `left` bytes. Anything but a regular file is an error: a read
/// from a pipe, for example, could wait forever.
fn read(file: &Path, left: usize) -> io::Result<Option<String>> {
    match fs::metadata(file) {
        Ok(data) if !data.is_file() => Err(io::Error::other("no file")),
        Ok(_) => {
            let text = read_text(file, MAX_FILE)?;
            if text.len() > left {
                return Err(io::Error::other(format!("over {MAX_ALL} bytes in all files")));
            }
            Ok(Some(text))
        }
        // A link that leads nowhere is a mistake.
        Err(_) if is_gone(file) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(file: &Path) -> bool {
    fs::symlink_metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}
