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

/// More requests than are under way at any instant of these tests: sent and not read by the API yet, or about to be sent.
/// A replica that makes up for a second of missed slots sends many more.
const UNDER_WAY: usize = 40;

/// Panics where the requests since this stamp came faster than the rate, with this many more; one more is allowed, since
/// replicas know the store's time only to within a call.
#[track_caller]
fn assert_paced(api: &support::api::Api, since: u64, rate: &str, ahead: usize) {
    support::count::assert_never_ahead(&api.stamps(), since, rate.parse().unwrap(), ahead + 2);
}
