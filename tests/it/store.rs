//! The stores: all backends answer alike, and Redis comes through losses without a burst.

use std::time::Duration;

use paced::RedisOptions;

mod access;
mod changes;
mod cluster;
mod examples;
mod expiry;
mod failover;
mod limits;
mod losses;
mod mishaps;
mod paces;
mod parity;
mod record;
mod reset;
mod restarts;
mod sentinels;

/// Time-outs that a loaded machine keeps, for tests of other things.
fn patient() -> RedisOptions {
    let timeout = Duration::from_secs(10);
    RedisOptions::default().with_timeouts(timeout, timeout)
}
