//! Certificates and keys, which are read again when one of their files changes.

use std::path::PathBuf;
use std::sync::Arc;

use super::error::TlsError;
use super::validity::Validity;
use crate::files::{Log, Reloaded};

/// A configuration of rustls, made of the files.
pub(super) struct Read<C> {
    pub(super) config: Arc<C>,
    /// When the certificate is valid that it shows, if it shows one.
    pub(super) validity: Option<Validity>,
}

/// Reads the files by `load`, now and whenever one of them changes. It blocks while it does.
pub(super) fn load<C, F>(files: Vec<PathBuf>, load: F) -> Result<Reloaded<Read<C>>, TlsError>
where
    C: Send + Sync + 'static,
    F: Fn() -> Result<(C, Option<Validity>), TlsError> + Send + Sync + 'static,
{
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let names = names.join(", ");
    let log: Log = Box::new(move |read| match read {
        Ok(()) => tracing::info!(files = names, "certificates read again: new connections use them"),
        Err(error) => tracing::error!(
            %error,
            "certificates cannot be read again: the old ones stay in use until they can be read"
        ),
    });
    let read = move || load().map(|(config, validity)| Read { config: Arc::new(config), validity });
    Reloaded::load(files, read, log)
}
