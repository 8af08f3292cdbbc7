//! Reports this replica to the others: it leaves its summary in the store every two seconds, however long it takes to read
//! the summaries of the others, and a goodbye at the end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

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

/// The time-out for an answer of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports this replica once.
pub(super) async fn report(shared: &Shared) {
    let text = {
        let mut own = lock(&shared.own);
        own.asked = shared.parts.asks.current();
        own.text()
    };
    let store = &shared.parts.store;
    let reported = within_timeout(store, store.leave_summary(&shared.parts.identity.id, &text, KEPT)).await;
    lock(&shared.known).store_error = reported.err();
}

/// Reports this replica every two seconds until `stop`, and says goodbye then, also if the store has not answered before.
pub(super) async fn report_until(shared: &Shared, stop: &CancellationToken) {
    while stop.run_until_cancelled(sleep(failpoint::interval(INTERVAL))).await.is_some() {
        report(shared).await;
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
