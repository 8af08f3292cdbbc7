//! Carries out orders in the store, from which every replica learns of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use paced::api::{Cancelled, Downstream, Rates};
use paced::limit::Limit;
use paced::store::{Change, RecordState, Store, TombstoneCall, TombstoneReply};
use paced::terms::{self, Changed, Terms, TermsError};
use paced::time::Micros;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::view;
use crate::admin::reply::Refusal;
use crate::status::OwnTerms;
use crate::status::record::Note;

/// The time-out for an answer of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// The most calls to the store at once for requests that only read.
const MAX_READS: usize = 8;

/// The most ids of jobs that a line of the audit log names.
const MOST_LISTED: usize = 20;

pub(crate) struct Operations {
    store: Arc<dyn Store>,
    own: watch::Receiver<OwnTerms>,
    /// The calls to the store at once for requests that only read.
    reads: Semaphore,
}

/// The author of an order, and the reason that was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Author<'a> {
    pub(super) address: IpAddr,
    pub(super) reason: Option<&'a str>,
}

impl Author<'_> {
    /// The note that a store keeps with a pause. A reason is so short that the note never is too long.
    pub(super) fn note(&self) -> String {
        let note = Note { by: Some(self.address.to_string()), reason: self.reason.map(str::to_owned) };
        // It has only texts, so that there is no error.
        serde_json::to_string(&note).unwrap_or_default()
    }
}

/// A downstream to which an order applies.
pub(super) struct Target<'a> {
    operations: &'a Operations,
    name: &'a str,
    own: Terms,
    pub(super) by: Author<'a>,
}

/// An order that was carried out.
pub(super) struct Done {
    /// The states before and after the order, for the audit log.
    pub(super) before: String,
    pub(super) after: String,
    /// The downstream after the order.
    pub(super) body: Downstream,
}

impl Operations {
    /// `own` are the terms for downstreams of which the store has none yet.
    pub(crate) fn new(store: Arc<dyn Store>, own: watch::Receiver<OwnTerms>) -> Self {
        Self { store, own, reads: Semaphore::new(MAX_READS) }
    }

    /// The names of the downstreams.
    pub(super) fn names(&self) -> Vec<String> {
        self.own.borrow().keys().cloned().collect()
    }

    /// Checks whether there is a downstream of this name.
    pub(super) fn known(&self, name: &str) -> Result<(), Refusal> {
        self.own_terms(name).map(drop)
    }

    /// Shows a downstream by its record. It asks no server.
    pub(super) fn describe(&self, name: &str, record: &RecordState) -> Result<Downstream, Refusal> {
        Ok(describe(name, record, &self.own_terms(name)?))
    }

    /// Shows a downstream as the store has it now. Cancel safe.
    pub(super) async fn downstream(&self, name: &str) -> Result<Downstream, Refusal> {
        let own = self.own_terms(name)?;
        let record = self.read(name).await?;
        Ok(describe(name, &record, &own))
    }

    /// Shows a downstream's limits and the rates set over them. Cancel safe.
    pub(super) async fn rates(&self, name: &str) -> Result<Rates, Refusal> {
        let own = self.own_terms(name)?;
        let record = self.read(name).await?;
        Ok(view::rates(name, &record, &in_force(&record, &own)?, &own))
    }

    /// The downstream of this name, for an order of `by`.
    pub(super) fn target<'a>(&'a self, name: &'a str, by: Author<'a>) -> Result<Target<'a>, Refusal> {
        Ok(Target { operations: self, name, own: self.own_terms(name)?, by })
    }

    fn own_terms(&self, name: &str) -> Result<Terms, Refusal> {
        self.own.borrow().get(name).cloned().ok_or_else(|| {
            let text = format!("no such downstream; this daemon has {}", self.names().join(", "));
            Refusal::new(StatusCode::NOT_FOUND, text)
        })
    }

    /// Reads a record for a request that only reads: however many there are, the store gets few of these calls at once.
    async fn read(&self, name: &str) -> Result<RecordState, Refusal> {
        within_timeout(async {
            // The semaphore is never closed, so that there is always a permit in the end.
            let _permit = self.reads.acquire().await;
            self.store.read_record(name).await
        })
        .await
    }
}

/// Each is cancel safe: the order is carried out, or not.
impl Target<'_> {
    /// Changes the pauses.
    pub(super) async fn change_pause(self, change: Change<'_>) -> Result<Done, Refusal> {
        let before = self.read_record().await?;
        let after = self.update_record(change).await?;
        let body = describe(self.name, &after, &self.own);
        Ok(Done { before: pause(&before), after: pause(&after), body })
    }

    /// Starts the counts of one limit or of all again from 0.
    pub(super) async fn reset(self, limit: Option<&str>) -> Result<Done, Refusal> {
        let before = self.read_record().await?;
        let limits = in_force(&before, &self.own)?.counted(limit, before.now)?;
        let after = self.update_record(Change::Reset { limits: &limits }).await?;
        let names: Vec<String> = limits.iter().map(|limit: &Limit| limit.name().to_owned()).collect();
        Ok(Done {
            before: counts(&before),
            after: format!("{} of {}", counts(&after), names.join(", ")),
            body: Downstream { reset: Some(names), ..describe(self.name, &after, &self.own) },
        })
    }

    /// Cancels jobs, or ends their cancellation; `effect` says which of both, for the audit log.
    pub(super) async fn change_tombstones(
        self,
        ids: &[Arc<str>],
        call: TombstoneCall<'_>,
        effect: &str,
    ) -> Result<Done, Refusal> {
        // The record is read first: once the store has made the change, no failure may be reported.
        let record = self.read_record().await?;
        let call = self.operations.store.tombstones(self.name, call);
        let TombstoneReply { changed, .. } = within_timeout(call).await?;
        let cancelled = Some(Cancelled { ids: ids.len(), changed });
        let body = Downstream { cancelled, ..describe(self.name, &record, &self.own) };
        let after = format!("{changed} of {} {effect}: {}", ids.len(), listed(ids));
        Ok(Done { before: String::new(), after, body })
    }

    /// Changes the terms, by compare and swap. `change` returns the name of the limit.
    pub(super) async fn change_terms(
        self,
        change: impl FnMut(&mut Terms, Micros) -> Result<String, TermsError> + Send,
    ) -> Result<Done, Refusal> {
        let change = terms::change(&*self.operations.store, self.name, &self.own, change);
        let Changed { before, after, record, told: limit, .. } = within_timeout(change).await?;
        Ok(Done {
            before: rate(&before, &limit),
            after: rate(&after, &limit),
            body: view::downstream(self.name, &record, &after, &self.own),
        })
    }

    async fn read_record(&self) -> Result<RecordState, Refusal> {
        within_timeout(self.operations.store.read_record(self.name)).await
    }

    async fn update_record(&self, change: Change<'_>) -> Result<RecordState, Refusal> {
        within_timeout(self.operations.store.update_record(self.name, change)).await
    }
}

/// The answer of the store, within a time-out.
async fn within_timeout<T, E: Into<Refusal>>(
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Refusal> {
    match timeout(STORE_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(E::into),
        Err(_) => {
            let text =
                format!("no answer of the store within {STORE_TIMEOUT:?}; look whether it was changed");
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}

/// A downstream. It is shown even where its terms cannot be parsed.
fn describe(name: &str, record: &RecordState, own: &Terms) -> Downstream {
    match in_force(record, own) {
        Ok(terms) => view::downstream(name, record, &terms, own),
        Err(refusal) => {
            let error = Some(refusal.text().to_owned());
            Downstream { error, ..view::downstream(name, record, own, own) }
        }
    }
}

/// The terms in force, or those of the own file if the store has none.
fn in_force(record: &RecordState, own: &Terms) -> Result<Terms, Refusal> {
    Ok(match &record.terms {
        Some(text) => Terms::parse(text)?,
        None => own.clone(),
    })
}

/// The pause as text, for the audit log.
fn pause(record: &RecordState) -> String {
    let until = record.status.paused_until();
    match record.status.is_stopped() {
        true => "paused until resumed".to_owned(),
        false if until > record.now => format!("paused for {:?}", until.since(record.now)),
        false => "not paused".to_owned(),
    }
}

/// The counts as text, for the audit log.
fn counts(record: &RecordState) -> String {
    match record.status.reset {
        0 => "never reset".to_owned(),
        version => format!("reset {version}"),
    }
}

/// The ids as text, for the audit log: the first ones, and how many there are.
fn listed(ids: &[Arc<str>]) -> String {
    let first: Vec<&str> = ids.iter().take(MOST_LISTED).map(|id| &**id).collect();
    let more = ids.len() - first.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", first.join(", "))
}

/// The rate of a limit as text, for the audit log.
fn rate(terms: &Terms, limit: &str) -> String {
    match terms.overrides().get(limit) {
        Some(set) => match set.until {
            Some(until) => format!("{limit}: {} until {}", set.rate, until.0 / 1000),
            None => format!("{limit}: {}", set.rate),
        },
        None => format!("{limit}: as in the file"),
    }
}
