//! Tests of replicas and servers that are killed, stopped or not available yet: no job is lost, and there is no burst.
//!
//! Most of these tests start servers of their own, so they run apart from the others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking; helpers of tests too"
)]

#[path = "../support/mod.rs"]
mod support;

mod broker;
mod embed;
mod replica;
mod store;

use std::time::Duration;

/// The time after which an operation counts as hanging.
const LONG: Duration = Duration::from_secs(90);

/// The lateness of an arrival that a busy machine may add.
const NOISE: Duration = Duration::from_millis(50);

/// Panics where a window of requests contains more than the rate allows, with this lateness. How long the runtime of the
/// API stood still is printed, which excuses nothing.
#[track_caller]
fn assert_paced(api: &support::api::Api, rate: paced::Rate, noise: Duration) {
    eprintln!("the runtime of the API stood still for {:?} at most", api.longest_stall());
    support::count::assert_paced(&api.stamps(), rate, noise);
}
