//! The tokens of the admin server, whose files may be replaced while the daemon runs.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use paced::config::Admin;
use paced::failpoint;
use paced::files::{Log, Reloaded, Source};
use paced::lock::lock;
use tokio::time::Instant;

use super::watches::Refresh;
use crate::admin::{Access, Token, Tokens};

/// How long the file of a token must be gone or empty before the token is revoked: a program that replaces a file may
/// empty it first. It is less than the second between two looks, so that the second one revokes the token.
const PATIENCE: Duration = Duration::from_millis(900);

/// The tokens of `[admin]`, with the present contents of their files.
pub(super) struct TokenFiles {
    access: Arc<Access>,
    known: Mutex<Known>,
}

struct Known {
    guards_reads: bool,
    tokens: Vec<Watched>,
    /// Those that requests need, which were read last.
    in_use: Tokens,
}

/// A token. Its file, if it has one, is read separately: a file that cannot be used does not keep other tokens from
/// being replaced or revoked.
#[derive(Clone)]
struct Watched {
    /// The token as the configuration has it.
    configured: Token,
    /// The token that was read from the same file, perhaps later.
    read: Reloaded<Token>,
}

impl Watched {
    fn new(configured: Token) -> Self {
        let read = Reloaded::new(configured.clone(), source(&configured));
        Self { configured, read }
    }
}

impl TokenFiles {
    /// The tokens of `admin`, which `access` has.
    pub(super) fn new(access: Arc<Access>, admin: &Admin) -> Arc<Self> {
        let in_use = Tokens::from(admin);
        let tokens = in_use.all.iter().cloned().map(Watched::new).collect();
        let known = Mutex::new(Known { guards_reads: in_use.guards_reads, tokens, in_use });
        Arc::new(Self { access, known })
    }

    /// Replaces the tokens and their roles by those of this configuration. The next refresh reads their files.
    pub(super) fn reload(&self, admin: &Admin) {
        self.access.show_bodies(admin.show_bodies);
        let Tokens { all, guards_reads } = Tokens::from(admin);
        let mut known = lock(&self.known);
        let old = std::mem::take(&mut known.tokens);
        let watched = |configured: Token| {
            // If the configuration of a token did not change, the token that was read since then is newer.
            let Some(same) = old.iter().find(|old| old.configured == configured) else {
                return Watched::new(configured);
            };
            if let Some(source) = source(&configured) {
                same.read.follow(source);
            }
            same.clone()
        };
        known.tokens = all.into_iter().map(watched).collect();
        known.guards_reads = guards_reads;
        self.put_in_use(known);
    }

    /// Makes requests need the tokens that were read last, and logs a change of them.
    fn put_in_use(&self, mut known: MutexGuard<'_, Known>) {
        let all = known.tokens.iter().map(|token| Token::clone(&token.read.current())).collect();
        let read = Tokens { all, guards_reads: known.guards_reads };
        if read != known.in_use {
            self.access.replace_tokens(read.clone());
            tracing::info!("admin tokens read again: requests need the new ones from now on");
            log_revoked(&known.in_use, &read);
            known.in_use = read;
        }
    }
}

impl Refresh for TokenFiles {
    fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let tokens = lock(&self.known).tokens.clone();
            join_all(tokens.iter().map(|token| token.read.refresh())).await;
            self.put_in_use(lock(&self.known));
        })
    }

    fn is_failing(&self) -> bool {
        lock(&self.known).tokens.iter().any(|token| token.read.is_failing())
    }
}

/// Logs which files have no token any more.
fn log_revoked(before: &Tokens, after: &Tokens) {
    let had = |token: &Token| before.all.iter().any(|old| old.key() == token.key() && old.secret.is_some());
    for token in after.all.iter().filter(|token| token.secret.is_none() && had(token)) {
        let setting = format!("{}_file", token.key());
        tracing::warn!(
            setting,
            "the file is gone or empty: its token is revoked until the file has one again"
        );
    }
}

/// The file of this token, if it has one.
fn source(token: &Token) -> Option<Source<Token>> {
    let files = vec![token.secret.as_ref()?.file()?.to_owned()];
    let file = File { token: token.clone(), gone_since: Mutex::new(None) };
    let read = Box::new(move |_: &Token| file.read().map(Some));
    let log: Log = Box::new(|read| {
        if let Err(error) = read {
            tracing::error!(
                error,
                "admin tokens cannot be read again: the old ones stay in use until they can be read"
            );
        }
    });
    Some(Source { files, read, log })
}

/// The file of a token.
struct File {
    /// The token as the configuration has it.
    token: Token,
    /// Since when the file is gone or empty.
    gone_since: Mutex<Option<Instant>>,
}

impl File {
    /// The present token. If its file has been gone for [`PATIENCE`], the token is revoked: it has no secret.
    fn read(&self) -> Result<Token, String> {
        let Some(secret) = &self.token.secret else { return Ok(self.token.clone()) };
        let key = self.token.key();
        let secret = secret.read_again_if_there().map_err(|problem| format!("{key}_file: {problem}"))?;
        let mut gone_since = lock(&self.gone_since);
        if secret.is_some() {
            *gone_since = None;
        } else {
            let since = *gone_since.get_or_insert_with(Instant::now);
            if since.elapsed() < failpoint::interval(PATIENCE) {
                return Err(format!("{key}_file: it is gone or empty; its token is revoked in a moment"));
            }
        }
        Ok(Token { secret, ..self.token.clone() })
    }
}
