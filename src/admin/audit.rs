//! The audit log: the outcome of each change, and who reads bodies, as lines of the daemon's log.
//!
//! | line | meaning |
//! |---|---|
//! | `admin: changing` | a change begins; the line comes before the request to the store or the broker |
//! | `admin: changed` | it was made |
//! | `admin: not changed` | it was not made |
//! | `admin: unknown whether changed` | the store gave no answer, or the change broke off |
//! | `admin: reading a body` | somebody asks for the body of a dead letter; the line comes before the request to the broker |
//!
//! All lines of one change have the same `order`, a number in this process. A process that is killed in the middle of
//! a change leaves only its line `admin: changing`, which then means the same as `admin: unknown whether changed`.

use std::sync::atomic::{AtomicU64, Ordering};

use paced::api::history::{Author, Change};
use paced::failpoint;
use paced::text::cut;

use super::reply::Refusal;
use super::routes::{Client, MAX_SHOWN};
use crate::telemetry;

/// The target of all lines here, which are in the log at any of its levels: otherwise a daemon that logs warnings alone would
/// leave no line of a change that was made.
pub(crate) const TARGET: &str = module_path!();

/// Logs that a client reads the body of the dead letter that `chosen` names. The line is written before this returns,
/// unless the log is stuck, and so before the request to the broker: a body may hold secrets.
///
/// Cancel safe: a caller that drops the future must not read the body.
pub(super) async fn reads_body(client: &Client, downstream: &str, chosen: &str) {
    let (remote, Author { by, certificate, claimed }) = (client.remote, &client.author);
    tracing::info!(%remote, by, certificate, claimed, downstream, chosen, "admin: reading a body");
    telemetry::flush().await;
}

/// The longest text of an error in a line, in characters.
const MAX_ERROR: usize = 1000;

/// The longest text of a state in the history, in characters.
const MAX_NOTED: usize = 200;

/// The number of changes that have begun in this process.
static ORDERS: AtomicU64 = AtomicU64::new(0);

/// Who changes what, and why.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) client: Client,
    pub(super) downstream: String,
    /// The change in a word or two.
    pub(super) change: &'static str,
    /// The part of the downstream that is changed; empty for all of it.
    pub(super) chosen: String,
    /// The reason that was given; empty if there was none.
    pub(super) reason: String,
}

/// A change that has begun. If it is dropped before its end was logged, the log says that nobody knows whether it was
/// made.
#[derive(Debug)]
pub(super) struct Begun {
    subject: Subject,
    order: u64,
    has_ended: bool,
}

impl Subject {
    /// Logs that the change begins. The line is written before this returns, unless the log is stuck.
    ///
    /// Cancel safe: if the future is dropped, the change did not begin.
    pub(super) async fn begin(self) -> Begun {
        let begun =
            Begun { subject: self, order: ORDERS.fetch_add(1, Ordering::Relaxed) + 1, has_ended: false };
        let Begun { subject: Self { client, chosen, reason, change, .. }, order, .. } = &begun;
        let (remote, Author { by, certificate, claimed }) = (client.remote, &client.author);
        let downstream = begun.downstream();
        tracing::info!(%remote, by, certificate, claimed, order, downstream, change, chosen, reason, "admin: changing");
        telemetry::flush().await;
        failpoint::reached("change:begun");
        begun
    }
}

impl Begun {
    /// Returns the entry of the change for the history. Its texts are cut, so that the entry is short enough.
    fn entry(&self, before: &str, after: &str, is_unknown: bool) -> Change {
        let Subject { client, chosen, reason, change, .. } = &self.subject;
        let short = |text: &str| cut(text, MAX_NOTED).to_owned();
        Change {
            at: 0,
            author: client.author.clone(),
            change: (*change).to_owned(),
            chosen: short(chosen),
            before: short(before),
            after: short(after),
            reason: reason.clone(),
            is_unknown,
        }
    }

    /// Logs that the change was made. Returns its entry for the history.
    pub(super) fn made(mut self, before: &str, after: &str) -> Change {
        failpoint::reached("change:made");
        self.has_ended = true;
        let Self { subject: Subject { client, chosen, reason, change, .. }, order, .. } = &self;
        let (remote, Author { by, certificate, claimed }) = (client.remote, &client.author);
        let downstream = self.downstream();
        tracing::info!(%remote, by, certificate, claimed, order, downstream, change, chosen, before, after, reason, "admin: changed");
        self.entry(before, after, false)
    }

    /// Logs that the change was refused or failed. If nobody knows whether it was made, returns its entry for the
    /// history.
    pub(super) fn failed(mut self, refusal: &Refusal) -> Option<Change> {
        self.has_ended = true;
        let Self { subject: Subject { client, chosen, reason, change, .. }, order, .. } = &self;
        let (remote, Author { by, certificate, claimed }) = (client.remote, &client.author);
        let (downstream, status) = (self.downstream(), refusal.status().as_u16());
        let error = cut(refusal.text(), MAX_ERROR);
        if refusal.is_unknown() {
            tracing::warn!(%remote, by, certificate, claimed, order, downstream, change, chosen, reason, status, error, "admin: unknown whether changed");
        } else {
            tracing::warn!(%remote, by, certificate, claimed, order, downstream, change, chosen, reason, status, error, "admin: not changed");
        }
        refusal.is_unknown().then(|| self.entry("", error, true))
    }

    /// The name of the downstream, which need not exist.
    fn downstream(&self) -> &str {
        cut(&self.subject.downstream, MAX_SHOWN)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.has_ended {
            let Self { subject: Subject { client, chosen, reason, change, .. }, order, .. } = &*self;
            let (remote, Author { by, certificate, claimed }) = (client.remote, &client.author);
            let (downstream, error) = (self.downstream(), "it broke off");
            tracing::warn!(%remote, by, certificate, claimed, order, downstream, change, chosen, reason, error, "admin: unknown whether changed");
        }
    }
}
