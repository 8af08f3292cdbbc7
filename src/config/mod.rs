//! `paced.toml`: it is read and checked, and every mistake is reported with its place.
//!
//! Sources are merged, the later over the earlier: defaults, files, environment variables
//! (`PACED_A__B` is the key `a.b`), `KEY=VALUE` arguments. Tables merge, arrays are replaced.

mod answers;
mod document;
mod dynamic;
mod error;
mod key;
mod limits;
mod place;
mod read;
mod reader;
mod reload;
mod retry;
mod schema;
mod secret;
mod secret_file;
mod settings;
mod shaper;
mod show;
mod source;
mod tls;
mod unknown;
mod url;
mod value;
mod warnings;

use std::path::{Path, PathBuf};

pub use document::quote;
pub use dynamic::Dynamic;
pub use error::{ConfigError, ConfigErrors};
pub use limits::LimitCost;
pub use reload::{DownstreamChanges, Reload};
pub use schema::schema;
pub use secret::Secret;
pub use settings::{
    Admin, Amqp, ClientAuth, Downstream, Http, Lanes, NamedToken, OAuth2, Plan, Queue, Reply, Role, Settings,
    Shutdown, Store,
};
pub use shaper::FromConfigError;
pub use show::{show, show_json};
pub use source::Sources;
#[doc(hidden)]
pub use url::sent_in_clear;
pub use value::duration;

pub use crate::tls::ServerTlsOptions as AdminTls;

use dynamic::WrongFiles;
use error::Kind;
use reader::{Entry, Reader};
use source::Layers;

/// The file that is read if no other is given or found.
const SYSTEM_FILE: &str = "/etc/paced/paced.toml";

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// The files it was read from, in order; secret files are not among them.
    pub files: Vec<PathBuf>,
    /// Warnings of entries that are valid but will not do what they seem to. They have the form of mistakes, with
    /// `warning: ` before the text.
    pub warnings: Vec<ConfigError>,
    entries: Vec<Entry>,
    dynamic: Option<Dynamic>,
}

impl Loaded {
    /// The directory of `[dynamic]`, if there is one.
    pub const fn dynamic(&self) -> Option<&Dynamic> {
        self.dynamic.as_ref()
    }

    /// The mistakes of files in the directory of `[dynamic]` that do not count as they are; see [`load_usable`].
    pub fn mistakes(&self) -> &[ConfigError] {
        self.dynamic.as_ref().map_or(&[][..], Dynamic::mistakes)
    }

    /// Reads the directory of `[dynamic]` again as [`load_usable`] does, with all other sources as they were read for `self`.
    /// Reads files, so it blocks for a moment. Without a directory it is the same configuration.
    ///
    /// # Errors
    /// As of [`load_usable`].
    pub fn load_dynamic(&self, sources: &Sources) -> Result<Self, ConfigErrors> {
        let Some(dynamic) = &self.dynamic else { return Ok(self.clone()) };
        let base = Layers::clone(&dynamic.base);
        dynamic::load(base, dynamic.dir(), sources, WrongFiles::Replace(Some(dynamic)))
    }

    /// A warning about a key, in the form of [`Loaded::warnings`].
    pub fn warning(&self, key: &str, problem: &str) -> String {
        let entry = self.entries.iter().find(|entry| entry.path() == key);
        let origin = entry.map_or("default", |entry| &*entry.origin);
        crate::text::escaped(&format!("{origin}: {key}: warning: {problem}")).into_owned()
    }
}

/// Reads, merges and checks a configuration. Reads files, so it blocks for a moment.
///
/// # Errors
/// All mistakes, each with its place. If a file has syntax errors, the first of them is reported, with all other certain
/// mistakes: not those that the rest of the file might have corrected.
pub fn load(sources: Sources) -> Result<Loaded, ConfigErrors> {
    load_with(&sources, Path::new(SYSTEM_FILE))
}

/// As [`load`], but a file with mistakes in the directory of `[dynamic]` keeps no other file from being used. It counts as it
/// was in `before`, or is left out. [`Loaded::mistakes`] has its mistakes.
///
/// # Errors
/// The mistakes of all other sources; or the directory cannot be read.
pub fn load_usable(sources: Sources, before: Option<&Loaded>) -> Result<Loaded, ConfigErrors> {
    let before = before.and_then(Loaded::dynamic);
    load_from(&sources, Path::new(SYSTEM_FILE), WrongFiles::Replace(before))
}

/// Reads `[admin]` alone, for tools that call a daemon from machines that may have no more of its configuration. Reads
/// files, so it blocks for a moment.
///
/// # Errors
/// The mistakes in `[admin]`, and files that cannot be read.
pub fn load_admin(sources: &Sources) -> Result<Admin, ConfigErrors> {
    let mut layers = Layers::collect(sources, Path::new(SYSTEM_FILE));
    let figment = layers.merge();
    let root = Layers::root(&figment);
    let mut reader = Reader::new(&figment, &layers.all, &root);
    reader.credentials = sources.credentials();
    reader.is_for_tools = true;
    let root = reader.root();
    let admin = read::admin(&mut reader, &root);
    layers.errors.extend(std::mem::take(&mut reader.errors));
    if layers.errors.is_empty() { Ok(admin) } else { Err(ConfigErrors::new(layers.errors)) }
}

/// Checks a text as if it were the only source, for one that is about to be written. `name` is that of the text in errors;
/// relative file names in it start at `dir`. It may read files, so it blocks for a moment.
///
/// # Errors
/// As of [`load`].
pub fn load_text(name: &str, text: &str, dir: &Path) -> Result<Loaded, ConfigErrors> {
    let mut layers = Layers::default();
    layers.text(name.to_owned(), text, dir.to_owned());
    load_layers(layers, &Sources::default(), WrongFiles::Refuse)
}

fn load_with(sources: &Sources, system: &Path) -> Result<Loaded, ConfigErrors> {
    load_from(sources, system, WrongFiles::Refuse)
}

fn load_from(sources: &Sources, system: &Path, wrong: WrongFiles<'_>) -> Result<Loaded, ConfigErrors> {
    let layers = Layers::read(sources, system);
    if layers.all.is_empty() {
        return Err(ConfigErrors::new(layers.errors));
    }
    load_layers(layers, sources, wrong)
}

fn load_layers(layers: Layers, sources: &Sources, wrong: WrongFiles<'_>) -> Result<Loaded, ConfigErrors> {
    match dynamic::dir_of(&layers, sources) {
        Some(dir) => dynamic::load(layers, &dir, sources, wrong),
        None => load_all(layers, sources),
    }
}

/// Loads all layers.
fn load_all(mut layers: Layers, sources: &Sources) -> Result<Loaded, ConfigErrors> {
    let figment = layers.merge();
    let root = Layers::root(&figment);
    let mut reader = Reader::new(&figment, &layers.all, &root);
    reader.credentials = sources.credentials();
    let settings = read::settings(&mut reader);
    reader.reject_unknown(&layers.all);
    let mut warnings = warnings::environment(&reader, sources);
    warnings.append(&mut reader.warnings);
    let Reader { errors, entries, .. } = reader;

    let any_broken = layers.all.iter().any(|layer| layer.broken.is_some());
    layers.errors.extend(errors.into_iter().filter(|error| {
        let place = error.place();
        let broken = layers.all.get(place.layer).and_then(|layer| layer.broken);
        let trusted = broken.is_none_or(|line| place.position.is_some_and(|(at, _)| at < line));
        trusted && !(any_broken && error.kind() == Kind::Absence)
    }));
    match settings {
        Some(settings) if layers.errors.is_empty() => {
            let warnings = ConfigErrors::sorted(warnings);
            Ok(Loaded { settings, files: layers.files, warnings, entries, dynamic: None })
        }
        _ => Err(ConfigErrors::new(layers.errors)),
    }
}

#[cfg(test)]
mod tests;
