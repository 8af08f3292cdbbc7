//! Changes of rates while a downstream is in use.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Shaper;
use crate::rate::Amount;
use crate::store::Stamp;
use crate::terms::{self, ChangeError, Override, Replica, TermsError};

/// The reason why a rate was not set.
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
        self.change(|terms, set| terms.set_rate(None, set).map(drop), (rate, span)).await
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
        let limit = limit.to_owned();
        self.change(move |terms, set| terms.set_rate(Some(&limit), set).map(drop), (rate, span)).await
    }

    async fn change(
        &self,
        set_rate: impl Fn(&mut terms::Terms, Override) -> Result<(), TermsError> + Send + Sync + 'static,
        (rate, span): (Amount, Option<Duration>),
    ) -> Result<(), SetRateError> {
        let (core, sent) = (Arc::clone(&self.core), Instant::now());
        let changed = self.core.call(async move {
            let own = core.given.terms();
            let change = terms::change(&*core.store, &core.given.downstream, &own, |terms, now| {
                let until = span.map(|span| now.plus(span));
                let by = Some(Replica::of_this_process().to_string());
                set_rate(terms, Override { rate, until, reason: None, by, set_at: now })
            });
            change.await
        });
        let record = changed.await?.record;
        let stamp = Stamp { now: record.now, epoch: record.epoch, status: record.status };
        self.core.forward_answer(sent, stamp).await;
        Ok(())
    }
}
