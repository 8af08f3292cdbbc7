//! The limits and the store that a pipe shares with daemons. Its start changes no limits: those of its file have to be those
//! in force.

use std::sync::Arc;
use std::time::Duration;

use paced::Store;
use paced::terms::{self, ChangeError, Replacement, Terms};
use paced::time::Micros;
use tokio::time::timeout;

use crate::cli::exit::Exit;
use crate::cli::out;

/// How long the store may take to answer: a tool that is run once is more patient than a daemon.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the end waits for the store to write what it keeps.
const LAST_LEASES: Duration = Duration::from_secs(10);

/// The reason why a pipe cannot use the limits of a file.
#[derive(Debug, thiserror::Error)]
enum NotInForce {
    /// Others are in force.
    #[error(
        "the limits in force at `{downstream}` are not those of this file, which would change them for all replicas: \
         {changes}; use the file of the daemons, or put the limits of this file in force with --force-limits"
    )]
    Others {
        /// The downstream.
        downstream: String,
        /// What would change.
        changes: String,
    },
    /// The limits in force cannot be read or replaced.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The store did not answer in time.
    #[error("no answer of the store within 10 s; try again")]
    Silent,
}

impl From<&NotInForce> for Exit {
    fn from(error: &NotInForce) -> Self {
        match error {
            NotInForce::Others { .. } => Self::Usage,
            NotInForce::Change(ChangeError::Store(error)) => Self::from(error),
            NotInForce::Change(_) => Self::Failed,
            NotInForce::Silent => Self::Unavailable,
        }
    }
}

/// What a pipe shares with the daemons of a downstream.
pub(super) struct Shared {
    pub(super) store: Arc<dyn Store>,
    /// The name of the downstream.
    pub(super) downstream: String,
    /// The limits of the file.
    pub(super) own: Terms,
    /// Whether they are to replace others that are in force.
    pub(super) force: bool,
}

/// Checks that the limits of the file are those in force, or puts them in force; an error is printed to stderr. Cancel safe.
pub(super) async fn agree(shared: Option<&Shared>) -> Result<(), Exit> {
    let Some(Shared { store, downstream, own, force }) = shared else { return Ok(()) };
    let agreed = timeout(PATIENCE, compare(&**store, downstream, own, *force)).await;
    let forced = agreed.unwrap_or(Err(NotInForce::Silent)).map_err(out::failed)?;
    if let Some(changes) = forced {
        out::say(format_args!(
            "paced: limits at `{downstream}` changed for all replicas, for good: {changes}"
        ));
    }
    Ok(())
}

/// Ends the use of the store: nothing is lost then of what was leased of the limits. A store that does not answer does not
/// keep the process from its end.
pub(super) async fn finish(shared: Option<Shared>) {
    let Some(Shared { store, .. }) = shared else { return };
    match timeout(LAST_LEASES, store.finish()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => out::say(format_args!("paced: {error}")),
        Err(_) => {
            out::say("paced: the store was not closed in time: what was leased of the limits may be lost");
        }
    }
}

/// Checks that the limits of a file, `own`, are those in force at the downstream, or that none are. With `force` it puts
/// them in force instead, and returns what changed; rates that operators set stay.
async fn compare(
    store: &dyn Store,
    downstream: &str,
    own: &Terms,
    force: bool,
) -> Result<Option<String>, NotInForce> {
    let record = store.read_record(downstream).await.map_err(ChangeError::from)?;
    let in_force = record.terms.as_deref().map(Terms::parse).transpose().map_err(ChangeError::from)?;
    let Some(changes) = in_force.and_then(|in_force| difference(&in_force, own, record.now)) else {
        return Ok(None);
    };
    if !force {
        return Err(NotInForce::Others { downstream: downstream.to_owned(), changes });
    }
    terms::replace(store, downstream, own, Replacement::Limits).await?;
    Ok(Some(changes))
}

/// How the limits of a file differ from those of the file in force; `None` if they are the same.
fn difference(in_force: &Terms, own: &Terms, now: Micros) -> Option<String> {
    if in_force.has_limits_of(own) {
        return None;
    }
    // Rates that operators set are over the limits of any file.
    let file = Terms::new(in_force.limits().clone(), in_force.plans().clone(), None);
    let changes = file.changes(now, own, now);
    let same = || "the file has the same limits in another order or combination, or other plans".to_owned();
    Some(if changes.is_empty() { same() } else { changes })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use paced::store::Change;
    use paced::terms::Override;
    use paced::{Limit, LimitSet, MemoryStore};

    use super::*;

    fn set(limits: &[(&str, &str)]) -> LimitSet {
        let limit =
            |(name, rate): &(&str, &str)| Limit::leaky_bucket(*name, rate.parse().unwrap(), 1).unwrap();
        LimitSet::new(limits.iter().map(limit).collect()).unwrap()
    }

    fn file(rate: &str, revision: Option<u64>) -> Terms {
        Terms::new(set(&[("leaky-bucket-0", rate)]), BTreeMap::new(), revision)
    }

    async fn store(text: &str) -> MemoryStore {
        let store = MemoryStore::new();
        store.update_record("billing", Change::Terms { of: 0, text }).await.unwrap();
        store
    }

    async fn stored(store: &MemoryStore) -> Option<String> {
        store.read_record("billing").await.unwrap().terms
    }

    #[tokio::test]
    async fn limits_that_are_in_force_are_used_and_none_are_written() {
        let empty = MemoryStore::new();
        for force in [false, true] {
            assert_eq!(compare(&empty, "billing", &file("5/s", None), force).await.unwrap(), None);
        }
        assert_eq!(stored(&empty).await, None, "the dispatcher proposes them");
        let mut in_force = file("5/s", Some(7));
        let (rate, set_at) = ("2/s".parse().unwrap(), Micros(5));
        in_force.set_rate(None, Override { rate, until: None, reason: None, by: None, set_at }).unwrap();
        let text = in_force.to_text();
        let store = store(&text).await;
        for force in [false, true] {
            assert_eq!(compare(&store, "billing", &file("5/s", None), force).await.unwrap(), None);
        }
        assert_eq!(
            stored(&store).await,
            Some(text),
            "a rate that is set, and a revision, are no other limits"
        );
    }

    #[tokio::test]
    async fn others_than_those_in_force_change_nothing_unless_they_are_forced() {
        let text = file("5/s", Some(7)).to_text();
        let store = store(&text).await;
        let own = file("50/s", None);
        let error = compare(&store, "billing", &own, false).await.unwrap_err();
        assert_eq!(Exit::from(&error), Exit::Usage);
        assert!(error.to_string().contains(": leaky-bucket-0 5/s → 50/s; use the file"), "{error}");
        assert_eq!(stored(&store).await, Some(text));
        let changes = compare(&store, "billing", &own, true).await.unwrap();
        assert_eq!(changes.as_deref(), Some("leaky-bucket-0 5/s → 50/s"));
        let after = Terms::parse(&stored(&store).await.unwrap()).unwrap();
        assert!(after.has_limits_of(&own), "also with a lower revision");
        assert_eq!(compare(&store, "billing", &own, false).await.unwrap(), None);
    }

    #[test]
    fn plans_are_limits_too() {
        let plans = |rates: &[&str]| {
            let plan = |(index, rate): (usize, &&str)| {
                let limits = [("leaky-bucket-0", "5/s"), ("plan.l", *rate)];
                (format!("p{index}"), set(&limits))
            };
            let plans = rates.iter().enumerate().map(plan).collect();
            Terms::new(set(&[("leaky-bucket-0", "5/s")]), plans, None)
        };
        let differ = |one: &[&str], other: &[&str]| difference(&plans(one), &plans(other), Micros(0));
        assert_eq!(differ(&["1/s"], &["1/s"]), None);
        assert_eq!(differ(&["1/s"], &["2/s"]), Some("plan.l 1/s → 2/s".to_owned()));
        let same = "the file has the same limits in another order or combination, or other plans";
        assert_eq!(differ(&["1/s"], &["1/s", "1/s"]).as_deref(), Some(same));
        let ordered = |limits: &[(&str, &str)]| Terms::new(set(limits), BTreeMap::new(), None);
        let (one, other) =
            (ordered(&[("a", "1/s"), ("b", "9/min")]), ordered(&[("b", "9/min"), ("a", "1/s")]));
        assert_eq!(difference(&one, &other, Micros(0)).as_deref(), Some(same));
    }

    #[tokio::test]
    async fn limits_that_cannot_be_read_are_not_replaced() {
        let text = file("5/s", None).to_text().replacen("\"version\":1", "\"version\":9", 1);
        let store = store(&text).await;
        for force in [false, true] {
            let error = compare(&store, "billing", &file("5/s", None), force).await.unwrap_err();
            assert_eq!(Exit::from(&error), Exit::Failed);
        }
        assert_eq!(stored(&store).await, Some(text));
    }
}
