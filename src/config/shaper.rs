//! Builds shapers from the daemon's configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ConfigErrors, Settings, Sources, load};
use crate::pace::{self, JobSettings, LaneId, OnLimit, PlanLimits};
use crate::shaper::{BuildError, Shaper, ShaperBuilder};
use crate::store::{MemoryStore, Store, StoreError};

/// The reason why a configuration gives no shaper.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FromConfigError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The configuration has no such downstream.
    #[error("no downstream `{name}` in the configuration; it has {}", known.join(", "))]
    NoDownstream {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The downstream's limits police.
    #[error(
        "`{0}` has on_limit = \"reject\": nobody waits for its limits; use a Limiter, or on_limit = \"wait\""
    )]
    Polices(String),
    /// Limits of the downstream have costs of their own, which a shaper has no place for.
    #[error(
        "limits of `{0}` have costs of their own (`cost`), and a Shaper charges each limit the cost that a call gives; use \
         the daemon, or a Limiter with `check_costs`"
    )]
    OwnCosts(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The shaper cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl Shaper {
    /// The shaper of a downstream of a configuration, which shares its pace through Redis with the daemons of the same
    /// configuration and with all other shapers made of it. Reads files, so it blocks for a moment; nothing is asked of the
    /// store yet.
    ///
    /// A store in a file (`file:PATH`) is opened, and is this process's alone from then on, so that it cannot be shared with a
    /// daemon. For several shapers open it once, and give it to all ([`ShaperBuilder::store`]).
    ///
    /// As for the daemon, environment variables (`PACED_A__B` is the key `a.b`) count over the file. Its calls are of the
    /// downstream's default plan, if it has one; see [`Shaper::of_plan`]. [`ShaperBuilder::from_config`] leaves more to choose.
    ///
    /// # Errors
    /// [`FromConfigError`], with everything that is wrong.
    pub fn from_config(file: impl AsRef<Path>, downstream: &str) -> Result<Self, FromConfigError> {
        Ok(ShaperBuilder::from_config(file, downstream)?.build()?)
    }
}

impl ShaperBuilder {
    /// The builder behind [`Shaper::from_config`], for further options: such as one [`store`](Self::store) for several
    /// shapers, which otherwise have a connection each. A store in a file is opened by [`build`](Self::build), and not at all
    /// if another store was given: one that is made by [`FileStore::open`](crate::FileStore::open), for all of them.
    ///
    /// # Errors
    /// As [`Shaper::from_config`].
    pub fn from_config(file: impl AsRef<Path>, downstream: &str) -> Result<Self, FromConfigError> {
        let files: Vec<PathBuf> = vec![file.as_ref().to_owned()];
        let settings = load(Sources::from_process(files, vec![]))?.settings;
        let Some(found) = settings.downstreams.get(downstream) else {
            let known = settings.downstreams.keys().cloned().collect();
            return Err(FromConfigError::NoDownstream { name: downstream.to_owned(), known });
        };
        if found.on_limit == OnLimit::Reject {
            return Err(FromConfigError::Polices(downstream.to_owned()));
        }
        if !found.costs.is_empty() {
            return Err(FromConfigError::OwnCosts(downstream.to_owned()));
        }
        let plans = found.plans.iter();
        let plans = plans.map(|plan| PlanLimits { name: plan.name.clone(), limits: plan.limits.clone() });
        let given = pace::Settings {
            downstream: downstream.to_owned(),
            limits: found.limits.clone(),
            plans: plans.collect(),
            on_limit: found.on_limit,
            on_unavailable: found.on_unavailable,
            horizon: found.horizon,
            concurrency: found.concurrency,
            of_jobs: JobSettings::default(),
            revision: found.revision,
        };
        let lane = LaneId::of_plan(found.default_plan());
        let builder = Self::of_settings(given, lane, settings.precision);
        Ok(match &settings.store.file {
            Some(file) => builder.store_in(file.clone()),
            None => builder.store(store(&settings)?),
        })
    }
}

/// The store that the settings name, which is not a file. Nothing is connected yet.
fn store(settings: &Settings) -> Result<Arc<dyn Store>, StoreError> {
    let url = settings.store.url.expose();
    #[cfg(feature = "redis")]
    if url != "memory:" {
        return Ok(Arc::new(crate::RedisStore::open(url, settings.store.redis_options()?)?));
    }
    if url == "memory:" {
        tracing::warn!(
            "store.url is memory: so the pace is not shared with any other process; set redis://HOST"
        );
        return Ok(Arc::new(MemoryStore::new()));
    }
    let text = "store.url needs a Redis; build paced with the feature `redis`, or use memory: or file:PATH";
    Err(StoreError::Invalid(text.to_owned()))
}
