//! Carries out orders in the store, from which every replica learns of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use paced::limit::Limit;
use paced::store::{Change, RecordState, Store, TombstoneCall, TombstoneReply};
use paced::terms::{self, Changed, Override, Terms, TermsError};
use paced::time::Micros;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::body::Order;
use super::reply::Refusal;
use super::view;

/// The time-out for an answer of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// The most calls to the store at once for those who only look.
const MAX_LOOKS: usize = 8;

/// The most ids of jobs that a line of the audit log names.
const MOST_LISTED: usize = 20;

/// The terms of this replica's file, for each downstream.
pub(crate) type OwnTerms = Arc<BTreeMap<String, Terms>>;

pub(crate) struct Operations {
    store: Arc<dyn Store>,
    own: watch::Receiver<OwnTerms>,
    /// The calls to the store at once for those who only look.
    looks: Semaphore,
}

/// The author of an order, and the reason that was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Author<'a> {
    pub(super) address: IpAddr,
    pub(super) reason: &'a str,
}

impl Author<'_> {
    /// The note that a store keeps with a pause. A reason is so short that the note never is too long.
    fn note(&self) -> String {
        let reason = (!self.reason.is_empty()).then_some(self.reason);
        json!({ "by": self.address.to_string(), "reason": reason }).to_string()
    }
}

/// An order that was carried out.
pub(super) struct Done {
    /// The states before and after the order, for the audit log.
    pub(super) before: String,
    pub(super) after: String,
    /// The downstream after the order, as JSON.
    pub(super) body: Value,
}

impl Operations {
    /// `own` are the terms for downstreams of which the store has none yet.
    pub(crate) fn new(store: Arc<dyn Store>, own: watch::Receiver<OwnTerms>) -> Self {
        Self { store, own, looks: Semaphore::new(MAX_LOOKS) }
    }

    /// The names of the downstreams.
    pub(super) fn names(&self) -> Vec<String> {
        self.own.borrow().keys().cloned().collect()
    }

    /// Checks whether there is a downstream of this name.
    pub(super) fn known(&self, name: &str) -> Result<(), Refusal> {
        self.own_terms(name).map(drop)
    }

    /// Shows a downstream by its record. It asks nobody.
    pub(super) fn describe(&self, name: &str, record: &RecordState) -> Result<Value, Refusal> {
        Ok(describe(name, record, self.own_terms(name)?))
    }

    /// Shows a downstream as the store has it now. Cancel safe.
    pub(super) async fn downstream(&self, name: &str) -> Result<Value, Refusal> {
        let own = self.own_terms(name)?;
        let record = self.look(name).await?;
        Ok(describe(name, &record, own))
    }

    /// Shows a downstream's limits and the rates set over them. Cancel safe.
    pub(super) async fn rates(&self, name: &str) -> Result<Value, Refusal> {
        let own = self.own_terms(name)?;
        let record = self.look(name).await?;
        Ok(view::rates(name, &record, &in_force(&record, own.clone())?, &own))
    }

    /// Carries out an order. Cancel safe: the order is carried out, or not.
    pub(super) async fn carry_out(
        &self,
        name: &str,
        order: &Order,
        by: &Author<'_>,
    ) -> Result<Done, Refusal> {
        let own = self.own_terms(name)?;
        let note = by.note();
        let change = match order {
            Order::Pause { span } => Change::Pause { span: *span, note: &note },
            Order::Resume => Change::Resume,
            Order::SetRate { .. } | Order::UnsetRate { .. } => return self.terms(name, own, order, by).await,
            Order::Reset { limit } => return self.reset(name, own, limit.as_deref()).await,
            Order::Cancel { ids, span } => {
                let call = TombstoneCall::Cancel { ids, span: *span };
                return self.cancel(name, own, (ids, &format!("cancelled for {span:?}")), call).await;
            }
            Order::Undo { ids } => {
                let call = TombstoneCall::Undo { ids };
                return self.cancel(name, own, (ids, "not cancelled any more"), call).await;
            }
        };
        let before = self.read_record(name).await?;
        let after = self.update_record(name, change).await?;
        let body = describe(name, &after, own);
        Ok(Done { before: pause(&before), after: pause(&after), body })
    }

    /// Starts the counts of one limit or of all again from 0.
    async fn reset(&self, name: &str, own: Terms, limit: Option<&str>) -> Result<Done, Refusal> {
        let before = self.read_record(name).await?;
        let limits = in_force(&before, own.clone())?.counted(limit, before.now)?;
        let after = self.update_record(name, Change::Reset { limits: &limits }).await?;
        let names: Vec<&str> = limits.iter().map(Limit::name).collect();
        let mut body = describe(name, &after, own);
        body["reset"] = names.clone().into();
        Ok(Done {
            before: counts(&before),
            after: format!("{} of {}", counts(&after), names.join(", ")),
            body,
        })
    }

    /// Cancels jobs, or ends their cancellation.
    async fn cancel(
        &self,
        name: &str,
        own: Terms,
        (ids, what): (&[Arc<str>], &str),
        call: TombstoneCall<'_>,
    ) -> Result<Done, Refusal> {
        // The record is read first: once the store has made the change, no failure may be reported.
        let record = self.read_record(name).await?;
        let TombstoneReply { changed, .. } = within_timeout(self.store.tombstones(name, call)).await?;
        let mut body = describe(name, &record, own);
        body["cancelled"] = json!({ "ids": ids.len(), "changed": changed });
        let after = format!("{changed} of {} {what}: {}", ids.len(), listed(ids));
        Ok(Done { before: String::new(), after, body })
    }

    /// Changes the terms, by compare and swap.
    async fn terms(&self, name: &str, own: Terms, order: &Order, by: &Author<'_>) -> Result<Done, Refusal> {
        let by = by.address.to_string();
        let change = terms::change(&*self.store, name, &own, |terms, now| changed(terms, (order, &by), now));
        let Changed { before, after, record, told: limit, .. } = within_timeout(change).await?;
        Ok(Done {
            before: rate(&before, &limit),
            after: rate(&after, &limit),
            body: view::downstream(name, &record, &after, &own),
        })
    }

    fn own_terms(&self, name: &str) -> Result<Terms, Refusal> {
        self.own.borrow().get(name).cloned().ok_or_else(|| {
            let text = format!("no such downstream; this daemon has {}", self.names().join(", "));
            Refusal::new(StatusCode::NOT_FOUND, text)
        })
    }

    /// Reads a record for somebody who looks: however many do, the store gets few of these calls at once.
    async fn look(&self, name: &str) -> Result<RecordState, Refusal> {
        within_timeout(async {
            // The semaphore is never closed, so that there is always a permit in the end.
            let _permit = self.looks.acquire().await;
            self.store.read_record(name).await
        })
        .await
    }

    async fn read_record(&self, name: &str) -> Result<RecordState, Refusal> {
        within_timeout(self.store.read_record(name)).await
    }

    async fn update_record(&self, name: &str, change: Change<'_>) -> Result<RecordState, Refusal> {
        within_timeout(self.store.update_record(name, change)).await
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

/// A downstream as JSON. It is shown even where its terms cannot be parsed.
fn describe(name: &str, record: &RecordState, own: Terms) -> Value {
    match in_force(record, own.clone()) {
        Ok(terms) => view::downstream(name, record, &terms, &own),
        Err(refusal) => {
            let mut body = view::downstream(name, record, &own, &own);
            body["error"] = refusal.text().into();
            body
        }
    }
}

/// The terms in force, or those of the own file if the store has none.
fn in_force(record: &RecordState, own: Terms) -> Result<Terms, Refusal> {
    Ok(match &record.terms {
        Some(text) => Terms::parse(text)?,
        None => own,
    })
}

/// Changes the terms, and returns the name of the limit.
fn changed(terms: &mut Terms, (order, by): (&Order, &str), now: Micros) -> Result<String, TermsError> {
    Ok(match order {
        Order::SetRate { rate, limit, span, reason } => {
            let until = span.map(|span| now.plus(span));
            let (reason, by) = (reason.clone(), Some(by.to_owned()));
            let set = Override { rate: *rate, until, reason, by, set_at: now };
            terms.set_rate(limit.as_deref(), set)?
        }
        Order::UnsetRate { limit } => terms.unset_rate(limit.as_deref())?.0,
        Order::Pause { .. }
        | Order::Resume
        | Order::Reset { .. }
        | Order::Cancel { .. }
        | Order::Undo { .. } => String::new(),
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
