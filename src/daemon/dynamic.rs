//! The directory of `[dynamic]`: notices that downstreams were added, removed or changed there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use paced::config::Loaded;
use paced::failpoint;
use paced::files::Listing;
use paced::lock::lock;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::watches::Refresh;

/// How long the directory must not change before it is read: a program may still be writing.
const SETTLED: Duration = Duration::from_millis(100);

/// How many times longer this is if a file was rewritten in place: a half-written file may be valid, but without its
/// limits.
const REWRITTEN: usize = 20;

/// The most checks of this kind: a file that is written to all the time must not keep other changes out.
const MOST_LOOKS: usize = 2 * REWRITTEN;

/// A directory that is watched, if there is one.
pub(super) struct DynamicDir {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    dir: Option<PathBuf>,
    /// The listing of the last read, or of the last change that was noticed.
    seen: Option<Seen>,
}

/// The files of the directory, or why they cannot be listed.
type Seen = Result<Listing, String>;

impl DynamicDir {
    /// The directory of this configuration.
    pub(super) fn new(loaded: &Loaded) -> Arc<Self> {
        let dir = Self { state: Mutex::default(), changed: Notify::new() };
        dir.follow(loaded);
        Arc::new(dir)
    }

    /// Watches the directory of this configuration from now on. A difference from the listing that was read counts as
    /// a change.
    pub(super) fn follow(&self, loaded: &Loaded) {
        let dir = loaded.dynamic().map(|dynamic| dynamic.dir().to_owned());
        let seen = loaded.dynamic().map(|dynamic| Ok(dynamic.listing().clone()));
        *lock(&self.state) = State { dir, seen };
    }

    /// Waits for a change of the directory. Several that come before this is called count once. Cancel safe.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether this listing of the directory differs from the last one.
    fn is_news(&self, dir: &Path, now: &Seen) -> bool {
        let state = lock(&self.state);
        state.dir.as_deref() == Some(dir) && state.seen.as_ref() != Some(now)
    }

    /// How many checks in a row must find the directory unchanged.
    fn looks(&self, now: &Seen) -> usize {
        match (now, &lock(&self.state).seen) {
            (Ok(now), Some(Ok(seen))) if now.has_rewritten(seen) => REWRITTEN,
            _ => 1,
        }
    }

    fn note(&self, dir: &Path, now: Seen) {
        if self.is_news(dir, &now) {
            lock(&self.state).seen = Some(now);
            self.changed.notify_one();
        }
    }
}

impl Refresh for DynamicDir {
    fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let Some(dir) = lock(&self.state).dir.clone() else { return };
            let mut now = list(&dir).await;
            if !self.is_news(&dir, &now) {
                return;
            }
            let mut still = 0;
            for _ in 0..MOST_LOOKS {
                sleep(failpoint::interval(SETTLED)).await;
                let before = std::mem::replace(&mut now, list(&dir).await);
                still = if before == now { still + 1 } else { 0 };
                if still >= self.looks(&now) {
                    break;
                }
            }
            self.note(&dir, now);
        })
    }

    fn is_failing(&self) -> bool {
        matches!(lock(&self.state).seen, Some(Err(_)))
    }
}

async fn list(dir: &Path) -> Seen {
    let dir = dir.to_owned();
    let listing = spawn_blocking(move || Listing::of(&dir).map_err(|error| error.to_string())).await;
    // Only a runtime that shuts down does not run it.
    listing.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use paced::config::{self, Sources};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_change_is_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("d");
        std::fs::create_dir(&dir).unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, "[dynamic]\ndir = 'd'\n").unwrap();
        let sources = Sources { files: vec![file], ..Sources::default() };
        let load = || config::load(sources.clone()).unwrap();
        let watched = DynamicDir::new(&load());
        let look = async || {
            Arc::clone(&watched).refresh().await;
            watched.changed().now_or_never().is_some()
        };
        assert!(!look().await, "it is as it was read");
        let a = dir.join("a.toml");
        std::fs::write(&a, "[downstreams.a]\nrate = '1/s'\nhttp.base_url = 'http://localhost/'\n").unwrap();
        assert!(look().await && !look().await);
        // It is read with another change, which was not noticed yet.
        let plan = "[plans.pro]\nlimits = [{ rate = '1/s' }]\n";
        std::fs::write(dir.join("b.toml"), plan).unwrap();
        watched.follow(&load());
        assert!(!look().await);
        // What was rewritten in its place may not be whole yet; what was renamed is.
        let now = || tokio::time::Instant::now();
        let put = |text: &str| {
            std::fs::write(dir.join(".new"), text).unwrap();
            std::fs::rename(dir.join(".new"), &a).unwrap();
        };
        let start = now();
        put("[downstreams.a]\n");
        assert!(look().await);
        assert_eq!(start.elapsed(), SETTLED);
        let start = now();
        std::fs::write(&a, "[downstreams.b]\n").unwrap();
        assert!(look().await && !look().await);
        assert_eq!(start.elapsed(), SETTLED * 20);
        std::fs::remove_file(&a).unwrap();
        assert!(look().await && !look().await);
        std::fs::rename(&dir, folder.path().join("elsewhere")).unwrap();
        assert!(look().await && watched.is_failing() && !look().await, "it is gone");
        std::fs::rename(folder.path().join("elsewhere"), &dir).unwrap();
        assert!(look().await && !watched.is_failing(), "it is back");
    }
}
