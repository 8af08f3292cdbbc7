//! The tokens of the admin server, whose files may be replaced while the daemon runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paced::config::{Admin, Secret};
use paced::failpoint;
use paced::files::{Stamps, Watch};
use tokio::time::MissedTickBehavior;

use crate::admin::{Access, Tokens};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Watches the files of the tokens. Clones share what they know.
#[derive(Clone)]
pub(super) struct TokenFiles(Arc<Shared>);

struct Shared {
    access: Arc<Access>,
    known: Mutex<Known>,
}

struct Known {
    /// The tokens as the configuration has them.
    configured: Tokens,
    /// Those in use, which were read from the same files, perhaps later.
    in_use: Tokens,
    watch: Watch,
}

impl TokenFiles {
    /// The files of the tokens of `admin`, which `access` goes by.
    pub(super) fn new(access: Arc<Access>, admin: &Admin) -> Self {
        let (configured, in_use) = (Tokens::from(admin), Tokens::from(admin));
        let known = Mutex::new(Known { configured, in_use, watch: Watch::default() });
        Self(Arc::new(Shared { access, known }))
    }

    /// Goes by the tokens of this configuration, and looks at their files.
    pub(super) async fn reload(&self, admin: &Admin) {
        let (shared, configured) = (Arc::clone(&self.0), Tokens::from(admin));
        let look = move || {
            shared.configure(configured);
            shared.look();
        };
        // Only a runtime that shuts down does not run it.
        let _ = tokio::task::spawn_blocking(look).await;
    }

    /// Looks at the files each second, and never returns.
    pub(super) async fn watch(self) {
        let mut ticks = tokio::time::interval(failpoint::interval(INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let shared = Arc::clone(&self.0);
            let _ = tokio::task::spawn_blocking(move || shared.look()).await;
        }
    }
}

impl Shared {
    /// Goes by the tokens of the configuration, and has their files read at the next look. It blocks while another thread
    /// looks.
    fn configure(&self, configured: Tokens) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // If the configuration did not change, what was read since then is newer.
        if known.configured != configured {
            self.put_in_use(&mut known, configured.clone());
            known.configured = configured;
        }
        known.watch.forget();
    }

    /// Reads the tokens again if a file of theirs has changed. Those in use stay so if what is there now cannot be used.
    /// It blocks while it reads.
    fn look(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = known.in_use.stamps();
        if !known.watch.has_changed(&stamps) {
            return;
        }
        match read_again(&known.in_use) {
            Ok(tokens) => {
                self.put_in_use(&mut known, tokens);
                known.watch.note_loaded(stamps);
            }
            Err(error) => {
                if known.watch.note_failure(stamps) {
                    tracing::error!(
                        error,
                        "admin tokens cannot be read again: those in use stay so until they can"
                    );
                }
            }
        }
    }

    /// Goes by these tokens from now on, and logs it if they are others.
    fn put_in_use(&self, known: &mut Known, tokens: Tokens) {
        if tokens != known.in_use {
            self.access.replace_tokens(tokens.clone());
            tracing::info!("admin tokens read again: requests need the new ones from now on");
        }
        known.in_use = tokens;
    }
}

impl Tokens {
    fn stamps(&self) -> Stamps {
        Stamps::of([&self.token, &self.read_token].into_iter().flatten().filter_map(Secret::file))
    }
}

/// The same tokens, read again where they have files.
fn read_again(Tokens { token, read_token }: &Tokens) -> Result<Tokens, String> {
    let read = |secret: &Option<Secret>, key: &str| -> Result<Option<Secret>, String> {
        let Some(secret) = secret else { return Ok(None) };
        secret.read_again().map(Some).map_err(|problem| format!("{key}_file: {problem}"))
    };
    Ok(Tokens { token: read(token, "admin.token")?, read_token: read(read_token, "admin.read_token")? })
}
