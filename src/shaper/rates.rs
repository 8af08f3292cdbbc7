//! Changes of rates while a downstream is in use.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Shaper;
use crate::rate::Amount;
use crate::store::Stamp;
use crate::terms::{self, ChangeError, Override, Replica, Terms, TermsError};
use crate::time::Micros;

/// The reason why a rate was not set, or not unset.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct SetRateError(#[from] ChangeError);

impl SetRateError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.0.is_retryable()
    }
}

impl Shaper {
    /// Sets another rate for all processes that work on the downstream, as `paced rate set` does: at once, over that of
    /// the configuration, for `span` or until it is unset. It applies to the builder's own rate, or else to the only
    /// limit of the set; [`Shaper::set_rate_of`] takes the limit's name.
    ///
    /// Cancel safe: the rate is set, or not.
    ///
    /// # Errors
    /// [`SetRateError`] when the rate is invalid for the limit, or the store did not do it.
    pub async fn set_rate(&self, rate: Amount, span: Option<Duration>) -> Result<(), SetRateError> {
        self.set(None, rate, span).await
    }

    /// Sets the rate of the limit of this name, as [`Shaper::set_rate`] does.
    ///
    /// Cancel safe, as [`Shaper::set_rate`] is.
    ///
    /// # Errors
    /// As [`Shaper::set_rate`].
    pub async fn set_rate_of(
        &self,
        limit: &str,
        rate: Amount,
        span: Option<Duration>,
    ) -> Result<(), SetRateError> {
        self.set(Some(limit.to_owned()), rate, span).await
    }

    /// Ends the rate that [`Shaper::set_rate`] or `paced rate set` has set, for all processes that work on the
    /// downstream: the rate of the configuration counts again. Without such a rate nothing changes.
    ///
    /// Cancel safe: the rate is unset, or not.
    ///
    /// # Errors
    /// [`SetRateError`] when the downstream has several limits, and none is the builder's own rate, or when the store did
    /// not do it.
    pub async fn unset_rate(&self) -> Result<(), SetRateError> {
        self.change(|terms, _| terms.unset_rate(None).map(drop)).await
    }

    /// Ends the rate of the limit of this name, as [`Shaper::unset_rate`] does.
    ///
    /// Cancel safe, as [`Shaper::unset_rate`] is.
    ///
    /// # Errors
    /// [`SetRateError`] when there is neither a limit nor a rate of this name, or the store did not do it.
    pub async fn unset_rate_of(&self, limit: &str) -> Result<(), SetRateError> {
        let limit = limit.to_owned();
        self.change(move |terms, _| terms.unset_rate(Some(&limit)).map(drop)).await
    }

    async fn set(
        &self,
        limit: Option<String>,
        rate: Amount,
        span: Option<Duration>,
    ) -> Result<(), SetRateError> {
        let set = move |terms: &mut Terms, now: Micros| {
            let until = span.map(|span| now.plus(span));
            let by = Some(Replica::of_this_process().to_string());
            let set = Override { rate, until, reason: None, by, set_at: now };
            terms.set_rate(limit.as_deref(), set).map(drop)
        };
        self.change(set).await
    }

    async fn change(
        &self,
        edit: impl Fn(&mut Terms, Micros) -> Result<(), TermsError> + Send + Sync + 'static,
    ) -> Result<(), SetRateError> {
        let (core, sent) = (Arc::clone(&self.core), Instant::now());
        let changed = self.core.call(async move {
            let own = core.given.terms();
            terms::change(&*core.store, &core.given.downstream, &own, edit).await
        });
        let record = changed.await?.record;
        let stamp = Stamp { now: record.now, epoch: record.epoch, status: record.status };
        self.core.forward_answer(sent, stamp).await;
        Ok(())
    }
}
