//! Which rungs exist, and where a job waits.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use lapin::Connection;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tracing::warn;

use super::Options;
use super::connection::{channel, close};
use super::depths::Depths;
use super::error::Error;
use super::gate;
use super::ladder::Rung;
use super::supervisor::ConnectionWatch;
use super::topology::{Delay, ensure_rung};
use crate::dispatch::{ParkReason, Stay};
use crate::lock::lock;
use crate::time::wall_now;

/// The delay before parking is retried.
pub(super) const RETRY: Duration = Duration::from_secs(60);

/// After each of this many failures in a row, the use of a downstream's own rungs is retried after [`RETRY`]. The rungs
/// need not exist, and each attempt costs a channel and a line in the broker's log.
const SOON: u32 = 5;

/// After later failures the delay is this many times as long.
const LATER: u32 = 10;

/// The rungs that exist, for all downstreams of a process. Each has a lock, since the declaration of one whose queue
/// has trouble may take long. The rungs of one downstream share a lock, since they exist together.
#[derive(Debug)]
pub(super) struct Rungs {
    known: StdMutex<BTreeMap<String, Arc<Mutex<bool>>>>,
    /// Bounds how many downstreams declare their own rungs at a time: each takes a channel of a connection over which
    /// jobs are consumed.
    declaring: Semaphore,
}

impl Default for Rungs {
    fn default() -> Self {
        Self { known: StdMutex::default(), declaring: Semaphore::new(gate::PERMITS) }
    }
}

impl Rungs {
    /// Ensures that these rungs exist, unless that was done before, for callers one after another. Returns whether it
    /// was done now. Fails where there is no connection.
    pub(super) async fn ensure(
        &self,
        current: &ConnectionWatch,
        options: &Options,
        delays: &[Delay],
    ) -> Result<bool, Error> {
        let Some(Delay { name, is_own, .. }) = delays.first() else { return Ok(false) };
        let slot = self.slot(name);
        let mut is_known = slot.lock().await;
        if *is_known {
            return Ok(false);
        }
        // The semaphore is never closed.
        let _permit = if *is_own { self.declaring.acquire().await.ok() } else { None };
        let lost = || Error::Failed { what: name.clone(), detail: "not connected".to_owned() };
        let connection = current.borrow().clone().ok_or_else(lost)?;
        for delay in delays {
            add(&connection, options, delay).await?;
        }
        *is_known = true;
        Ok(true)
    }

    /// Ensures that all rungs exist that downstreams share, as [`Rungs::ensure`] does.
    pub(super) async fn ensure_all(&self, current: &ConnectionWatch, options: &Options) -> Result<(), Error> {
        for rung in Rung::all() {
            self.ensure(current, options, &[options.names().park(rung)]).await?;
        }
        Ok(())
    }

    fn slot(&self, name: &str) -> Arc<Mutex<bool>> {
        Arc::clone(lock(&self.known).entry(name.to_owned()).or_default())
    }

    /// Makes the next use ensure these rungs again: their downstream is not served any more, and its queues may be
    /// deleted.
    pub(super) fn forget(&self, delays: impl Iterator<Item = Delay>) {
        let mut known = lock(&self.known);
        delays.for_each(|delay| drop(known.remove(&delay.name)));
    }

    /// Makes the next use ensure each rung again, since one does not exist any more.
    pub(super) fn forget_all(&self) {
        lock(&self.known).clear();
    }
}

async fn add(connection: &Connection, options: &Options, delay: &Delay) -> Result<(), Error> {
    // The broker closes the channel when it refuses a declaration.
    let channel = channel(connection).await?;
    let ensured = ensure_rung(&channel, options, delay).await;
    close(&channel).await;
    ensured
}

/// Where a job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nowhere: the job goes to the home exchange at once.
    Home,
    /// On a rung that all downstreams share.
    Shared(Rung),
    /// On a rung of its downstream's own, from which it can be brought home.
    Own(Rung),
}

/// Until when the rungs are not used, since a use failed: jobs that would wait there wait on the shared rungs. Also
/// how often a use failed in quick succession.
#[derive(Debug, Default)]
struct Refused {
    until: Option<Instant>,
    times: u32,
}

impl Refused {
    fn is_on(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the last trouble is long over, so that the next one is a new trouble.
    fn is_old(&self) -> bool {
        self.until.is_some_and(|until| until + RETRY * LATER <= Instant::now())
    }
}

/// The rungs of one downstream.
#[derive(Debug)]
pub(super) struct Own {
    delays: Vec<Delay>,
    refused: StdMutex<Refused>,
    /// Held by the task that declares them.
    declaring: Mutex<()>,
    /// Reads their lengths once they exist.
    depths: Depths,
}

impl Own {
    pub(super) fn new(options: &Options, downstream: &str, depths: Depths) -> Self {
        let delays = options.names().waits(downstream).collect();
        Self { delays, refused: StdMutex::default(), declaring: Mutex::default(), depths }
    }

    fn is_refused(&self) -> bool {
        lock(&self.refused).is_on()
    }

    /// Records that they cannot be used, with one warning for each trouble. Their use is retried after [`RETRY`], and
    /// more rarely later.
    pub(super) fn refuse(&self, downstream: &str, why: &dyn fmt::Display) {
        let mut refused = lock(&self.refused);
        // Many jobs that are parked there may find out at the same time.
        if refused.is_on() {
            return;
        }
        refused.times = if refused.is_old() { 1 } else { refused.times + 1 };
        let wait = RETRY * if refused.times <= SOON { 1 } else { LATER };
        refused.until = Some(Instant::now() + wait);
        if refused.times == 1 {
            warn!(
                downstream,
                %why,
                "jobs that wait for a limit cannot wait in their downstream's own queues: they wait in shared queues, and do \
                 not come back sooner when the limit changes; paced tries again every minute, and later every ten minutes"
            );
        }
    }

    /// Where a job with this stay waits from now on.
    pub(super) fn wait(&self, stay: &Stay, options: &Options) -> Wait {
        let wait = stay.until.since(wall_now());
        let own = match stay.reason {
            ParkReason::Limit if !self.is_refused() => Rung::own_below(wait, options.rung_unit),
            _ => None,
        };
        let shared = || Rung::below(wait, options.rung_unit).map_or(Wait::Home, Wait::Shared);
        own.map_or_else(shared, Wait::Own)
    }

    /// The queue and exchange of this rung of the downstream.
    pub(super) fn delay(&self, rung: Rung) -> Option<&Delay> {
        self.delays.iter().find(|delay| delay.rung == rung)
    }

    /// Ensures that they exist. Returns false if they cannot be used now.
    pub(super) async fn ensure(
        &self,
        rungs: &Rungs,
        current: &ConnectionWatch,
        options: &Options,
        downstream: &str,
    ) -> Result<bool, Error> {
        let _declaring = self.declaring.lock().await;
        // A task that waited for another one uses its result.
        if self.is_refused() {
            return Ok(false);
        }
        match rungs.ensure(current, options, &self.delays).await {
            Err(error) if error.is_final() || matches!(error, Error::TimedOut { .. }) => {
                self.refuse(downstream, &error);
                Ok(false)
            }
            Err(error) => Err(error),
            Ok(is_new) => {
                if is_new {
                    self.depths.waits_declared(downstream);
                }
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::watch;

    use super::*;

    fn options() -> Options {
        Options {
            address: "amqp://127.0.0.1".parse().unwrap(),
            prefix: "test".into(),
            haste: 1,
            rung_unit: Duration::from_secs(1),
            declare: true,
            window_bytes: 1 << 20,
            downstreams: vec![],
        }
    }

    #[tokio::test]
    async fn a_rung_whose_declaration_takes_long_holds_up_no_other() {
        let (rungs, nowhere, options) = (Rungs::default(), watch::channel(None).1, options());
        let [slow, other] = [1, 0].map(|n| options.names().park(Rung::all().nth(n).unwrap()));
        *rungs.slot(&other.name).lock().await = true;
        let slot = rungs.slot(&slow.name);
        let declaring = slot.lock().await;
        let other = [other];
        let ensured = rungs.ensure(&nowhere, &options, &other).now_or_never();
        assert_eq!(ensured.map(|ensured| ensured.is_ok()), Some(true));
        rungs.forget_all();
        let ensured = rungs.ensure(&nowhere, &options, &other).now_or_never();
        assert!(
            ensured.is_some_and(|ensured| ensured.is_err()),
            "it is declared again, which needs a connection"
        );
        drop(declaring);
    }

    #[tokio::test]
    async fn few_downstreams_declare_theirs_at_a_time_and_hold_up_no_shared_rung() {
        let (rungs, nowhere, options) = (Rungs::default(), watch::channel(None).1, options());
        let own: Vec<_> = options.names().waits("billing").collect();
        let shared = [options.names().park(Rung::all().next().unwrap())];
        let is_tried = |delays: &[Delay]| rungs.ensure(&nowhere, &options, delays).now_or_never().is_some();
        let others = rungs.declaring.acquire_many(gate::PERMITS.try_into().unwrap()).await.unwrap();
        assert!(!is_tried(&own));
        assert!(is_tried(&shared));
        drop(others);
        assert!(is_tried(&own));
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_limit_has_rungs_of_its_downstream_while_these_may_be_used() {
        let options = options();
        let own = Own::new(&options, "billing", Depths::default());
        let stay = |reason, seconds| Stay {
            until: wall_now().plus(Duration::from_secs(seconds) + Duration::from_millis(500)),
            reason,
            attempts: 0,
            throttled: 0,
            refused: 0,
            unreadable: 0,
            first_seen: wall_now(),
            assigned_id: None,
            versions: None,
        };
        let units = |wait| match wait {
            Wait::Home => (false, 0),
            Wait::Shared(rung) => (false, rung.units()),
            Wait::Own(rung) => (true, rung.units()),
        };
        let at = |reason, seconds| units(own.wait(&stay(reason, seconds), &options));
        assert_eq!(at(ParkReason::Limit, 600), (true, 256));
        assert_eq!(at(ParkReason::Limit, 2), (false, 2), "it is soon over");
        assert_eq!(at(ParkReason::Limit, 0), (false, 0));
        assert_eq!(at(ParkReason::Retry, 600), (false, 512), "its wait is its own");
        assert_eq!(at(ParkReason::NotBefore, 600), (false, 512));
        own.refuse("billing", &"no leader");
        assert_eq!(at(ParkReason::Limit, 600), (false, 512));
        tokio::time::advance(RETRY).await;
        assert_eq!(at(ParkReason::Limit, 600), (true, 256), "it is tried again");
        for _ in 1..SOON {
            own.refuse("billing", &"it does not exist");
            own.refuse("billing", &"another job found that too");
            tokio::time::advance(RETRY).await;
            assert_eq!(at(ParkReason::Limit, 600), (true, 256));
        }
        own.refuse("billing", &"it does not exist");
        tokio::time::advance(RETRY * (LATER - 1)).await;
        assert_eq!(at(ParkReason::Limit, 600), (false, 512), "more seldom from now on");
        tokio::time::advance(RETRY).await;
        assert_eq!(at(ParkReason::Limit, 600), (true, 256));
        tokio::time::advance(RETRY * LATER).await;
        own.refuse("billing", &"no leader");
        tokio::time::advance(RETRY).await;
        assert_eq!(at(ParkReason::Limit, 600), (true, 256), "it is another trouble, long after");
        let names: Vec<_> = own.delays.iter().map(|delay| delay.name.as_str()).collect();
        assert_eq!((names[0], names[5]), ("test.wait.billing.4s", "test.wait.billing.4096s"));
    }
}
