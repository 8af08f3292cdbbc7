//! What operators set for one value of the part by which lanes share: how it is ordered, and written to the audit log.

use axum::http::StatusCode;
use paced::api::order::Span;
use paced::api::values::{PauseValue, ResumeValue, SetWeight, UnsetWeight};
use paced::config::Role;
use paced::terms::{self, Terms};
use paced::time::Micros;

use super::Api;
use super::body::Form;
use super::operations::{Author, Done, Target};
use super::orders::Order;
use crate::admin::reply::Refusal;
use crate::status::words;

impl Form for SetWeight {}
impl Form for UnsetWeight {}
impl Form for PauseValue {}
impl Form for ResumeValue {}

/// Something that `by` sets at `now`.
fn set<T>(to: T, span: Option<&Span>, by: Author<'_>, now: Micros) -> terms::SetValue<T> {
    terms::SetValue {
        to,
        until: span.map(|span| now.plus(span.duration())),
        reason: by.reason.map(str::to_owned),
        by: Some(by.name.to_owned()),
        set_at: now,
    }
}

impl Order for SetWeight {
    const NAME: &'static str = "lane set";
    const SETS_VALUE: bool = true;

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        let (by, span) = (target.by, self.span.as_ref());
        let set = |now| set(self.weight, span, by, now);
        let change = |terms: &mut Terms, now: Micros| {
            terms.set_weight(&self.value, set(now)).map(|()| self.value.clone())
        };
        target.change_terms(weight_text, change).await
    }
}

impl Order for UnsetWeight {
    const NAME: &'static str = "lane unset";

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        let change = |terms: &mut Terms, _: Micros| {
            terms.unset_weight(&self.value);
            Ok(self.value.clone())
        };
        target.change_terms(weight_text, change).await
    }
}

impl Order for PauseValue {
    const NAME: &'static str = "lane pause";
    const ROLE: Role = Role::Operate;
    const SETS_VALUE: bool = true;

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        let (by, span) = (target.by, self.span.as_ref());
        let set = |now| set((), span, by, now);
        let change = |terms: &mut Terms, now: Micros| {
            terms.pause_value(&self.value, set(now)).map(|()| self.value.clone())
        };
        target.change_terms(pause_text, change).await
    }
}

impl Order for ResumeValue {
    const NAME: &'static str = "lane resume";
    const ROLE: Role = Role::Operate;

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        let change = |terms: &mut Terms, _: Micros| {
            terms.resume_value(&self.value);
            Ok(self.value.clone())
        };
        target.change_terms(pause_text, change).await
    }
}

/// Whether something may be set for a value of this downstream: it has lanes, and each replica can read it. One that
/// cannot would send nothing.
pub(super) fn check(api: &Api, downstream: &str) -> Result<(), Refusal> {
    if api.watch.has_lanes(downstream) == Some(false) {
        let text = "it has no lanes, so that nothing can be set for one: its file has no `lanes.by`";
        return Err(Refusal::wrong(text));
    }
    let older = api.watch.without_values(downstream);
    if older.is_empty() {
        return Ok(());
    }
    let text = format!(
        "replicas of an earlier version could not read it, and would send nothing: {}; update them first",
        words::some_of(&older)
    );
    Err(Refusal::new(StatusCode::CONFLICT, text))
}

/// ` until ...`, or nothing.
fn end(until: Option<Micros>) -> String {
    until.map(|until| format!(" until {}", words::instant(until.0 / 1000))).unwrap_or_default()
}

/// The weight of a value as text, for the audit log.
fn weight_text(terms: &Terms, value: &str) -> String {
    match terms.values().weights().get(value) {
        Some(set) => format!("{value}: weight {}{}", set.to, end(set.until)),
        None => format!("{value}: weight as in the file"),
    }
}

/// The pause of a value as text, for the audit log.
fn pause_text(terms: &Terms, value: &str) -> String {
    match terms.values().pauses().get(value) {
        Some(terms::SetValue { until: None, .. }) => format!("{value}: paused until resumed"),
        Some(set) => format!("{value}: paused{}", end(set.until)),
        None => format!("{value}: not paused"),
    }
}
