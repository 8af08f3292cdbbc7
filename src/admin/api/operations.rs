//! Carries out orders in the store, from which every replica learns of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use paced::StoreError;
use paced::api::{Cancelled, Downstream, Rates, StoredTerms, history};
use paced::limit::Limit;
use paced::lock::lock;
use paced::store::{
    Change, HistoryEntry, MAX_HISTORY_BYTES, RecordState, Store, TombstoneCall, TombstoneReply,
};
use paced::terms::{self, Changed, Replaced, Replacement, Terms, TermsError};
use paced::text::cut;
use paced::time::Micros;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::view;
use crate::admin::reply::Refusal;
use crate::status::OwnTerms;
use crate::status::record::Note;
use crate::status::words;

/// The time-out for an answer of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// The most calls to the store at once for requests that only read.
const MAX_READS: usize = 8;

/// The most calls to the store in a second for requests that only read.
const MAX_READS_PER_SECOND: u32 = 50;

/// The most ids of jobs that a line of the audit log names.
const MOST_LISTED: usize = 20;

pub(crate) struct Operations {
    store: Arc<dyn Store>,
    own: watch::Receiver<OwnTerms>,
    /// The calls to the store at once for requests that only read.
    reads: Semaphore,
    reads_begun: Mutex<ReadsBegun>,
}

/// The calls to the store for requests that only read which began within a second, and the beginning of that.
#[derive(Debug, Default)]
struct ReadsBegun(Option<Instant>, u32);

impl ReadsBegun {
    /// Counts one more call; if there are as many as there may be, returns how long to wait instead.
    fn take_one(&mut self, now: Instant) -> Result<(), Duration> {
        let second = Duration::from_secs(1);
        let age = self.0.map(|since| now.saturating_duration_since(since)).filter(|age| *age < second);
        if age.is_none() {
            *self = Self(Some(now), 0);
        }
        if self.1 >= MAX_READS_PER_SECOND {
            return Err(second.saturating_sub(age.unwrap_or_default()));
        }
        self.1 += 1;
        Ok(())
    }
}

/// The author of an order, and the reason that was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Author<'a> {
    /// The name of the token, or that in the certificate of the client, or its address.
    pub(super) name: &'a str,
    pub(super) reason: Option<&'a str>,
}

impl Author<'_> {
    /// The note that a store keeps with a pause. A reason is so short that the note never is too long.
    pub(super) fn note(&self) -> String {
        let note = Note { by: Some(self.name.to_owned()), reason: self.reason.map(str::to_owned) };
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
        Self { store, own, reads: Semaphore::new(MAX_READS), reads_begun: Mutex::default() }
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

    /// Shows a downstream's limits and the rates set over them by its record. It asks no server.
    pub(super) fn rates(&self, name: &str, record: &RecordState) -> Result<Rates, Refusal> {
        let own = self.own_terms(name)?;
        Ok(view::rates(name, record, &in_force(record, &own)?, &own))
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

    /// Shows the terms in the store by the record. It asks no server.
    pub(super) fn stored_terms(&self, name: &str, record: &RecordState) -> Result<StoredTerms, Refusal> {
        Ok(view::stored_terms(name, record, &self.own_terms(name)?))
    }

    /// Adds a change to the history, which is for people. The audit log has every change, so a failure here is only
    /// logged.
    pub(super) async fn note(&self, name: &str, change: &history::Change) {
        let text = history_text(change);
        if let Err(refusal) = within_timeout(self.store.history(name, Some(&text))).await {
            tracing::warn!(
                downstream = name,
                error = refusal.text(),
                "admin: a change is not in the history"
            );
        }
    }

    /// The last changes by operators, over all replicas. No memory has them, so this waits while the store gets too
    /// many calls. Cancel safe.
    pub(super) async fn changes(&self, name: &str) -> Result<Vec<history::Change>, Refusal> {
        let entries = within_timeout(async {
            while let Err(wait) = self.take_read() {
                sleep(wait).await;
            }
            // The semaphore is never closed, so that there is always a permit in the end.
            let _permit = self.reads.acquire().await;
            self.store.history(name, None).await
        });
        let change = |entry: HistoryEntry| {
            // What was not written by paced is left out.
            let change: history::Change = serde_json::from_str(&entry.text).ok()?;
            Some(history::Change { at: entry.at.0 / 1000, ..change })
        };
        Ok(entries.await?.into_iter().filter_map(change).collect())
    }

    fn take_read(&self) -> Result<(), Duration> {
        lock(&self.reads_begun).take_one(Instant::now())
    }

    /// Reads the record as the store has it now, for a request that only reads: however many there are, the store gets few
    /// of these calls at once, and in a second. `None` if it has got as many as it may. Cancel safe.
    pub(super) async fn read(&self, name: &str) -> Result<Option<RecordState>, Refusal> {
        if self.take_read().is_err() {
            return Ok(None);
        }
        let record = within_timeout(async {
            // The semaphore is never closed, so that there is always a permit in the end.
            let _permit = self.reads.acquire().await;
            self.store.read_record(name).await
        });
        record.await.map(Some)
    }
}

/// None is cancel safe: after a dropped future it is not known whether the order was carried out.
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
        let TombstoneReply { changed, .. } = made_within_timeout(call).await?;
        let cancelled = Some(Cancelled { ids: ids.len(), changed });
        let body = Downstream { cancelled, ..describe(self.name, &record, &self.own) };
        let after = format!("{changed} of {} {effect}: {}", ids.len(), listed(ids));
        Ok(Done { before: String::new(), after, body })
    }

    /// Changes the terms, by compare and swap. `change` returns what it is about; `text` is that of the audit log.
    pub(super) async fn change_terms(
        self,
        text: fn(&Terms, &str) -> String,
        mut change: impl FnMut(&mut Terms, Micros) -> Result<String, TermsError> + Send,
    ) -> Result<Done, Refusal> {
        let is_read = AtomicBool::new(false);
        let change = |terms: &mut Terms, now| {
            is_read.store(true, Ordering::Relaxed);
            change(terms, now)
        };
        let change = terms::change(&*self.operations.store, self.name, &self.own, change);
        let changed = within_timeout(change).await.map_err(|refusal| {
            // No change is sent to the store before the terms were read; and a wrong request is never sent.
            let is_sent = is_read.load(Ordering::Relaxed) && refusal.status().is_server_error();
            if is_sent { refusal.or_made() } else { refusal }
        });
        let Changed { before, after, record, output: what, .. } = changed?;
        Ok(Done {
            before: text(&before, &what),
            after: text(&after, &what),
            body: view::downstream(self.name, &record, &after, &self.own),
        })
    }

    /// Puts the limits of this replica's file in force, in place of `what`.
    pub(super) async fn replace_terms(self, what: Replacement) -> Result<Done, Refusal> {
        // The store must answer before it gets a request to change anything.
        self.read_record().await?;
        let replacing = terms::replace(&*self.operations.store, self.name, &self.own, what);
        let replaced = within_timeout(replacing)
            .await
            .map_err(|refusal| if refusal.status().is_server_error() { refusal.or_made() } else { refusal });
        let Replaced { before, after, record, .. } = replaced?;
        let before = match before {
            Ok(Some(before)) => file(&before),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        };
        let body = view::downstream(self.name, &record, &after, &self.own);
        Ok(Done { before, after: file(&after), body })
    }

    async fn read_record(&self) -> Result<RecordState, Refusal> {
        within_timeout(self.operations.store.read_record(self.name)).await
    }

    async fn update_record(&self, change: Change<'_>) -> Result<RecordState, Refusal> {
        made_within_timeout(self.operations.store.update_record(self.name, change)).await
    }
}

/// The answer of the store, within a time-out.
async fn within_timeout<T, E: Into<Refusal>>(
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Refusal> {
    match timeout(STORE_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(E::into),
        Err(_) => {
            let text = format!("no answer of the store within {STORE_TIMEOUT:?}; try again");
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}

/// The answer of the store to a call that changes something. After most errors it is not known whether it did: also where a
/// right is missing, since a script may have written something before it met the command that is not allowed.
async fn made_within_timeout<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, Refusal> {
    let mut is_refused = false;
    let answer = async {
        let answer = answer.await;
        is_refused = matches!(answer, Err(StoreError::Invalid(_)));
        answer
    };
    let answer = within_timeout(answer).await;
    answer.map_err(|refusal| if is_refused { refusal } else { refusal.or_made() })
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
        false if until > record.now => {
            let lasts = until.since(record.now);
            format!("paused for {} until {}", words::span(lasts), words::instant(until.0 / 1000))
        }
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

/// A change as the store keeps it: its longest texts are cut until all of it is short enough.
fn history_text(change: &history::Change) -> String {
    let (mut change, mut most) = (change.clone(), MAX_HISTORY_BYTES);
    loop {
        // It has only texts, so that there is no error.
        let text = serde_json::to_string(&change).unwrap_or_default();
        if text.len() <= MAX_HISTORY_BYTES || most == 0 {
            return text;
        }
        most /= 2;
        for long in [&mut change.chosen, &mut change.before, &mut change.after, &mut change.reason] {
            *long = cut(long, most).to_owned();
        }
    }
}

/// The ids as text, for the audit log: the first ones, and how many there are.
fn listed(ids: &[Arc<str>]) -> String {
    let first: Vec<&str> = ids.iter().take(MOST_LISTED).map(|id| &**id).collect();
    let more = ids.len() - first.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", first.join(", "))
}

/// Whose limits are in force as text, for the audit log.
fn file(terms: &Terms) -> String {
    let revision = terms.revision().map(|revision| format!("revision {revision}, ")).unwrap_or_default();
    let loaded = terms.loaded().map(|origin| format!(" of {}", origin.replica)).unwrap_or_default();
    let limits: Vec<String> =
        terms.limits().iter().map(|limit| format!("{} {}", limit.name(), terms::rate_text(limit))).collect();
    format!("{revision}{}{loaded}; rates set: {}", limits.join(", "), terms.overrides().len())
}

/// The rate of a limit as text, for the audit log.
pub(super) fn rate(terms: &Terms, limit: &str) -> String {
    match terms.overrides().get(limit) {
        Some(set) => match set.until {
            Some(until) => format!("{limit}: {} until {}", set.rate, words::instant(until.0 / 1000)),
            None => format!("{limit}: {}", set.rate),
        },
        None => format!("{limit}: as in the file"),
    }
}

#[cfg(test)]
mod tests;
