//! The changes that operators order, each with its effect in the store.

use std::sync::Arc;

use paced::api::letters;
use paced::api::order::{Cancel, DropTerms, ForceTerms, Pause, Reset, Resume, SetRate, Span, UnsetRate};
use paced::config::Role;
use paced::store::{Change, LONGEST_TOMBSTONE, TombstoneCall};
use paced::terms::{Override, Replacement};
use paced::time::Micros;

use super::body::{Form, LONGEST_WITH_IDS};
use super::operations::{Done, Target, rate};
use crate::admin::reply::Refusal;
use crate::status::words;

/// A change that an operator orders.
pub(super) trait Order: Form + Send + 'static {
    /// Its name in the audit log.
    const NAME: &'static str;
    /// The role that it needs.
    const ROLE: Role = Role::Admin;
    /// Whether it sets something for a value of lanes.
    const SETS_VALUE: bool = false;

    /// The operator's reason, as it was sent.
    fn reason(&self) -> Option<&String>;

    /// Carries it out.
    ///
    /// Not cancel safe: after a dropped future it is not known whether it was carried out.
    fn carry_out(self, target: Target<'_>) -> impl Future<Output = Result<Done, Refusal>> + Send;
}

impl Form for Pause {}
impl Form for Resume {}
impl Form for SetRate {}
impl Form for UnsetRate {}
impl Form for Reset {}
impl Form for ForceTerms {}
impl Form for DropTerms {}
impl Form for Cancel {
    const LONGEST: usize = LONGEST_WITH_IDS;
}
impl Form for letters::Change {}

impl Order for Pause {
    const NAME: &'static str = "pause";
    const ROLE: Role = Role::Operate;

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        let (span, note) = (self.span.as_ref().map(Span::duration), target.by.note());
        target.change_pause(Change::Pause { span, note: &note }).await
    }
}

impl Order for Resume {
    const NAME: &'static str = "resume";
    const ROLE: Role = Role::Operate;

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        target.change_pause(Change::Resume).await
    }
}

impl Order for SetRate {
    const NAME: &'static str = "rate set";

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        let by = target.by;
        let set = |now: Micros| Override {
            rate: self.rate,
            until: self.span.as_ref().map(|span| now.plus(span.duration())),
            reason: by.reason.map(str::to_owned),
            by: Some(by.name.to_owned()),
            set_at: now,
        };
        target.change_terms(rate, |terms, now| terms.set_rate(self.limit.as_deref(), set(now))).await
    }
}

impl Order for UnsetRate {
    const NAME: &'static str = "rate unset";

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        target.change_terms(rate, |terms, _| Ok(terms.unset_rate(self.limit.as_deref())?.0)).await
    }
}

impl Order for Reset {
    const NAME: &'static str = "reset";

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        target.reset(self.limit.as_deref()).await
    }
}

impl Order for ForceTerms {
    const NAME: &'static str = "terms force";

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        target.replace_terms(Replacement::Limits).await
    }
}

impl Order for DropTerms {
    const NAME: &'static str = "terms drop";

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        target.replace_terms(Replacement::All).await
    }
}

impl Order for Cancel {
    const NAME: &'static str = "cancel";
    const ROLE: Role = Role::Operate;

    fn reason(&self) -> Option<&String> {
        self.reason.as_ref()
    }

    async fn carry_out(self, target: Target<'_>) -> Result<Done, Refusal> {
        let ids: Vec<Arc<str>> = self.ids.into_iter().map(Arc::from).collect();
        let ids = ids.as_slice();
        if self.undo {
            return target
                .change_tombstones(ids, TombstoneCall::Undo { ids }, "not cancelled any more")
                .await;
        }
        let span = self.span.as_ref().map_or(LONGEST_TOMBSTONE, Span::duration);
        let effect = format!("cancelled for {}", words::span(span));
        target.change_tombstones(ids, TombstoneCall::Cancel { ids, span }, &effect).await
    }
}
