//! Watches whether the dispatchers run: `/livez` fails once the loop of one has not run for a while, so that the
//! process's supervisor restarts it.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::join_all;
use paced::failpoint;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::Stuck;
use crate::status::{Dispatchers, Handle};

/// How long the loop of a dispatcher has not run before it counts as stuck. It runs within milliseconds, also while the
/// broker, the store or the API does not answer, or a limit holds all jobs.
const LONGEST: Duration = Duration::from_secs(30);

/// How long after a round of turns the next one begins; longer where the dispatchers are many, by this for each: a turn wakes one that
/// has nothing to do.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_EACH: Duration = Duration::from_millis(5);

/// Asks the present dispatchers for turns until `stop`, and keeps in `stuck` those that take none. A dispatcher that
/// drains takes none, and does not count as stuck.
pub(super) async fn watch(stuck: Stuck, dispatchers: Dispatchers, stop: CancellationToken) {
    stop.run_until_cancelled(watch_all(&stuck, &dispatchers)).await;
    stuck.clear();
}

async fn watch_all(stuck: &Stuck, dispatchers: &Dispatchers) -> Infallible {
    loop {
        let all = dispatchers.all();
        // One may have been removed while it was stuck.
        stuck.retain(|name| all.contains_key(name));
        join_all(all.iter().map(|(name, dispatcher)| watch_one(stuck, name, dispatcher))).await;
        let pause = PAUSE.max(PAUSE_EACH * u32::try_from(all.len()).unwrap_or(u32::MAX));
        // A dispatcher that runs again must not fail the probe for long.
        let pause = if stuck.is_any() { PAUSE } else { pause };
        // The next round asks the dispatchers that exist then.
        drop(all);
        sleep(failpoint::interval(pause)).await;
    }
}

async fn watch_one(stuck: &Stuck, name: &str, dispatcher: &Handle) {
    let within = failpoint::interval(LONGEST);
    match dispatcher.end.run_until_cancelled(timeout(within, dispatcher.turn())).await {
        Some(Err(_)) if stuck.insert(name) => tracing::error!(
            downstream = name,
            ?within,
            "the dispatcher is stuck: its loop has not run for this long; /livez fails until it does"
        ),
        Some(Err(_)) => {}
        Some(Ok(())) if stuck.remove(name) => {
            tracing::warn!(downstream = name, "the dispatcher runs again");
        }
        // It has run, or it is to end.
        Some(Ok(())) => {}
        None => _ = stuck.remove(name),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paced::config::{self, Sources};
    use paced::{MemoryStore, Store};

    use super::super::parts;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_dispatcher_whose_loop_does_not_run_is_stuck_until_the_daemon_drains() {
        let text = ["rate='1/s'", "http.base_url='http://127.0.0.1:1/'"];
        let set = text.map(|key| format!("downstreams.a.{key}")).to_vec();
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, "").unwrap();
        let settings =
            config::load(Sources { files: vec![file], set, ..Sources::default() }).unwrap().settings;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let clock = parts::clock(paced::dispatch::Precision::Coarse);
        // It is never run.
        let downstream = &settings.downstreams["a"];
        let options = parts::options(&settings, "a", downstream, &parts::reply_rules(&settings));
        let shared = parts::Shared::default();
        let built = parts::dispatcher(options, &downstream.http, shared, store, clock).unwrap();
        let (stuck, stop, end) = (Stuck::default(), CancellationToken::new(), CancellationToken::new());
        let dispatchers = Dispatchers::default();
        dispatchers.insert("a".to_owned(), Handle::of(&built.0, end));
        let watching = tokio::spawn(watch(stuck.clone(), dispatchers, stop.clone()));
        sleep(LONGEST - Duration::from_secs(1)).await;
        assert!(!stuck.is_any(), "it may be busy");
        sleep(Duration::from_secs(2)).await;
        assert!(stuck.is_any());
        stop.cancel();
        watching.await.unwrap();
        assert!(!stuck.is_any());
    }
}
