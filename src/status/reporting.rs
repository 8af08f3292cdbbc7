//! Reports this replica to the others: it leaves its summary in the store every two seconds, however long it takes to read
//! the summaries of the others, and a goodbye at the end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use paced::episode::Episode;
use paced::lock::lock;
use paced::time::wall_now;
use paced::{Store, StoreError, failpoint};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use super::summary::Summary;

/// How often this replica reports itself, and how long a report counts.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);
pub(super) const KEPT: Duration = Duration::from_secs(10);

/// How long reports are too long before the log says so.
const LASTING: Duration = Duration::from_secs(60);

/// The time-out for an answer of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports this replica once. Returns how many of its downstreams had no room in the report.
pub(super) async fn report(shared: &Shared) -> usize {
    let (text, left_out) = {
        let mut own = lock(&shared.own);
        own.asked = shared.parts.asks.current();
        own.text_that_fits()
    };
    let store = &shared.parts.store;
    let reported = within_timeout(store, store.leave_summary(&shared.parts.identity.id, &text, KEPT)).await;
    lock(&shared.known).store_error = reported.err();
    left_out
}

fn log_left_out(too_long: &mut Episode, left_out: usize) {
    if left_out == 0 {
        if too_long.end() {
            tracing::info!("the report of this replica has room for all its downstreams again");
        }
    } else if too_long.note(()) {
        tracing::warn!(
            left_out,
            "the report of this replica is too long for the store: the other replicas do not see these downstreams of it, the last \
             ones by name; divide the downstreams over several groups of daemons, each with its own file"
        );
    }
}

/// Reports this replica every two seconds until `stop`, and says goodbye then, also if the store has not answered before.
pub(super) async fn report_until(shared: &Shared, stop: &CancellationToken) {
    let mut too_long = Episode::after(failpoint::interval(LASTING));
    while stop.run_until_cancelled(sleep(failpoint::interval(INTERVAL))).await.is_some() {
        log_left_out(&mut too_long, report(shared).await);
    }
    let goodbye = Summary::goodbye(shared.parts.identity.clone(), wall_now().0 / 1000);
    let text = goodbye.text();
    let store = &shared.parts.store;
    // Without it the others name this replica as silent after a while. It ends by itself.
    let _ = within_timeout(store, store.leave_summary(&goodbye.replica.id, &text, KEPT)).await;
}

/// The answer of the store, within a time-out; the error is for people.
pub(super) async fn within_timeout<T>(
    store: &Arc<dyn Store>,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, String> {
    let answer = timeout(STORE_TIMEOUT, answer).await;
    let answer = answer.unwrap_or_else(|_| Err(StoreError::no_answer(store.address(), STORE_TIMEOUT)));
    answer.map_err(|error| error.to_string())
}
