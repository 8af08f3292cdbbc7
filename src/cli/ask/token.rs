//! A token of the tools, whose file may be replaced while one of them runs.

use std::sync::Mutex;

use paced::config::Secret;
use paced::lock::lock;

/// The token of one kind of request, if there is one.
pub(super) struct Token(Mutex<Option<Secret>>);

impl Token {
    pub(super) fn new(token: Option<Secret>) -> Self {
        Self(Mutex::new(token))
    }

    /// The token as it was read last.
    pub(super) fn get(&self) -> Option<Secret> {
        lock(&self.0).clone()
    }

    /// Reads the token from its file again, and uses it from then on. Returns it unless it is the one that was refused.
    ///
    /// Cancel safe.
    pub(super) async fn read_again(&self, refused: &Secret) -> Option<Secret> {
        let secret = refused.clone();
        // If it cannot be read, the refusal is reported as it is.
        let read = tokio::task::spawn_blocking(move || secret.read_again()).await.ok()?.ok()?;
        let newer = (read != *refused).then_some(read)?;
        *lock(&self.0) = Some(newer.clone());
        Some(newer)
    }
}
