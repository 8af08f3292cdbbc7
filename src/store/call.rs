//! What every store checks of a call before it decides, so that all refuse the same.

use std::time::Duration;

use super::{Cancel, LONGEST_LEASE, Lease, MAX_BATCH, Reserve, Scope, StoreError};
use crate::time::Micros;

impl Scope<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when the downstream's name is no hash tag.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        check_downstream(self.downstream)
    }
}

/// # Errors
/// [`StoreError::Invalid`] when the name is no hash tag.
pub(crate) fn check_downstream(name: &str) -> Result<(), StoreError> {
    if name.is_empty() || name.contains(['{', '}']) {
        let text = format!("`{name}` cannot name a downstream; use a text that is not empty, without braces");
        return Err(StoreError::Invalid(text));
    }
    Ok(())
}

impl Reserve<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when no store may decide on this call.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        check_now(self.now)?;
        self.lease.map_or(Ok(()), check_lease)?;
        if self.costs.len() > MAX_BATCH {
            let text = format!("{} jobs in one call; at most {MAX_BATCH} fit", self.costs.len());
            return Err(StoreError::Invalid(text));
        }
        let highest = self.limits.max_cost();
        match self.costs.iter().find(|&&cost| cost == 0 || cost > highest) {
            Some(cost) => {
                Err(StoreError::Invalid(format!("a cost of {cost}; these limits hold 1 to {highest}")))
            }
            None => Ok(()),
        }
    }

    /// The latest slot that may be granted at `now`: as far as the caller wants, and exact.
    pub(super) fn until(&self, now: Micros) -> Micros {
        now.plus(self.ahead).min(self.exact())
    }

    /// The latest slot at which each of these costs is exact.
    pub(super) fn exact(&self) -> Micros {
        self.limits.latest(self.costs.iter().copied().max().unwrap_or(1))
    }
}

impl Cancel<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when the states are not those of the limits.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        check_now(self.now)?;
        let (limits, before, after) = (self.limits.len(), self.before.len(), self.after.len());
        if before != limits || after != limits {
            let text = format!("{before} and {after} states for {limits} limits; give one for each");
            return Err(StoreError::Invalid(text));
        }
        Ok(())
    }
}

fn check_lease(Lease { replica, ttl }: Lease<'_>) -> Result<(), StoreError> {
    if !(1..=64).contains(&replica.len()) {
        let text = format!("a replica's name of {} bytes; use 1 to 64", replica.len());
        return Err(StoreError::Invalid(text));
    }
    if ttl < Duration::from_millis(1) || ttl > LONGEST_LEASE {
        return Err(StoreError::Invalid(format!("a lease of {ttl:?}; use 1ms to {LONGEST_LEASE:?}")));
    }
    Ok(())
}

fn check_now(now: Option<Micros>) -> Result<(), StoreError> {
    match now {
        Some(now) if now < Micros(0) || now > Micros::MAX => {
            Err(StoreError::Invalid(format!("now = {now} µs; give 0 to {}", Micros::MAX)))
        }
        _ => Ok(()),
    }
}
