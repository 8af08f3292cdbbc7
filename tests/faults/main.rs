//! Replicas and servers that are killed, stopped or not there yet: nothing is lost, nothing bursts.
//!
//! Most have servers of their own, so these run apart from the others.
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

/// How long anything may take before it counts as hanging.
const LONG: Duration = Duration::from_secs(90);

/// What a busy machine may add to the lateness of an arrival.
const NOISE: Duration = Duration::from_millis(50);
