//! Long runs of four replicas at 200/s in which something goes wrong: nothing is lost, nothing is
//! doubled, and the pace holds.
//!
//! `make chaos` runs them, one at a time; a busy machine is no place for them. Each prints the seed that
//! decides when its faults come (`CHAOS_SEED=N` repeats it), and a line of figures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking; helpers of tests too"
)]

#[path = "../support/mod.rs"]
mod support;

mod api;
mod away;
mod changes;
mod clock;
mod cold;
mod costs;
mod embed;
mod failover;
mod lasting;
mod leaderless;
mod many;
mod nodes;
mod orphans;
mod park;
mod rates;
mod rig;
mod store;
mod turns;
mod verdict;
mod versions;
mod watch;

use std::time::Duration;

/// The longest wait for anything before the test counts as hanging.
const LONG: Duration = Duration::from_secs(120);
