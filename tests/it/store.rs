//! The stores: all of them answer alike, and Redis recovers from losses without a burst.

use std::time::Duration;

use paced::RedisOptions;

mod access;
mod changes;
mod cluster;
mod cool_down;
mod examples;
mod expiry;
mod failover;
mod fleet;
mod history;
mod inside;
mod kept;
mod lasting;
mod limits;
mod losses;
mod mishaps;
mod notes;
mod paces;
mod parity;
mod record;
mod reset;
mod restarts;
mod runtimes;
mod sentinels;
mod tombstones;
mod zones;

/// Time-outs that suit a loaded machine, for tests of other properties.
fn patient() -> RedisOptions {
    let timeout = Duration::from_secs(60);
    RedisOptions::default().with_timeouts(timeout, timeout)
}
