//! What the commands take from the configuration.

use paced::amqp;
use paced::config::{self, Downstream, Loaded, Settings, Sources};

use super::exit::Exit;
use super::{Global, out};
use crate::daemon;

/// The sources of the configuration.
pub(super) fn sources(global: &Global) -> Sources {
    Sources::from_process(global.config.clone(), global.set.clone())
}

/// Reads the configuration; errors are printed to stderr. Those of files in the directory of `[dynamic]` end nothing: these
/// files are left out.
pub(super) fn load(global: &Global) -> Result<Loaded, Exit> {
    let loaded = load_to_run(global)?;
    loaded.mistakes().iter().for_each(out::say);
    Ok(loaded)
}

/// As [`load`], but the log has the mistakes of files in the directory of `[dynamic]`.
pub(super) fn load_to_run(global: &Global) -> Result<Loaded, Exit> {
    config::load_usable(sources(global), None).map_err(|errors| {
        out::say(&errors);
        Exit::Config
    })
}

/// The downstream of this name; otherwise the known names are printed to stderr.
pub(super) fn downstream<'a>(settings: &'a Settings, name: &str) -> Result<&'a Downstream, Exit> {
    settings.downstreams.get(name).ok_or_else(|| {
        let known: Vec<&str> = settings.downstreams.keys().map(String::as_str).collect();
        let known = known.join(", ");
        out::fail(Exit::Usage, format_args!("no downstream `{name}` in the configuration; it has {known}"))
    })
}

/// A downstream that is not in the configuration any more, of which only the queues may be left.
pub(super) fn orphan(name: &str) -> amqp::Downstream {
    amqp::Downstream { name: name.to_owned(), queue: None, max_length: None, prefetch: 1, prefetch_bytes: 1 }
}

/// The options of the connections to the broker; an error is printed to stderr.
pub(super) fn amqp(settings: &Settings) -> Result<amqp::Options, Exit> {
    daemon::amqp_options(settings).map_err(out::failed)
}

/// A span of milliseconds, as people say it.
pub(super) fn for_people(millis: i64) -> String {
    let seconds = (millis / 1000).max(0);
    match (seconds / 86_400, seconds % 86_400 / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}
