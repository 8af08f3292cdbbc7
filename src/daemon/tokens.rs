//! The tokens of the admin server, whose files may be replaced while the daemon runs.

use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::BoxFuture;
use paced::config::{Admin, Secret};
use paced::files::{Log, Reloaded, Source};
use paced::lock::lock;

use super::watches::Refresh;
use crate::admin::{Access, Tokens};

/// The tokens of `[admin]`, as their files have them.
pub(super) struct TokenFiles {
    access: Arc<Access>,
    read: Reloaded<Tokens>,
    known: Mutex<Known>,
}

struct Known {
    /// The tokens as the configuration has them.
    configured: Tokens,
    /// Those that requests need, which were read from the same files, perhaps later.
    in_use: Arc<Tokens>,
}

impl TokenFiles {
    /// The tokens of `admin`, which `access` has.
    pub(super) fn new(access: Arc<Access>, admin: &Admin) -> Arc<Self> {
        let configured = Tokens::from(admin);
        let read = Reloaded::new(configured.clone(), Some(source(&configured)));
        let known = Mutex::new(Known { configured, in_use: read.current() });
        Arc::new(Self { access, read, known })
    }

    /// Replaces the tokens by those of this configuration, and has their files read at the next refresh.
    pub(super) fn reload(&self, admin: &Admin) {
        let (mut known, configured) = (lock(&self.known), Tokens::from(admin));
        let source = source(&configured);
        // If the configuration did not change, what was read since then is newer.
        if known.configured == configured {
            self.read.follow(source);
        } else {
            self.read.replace(configured.clone(), Some(source));
            known.configured = configured;
        }
        self.put_in_use(known);
    }

    /// Has requests need the tokens that were read last, and logs it if they are others.
    fn put_in_use(&self, mut known: MutexGuard<'_, Known>) {
        let read = self.read.current();
        if read != known.in_use {
            self.access.replace_tokens(Tokens::clone(&read));
            tracing::info!("admin tokens read again: requests need the new ones from now on");
            known.in_use = read;
        }
    }
}

impl Refresh for TokenFiles {
    fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.read.refresh().await;
            self.put_in_use(lock(&self.known));
        })
    }
}

/// The files of these tokens.
fn source(tokens: &Tokens) -> Source<Tokens> {
    let Tokens { token, read_token } = tokens.clone();
    let secrets = [&token, &read_token].into_iter().flatten();
    let files = secrets.filter_map(Secret::file).map(ToOwned::to_owned).collect();
    let read = |secret: &Option<Secret>, key: &str| -> Result<Option<Secret>, String> {
        let Some(secret) = secret else { return Ok(None) };
        secret.read_again().map(Some).map_err(|problem| format!("{key}_file: {problem}"))
    };
    let read = Box::new(move |_: &Tokens| {
        let (token, read_token) = (read(&token, "admin.token")?, read(&read_token, "admin.read_token")?);
        Ok(Some(Tokens { token, read_token }))
    });
    let log: Log = Box::new(|read| {
        if let Err(error) = read {
            tracing::error!(error, "admin tokens cannot be read again: those in use stay so until they can");
        }
    });
    Source { files, read, log }
}
