//! The state that the daemon shows: every downstream, over all replicas, in one form for the page, for `paced status`
//! and for `paced top`.
//!
//! ```text
//! dispatchers ─▶ views ─┐
//! broker ─▶ depths ─────┼─▶ observer ─▶ summary ─▶ store ─▶ summaries of all replicas ─▶ fleet ─▶ State
//! store ─▶ records ─────┘   (1/s)
//! ```
//!
//! An [`Observer`] samples what the dispatchers of this process publish, leaves a [`Summary`] of it in the store, reads
//! those of the other replicas, and merges them into a [`State`].

mod asks;
mod binding_log;
mod dispatchers;
mod estimate;
mod exchange;
mod fleet;
mod known;
mod noted;
mod observer;
mod orphans;
mod parked;
mod peek;
mod rates;
pub(crate) mod record;
mod reporting;
mod sampler;
mod shared;
mod silence;
mod stray_log;
mod summary;
pub(crate) mod words;

pub(crate) use asks::{Asks, shown_job, shown_parked};
pub(crate) use dispatchers::{Dispatchers, Handle};
pub(crate) use estimate::estimate;
pub(crate) use observer::{Observer, Watch};
pub(crate) use orphans::UNSERVED;
pub(crate) use shared::{Broker, OwnTerms, Parts};
pub(crate) use summary::{Answer, Identity};
